"""Keys by their names, as a terminal sends them. Pure."""

from __future__ import annotations

import re
from typing import Final

from holdfast_wire.errors import BadRequest

MOST: Final = 100
_NAMED: Final = {
    "Enter": "\r",
    "Tab": "\t",
    "BackTab": "\x1b[Z",
    "Escape": "\x1b",
    "Space": " ",
    "Backspace": "\x7f",
    "Up": "\x1b[A",
    "Down": "\x1b[B",
    "Right": "\x1b[C",
    "Left": "\x1b[D",
    "Home": "\x1b[H",
    "End": "\x1b[F",
    "Insert": "\x1b[2~",
    "Delete": "\x1b[3~",
    "PageUp": "\x1b[5~",
    "PageDown": "\x1b[6~",
    **dict(zip(("F1", "F2", "F3", "F4"), ("\x1bOP", "\x1bOQ", "\x1bOR", "\x1bOS"), strict=True)),
    **{
        f"F{number}": f"\x1b[{code}~"
        for number, code in zip(range(5, 13), (15, 17, 18, 19, 20, 21, 23, 24), strict=True)
    },
}
_BY_NAME: Final = {name.lower(): keys for name, keys in _NAMED.items()}
_CONTROL: Final = re.compile(r"(?:C-|Ctrl-|\^)([A-Za-z@\[\\\]^_])", re.IGNORECASE)
_META: Final = re.compile(r"(?:M-|Alt-)([!-~])", re.IGNORECASE)
NAMES: Final = f"{', '.join(_NAMED)}, C-a to C-z, M-a to M-z"


def typed(names: str) -> str:
    """What the keys of these names send, one after the other; the names have spaces between."""
    words = names.split()
    if len(words) > MOST:
        raise BadRequest(f"at most {MOST} keys at once", "send text as 'text'")
    return "".join(_one(word) for word in words)


def _one(word: str) -> str:
    if (known := _BY_NAME.get(word.lower())) is not None:
        return known
    if control := _CONTROL.fullmatch(word):
        return chr(ord(control[1].upper()) & 0x1F)
    if meta := _META.fullmatch(word):
        return "\x1b" + meta[1]
    raise BadRequest(f"{word[:20]!r} is not a key", f"there are: {NAMES}. Send text as 'text'")
