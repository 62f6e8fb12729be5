"""Where a viewer sits: the master of a client's PTY, or a sidecar's socket. Both give the bytes
that belong on a screen; what a protocol wraps around them is taken off here.
"""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Protocol

from bench.payloads import COLUMNS, ROWS
from holdfast_wire.frames import (
    HEADER,
    MAX_PAYLOAD,
    Attach,
    Error,
    FrameType,
    Input,
    Part,
    decode,
    encode,
)

_READ: Final = 64 << 10
# u64 seq; for a snapshot also u16 columns, u16 rows, u8 part.
_OUTPUT_PREFIX: Final = 8
_SNAPSHOT_PREFIX: Final = 13


class Closed(Exception):
    """The other side has gone."""


class End(Protocol):
    received: int
    """Bytes for the screen so far."""
    gaps: int
    """How often bytes were left out and a fresh screen sent instead."""

    def typed(self, data: bytes) -> bytes:
        """The same, wrapped for `send`: what a client does before it speaks."""

    def send(self, wrapped: bytes) -> None: ...

    def receive(self) -> bytes:
        """Waits for something to come. What of it is for the screen: perhaps nothing."""

    def look(self, marker: bytes) -> bool:
        """The same, but says only whether the marker is on the screen now."""

    def wait(self, seconds: float) -> bool:
        """Whether something came within that time."""

    def close(self) -> None: ...


class PtyEnd:
    def __init__(self, master: int) -> None:
        self._master = master
        self._tail = b""
        self.received = 0
        self.gaps = 0

    def typed(self, data: bytes) -> bytes:
        return data

    def send(self, wrapped: bytes) -> None:
        os.write(self._master, wrapped)

    def receive(self) -> bytes:
        try:
            data = os.read(self._master, _READ)
        except OSError as error:  # EIO: nobody has the other side open
            raise Closed("the terminal was closed") from error
        if not data:
            raise Closed("the terminal was closed")
        self.received += len(data)
        return data

    def look(self, marker: bytes) -> bool:
        data = self._tail + self.receive()
        self._tail = data[-len(marker) :]
        return marker in data

    def wait(self, seconds: float) -> bool:
        return bool(select.select([self._master], [], [], seconds)[0])

    def close(self) -> None:
        os.close(self._master)


class FrameEnd:
    """One attachment to a sidecar. A snapshot is on the screen when its last part has come."""

    def __init__(self, path: Path, mode: str = "write") -> None:
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._sock.connect(str(path))
        hello = {"mode": mode, "columns": COLUMNS, "rows": ROWS, "modality": "bench"}
        self._sock.sendall(encode(Attach(hello)))
        self._buffer = bytearray(2 * (HEADER.size + MAX_PAYLOAD))
        self._view = memoryview(self._buffer)
        self._filled = 0
        self._tail = b""
        self._pending = False
        self._number = 0
        self.received = 0
        self.gaps = 0
        self.snapshots = 0

    def typed(self, data: bytes) -> bytes:
        self._number += 1
        return encode(Input(self._number, b"", data))

    def send(self, wrapped: bytes) -> None:
        self._sock.sendall(wrapped)

    def receive(self) -> bytes:
        return b"".join(bytes(self._view[start:end]) for start, end, _ in self._spans())

    def look(self, marker: bytes) -> bool:
        seen = False
        for start, end, whole in self._spans():
            seam = self._tail + self._view[start : min(end, start + len(marker))]
            self._tail = bytes(self._view[max(start, end - len(marker)) : end])
            found = marker in seam or self._buffer.find(marker, start, end) >= 0
            self._pending = self._pending or found
            seen = seen or (self._pending and whole)
        return seen

    def whole_screen(self, marker: bytes) -> bool:
        """Waits for the snapshot that follows the attach; whether it has the marker."""
        seen = False
        while not self.snapshots:
            seen = self.look(marker)
        return seen

    def _spans(self) -> Iterator[tuple[int, int, bool]]:
        """Receives once. Where in the buffer bytes for the screen lie, and whether the screen is
        right after them: not in the middle of a snapshot."""
        count = self._sock.recv_into(self._view[self._filled :])
        if not count:
            raise Closed("the sidecar closed the connection")
        self._filled += count
        start = 0
        while self._filled - start >= HEADER.size:
            _, kind, _, length = HEADER.unpack_from(self._buffer, start)
            body, end = start + HEADER.size, start + HEADER.size + length
            if end > self._filled:
                break
            if kind == FrameType.OUTPUT:
                self.received += length
                yield body + _OUTPUT_PREFIX, end, True
            elif kind == FrameType.SNAPSHOT:
                self.received += length
                last = bool(self._buffer[body + _SNAPSHOT_PREFIX - 1] & Part.LAST)
                self.snapshots += last
                yield body + _SNAPSHOT_PREFIX, end, last
            else:
                self._other(kind, bytes(self._view[start:end]))
            start = end
        if start:
            self._view[: self._filled - start] = bytes(self._view[start : self._filled])
            self._filled -= start

    def _other(self, kind: int, frame: bytes) -> None:
        if kind == FrameType.GAP:
            self.gaps += 1
        elif kind == FrameType.ERROR:
            error = decode(frame)
            assert isinstance(error, Error)
            raise error.exception()

    def wait(self, seconds: float) -> bool:
        return bool(select.select([self._sock], [], [], seconds)[0])

    def close(self) -> None:
        self._sock.close()
