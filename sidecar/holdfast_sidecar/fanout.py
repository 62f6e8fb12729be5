"""Output to clients. Each has a place in the ring and is served from there, never waited for.

A client's queue is the stretch of ring between its place and the head, so it costs no memory, and
it is bounded: one that is more than `MAX_BEHIND` behind what a snapshot would give it, or whose
bytes the ring has lost, is told of the gap and gets that snapshot, like one that has just come.
What has been cut into frames and not yet taken by the socket is at most a chunk, a snapshot and a
few control frames (`MAX_QUEUED`); a client over that is dropped.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from typing import Final

from holdfast_sidecar.ring import Mark, Ring
from holdfast_wire.frames import Frame, Resize, encode, output_header

# More than a snapshot of ten thousand lines, so that catching up by snapshot is always the cheaper.
MAX_BEHIND: Final = 4 << 20
MAX_QUEUED: Final = 32 << 20
_CHUNK: Final = 64 << 10
# Frames up to this wait for output to go along with: one system call, one wake-up of the client.
_SMALL: Final = 4 << 10
_SOON_SECONDS: Final = 0.002


class Outlet:
    """The sending side of one connection."""

    def __init__(
        self,
        sock: socket.socket,
        ring: Ring,
        snapshot_seq: Callable[[], int],
        on_behind: Callable[[], None],
        on_lost: Callable[[], None],
    ) -> None:
        self._sock, self._ring, self._snapshot_seq = sock, ring, snapshot_seq
        self._on_behind, self._on_lost = on_behind, on_lost
        self._loop = asyncio.get_running_loop()
        self._queue: deque[memoryview] = deque()
        self.queued = 0
        self.place: int | None = None
        """The seq this client gets next; None while it gets no output."""
        self.left_at = 0
        """Where the stream broke off, when it did."""
        self._slack = MAX_BEHIND
        self._told: Mark | None = None
        self._soon: asyncio.TimerHandle | None = None
        self._waiting = False
        self._closed = False

    def send(self, frame: Frame) -> None:
        self.send_bytes(encode(frame))

    def send_bytes(self, data: bytes) -> None:
        """Whole frames, before any further output."""
        if self._closed:
            return
        if self.queued + len(data) > MAX_QUEUED:
            self._lost()
            return
        self._enqueue(data)
        if not self._waiting:
            self.pump()

    def send_soon(self, frame: Frame) -> None:
        """With the next output, or in a moment: for what nobody is waiting for."""
        if self._closed or self._soon is not None or self.queued:
            self.send(frame)
            return
        self._enqueue(encode(frame))
        self._soon = self._loop.call_later(_SOON_SECONDS, self._pump_soon)

    def _pump_soon(self) -> None:
        self._soon = None
        if not self._waiting:
            self.pump()

    def stream_from(self, seq: int, size: tuple[int, int]) -> None:
        """Output from `seq` on, to a client that has this size now."""
        self.place = seq
        # One that comes back for bytes the ring still has gets them, however many.
        self._slack = MAX_BEHIND + max(0, self._snapshot_seq() - seq)
        self._told = Mark(seq, *size)
        if not self._waiting:
            self.pump()

    def pump(self) -> None:
        """Sends what the socket takes, and asks to be called again when it takes more."""
        if self._closed:
            return
        try:
            while self._send_queued() and self._send_output():
                pass
        except BlockingIOError:
            self._wait(True)
        except OSError:
            self._lost()
        else:
            self._wait(False)

    def _send_queued(self) -> bool:
        if self.queued <= _SMALL and self.place is not None and self.place < self._ring.head:
            return True  # `_send_output` takes them along
        while self._queue:
            data = self._queue[0]
            count = self._sock.send(data)
            self.queued -= count
            if count < len(data):
                self._queue[0] = data[count:]
            else:
                self._queue.popleft()
        return True

    def _send_output(self) -> bool:
        """One frame of output, or one resize that stands at this place. False if there is none."""
        place, head = self.place, self._ring.head
        if place is None:
            return False
        behind = self._snapshot_seq() - place
        if behind < MAX_BEHIND:
            self._slack = MAX_BEHIND
        if place < self._ring.oldest or behind > self._slack:
            self.place, self.left_at = None, place
            self._on_behind()
            return True  # what is queued goes out now: there is no output to go along with
        end = min(head, place + _CHUNK)
        if marks := self._ring.marks_after(place):
            here = [mark for mark in marks if mark.seq == place]
            if here and here[-1] != self._told:
                self._told = here[-1]
                self._enqueue(encode(Resize(*here[-1])))
                return True
            end = min(end, *(mark.seq for mark in marks[len(here) :]), end)
        if end == place:
            return False
        views = self._ring.slices(place, end)
        parts: list[bytes | memoryview] = [*self._queue]
        parts += [output_header(place, end - place), *views]
        count = self._sock.sendmsg(parts)
        self.place = end
        self._queue.clear()
        self.queued = 0
        if count < sum(map(len, parts)):
            # The ring may come round before the socket takes the rest: this much is copied.
            self._enqueue(b"".join(parts)[count:])
        return True

    def _enqueue(self, data: bytes) -> None:
        self._queue.append(memoryview(data))
        self.queued += len(data)

    def _wait(self, wanted: bool) -> None:
        if wanted and not self._waiting:
            self._loop.add_writer(self._sock, self.pump)
        elif not wanted and self._waiting:
            self._loop.remove_writer(self._sock)
        self._waiting = wanted

    def _lost(self) -> None:
        self.close()
        self._on_lost()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._wait(False)
            if self._soon is not None:
                self._soon.cancel()
            self._queue.clear()
            self.queued = 0
