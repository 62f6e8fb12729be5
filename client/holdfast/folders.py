"""What the session folders on this machine say: who lives, who has ended, and how."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import struct
import time
from enum import Enum
from pathlib import Path
from typing import Any, Final

from holdfast.paths import SessionFolder, session_names
from holdfast_wire.errors import Ended, HoldfastError, NotFound
from holdfast_wire.ids import SessionName, session_name

# Long enough to look the next morning at how the night's build ended.
KEEP_ENDED_SECONDS: Final = 24 * 3600.0
# session.json carries a command line; anything larger is not ours.
_FILE_LIMIT: Final = 1 << 20
_STOP_SECONDS: Final = 3.0


class Suspended(Ended):
    """It sleeps: nobody is there to answer, and nothing has ended."""


class Life(Enum):
    ABSENT = "absent"
    LIVE = "live"
    ENDED = "ended"
    SUSPENDED = "suspended"
    LOST = "lost"
    """Its hold is gone and left no word: killed, or the machine was restarted."""


def life(folder: SessionFolder) -> Life:
    if asleep(folder):
        return Life.SUSPENDED
    if not folder.path.is_dir():
        return Life.ABSENT
    if folder.exit.exists():
        return Life.ENDED
    return Life.LIVE if hold_accepts(folder) else Life.LOST


def asleep(folder: SessionFolder) -> bool:
    return os.path.isdir(folder.shelf)  # noqa: PTH112 - False also where we may not look


def hold_accepts(folder: SessionFolder) -> bool:
    """Whether hold, and so the session, lives. Asking costs hold an accept and no more."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(folder.hold_socket))
        except BlockingIOError:
            return True  # its backlog is full: alive, and busy
        except OSError:
            return False
    return True


def description(folder: SessionFolder) -> dict[str, Any]:
    """session.json; empty if it cannot be read."""
    return read_json(folder.shelf / folder.description.name) or read_json(folder.description)


def exit_status(folder: SessionFolder) -> dict[str, Any] | None:
    """exit.json; None if it has not ended, or ended without a word."""
    return read_json(folder.exit) or None


def read_json(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            body = json.loads(file.read(_FILE_LIMIT))
    except (OSError, ValueError, RecursionError):
        return {}
    return body if isinstance(body, dict) else {}


def find(state: Path, name: str) -> SessionFolder:
    """The folder of a session, living or ended. `NotFound` names those there are."""
    folder = SessionFolder(state, session_name(name))
    if folder.path.is_dir() or asleep(folder):
        return folder
    from holdfast.render import suggestion

    hint = suggestion(name, session_names(state), "holdfast run")
    raise NotFound(f"there is no session {name!r}", hint)


def living(state: Path) -> list[SessionFolder]:
    """Also those that sleep."""
    folders = [SessionFolder(state, name) for name in session_names(state)]
    return [folder for folder in folders if life(folder) in (Life.LIVE, Life.SUSPENDED)]


def ended_error(folder: SessionFolder) -> Ended:
    """Why there is nobody to talk to. Only for a session that does not live."""
    from holdfast_wire.exits import describe_exit

    if asleep(folder):
        return Suspended(
            f"session {folder.name} is suspended",
            f"go on with: holdfast attach {folder.name}; or: holdfast wake {folder.name}",
        )
    status = exit_status(folder)
    advice = f"start it again with: holdfast run --name {folder.name} -- COMMAND"
    if status is None:
        return Ended(
            f"session {folder.name} is gone: its holder was killed, or the machine restarted",
            advice,
        )
    return Ended(f"session {folder.name} has ended: {describe_exit(status)[0]}", advice)


def prune(state: Path) -> list[SessionName]:
    """Remove what ended more than a day ago. The names removed."""
    removed = []
    for name in session_names(state):
        folder = SessionFolder(state, name)
        if time.time() - _last_change(folder) < KEEP_ENDED_SECONDS:
            continue
        if life(folder) in (Life.ENDED, Life.LOST):
            remove(folder)
            removed.append(name)
    return removed


def _last_change(folder: SessionFolder) -> float:
    for path in (folder.exit, folder.description, folder.path):
        with contextlib.suppress(OSError):
            return path.stat().st_mtime
    return time.time()


def remove(folder: SessionFolder) -> None:
    """Delete an ended session's folder, and stop the sidecar that may still show its screen."""
    import shutil  # not above: it loads every compressor there is, and `ls` needs none

    _stop_sidecar(folder)
    shutil.rmtree(folder.path, ignore_errors=True)


def _stop_sidecar(folder: SessionFolder) -> None:
    pid = sidecar_pid(folder)
    if pid is None:
        return
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + _STOP_SECONDS
    while sidecar_pid(folder) == pid and time.monotonic() < deadline:
        time.sleep(0.02)


def sidecar_pid(folder: SessionFolder) -> int | None:
    """Who listens on the sidecar's socket, by the kernel's word; None if nobody does."""
    from holdfast.connection import open_socket

    try:
        with open_socket(folder.sidecar_socket, timeout=1.0) as peer:
            credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    except (HoldfastError, OSError):
        return None
    pid, uid, _ = struct.unpack("iII", credentials)
    return pid if pid > 0 and uid == os.geteuid() else None
