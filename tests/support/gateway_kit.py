"""A state folder with real sessions and a real gateway in it, for tests."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeVar

ROOT: Final = Path(__file__).resolve().parents[2]
ARTIFACTS: Final = ROOT / "build" / "artifacts"
PATIENCE_SECONDS: Final = 40.0
OWN: Final = "the gateway's own token"
T = TypeVar("T")


@cache
def hold_binary() -> Path:
    """The session's PID 1, where the Makefile builds it."""
    if built := os.environ.get("HOLD_BIN"):
        return Path(built)
    subprocess.run(["make", "-s", "-C", str(ROOT / "init")], check=True, timeout=120)
    return ROOT / "build" / "hold"


def until(look: Callable[[], T | None], what: str, seconds: float = PATIENCE_SECONDS) -> T:
    """The first true thing `look` returns: other processes have no clock of ours to turn."""
    deadline = time.monotonic() + seconds
    while True:
        found = look()
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {seconds:g} s in vain for {what}")
        time.sleep(0.02)


def remove(folder: Path) -> None:
    """What was killed a moment ago may still be writing there."""

    def gone() -> bool:
        shutil.rmtree(folder, ignore_errors=True)
        return not folder.exists()

    until(gone, f"{folder} to be removed")


def listener_pid(path: Path, kind: socket.SocketKind) -> int | None:
    """The process that listens on a Unix socket, by the kernel's word."""
    with socket.socket(socket.AF_UNIX, kind) as probe:
        probe.settimeout(2)
        try:
            probe.connect(str(path))
        except OSError:
            return None
        cred = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    pid: int = struct.unpack("3i", cred)[0]
    return pid


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        return str(self.json["error"]["code"])


@dataclass
class Place:
    """A state folder. What was started in it is ended with it."""

    state: Path
    gateway: subprocess.Popen[bytes] | None = None
    holds: list[int] = field(default_factory=list)
    sidecars: set[int] = field(default_factory=set)

    # Sessions

    def folder(self, name: str) -> Path:
        return self.state / "sessions" / name

    def session(
        self, name: str, *command: str, columns: int = 80, rows: int = 24, hold: bool = True
    ) -> Path:
        folder = self.folder(name)
        folder.mkdir(mode=0o700, parents=True)
        argv = list(command) or ["bash", "--norc"]
        body = {
            "name": name,
            "id": str(uuid.uuid4()),
            "command": argv,
            "cwd": "/",
            "columns": columns,
            "rows": rows,
            "scrollback": 1000,
            "created": time.time(),
        }
        (folder / "session.json").write_text(json.dumps(body))
        if hold:
            self._hold(folder, argv, columns, rows)
        return folder

    def _hold(self, folder: Path, argv: list[str], columns: int, rows: int) -> None:
        sock = folder / "hold.sock"
        size = f"{columns}x{rows}"
        environment = {**os.environ, "PS1": "$ ", "TERM": "xterm-256color", "LC_ALL": "C.UTF-8"}
        subprocess.run(
            [
                hold_binary(),
                "--daemon",
                "--socket",
                sock,
                "--size",
                size,
                "--cwd",
                "/",
                "--",
                *argv,
            ],
            check=True,
            env=environment,
            timeout=10,
        )
        pid = until(lambda: listener_pid(sock, socket.SOCK_SEQPACKET), "hold to listen")
        self.holds.append(pid)

    def sidecar(self, name: str) -> int:
        """The pid of a session's sidecar, once it listens."""
        path = self.folder(name) / "sidecar.sock"
        try:
            pid = until(lambda: listener_pid(path, socket.SOCK_STREAM), f"{name}'s sidecar")
        except AssertionError as error:
            said = self.folder(name) / "sidecar.log"
            log = said.read_text() if said.exists() else "no log"
            raise AssertionError(f"{error}\n{log[-2000:]}") from None
        self.sidecars.add(pid)
        return pid

    def end(self, name: str) -> None:
        """Another session may have its name then, and nothing else of it."""
        folder = self.folder(name)
        sockets = {"hold.sock": socket.SOCK_SEQPACKET, "sidecar.sock": socket.SOCK_STREAM}
        for path, kind in sockets.items():
            pid = listener_pid(folder / path, kind)
            if pid is not None:
                os.kill(pid, signal.SIGKILL)
        remove(folder)
        self.post("/api/v1/rescan")

    # The gateway

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "holdfast_gateway", "--dir", str(self.state), *arguments]

    def start(self, *arguments: str) -> None:
        log = (self.state / "gateway.log").open("ab")
        with log:
            self.gateway = subprocess.Popen(self.command(*arguments), stderr=log, stdout=log)
        until(self._answers, "the gateway to listen")

    def _answers(self) -> bool:
        assert self.gateway is not None
        assert self.gateway.poll() is None, self.log()
        try:
            told = self.told()
            return (
                told["pid"] == self.gateway.pid and self.get("/healthz", token=None).status == 200
            )
        except (OSError, ValueError):
            return False

    def stop(self, how: signal.Signals = signal.SIGTERM) -> int:
        assert self.gateway is not None
        self.gateway.send_signal(how)
        code = self.gateway.wait(10)
        self.gateway = None
        return code

    def log(self) -> str:
        return (self.state / "gateway.log").read_text()

    def told(self) -> dict[str, Any]:
        body: dict[str, Any] = json.loads((self.state / "gateway.json").read_text())
        return body

    @property
    def token(self) -> str:
        return str(self.told()["token"])

    @property
    def port(self) -> int:
        return int(self.told()["port"])

    @property
    def url(self) -> str:
        return str(self.told()["url"])

    def link(self, session: str = "", token: str | None = None) -> str:
        """The page's address as a person gets it."""
        name = f"&session={session}" if session else ""
        return f"{self.url}#token={self.token if token is None else token}{name}"

    # Requests

    def get(self, path: str, *, token: str | None = OWN, **headers: str) -> Answer:
        return self._request("GET", path, token, None, headers)

    def post(
        self, path: str, body: Any = None, *, token: str | None = OWN, **headers: str
    ) -> Answer:
        raw = body if isinstance(body, bytes) else json.dumps(body or {}).encode()
        return self._request("POST", path, token, raw, headers)

    def _request(
        self, method: str, path: str, token: str | None, body: bytes | None, headers: dict[str, str]
    ) -> Answer:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if token is not None:
            sent["Authorization"] = f"Bearer {self.token if token == OWN else token}"
        request = urllib.request.Request(  # noqa: S310 - always our own loopback address
            self.url.rstrip("/") + path, data=body, method=method, headers=sent
        )
        # No proxy from the environment comes between a test and its own machine.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=30) as response:
                return Answer(response.status, dict(response.headers), response.read())
        except urllib.error.HTTPError as error:
            with error:
                return Answer(error.code, dict(error.headers), error.read())

    def close(self) -> None:
        if self.gateway is not None:
            self.stop()
        for name in [f.name for f in self.state.glob("sessions/*")]:
            pid = listener_pid(self.folder(name) / "sidecar.sock", socket.SOCK_STREAM)
            if pid is not None:
                self.sidecars.add(pid)
        for pid in [*self.holds, *self.sidecars]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.state, ignore_errors=True)


@contextlib.contextmanager
def place() -> Iterator[Place]:
    # Not pytest's own folder: a Unix socket's path may have 107 bytes only.
    here = Place(Path(tempfile.mkdtemp(prefix="holdfast-")))
    try:
        yield here
    finally:
        here.close()
