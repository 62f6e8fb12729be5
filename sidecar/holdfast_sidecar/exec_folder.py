"""The folder of scripts that the live shell is made to read.

In a pod it lies in a volume that the session's container mounts read-only: no process of the
session, whatever its user, can write a script, replace one or put a link in its place. Every file
is made new, in a folder that is open, and never through a link.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


class ExecFolder:
    def __init__(self, path: Path, *, readable_by_all: bool) -> None:
        """`readable_by_all`: the shell may run as any user, and only containers of the pod look."""
        self.path = path
        self._modes = (0o711, 0o644) if readable_by_all else (0o700, 0o600)

    @contextlib.contextmanager
    def script(self, name: str, text: str) -> Iterator[Path]:
        """There as long as the context is."""
        folder = self._open()
        try:
            self._put(folder, name, text)
            try:
                yield self.path / name
            finally:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=folder)
        finally:
            os.close(folder)

    def clear(self) -> None:
        """What a killed sidecar left."""
        if not self.path.exists():
            return
        folder = self._open()
        try:
            for name in os.listdir(folder):  # noqa: PTH208 - of the folder that is open
                os.unlink(name, dir_fd=folder)
        finally:
            os.close(folder)

    def _open(self) -> int:
        with contextlib.suppress(FileExistsError):
            self.path.mkdir(mode=0o700)
        folder = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        os.fchmod(folder, self._modes[0])
        return folder

    def _put(self, folder: int, name: str, text: str) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(name, flags, 0o600, dir_fd=folder)
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="") as file:
            file.write(text)
            os.fchmod(descriptor, self._modes[1])
