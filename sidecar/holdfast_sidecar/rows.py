"""Rows of a terminal as bytes that write them again, with colours and soft wraps.

A wrapped row is written without a line break: the reader wraps it again at the same width.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from holdfast_sidecar.ghostty import Rgb, Terminal

# Rows formatted in one call. Large enough that the call's cost is spread, small enough that a block
# with a row that needs painting by hand does not slow the rest.
BLOCK: Final = 256


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
    """The formatter leaves out trailing rows without text, and the colours of any such row."""
    width = terminal.columns - 1
    text = terminal.format((0, start), (width, end))
    if text.count(b"\r\n") == end - start and b"\r\n\r\n" not in b"\r\n" + text + b"\r\n":
        yield text
        return
    lines = terminal.format((0, start), (width, end), unwrap=False).split(b"\r\n")
    lines += [b""] * (end - start + 1 - len(lines))
    for row, line in enumerate(lines, start):
        coloured = not line and terminal.has_cells(row)
        yield _background(terminal, row, width) if coloured else line
        # A wide character takes two columns and three bytes: shorter rows cannot be full.
        if row < end and not (2 * len(line) >= width and terminal.wraps(row)):
            yield b"\r\n"


def _background(terminal: Terminal, row: int, width: int) -> bytes:
    """A row that has colours and no text, as runs of erased cells."""
    colours = [terminal.blank_background(column, row) for column in range(width + 1)]
    out, column = [b"\r"], 0
    while column <= width:
        run = column
        while run <= width and colours[run] == colours[column]:
            run += 1
        if colours[column] is not None:
            out.append(b"\x1b[%dG%s\x1b[%dX" % (column + 1, _sgr(colours[column]), run - column))
        column = run
    return b"".join(out) + b"\x1b[0m"


def _sgr(colour: int | Rgb | None) -> bytes:
    if isinstance(colour, tuple):
        return b"\x1b[48;2;%d;%d;%dm" % colour
    return b"\x1b[48;5;%dm" % (colour or 0)
