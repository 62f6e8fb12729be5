"""What is written into a Lease for the other side to read: how a session ended, by its sidecar; why
an incarnation began anew or what it goes on from, by the operator. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Final

from holdfast_operator.orders import Trigger
from holdfast_operator.text import plain, plain_row

LAST_LINES: Final = 20
LAST_BYTES: Final = 4096


@dataclass(frozen=True, slots=True)
class Exit:
    code: int | None
    signal: int | None
    cause: str  # exited | terminated | killed
    at: str
    lines: tuple[str, ...]

    @classmethod
    def of(cls, text: str) -> Exit:
        """The sidecar's JSON; a broken one is still an exit, of which nothing else is known."""
        try:
            found = json.loads(text)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            found = {}
        code, signal = found.get("code"), found.get("signal")
        lines = found.get("lines")
        return cls(
            code if isinstance(code, int) else None,
            signal if isinstance(signal, int) else None,
            str(found.get("cause") or "exited"),
            str(found.get("at") or ""),
            _bounded(lines if isinstance(lines, list) else []),
        )


def _bounded(lines: Sequence[object]) -> tuple[str, ...]:
    kept: list[str] = []
    room = LAST_BYTES
    for line in reversed(lines[-LAST_LINES:]):
        row = plain_row(str(line))
        room -= len(row.encode()) + 1
        if room < 0:
            break
        kept.append(row)
    return tuple(reversed(kept))


@dataclass(frozen=True, slots=True)
class Fresh:
    """Written into the Lease with a take-over: why this incarnation began anew, and how it is
    said to whoever comes back to the terminal."""

    reason: str
    message: str
    avoid: str = ""  # the node that was lost: its death may not have been noticed yet

    def encode(self) -> str:
        return json.dumps({"reason": self.reason, "message": self.message, "avoid": self.avoid})

    @classmethod
    def of(cls, text: str) -> Fresh | None:
        try:
            found = json.loads(text)
            avoid = plain(str(found.get("avoid", "")), 253)
            return cls(str(found["reason"]), plain(str(found["message"])), avoid)
        except (ValueError, KeyError, TypeError, AttributeError):
            return None


@dataclass(frozen=True, slots=True)
class Restore:
    """Written into the Lease with a grant: the incarnation goes on from a stored checkpoint. It
    never begins anew: if that checkpoint cannot be had, another epoch is granted."""

    checkpoint: str
    why: Trigger  # Recover | Wake | Fork
    reason: str  # of the condition Restored
    message: str
    avoid: str = ""  # as in `Fresh`
    lost: int = 0  # the incarnation that was lost
    until: str = ""  # when it was last heard of
    session: str = ""  # what it is a fork of
    taken: str = ""  # when that was stored

    def encode(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def of(cls, text: str) -> Restore | None:
        try:
            found = json.loads(text)
            return cls(
                plain(str(found["checkpoint"]), 253),
                Trigger(found["why"]),
                str(found["reason"]),
                plain(str(found["message"])),
                plain(str(found.get("avoid", "")), 253),
                int(found.get("lost", 0)),
                str(found.get("until", "")),
                plain(str(found.get("session", "")), 63),
                str(found.get("taken", "")),
            )
        except (ValueError, KeyError, TypeError, AttributeError):
            return None
