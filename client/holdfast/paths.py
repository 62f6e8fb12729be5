"""Where sessions live on this machine: the STATE folder and what is in it.

Invariant: a path handed out here lies in a folder that belongs to this user and that nobody else
can enter. Somebody who could write there could put a socket in our way and read every keystroke.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path
from typing import Final
from urllib.parse import quote

from holdfast_wire.errors import BadRequest, Forbidden, Internal
from holdfast_wire.ids import SessionName

# sun_path holds 108 bytes with the closing zero.
MAX_SOCKET_PATH: Final = 107


class SessionFolder:
    """The files of one session, by name; see docs/protocol.md."""

    def __init__(self, state: Path, name: SessionName) -> None:
        self.name = name
        self.path = state / "sessions" / name

    def __repr__(self) -> str:
        return f"SessionFolder({str(self.path)!r})"

    @property
    def description(self) -> Path:
        return self.path / "session.json"

    @property
    def exit(self) -> Path:
        return self.path / "exit.json"

    @property
    def hold_socket(self) -> Path:
        return self.path / "hold.sock"

    @property
    def sidecar_socket(self) -> Path:
        return self.path / "sidecar.sock"

    @property
    def sidecar_log(self) -> Path:
        return self.path / "sidecar.log"

    @property
    def shelf(self) -> Path:
        """Where it lies while it sleeps. There if it does, and only then."""
        return shelves(self.path.parent.parent) / self.name

    def check_length(self) -> None:
        """The kernel cuts off or refuses a longer socket address; say so before it does."""
        length = len(os.fsencode(self.sidecar_socket))
        if length > MAX_SOCKET_PATH:
            raise BadRequest(
                f"the path of the session's socket is {length} bytes long; Unix allows"
                f" {MAX_SOCKET_PATH}: {self.sidecar_socket}",
                "set HOLDFAST_DIR to something shorter, or choose a shorter name",
            )


def state_path() -> Path:
    """STATE by the rule of docs/protocol.md. Neither made nor checked."""
    if chosen := os.environ.get("HOLDFAST_DIR"):
        return Path(chosen).absolute()
    if runtime := os.environ.get("XDG_RUNTIME_DIR"):
        return Path(runtime).absolute() / "holdfast"
    return Path(f"/tmp/holdfast-{os.geteuid()}")  # noqa: S108 - own_folder() refuses a planted one


def shelves(state: Path) -> Path:
    """Of a STATE's sessions that sleep: on a disk, since STATE need not outlive a reboot."""
    store = Path(os.environ.get("HOLDFAST_STORE") or "/var/lib/holdfast/suspended").absolute()
    return store / quote(str(state), safe="")


def state_dir() -> Path:
    """STATE, made if need be, and certainly ours."""
    return own_folder(state_path())


def own_folder(path: Path) -> Path:
    """The folder, made 0700 if absent; refused, never repaired, if others made or may enter it."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        link, found = path.lstat(), path.stat()
    except FileExistsError as error:
        raise Forbidden(
            f"{path} is not a folder", "remove it, or set HOLDFAST_DIR to another place"
        ) from error
    except OSError as error:
        raise Internal(
            f"{path} cannot be made: {error.strerror}", "set HOLDFAST_DIR to a folder of your own"
        ) from error
    for owner in (link.st_uid, found.st_uid):
        if owner != os.geteuid():
            raise Forbidden(
                f"{path} belongs to user {owner}, not to you (user {os.geteuid()})",
                "set HOLDFAST_DIR to a folder of your own",
            )
    if loose := stat.S_IMODE(found.st_mode) & 0o077:
        raise Forbidden(
            f"{path} can be entered by others (mode {stat.S_IMODE(found.st_mode):04o},"
            f" of which {loose:03o} is too much)",
            f"if you trust what is in it: chmod 700 {path}",
        )
    return path


def session_names(state: Path) -> list[SessionName]:
    """All there are folders for, and those that sleep, sorted. Leftovers whose names are none are
    passed by."""
    from holdfast_wire.errors import BadName
    from holdfast_wire.ids import session_name

    names = set()
    for folder in (state / "sessions", shelves(state)):
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    with contextlib.suppress(BadName):
                        names.add(session_name(entry.name))
        except (FileNotFoundError, PermissionError):
            continue  # a store that is root's has nobody else's sessions
    return sorted(names)
