"""Output to clients. Each has a place in the ring and is served from there, never waited for.

A client's queue is the stretch of ring between its place and the head, so it costs no memory, and
it is bounded: one that is more than `MAX_BEHIND` behind what a snapshot would give it, or whose
bytes the ring has lost, is told of the gap and gets that snapshot, like one that has just come.
What has been cut into frames and not yet taken by the socket is at most a chunk, a snapshot and a
few control frames (`MAX_QUEUED`); a client over that is dropped.

One that is held back goes no further than it is let (`give`); who holds it back (audience.py) sees
to it that it is not left behind.
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
        self.scant = False
        """It was last shown the screen without its scrollback."""
        self._limit: int | None = None
        self._nearest = 0  # it has been to what a snapshot would give it
        self._told: Mark | None = None
        self._soon: asyncio.TimerHandle | None = None
        self._waiting = False
        self._closed = False

    def send(self, frame: Frame) -> None:
        self.send_bytes(encode(frame))

    def send_bytes(self, *frames: bytes) -> None:
        """Whole frames, before any further output."""
        if self._closed:
            return
        if self.queued + sum(map(len, frames)) > MAX_QUEUED:
            self._lost()
            return
        for frame in frames:
            self._enqueue(frame)
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

    def stream_from(self, seq: int, size: tuple[int, int], *, scant: bool = False) -> None:
        """Output from `seq` on, to a client that has this size now."""
        self.place, self.scant = seq, scant
        # One that comes back for bytes the ring still has gets them, however many.
        self._nearest = max(0, self._snapshot_seq() - seq)
        self._told = Mark(seq, *size)
        if not self._waiting:
            self.pump()

    def leave(self) -> int:
        """No output until the stream begins again; returns where it broke off."""
        place = self.left_at if self.place is None else self.place
        self.place, self.left_at = None, place
        return place

    def behind(self, most: int) -> bool:
        """Whether it would be better off with a snapshot than with what it has not had yet."""
        if self.place is None:
            return False
        behind = self._snapshot_seq() - self.place
        self._nearest = max(0, min(self._nearest, behind))
        return self.place < self._ring.oldest or behind > self._nearest + most

    # -- being held back

    def far(self, most: int) -> bool:
        """Whether so many bytes more would not bring it to the present; nor to where it was when
        it came back."""
        if self.place is None:
            return False
        return self.behind(most) or self._ring.head - self.place > self._nearest + most

    @property
    def wants(self) -> bool:
        """Something stands in the ring that it has not had."""
        if self.place is None:
            return False
        marks = self._ring.marks_after(self.place)
        return self.place < self._ring.head or bool(marks and marks[-1] != self._told)

    def hold_back(self) -> None:
        if self._limit is None:
            self._limit = self.place or 0

    def let_go(self) -> None:
        """It gets everything, and what it was not shown at once."""
        self._limit = None
        if self.scant and self.place is not None:
            self.scant = False
            self.leave()
            self._on_behind()
        if not self._waiting:
            self.pump()

    def give(self, most: int) -> int:
        """So many bytes more, or what there is; returns how many were cut into frames."""
        if self._limit is None or (place := self.place) is None:
            return 0
        self._limit = min(self._ring.head, place + most)
        if not self._waiting:
            self.pump()
        return (self.place or place) - place

    @property
    def _end(self) -> int:
        return self._ring.head if self._limit is None else self._limit

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
        if self.queued <= _SMALL and self.place is not None and self.place < self._end:
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
        place, end = self.place, self._end
        if place is None:
            return False
        if place < end and self.behind(MAX_BEHIND):
            if self._limit is None:
                self.leave()
                self._on_behind()
            else:
                self._limit = place
            return True  # what is queued goes out now: there is no output to go along with
        end = max(place, min(end, place + _CHUNK))
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
