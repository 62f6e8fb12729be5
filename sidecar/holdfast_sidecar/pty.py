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
_BATCH: Final = 256 << 10
# A terminal that nobody has open reads as an error until somebody opens it again.
_REOPEN_SECONDS: Final = 0.2


class Pty:
    """`on_output` is called after bytes came in; it says whether to go on reading now."""

    def __init__(self, master: int, ring: Ring, on_output: Callable[[], None]) -> None:
        self._master, self._ring, self._on_output = master, ring, on_output
        self._queue: deque[tuple[memoryview, Callable[[], None]]] = deque()
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
        ring, master, until = self._ring, self._master, self._ring.head + _BATCH
        try:
            while ring.head < until and ring.fill(master):
                pass
        except BlockingIOError:
            pass
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            self._closed()
        ring.commit()
        self._on_output()

    def _closed(self) -> None:
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

    def write(self, data: bytes, written: Callable[[], None]) -> None:
        """Queues bytes; `written` is called when the kernel has them all."""
        if self.queued + len(data) > MAX_QUEUED:
            raise Busy(
                "the program is not reading its input",
                f"{self.queued} bytes wait already; try again when it reads, or interrupt it",
            )
        self._queue.append((memoryview(data), written))
        self.queued += len(data)
        if len(self._queue) == 1:
            self._writable()

    def _writable(self) -> None:
        while self._queue:
            data, written = self._queue[0]
            try:
                count = os.write(self._master, data) if data else 0
            except BlockingIOError:
                count = -1
            except OSError:
                count = len(data)  # nobody has the terminal open: there is no one to read it
            if count < 0:
                self._loop.add_writer(self._master, self._writable)
                return
            self.queued -= count
            if count < len(data):
                self._queue[0] = (data[count:], written)
                continue
            self._queue.popleft()
            written()
        self._loop.remove_writer(self._master)

    # -- the terminal itself ----------------------------------------------------------------------

    def resize(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def close(self) -> None:
        self.stop_reading()
        if self._retry is not None:
            self._retry.cancel()
        self._loop.remove_writer(self._master)
        os.close(self._master)
