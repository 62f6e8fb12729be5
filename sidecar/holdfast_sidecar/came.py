"""The session that came to this pod from elsewhere: what its files say of it, and who it is here.

It is the same stream of bytes wherever it goes on, unless something of it was lost, or it is
another session's now: then it is a stream of its own, and no client resumes into it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from holdfast_sidecar import sealed, settings, stored
from holdfast_sidecar.sealed import Sealed
from holdfast_sidecar.spec import Spec
from holdfast_sidecar.stored import Stored, Why
from holdfast_wire.errors import BadRequest


@dataclass(frozen=True, slots=True)
class Came:
    folder: Path
    asked: Spec
    """As a fresh incarnation of this epoch would be."""
    uid: str
    """The Session's."""
    epoch: int
    stored: bool
    """Not from a pod that gave it up meanwhile."""

    def told(self) -> Sealed:
        return sealed.load(self.folder)

    def what(self) -> Stored | None:
        return stored.load(self.folder) if self.stored else None

    @property
    def awaited(self) -> bool:
        """Whether it has not been served here yet. Once it was, the files say so, or are of a
        sealing here."""
        told = self.told()
        return not (told.arrived or self._sealed_here(told))

    def _sealed_here(self, told: Sealed) -> bool:
        return self._is_ours(told) and told.epoch == self.epoch

    def _is_ours(self, told: Sealed) -> bool:
        return told.session_id.startswith(f"{self.uid}.")

    def spec(self) -> Spec:
        told, what = self.told(), self.what()
        if what is None or self._sealed_here(told):
            return self._same(told)
        if what.why is Why.FORK:
            now = settings.created(self.folder)
            return replace(self.asked, created=now, fork=_fork(what))
        same = self._same(told)
        return same if what.why is Why.WAKE else replace(same, id=self.asked.id)

    def _same(self, told: Sealed) -> Spec:
        if not self._is_ours(told):
            raise BadRequest(f"the files are of session {told.session_id}")
        return replace(self.asked, id=told.session_id, created=told.created, fork=told.fork)


def _fork(what: Stored) -> dict[str, Any]:
    return {
        "session": what.origin,
        "epoch": what.epoch,
        "checkpoint": what.checkpoint,
        "takenAt": what.taken_at,
    }
