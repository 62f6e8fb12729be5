"""A session that moves before its memory does, in the engine's lab, and what carries the pages."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from e2e import engine_kit as kit
from e2e.engine_session import Session, Target
from holdfast_node import asking, containers, freezer
from holdfast_node.engine import Engine, Restored, Restoring
from holdfast_node.lazy import PagesLost
from holdfast_node.threads import to_its_end


class Tunnel:
    """What the agents carry between them: bytes, as fast as they are asked to, or not at all."""

    def __init__(self) -> None:
        self.source, self._near = socket.socketpair()
        self._far, self.target = socket.socketpair()
        self.open = asyncio.Event()
        self.open.set()
        self.carried = 0
        self.delay = 0.0  # of each piece
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Tunnel:
        for end in (self._near, self._far):
            end.setblocking(False)
        self._tasks = [
            asyncio.create_task(self._carry(self._far, self._near)),
            asyncio.create_task(self._carry(self._near, self._far)),
        ]
        return self

    async def _carry(self, source: socket.socket, to: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        try:
            while data := await loop.sock_recv(source, 1 << 20):
                await self.open.wait()
                await asyncio.sleep(self.delay)
                self.carried += len(data)
                await loop.sock_sendall(to, data)
            to.shutdown(socket.SHUT_WR)
        except OSError:  # an end that is gone is gone for both
            for end in (source, to):
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def taken(self, whole: bool) -> dict[str, Any]:
        """As the engine takes it: for pages that come before the tree runs, or after."""
        if not whole:
            return {"after": self.target}
        self.target.setblocking(False)
        return {"before": asking.Plain(self.target)}

    async def cut(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)
        self._near.close()
        self._far.close()

    async def __aexit__(self, *_: object) -> None:
        await self.cut()
        self.source.close()
        self.target.close()


@dataclass
class Stream:
    """The source's end of it, for one thread."""

    end_: socket.socket

    def read(self, view: memoryview) -> bool:
        while view:
            try:
                count = self.end_.recv_into(view)
            except OSError as error:
                raise PagesLost(str(error)) from error
            if not count:
                return False
            view = view[count:]
        return True

    def write(self, view: memoryview, _head: int, _pid: int, _address: int) -> None:
        try:
            self.end_.sendall(view)
        except OSError as error:
            raise PagesLost(str(error)) from error

    def end(self) -> None:
        self.end_.shutdown(socket.SHUT_WR)

    def interrupt(self) -> None:
        with contextlib.suppress(OSError):
            self.end_.shutdown(socket.SHUT_RDWR)


def serves(engine: Engine, hold: int, tunnel: Tunnel) -> asyncio.Task[int]:
    stream = Stream(tunnel.source)
    return asyncio.create_task(to_its_end(partial(engine.serve, hold, stream), stream.interrupt))


class Late(Target):
    """No page comes from when it is held until the tunnel is opened again."""

    tunnel: Tunnel

    async def held(self, restored: Restored) -> None:
        self.tunnel.open.clear()
        await super().held(restored)


@dataclass
class Lazily:
    """A move of which all is done but that the pages follow."""

    restoring: Restoring
    tunnel: Tunnel
    serving: asyncio.Task[int]
    cage: freezer.Freezer
    there: freezer.Freezer
    dump_seconds: float
    freeze_seconds: float

    async def all_came(self) -> None:
        """And the source is told so; only then it ends."""
        self.tunnel.open.set()
        await self.restoring.arrived()
        await self.serving
        assert self.cage.frozen()
        self.cage.kill()

    async def lost(self) -> None:
        with pytest.raises(PagesLost):
            await self.restoring.arrived()
        with pytest.raises(PagesLost):
            await self.serving


@asynccontextmanager
async def lazily(
    engine: Engine, session: Session, target: Target, images: Path, *, whole: bool = False
) -> AsyncIterator[Lazily]:
    """`whole`: the pages come before it runs."""
    hold = session.container.hold
    async with (
        Tunnel() as tunnel,
        engine.restoring(target.container.hold, images, **tunnel.taken(whole)) as restoring,
    ):
        target.whole = restoring.whole
        if isinstance(target, Late):
            target.tunnel = tunnel
        async with engine.dumping(hold, images, lazy=True) as dumping:
            await asyncio.sleep(0.3)  # both CRIUs stand ready
            began = time.monotonic()
            cage = await engine.freeze(hold)
            await dumping.dump()
        assert cage.frozen()
        dump_seconds = time.monotonic() - began
        serving = serves(engine, hold, tunnel)
        try:
            await restoring.restore(target.held)
            freeze_seconds = time.monotonic() - began
            there = engine.freezer(target.container.hold)
            yield Lazily(restoring, tunnel, serving, cage, there, dump_seconds, freeze_seconds)
        finally:
            serving.cancel()
            await asyncio.wait([serving])


def pagers() -> list[int]:
    """Those of this process's sessions, watchers among them."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        words = containers.arguments(int(path.name))
        if "holdfast_node.pager" in words and f"{kit.PREFIX}{os.getpid()}-" in words[-1]:
            found.append(int(path.name))
    return sorted(found)


HEAP = """
import hashlib, os, sys
size = int(sys.argv[1]) << 20
block = os.urandom(1 << 20)
heap = bytearray(size)
for at in range(0, size, 1 << 20):
    heap[at:at + (1 << 20)] = block
    heap[at:at + 8] = at.to_bytes(8, "little")
print("sum=" + hashlib.sha256(heap).hexdigest(), flush=True)
input("ready? ")
print("again=" + hashlib.sha256(heap).hexdigest(), flush=True)
"""


def heap(bench: kit.Lab, megabytes: int, name: str = "a") -> tuple[Session, str]:
    session = Session(bench.container(name, "python3", "-c", HEAP, str(megabytes)))
    seen = session.typist.until("ready? ", 60)
    return session, seen.partition("sum=")[2].split()[0]
