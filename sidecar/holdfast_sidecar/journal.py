"""The journal: who did what, when. A hash chain of JSON lines (`journal_chain.py` in wire) in files
of a bounded size, so many and no more.

It says who typed how much and when, never what: keystrokes contain passwords. Of a command given to
`exec` it has the text, because its sender named it.

    journal                    the newest records
    journal-000000000000001    a file that is full, by the number of its first record

What is dropped is dropped by whole files, after a record says so. Sealed, the files do not change;
what comes meanwhile is written when the journal is opened again.

A kill leaves whole lines, and at most one that is cut short at the end: it was never a record, and
goes. Each step of a rotation can be done again.
"""

from __future__ import annotations

import bisect
import contextlib
import errno
import os
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from holdfast_sidecar import journal_upgrade
from holdfast_wire import journal_chain
from holdfast_wire.errors import BadRequest
from holdfast_wire.journal_chain import Head, Record

NAME: Final = "journal"
_DIGITS: Final = 15
_MAX_HELD: Final = 1000  # records; while it is sealed there are only comings and goings
_BLOCK: Final = 64 << 10
_TAIL: Final = 2 * journal_chain.RECORD_BYTES  # has a whole record


@dataclass(frozen=True, slots=True)
class Policy:
    """How much is kept. A stored session takes it along, so it is not large."""

    file_bytes: int = 4 << 20
    files: int = 4

    def __post_init__(self) -> None:
        least = 2 * journal_chain.RECORD_BYTES
        if not least <= self.file_bytes <= 1 << 30 or not 2 <= self.files <= 1000:
            raise BadRequest(
                f"a journal has 2 to 1000 files of {least} bytes to 1 GiB,"
                f" not {self.files} of {self.file_bytes}"
            )


DEFAULT: Final = Policy()


class Page(NamedTuple):
    records: list[Record]
    next: int | None
    """Ask again for what comes after this number. None: there is no more now."""
    head: Head


def files(folder: Path) -> list[Path]:
    """Oldest first."""
    rotated = sorted(folder.glob(f"{NAME}-" + "[0-9]" * _DIGITS))
    current = folder / NAME
    return [*rotated, current] if current.exists() else rotated


class Journal:
    def __init__(self, folder: Path, policy: Policy = DEFAULT) -> None:
        self._folder, self._path, self._policy = folder, folder / NAME, policy
        self._sealed = False
        self._held: list[Record] = []
        self._not_held = 0
        self._lock = threading.Lock()  # pages are read in a thread, while files are rotated
        journal_upgrade.carry(folder)
        self._descriptor = self._open()
        self._size = _drop_torn_end(self._descriptor)
        heads = (_head_after(path) for path in reversed(files(folder)))
        self._head = next((head for head in heads if head is not None), Head())
        self._prune()

    @property
    def head(self) -> Head:
        return self._head

    def _open(self) -> int:
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        return os.open(self._path, flags, 0o600)

    def add(self, kind: str, **fields: Any) -> None:
        record = journal_chain.bounded({"time": round(time.time(), 3), "kind": kind, **fields})
        if not self._sealed:
            self._write(record)
        elif len(self._held) < _MAX_HELD:
            self._held.append(record)
        else:
            self._not_held += 1

    def seal(self) -> None:
        self._sealed = True

    def unseal(self) -> None:
        self._sealed = False
        while self._held:
            self._write(self._held[0])
            del self._held[0]
        if self._not_held:
            left_out, self._not_held = self._not_held, 0
            self.add("left_out", records=left_out)

    def _write(self, record: Record) -> None:
        line, head = journal_chain.link(self._head, record)
        if self._size and self._size + len(line) + 1 > self._policy.file_bytes:
            self._rotate()
            line, head = journal_chain.link(self._head, record)
        written = os.write(self._descriptor, line + b"\n")
        if written <= len(line):  # the disk is full: half a record is none
            os.ftruncate(self._descriptor, self._size)
            raise OSError(errno.ENOSPC, "the journal cannot be written: the disk is full")
        self._size += written
        self._head = head

    # -- files ------------------------------------------------------------------------------------

    def _rotate(self) -> None:
        with self._lock:
            self._path.rename(self._folder / f"{NAME}-{_first_number(self._path):0{_DIGITS}}")
            os.close(self._descriptor)
            self._descriptor, self._size = self._open(), 0
        self._prune()

    def _prune(self) -> None:
        """A record of it first. Killed before all files are gone, the next one says it again."""
        rotated = [path for path in files(self._folder) if path != self._path]
        spare = rotated[: max(0, len(rotated) + 1 - self._policy.files)]
        if not spare:
            return
        last = _head_after(spare[-1]) or Head()
        first = _first_number(spare[0])
        self.add(journal_chain.PRUNED, first=first, last=last.count, head=last.digest)
        with self._lock:
            for path in spare:
                path.unlink()

    def close(self) -> None:
        os.close(self._descriptor)

    # -- reading ----------------------------------------------------------------------------------

    def records(self, after: int = 0) -> Iterator[Record]:
        """Those with a higher number, oldest first."""
        for record, _size in self._read(after):
            yield record

    def page(self, after: int, limit: int, most_bytes: int) -> Page:
        """The records after this number, as many as there is room for, but one at least."""
        found: list[Record] = []
        size = 0
        for record, length in self._read(after):
            if found and (len(found) == limit or size + length > most_bytes):
                return Page(found, found[-1]["number"], self._head)
            found.append(record)
            size += length
        return Page(found, None, self._head)

    def newest(self, limit: int, most_bytes: int) -> Page:
        """The last records, oldest first."""
        found: deque[tuple[Record, int]] = deque()
        size = 0
        for entry in self._read(self._head.count - limit):
            found.append(entry)
            size += entry[1]
            while len(found) > 1 and (len(found) > limit or size > most_bytes):
                size -= found.popleft()[1]
        return Page([record for record, _length in found], None, self._head)

    def _read(self, after: int) -> Iterator[tuple[Record, int]]:
        """With the length of each line. What is no record is a damaged disk's; `verify` tells."""
        with contextlib.ExitStack() as stack:
            with self._lock:
                opened = [stack.enter_context(path.open("rb")) for path in self._later(after)]
            for file in opened:
                for line in file:
                    record = journal_chain.read(line) if line.endswith(b"\n") else None
                    if record is not None and record["number"] > after:
                        yield record, len(line)

    def _later(self, after: int) -> list[Path]:
        """The files that have such records: where the next one begins after it, or is none."""
        found = files(self._folder)
        begins = [int(path.name.rpartition("-")[2]) for path in found if path != self._path]
        return found[max(0, bisect.bisect_right(begins, after + 1) - 1) :]


def _drop_torn_end(descriptor: int) -> int:
    """What a kill cut short. Returns the size."""
    size = os.fstat(descriptor).st_size
    end = size
    while end:
        start = max(0, end - _BLOCK)
        found = os.pread(descriptor, end - start, start).rfind(b"\n")
        end = start if found < 0 else start + found + 1
        if found >= 0:
            break
    if end < size:
        os.ftruncate(descriptor, end)
    return end


def _head_after(path: Path) -> Head | None:
    """None: it has no record."""
    head = None
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        for begin in (max(0, size - _TAIL), 0):
            file.seek(begin)
            for line in file.read().splitlines():
                head = journal_chain.after(line) or head
            if head is not None:
                return head
    return None


def _first_number(path: Path) -> int:
    """0: it has no record."""
    with path.open("rb") as file:
        return next((r["number"] for r in map(journal_chain.read, file) if r is not None), 0)
