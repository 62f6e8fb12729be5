"""The cluster, through the `kubectl` program: whatever kubeconfig, context and way of logging in
work there work here. What kubectl complains of becomes one of our errors; `explain` is pure.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import threading
from typing import IO, Any, Final

from holdfast.api import Api, Object, actor_of_user, not_installed
from holdfast.arguments import Target
from holdfast.render import to_stderr
from holdfast_wire.errors import (
    AlreadyExists,
    BadRequest,
    CommandFailed,
    Forbidden,
    HoldfastError,
    Internal,
    NotFound,
    Unauthenticated,
    Unavailable,
    Unsupported,
)
from holdfast_wire.ids import Actor
from holdfast_wire.plain import plain

# With the group: others have kinds called Session too.
SESSIONS: Final = "sessions.holdfast.dev"
API_VERSION: Final = "holdfast.dev/v1alpha1"
SIDECAR: Final = "holdfast"
RELAY: Final = "holdfast-relay"
# A request the API server does not answer in this time is not worth a person's wait.
REQUEST_SECONDS: Final = 15
# kubectl may be asking the user to log in; then what it says must be seen.
_QUIET_SECONDS: Final = 2.0
_STOP_SECONDS: Final = 1.0
# kubectl's complaints are a few lines.
_STDERR_BYTES: Final = 1 << 16

_KLOG: Final = re.compile(r"[EWIF]\d{4} ")
_REASON: Final = re.compile(r"^Error from server(?: \((\w+)\))?: (.*)$")
# Of our kind: the same is said of whatever else a cluster lacks.
_NOT_INSTALLED: Final = re.compile(
    r'resource type "sessions|no matches for kind "Session"|Resource=sessions": the server could'
)
_EXIT: Final = re.compile(r"command terminated with exit code \d+")
_UNREACHABLE: Final = (
    "Unable to connect to the server",
    "The connection to the server",
    "connection refused",
    "i/o timeout",
    "no such host",
    "deadline exceeded",
    "TLS handshake timeout",
    "network is unreachable",
)
_CONFIGURATION: Final = (
    "context was not found",
    "no context exists",
    "does not exist",
    "error loading config",
    "invalid configuration",
    "no such file or directory",
)
_BY_REASON: Final[dict[str, type[HoldfastError]]] = {
    "NotFound": NotFound,
    "Forbidden": Forbidden,
    "Unauthorized": Unauthenticated,
    "AlreadyExists": AlreadyExists,
    "Invalid": BadRequest,
    "BadRequest": BadRequest,
}


def complaint(stderr: str) -> str:
    """The line that says what went wrong, without warnings and kubectl's own log."""
    lines = [
        plain(line)
        for line in stderr.splitlines()
        if line.strip() and not line.startswith("Warning:") and not _KLOG.match(line)
    ]
    telling = [line for line in lines if line.lower().startswith(("error", "unable", "the conn"))]
    return (telling or lines or [""])[-1].strip()


def explain(stderr: str, code: int) -> HoldfastError:
    """What kubectl complained of, as an error of ours."""
    said = complaint(stderr)
    if _NOT_INSTALLED.search(said):
        return not_installed()
    if "must be logged in" in said:
        return Unauthenticated(
            "the cluster does not know you", "log in again; then: kubectl auth whoami"
        )
    if found := _REASON.match(said):
        reason, message = found.groups()
        kind = _BY_REASON.get(reason or "", Unavailable)
        advice = "ask for the right, or choose another --namespace" if kind is Forbidden else ""
        return kind(message, advice)
    if any(mark in said for mark in _UNREACHABLE):
        return Unavailable(
            f"the cluster cannot be reached: {said}",
            "is it the one you mean? see: kubectl config current-context",
        )
    message = said.removeprefix("error: ")
    if any(mark in said for mark in _CONFIGURATION):
        return BadRequest(f"kubectl: {message}", "see: kubectl config get-contexts")
    return Unavailable(f"kubectl: {message or f'ended with code {code}'}")


def explain_exec(stderr: str, code: int, pod: str) -> HoldfastError:
    """Why the connection to a pod's sidecar broke. Pods come and go while a session stays, so all
    but what will never change is worth another try."""
    if f'"{RELAY}": executable file not found' in stderr or f"{RELAY}: no such file" in stderr:
        return Unsupported(
            f"the sidecar of pod {pod} has no {RELAY}", "its image is too old for this client"
        )
    own = [line for line in stderr.splitlines() if line.strip() and not _EXIT.match(line)]
    if _EXIT.search(stderr) and own:  # the relay ran, and said why it could not go on
        return Unavailable(f"pod {pod}: {plain(own[-1]).strip()}")
    said = complaint(stderr)
    error = explain(stderr, code)
    if isinstance(error, Forbidden | Unauthenticated):
        return error
    if "not found" in said or "does not exist" in said:
        return Unavailable(f"pod {pod} is not there yet, or not any more", "try again in a moment")
    if code == 0 or not said:
        return Unavailable(f"the connection to pod {pod} was closed")
    return Unavailable(error.message)


class Kubectl:
    """Runs kubectl for one target. `stop` ends whatever runs; then nothing more is started."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self._program = os.environ.get("HOLDFAST_KUBECTL") or "kubectl"
        self._lock = threading.Lock()
        self._running: list[subprocess.Popen[bytes]] = []
        self._stopped = False

    def start(
        self, *arguments: str, stdin: Any = subprocess.DEVNULL, stdout: Any = subprocess.PIPE
    ) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._stopped:
                raise Unavailable("the connection was given up")
            try:
                process = subprocess.Popen(
                    [self._program, *self._flags(), *arguments],
                    stdin=stdin,
                    stdout=stdout,
                    stderr=subprocess.PIPE,
                )
            except FileNotFoundError as error:
                raise CommandFailed(
                    f"the program {self._program!r}, which talks to clusters, is not there",
                    "install kubectl, or set HOLDFAST_KUBECTL to where it is",
                ) from error
            except OSError as error:
                raise CommandFailed(f"{self._program} cannot be run: {error.strerror}") from error
            self._running = [one for one in self._running if one.returncode is None]
            self._running.append(process)
        return process

    def _flags(self) -> list[str]:
        target = self.target
        chosen = (
            ("--kubeconfig", target.kubeconfig),
            ("--context", target.context),
            ("--namespace", target.namespace),
        )
        return [f"{name}={value}" for name, value in chosen if value is not None]

    def text(self, *arguments: str, given: bytes = b"", aside: bool = False) -> str:
        """What it prints. `aside`: there is no terminal to ask questions on, or to tell waits."""
        # A program that logs in may have questions, but it must not eat what is for a session.
        asks = not aside and not given and os.isatty(0)
        stdin = subprocess.PIPE if given else None if asks else subprocess.DEVNULL
        process = self.start(*arguments, f"--request-timeout={REQUEST_SECONDS}s", stdin=stdin)
        with process:
            try:
                out, err = process.communicate(given or None, None if aside else _QUIET_SECONDS)
            except subprocess.TimeoutExpired as waiting:
                said = plain((waiting.stderr or b"").decode(errors="replace").strip())
                to_stderr(f"waiting for kubectl … {said}".rstrip())
                out, err = process.communicate()
        if process.returncode != 0:
            raise explain(err.decode(errors="replace"), process.returncode)
        return out.decode(errors="replace")

    def json(self, *arguments: str, given: bytes = b"", aside: bool = False) -> dict[str, Any]:
        text = self.text(*arguments, "--output=json", given=given, aside=aside)
        try:
            body = json.loads(text)
        except ValueError as error:
            raise Internal("kubectl's answer is not JSON") from error
        return body if isinstance(body, dict) else {}

    def stop(self) -> None:
        with self._lock:
            self._stopped = True
            for process in self._running:
                with contextlib.suppress(ProcessLookupError):
                    process.terminate()
            for process in self._running:
                try:
                    process.wait(_STOP_SECONDS)
                except subprocess.TimeoutExpired:
                    process.kill()


def drain(stream: IO[bytes] | None) -> str:
    """All of it to its end; the last of it is kept."""
    kept = b""
    while stream is not None and (data := stream.read(1 << 12)):
        kept = (kept + data)[-_STDERR_BYTES:]
    return kept.decode(errors="replace")


class KubectlApi:
    """`api.Api` by the program."""

    def __init__(self, kubectl: Kubectl, aside: bool = False) -> None:
        self._kubectl, self._aside = kubectl, aside
        self.namespace = kubectl.target.namespace

    def aside(self) -> Api:
        return KubectlApi(Kubectl(self._kubectl.target), aside=True)

    def close(self) -> None:
        """Nothing: each call is a program's."""

    def session(self, name: str) -> Object:
        return self._kubectl.json("get", SESSIONS, name, aside=self._aside)

    def sessions(self, everywhere: bool) -> list[Object]:
        where = ["--all-namespaces"] if everywhere else []
        items = self._kubectl.json("get", SESSIONS, *where).get("items")
        return [item for item in items or [] if isinstance(item, dict)]

    def create(self, body: Object) -> Object:
        return self._kubectl.json("create", "-f", "-", given=json.dumps(body).encode())

    def patch(self, name: str, patch: Object) -> None:
        text = json.dumps(patch, separators=(",", ":"))
        self._kubectl.text("patch", SESSIONS, name, "--type=merge", "--patch", text)

    def annotate(self, name: str, key: str, value: str | None) -> None:
        wanted = ("--overwrite", f"{key}={value}") if value is not None else (f"{key}-",)
        self._kubectl.text("annotate", SESSIONS, name, *wanted)

    def events(self, name: str, namespace: str) -> list[Object]:
        about = f"--field-selector=involvedObject.name={name},involvedObject.kind=Session"
        items = self._kubectl.json("get", "events", f"--namespace={namespace}", about).get("items")
        return [item for item in items or [] if isinstance(item, dict)]

    def node(self, name: str) -> Object:
        return self._kubectl.json("get", "node", name)

    def whoami(self) -> Actor | None:
        try:
            return actor_of_user(self._kubectl.json("auth", "whoami")["status"]["userInfo"])
        except (HoldfastError, KeyError, TypeError):
            return None  # kubectl older than 1.28, or an API server that does not tell
