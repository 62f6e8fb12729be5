"""The user's own terminal: raw while attached, and as it was before whatever happens."""

from __future__ import annotations

import os
import select
import termios
import time
import tty
from types import TracebackType
from typing import Final, Self

from holdfast_wire.errors import BadRequest
from holdfast_wire.ids import MAX_COLUMNS, MAX_ROWS, MIN_COLUMNS, MIN_ROWS

# A terminal that takes no byte for this long at the end (stopped, or gone) does not keep us.
_LAST_WORDS_SECONDS: Final = 0.5


class RawTerminal:
    """Raw between `with` and its end. Restoring never raises and never waits for a terminal that is
    gone, so it may run at any point of an exception."""

    def __init__(self, stdin: int = 0, stdout: int = 1) -> None:
        self.stdin = stdin
        self.stdout = stdout
        self._before = termios.tcgetattr(stdin)

    def __enter__(self) -> Self:
        self.make_raw()
        return self

    def make_raw(self) -> None:
        # TCSANOW: what the user has typed ahead is for the session.
        tty.setraw(self.stdin, termios.TCSANOW)

    def size(self) -> tuple[int, int]:
        """Columns and rows, within what a session may have."""
        try:
            columns, rows = os.get_terminal_size(self.stdout)
        except OSError:
            columns, rows = 80, 24
        if columns <= 0 or rows <= 0:  # some consoles do not know their size
            columns, rows = 80, 24
        return (
            min(max(columns, MIN_COLUMNS), MAX_COLUMNS),
            min(max(rows, MIN_ROWS), MAX_ROWS),
        )

    def write(self, data: bytes) -> None:
        """All of it. The descriptor may be non-blocking: others share it, and one of them may have
        made it so."""
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self.stdout, view) :]
            except BlockingIOError:
                select.select([], [self.stdout], [])

    def farewell(self, data: bytes) -> None:
        """As much of it as the terminal takes at once."""
        deadline = time.monotonic() + _LAST_WORDS_SECONDS
        try:
            while data and (left := deadline - time.monotonic()) > 0:
                if not select.select([], [self.stdout], [], left)[1]:
                    return
                data = data[os.write(self.stdout, data[:512]) :]
        except OSError:
            return  # it was hung up

    def restore(self) -> None:
        try:
            termios.tcsetattr(self.stdin, termios.TCSANOW, self._before)
        except (termios.error, OSError):
            return  # it was hung up

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.restore()


def require_terminal(name: str, prog: str = "holdfast") -> None:
    if not (os.isatty(0) and os.isatty(1)):
        which = "standard input" if not os.isatty(0) else "standard output"
        raise BadRequest(
            f"attach needs a terminal, and {which} is not one",
            f"to type into the session from a program: {prog} send {name} TEXT --enter;"
            f" to read it: {prog} screen {name}",
        )
