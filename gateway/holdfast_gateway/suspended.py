"""A suspended session: why it is, and who may let it go on. Pure.

A session that a person suspended goes on when somebody with the right `wake` says so. One that its
idle policy suspended goes on for whoever needs it and has that right. Who has it not is told that
the session is suspended, and which right is missing.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from holdfast_kube.client import Object
from holdfast_wire.errors import Suspended
from holdfast_wire.rights import Right, missing

PREFIX: Final = "holdfast.dev/"
_IDLE: Final = "Idle"


class Wakes(StrEnum):
    """How it goes on again."""

    ASKED = "asked"  # a person suspended it: if somebody asks for it
    NEEDED = "needed"  # nobody used it: as soon as somebody does
    COMING = "coming"  # it has been asked for, or it goes on where there is room


@dataclass(frozen=True, slots=True)
class Suspension:
    wakes: Wakes
    since: str
    """RFC 3339; empty if it is not known."""

    @property
    def sentence(self) -> str:
        by = {
            Wakes.ASKED: "somebody suspended it",
            Wakes.NEEDED: "nobody used it",
            Wakes.COMING: "it is about to go on",
        }[self.wakes]
        return f"{by}, {self.since}" if self.since else by

    def to_json(self, may: bool) -> dict[str, Any]:
        return {"wakes": self.wakes.value, "since": self.since, "may": may}


def suspension(item: Object) -> Suspension | None:
    """None: it is not suspended."""
    spec, status = item.get("spec") or {}, item.get("status") or {}
    if status.get("phase") != "Suspended":
        return None
    stored = status.get("suspended") or {}
    since = str(stored.get("at") or "")
    if spec.get("suspended"):
        return Suspension(Wakes.ASKED, since)
    if stored.get("why", _IDLE) != _IDLE or _asked(item) >= _epoch(status):
        return Suspension(Wakes.COMING, since)
    return Suspension(Wakes.NEEDED, since)


def patch(item: Object) -> Object:
    """What lets it go on."""
    epoch = _epoch(item.get("status") or {})
    made: dict[str, Any] = {"metadata": {"annotations": {f"{PREFIX}wake": str(epoch)}}}
    if (item.get("spec") or {}).get("suspended"):
        made["spec"] = {"suspended": False}
    return made


def refusal(found: Suspension, namespace: str, name: str, actor: str, *, may: bool) -> Suspended:
    """`may`: whether the actor has the right to wake it."""
    said = f"session {namespace}/{name} is suspended: {found.sentence}"
    if may:
        return Suspended(
            said,
            f"wake it with 'kubectl holdfast wake {name} -n {namespace}', or attach with --wake;"
            f" over SSH: ssh -s {name}.{namespace}@GATEWAY wake; over HTTP: POST …/wake",
        )
    lacks, advice = missing(actor, Right.WAKE, namespace, name)
    return Suspended(f"{said}; {lacks}", advice)


def _asked(item: Object) -> int:
    notes = item["metadata"].get("annotations") or {}
    text = str(notes.get(f"{PREFIX}wake") or "")
    return int(text) if text.isascii() and text.isdigit() else -1


def _epoch(status: Object) -> int:
    return int(status.get("epoch") or 0)
