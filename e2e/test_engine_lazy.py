"""Sessions that go on before their memory is there: real dumps and restores, without a cluster."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from e2e import engine_kit as kit
from e2e.engine_session import (
    Refusal,
    Session,
    Target,
    bench,
    engine,
    eventually,
    node,
    tidy,
)
from holdfast_node import containers, freezer, pager
from holdfast_node.engine import Engine, Restoring
from holdfast_node.lazy import PagesLost

__all__ = ["bench", "engine", "node", "tidy"]  # fixtures; `tidy` stands in for the cluster's

pytestmark = pytest.mark.timeout(120)


class Tunnel:
    """What the agents carry between them: bytes, as fast as they are asked to, or not at all."""

    def __init__(self) -> None:
        self.source, self._near = socket.socketpair()
        self._far, self.target = socket.socketpair()
        self.open = asyncio.Event()
        self.carried = 0
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Tunnel:
        for end in (self.source, self._near, self._far):
            end.setblocking(False)
        self._tasks = [
            asyncio.create_task(self._carry(self._far, self._near)),
            asyncio.create_task(self._carry(self._near, self._far)),
        ]
        return self

    async def _carry(self, source: socket.socket, to: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        with contextlib.suppress(OSError):
            while data := await loop.sock_recv(source, 1 << 20):
                await self.open.wait()
                self.carried += len(data)
                await loop.sock_sendall(to, data)
            to.shutdown(socket.SHUT_WR)

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
class Lazily:
    """A move of which all is done but that the pages follow."""

    restoring: Restoring
    tunnel: Tunnel
    serving: asyncio.Task[None]
    cage: freezer.Freezer
    there: freezer.Freezer
    freeze: float
    parts: dict[str, float] = field(default_factory=dict)

    async def all_came(self) -> None:
        self.tunnel.open.set()
        await self.restoring.arrived()
        await self.serving


@asynccontextmanager
async def lazily(
    engine: Engine, session: Session, target: Target, images: Path, *, wait: bool = False
) -> AsyncIterator[Lazily]:
    """`wait`: no page comes until the tunnel is opened."""
    hold = session.container.hold
    async with Tunnel() as tunnel, contextlib.AsyncExitStack() as stack:
        if not wait:
            tunnel.open.set()
        restoring = await stack.enter_async_context(
            engine.restoring(target.container.hold, images, pages=tunnel.target)
        )
        async with engine.dumping(hold, images, lazy=True) as dumping:
            await asyncio.sleep(0.3)  # both CRIUs stand ready
            began = time.monotonic()
            cage = await engine.freeze(hold)
            dumped = await dumping.dump()
            after = time.monotonic()
        serving = asyncio.create_task(engine.serve(hold, tunnel.source))
        try:
            await restoring.restore(target.held)
            freeze = time.monotonic() - began
            there = engine.freezer(target.container.hold)
            parts = {"dump": after - began, "size": dumped.size}
            yield Lazily(restoring, tunnel, serving, cage, there, freeze, parts)
        finally:
            serving.cancel()
            await asyncio.wait([serving])


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


def heap(bench: kit.Lab, megabytes: int) -> tuple[Session, str]:
    session = Session(bench.container("a", "python3", "-c", HEAP, str(megabytes)))
    seen = session.typist.until("ready? ", 60)
    return session, seen.partition("sum=")[2].split()[0]


async def test_memory_follows_the_session(bench: kit.Lab, engine: Engine) -> None:
    session, digest = heap(bench, 256)
    target = Target(bench.container("b"))
    target.waited = 0.2
    async with lazily(engine, session, target, bench.images()) as move:
        await move.all_came()
        assert move.tunnel.carried > 256 << 20
    assert move.cage.frozen()
    move.cage.kill()
    target.typist.type("\n")
    target.typist.until(f"again={digest}", 30)
