"""What is measured: holdfast, its peers, and the bare PTY as the measure of them all."""

from __future__ import annotations

import contextlib
import json
import select
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

from bench.ends import End, FrameEnd, PtyEnd
from bench.payloads import COLUMNS, ROWS
from bench.processes import Failed, Pen, Seat, end_pid, environment, until
from holdfast_wire.frames import Control, encode

ROOT: Final = Path(__file__).resolve().parents[1]
HOLD: Final = ROOT / "build" / "hold"
CLI: Final = Path(sys.executable).parent / "holdfast"
SCROLLBACK: Final = 10_000
SESSION: Final = "bench"
VIEWER_SECONDS: Final = 60.0


class Target(Protocol):
    """A program in a terminal, and ways to look at it."""

    name: str

    def __init__(self, pen: Pen) -> None: ...

    def start(self, command: Sequence[str]) -> None:
        """Runs the command in a terminal of the benchmark's size."""

    def end(self) -> End:
        """A client in this process."""

    def viewer(self, marker: str) -> Viewer:
        """A client that is drained by a process of its own."""

    def type(self, data: bytes) -> None:
        """Types into the terminal, once there is a viewer."""


class Viewer:
    """The process that drains one client; see viewer.py."""

    def __init__(self, pen: Pen, marker: str, kind: str, where: str, keep: Sequence[int]) -> None:
        command = [sys.executable, "-m", "bench.viewer", marker, kind, where]
        env = environment(PYTHONPATH=str(ROOT))
        self._process = pen.start(command, keep=keep, env=env, read=True)

    def attached(self) -> None:
        if self._line() != "attached":
            raise Failed("a viewer could not attach")

    def seen(self) -> dict[str, int]:
        line = self._line()
        if not line:
            raise Failed("a viewer ended before it saw the end of the output")
        result: dict[str, int] = json.loads(line)
        return result

    def _line(self) -> str:
        output = self._process.stdout
        assert output is not None
        if not select.select([output], [], [], VIEWER_SECONDS)[0]:
            raise Failed(f"a viewer has seen nothing for {VIEWER_SECONDS:g} s")
        return output.readline().decode().strip()


class Raw:
    """A PTY, and a loop that reads it."""

    name = "raw"

    def __init__(self, pen: Pen) -> None:
        self._pen = pen

    def start(self, command: Sequence[str]) -> None:
        self._seat = self._pen.on_terminal(command)

    def end(self) -> End:
        return PtyEnd(self._seat.master)

    def viewer(self, marker: str) -> Viewer:
        master = self._seat.master
        return Viewer(self._pen, marker, "pty", str(master), (master,))

    def type(self, data: bytes) -> None:
        PtyEnd(self._seat.master).send(data)


class Programs:
    """Clients that are programs, each on a PTY of its own."""

    def __init__(self, pen: Pen, command: Sequence[str], env: Mapping[str, str]) -> None:
        self._pen, self.command, self.env = pen, command, env
        self._seats: list[Seat] = []

    def _seat(self) -> Seat:
        seat = self._pen.on_terminal(self.command, self.env)
        self._seats.append(seat)
        return seat

    def end(self) -> End:
        return PtyEnd(self._seat().master)

    def viewer(self, marker: str) -> Viewer:
        master = self._seat().master
        return Viewer(self._pen, marker, "pty", str(master), (master,))

    def type(self, data: bytes) -> None:
        PtyEnd(self._seats[0].master).send(data)


class _Peer:
    """A program that others are compared with by way of its own clients."""

    clients: Programs

    def __init__(self, pen: Pen) -> None:
        self._pen = pen

    def end(self) -> End:
        return self.clients.end()

    def viewer(self, marker: str) -> Viewer:
        return self.clients.viewer(marker)

    def type(self, data: bytes) -> None:
        self.clients.type(data)


class Tmux(_Peer):
    name = "tmux"
    # Without a status line the terminal has as many rows as the others' have.
    _SETTINGS: Final = f"""
        set -g history-limit {SCROLLBACK}
        set -g status off
        set -g default-terminal tmux-256color
    """

    def start(self, command: Sequence[str]) -> None:
        settings = self._pen.folder / "tmux.conf"
        settings.write_text(self._SETTINGS)
        self._tmux = ["tmux", "-u", "-S", str(self._pen.folder / "tmux"), "-f", str(settings)]
        size = ["-x", str(COLUMNS), "-y", str(ROWS)]
        self._run("new-session", "-d", *size, "--", *command)
        self.pid = int(self._run("display-message", "-p", "#{pid}"))
        self._pen.later(end_pid, self.pid)
        self.clients = Programs(self._pen, [*self._tmux, "attach"], environment())

    def _run(self, *arguments: str) -> str:
        done = subprocess.run(
            [*self._tmux, *arguments],
            env=environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
        if done.returncode:
            raise Failed(f"tmux {arguments[0]}: {done.stderr.strip()}")
        return done.stdout.strip()


class Dtach(_Peer):
    name = "dtach"

    def start(self, command: Sequence[str]) -> None:
        path = self._pen.folder / "dtach"
        self._pen.start(["dtach", "-N", path, "-r", "none", *command])
        until(path.exists, "dtach to listen")
        # No detach key, no suspend key, nothing sent to make the program redraw.
        attach = ["dtach", "-a", str(path), "-E", "-z", "-r", "none"]
        self.clients = Programs(self._pen, attach, environment())


class Holdfast:
    """hold and a sidecar, as `holdfast run` starts them; viewers on the sidecar's own socket."""

    name = "holdfast"

    def __init__(self, pen: Pen) -> None:
        self._pen = pen
        self.state = pen.folder / "state"
        self._folder = self.state / "sessions" / SESSION
        self.socket = self._folder / "sidecar.sock"

    def start(self, command: Sequence[str]) -> None:
        self.state.mkdir(mode=0o700)
        self._folder.mkdir(mode=0o700, parents=True)
        self._folder.parent.chmod(0o700)
        self._describe(command)
        hold = self._folder / "hold.sock"
        size = f"{COLUMNS}x{ROWS}"
        # hold gives its command time to end well, and takes it along when it is killed.
        self._pen.start(
            [str(HOLD), "--socket", str(hold), "--size", size, "--cwd", "/", "--", *command],
            abrupt=True,
        )
        until(hold.exists, "hold to listen")
        sidecar = [sys.executable, "-P", "-m", "holdfast_sidecar", "--dir", str(self._folder)]
        log = self._folder / "sidecar.log"
        process = self._pen.start(sidecar, log=log, abrupt=True)
        self.pid = process.pid
        until(lambda: self.socket.exists() or process.poll() is not None, "the sidecar to listen")
        if process.poll() is not None:
            raise Failed(f"the sidecar ended; its log says:\n{log.read_text()}")

    def _describe(self, command: Sequence[str]) -> None:
        body = {
            "name": SESSION,
            "id": uuid.uuid4().hex,
            "command": list(command),
            "cwd": "/",
            "columns": COLUMNS,
            "rows": ROWS,
            "scrollback": SCROLLBACK,
            "created": time.time(),
        }
        (self._folder / "session.json").write_text(json.dumps(body))

    def end(self) -> End:
        return self.attach()

    def attach(self) -> FrameEnd:
        end = FrameEnd(self.socket)
        self._pen.later(end.close)
        return end

    def viewer(self, marker: str) -> Viewer:
        return Viewer(self._pen, marker, "sidecar", str(self.socket), ())

    def type(self, data: bytes) -> None:
        """By a request on a connection that is not attached, and so is not a viewer more."""
        body = {"kind": "send", "id": 1, "text": data.decode()}
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._pen.later(sock.close)
        sock.connect(str(self.socket))
        sock.sendall(encode(Control(body)))


class HoldfastCli(_Peer):
    """The same session, looked at with `holdfast attach`: what a person at a terminal has."""

    name = "cli"

    def start(self, command: Sequence[str]) -> None:
        holdfast = Holdfast(self._pen)
        holdfast.start(command)
        self.clients = cli_clients(self._pen, holdfast)


def cli_clients(pen: Pen, holdfast: Holdfast) -> Programs:
    pen.later(_end_gateway, holdfast.state)
    env = environment(HOLDFAST_DIR=str(holdfast.state))
    return Programs(pen, [str(CLI), "attach", SESSION], env)


def _end_gateway(state: Path) -> None:
    """Attaching may have started one for the state folder."""
    with contextlib.suppress(FileNotFoundError, ValueError, KeyError):
        end_pid(int(json.loads((state / "gateway.json").read_text())["pid"]))
