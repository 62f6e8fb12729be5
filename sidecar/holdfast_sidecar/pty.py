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
import select
import struct
import termios
from collections import deque
from collections.abc import Callable
from typing import Final

from holdfast_sidecar.outbox import Outbox
from holdfast_sidecar.ring import Ring
from holdfast_wire.errors import Busy

MAX_QUEUED: Final = 1 << 20
# Read at most this much before letting the loop serve others.
BATCH: Final = 256 << 10
_LITTLE: Final = 256
_ECHO_SECONDS: Final = 0.00015
# A terminal that nobody has open reads as an error until somebody opens it again.
_REOPEN_SECONDS: Final = 0.2


class Pty:
    """`on_output` is called after bytes came in."""

    def __init__(
        self,
        master: int,
        outbox: Outbox,
        ring: Ring,
        on_output: Callable[[], None],
        sealed: bool = False,
    ) -> None:
        self._master, self.outbox, self._ring = master, outbox, ring
        self._on_output = on_output
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()
        self._pushing = False
        self._loop = asyncio.get_running_loop()
        self._retry: asyncio.TimerHandle | None = None
        self.reading = False
        self.hung_up = False
        self.sealed = sealed
        """While it is, nothing is read and nothing typed."""
        os.set_blocking(master, False)

    # -- output -----------------------------------------------------------------------------------

    def start_reading(self) -> None:
        if not self.reading and not self.sealed:
            self.reading = True
            self._loop.add_reader(self._master, self._readable)

    def stop_reading(self) -> None:
        if self.reading:
            self.reading = False
            self._loop.remove_reader(self._master)

    def _readable(self) -> None:
        ring, master, until = self._ring, self._master, self._ring.head + BATCH
        try:
            # A little is all there is, most likely: an echo. Do not ask again in vain.
            while ring.head < until and ring.fill(master) > _LITTLE:
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

    def seal(self) -> None:
        """Whoever could print is stopped: everything that waits in the PTY, now, and no more."""
        self.stop_reading()
        if self._retry is not None:
            self._retry.cancel()
        self.sealed = True
        self._push()
        until = self._ring.head + BATCH  # several times what the kernel keeps
        try:
            while self._ring.fill(self._master):
                if self._ring.head > until:
                    raise Busy("the session goes on printing", "freeze it first")
        except BlockingIOError:
            pass  # it is empty
        except OSError as error:
            if error.errno != errno.EIO:  # that is: nobody has it open
                raise
        self._ring.commit()
        self._on_output()

    def unseal(self) -> None:
        self.sealed = False
        self.start_reading()
        self._push()

    # -- input ------------------------------------------------------------------------------------

    def check_room(self, length: int) -> None:
        """Raises if so much more cannot be queued."""
        if self.outbox.waiting + length > MAX_QUEUED:
            raise Busy(
                "the program is not reading its input",
                f"{self.outbox.waiting} bytes wait already; try again when it reads, or interrupt"
                " it",
            )

    def type(self, written: Callable[[], None] | None = None) -> None:
        """Types what is in the outbox; `written` is called when the terminal has all of it."""
        if written is not None:
            self._waiting.append((self.outbox.end, written))
        self._push()

    def catch_echo(self) -> None:
        """Waits a moment for what the program answers to a keystroke. It mostly does within a
        fraction of this, and a turn of the loop would take as long again."""
        if self.reading and not self.outbox.waiting:
            ready, _, _ = select.select((self._master,), (), (), _ECHO_SECONDS)
            if ready:
                self._readable()

    def _push(self) -> None:
        if not self.sealed:
            self.outbox.push(self._master)
        while self._waiting and self._waiting[0][0] <= self.outbox.typed:
            self._waiting.popleft()[1]()
        pushing = self.outbox.waiting > 0 and not self.sealed
        if pushing and not self._pushing:
            self._loop.add_writer(self._master, self._push)
        elif self._pushing and not pushing:
            self._loop.remove_writer(self._master)
        self._pushing = pushing

    # -- the terminal itself ----------------------------------------------------------------------

    def resize(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def close(self) -> None:
        self.stop_reading()
        if self._retry is not None:
            self._retry.cancel()
        self._loop.remove_writer(self._master)
        os.close(self._master)
        self.outbox.close()
