"""The target's end of the stream by which it asks the source for memory, page by page."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import socket
import struct
from collections import deque
from dataclasses import dataclass, field
from typing import Final, Protocol

# What is asked for: command, PID, address, size. The answer to a GET is the same, and then that
# many bytes; to a CLOSE there is none.
MESSAGE: Final = struct.Struct("=IIQQ")
GET, CLOSE = 1, 2
CHUNK: Final = 1 << 20  # the most that is asked for at once
_REQUESTS: Final = 64
_CLOSE_SECONDS: Final = 5.0


class Broken(Exception):
    """No more pages will come."""


class Stream(Protocol):
    """To the source; it does not wait. OSError, or a HoldfastError: it is broken."""

    def fileno(self) -> int: ...

    def send(self, data: bytearray) -> int:
        """BlockingIOError: not now."""

    def recv_into(self, view: memoryview) -> int:
        """0: the source has ended. BlockingIOError: nothing has come."""

    def tick(self) -> bool:
        """Called now and then; True: again at once."""

    def patient(self) -> None:
        """From here on it waits for a while."""

    def finish(self, last: bytes) -> None:
        """The last that is said; returns when the source has no more to say, if that matters."""


@dataclass(frozen=True)
class Plain:
    """A socket. Whoever carries what goes over it answers for it."""

    socket: socket.socket

    def fileno(self) -> int:
        return self.socket.fileno()

    def send(self, data: bytearray) -> int:
        return self.socket.send(data)

    def recv_into(self, view: memoryview) -> int:
        return self.socket.recv_into(view)

    def tick(self) -> bool:
        return False

    def patient(self) -> None:
        self.socket.settimeout(_CLOSE_SECONDS)

    def finish(self, last: bytes) -> None:
        self.socket.sendall(last)
        self.socket.shutdown(socket.SHUT_WR)


class Buffer:
    """Room for answers; whoever drops it gives the memory back."""

    def __init__(self, size: int = CHUNK) -> None:
        memory = mmap.mmap(-1, size)
        with contextlib.suppress(OSError):  # large pages are there in a fifth of the time
            memory.madvise(mmap.MADV_HUGEPAGE)
        self.view = memoryview(memory)
        self._pinned = ctypes.c_char.from_buffer(memory)
        self.address = ctypes.addressof(self._pinned)

    def after(self, size: int) -> Buffer:
        """What of it is left behind so many bytes."""
        made = Buffer.__new__(Buffer)
        made.view, made._pinned, made.address = self.view[size:], self._pinned, self.address + size
        return made


@dataclass(frozen=True)
class Came:
    """Pages that are whole in `buffer`. `waited`: somebody did, when they were asked for."""

    pid: int
    start: int
    end: int
    waited: bool
    buffer: Buffer

    def place(self, page: int) -> int:
        """Where it lies in our own memory."""
        return self.buffer.address + page - self.start

    def __contains__(self, page: int) -> bool:
        return self.start <= page < self.end


@dataclass
class Source:
    """What is asked of the source, and comes back in the order it was asked for."""

    stream: Stream
    out: bytearray = field(default_factory=bytearray)
    asked: deque[tuple[int, int, int, bool]] = field(default_factory=deque)  # as in Came
    head: memoryview = field(default_factory=lambda: memoryview(bytearray(MESSAGE.size)))
    buffer: Buffer = field(default_factory=Buffer)
    size: int = 0  # of what comes next in `buffer`; 0: a head comes
    got: int = 0

    def ask(self, pid: int, start: int, end: int, *, waited: bool = False) -> None:
        self.out += MESSAGE.pack(GET, pid, start, end - start)
        self.asked.append((pid, start, end, waited))
        self.flush()

    @property
    def coming(self) -> int:
        """Bytes that were asked for."""
        return sum(end - start for _, start, end, _ in self.asked)

    def has_room(self, size: int) -> bool:
        return self.coming < size and len(self.asked) < _REQUESTS

    def flush(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self.out:
                del self.out[: self.stream.send(self.out)]

    def read(self) -> Came | None:
        """The next pages, if they are whole; None: not yet."""
        while True:
            view = self.buffer.view[: self.size] if self.size else self.head
            try:
                count = self.stream.recv_into(view[self.got :])
            except BlockingIOError:
                return None
            except OSError as error:
                raise Broken(f"the stream broke: {error}") from error
            if not count:
                raise Broken("the source closed the stream")
            self.got += count
            if self.got < len(view):
                continue
            self.got = 0
            if self.size:
                self.size = 0
                return Came(*self.asked.popleft(), self.buffer)
            pid, start, end = self.asked[0][:3] if self.asked else (0, 0, 0)
            if MESSAGE.unpack(self.head) != (GET, pid, start, end - start):
                raise Broken("the source sent something else than was asked for")
            self.size = end - start
