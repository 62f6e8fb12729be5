"""When each watch last heard from the API server. Pure but for being changed in place.

An idle cluster has no events, so bookmarks, lists and watches that end as asked count too. Losing
contact for good is what /healthz reports: a new process has new connections.
"""

from __future__ import annotations

from typing import Final

# Longer than the API server may be away: a restart would not bring it back, and would begin every
# wait anew.
TOO_OLD_SECONDS: Final = 600.0


class Contact:
    def __init__(self, now: float) -> None:
        self._began = now
        self._at: dict[str, float] = {}

    def made(self, source: str, now: float) -> None:
        self._at[source] = now

    def expect(self, source: str) -> None:
        """From now on this source must be heard from, counted from the start."""
        self._at.setdefault(source, self._began)

    def ages(self, now: float) -> dict[str, float]:
        return {source: now - at for source, at in sorted(self._at.items())}

    def stale(self, now: float) -> list[str]:
        return [source for source, age in self.ages(now).items() if age > TOO_OLD_SECONDS]
