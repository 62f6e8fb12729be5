"""Starting programs and ending them again. Whatever was started on a `Pen` is ended with it, by its
pid, whichever way its `with` block is left.
"""

from __future__ import annotations

import contextlib
import os
import pty
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from fcntl import ioctl
from pathlib import Path
from typing import Final, TypeVar

from bench.payloads import COLUMNS, ROWS

PATIENCE_SECONDS: Final = 20.0
_END_SECONDS: Final = 3.0
T = TypeVar("T")
# What would tell a program that it runs in one of the others, or in colours of the one who started
# the benchmark.
_LEFT_OUT: Final = ("TMUX", "TMUX_PANE", "STY", "COLUMNS", "LINES", "HOLDFAST_SESSION")


class Failed(Exception):
    """The benchmark cannot go on; the message tells a person why."""


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in _LEFT_OUT}
    return {**kept, "TERM": "xterm-256color", "LC_ALL": "C.UTF-8", **more}


def until(look: Callable[[], T], what: str, seconds: float = PATIENCE_SECONDS) -> T:
    """The first true thing that `look` returns."""
    deadline = time.monotonic() + seconds
    while not (found := look()):
        if time.monotonic() > deadline:
            raise Failed(f"waited {seconds:g} s in vain for {what}")
        time.sleep(0.005)
    return found


def size_of(master: int) -> None:
    ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))


class Pen:
    """Processes, descriptors and a folder that do not outlive it."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self.folder = Path(tempfile.mkdtemp(prefix="holdfast-bench-", dir=_place()))
        self._stack.callback(shutil.rmtree, self.folder, ignore_errors=True)

    def __enter__(self) -> Pen:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def later(self, act: Callable[..., object], *arguments: object) -> None:
        """Done when the pen is left, last come first."""
        self._stack.callback(act, *arguments)

    def start(
        self,
        command: Sequence[str | Path],
        *,
        keep: Sequence[int] = (),
        env: Mapping[str, str] | None = None,
        read: bool = False,
        log: Path | None = None,
        abrupt: bool = False,
    ) -> subprocess.Popen[bytes]:
        """In a session of its own, so that Ctrl-C reaches the benchmark alone, which then ends it;
        `abrupt` if it is not to take its time over that."""
        with (log or Path(os.devnull)).open("ab") as errors:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if read else errors,
                stderr=sys.stderr if read else errors,
                pass_fds=keep,
                env=env if env is not None else environment(),
                start_new_session=True,
            )
        self.later(_end, process, abrupt)
        return process

    def on_terminal(self, command: Sequence[str], env: Mapping[str, str] | None = None) -> Seat:
        """On a PTY of its own, which is its controlling terminal."""
        seat = Seat(command, env if env is not None else environment())
        self.later(seat.leave)
        return seat


class Seat:
    """A program and the master of the PTY it runs on."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str]) -> None:
        self.master, slave = pty.openpty()
        size_of(self.master)
        name = os.ttyname(slave)
        program = shutil.which(command[0])
        if program is None:
            raise Failed(f"there is no program {command[0]}")
        try:
            # Opened by the leader of a new session, the terminal becomes its controlling one. Not
            # a fork of this process: copying its page tables would count in what is measured.
            self.pid: int | None = os.posix_spawn(
                program,
                [*command],
                env,
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, name, os.O_RDWR, 0),
                    (os.POSIX_SPAWN_DUP2, 0, 1),
                    (os.POSIX_SPAWN_DUP2, 0, 2),
                ],
                setsid=True,
                setsigdef=[signal.SIGPIPE],
            )
        finally:
            os.close(slave)

    def leave(self) -> None:
        """Ends the program and closes the terminal."""
        if self.pid is None:
            return
        pid, self.pid = self.pid, None
        os.close(self.master)  # first: a program may hang in a write that nobody reads
        end_pid(pid)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)


def _place() -> str | None:
    """Where sessions live by default, so that the ring lies on the same kind of file system."""
    return os.environ.get("XDG_RUNTIME_DIR") or None


def _end(process: subprocess.Popen[bytes], abrupt: bool) -> None:
    try:
        process.send_signal(signal.SIGKILL if abrupt else signal.SIGTERM)
        process.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()


def end_pid(pid: int) -> None:
    """Asks, waits a little, insists. For a process that may not be our child."""
    for number, seconds in ((signal.SIGTERM, _END_SECONDS), (signal.SIGKILL, _END_SECONDS)):
        deadline = time.monotonic() + seconds
        try:
            os.kill(pid, number)
            while time.monotonic() < deadline and _alive(pid):
                time.sleep(0.002)
        except ProcessLookupError:
            return
        if not _alive(pid):
            return


def _alive(pid: int) -> bool:
    """Running; a zombie that waits to be collected is not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"
