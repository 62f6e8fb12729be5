"""What we write to the user's own terminal around the session's bytes. Pure.

Nothing here wipes the user's scrollback: no RIS (several terminals drop it then), no `ESC [ 3 J`.
"""

from __future__ import annotations

import re
from typing import Final

# Programs leave these on when they die, or when we leave them running. A terminal that does not
# know one ignores it. Colours set with OSC 4, 10 and 11 are left alone: the reset would go to the
# terminal's own defaults, not to the theme the user's shell may have loaded.
_MODES_OFF: Final = (
    b"\x1b[?2026l"  # synchronized update
    b"\x1b[?9l\x1b[?1000l\x1b[?1001l\x1b[?1002l\x1b[?1003l"  # mouse, in all its forms
    b"\x1b[?1005l\x1b[?1006l\x1b[?1015l\x1b[?1016l"
    b"\x1b[?1004l"  # focus reports
    b"\x1b[?2004l"  # bracketed paste
    b"\x1b[?2031l\x1b[?2048l"  # reports of colour scheme and size
    b"\x1b[>4;0m"  # xterm's modifyOtherKeys
    b"\x1b[<99u"  # kitty's keyboard: the whole stack of this screen
)
_PRIMARY: Final = (
    b"\x1b[?47l"  # not 1049: on the primary screen that moves the cursor to where it once was
    b"\x1b[<99u"  # the primary screen has a keyboard stack of its own
    b"\x1b[?1l\x1b>"  # plain cursor keys, plain keypad
    b"\x1b[4l\x1b[?5l\x1b[?6l\x1b[?7h"  # no insert, no reverse video, no origin, wrap
    b"\x1b[?69l\x1b7\x1b[r\x1b8"  # no margins; setting them moves the cursor, so bring it back
    b"\x1b(B\x0f"  # plain characters, not line drawing
    b"\x1b]8;;\x1b\\"  # no open hyperlink
    b"\x1b[0 q\x1b[?25h\x1b[0m"  # the user's own cursor, shown; no colours
)
# CAN ends a sequence that was cut in the middle; ST ends a string that was.
GROUND: Final = b"\x18\x1b\\"

SAVE_TITLE: Final = b"\x1b[22;0t"
_RESTORE_TITLE: Final = b"\x1b[23;0t"
_CLEAR: Final = b"\x1b[H\x1b[J"

_SGR: Final = re.compile(rb"\x1b\[[0-9;:]*m")
_UNFINISHED: Final = re.compile(
    rb"\x1b(?:\[[0-?]*[ -/]*|[PX^_\]][^\x07\x18\x1a\x1b]*|[ -/]*)\Z"
    rb"|\x1b[PX^_\]][^\x07\x18\x1a\x1b]*\x1b\Z"
)
# How far back an unfinished sequence may have begun. Pictures are longer; to miss one costs a
# status line inside it and no more.
TAIL: Final = 4096


def make_room(rows: int) -> bytes:
    """Push what the user has on the screen up into their scrollback: it is theirs. From wherever
    the cursor is, `rows` line feeds scroll exactly the lines above it, and no blank ones."""
    return SAVE_TITLE + b"\r\n" * rows


def before_snapshot(rows: int, window_rows: int) -> bytes:
    return GROUND + _MODES_OFF + _PRIMARY + _CLEAR + fit(rows, window_rows)


def fit(rows: int, window_rows: int) -> bytes:
    """Keep a session that is lower than the window in the window's upper part: it scrolls at its
    own last row, not at the window's. The other way round there is no help."""
    if rows >= window_rows:
        return b""
    return b"\x1b7\x1b[1;%dr\x1b8" % rows


def farewell(rows: int) -> bytes:
    """Everything back to what a shell expects, and the cursor on a fresh line at the bottom."""
    return GROUND + _MODES_OFF + _PRIMARY + _RESTORE_TITLE + b"\x1b[%d;1H\r\n" % rows


def status_line(text: str, columns: int, rows: int) -> bytes:
    """One inverse line at the bottom; the cursor stays where it is."""
    shown = f" {text} "[: columns - 1]
    return b"\x1b7\x1b[%d;1H\x1b[0;7m%s\x1b[0m\x1b8" % (rows, shown.encode(errors="replace"))


def bottom_line(screen: str, rows: int) -> bytes:
    """Repaint the bottom line from a rendered screen. Colours begun further up still hold there,
    so all colour changes before it come first."""
    lines = screen.replace("\r\n", "\n").encode(errors="replace").split(b"\n")
    line = lines[rows - 1] if len(lines) >= rows else b""
    colours = b"".join(_SGR.findall(b"\n".join(lines[: rows - 1]))) if line else b""
    return b"\x1b7\x1b[%d;1H\x1b[0m\x1b[2K%s%s\x1b[0m\x1b8" % (rows, colours, line)


def in_ground(tail: bytes) -> bool:
    """Whether a terminal that was fed this is between sequences and between characters."""
    if not tail:
        return True
    start = tail.rfind(b"\x1b")
    before = tail.rfind(b"\x1b", 0, start) if start > 0 else start
    if start >= 0 and (_UNFINISHED.match(tail, start) or _UNFINISHED.match(tail, before)):
        return False
    for back in range(1, min(4, len(tail)) + 1):
        byte = tail[-back]
        if byte >= 0xC0:
            need = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return back >= need
        if byte < 0x80:
            return True
    return True
