"""The journal: who did what, when. Append-only JSON lines, bounded to two files of `MAX_BYTES`.

It says who typed how much and when, never what: keystrokes contain passwords. A command given to
`exec` is recorded whole, because its sender named it.

Sealed, its files do not change; what comes meanwhile is written when it is opened again.
"""

from __future__ import annotations

import json
import os
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

MAX_BYTES: Final = 4 << 20
# Made once: it stands in the way of every keystroke.
_ENCODE: Final = json.JSONEncoder(separators=(",", ":")).encode
_MAX_HELD: Final = 1000  # records; while it is sealed there are only comings and goings


class Journal:
    def __init__(self, path: Path) -> None:
        self._path, self._old = path, path.with_suffix(".1")
        self._sealed = False
        self._held: deque[dict[str, Any]] = deque(maxlen=_MAX_HELD)
        self._open()

    def _open(self) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        self._descriptor = os.open(self._path, flags, 0o600)
        self._size = os.fstat(self._descriptor).st_size
        if self._size and not self._path.read_bytes().endswith(b"\n"):
            self._size += os.write(self._descriptor, b"\n")  # ends a line that a kill cut short

    def add(self, kind: str, **fields: Any) -> None:
        """One write, so that a kill leaves whole lines and at most one cut short at the end."""
        record = {"time": round(time.time(), 3), "kind": kind, **fields}
        if self._sealed:
            self._held.append(record)
        else:
            self._write(record)

    def seal(self) -> None:
        self._sealed = True

    def unseal(self) -> None:
        self._sealed = False
        while self._held:
            self._write(self._held.popleft())

    def _write(self, record: dict[str, Any]) -> None:
        line = _ENCODE(record).encode() + b"\n"
        if self._size + len(line) > MAX_BYTES:
            self._path.rename(self._old)
            os.close(self._descriptor)
            self._open()
        self._size += os.write(self._descriptor, line)

    def records(self) -> Iterator[dict[str, Any]]:
        """Oldest first."""
        for path in (self._old, self._path):
            if not path.exists():
                continue
            for line in path.read_bytes().splitlines():
                try:
                    record = json.loads(line)
                except ValueError:
                    continue  # cut short by a kill
                if isinstance(record, dict):
                    yield record

    def close(self) -> None:
        os.close(self._descriptor)
