"""A session on this machine, without a pod: its processes, and what is left of them (hibernate.py).

It has a freezer cgroup of its own, made when it is first needed, so that the engine finds it as it
finds a container's.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import signal
import socket
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from holdfast_wire.errors import Busy, HoldfastError, Unavailable

from . import containers, freezer, terminal
from .freezer import Freezer
from .peers import Refused, SidecarLink, keeper_of
from .shelf import QUEUED, Shelf
from .terminal import Taken

SUSPENDING: Final = (
    "suspending"  # in the session's folder: the path of its shelf; the sidecar's too
)
WAKING: Final = "waking"  # likewise; the gateway starts no sidecar meanwhile
_KEEPING: Final = "keeping"  # the sidecar's own: it is sealed, and so is the next one
_CGROUP: Final = "holdfast-session-"
_SIDECAR_SECONDS: Final = 15.0
_GONE_SECONDS: Final = 10.0
_STEP_SECONDS: Final = 0.02


@dataclass(frozen=True)
class Resting:
    folder: Path
    shelf: Shelf

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def hold_socket(self) -> Path:
        return self.folder / "hold.sock"

    def hold(self) -> int | None:
        return _listener(self.hold_socket, socket.SOCK_SEQPACKET)

    @contextlib.contextmanager
    def locked(self, *, seconds: float) -> Iterator[int]:
        """One at a time. CRIU's guard has the lock too, so it is free only when that has ended."""
        self.shelf.prepare()
        descriptor = os.open(self.shelf.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        deadline = time.monotonic() + seconds
        try:
            while True:
                with contextlib.suppress(BlockingIOError):
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                if time.monotonic() >= deadline:
                    raise Busy(
                        f"session {self.name} is being suspended or woken already",
                        "wait until that is done",
                    )
                time.sleep(_STEP_SECONDS)
            yield descriptor
        finally:
            os.close(descriptor)

    @contextlib.contextmanager
    def marked(self, mark: str) -> Iterator[None]:
        """Who finds the mark without a lock on it settles what was begun. It is left there only by
        a kill."""
        path = self.folder / mark
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, os.fsencode(self.shelf.path), 0)
            yield
        finally:
            path.unlink(missing_ok=True)
            os.close(descriptor)

    def cage(self, hold: int) -> Freezer:
        found = freezer.of(hold)
        if found.parent.name.startswith(_CGROUP):
            return found
        _sweep(found.parent)
        own = found.parent / f"{_CGROUP}{self.name}-{hold}"
        own.mkdir(exist_ok=True)
        (own / "cgroup.procs").write_text(str(hold))
        return Freezer(own, found.unified)

    async def ask(self, do: str, seconds: float = _SIDECAR_SECONDS) -> dict[str, Any]:
        """The sidecar may be away for a moment; the gateway brings it back."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                return await SidecarLink.at(self.folder).ask(do, seconds=seconds)
            except Refused:
                raise
            except Unavailable:
                if time.monotonic() > deadline:
                    raise
            await asyncio.sleep(_STEP_SECONDS)

    def empty_terminal(self, hold: int, to: Path) -> None:
        """What was typed and not read, into the folder that is stored, and beside it for the case
        that it goes on here."""
        found = containers.terminal_of(keeper_of(hold, self.hold_socket))
        try:
            taken = terminal.take(found.master)
        finally:
            os.close(found.master)
        for path in (to / QUEUED, self.folder / QUEUED):
            path.write_text(json.dumps(taken.to_json()))

    def fill_terminal(self, hold: int) -> None:
        """With what was taken out of it, if anything was."""
        queued = self.folder / QUEUED
        with contextlib.suppress(FileNotFoundError):
            taken = Taken.from_json(json.loads(queued.read_text()))
            found = containers.terminal_of(keeper_of(hold, self.hold_socket))
            try:
                terminal.put(found.master, taken)
            finally:
                os.close(found.master)
            queued.unlink()

    async def run_on(self) -> None:
        """It is not stored: it goes on here. Also of one that was never stopped."""
        hold = self.hold()
        if hold is None:
            return
        cage = freezer.of(hold)
        frozen = cage.exists() and cage.wanted()
        if frozen:
            self.fill_terminal(hold)
        if not (self.folder / WAKING).exists():
            try:
                await self.ask("unpark")
            except HoldfastError:  # the next sidecar finds nothing that says it is sealed
                (self.folder / _KEEPING).unlink(missing_ok=True)
        if frozen:
            cage.thaw()

    async def end(self) -> None:
        """It is stored: nothing of it is left here."""
        hold = self.hold()
        if hold is not None:
            cage = freezer.of(hold)
            if cage.exists():
                await asyncio.to_thread(cage.kill)
            await _killed(hold)
            with contextlib.suppress(OSError):
                cage.path.rmdir()
            if cage.parent.name.startswith(_CGROUP):
                with contextlib.suppress(OSError):
                    cage.parent.rmdir()
        await self._sidecar_gone()

    async def _sidecar_gone(self) -> None:
        """It goes by itself when hold has, unless something holds it up."""
        path = self.folder / "sidecar.sock"
        deadline = time.monotonic() + _GONE_SECONDS
        while (pid := _listener(path, socket.SOCK_STREAM)) is not None:
            if time.monotonic() > deadline:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            await asyncio.sleep(_STEP_SECONDS)


def _sweep(parent: Path) -> None:
    """Cgroups of sessions that have ended; the kernel keeps them from going while they are used."""
    for left in parent.glob(f"{_CGROUP}*"):
        if not Path(f"/proc/{left.name.rpartition('-')[2]}").exists():
            for folder in (left / freezer.NAME, left):
                with contextlib.suppress(OSError):
                    folder.rmdir()


async def _killed(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + _GONE_SECONDS
    while not containers.gone(pid):
        if time.monotonic() > deadline:
            raise Unavailable(f"process {pid} of the session does not end")
        await asyncio.sleep(_STEP_SECONDS)


def _listener(path: Path, kind: int) -> int | None:
    """Who listens there, by the kernel's word."""
    with socket.socket(socket.AF_UNIX, kind | socket.SOCK_CLOEXEC) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except OSError:
            return None
        found = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid: int = struct.unpack("3i", found)[0]
    return pid or None
