"""Names and numbers that must not be mixed up, and the checks at the edge that make them."""

from __future__ import annotations

import re
from typing import NewType

from holdfast_wire.errors import BadName, BadRequest

SessionName = NewType("SessionName", str)
ClientId = NewType("ClientId", str)
Actor = NewType("Actor", str)
Seq = NewType("Seq", int)
"""Position in the output byte stream, counted from the session's first byte; never reset."""

# A DNS label, as Kubernetes wants for a pod's hostname: the same name works here and there.
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")
MAX_NAME = 63

# A terminal larger than this is a mistake or an attack: the emulator allocates by it.
MAX_COLUMNS = 1000
MAX_ROWS = 1000
# One row or column starves programs that divide by it.
MIN_COLUMNS = 2
MIN_ROWS = 1


def session_name(text: str) -> SessionName:
    if len(text) > MAX_NAME or not _NAME.fullmatch(text):
        shown = text if len(text) <= MAX_NAME else text[:20] + "…"
        raise BadName(
            f"{shown!r} is not a session name",
            f"use at most {MAX_NAME} of a-z, 0-9 and '-', beginning and ending with a letter or"
            " digit",
        )
    return SessionName(text)


def session_of(session_id: str) -> str:
    """The session itself, of an id that may be `SESSION.EPOCH`: one stream of its output, begun
    with that incarnation because the one before was lost."""
    return session_id.partition(".")[0]


def terminal_size(columns: int, rows: int) -> tuple[int, int]:
    if not (MIN_COLUMNS <= columns <= MAX_COLUMNS and MIN_ROWS <= rows <= MAX_ROWS):
        raise BadRequest(
            f"a terminal cannot be {columns}x{rows}",
            f"use {MIN_COLUMNS} to {MAX_COLUMNS} columns and {MIN_ROWS} to {MAX_ROWS} rows",
        )
    return columns, rows
