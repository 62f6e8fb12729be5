"""A terminal as bytes: written to a reset terminal of the same size, they give the same scrollback,
screen, cursor, modes and title, and a parser that stands in the middle of the same sequence.

Order matters. Text first, while every mode is at its default and cannot bend it; then what moves
the cursor (saved cursor, margins, origin mode); then the cursor; last a sequence begun and not
ended.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from holdfast_sidecar import rows
from holdfast_sidecar.ghostty import Terminal
from holdfast_sidecar.history import History

# Ten thousand lines take about a megabyte; in true colour from end to end they would take forty.
MAX_LINES_BYTES: Final = 8 << 20
# The alternate screen is entered by hand below; column mode would clear what was just written.
_MODES_LEFT_OUT: Final = {b"?3", b"?40", b"?47", b"?1047", b"?1048", b"?1049"}
_MODE: Final = re.compile(rb"\x1b\[(\??)(\d+)([hl])")
_REGION: Final = re.compile(rb"\x1b\[(\d+);(\d+)r")
_CONTROL: Final = re.compile(rb"[\x00-\x1f\x7f]")


def take(terminal: Terminal, history: History, *, whole: bool = True) -> bytes:
    """Or, if it need not be the whole of it, without the scrollback."""
    return b"".join(_parts(terminal, history, whole))


def _parts(terminal: Terminal, history: History, whole: bool) -> Iterator[bytes]:
    if terminal.alternate:
        # What leaving the alternate screen would show: the primary one beneath, and the cursor that
        # was saved on the way in. The reader's own entry then saves that cursor again.
        beneath = terminal.clone() if whole else terminal.clone_without_history()
        if beneath is not None:
            beneath.feed(b"\x18\x1b[?1049l")
            first = _first_row(beneath) if whole else beneath.history
            yield from _bounded(rows.to_end(beneath, first))
            yield _place(beneath)
            yield beneath.extras("style")["style"]
        yield b"\x1b[?1049h\x1b[0m\x1b[H"
        yield from rows.to_end(terminal, terminal.history)
    elif whole:
        yield from _bounded(history.lines(terminal, _first_row(terminal)))
    else:
        yield from rows.to_end(terminal, terminal.history)
    yield from _colours(terminal)
    yield from _tab_stops(terminal)
    yield from _saved_cursor(terminal)
    yield from _state(terminal)


def _bounded(lines: Iterator[bytes]) -> list[bytes]:
    """Without the oldest lines, if together they are more than a client should be sent."""
    blocks = list(lines)
    size = sum(map(len, blocks))
    while size > MAX_LINES_BYTES and len(blocks) > 1:
        size -= len(blocks.pop(0))
    return blocks


def _first_row(terminal: Terminal) -> int:
    return max(0, terminal.history - terminal.scrollback_limit)


def _colours(terminal: Terminal) -> Iterator[bytes]:
    for index, (red, green, blue) in terminal.changed_palette():
        yield b"\x1b]4;%d;rgb:%02x/%02x/%02x\x1b\\" % (index, red, green, blue)
    for code, name in ((10, "FOREGROUND"), (11, "BACKGROUND"), (12, "CURSOR")):
        if colour := terminal.changed_colour(name):
            yield b"\x1b]%d;rgb:%02x/%02x/%02x\x1b\\" % (code, *colour)


def _tab_stops(terminal: Terminal) -> Iterator[bytes]:
    stops = terminal.extras("tabstops")["tabstops"]
    usual = b"".join(b"\x1b[%dG\x1bH" % (c + 1) for c in range(8, terminal.columns, 8))
    if stops != b"\x1b[3g" + usual + b"\x1b[H":
        yield stops


def _saved_cursor(terminal: Terminal) -> Iterator[bytes]:
    """What DECRC would bring back: learned by doing it to a copy."""
    copy = terminal.clone_without_history()
    if copy is None:
        return
    copy.feed(b"\x18\x1b8")
    extras = copy.extras("style", "charsets")
    place, style, charsets = _place(copy), extras["style"], extras["charsets"]
    if (place, style, charsets) != (b"\x1b[1;1H", b"\x1b[0m", b""):
        yield (
            place + style + charsets + b"\x1b7\x1b[0m" + (b"\x1b(B\x1b)B\x0f" if charsets else b"")
        )


def _place(terminal: Terminal) -> bytes:
    column, row = terminal.cursor
    return b"\x1b[%d;%dH" % (row + 1, column + 1)


def _state(terminal: Terminal) -> Iterator[bytes]:
    pen = ("style", "charsets", "protection", "hyperlink")
    extras = terminal.extras("scrolling_region", "modes", "kitty_keyboard", *pen)
    yield extras["scrolling_region"]
    for question, number, action in _MODE.findall(extras["modes"]):
        if question + number not in _MODES_LEFT_OUT:
            yield b"\x1b[%s%s%s" % (question, number, action)
    yield extras["kitty_keyboard"]
    if (shape := terminal.cursor_shape()) != 1:
        yield b"\x1b[%d q" % shape
    if title := terminal.title:
        yield b"\x1b]2;%s\x1b\\" % _CONTROL.sub(b"", title)
    yield from _cursor(terminal, extras["scrolling_region"], [extras[name] for name in pen])
    yield terminal.continuation()


def _cursor(terminal: Terminal, region: bytes, pen: list[bytes]) -> Iterator[bytes]:
    """Cursor and pen. Where it can be, the character before the cursor is written once more, as the
    very last: only then does a combining mark that comes next combine with it. And only then does
    the cursor hang past the last column, if it did; there the pen may have to follow."""
    column, row = terminal.cursor
    line = terminal.history + row
    if terminal.mode(6) and (margins := _REGION.search(region)):
        row -= int(margins[1]) - 1
    hangs = terminal.pending_wrap
    before = column if hangs else column - 1
    if before >= 0 and terminal.is_wide_tail(before, line):
        before -= 1
    cell = terminal.format((before, line), (before, line)) if before >= 0 else b""
    style, *rest = pen
    bare = cell.removesuffix(b"\x1b[0m").removeprefix(style)
    same_pen = not any(rest) and b"\x1b" not in bare and (b"\x1b" in cell) == (style != b"\x1b[0m")
    if cell and same_pen and not terminal.mode(4, ansi=True):
        yield b"%s\x1b[%d;%dH%s" % (style, row + 1, before + 1, bare)
    elif cell and hangs:
        yield b"\x1b[%d;%dH%s%s" % (row + 1, before + 1, cell, b"".join(pen))
    else:
        yield b"%s\x1b[%d;%dH" % (b"".join(pen), row + 1, column + 1)


def text(terminal: Terminal, *, scrollback: bool, unwrap: bool = False) -> str:
    """What a person would read, trailing blanks dropped; rows as displayed, or lines as printed."""
    first = _first_row(terminal) if scrollback else terminal.history
    last = terminal.history + terminal.rows - 1
    lines = terminal.format((0, first), (terminal.columns - 1, last), plain=True, unwrap=unwrap)
    return lines.decode("utf-8", "replace").replace("\r\n", "\n").rstrip("\n")


def ansi(terminal: Terminal, *, scrollback: bool) -> str:
    """The same with its colours, for a person's own terminal."""
    first = _first_row(terminal) if scrollback else terminal.history
    return b"".join(rows.to_end(terminal, first)).decode("utf-8", "replace").rstrip("\r\n")
