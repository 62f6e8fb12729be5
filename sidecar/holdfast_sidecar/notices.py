"""A line that the sidecar itself has to say, in a terminal that somebody is using.

It is put above the line with the cursor, which with all below it moves down by one row and is
otherwise what it was; the cursor stands at the same place in it. Line editors move relative to
where they are, so they go on as if nothing had happened. Only where somebody is waited for: at a
shell's prompt, or where the kernel itself edits the line. On the alternate screen, or while a
program prints, nothing is said; it waits, and clients have the news meanwhile.

Only relative motions are used, so that it is right in a window of another height too.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import Final, NamedTuple

from holdfast_sidecar.ghostty import Terminal
from holdfast_sidecar.hold import HoldError, HoldLink
from holdfast_sidecar.session import Session
from holdfast_sidecar.state import Activity, observe

# What waits to be said. Of more only the last are, and how many were not: the journal has all.
_MOST: Final = 16
# Between looks whether it can be said now: somebody may be in an editor for hours.
_LOOK_SECONDS: Final = (0.05, 1.0)
_AUTOWRAP, _ORIGIN, _SYNCHRONIZED, _MARGINS = 7, 6, 2026, 69
_INSERT: Final = 4  # an ANSI mode, as the numbers above are DEC's


class Notice(NamedTuple):
    """What is said of something: `title` is what is cut if it is too long for the row."""

    before: str
    title: str
    after: str = ""


def paint(terminal: Terminal, notice: Notice) -> bytes | None:
    """What puts the line there; None where there is no place for it now."""
    if not _plain(terminal):
        return None
    column, row = terminal.cursor
    top = terminal.history
    first, last = _line(terminal, row)
    used = [r for r in range(last, terminal.rows) if any(terminal.used_cells(top + r))]
    last = max(used, default=last)
    if last - first + 2 > terminal.rows:  # the line fills the screen: there is no above
        return None
    pen = terminal.extras("style")["style"]
    said = _said(notice, terminal.columns - 1)  # a full row would look like one that goes on
    # One row down past everything, which scrolls if it must; up to the line; room; back to where
    # the cursor was, one row lower than it would have been.
    return b"".join(
        (
            b"\r",
            _move(last - row, b"B"),
            b"\n",
            _move(last + 1 - first, b"A"),
            b"\x1b[L\x1b[0;2m\x1b[?7l",
            said.encode("utf-8", "replace"),
            b"\x1b[?7h\x1b[0m\r",
            _move(row - first + 1, b"B"),
            _place(terminal, column, top + row),
            pen,
        )
    )


def _said(notice: Notice, width: int) -> str:
    before, title, after = ("".join(c for c in part if c.isprintable()) for part in notice)
    room = width - len(f"── {before}{after} ──")
    if len(title) > room:
        title = title[: max(0, room - 1)] + "…"
    return f"── {before}{title}{after} ──"[:width]


def _move(count: int, where: bytes) -> bytes:
    return b"\x1b[%d%s" % (count, where) if count > 0 else b""


def _place(terminal: Terminal, column: int, line: int) -> bytes:
    """Where the cursor hangs past the last column, the last character is written once more: only
    then does it hang there again."""
    if not terminal.pending_wrap:
        return b"\x1b[%dG" % (column + 1)
    if terminal.is_wide_tail(column, line):
        column -= 1
    return b"\x1b[%dG" % (column + 1) + terminal.format((column, line), (column, line))


def _plain(terminal: Terminal) -> bool:
    """Nothing is set that would bend what is written, and no sequence is half said."""
    bent = any(terminal.mode(number) for number in (_ORIGIN, _SYNCHRONIZED, _MARGINS))
    extras = terminal.extras("scrolling_region", "charsets", "protection", "hyperlink")
    return (
        not terminal.alternate
        and not terminal.continuation()
        and not bent
        and not terminal.mode(_INSERT, ansi=True)
        and terminal.mode(_AUTOWRAP)
        and not any(extras.values())
    )


def _line(terminal: Terminal, row: int) -> tuple[int, int]:
    """The rows of the line with the cursor: those that go on in the next, or are full to the last
    column, which an editor may have wrapped by hand."""
    first, last, top = row, row, terminal.history
    while first > 0 and _goes_on(terminal, top + first - 1):
        first -= 1
    while last < terminal.rows - 1 and _goes_on(terminal, top + last):
        last += 1
    return first, last


def _goes_on(terminal: Terminal, line: int) -> bool:
    return terminal.wraps(line) or terminal.used_cells(line)[-1]


class Notices:
    def __init__(self, session: Session, hold: HoldLink) -> None:
        self._session, self._hold = session, hold
        self._waiting: deque[Notice] = deque(maxlen=_MOST)
        self._left_out = 0
        self._some = asyncio.Event()

    def add(self, before: str, title: str, after: str = "") -> None:
        if len(self._waiting) == _MOST:
            self._left_out += 1
        self._waiting.append(Notice(before, title, after))
        self._some.set()

    async def run(self) -> None:
        pause, longest = _LOOK_SECONDS
        while True:
            if not self._waiting:
                self._some.clear()
                await self._some.wait()
                pause = _LOOK_SECONDS[0]
            said = False
            with contextlib.suppress(HoldError):
                said = await self._say_one()
            if not said:
                await asyncio.sleep(pause)
                pause = min(2 * pause, longest)

    async def _say_one(self) -> bool:
        session = self._session
        if not self._may():
            return False
        head, size = session.ring.head, session.size
        if not await self._awaited():
            return False
        left_out = self._left_out
        first = Notice(f"{left_out} more are in the journal", "") if left_out else self._waiting[0]

        def painted(terminal: Terminal, _seq: int) -> bytes | None:
            return paint(terminal, first) if size == (terminal.columns, terminal.rows) else None

        data = await session.emulator.call(painted, head)
        # What was printed meanwhile is not in what was computed.
        same = (session.ring.head, session.size) == (head, size)
        if data is None or not same or not self._may():
            return False
        if left_out:
            self._left_out -= left_out
        elif self._waiting[0] is first:  # else it was one too many meanwhile
            self._waiting.popleft()
        session.interject(data)
        return True

    def _may(self) -> bool:
        return not self._session.parked and self._session.exit is None

    async def _awaited(self) -> bool:
        graph = await self._hold.foreground()
        seen = observe(graph).activity
        return seen is Activity.PROMPT or (seen is Activity.READING and graph.canonical)
