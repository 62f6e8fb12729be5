"""Session folders, read only: which exist, what their files say, who is behind their sockets.

Another process writes these files, so every read may find them absent, half made or odd; that is
an answer here, never an exception.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from holdfast_wire.errors import BadName, NotFound
from holdfast_wire.ids import SessionName, session_name

# session.json carries a command line; anything larger is not ours.
_FILE_LIMIT: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Folder:
    name: SessionName
    path: Path

    @property
    def hold_socket(self) -> Path:
        return self.path / "hold.sock"

    @property
    def sidecar_socket(self) -> Path:
        return self.path / "sidecar.sock"

    @property
    def sidecar_log(self) -> Path:
        return self.path / "sidecar.log"

    def session(self) -> dict[str, Any]:
        return _json(self.path / "session.json")

    def exit(self) -> dict[str, Any] | None:
        """How it ended; None while it lives, or if it was lost without a word."""
        return _json(self.path / "exit.json") or None

    def hold_accepts(self) -> bool:
        """Whether hold, and so the session, lives."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
            probe.setblocking(False)
            try:
                probe.connect(str(self.hold_socket))
            except BlockingIOError:
                return True  # its backlog is full: alive, and busy
            except OSError:
                return False
        return True

    def sidecar_lock_held(self) -> bool:
        """Asked with a shared lock, let go at once. A sidecar that starts in this very moment may
        lose the race and exit; the next scan sees a free lock and starts another."""
        return _locked(self.path / "sidecar.lock") is True

    def waking(self) -> bool:
        """It is being woken: until it runs there is nothing for a sidecar to serve."""
        return (self.path / "waking").exists()

    def unsettled(self) -> Path | None:
        """Who suspended or woke it was killed over that: the shelf it has to do with."""
        for mark in (self.path / "suspending", self.path / "waking"):
            if _locked(mark) is False:
                with contextlib.suppress(OSError):
                    return Path(os.fsdecode(mark.read_bytes()))
        return None


def _locked(path: Path) -> bool | None:
    """None: there is no such file."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def every(state: Path) -> Iterator[Folder]:
    """All session folders in name order. Names that are none (editors' leftovers) are passed by."""
    try:
        with os.scandir(state / "sessions") as entries:
            names = sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    except OSError:
        return
    for name in names:
        try:
            yield Folder(session_name(name), state / "sessions" / name)
        except BadName:
            continue


def find(state: Path, name: str) -> Folder:
    folder = Folder(session_name(name), state / "sessions" / name)
    if not folder.path.is_dir():
        raise NotFound(f"there is no session {name!r}", "'holdfast ls' shows those there are")
    return folder


def _json(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            body = json.loads(file.read(_FILE_LIMIT))
    except (OSError, ValueError, RecursionError):
        return {}
    return body if isinstance(body, dict) else {}
