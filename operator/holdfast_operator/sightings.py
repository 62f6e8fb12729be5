"""Which Leases were seen, in which version, since when. Pure but for being changed in place.

Feeds the Observers (see `holdfast_wire.lease`): the wait for a lost holder runs from this process's
first sight of the Lease's current version. A version that a late watch shows again only makes a
wait longer.

While the API server is away nobody can renew, and nobody must be taken for lost when it comes back:
after a time without any answer from it, every wait begins anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from holdfast_operator import names
from holdfast_operator.names import Key
from holdfast_wire.lease import Epoch, Observer, Record, Timing

# The leader Lease is read every two seconds or so, so silence this long means that the API server,
# or this process, stood still. Short enough that a holder which could not renew for as long still
# does so before the shortest wait ends.
SILENCE_SECONDS: Final = 6.0


class Urgency(Enum):
    NOTHING = "nothing"  # a renewal, as it should be
    LATER = "later"  # what changes as people work
    NOW = "now"


@dataclass(slots=True)
class _Sight:
    version: str | None = None
    notes: Mapping[str, str] = field(default_factory=dict)
    observer: Observer | None = None
    reported: bool = False  # that the wait for this version has ended


class Sightings:
    def __init__(self) -> None:
        self._of: dict[Key, _Sight] = {}
        self._heard_at: float | None = None

    def heard(self, now: float) -> None:
        """The API server answered something."""
        silent = self._heard_at is not None and now - self._heard_at > SILENCE_SECONDS
        self._heard_at = now
        if not silent:
            return
        for sight in self._of.values():
            if sight.observer is not None:
                sight.observer.restart(now)
                sight.observer.saw(_record(sight.version), now)
                sight.reported = False

    def observer(self, key: Key, seconds: float) -> Observer:
        """The one Observer of this Lease, whose wait begins with the first look."""
        sight = self._of.setdefault(key, _Sight())
        if sight.observer is None or sight.observer.timing.duration != seconds:
            sight.observer = Observer(Timing.of(seconds))
        return sight.observer

    def forget(self, key: Key) -> None:
        """The Session is gone."""
        self._of.pop(key, None)

    def saw(self, item: Mapping[str, Any], now: float) -> tuple[Key, Urgency]:
        """A Lease's metadata, from a watch or a list."""
        meta = item["metadata"]
        key = Key(meta["namespace"], meta["name"])
        sight = self._of.setdefault(key, _Sight())
        known = sight.version is not None
        notes = {
            k: v for k, v in (meta.get("annotations") or {}).items() if k.startswith(names.PREFIX)
        }
        changed = _changed(sight.notes, notes)
        if meta["resourceVersion"] != sight.version:
            sight.version, sight.notes, sight.reported = meta["resourceVersion"], notes, False
            if sight.observer is not None:
                sight.observer.saw(_record(sight.version), now)
        return key, changed if known else Urgency.NOW

    def gone(self, key: Key, now: float) -> Urgency:
        sight = self._of.get(key)
        if sight is None or (sight.version is None and not sight.notes):
            return Urgency.NOTHING
        sight.version, sight.notes, sight.reported = None, {}, False
        if sight.observer is not None:
            sight.observer.saw(None, now)
        return Urgency.NOW

    def listed(self, namespace: str | None, found: Iterable[Key], now: float) -> list[Key]:
        """After a list of everything: which Leases went while nobody watched."""
        there = set(found)
        missing = [
            key
            for key in self._of
            if key not in there and (namespace is None or key.namespace == namespace)
        ]
        return [key for key in missing if self.gone(key, now) is Urgency.NOW]

    def ended(self, now: float) -> list[Key]:
        """Whose wait has ended since this was last asked: each version is told once."""
        found = []
        for key, sight in self._of.items():
            if sight.observer and not sight.reported and sight.observer.expired(now):
                sight.reported = True
                found.append(key)
        return found


def _record(version: str | None) -> Record | None:
    """Only the version matters to the wait; who holds the Lease is read anew before any act."""
    return None if version is None else Record(version, Epoch(0), "")


def _changed(before: Mapping[str, str], after: Mapping[str, str]) -> Urgency:
    keys = {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
    if not keys:
        return Urgency.NOTHING
    froze = "frozen" in (before.get(names.ACTIVITY), after.get(names.ACTIVITY))
    if keys - names.PASTIME or (froze and names.ACTIVITY in keys):
        return Urgency.NOW
    return Urgency.LATER
