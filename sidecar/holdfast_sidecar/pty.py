"""The PTY master: the one module that touches it. Reads into the ring, writes inputs in order.

Reading never waits for a client. Writing never waits for the program either: what it does not take
at once is queued up to `MAX_QUEUED` bytes, and more is refused, so a program that does not read its
input costs a bounded amount.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import struct
import termios
from collections import deque
from collections.abc import Callable
from typing import Final

from holdfast_sidecar.ring import Ring
from holdfast_wire.errors import Busy

MAX_QUEUED: Final = 1 << 20
# Read at most this much before letting the loop serve others.
BATCH: Final = 256 << 10
_PACKET: Final = 32 << 10
# A full terminal is tried again this soon; it takes 4 KiB at a time, so this is 400 KiB/s.
_FULL_SECONDS: Final = 0.01
# A terminal that nobody has open reads as an error until somebody opens it again.
_REOPEN_SECONDS: Final = 0.2


# Types bytes as part of an input and says, later, how many the terminal took.
Typist = Callable[[int, memoryview, Callable[[int], None]], None]


class Pty:
    """`on_output` is called after bytes came in. Reading is done here; typing is hold's, which
    knows what was typed when we are killed in the middle of it."""

    def __init__(
        self, master: int, ring: Ring, on_output: Callable[[], None], typist: Typist
    ) -> None:
        self._master, self._ring, self._on_output = master, ring, on_output
        self._typist = typist
        self._queue: deque[tuple[int, memoryview, Callable[[], None]]] = deque()
        self._closed = False
        self.queued = 0
        self._loop = asyncio.get_running_loop()
        self._retry: asyncio.TimerHandle | None = None
        self.reading = False
        self.hung_up = False
        os.set_blocking(master, False)

    # -- output -----------------------------------------------------------------------------------

    def start_reading(self) -> None:
        if not self.reading:
            self.reading = True
            self._loop.add_reader(self._master, self._readable)

    def stop_reading(self) -> None:
        if self.reading:
            self.reading = False
            self._loop.remove_reader(self._master)

    def _readable(self) -> None:
        ring, master, until = self._ring, self._master, self._ring.head + BATCH
        try:
            while ring.head < until and ring.fill(master):
                pass
        except BlockingIOError:
            pass
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            self._hung_up()
        ring.commit()
        self._on_output()

    def _hung_up(self) -> None:
        self.stop_reading()
        self.hung_up = True
        self._retry = self._loop.call_later(_REOPEN_SECONDS, self._reopen)

    def _reopen(self) -> None:
        self.hung_up = False
        self.start_reading()

    def drain(self) -> None:
        """Everything that waits in the PTY, now: the command has exited and there is no more."""
        self.stop_reading()
        try:
            while self._ring.fill(self._master):
                pass
        except OSError:
            self.hung_up = True
        self._ring.commit()
        self._on_output()

    # -- input ------------------------------------------------------------------------------------

    def check_room(self, length: int) -> None:
        """Raises if so much more cannot be queued."""
        if self.queued + length > MAX_QUEUED:
            raise Busy(
                "the program is not reading its input",
                f"{self.queued} bytes wait already; try again when it reads, or interrupt it",
            )

    def write(self, order: int, data: bytes, written: Callable[[], None]) -> None:
        """Queues bytes as part of input `order`; `written` is called when the terminal has them."""
        self.check_room(len(data))
        self._queue.append((order, memoryview(data), written))
        self.queued += len(data)
        if len(self._queue) == 1:
            self._type()

    def _type(self) -> None:
        order, data, _written = self._queue[0]
        self._typist(order, data[:_PACKET], self._taken)

    def _taken(self, count: int) -> None:
        """The terminal took so much of the first in the queue."""
        if self._closed:
            return
        order, data, written = self._queue[0]
        self.queued -= count
        if count < len(data):
            self._queue[0] = (order, data[count:], written)
            if count:
                self._type()
            else:  # it is full: the program does not read, or not yet
                self._loop.call_later(_FULL_SECONDS, self._type_again)
            return
        self._queue.popleft()
        written()
        if self._queue:
            self._type()

    def _type_again(self) -> None:
        if not self._closed:
            self._type()

    # -- the terminal itself ----------------------------------------------------------------------

    def resize(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def close(self) -> None:
        self.stop_reading()
        if self._retry is not None:
            self._retry.cancel()
        self._closed = True
        os.close(self._master)
