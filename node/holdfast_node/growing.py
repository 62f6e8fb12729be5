"""Files that are read while they are written: CRIU's images. They lie in memory, and what was read
of them is freed at once, so that a session's memory is there twice for a moment only."""

from __future__ import annotations

import asyncio
import ctypes
import os
import threading
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Final, Generic, TypeVar

from .link import CHUNK, TICK

_POLL: Final = 0.003  # seconds between looks at a file that grows: 3 MB at 1 GB/s
_KEEP_SIZE, _PUNCH_HOLE = 0x01, 0x02
_PAGE: Final = 4096
_libc: Final = ctypes.CDLL(None, use_errno=True)


class Growing:
    """A part on its way."""

    size: int


G = TypeVar("G", bound=Growing)


class Feeds(ABC, Generic[G]):
    """Takes parts: to another agent, or into files."""

    def __init__(self) -> None:
        self._closing = threading.Event()

    @abstractmethod
    def _begin(self, part: str) -> G: ...

    @abstractmethod
    def _data(self, going: G, view: memoryview) -> None: ...

    @abstractmethod
    def _end(self, going: G) -> None: ...

    @abstractmethod
    def _check(self) -> None:
        """Raises if there is no sense in going on."""

    @abstractmethod
    def _tick(self) -> None:
        """Nothing has come for a while."""

    def _feed_file(self, part: str, path: Path, punch: bool) -> None:
        flags = (os.O_RDWR if punch else os.O_RDONLY) | os.O_CLOEXEC | os.O_NOFOLLOW
        opened = os.open(path, flags)
        try:
            going = self._begin(part)
            self._drain(going, opened, memoryview(bytearray(CHUNK)), punch=punch)
        finally:
            os.close(opened)
        self._end(going)

    def _drain(self, going: G, opened: int, buffer: memoryview, *, punch: bool) -> bool:
        """What the file has beyond what was read. False: nothing."""
        moved = False
        while count := os.preadv(opened, [buffer], going.size):
            start = going.size
            self._data(going, buffer[:count])
            if punch:
                _punch(opened, start - start % _PAGE, going.size - going.size % _PAGE)
            moved = True
        return moved

    def _feed_folder(self, prefix: str, directory: Path, done: asyncio.Event) -> None:
        """Its files of memory only grow; all others follow when `done` says that CRIU has ended."""
        growing: dict[str, tuple[G, int]] = {}
        buffer, said = memoryview(bytearray(CHUNK)), time.monotonic()
        try:
            while True:
                ended = done.is_set()  # before the look: what comes later is seen by the next
                moved = self._grown(prefix, directory, growing, buffer)
                if ended:
                    break
                if moved:
                    said = time.monotonic()
                elif time.monotonic() - said > TICK:
                    said = time.monotonic()
                    self._tick()
                else:
                    self._check()
                    self._closing.wait(_POLL)
        finally:
            for _, opened in growing.values():
                os.close(opened)
        for going, _ in growing.values():
            self._end(going)
        for path in sorted(directory.iterdir()):
            if path.name not in growing and path.is_file() and not path.is_symlink():
                self._feed_file(f"{prefix}/{path.name}", path, punch=True)

    def _grown(
        self, prefix: str, directory: Path, growing: dict[str, tuple[G, int]], buffer: memoryview
    ) -> bool:
        for path in directory.glob("pages-*.img"):
            if path.name not in growing:
                opened = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
                growing[path.name] = self._begin(f"{prefix}/{path.name}"), opened
        found = growing.values()
        moved = [self._drain(going, opened, buffer, punch=True) for going, opened in found]
        return any(moved)


def _punch(opened: int, start: int, end: int) -> None:
    """Gives memory back; where the file system cannot, nothing is lost but memory."""
    if end > start:
        _libc.fallocate(
            ctypes.c_int(opened),
            ctypes.c_int(_PUNCH_HOLE | _KEEP_SIZE),
            ctypes.c_long(start),
            ctypes.c_long(end - start),
        )
