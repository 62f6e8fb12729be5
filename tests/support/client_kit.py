"""For the client's tests: a state folder of their own with real sessions, a terminal to attach in,
and a sidecar that says only what it is told to.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from holdfast.folders import sidecar_pid
from holdfast.paths import SessionFolder, session_names
from holdfast_wire.frames import Control, Decoder, Error, Frame, encode
from holdfast_wire.ids import session_name

ROOT = Path(__file__).parents[2]
# A limit on a wrong answer; a right one comes in milliseconds.
PATIENCE = 40.0


def build_hold(folder: Path) -> Path:
    """The real hold; HOLD_BIN names one that is built already."""
    if given := os.environ.get("HOLD_BIN"):
        return Path(given)
    subprocess.run(["make", "-s", "-C", str(ROOT / "init"), f"OUT={folder}", "all"], check=True)
    return folder / "hold"


def eventually(probe: Callable[[], object], what: str, patience: float = PATIENCE) -> Any:
    give_up = time.monotonic() + patience
    while True:
        if found := probe():
            return found
        if time.monotonic() > give_up:
            raise AssertionError(f"never came: {what}")
        time.sleep(0.01)


def alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def stop(pid: int) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
        deadline = time.monotonic() + 3
        while alive(pid) and time.monotonic() < deadline:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
            time.sleep(0.01)


class Home:
    """A STATE folder and the command line that uses it. `close` leaves nothing running."""

    def __init__(self, hold: Path) -> None:
        # Short: Unix socket paths are.
        self.state = Path(tempfile.mkdtemp(prefix="hf-", dir="/tmp"))
        kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        self.env = kept | {
            "HOLDFAST_DIR": str(self.state),
            "HOLDFAST_HOLD": str(hold),
            "HOME": str(self.state),
            "SHELL": "/bin/bash",
            "TERM": "xterm-256color",
            "PS1": "ready> ",
            "HISTFILE": "/dev/null",
        }

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-P", "-m", "holdfast", *arguments]

    def run(
        self, *arguments: str, stdin: bytes = b"", **env: str
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            self.command(*arguments),
            env=self.env | env,
            input=stdin,
            capture_output=True,
            timeout=60,
            check=False,
        )
        out, err = done.stdout.decode(), done.stderr.decode()
        assert "Traceback" not in err, err
        return subprocess.CompletedProcess(done.args, done.returncode, out, err)

    def ok(self, *arguments: str, stdin: bytes = b"", **env: str) -> str:
        done = self.run(*arguments, stdin=stdin, **env)
        assert done.returncode == 0, (done.returncode, done.stdout, done.stderr)
        return done.stdout

    def json(self, *arguments: str) -> Any:
        return json.loads(self.ok(*arguments, "-o", "json"))

    def start(self, name: str, *command: str) -> SessionFolder:
        """A session that stands at its first prompt, if it is the default shell."""
        self.ok("run", "-d", "--name", name, "--", *(command or ("bash", "--norc", "-i")))
        if not command:
            self.ok("wait", name, "--for", "prompt", "--timeout", "20")
        return self.folder(name)

    def folder(self, name: str) -> SessionFolder:
        return SessionFolder(self.state, session_name(name))

    def pid(self, name: str) -> int:
        return int(next(s for s in self.json("ls")["sessions"] if s["name"] == name)["pid"])

    def kill_sidecar(self, name: str) -> int:
        pid = sidecar_pid(self.folder(name))
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: not alive(pid), "the sidecar's death")
        return pid

    def close(self) -> None:
        # The sessions first: while one lives, a client still attached brings its gateway back.
        folders = [self.folder(name) for name in session_names(self.state)]
        for pid in [_hold_pid(folder) for folder in folders]:
            if pid is not None:
                stop(pid)
        gateway = self.state / "gateway.json"
        if gateway.exists():
            stop(int(json.loads(gateway.read_text())["pid"]))
        for pid in [sidecar_pid(folder) for folder in folders]:
            if pid is not None:
                stop(pid)
        shutil.rmtree(self.state, ignore_errors=True)


def _hold_pid(folder: SessionFolder) -> int | None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
        try:
            probe.connect(str(folder.hold_socket))
            credentials = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        except OSError:
            return None
    pid = int(struct.unpack("iII", credentials)[0])
    return pid if pid > 1 else None


# Takes the terminal as its own, then becomes the command: SIGWINCH and SIGHUP arrive as they would.
# A test run in the background has SIGINT ignored, which would be inherited.
_LAUNCH = """
import fcntl, os, signal, sys, termios
for number in (signal.SIGINT, signal.SIGQUIT):
    signal.signal(number, signal.SIG_DFL)
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""


class Screen:
    """A terminal with a program in it: type, expect, hang up."""

    def __init__(
        self, command: list[str], env: dict[str, str], size: tuple[int, int] = (90, 25)
    ) -> None:
        self.master, self._slave = pty.openpty()
        self.resize(*size)
        self.before = termios.tcgetattr(self._slave)
        self.seen = b""
        self._searched = 0
        self.process = subprocess.Popen(
            [sys.executable, "-S", "-c", _LAUNCH, *command],
            stdin=self._slave,
            stdout=self._slave,
            stderr=self._slave,
            env=env,
            start_new_session=True,
        )

    def settings(self) -> list[Any]:
        return termios.tcgetattr(self._slave)

    def is_raw(self) -> bool:
        return not self.settings()[3] & termios.ICANON

    def resize(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, data: bytes) -> None:
        os.write(self.master, data)

    def pump(self, seconds: float) -> None:
        if select.select([self.master], [], [], seconds)[0]:
            with contextlib.suppress(OSError):
                self.seen += os.read(self.master, 1 << 16)

    def expect(self, pattern: bytes, patience: float = PATIENCE) -> re.Match[bytes]:
        """The first match after the last one."""
        give_up = time.monotonic() + patience
        while True:
            found = re.compile(pattern).search(self.seen, self._searched)
            if found is not None:
                self._searched = found.end()
                return found
            if time.monotonic() > give_up:
                raise AssertionError(f"never seen: {pattern!r} in {self.seen[-3000:]!r}")
            self.pump(0.05)

    def wait(self, patience: float = PATIENCE) -> int:
        """Its exit code; what it still prints is read meanwhile, as a terminal would."""
        give_up = time.monotonic() + patience
        while (code := self.process.poll()) is None:
            assert time.monotonic() < give_up, f"does not end: {self.seen[-3000:]!r}"
            self.pump(0.02)
        while select.select([self.master], [], [], 0)[0]:
            size = len(self.seen)
            self.pump(0)
            if len(self.seen) == size:
                break
        return code

    def hang_up(self) -> None:
        os.close(self._slave)
        os.close(self.master)
        self._slave = self.master = -1

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        if self.master >= 0:
            self.hang_up()


class FakeSidecar:
    """Answers requests from a table: a result, an error, or silence for what is not in it."""

    def __init__(self, path: Path, answers: dict[str, Any]) -> None:
        self.asked: list[dict[str, Any]] = []
        self._answers = answers
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        self._listener.listen(8)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            with peer, contextlib.suppress(OSError):
                self._talk(peer)

    def _talk(self, peer: socket.socket) -> None:
        decoder = Decoder()
        while data := peer.recv(1 << 16):
            for frame in decoder.feed(data):
                for answer in self._answer(frame):
                    peer.sendall(encode(answer))

    def _answer(self, frame: Frame) -> Iterator[Frame]:
        if not isinstance(frame, Control):
            return
        self.asked.append(frame.body)
        answer = self._answers.get(frame.body["kind"])
        if isinstance(answer, Exception):
            assert hasattr(answer, "to_json")
            yield Error(frame.body["id"], answer.to_json())
        elif answer is not None:
            yield Control({"kind": "news nobody knows"})
            yield Control({"kind": "answer", "id": frame.body["id"], "result": answer})

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(timeout=PATIENCE)
