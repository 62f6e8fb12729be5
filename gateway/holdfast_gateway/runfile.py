"""`STATE/gateway.json` and `STATE/gateway.lock`: which gateway runs here, and how to reach it.

Invariant: at most one gateway holds the lock, and only its holder writes `gateway.json`. The file
stays when the gateway goes, so that the next one takes over its port and token and an open page
reconnects without being told anything.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import secrets
import stat
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from holdfast_wire.errors import Forbidden

_TOKEN: Final = re.compile(r"[A-Za-z0-9_-]{43}")
_FILE_LIMIT: Final = 4096
# Whoever wants to know whether a gateway runs holds the lock for a moment; outlast that.
_LOCK_TRIES: Final = 10
_LOCK_PAUSE_SECONDS: Final = 0.02


@dataclass(frozen=True, slots=True)
class Earlier:
    """What the last gateway here used."""

    port: int
    token: str


def own_folder(path: Path) -> Path:
    """STATE, made private. In /tmp somebody else may have made it first, and would then read our
    token or plant a socket: such a folder is refused, never repaired."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise Forbidden(
            f"{path} is not a folder of your own", "remove it, or set HOLDFAST_DIR to another"
        )
    if stat.S_IMODE(found.st_mode) & 0o077:
        path.chmod(0o700)
    return path.resolve()


def take_lock(state: Path) -> int | None:
    """The lock's descriptor, held until the process ends; None if another gateway has it."""
    descriptor = os.open(state / "gateway.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    for _ in range(_LOCK_TRIES):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_LOCK_PAUSE_SECONDS)
        else:
            return descriptor
    os.close(descriptor)
    return None


def read(state: Path) -> Earlier | None:
    """The earlier run's port and token; None if there is none that can be trusted."""
    try:
        descriptor = os.open(state / "gateway.json", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(file.fileno())
        if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
            return None
        text = file.read(_FILE_LIMIT)
    try:
        body = json.loads(text)
        port, token = body["port"], body["token"]
    except (ValueError, TypeError, KeyError):
        return None
    if not (isinstance(port, int) and 0 < port < 65536):
        return None
    if not (isinstance(token, str) and _TOKEN.fullmatch(token)):
        return None
    return Earlier(port, token)


def new_token() -> str:
    return secrets.token_urlsafe(32)


def write(state: Path, host: str, port: int, token: str) -> str:
    """Announce that we listen. Returns the page's address, without the token."""
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}/"
    body = {"port": port, "token": token, "pid": os.getpid(), "url": url}
    draft = state / f".gateway.json.{os.getpid()}"
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump(body, file)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    draft.rename(state / "gateway.json")
    return url
