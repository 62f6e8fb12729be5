"""A session in a container of the engine's bench, and what the agent would do with it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from e2e import engine_kit as kit

if os.geteuid() != 0:
    pytest.skip("needs root", allow_module_level=True)
kit.use_pycriu()

from holdfast_node import connections, containers, freezer, preflight, terminal  # noqa: E402
from holdfast_node.engine import Engine, Restored  # noqa: E402
from holdfast_node.peers import keeper_of  # noqa: E402
from holdfast_node.preflight import Preflight  # noqa: E402


@pytest.fixture(scope="module")
def bench() -> Iterator[kit.Lab]:
    with kit.opened() as made:
        yield made


@pytest.fixture(scope="module")
def node(bench: kit.Lab) -> Preflight:
    return preflight.look(bench.bundle)


@pytest.fixture(autouse=True)
def tidy(bench: kit.Lab) -> Iterator[None]:
    """Stands in for the cluster's."""
    yield
    bench.end_all()


@pytest.fixture
def engine(bench: kit.Lab, node: Preflight) -> Engine:
    return Engine(bench.bundle, notes=node.notes)


class Session:
    """A session in a container, and who types in it."""

    def __init__(self, container: kit.Container) -> None:
        self.container = container
        container.start()
        self.typist = kit.Typist(containers.terminal_of(self.keeper).master)

    @property
    def keeper(self) -> int:
        return keeper_of(self.container.hold)

    def pids(self) -> dict[int, str]:
        """What runs, by the container's numbers."""
        found = {}
        for pid in freezer.descendants(self.keeper):
            with contextlib.suppress(OSError):
                found[containers.inner_pid(pid)] = containers.name(pid)
        return found

    def slave(self) -> Path:
        return self.container.root / "dev/pts/0"


class Refusal(Exception):
    pass


class Target:
    """Takes what is restored, as the agent would: the master goes to hold, which adopts."""

    def __init__(self, container: kit.Container, refuse: bool = False) -> None:
        self.container = container
        self.refuse = refuse
        self.typed = terminal.Taken()
        self.cut: tuple[tuple[str, str], ...] = ()
        self.typist: kit.Typist
        self.waited = 0.0
        self.whole: Callable[[], Awaitable[None]] | None = None  # of memory that comes first

    async def held(self, restored: Restored) -> None:
        tree = freezer.descendants(restored.keeper)
        before = [_run_time(pid) for pid in tree]
        await asyncio.sleep(self.waited)
        assert [_run_time(pid) for pid in tree] == before
        self.cut = restored.cut
        self.typist = kit.Typist(restored.terminal.master)
        left = terminal.put(self.typist.master, self.typed)
        assert left == b""
        if self.refuse:
            raise Refusal
        request = f"adopt {restored.keeper_inside} {restored.command_inside} /dev/pts/0"
        assert self.container.ask(request, restored.terminal.master) == {"ok": True}
        if self.whole is not None:
            await self.whole()


def _run_time(pid: int) -> str:
    return Path(f"/proc/{pid}/schedstat").read_text().split()[0]


@asynccontextmanager
async def dumped(engine: Engine, session: Session, images: Path) -> AsyncIterator[freezer.Freezer]:
    hold = session.container.hold
    async with engine.dumping(hold, images) as dumping:
        cage = await engine.freeze(hold)
        assert cage.frozen()
        await dumping.dump()
        assert cage.frozen()
    assert cage.frozen()
    yield cage


async def move(
    engine: Engine, session: Session, target: Target, images: Path, *, take: bool = False
) -> None:
    async with engine.restoring(target.container.hold, images) as restoring:
        hold = session.container.hold
        async with engine.dumping(hold, images) as dumping:
            cage = await engine.freeze(hold)
            if take:
                target.typed = await asyncio.to_thread(terminal.take, session.typist.master)
            await dumping.dump()
        await restoring.restore(target.held)
    cage.kill()
    await eventually(lambda: freezer.children(hold) == [])


async def eventually(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not true():  # noqa: ASYNC110 - the kernel has no event for it
            await asyncio.sleep(0.001)


class Outside:
    """A server beside the session, in its network but not of its processes."""

    def __init__(self, container: kit.Container) -> None:
        self.server: socket.socket = container.enter_network(self._listen)
        self.peer: socket.socket
        self._thread = threading.Thread(target=self._accept)
        self._thread.start()

    def __enter__(self) -> Outside:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join()
        self.server.close()
        self.peer.close()

    def _listen(self) -> socket.socket:
        connections.change_address(connections.NEW_ADDRESS, "10.9.9.2")
        return socket.create_server(("10.9.9.2", 8000))

    def _accept(self) -> None:
        self.server.settimeout(10)
        self.peer, _ = self.server.accept()
