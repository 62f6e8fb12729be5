"""The file in which jobs are asked for and told of: init/jobs.h, from the other side.

It is memory of the session's keeper, handed out by hold; the keeper moves with the session, and the
file with it. Each half of a slot has one writer, so nothing here needs a lock: we say what is
wanted, the keeper says what is. What it says is the session's own word, and bounded here.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Final, NamedTuple

from holdfast_wire.errors import TooLarge, Unsupported

_HEAD: Final = struct.Struct("<8sIII")
_MAGIC: Final = b"HFJOBS1\n"
_SLOTS_AT: Final = 4096
_SPECS_AT: Final = 8192
_ASKED: Final = struct.Struct("<BBHI24s32x")
_TOLD: Final = struct.Struct("<BxHiiiQQQ24x")
_SLOT: Final = _ASKED.size + _TOLD.size
_SPEC: Final = struct.Struct("<iII")
_MOST: Final = 1 << 40  # no job prints more: a head beyond it is made up


class Told(IntEnum):
    FREE = 0
    RUNNING = 1
    OVER = 2  # it ended
    DONE = 3  # and nobody can write to its output any more


class Slot(NamedTuple):
    wanted: bool
    signals: int
    id: str
    state: Told
    signalled: int
    pid: int
    status: int
    """As waitpid() gives it."""
    error: int
    """errno: why it could not be started."""
    started: float
    ended: float
    head: int
    """Bytes of output, ever."""


def specification(
    like: int, argv: Sequence[str], cwd: str, settings: Mapping[str, str], most: int
) -> bytes:
    words = [cwd, *argv, *(f"{name}={value}" for name, value in settings.items())]
    head = _SPEC.pack(like, len(argv), len(settings))
    data = head + b"".join(word.encode("utf-8", "surrogateescape") + b"\0" for word in words)
    if len(data) > most:
        raise TooLarge(f"a job's command and variables are at most {most} bytes", "use a file")
    return data


class JobsFile:
    def __init__(self, descriptor: int) -> None:
        self._file = descriptor
        head = os.pread(descriptor, _HEAD.size, 0)
        if len(head) < _HEAD.size or not head.startswith(_MAGIC):
            raise Unsupported("the session's keeper has another form of jobs than this sidecar")
        _, self.count, self.spec_bytes, self.ring_bytes = _HEAD.unpack(head)
        if not (0 < self.count <= 32 and 0 < self.ring_bytes <= 1 << 28):
            raise Unsupported("the session's keeper has another form of jobs than this sidecar")
        self._rings_at = _SPECS_AT + self.count * self.spec_bytes

    def slots(self) -> list[Slot]:
        table = os.pread(self._file, self.count * _SLOT, _SLOTS_AT).ljust(self.count * _SLOT, b"\0")
        return [_slot(table[at : at + _SLOT]) for at in range(0, len(table), _SLOT)]

    def slot(self, index: int) -> Slot:
        at = _SLOTS_AT + index * _SLOT
        return _slot(os.pread(self._file, _SLOT, at).ljust(_SLOT, b"\0"))

    def prepare(self, index: int, identity: str, spec: bytes) -> None:
        """Everything but the word that it is wanted."""
        os.pwrite(self._file, spec, _SPECS_AT + index * self.spec_bytes)
        signals = self.slot(index).signalled
        asked = _ASKED.pack(0, 0, signals, len(spec), identity.encode())
        os.pwrite(self._file, asked, _SLOTS_AT + index * _SLOT)

    def want(self, index: int, wanted: bool) -> None:
        os.pwrite(self._file, bytes((wanted,)), _SLOTS_AT + index * _SLOT)

    def signal(self, index: int, number: int) -> None:
        """The count after the number: the keeper goes by the count."""
        at, count = _SLOTS_AT + index * _SLOT, (self.slot(index).signals + 1) & 0xFFFF
        os.pwrite(self._file, bytes((number,)), at + 1)
        os.pwrite(self._file, struct.pack("<H", count), at + 2)

    def read(self, index: int, after: int, limit: int) -> tuple[int, bytes]:
        """Output from `after` on, or from the oldest there is, and where that begins."""
        for _ in range(8):  # while it is being overwritten
            head = self.slot(index).head
            start = min(max(after, head - self.ring_bytes), head)
            count = min(limit, head - start)
            data = self._ring(index, start, count)
            if start >= self.slot(index).head - self.ring_bytes:
                return start, data
            after = max(after, self.slot(index).head - self.ring_bytes // 2)
        return start, b""

    def _ring(self, index: int, start: int, count: int) -> bytes:
        base, at = self._rings_at + index * self.ring_bytes, start % self.ring_bytes
        first = os.pread(self._file, min(count, self.ring_bytes - at), base + at)
        return first + os.pread(self._file, count - len(first), base) if first else first

    def close(self) -> None:
        os.close(self._file)


def _slot(data: bytes) -> Slot:
    wanted, _, signals, _, identity = _ASKED.unpack_from(data)
    state, signalled, pid, status, error, started, ended, head = _TOLD.unpack_from(
        data, _ASKED.size
    )
    return Slot(
        wanted == 1,
        signals,
        identity.rstrip(b"\0").decode("ascii", "replace"),
        Told(state) if state <= Told.DONE else Told.DONE,
        signalled,
        pid,
        status,
        error,
        started / 1e9,
        ended / 1e9,
        min(head, _MOST),
    )
