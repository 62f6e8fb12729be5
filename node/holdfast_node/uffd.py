"""The kernel's userfaultfd: what a process does with memory that has not come, and its pages."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

PAGE: Final = os.sysconf("SC_PAGESIZE")
_WAKE, _COPY, _ZEROPAGE = 0x8010AA02, 0xC028AA03, 0xC020AA04
_MESSAGE: Final = struct.Struct("=B7xQQQ")
_MESSAGES: Final = 64
_libc: Final = ctypes.CDLL(None, use_errno=True)


class Kind(IntEnum):
    FAULT = 0x12
    FORK = 0x13
    REMAP = 0x14
    REMOVE = 0x15
    UNMAP = 0x16


@dataclass(frozen=True)
class Event:
    """The three numbers are: flags and address; a descriptor; from, to and size; start and end."""

    kind: Kind
    first: int
    second: int
    third: int


class _Copy(ctypes.Structure):
    _fields_ = (
        ("to", ctypes.c_uint64),
        ("source", ctypes.c_uint64),
        ("size", ctypes.c_uint64),
        ("mode", ctypes.c_uint64),
        ("copied", ctypes.c_int64),
    )


class _Range(ctypes.Structure):
    _fields_ = (
        ("start", ctypes.c_uint64),
        ("size", ctypes.c_uint64),
        ("mode", ctypes.c_uint64),
        ("done", ctypes.c_int64),
    )


def events(fd: int) -> list[Event]:
    """What has happened since; empty: nothing. The kernel does not go on with a fork, an munmap
    and the like before it was read."""
    try:
        data = os.read(fd, _MESSAGE.size * _MESSAGES)
    except BlockingIOError:
        return []
    return [Event(Kind(kind), *numbers) for kind, *numbers in _MESSAGE.iter_unpack(data)]


def copy(fd: int, to: int, source: int, size: int) -> tuple[int, int]:
    """Bytes copied, and an errno or 0. Who waits for one of them goes on."""
    wanted = _Copy(to, source, size, 0, 0)
    failed = _ioctl(fd, _COPY, wanted)
    return (size, 0) if not failed else (max(0, wanted.copied), failed)


@dataclass(frozen=True)
class Copy:
    """As `copy` takes it."""

    fd: int
    to: int
    source: int
    size: int

    def make(self) -> int:
        return copy(self.fd, self.to, self.source, self.size)[0]


class Copies:
    """Made by a thread of its own while the caller does something else; one lot at a time."""

    def __init__(self) -> None:
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="copies")
        self._making: Future[list[int]] | None = None

    def begin(self, lot: Iterable[Copy]) -> None:
        wanted = list(lot)
        self._making = self._worker.submit(lambda: [each.make() for each in wanted])

    def end(self) -> list[int]:
        """How much of each was copied; why not all, whoever tries again finds out."""
        making, self._making = self._making, None
        return [] if making is None else making.result()

    def close(self) -> None:
        self._worker.shutdown()


def zero(fd: int, address: int) -> None:
    """A page that never was anything else. If the kernel cannot now, who waits tries again."""
    if failed := _ioctl(fd, _ZEROPAGE, _Range(address, PAGE, 0, 0)):
        if failed not in (errno.EEXIST, errno.EAGAIN, errno.ENOENT, errno.ESRCH):
            raise OSError(failed, os.strerror(failed), "a page of zeros")
        wake(fd, address, PAGE)


def wake(fd: int, start: int, size: int) -> None:
    """Who waits for a page there looks again, and waits anew or not."""
    _ioctl(fd, _WAKE, _Range(start, size, 0, 0))


def _ioctl(fd: int, request: int, argument: ctypes.Structure) -> int:
    if _libc.ioctl(fd, ctypes.c_ulong(request), ctypes.byref(argument)) == 0:
        return 0
    return ctypes.get_errno()
