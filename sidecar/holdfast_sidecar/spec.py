"""What a session was asked to be: `session.json`, written once by whoever started it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast_sidecar.journal import DEFAULT, Policy
from holdfast_wire.errors import BadRequest
from holdfast_wire.ids import SessionName, session_name, terminal_size

MAX_SCROLLBACK = 1_000_000


@dataclass(frozen=True, slots=True)
class Spec:
    name: SessionName
    id: str
    command: tuple[str, ...]
    columns: int
    rows: int
    scrollback: int
    created: float
    epoch: int | None = None  # in a cluster: which incarnation this is
    fork: dict[str, Any] | None = None  # and of which session's it is a copy, if it is one
    journal: Policy = DEFAULT


def load(path: Path) -> Spec:
    try:
        body = json.loads(path.read_bytes())
        return _parse(body)
    except FileNotFoundError:
        raise BadRequest(f"there is no {path}", "start sessions with `holdfast run`") from None
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise BadRequest(f"{path} cannot be read: {error}") from error


def _parse(body: dict[str, Any]) -> Spec:
    if not isinstance(body["command"], list):
        raise BadRequest("'command' is a list of words")
    columns, rows = terminal_size(int(body["columns"]), int(body["rows"]))
    return Spec(
        name=session_name(str(body["name"])),
        id=str(body["id"]),
        command=tuple(str(word) for word in body["command"]),
        columns=columns,
        rows=rows,
        scrollback=max(0, min(int(body["scrollback"]), MAX_SCROLLBACK)),
        created=float(body["created"]),
    )
