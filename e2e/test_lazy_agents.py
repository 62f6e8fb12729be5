"""Memory between whole agents over real TLS, as in test_keep_agents.py: from process to process,
before a session runs or, with post-copy, after; and what becomes of it if that never comes."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import pytest

from e2e import engine_kit as kit
from e2e.engine_lazy import Late, heap, lazily, pagers
from e2e.engine_pods import POD_A, POD_B, Pods, typist
from e2e.engine_session import Session, bench, engine, eventually, node, tidy
from e2e.test_keep_agents import MOVE, Cluster, authority, cluster, keys, pods
from holdfast_node import departure, freezer, memory_due, pages
from holdfast_node.engine import Engine
from holdfast_node.link import Place
from holdfast_node.progress import Progress
from holdfast_wire.errors import HoldfastError

__all__ = ["authority", "bench", "cluster", "engine", "keys", "node", "pods", "tidy"]  # fixtures

pytestmark = [pytest.mark.long, pytest.mark.timeout(120)]

COPIED = MOVE | {"deadlineSeconds": 60}
LAZY = COPIED | {"memory": "PostCopy"}
MEMORY = "holdfast.dev/agent-memory"
SIZE = 200  # MiB


class Wire:
    """Between the two agents. It can be made slow, and cut."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.delay = 0.0  # of each piece
        self.carried: list[int] = []  # bytes to the target, of each connection
        self._open: list[asyncio.StreamWriter] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def took(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self._port)
        number = len(self.carried)
        self.carried.append(0)
        self._open += [writer, back]
        for source, to, counts in ((reader, back, True), (there, writer, False)):
            task = asyncio.create_task(self._carry(source, to, number if counts else -1))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _carry(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int
    ) -> None:
        with suppress(OSError):
            while data := await reader.read(1 << 18):
                if number >= 0:
                    self.carried[number] += len(data)
                await asyncio.sleep(self.delay)
                writer.write(data)
                await writer.drain()
        writer.close()

    def cut(self, connection: int | None = None) -> None:
        """One of them, in the order they came, or all."""
        both = slice(None) if connection is None else slice(2 * connection, 2 * connection + 2)
        for writer in self._open[both]:
            writer.transport.abort()

    async def close(self) -> None:
        self.cut()
        if self._tasks:
            await asyncio.wait(set(self._tasks))


@asynccontextmanager
async def wired(cluster: Cluster) -> AsyncIterator[Wire]:
    """What agent a finds as the address of b."""
    notes = cluster.api.objects["nodes", "", "b"]["metadata"]["annotations"]
    port = int(notes["holdfast.dev/agent-address"].rpartition(":")[2])
    wire = Wire(port)
    server = await asyncio.start_server(wire.took, "127.0.0.1", 0)
    own = server.sockets[0].getsockname()[1]
    notes["holdfast.dev/agent-address"] = f"127.0.0.1:{own}"
    try:
        yield wire
    finally:
        server.close()
        await wire.close()


def big(bench: kit.Lab, pods: Pods) -> tuple[Session, str, kit.Container]:
    session, digest = heap(bench, SIZE, f"pod{POD_A}")
    pods.put(POD_A, session.container)
    pods.put(POD_B, target := bench.container(f"pod{POD_B}"))
    return session, digest, target


def phase(cluster: Cluster) -> str:
    return str(cluster.api.status("build-2-1").get("phase"))


def dead(container: kit.Container) -> bool:
    return freezer.children(container.hold) == []


@pytest.mark.parametrize("can", [True, False])
async def test_all_memory_comes_before_it_runs(
    cluster: Cluster, bench: kit.Lab, pods: Pods, can: bool
) -> None:
    """From process to process, and most of it before it stands still; or, where a node cannot, in
    files."""
    session, digest, target = big(bench, pods)
    api, ahead, by_then = cluster.api, list[int](), list[int]()
    async with cluster.agent("a"), cluster.agent("b"), wired(cluster) as wire:
        if not can:
            api.objects["nodes", "", "b"]["metadata"]["annotations"][MEMORY] = "Copy"
        pods.here.seen = {"park": lambda: ahead.extend(wire.carried)}
        pods.there.seen = {"commit": lambda: by_then.extend(wire.carried)}
        api.put("build-2-1", "a", COPIED)
        moved = await api.over("build-2-1")
        assert moved["phase"] == "Complete", moved
        assert len(by_then) == 1 + can
        if can:
            assert ahead[1] > SIZE << 20
            assert by_then[1] - ahead[1] < 4 << 20, "what has not changed was sent again"
        assert by_then[-1] > SIZE << 20
        assert SIZE << 20 < moved["sizeBytes"] < SIZE << 21
        await eventually(lambda: dead(session.container))
        with typist(target) as second:
            second.type("\n")
            assert second.until("again=" + digest, 60)
        await eventually(lambda: pagers() == [] and cluster.left_over() == [])
    assert pods.here.asked[0] == {"do": "park", "to": POD_B}
    assert pods.there.words == ["prepare", "commit"]


@pytest.mark.parametrize("connection", [0, 1])
@pytest.mark.parametrize("ahead", [True, False])
async def test_a_link_that_is_lost_before_all_memory_came_costs_nothing(
    cluster: Cluster,
    bench: kit.Lab,
    pods: Pods,
    monkeypatch: pytest.MonkeyPatch,
    connection: int,
    ahead: bool,
) -> None:
    """While it still runs, or when it stands still."""
    session, digest, target = big(bench, pods)
    if not ahead:
        monkeypatch.setattr(departure, "LEAST", 1 << 40)
    async with cluster.agent("a"), cluster.agent("b"), wired(cluster) as wire:
        wire.delay = 0.002 if ahead else 0.0
        pods.here.seen = {"seal": lambda: setattr(wire, "delay", 0.002)}
        cluster.api.put("build-2-1", "a", COPIED)
        await eventually(lambda: len(wire.carried) > 1 and wire.carried[1] > SIZE << 18)
        wire.cut(connection)
        assert (await cluster.api.over("build-2-1"))["phase"] == "Failed"
        await eventually(lambda: dead(target) and pagers() == [])
    assert "commit" not in pods.there.words
    assert pods.here.words == [] if ahead else pods.here.words[-1] == "unpark"
    session.typist.type("\n")
    assert session.typist.until("again=" + digest, 60)


async def test_it_runs_before_its_memory_has_come(
    cluster: Cluster, bench: kit.Lab, pods: Pods
) -> None:
    session, digest, target = big(bench, pods)
    api = cluster.api
    async with cluster.agent("a"), cluster.agent("b"), wired(cluster) as wire:
        assert api.note("b", "agent-memory") == "PostCopy"
        pods.there.seen = {"commit": lambda: setattr(wire, "delay", 0.005)}
        api.put("build-2-1", "a", LAZY)
        await eventually(lambda: phase(cluster) == "Transferring")
        assert wire.carried[1] < SIZE << 19
        assert freezer.children(session.container.hold) != []  # what it needs is still there
        moved = await api.over("build-2-1")
        assert moved["phase"] == "Complete", moved
        assert wire.carried[1] > SIZE << 20
        assert moved["sizeBytes"] < SIZE << 19
        await eventually(lambda: dead(session.container))
        with typist(target) as second:
            second.type("\n")
            assert second.until("again=" + digest, 60)
        await eventually(lambda: pagers() == [] and cluster.left_over() == [])
    assert pods.here.asked[0] == {"do": "park", "to": POD_B, "follows": True}
    assert pods.there.words == ["prepare", "commit"]


@pytest.mark.parametrize("stopped", ["a", "b"])
async def test_an_agent_that_is_stopped_brings_it_to_its_end(
    cluster: Cluster, bench: kit.Lab, pods: Pods, stopped: str
) -> None:
    _, digest, target = big(bench, pods)
    async with AsyncExitStack() as stack:
        agents = {name: await stack.enter_async_context(stopping(cluster, name)) for name in "ab"}
        wire = await stack.enter_async_context(wired(cluster))
        pods.there.seen = {"commit": lambda: setattr(wire, "delay", 0.005)}
        cluster.api.put("build-2-1", "a", LAZY)
        await eventually(lambda: phase(cluster) == "Transferring")
        await agents[stopped].aclose()
        assert (await cluster.api.over("build-2-1"))["phase"] == "Complete"
        with typist(target) as second:
            second.type("\n")
            assert second.until("again=" + digest, 60)
    assert pods.there.words == ["prepare", "commit"]


@asynccontextmanager
async def stopping(cluster: Cluster, name: str) -> AsyncIterator[AsyncExitStack]:
    """An agent that can be stopped before the others."""
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(cluster.agent(name))
        yield stack


async def test_a_lost_link_loses_the_incarnation_and_nothing_else(
    cluster: Cluster, bench: kit.Lab, pods: Pods
) -> None:
    session, _, target = big(bench, pods)
    api, killed = cluster.api, []
    pods.here.refusals = {"unpark": ["superseded"]}
    pods.there.refusals = {"lost": ["unavailable"]}
    async with cluster.agent("a"), cluster.agent("b"), wired(cluster) as wire:
        pods.there.seen = {
            "commit": lambda: setattr(wire, "delay", 0.02),
            "lost": lambda: killed.append(dead(target)),
        }
        api.put("build-2-1", "a", LAZY)
        await eventually(lambda: phase(cluster) == "Transferring")
        wire.cut()
        failed = await api.over("build-2-1")
        assert failed["phase"] == "Failed"
        assert failed["conditions"][0]["reason"] == "PagesLost"
        await eventually(lambda: dead(session.container) and dead(target))
        await eventually(lambda: pods.there.words == ["prepare", "commit", "lost", "lost"])
        assert killed == [False, False]  # the sidecar knew first
        await eventually(lambda: pagers() == [] and cluster.left_over() == [])


async def test_a_link_that_is_lost_before_it_runs_costs_nothing(
    cluster: Cluster, bench: kit.Lab, pods: Pods
) -> None:
    session, digest, target = big(bench, pods)
    async with cluster.agent("a"), cluster.agent("b"), wired(cluster) as wire:
        pods.here.seen = {"seal": wire.cut}
        cluster.api.put("build-2-1", "a", LAZY)
        assert (await cluster.api.over("build-2-1"))["phase"] == "Failed"
        await eventually(lambda: dead(target))
    assert pods.there.words == []
    session.typist.type("\n")
    assert session.typist.until("again=" + digest, 60)


async def test_the_next_agent_gives_up_what_lacks_memory(
    cluster: Cluster, bench: kit.Lab, pods: Pods, engine: Engine
) -> None:
    """It knows such a tree, and does not thaw it."""
    session, _ = heap(bench, SIZE, f"pod{POD_A}")
    target = Late(bench.container(f"pod{POD_B}"))
    pods.put(POD_B, target.container)
    async with lazily(engine, session, target, bench.images()) as moved:
        await moved.tunnel.cut()
        await moved.lost()
        assert memory_due.blocked(moved.there)
    cluster.api.put("build-2-1", "a", LAZY)
    async with cluster.agent("b"):
        await eventually(lambda: dead(target.container))
        await eventually(lambda: pagers() == [])
    assert pods.there.words == ["lost"]


async def test_nobody_else_gets_the_memory(cluster: Cluster) -> None:
    """A connection for pages that no move has announced is refused."""
    async with cluster.agent("a") as first, cluster.agent("b"):
        cluster.api.put("other", "nobody", LAZY)
        tls = first._identity.tls(ssl.Purpose.SERVER_AUTH)
        there = Place("b", await first._address("b"))
        async with pages.asked(there, tls, "other", "team", bytes(32), None, Progress()) as asked:
            asking = asked.run(lambda: asked.read(memoryview(bytearray(1))))
            with pytest.raises(HoldfastError, match="no memory is to come"):
                await asyncio.wait_for(asking, 20)
