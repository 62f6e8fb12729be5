"""Memory that is sent while its session still runs, so that only what changed since has to be sent
when it stands still.

    source   Early: a tag of each piece that was sent; it tells what of the frozen tree is the same
    target   Kept: the pieces, until they are named (KNOWN) or the move is over

It needs nothing of the kernel. What changed is found by reading it again, which takes a fifth of
the time that sending takes.

Invariant: nothing here decides what a session's memory is. Its tag (pages.py) is made by the source
of what it read out of the frozen tree, and by the target of what it puts, wherever that came from.
If something is taken for unchanged that is not, the move fails, and the session goes on where it
is.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import secrets
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Protocol

from cryptography.hazmat.primitives.poly1305 import Poly1305

from holdfast_wire.errors import BadRequest, HoldfastError, NotFound, TooLarge

from . import containers, freezer
from .freezer import Freezer
from .link import CHUNK
from .uffd import PAGE

# Large enough that its tag costs little; a page that changes takes no more than three with it.
PIECE: Final = 4 * PAGE
# What an AHEAD is about, whose bytes follow, and a KNOWN, whose bytes need not: PID, address, size.
PLACE: Final = struct.Struct("=IQI")
ROOM: Final = "ahead"  # in the body of READY: bytes that the target can keep
STEP: Final = (CHUNK - 1) // PIECE * PIECE  # at once
# Of what the node has to spare. The session itself needs as much again when it arrives.
_SHARE: Final = 4
_RESERVED: Final = 64 << 30  # a larger mapping is hardly used, and takes long to look through
_SCAN: Final = 1 << 16  # pages of a mapping that are looked at in one go
# The last byte of an entry of /proc/PID/pagemap: present, swapped, of a file or shared.
_PRESENT, _SWAPPED, _SHARED = 0x80, 0x40, 0x20
_OWN: Final = bytes(
    int(bool(bits & (_PRESENT | _SWAPPED)) and not bits & _SHARED) for bits in range(256)
)
# How often all of it is looked through while the tree runs, and when that is enough.
_ROUNDS: Final = 4
_LITTLE: Final = 8
_RUN: Final = re.compile(rb"\x01+")
_KERNELS: Final = [["[vdso]"], ["[vvar]"], ["[vsyscall]"], ["[vvar_vclock]"]]

Span = tuple[int, int]


class Early:
    """What the target was sent of each process, by the container's PIDs."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)  # nobody can make two pieces that look the same
        self._tags: dict[int, dict[int, bytes]] = {}
        self.kept = 0  # bytes that the target has

    def changed(self, pid: int, address: int, view: memoryview, most: int) -> Iterator[Span]:
        """Which of these whole pieces are not as they were sent, or never were; they are to be sent
        now. No more than make `most` bytes at the target."""
        tags = self._tags.setdefault(pid, {})
        for at in range(0, len(view), PIECE):
            tag = self._tag(view[at : at + PIECE])
            known = tags.get(address + at)
            if tag == known:
                continue
            if known is None:
                if self.kept + PIECE > most:
                    return
                self.kept += PIECE
            tags[address + at] = tag
            yield at, at + PIECE

    def same(self, pid: int, address: int, view: memoryview) -> Iterator[Span]:
        """Which of these bytes, of the frozen tree, need not be sent. Each is named once."""
        tags = self._tags.get(pid)
        if not tags:
            return
        first = -address % PIECE
        for at in range(first, len(view) - PIECE + 1, PIECE):
            tag = tags.pop(address + at, None)
            if tag is not None and tag == self._tag(view[at : at + PIECE]):
                yield at, at + PIECE

    def _tag(self, view: memoryview) -> bytes:
        return Poly1305.generate_tag(self._key, view)


def joined(spans: Iterator[Span]) -> Iterator[Span]:
    """Neighbours as one."""
    start = end = 0
    for first, last in spans:
        if first != end:
            if end > start:
                yield start, end
            start = first
        end = last
    if end > start:
        yield start, end


class Kept:
    """The target's; no more than `most` bytes."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._pieces: dict[tuple[int, int], memoryview] = {}
        self._place: tuple[int, int] | None = None
        self._body = self._rest = memoryview(b"")

    @property
    def due(self) -> memoryview:
        """Room for the bytes that are to come next."""
        return self._rest

    def expect(self, body: bytes) -> None:
        pid, address, size = _place(body)
        if size > CHUNK or self._rest:
            raise BadRequest("the other agent sends memory ahead in pieces that are none")
        new = sum((pid, address + at) not in self._pieces for at in range(0, size, PIECE))
        if (len(self._pieces) + new) * PIECE > self._most:
            raise TooLarge("the other agent sends more memory ahead than was offered")
        self._place, self._body = (pid, address), memoryview(bytearray(size))
        self._rest = self._body

    def came(self, count: int) -> None:
        """So much of what is due."""
        self._rest = self._rest[count:]
        if self._rest or self._place is None:
            return
        pid, address = self._place
        for at in range(0, len(self._body), PIECE):
            self._pieces[pid, address + at] = self._body[at : at + PIECE]
        self._place, self._body = None, memoryview(b"")

    def take(self, body: bytes) -> memoryview:
        """What is named, and not kept any longer."""
        pid, address, size = _place(body)
        try:
            found = [self._pieces.pop((pid, address + at)) for at in range(0, size, PIECE)]
        except KeyError:
            raise BadRequest("the other agent names memory that it did not send") from None
        return found[0] if len(found) == 1 else memoryview(b"".join(found))


def _place(body: bytes) -> tuple[int, int, int]:
    if len(body) != PLACE.size:
        raise BadRequest("the other agent names no place in memory")
    pid, address, size = PLACE.unpack(body)
    if size == 0 or (address | size) % PIECE:
        raise BadRequest("the other agent names no place in memory")
    return pid, address, size


# -- the source, while the tree runs ---------------------------------------------------------------


class Taker(Protocol):
    """Of what is sent while the tree runs."""

    early: Early

    def send_ahead(self, pid: int, address: int, view: memoryview) -> None:
        """Whole pieces of that process, from that address on."""

    def still_there(self) -> None:
        """There may be nothing to send for long."""


def send(taker: Taker, cage: Freezer, room: int, until: float) -> int:
    """Memory of a tree that runs, as long as what changes meanwhile becomes less by it; bytes sent.
    At most `room` are kept by the target, and nothing is begun after `until`. Blocks."""
    buffer, all_sent, before = memoryview(bytearray(STEP)), 0, 0
    for _ in range(_ROUNDS):
        sent = seen = 0
        for pid in cage.members():
            for part, size in _sent(taker, pid, buffer, room):
                sent += part
                seen += size
                taker.still_there()
                if time.monotonic() > until:
                    return all_sent + sent
        all_sent += sent
        if sent * _LITTLE < seen or 0 < before < 2 * sent:
            break
        before = sent
    return all_sent


def _sent(taker: Taker, pid: int, buffer: memoryview, room: int) -> Iterator[Span]:
    """Of one process, step by step: how much, and out of how much. Of one that ends, no more."""
    with contextlib.suppress(OSError, NotFound):
        inner = containers.inner_pid(pid)
        memory = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
        try:
            for start, end in steps(owned(pid)):
                sent = 0
                with contextlib.suppress(OSError):  # it was unmapped meanwhile
                    count = os.preadv(memory, [buffer[: end - start]], start)
                    view = buffer[: count // PIECE * PIECE]
                    for first, last in joined(taker.early.changed(inner, start, view, room)):
                        taker.send_ahead(inner, start + first, view[first:last])
                        sent += last - first
                yield sent, end - start
        finally:
            os.close(memory)


# -- what there is ---------------------------------------------------------------------------------


def room(cgroups: Path = freezer.CGROUPS) -> int:
    """Bytes that an agent may keep for a move: a share of what its node, and what it itself may
    use, have to spare."""
    spare = [_available()]
    with contextlib.suppress(HoldfastError):
        spare += [
            left for one in freezer.cgroups_of(os.getpid()) for left in _left(one.folder(cgroups))
        ]
    return max(0, min(spare) // _SHARE)


def _available() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return 0


def _left(folder: Path) -> Iterator[int]:
    """Of a limit on memory, in a cgroup of either version."""
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes"),
    ):
        with contextlib.suppress(OSError, ValueError):  # `max` is none
            yield int((folder / limit).read_text()) - int((folder / used).read_text())


def owned(pid: int) -> Iterator[Span]:
    """Where a process has pages of its own, in whole pieces: what a lazy dump leaves to be asked
    for, as far as that is known of one that runs. Nothing of one that ends meanwhile."""
    with contextlib.suppress(OSError):
        opened = os.open(f"/proc/{pid}/pagemap", os.O_RDONLY | os.O_CLOEXEC)
        try:
            for start, end in _private(pid):
                yield from _present(opened, start, end)
        finally:
            os.close(opened)


def _private(pid: int) -> Iterator[Span]:
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        place, rights, _offset, _device, inode, *name = line.split(maxsplit=5)
        if rights[0] == "r" and rights[3] == "p" and inode == "0" and name not in _KERNELS:
            start, end = (int(one, 16) for one in place.split("-"))
            if end - start <= _RESERVED:
                yield start, end


def _present(pagemap: int, start: int, end: int) -> Iterator[Span]:
    step = _SCAN * PAGE
    for first in range(start, end, step):
        pages = (min(end, first + step) - first) // PAGE
        entries = os.pread(pagemap, pages * 8, first // PAGE * 8)
        for run in _RUN.finditer(entries[7::8].translate(_OWN)):
            low = -(-(first + run.start() * PAGE) // PIECE) * PIECE
            high = (first + run.end() * PAGE) // PIECE * PIECE
            if low < high:
                yield low, high


def steps(spans: Iterator[Span]) -> Iterator[Span]:
    """No longer than STEP."""
    return itertools.chain.from_iterable(
        ((at, min(end, at + STEP)) for at in range(start, end, STEP)) for start, end in spans
    )
