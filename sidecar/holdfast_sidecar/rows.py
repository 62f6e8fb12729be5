"""Rows of a terminal as bytes that write them again, with colours and soft wraps.

A wrapped row is written without a line break: the reader wraps it again at the same width.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from holdfast_sidecar.ghostty import Rgb, Terminal

# Rows formatted in one call. Large enough that the call's cost is spread, small enough that a block
# with a row that needs painting by hand does not slow the rest.
BLOCK: Final = 256
_RESET: Final = b"\x1b[0m"
# A blank in an attribute that shows on blanks: underlined, inverse, struck, overlined, on a colour.
_VISIBLE_BLANK: Final = re.compile(
    rb"\x1b\[(?:4(?::\d)?|7|9|21|53|4[0-8](?:[;:][\d;:]*)?|10[0-7])m(?:\x1b\[[\d;:]*m)*[^\x1b]* "
)


def to_end(terminal: Terminal, first: int) -> Iterator[bytes]:
    """The rows from `first` to the last visible one, which no line break follows."""
    last = terminal.history + terminal.rows - 1
    for start in range(first, last + 1, BLOCK):
        end = min(start + BLOCK - 1, last)
        if end == last:
            yield from _block(terminal, start, end)
        else:
            yield block_with_break(terminal, start, end)


def between(terminal: Terminal, first: int, last: int) -> Iterator[bytes]:
    """Rows that others follow."""
    for start in range(first, last + 1, BLOCK):
        yield block_with_break(terminal, start, min(start + BLOCK - 1, last))


def block_with_break(terminal: Terminal, start: int, end: int) -> bytes:
    text = b"".join(_block(terminal, start, end))
    return text if terminal.wraps(end) else text + b"\r\n"


def _block(terminal: Terminal, start: int, end: int) -> Iterator[bytes]:
    """Most blocks are right as the formatter writes them. It leaves out the colours of a row
    without text, trailing rows without text, and where a gap in a row begins and ends: it writes
    the gap as blanks in the colours of what stands before it. Rows where that could show are
    painted."""
    width = terminal.columns - 1
    text = terminal.format((0, start), (width, end))
    whole = text.count(b"\r\n") == end - start and b"\r\n\r\n" not in b"\r\n" + text + b"\r\n"
    if whole and not _VISIBLE_BLANK.search(text):
        yield text
        return
    lines = terminal.format((0, start), (width, end), unwrap=False).split(b"\r\n")
    lines += [b""] * (end - start + 1 - len(lines))
    for row, line in enumerate(lines, start):
        suspect = not line or _VISIBLE_BLANK.search(line)
        yield _painted(terminal, row, line) if suspect else line
        # A wide character takes two columns and three bytes: shorter rows cannot be full.
        if row < end and not (2 * len(line) >= width and terminal.wraps(row)):
            yield b"\r\n"


def _painted(terminal: Terminal, row: int, line: bytes) -> bytes:
    """Run by run: cells with something in them, and gaps."""
    used = terminal.used_cells(row)
    if used[-1] and terminal.is_wide_head(len(used) - 1, row):
        used[-1] = False
    if not any(used):
        return b""
    last = len(used) - used[::-1].index(True)
    if line and all(used[:last]):
        return line
    out, column = [], 0
    while column < last:
        run = column
        while run < last and used[run] == used[column]:
            run += 1
        if used[column]:
            text = terminal.format((column, row), (run - 1, row))
            out.append(text or _background(terminal, row, column, run))
        else:
            out.append(b" " * (run - column))
        column = run
    return b"".join(out)


def _background(terminal: Terminal, row: int, start: int, end: int) -> bytes:
    """Cells that have colours and no text."""
    cells = [_sgr(terminal.blank_background(column, row)) for column in range(start, end)]
    return b"".join(b"%s %s" % (sgr, _RESET) for sgr in cells).replace(_RESET + cells[0], b"")


def _sgr(colour: int | Rgb | None) -> bytes:
    if isinstance(colour, tuple):
        return b"\x1b[48;2;%d;%d;%dm" % colour
    return b"\x1b[48;5;%dm" % colour if colour is not None else _RESET
