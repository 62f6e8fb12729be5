"""A stored session that is to go on in this pod: what the agent says of it when it asks to commit.

`stored.json` is written before the Lease is taken, so whichever sidecar finds the Lease its own
knows what it has: a session that lost its host, one that was suspended, or the fork of another.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from holdfast_wire.errors import BadRequest

_NAME: Final = "stored.json"
_MAX_NAME: Final = 256
_MAX_EPOCH: Final = 10**18
_MAX_TIME: Final = 253402300799  # the year 9999


class Why(StrEnum):
    RECOVER = "Recover"
    WAKE = "Wake"
    FORK = "Fork"


@dataclass(frozen=True, slots=True)
class Stored:
    epoch: int
    """Of the incarnation that was stored."""
    taken: float
    """When it stood still."""
    why: Why
    origin: str
    """The session that it was: another one's, for a fork."""
    checkpoint: str

    @property
    def taken_at(self) -> str:
        return rfc3339(self.taken)


def rfc3339(moment: float) -> str:
    at = datetime.fromtimestamp(moment, UTC)
    return at.isoformat(timespec="seconds").replace("+00:00", "Z")


def parse(body: object) -> Stored:
    if not isinstance(body, dict):
        raise BadRequest("'stored' says what is stored: epoch, taken, why, from, checkpoint")
    try:
        return Stored(
            epoch=int(_number(body["epoch"], _MAX_EPOCH)),
            taken=_number(body["taken"], _MAX_TIME),
            why=Why(body["why"]),
            origin=_name(body["from"]),
            checkpoint=_name(body["checkpoint"]),
        )
    except (KeyError, ValueError) as error:
        raise BadRequest(f"'stored' cannot be understood: {error!r}") from error


def _number(value: Any, most: int) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= most:
        raise ValueError(f"{value!r} is not from 1 to {most}")
    return value


def _name(value: Any) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= _MAX_NAME or not value.isprintable():
        raise ValueError(f"{value!r} is not a name")
    return value


def save(folder: Path, stored: Stored) -> None:
    body = asdict(stored)
    body["from"] = body.pop("origin")
    new = folder / "stored.new"
    new.write_text(json.dumps(body))
    new.rename(folder / _NAME)


def load(folder: Path) -> Stored:
    try:
        return parse(json.loads((folder / _NAME).read_bytes()))
    except (OSError, ValueError) as error:
        raise BadRequest(f"what is stored here is not known: {error}") from error
