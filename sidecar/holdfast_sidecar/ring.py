"""The output ring: the last bytes a session printed, by seq, in a memory-mapped file.

The PTY is read straight into the file's pages, and clients and the emulator are served from them,
so that output is never copied on its way in. The file outlives the process: after `kill -9` the
next sidecar opens it and goes on.

Invariants
- Byte `seq` lies at `seq % size`. Readable are the seqs in [oldest, head).
- The guard: every byte in [head, prepared) holds a fixed pattern until the PTY overwrites it. A
  kill between the kernel's copy and our note of it therefore loses nothing: what differs from the
  pattern was read. The pattern is of bytes that UTF-8 never uses; a program that prints exactly
  those as its very last bytes before the kill may lose those.
- `marks` has every resize whose seq is still in the ring, in order; if the table overflowed, seqs
  before its first entry are no longer served, because their size is not known.
"""

from __future__ import annotations

import mmap
import os
import struct
from pathlib import Path
from typing import Final, NamedTuple

from holdfast_wire.errors import Internal

DEFAULT_SIZE: Final = 32 << 20
GUARD: Final = 64 << 10
_MAGIC: Final = b"HFRING1\n"
_PAGE: Final = 4096
_HEADER: Final = struct.Struct("<8sQQQQ")  # magic, size, head, prepared, floor
_HEAD_AT: Final = 16
_PREPARED_AT: Final = 24
_FLOOR_AT: Final = 32
_MARKS_AT: Final = 64
_MARK: Final = struct.Struct("<QHH")
_COUNT: Final = struct.Struct("<Q")
_SEQ: Final = struct.Struct("<Q")
MAX_MARKS: Final = 256


class Mark(NamedTuple):
    """From `seq` on the terminal has this size."""

    seq: int
    columns: int
    rows: int


def _pattern() -> bytes:
    # 13 values that no UTF-8 text has, in an order without a short period: a small congruential
    # generator, because `random` would bring its whole module into the sidecar's memory.
    values = bytes((0xC0, 0xC1, *range(0xF5, 0x100)))
    state, out = 1, bytearray()
    for _ in range(4093):
        state = (state * 1103515245 + 12345) & 0x7FFFFFFF
        out.append(values[(state >> 16) % len(values)])
    return bytes(out * (GUARD // 4093 + 1))[:GUARD]


_PATTERN: Final = _pattern()


class Ring:
    def __init__(self, path: Path, size: int = DEFAULT_SIZE) -> None:
        """Opens the ring at `path`, or makes one of `size` bytes."""
        if size % GUARD or size < 4 * GUARD:
            raise Internal(f"a ring's size is a multiple of {GUARD}, at least four of them")
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        descriptor = os.open(path, flags, 0o600)
        try:
            fresh = os.fstat(descriptor).st_size == 0
            if fresh:
                os.ftruncate(descriptor, _PAGE + size)
            self._map = mmap.mmap(descriptor, 0)
        finally:
            os.close(descriptor)
        if fresh:
            _HEADER.pack_into(self._map, 0, _MAGIC, size, 0, 0, 0)
        self._load()
        self._recover()
        self._prepare()

    def _load(self) -> None:
        header: tuple[bytes, int, int, int, int] = _HEADER.unpack_from(self._map, 0)
        magic, size, self.head, self._prepared, self._floor = header
        if magic != _MAGIC or len(self._map) != _PAGE + size:
            raise Internal("the ring file is not one of ours, or is cut short")
        self.size = size
        self._data = memoryview(self._map)[_PAGE:]
        (count,) = _COUNT.unpack_from(self._map, _MARKS_AT)
        at = _MARKS_AT + _COUNT.size
        self._marks = [
            Mark(*_MARK.unpack_from(self._map, at + i * _MARK.size))
            for i in range(min(count, MAX_MARKS))
        ]

    def _recover(self) -> None:
        """Finds bytes that were read and not noted: the last one that is not pattern."""
        for seq in range(self._prepared - 1, self.head - 1, -1):
            if self._data[seq % self.size] != _PATTERN[seq % GUARD]:
                self.head = seq + 1
                self.commit()
                return

    @property
    def oldest(self) -> int:
        return max(self._floor, self._prepared - self.size)

    # -- writing ----------------------------------------------------------------------------------

    def would_lose(self, seq: int) -> bool:
        """Whether the next fill might overwrite the byte `seq`."""
        return self._prepared + GUARD - self.size > seq

    def fill(self, descriptor: int) -> int:
        """One read of the PTY. 0 means its other end is closed; raises BlockingIOError if dry."""
        start = self.head % self.size
        end = min(start + self._prepared - self.head, self.size)
        count = os.readv(descriptor, (self._data[start:end],))
        self.head += count
        if self._prepared - self.head < GUARD:
            self._prepare()
        return count

    def _prepare(self) -> None:
        """Lays the pattern ahead, in whole guards, and only then says so."""
        while self._prepared - self.head < GUARD:
            at = self._prepared % self.size
            gap = GUARD - at % GUARD
            self._data[at : at + gap] = _PATTERN[at % GUARD :]
            self._prepared += gap
        self.commit()
        _SEQ.pack_into(self._map, _PREPARED_AT, self._prepared)

    def commit(self) -> None:
        _SEQ.pack_into(self._map, _HEAD_AT, self.head)

    def append(self, data: bytes) -> None:
        """Bytes that did not come from the PTY: a line the sidecar itself has to say."""
        for start in range(0, len(data), GUARD):
            part = data[start : start + GUARD]
            at = self.head % self.size
            first = part[: self.size - at]
            self._data[at : at + len(first)] = first
            self._data[: len(part) - len(first)] = part[len(first) :]
            self.head += len(part)
            self._prepare()

    def lose(self, until: int) -> None:
        """Says that nothing before `until` can be had any more."""
        self._floor = max(self._floor, until)
        _SEQ.pack_into(self._map, _FLOOR_AT, self._floor)

    def mark(self, columns: int, rows: int) -> None:
        self._marks = [m for m in self._marks if m.seq >= self.oldest][-MAX_MARKS + 1 :]
        self._marks.append(Mark(self.head, columns, rows))
        if len(self._marks) == MAX_MARKS:
            self.lose(self._marks[0].seq)
        at = _MARKS_AT + _COUNT.size
        _COUNT.pack_into(self._map, _MARKS_AT, 0)
        for i, mark in enumerate(self._marks):
            _MARK.pack_into(self._map, at + i * _MARK.size, *mark)
        _COUNT.pack_into(self._map, _MARKS_AT, len(self._marks))

    # -- reading ----------------------------------------------------------------------------------

    def slices(self, start: int, end: int) -> tuple[memoryview, ...]:
        """The bytes from `start` up to `end`: one view, or two around the file's end. Valid until
        the ring comes round again; whoever keeps them must have made sure it does not."""
        if not self.oldest <= start <= end <= self.head:
            raise Internal(f"seqs {start} to {end} are not in the ring")
        if start == end:
            return ()
        first, last = start % self.size, (end - 1) % self.size + 1
        if first < last:
            return (self._data[first:last],)
        return self._data[first:], self._data[:last]

    def marks_after(self, seq: int) -> list[Mark]:
        """Resizes that take effect at `seq` or later."""
        return [mark for mark in self._marks if mark.seq >= seq]

    def rest(self) -> None:
        """Gives back the memory behind the pages; the file keeps them. For an idle session."""
        self._map.madvise(mmap.MADV_DONTNEED)

    def close(self) -> None:
        self.commit()
        self._data.release()
        self._map.close()
