"""Sessions on this machine without a cluster: start one, find one, bring its sidecar back.

A session is `hold` and its command. The sidecar and the gateway come and go around it; nothing here
ends a session because one of them is away.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from holdfast.connection import Connection, open_socket
from holdfast.folders import (
    Life,
    asleep,
    ended_error,
    exit_status,
    find,
    hold_accepts,
    life,
    prune,
    remove,
)
from holdfast.paths import SessionFolder, own_folder, state_dir
from holdfast.supervisor import Supervisor, tail
from holdfast_wire.errors import (
    AlreadyExists,
    BadRequest,
    CommandFailed,
    HoldfastError,
    Internal,
    Unavailable,
)
from holdfast_wire.ids import session_name, terminal_size

PROGRESS_SECONDS: Final = 1.0
SIDECAR_SECONDS: Final = 10.0
MAX_SCROLLBACK: Final = 1_000_000
_STEP_SECONDS: Final = 0.01
_HOLD_SECONDS: Final = 30.0
# As PID 1, which it is for root: what restores a session that slept needs PIDs of its own.
_RESERVED: Final = "300"

# What describes the terminal `run` was typed into, not the one the command gets.
_OUTER: Final = frozenset({
    "COLORFGBG", "COLUMNS", "INSIDE_EMACS", "LC_TERMINAL", "LC_TERMINAL_VERSION", "LINES", "NVIM",
    "SSH_TTY", "STY", "TERMCAP", "TERMINFO", "TERM_PROGRAM", "TERM_PROGRAM_VERSION",
    "TERM_SESSION_ID", "TMUX", "TMUX_PANE", "VTE_VERSION", "WINDOW", "WINDOWID", "WT_PROFILE_ID",
    "WT_SESSION", "ZELLIJ",
})  # fmt: skip
_OUTER_PREFIXES: Final = (
    "KITTY_", "ITERM_", "ALACRITTY_", "GHOSTTY_", "KONSOLE_", "WEZTERM_", "ZELLIJ_",
)  # fmt: skip


class NotExecutable(CommandFailed):
    exit_code = 126  # as shells have it: found, but cannot be run


class Session(NamedTuple):
    """What to start."""

    name: str
    command: Sequence[str]
    cwd: Path
    size: tuple[int, int]
    scrollback: int


Notify = Callable[[str], None]


def _silent(text: str) -> None:
    pass


def run_session(
    name: str,
    command: Sequence[str],
    cwd: Path,
    size: tuple[int, int],
    scrollback: int,
    env: Mapping[str, str],
    notify: Notify = _silent,
) -> SessionFolder:
    """Start a session and wait until it can be attached to. `notify` hears of long waits."""
    folder = start_session(Session(name, command, cwd, size, scrollback), env)
    _wait_for_sidecar(folder, Supervisor(state_dir()), notify)
    return folder


def start_session(wanted: Session, env: Mapping[str, str]) -> SessionFolder:
    """Make the folder and start hold. On failure nothing is left behind."""
    state = state_dir()
    folder = SessionFolder(state, session_name(wanted.name))
    _check(wanted, folder)
    hold = find_hold()
    with _creation_lock(state):
        prune(state)
        _make_folder(folder)
        try:
            session_id = _describe(folder, wanted)
            _start_hold(hold, folder, wanted, session_environment(env, folder.name, session_id))
        except BaseException:
            remove(folder)
            raise
    return folder


def _check(wanted: Session, folder: SessionFolder) -> None:
    folder.check_length()
    terminal_size(*wanted.size)
    if not 0 <= wanted.scrollback <= MAX_SCROLLBACK:
        raise BadRequest(
            f"a scrollback of {wanted.scrollback} lines is not possible",
            f"use 0 to {MAX_SCROLLBACK} lines",
        )
    if not wanted.command or not wanted.command[0]:
        raise BadRequest("there is no command to run", "for example: holdfast run -- bash")
    if not wanted.cwd.is_dir():
        raise BadRequest(f"{wanted.cwd} is not a folder", "give one that exists with --cwd")


@contextlib.contextmanager
def _creation_lock(state: Path) -> Iterator[None]:
    """Between making a folder and its hold listening, a session looks lost; a second `run` of the
    same name would take it for a leftover and remove it."""
    descriptor = os.open(state / "run.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _make_folder(folder: SessionFolder) -> None:
    match life(folder):
        case Life.LIVE:
            raise AlreadyExists(
                f"session {folder.name} is already running",
                f"attach with: holdfast attach {folder.name}; or choose another --name",
            )
        case Life.SUSPENDED:
            raise AlreadyExists(
                f"session {folder.name} is suspended",
                f"go on with: holdfast attach {folder.name}; or choose another --name",
            )
        case Life.ENDED | Life.LOST:
            remove(folder)
        case Life.ABSENT:
            pass
    own_folder(folder.path.parent)
    own_folder(folder.path)


def _describe(folder: SessionFolder, wanted: Session) -> str:
    from uuid import uuid4

    session_id = uuid4().hex
    columns, rows = wanted.size
    body = {
        "name": folder.name,
        "id": session_id,
        "command": list(wanted.command),
        "cwd": str(wanted.cwd),
        "columns": columns,
        "rows": rows,
        "scrollback": wanted.scrollback,
        "created": time.time(),
    }
    draft = folder.path / ".session.json"
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8", errors="surrogateescape") as file:
        json.dump(body, file, ensure_ascii=True)
    draft.rename(folder.description)
    return session_id


def session_environment(environ: Mapping[str, str], name: str, session_id: str) -> dict[str, str]:
    """The command's environment: the user's, but for the terminal it now has."""
    kept = {
        key: value
        for key, value in environ.items()
        if key not in _OUTER and not key.startswith(_OUTER_PREFIXES)
    }
    return kept | {
        "TERM": "xterm-256color",
        "COLORTERM": "truecolor",
        "HOLDFAST_SESSION": name,
        "HOLDFAST_SESSION_ID": session_id,
    }


def find_hold() -> str:
    if chosen := os.environ.get("HOLDFAST_HOLD"):
        if os.access(chosen, os.X_OK):
            return chosen
        raise Internal(f"HOLDFAST_HOLD is {chosen}, which cannot be run", "run: make build")
    import shutil

    packaged = Path(__file__).parent / "bin" / "hold"
    if os.access(packaged, os.X_OK):
        return str(packaged)
    if on_path := shutil.which("hold"):
        return on_path
    raise Internal(
        "the program 'hold', which guards sessions, is not there",
        "in a source tree run: make build; or set HOLDFAST_HOLD to where it is",
    )


def _start_hold(hold: str, folder: SessionFolder, wanted: Session, env: dict[str, str]) -> None:
    import subprocess

    columns, rows = wanted.size
    arguments = [
        hold, "--daemon",
        "--socket", str(folder.hold_socket),
        "--size", f"{columns}x{rows}",
        "--cwd", str(wanted.cwd),
        "--reserve", _RESERVED,
        "--", *wanted.command,
    ]  # fmt: skip
    try:
        done = subprocess.run(
            arguments,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=_HOLD_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired, ValueError) as error:
        raise CommandFailed(f"the session could not be started: {error}") from error
    if done.returncode == 0:
        return
    said = done.stderr.decode(errors="replace").strip().removeprefix("hold: ")
    message = said or f"hold ended with code {done.returncode}"
    if done.returncode == 126:
        raise NotExecutable(message, "is it a program, and may you execute it?")
    if done.returncode == 127:
        raise CommandFailed(message, "check the spelling and your PATH")
    raise Internal(message)


def ensure(name: str, notify: Notify = _silent) -> SessionFolder:
    """The session's sidecar answers, or an error says why it cannot."""
    state = state_dir()
    folder = find(state, name)
    if asleep(folder):
        raise ended_error(folder)
    try:
        Connection.open(folder.sidecar_socket, timeout=1.0).close()
    except Unavailable:
        if life(folder) is not Life.LIVE:
            raise ended_error(folder) from None
        _wait_for_sidecar(folder, Supervisor(state), notify)
    return folder


def connect_local(name: str, notify: Notify = _silent, modality: str = "sdk") -> Connection:
    """A connection to a session on this machine; its sidecar is brought back if it is away."""
    folder = find(state_dir(), name)
    try:
        return Connection.open(folder.sidecar_socket, modality=modality)
    except Unavailable:
        ensure(name, notify)
        return Connection.open(folder.sidecar_socket, modality=modality)


def _wait_for_sidecar(folder: SessionFolder, supervisor: Supervisor, notify: Notify) -> None:
    started = time.monotonic()
    told = False
    supervisor.ensure()
    while (waited := time.monotonic() - started) < SIDECAR_SECONDS:
        if _answers(folder):
            return
        if life(folder) is not Life.LIVE:
            # A command may be over before its sidecar was up; then that is how it went.
            raise ended_error(folder)
        if waited > PROGRESS_SECONDS and not told:
            notify(f"waiting for the sidecar of {folder.name} …")
            told = True
        time.sleep(_STEP_SECONDS if waited < 1 else 0.1)
    raise Unavailable(
        f"session {folder.name} runs, but its sidecar does not come up:"
        f"\n{tail(folder.sidecar_log)}",
        f"its log is {folder.sidecar_log}; nothing of the session is lost",
    )


def _answers(folder: SessionFolder) -> bool:
    try:
        with Connection.open(folder.sidecar_socket, timeout=1.0) as connection:
            connection.request("ping", within=1.0)
    except HoldfastError:
        return False
    return True


class LocalLink:
    """For an attached client, also one that was cut off: get the sidecar back, without waiting for
    it."""

    def __init__(self, folder: SessionFolder) -> None:
        self._folder = folder
        self._supervisor = Supervisor(folder.path.parent.parent)

    def nudge(self) -> None:
        """Raises `Ended` when there is no session to come back to."""
        gone = asleep(self._folder) or self._folder.exit.exists()
        if gone or not hold_accepts(self._folder):
            raise ended_error(self._folder)
        self._supervisor.nudge()

    def exit_status(self) -> dict[str, Any] | None:
        return exit_status(self._folder)

    def open(self) -> socket.socket:
        try:
            return open_socket(self._folder.sidecar_socket, timeout=1.0)
        except Unavailable:
            self.nudge()
            # Not what was wrong: it is back before anybody could read it.
            raise Unavailable("") from None

    def why(self) -> HoldfastError | None:
        return None  # the next `open` finds out

    def finish(self) -> None:
        """Nothing: what was sent is in the kernel's hands."""

    def close(self) -> None:
        """Nothing: the socket is all there is."""
