"""What of a session goes along to another pod, or is stored: files in its folder, and one that says
the rest.

Ring, keyframe, journal and jobs are what they always are. `outbox` is hold's, saved; `sealed.json`
is written last, so where it lies, of this sealing, the others do too.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from holdfast_sidecar import job_records, journal
from holdfast_wire.errors import BadRequest

NAME: Final = "sealed.json"
_CUT: Final = "cut.json"  # left by the agent, beside the files
_KEEPING: Final = "keeping"  # for the next sidecar here: sealed to be stored, and not opened since
_FOLLOWS: Final = "follows"  # likewise: what is frozen here is needed where the session goes on
OUTBOX: Final = "outbox"
_FILES: Final = ("ring", "keyframe", OUTBOX, NAME)


@dataclass(frozen=True, slots=True)
class Sealed:
    session_id: str
    """Names the stream that seq counts: the same wherever it goes on."""
    epoch: int
    """Of the incarnation that was sealed."""
    seq: int
    order: int
    """Of the last input."""
    created: float
    active: float
    holder: str | None
    """Who has the turn: the name, whole."""
    holder_attached: bool
    fork: dict[str, Any] | None = None
    """Of which session it is one, and as of when."""
    journal_count: int | None = None
    journal_head: str | None = None
    """Where the journal's chain ended. None: sealed before it was one."""
    holder_uid: str = ""
    arrived: bool = False
    """Set where it went, once it was served there."""


def files(folder: Path) -> list[str]:
    own = (name for name in _FILES if (folder / name).exists())
    kept = (path.name for path in journal.files(folder))
    return [*own, *kept, *job_records.files(folder)]


def save(folder: Path, sealed: Sealed) -> None:
    new = folder / "sealed.new"
    new.write_text(json.dumps(asdict(sealed)))
    new.rename(folder / NAME)


def keep(folder: Path) -> None:
    (folder / _KEEPING).touch()


def kept(folder: Path) -> bool:
    return (folder / _KEEPING).exists()


def follow(folder: Path) -> None:
    (folder / _FOLLOWS).touch()


def follows(folder: Path) -> bool:
    """Its memory is read out of it after it has gone on elsewhere: the agent ends it."""
    return (folder / _FOLLOWS).exists()


def open_again(folder: Path) -> None:
    for name in (_KEEPING, _FOLLOWS):
        (folder / name).unlink(missing_ok=True)


def cut(folder: Path) -> list[tuple[str, str]]:
    """The connections to the outside that did not come along, as the agent left word of them:
    local and remote address."""
    try:
        found = json.loads((folder / _CUT).read_bytes())
        return [(str(local), str(remote)) for local, remote in found]
    except (OSError, ValueError, TypeError):
        return []


def arrived(sealed: Sealed) -> Sealed:
    return replace(sealed, arrived=True)


def load(folder: Path) -> Sealed:
    try:
        body = json.loads((folder / NAME).read_bytes())
        return Sealed(
            session_id=str(body["session_id"]),
            epoch=int(body["epoch"]),
            seq=int(body["seq"]),
            order=int(body["order"]),
            created=float(body["created"]),
            active=float(body["active"]),
            holder=None if body["holder"] is None else str(body["holder"]),
            holder_attached=bool(body["holder_attached"]),
            fork=body.get("fork") if isinstance(body.get("fork"), dict) else None,
            journal_count=_int_or_none(body.get("journal_count")),
            journal_head=None if body.get("journal_head") is None else str(body["journal_head"]),
            holder_uid=str(body.get("holder_uid", "")),
            arrived=bool(body.get("arrived", False)),
        )
    except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
        raise BadRequest(f"the folder has no sealed session: {error}") from error


def _int_or_none(value: Any) -> int | None:
    return None if value is None else int(value)
