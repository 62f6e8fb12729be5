"""Names and numbers that must not be mixed up, and the checks at the edge that make them."""

from __future__ import annotations

import re
import unicodedata
from typing import Any, Final, NamedTuple, NewType

from holdfast_wire.errors import BadName, BadRequest, TooLarge
from holdfast_wire.plain import plain

SessionName = NewType("SessionName", str)
ClientId = NewType("ClientId", str)
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

# Of an actor's name and UID together, in UTF-8.
MAX_ACTOR: Final = 1024
_MAX_SHOWN: Final = 64
# ASCII and Latin letters, of which no two look the same. Not the signs that a cleaned name, or one
# that the page shortens, has itself.
_CLEAR: Final = re.compile(
    r"(?! )[ !-'*-}\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u0148\u014a-\u017e]{1,64}(?<! )"
)
_BLANKS: Final = "  "


class Actor(NamedTuple):  # dataclasses would double what `holdfast --help` loads
    """Who does something: the whole name that was authenticated, and the UID with it. Two that
    differ in a byte of either are two."""

    name: str
    uid: str = ""
    """Empty where whoever authenticated it knows none."""

    def __str__(self) -> str:
        return display(self.name)

    def to_json(self) -> dict[str, str]:
        return {"actor": self.name, "uid": self.uid}

    def shown(self) -> dict[str, str]:
        """The same for clients, which show it to people."""
        return {**self.to_json(), "shown": display(self.name)}


def actor_of(name: object, uid: object = "") -> Actor:
    """At the edge: whole, or refused."""
    if not isinstance(name, str) or not isinstance(uid, str) or not name:
        raise BadRequest("an actor is a name and a UID, both texts")
    both = name + uid
    if len(both) > MAX_ACTOR or len(both.encode(errors="replace")) > MAX_ACTOR:
        raise TooLarge(
            f"the name and UID of an actor are more than {MAX_ACTOR} bytes",
            "they are not shortened, because others' could be the same then; use a shorter name",
        )
    if any(unicodedata.category(c) in ("Cc", "Cs") for c in both):
        raise BadRequest("an actor's name has control characters")
    return Actor(name, uid)


def display(name: str) -> str:
    """A name for people: printable, at most 75 characters, and no two names the same. One that is
    not shown as it is ends with `~` and a part of its digest."""
    if _CLEAR.fullmatch(name) and _BLANKS not in name:
        return name
    import hashlib  # only here: a client that starts has no time for it

    digest = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:10]
    clean = "".join(c for c in plain(name) if c.isprintable())
    return f"{clean[:_MAX_SHOWN]}~{digest}"


def shown(body: dict[str, Any], field: str = "actor") -> str:
    """What to show of an actor that a session named."""
    said = body.get("shown" if field == "actor" else f"{field}_shown")
    name = body.get(field)
    return plain(said) if isinstance(said, str) and said else display(str(name)) if name else ""


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
