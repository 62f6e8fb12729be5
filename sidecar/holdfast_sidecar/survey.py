"""Keeps current what would stop a move of the session, for its Lease: long before one is tried.

A graph is not free: hold reads all of /proc for it, and on this link answers nothing else until
then, deadlines of the Lease among it. So it is asked for now and then, less often where nothing is
printed or where it takes long, and of a session with very many processes hardly ever: there it can
take as long as a renewal may be late.

Invariant: a blocker is told only when it was seen at two looks, one after the other. A pager that
was opened for a moment is no news, nor is CRIU, which traces all of the session when it goes.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Final

from holdfast_sidecar import movable
from holdfast_sidecar.hold import HoldError, HoldLink
from holdfast_sidecar.session import Session

EVERY_SECONDS: Final = 10.0
_IDLE_LOOKS: Final = 3  # where nothing was printed and nothing found, each third of these
_SHARE: Final = 20  # a twentieth of the time, but not less than each sixth
_LONGEST: Final = 6
_MANY: Final = 1000  # processes: then each sixtieth
_HARDLY: Final = 60


class Survey:
    def __init__(
        self,
        session: Session,
        hold: HoldLink,
        frozen: Callable[[], bool],
        changed: Callable[[], None],
        every: float = EVERY_SECONDS,
    ) -> None:
        self._session, self._hold, self._every = session, hold, every
        self._frozen, self._changed = frozen, changed
        self._seen: set[tuple[int, str]] = set()
        self._looked_at, self._skipped = -1, 0
        self._not_before = 0.0
        self.note: str | None = None
        """For the Lease; None: not known yet."""

    async def run(self) -> None:
        """For ever. Without hold there is nothing to see, and who serves the session hears of
        that too."""
        while True:
            await asyncio.sleep(self._every)
            if self._due():
                with contextlib.suppress(HoldError):
                    await self._look()

    def _due(self) -> bool:
        session = self._session
        if session.parked or session.exit is not None or self._frozen():
            return False
        if time.monotonic() < self._not_before:
            return False
        self._skipped += 1
        quiet = session.ring.head == self._looked_at and not self._seen
        return not quiet or self._skipped >= _IDLE_LOOKS

    async def _look(self) -> None:
        self._looked_at, self._skipped = self._session.ring.head, 0
        began = time.monotonic()
        graph = await self._hold.graph()
        now = time.monotonic()
        pause = min(_SHARE * (now - began), (_LONGEST - 0.5) * self._every)
        many = len(graph.processes) > _MANY
        self._not_before = now + ((_HARDLY - 0.5) * self._every if many else pause)
        if self._session.parked:
            return  # a move began meanwhile, and what it does to the session is not the session's
        found = movable.blockers(graph)
        told = [one for one in found if (one.pid, one.what) in self._seen]
        self._seen = {(one.pid, one.what) for one in found}
        note = movable.encode(told)
        if note != self.note:
            self.note = note
            self._changed()
