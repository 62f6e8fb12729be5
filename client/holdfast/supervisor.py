"""The gateway of this machine: it serves the browser page and keeps a sidecar running for every
session. Started here when it is missing, and never stopped.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from holdfast.folders import read_json
from holdfast_wire.errors import Internal, Unavailable, Unsupported

START_SECONDS: Final = 10.0
_STEP_SECONDS: Final = 0.02
_POKE_SECONDS: Final = 1.0
_TAIL_BYTES: Final = 2000
# Outer terminals' and sessions' own marks: a gateway serves all sessions and belongs to none.
_OURS: Final = ("HOLDFAST_SESSION", "HOLDFAST_SESSION_ID")


class Address(NamedTuple):
    port: int
    token: str

    def url(self, session: str = "") -> str:
        """The page. The token is in the fragment, which browsers do not send."""
        suffix = f"&session={session}" if session else ""
        return f"http://127.0.0.1:{self.port}/#token={self.token}{suffix}"


class Supervisor:
    def __init__(self, state: Path) -> None:
        self._state = state
        self._child: int | None = None

    def running(self) -> bool:
        """By its lock, which the kernel lets go when it dies."""
        try:
            descriptor = os.open(self._state / "gateway.lock", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def address(self) -> Address | None:
        found = read_json(self._state / "gateway.json")
        port, token = found.get("port"), found.get("token")
        if isinstance(port, int) and isinstance(token, str):
            return Address(port, token)
        return None

    def poke(self) -> bool:
        """Tell it to look at the folders now. False if it does not answer."""
        from http.client import HTTPConnection, HTTPException

        address = self.address()
        if address is None:
            return False
        connection = HTTPConnection("127.0.0.1", address.port, timeout=_POKE_SECONDS)
        try:
            connection.request(
                "POST", "/api/v1/rescan", headers={"Authorization": f"Bearer {address.token}"}
            )
            return connection.getresponse().status < 300
        except (OSError, HTTPException):
            return False
        finally:
            connection.close()

    def nudge(self) -> None:
        """Get it to look after the sessions, without waiting for it."""
        if self._child_runs() or self.running():
            self.poke()
        else:
            self._start()

    def ensure(self) -> Address:
        """Running and answering, or an error that says why not."""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if not self._child_runs() and not self.running():
                self._start()
            if self.running() and self.poke():
                address = self.address()
                if address is not None:
                    return address
            time.sleep(_STEP_SECONDS)
        raise Unavailable(
            f"the gateway does not come up:\n{tail(self._log)}", f"its log is {self._log}"
        )

    @property
    def _log(self) -> Path:
        return self._state / "gateway.log"

    def _child_runs(self) -> bool:
        """Whether the gateway we started is alive. One that lost the race for the lock is not."""
        if self._child is None:
            return False
        with contextlib.suppress(ChildProcessError):
            pid, status = os.waitpid(self._child, os.WNOHANG)
            if pid == 0:
                return True
            self._child = None
            if os.waitstatus_to_exitcode(status) != 0:
                raise Internal(
                    f"the gateway could not start:\n{tail(self._log)}", f"its log is {self._log}"
                )
        self._child = None
        return False

    def _start(self) -> None:
        require("holdfast_gateway", "aiohttp", "holdfast_sidecar", "pyghostty")
        command = [sys.executable, "-P", "-m", "holdfast_gateway", "--dir", str(self._state)]
        appended = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        # Not subprocess: it would warn of, or wait for, a child that is meant to stay behind.
        # Descriptors are not inheritable by default, so the child gets these three alone.
        self._child = os.posix_spawn(
            sys.executable,
            command,
            gateway_environment(os.environ),
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, str(self._log), appended, 0o600),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            setsid=True,
            setsigmask=(),
        )


def gateway_environment(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if name not in _OURS}


def require(*modules: str) -> None:
    from importlib.util import find_spec

    missing = [name for name in modules if find_spec(name) is None]
    if missing:
        raise Unsupported(
            f"to run sessions on this machine, {', '.join(missing)} must be installed as well",
            "install with: pip install 'holdfast[local]'",
        )


def tail(path: Path) -> str:
    """The end of a log, for an error message."""
    from holdfast_wire.plain import plain

    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return "  (no log)"
    lines = text.splitlines()[-12:]
    return "\n".join(f"  {plain(line)}" for line in lines) or "  (its log is empty)"
