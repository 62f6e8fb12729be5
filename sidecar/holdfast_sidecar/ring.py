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
- The kernel never has to find memory while it copies: every page of [head, prepared) is locked in
  memory, and was written to by us just before the read. It takes up to 64 bytes out of the PTY
  before it copies them, and if the page is gone by then and the process is killed for want of
  memory, they are nowhere.
- `marks` has every resize whose seq is still in the ring, in order; if the table overflowed, seqs
  before its first entry are no longer served, because their size is not known.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
from pathlib import Path
from typing import Final, NamedTuple

from holdfast_wire.errors import Internal

DEFAULT_SIZE: Final = 32 << 20
GUARD: Final = 64 << 10
_PAGE: Final = 4096  # or a multiple of it
# Missing in `mmap`; the same on all of Linux's machines but a few that no container runs on.
_MAP_LOCKED: Final = 0x2000
_MAGIC: Final = int.from_bytes(b"HFRING1\n", "little")
# The header: eight-byte words, each stored at once, so that a kill never leaves half of one.
_HEADER: Final = 8192
_MAGIC_AT, _SIZE_AT, _HEAD_AT, _PREPARED_AT, _FLOOR_AT, _MARKS_AT = range(6)
MAX_MARKS: Final = 256
_MARK: Final = struct.Struct("<QHH")
# Two tables of marks, written in turns; the word at `_MARKS_AT` says which counts and how many.
_TABLES_AT: Final = (64, 64 + MAX_MARKS * _MARK.size)


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
        self._locked: dict[int, mmap.mmap] = {}
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self._open(size)
        except BaseException:
            os.close(self._file)
            raise

    def _open(self, size: int) -> None:
        if os.fstat(self._file).st_size == 0:
            # Not sparse: a disk that fills up later would end us with a bus error.
            os.posix_fallocate(self._file, 0, _HEADER + size)
        self._map = mmap.mmap(self._file, 0)
        if len(self._map) < _HEADER + 4 * GUARD:
            raise Internal("the ring file is cut short")
        self._words = memoryview(self._map)[:_HEADER].cast("Q")
        if not self._words[_MAGIC_AT]:
            self._words[_SIZE_AT] = len(self._map) - _HEADER
            self._words[_MAGIC_AT] = _MAGIC
        self._load()
        self._recover()
        self._prepare()

    def _load(self) -> None:
        words = self._words
        self.size = words[_SIZE_AT]
        self.head, self._prepared, self._floor = words[_HEAD_AT : _FLOOR_AT + 1]
        known = words[_MAGIC_AT] == _MAGIC and len(self._map) == _HEADER + self.size
        if not known or not self.head <= self._prepared <= self.head + 3 * GUARD:
            raise Internal("the ring file is not one of ours, or is damaged")
        self._data = memoryview(self._map)[_HEADER:]
        table, count = divmod(words[_MARKS_AT], 1 << 32)
        at = _TABLES_AT[table % 2]
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

    def would_lose(self, seq: int, length: int = 0) -> bool:
        """Whether `length` bytes and one more fill might overwrite the byte `seq`."""
        return self._prepared + length + GUARD - self.size > seq

    def fill(self, descriptor: int) -> int:
        """One read of the PTY. 0 means its other end is closed; raises BlockingIOError if dry."""
        start = self.head % self.size
        end = min(start + self._prepared - self.head, self.size)
        self._touch(start, end)
        count = os.readv(descriptor, (self._data[start:end],))
        self.head += count
        if self._prepared - self.head < GUARD:
            self._prepare()
        return count

    def _touch(self, start: int, end: int) -> None:
        """Has every page from `start` on there and writable: a byte of each is stored again. If
        there is no memory for it, this is where we are killed. `end` is a page's."""
        pages = self._data[start:end:_PAGE]
        pages[:] = bytes(pages)

    def _lock(self) -> None:
        """Keeps the pages that are about to be read into, and no others, from being reclaimed. By
        mappings of their own: Python has no mlock. Where not even so little may be locked, what
        `_touch` brings in can be taken away again before the read, if memory is that short."""
        first = self.head - self.head % GUARD
        wanted = {seq % self.size for seq in range(first, self._prepared, GUARD)}
        for at in self._locked.keys() - wanted:
            self._locked.pop(at).close()
        for at in wanted - self._locked.keys():
            with contextlib.suppress(OSError):
                flags = mmap.MAP_SHARED | _MAP_LOCKED
                self._locked[at] = mmap.mmap(self._file, GUARD, flags, offset=_HEADER + at)

    def _prepare(self) -> None:
        """Lays the pattern ahead, in whole guards, and only then says so."""
        while self._prepared - self.head < GUARD:
            at = self._prepared % self.size
            gap = GUARD - at % GUARD
            self._data[at : at + gap] = _PATTERN[at % GUARD :]
            self._prepared += gap
        self.commit()
        self._words[_PREPARED_AT] = self._prepared
        self._lock()

    def commit(self) -> None:
        self._words[_HEAD_AT] = self.head

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
        self._words[_FLOOR_AT] = self._floor

    def mark(self, columns: int, rows: int) -> None:
        kept = [m for m in self._marks if self.oldest <= m.seq < self.head]
        self._marks = [*kept[-MAX_MARKS + 1 :], Mark(self.head, columns, rows)]
        if len(self._marks) == MAX_MARKS:
            self.lose(self._marks[0].seq)
        table = 1 - self._words[_MARKS_AT] // (1 << 32)
        for i, mark in enumerate(self._marks):
            _MARK.pack_into(self._map, _TABLES_AT[table] + i * _MARK.size, *mark)
        self._words[_MARKS_AT] = (table << 32) + len(self._marks)

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
        if not self._marks or self._marks[-1].seq < seq:
            return []  # as nearly always
        return [mark for mark in self._marks if mark.seq >= seq]

    def rest(self) -> None:
        """Gives back the memory behind the pages; the file keeps them. For an idle session."""
        self._map.madvise(mmap.MADV_DONTNEED)

    def close(self) -> None:
        self.commit()
        self._data.release()
        self._words.release()
        for locked in self._locked.values():
            locked.close()
        self._map.close()
        os.close(self._file)
