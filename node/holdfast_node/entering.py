"""Opens everything CRIU needs of a container, and starts it inside (see inside.py).

Whatever the container could tamper with is opened here, before its namespaces are entered, and
handed on as a descriptor.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from holdfast_wire.errors import Internal

from . import confine, containers, freezer, safe_open
from .inside import NAMESPACES, PACKET_MAX, Orders
from .peers import HOLD_SOCKET
from .safe_open import UnsafePath

_LAST_PID: Final = Path("/proc/sys/kernel/ns_last_pid")
# A dump that nobody waits for any more must still come to its end: CRIU has its own code in the
# session's processes meanwhile. This is for one that hangs.
_LEAVE_SECONDS: Final = 120.0
_HOLD_SECONDS: Final = 5.0


@dataclass(frozen=True)
class Place:
    """A container to work in, and what to work with."""

    hold: int  # host PID of the container's first process
    bundle: Path  # CRIU, its libraries and its loader
    images: Path
    cgroups: Path = freezer.CGROUPS
    also: tuple[int, ...] = ()  # descriptors that are kept open while CRIU works


class Entered:
    """A CRIU that waits for requests inside a container."""

    def __init__(
        self, sock: socket.socket, process: asyncio.subprocess.Process, orders: Orders
    ) -> None:
        self._sock = sock
        self._process = process
        self.images = f"/proc/self/fd/{orders.images}"  # as CRIU finds them
        self.freezer = f"/proc/self/fd/{orders.tree}"

    async def send(self, packet: bytes) -> None:
        """Internal when CRIU is gone."""
        try:
            await asyncio.get_running_loop().sock_sendall(self._sock, packet)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise Internal(
                "CRIU ended without an answer", "see its log, and the kernel's"
            ) from error

    async def receive(self) -> bytes:
        """The next packet; Internal when CRIU is gone."""
        try:
            packet = await asyncio.get_running_loop().sock_recv(self._sock, PACKET_MAX)
        except ConnectionResetError:
            packet = b""
        if not packet:
            raise Internal("CRIU ended without an answer", "see its log, and the kernel's")
        return packet

    async def leave(self) -> None:
        """Returns when nothing of CRIU runs any more."""
        self._sock.close()
        try:
            async with asyncio.timeout(_LEAVE_SECONDS):
                await self._process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            await self._process.wait()


@contextlib.asynccontextmanager
async def enter(place: Place, *, restoring: bool, lazy: bool = False) -> AsyncIterator[Entered]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    try:
        process, orders = await _start(place, theirs, restoring, lazy)
    except BaseException:
        ours.close()
        raise
    entered = Entered(ours, process, orders)
    try:
        yield entered
    finally:
        await entered.leave()


async def _start(
    place: Place, theirs: socket.socket, restoring: bool, lazy: bool
) -> tuple[asyncio.subprocess.Process, Orders]:
    with theirs, contextlib.ExitStack() as opened:
        orders = replace(_orders(place, theirs.fileno(), opened, restoring), lazy=lazy)
        if (hold := await asyncio.to_thread(_connected, place.hold)) is not None:
            orders = replace(orders, hold=opened.enter_context(hold).fileno())
        passed = [theirs.fileno(), orders.bundle, orders.images, orders.last_pid, orders.tree]
        passed += [orders.hold] if orders.hold >= 0 else []
        passed += [*orders.join, *orders.namespaces.values(), *place.also]
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-I", "-m", "holdfast_node.inside", orders.to_text(),
            pass_fds=passed, stdin=asyncio.subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
    return process, orders


def _connected(hold: int) -> socket.socket | None:
    """To ask it to spare CRIU. None: a session on this machine, which has no deadline, or one that
    has put its socket away, and must bear what that does to its own move."""
    try:
        return safe_open.connect(hold, HOLD_SOCKET, socket.SOCK_SEQPACKET, _HOLD_SECONDS)
    except (OSError, UnsafePath):
        return None


def _orders(place: Place, agent: int, opened: contextlib.ExitStack, restoring: bool) -> Orders:
    def take(path: Path, flags: int) -> int:
        fd = os.open(path, flags | os.O_CLOEXEC)
        opened.callback(os.close, fd)
        return fd

    def folder(path: Path) -> int:
        fd = confine.alone(take(path, os.O_RDONLY | os.O_DIRECTORY))
        opened.callback(os.close, fd)
        return fd

    cage = freezer.of(place.hold, place.cgroups)
    cage.make()
    if restoring:
        cage.thaw()
    # A dump's pages must not count against the container's memory; a restored tree's must.
    folders = cgroups(place) if restoring else []
    uid, gid = containers.ids_of(place.hold)
    spaces = Path(f"/proc/{place.hold}/ns")
    return Orders(
        restoring=restoring,
        agent=agent,
        bundle=folder(place.bundle),
        images=folder(place.images),
        last_pid=take(_LAST_PID, os.O_RDWR),
        uid=uid,
        gid=gid,
        freezer=str(cage.parent),
        unified=cage.unified,
        namespaces={kind: take(spaces / kind, os.O_RDONLY) for kind in NAMESPACES},
        join=[take(one / "cgroup.procs", os.O_WRONLY) for one in folders],
        tree=folder(cage.path),
        may=confine.needed(place.hold, restoring=restoring),
    )


def cgroups(place: Place) -> list[Path]:
    folders = (one.folder(place.cgroups) for one in freezer.cgroups_of(place.hold))
    return [folder for folder in folders if (folder / "cgroup.procs").exists()]
