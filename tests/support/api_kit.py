"""A small API server with Leases, over real TLS on this machine, that fails as it is told to; and
the processes of a pod that use it."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import signal
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

from gateway_kit import listener_pid, until
from holdfast_sidecar.nonce import FIFO, Nonce
from sidecar_kit import Client

LEASE_PATH = "/apis/coordination.k8s.io/v1/namespaces/ns/leases/it"
PREFIX = "holdfast.dev/"
OWNER = "session-uid"


def lease(epoch: int = 1, holder: str = "", **notes: str) -> dict[str, Any]:
    """As the operator makes it, but for its owner; see `owned`."""
    annotations = {PREFIX + name.replace("_", "-"): text for name, text in notes.items()}
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {
            "name": "it",
            "namespace": "ns",
            "annotations": {PREFIX + "epoch": str(epoch), **annotations},
            "managedFields": [{"manager": "somebody"}],
        },
        "spec": {"holderIdentity": holder, "leaseDurationSeconds": 20},
    }


def owned(body: dict[str, Any], uid: str = OWNER) -> dict[str, Any]:
    body["metadata"]["ownerReferences"] = [{"kind": "Session", "name": "it", "uid": uid}]
    return body


def status(code: int, reason: str, message: str = "") -> dict[str, Any]:
    return {"kind": "Status", "code": code, "reason": reason, "message": message or reason}


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    token: str
    body: dict[str, Any]
    at: float = field(default_factory=time.monotonic)


@dataclass(frozen=True)
class Fault:
    """What goes wrong with one request. Without any of these it is answered as it should be."""

    before: Callable[[], object] = lambda: None  # somebody else is quicker
    reset: bool = False  # the connection, before anything was done
    hang: threading.Event | None = None  # nothing is done until it is set
    code: int = 0  # refused with this status
    reason: str = ""
    lost: bool = False  # done, but the answer never comes
    raw: bytes | None = None  # answered with this, not done
    after: bytes = b""  # more than was asked for follows the answer
    chunked: bool = False
    close: str = ""  # after the answer: "said" in its head, or "silent"


class Authority:
    """A certificate authority of its own, and a server's certificate by it."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.certificate = folder / "ca.crt"
        key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
        ca_key, own, own_key = folder / "ca.key", folder / "tls.crt", folder / "tls.key"
        _openssl("req", "-x509", *key, "-keyout", ca_key, "-out", self.certificate,
                 "-subj", f"/CN={folder.name}", "-days", "2")  # fmt: skip
        _openssl("req", "-x509", *key, "-keyout", own_key, "-out", own, "-CA", self.certificate,
                 "-CAkey", ca_key, "-subj", "/CN=api", "-days", "2",
                 "-addext", "subjectAltName=IP:127.0.0.1",
                 "-addext", "basicConstraints=critical,CA:FALSE")  # fmt: skip
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(own, own_key)


def _openssl(*words: str | Path) -> None:
    subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True)


class FakeApi:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.authority = Authority(folder / "first")
        self.credentials = folder / "credentials"
        self.credentials.mkdir()
        self.trust(self.authority)
        self.set_token("first-token")
        self.leases: dict[str, dict[str, Any]] = {}
        self.requests: list[Request] = []
        self.connections = 0
        self.faults: deque[Fault] = deque()
        self.always = Fault()
        self.choose: Callable[[Request], Fault | None] = lambda _request: None
        self._version = 100
        self.lock = threading.RLock()
        self._open: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    # -- what tests do with it --------------------------------------------------------------------

    def trust(self, authority: Authority) -> None:
        self._replace("ca.crt", authority.certificate.read_text())

    def set_token(self, token: str) -> None:
        self._replace("token", token + "\n")

    def _replace(self, name: str, text: str) -> None:
        new = self.credentials / "new"
        new.write_text(text)
        new.rename(self.credentials / name)  # as kubelet does it: never half of it

    def put(self, body: dict[str, Any], path: str = LEASE_PATH) -> None:
        """As somebody else than the one under test."""
        with self.lock:
            self._version += 1
            body = copy.deepcopy(body)
            body["metadata"]["resourceVersion"] = str(self._version)
            self.leases[path] = body

    def get(self, path: str = LEASE_PATH) -> dict[str, Any]:
        with self.lock:
            return copy.deepcopy(self.leases.get(path, {}))

    def notes(self) -> dict[str, str]:
        found = self.get().get("metadata", {}).get("annotations", {})
        return {name.removeprefix(PREFIX): text for name, text in found.items()}

    def annotate(self, **notes: str) -> None:
        with self.lock:
            body = self.get()
            new = {PREFIX + name.replace("_", "-"): text for name, text in notes.items()}
            body["metadata"]["annotations"] |= new
            self.put(body)

    def delete(self) -> None:
        with self.lock:
            del self.leases[LEASE_PATH]

    def methods(self) -> list[str]:
        return [request.method for request in self.requests]

    # -- serving ----------------------------------------------------------------------------------

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            with self.lock:
                self._open.add(sock)
            thread = threading.Thread(target=self._connection, args=(sock,))
            self._threads.append(thread)
            thread.start()

    def _connection(self, sock: socket.socket) -> None:
        secure = sock
        try:
            secure = self.authority.context.wrap_socket(sock, server_side=True)
            with self.lock:
                self._open.discard(sock)
                self._open.add(secure)
                self.connections += 1
            with secure.makefile("rb") as stream:
                while self._serve(secure, stream):
                    pass
        except (OSError, ValueError):
            pass
        finally:
            with self.lock:
                self._open -= {sock, secure}
            secure.close()

    def _serve(self, sock: socket.socket, stream: Any) -> bool:
        request = _read(stream)
        if request is None:
            return False
        with self.lock:
            self.requests.append(request)
            fault = self.faults.popleft() if self.faults else self.always
            fault = self.choose(request) or fault
        fault.before()
        if fault.hang is not None:
            fault.hang.wait(30)
        if fault.reset:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            return False
        if fault.raw is not None:
            sock.sendall(fault.raw)
            return fault.close == ""
        with self.lock:
            if fault.code:
                code, body = fault.code, status(fault.code, fault.reason)
            else:
                code, body = self._act(request)
        if fault.lost:
            return False
        sock.sendall(_encode(code, body, fault) + fault.after)
        return fault.close == ""

    def _act(self, request: Request) -> tuple[int, dict[str, Any]]:
        old = self.leases.get(request.path)
        if old is None:
            return 404, status(404, "NotFound")
        if request.method == "PUT":
            given = request.body["metadata"].get("resourceVersion")
            if given != old["metadata"]["resourceVersion"]:
                return 409, status(409, "Conflict", "the object has been modified")
            self.put(request.body, request.path)
        return 200, self.leases[request.path]

    def close(self) -> None:
        # A listener that is only closed would go on waiting in its thread.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.drop_connections()
        for thread in self._threads:
            thread.join(10)

    def drop_connections(self) -> None:
        with self.lock:
            for sock in self._open:
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)

    def drained(self) -> None:
        """Returns when every connection there was has ended here."""
        for thread in self._threads[1:]:
            thread.join(10)

    def environment(self) -> dict[str, str]:
        return {
            "KUBERNETES_SERVICE_HOST": "127.0.0.1",
            "KUBERNETES_SERVICE_PORT": str(self.port),
            "HOLDFAST_CREDENTIALS": str(self.credentials),
        }

    def __enter__(self) -> FakeApi:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.close()


def _read(stream: Any) -> Request | None:
    line = stream.readline().decode()
    if not line:
        return None
    method, path, _ = line.split()
    fields = {}
    while line := stream.readline().decode().strip():
        name, _, value = line.partition(":")
        fields[name.lower()] = value.strip()
    content = stream.read(int(fields["content-length"]))
    token = fields["authorization"].removeprefix("Bearer ")
    return Request(method, path, token, json.loads(content) if content else {})


def _encode(code: int, body: dict[str, Any], fault: Fault) -> bytes:
    content = json.dumps(body).encode()
    head = f"HTTP/1.1 {code} Whatever\r\nContent-Type: application/json\r\n"
    if fault.close == "said":
        head += "Connection: close\r\n"
    if not fault.chunked:
        return f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content
    half = len(content) // 2
    parts = [content[:half], content[half:], b""]
    chunks = b"".join(f"{len(part):x};x=y\r\n".encode() + part + b"\r\n" for part in parts)
    return f"{head}Transfer-Encoding: chunked\r\n\r\n".encode() + chunks


def hold_binary() -> str | None:
    """As the Makefile built it."""
    built = Path(__file__).parents[2] / "client/holdfast/bin/hold"
    found = os.environ.get("HOLD_BIN") or (str(built) if built.exists() else None)
    return str(Path(found).resolve()) if found else None


class Pod:
    """hold and a sidecar as processes, in a folder of their own, and their API."""

    def __init__(self, folder: Path, duration: int, before: Pod | None = None) -> None:
        """`before` is the pod whose session is to go on in this one: they have one API."""
        self.folder, self.duration, self.before = folder, duration, before
        self.uid, self.epoch = ("target-uid", 4) if before else ("pod-uid", 3)
        self.session = OWNER
        self.state, self.run = folder / "state", folder / "run"
        self.state.mkdir()
        self.run.mkdir()
        self.socket = folder / "hold.sock"
        self.api: FakeApi = before.api if before else FakeApi(folder)
        if before is None:
            self.api.put(owned(lease(3)))
        self.hold: subprocess.Popen[bytes] | None = None
        self.sidecar: subprocess.Popen[bytes] | None = None
        self.log = folder / "log"
        self.for_agents = False  # a user who is not root is to be served at agent.sock
        self._pids: list[int] = []

    def environment(self, **more: str) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            **self.api.environment(),
            "HOLDFAST_SESSION": "it",
            "HOLDFAST_NAMESPACE": "ns",
            "HOLDFAST_SESSION_UID": self.session,
            "HOLDFAST_EPOCH": str(self.epoch),
            "HOLDFAST_RESTORE": "it-3" if self.before else "",
            "HOLDFAST_LEASE_SECONDS": str(self.duration),
            "HOLDFAST_COLUMNS": "80",
            "HOLDFAST_ROWS": "24",
            "HOLDFAST_SCROLLBACK": "1000",
            "HOLDFAST_COMMAND": '["bash"]',
            "HOLDFAST_POD_UID": self.uid,
            "HOLDFAST_STATE": str(self.state),
            "HOLDFAST_HOLD": str(self.socket),
            "HOLDFAST_RUN": str(self.run),
            **more,
        }

    def start_hold(self, *command: str, options: tuple[str, ...] = ()) -> None:
        """It has the sidecar's nonce, as if one had been here before."""
        self.begin_hold(*command, options=options)
        until(Nonce(self.state, self.run).give, "hold takes its nonce")
        until(lambda: listener_pid(self.socket, socket.SOCK_SEQPACKET), "hold's socket")
        self._pids.append(self.hold_pid)

    def begin_hold(self, *command: str, options: tuple[str, ...] = ()) -> None:
        binary = hold_binary()
        if binary is None:
            pytest.skip("hold is not built")
        env = {
            "PATH": os.environ["PATH"],
            "TERM": "xterm",
            "COUNTER": str(self.folder / "counter"),
            "HOLDFAST_EPOCH_FILE": str(self.run / "epoch"),
        }
        # Without root hold makes no namespace, and is talked to by its own user alone.
        shared = ("--shared",) if os.geteuid() == 0 else ()
        os.mkfifo(self.run / FIFO, 0o644)
        options = ("--nonce-from", str(self.run / FIFO), *shared, *options)
        words = [binary, "--socket", str(self.socket), "--wait", *options, "--", *command]
        self.hold = subprocess.Popen(words, env=env)

    @property
    def hold_pid(self) -> int:
        """Of the guard itself, which for root is not the process in front."""
        pid = listener_pid(self.socket, socket.SOCK_SEQPACKET)
        assert pid
        return pid

    def start_sidecar(self, **more: str) -> subprocess.Popen[bytes]:
        # In a user namespace of its own it takes whoever runs the tests for root.
        mapped = ["unshare", "--user", "--map-root-user"] if self.for_agents else []
        with self.log.open("ab") as log:
            self.sidecar = subprocess.Popen(
                [*mapped, sys.executable, "-m", "holdfast_sidecar.pod"],
                env=self.environment(**more),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        return self.sidecar

    def start(self, *command: str, options: tuple[str, ...] = (), **more: str) -> None:
        self.start_hold(*command, options=options)
        self.start_sidecar(**more)
        self.note("started")

    def note(self, name: str, seconds: float = 40) -> str:
        return until(lambda: self.api.notes().get(name), f"the note {name!r}", seconds)

    def exit_note(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.note("exit"))
        assert self.api.notes()["released"] == "3"
        assert self.api.get()["spec"]["holderIdentity"] == ""
        return found

    def renewed_after(self, requests: int) -> None:
        until(lambda: "PUT" in self.api.methods()[requests:], "a renewal", 25)

    def said(self, text: str) -> None:
        until(lambda: text in self.log.read_text(), f"{text!r} in the sidecar's log")

    def client(self) -> Client:
        path = self.state / "sidecar.sock"
        until(path.exists, "the sidecar's socket")
        return Client(path)

    def agent(self, what: str, patient: bool = True, **fields: Any) -> dict[str, Any]:
        """What the node's agent is told at agent.sock. `patient`: asks again, as it does, while
        the sidecar is coming up."""
        give_up = time.monotonic() + 15
        while True:
            found = self._tell(what, **fields)
            coming_up = found.get("code") == "not_serving"
            if not (patient and coming_up) or time.monotonic() > give_up:
                return found
            time.sleep(0.05)

    def _tell(self, what: str, **fields: Any) -> dict[str, Any]:
        path = self.state / "agent.sock"
        until(lambda: listener_pid(path, socket.SOCK_STREAM), "agent.sock")
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(40)
            sock.connect(str(path))
            own = {"session": self.session, "namespace": "ns", "epoch": self.epoch}
            sock.sendall(json.dumps({"do": what, **own, **fields}).encode() + b"\n")
            with sock.makefile("rb") as stream:
                line = stream.readline()
        if not line:
            raise ConnectionResetError("the sidecar closed the connection")
        found: dict[str, Any] = json.loads(line)
        return found

    def ask_hold(self, request: str) -> dict[str, Any]:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
            sock.settimeout(10)
            sock.connect(str(self.socket))
            sock.send(request.encode())
            while True:
                found: dict[str, Any] = json.loads(sock.recv(65536))
                if "ok" in found:
                    return found

    def status(self) -> dict[str, Any]:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
            sock.settimeout(10)
            sock.connect(str(self.socket))
            sock.send(b"status")
            while True:
                found: dict[str, Any] = json.loads(sock.recv(65536))
                if "event" not in found:  # one may come first
                    return found

    def count(self) -> int:
        with contextlib.suppress(FileNotFoundError, IndexError):
            return int((self.folder / "counter").read_text().split()[-1])
        return 0

    def counting(self) -> None:
        before = self.count()
        until(lambda: self.count() > before + 1, "the command to go on")

    def hold_goes(self) -> int:
        assert self.hold is not None
        return self.hold.wait(15)

    def sidecar_goes(self) -> int:
        assert self.sidecar is not None
        return self.sidecar.wait(15)

    def close(self) -> None:
        for process in (self.sidecar, self.hold):
            if process is not None and process.poll() is None:
                process.kill()
                process.wait()
        for pid in self._pids:
            with contextlib.suppress(ProcessLookupError, FileNotFoundError):
                if "hold" in Path(f"/proc/{pid}/comm").read_text():
                    os.kill(pid, signal.SIGKILL)
        if self.before is None:
            self.api.close()
