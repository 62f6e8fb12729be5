"""Checkpoints between agents: real TLS over loopback, real disks, orders as the API has them."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from holdfast_node import fetching, transfer
from holdfast_node.link import LinkLost
from holdfast_node.order import Bring, Keep, Order, Phase, Then, Where
from holdfast_node.pair import Facts, Fault, Keys, Manifest, Unfit
from holdfast_node.receiving import Receiver
from holdfast_node.spool import Spool
from holdfast_node.store import Peer, lay_out
from holdfast_node.stores import Found, Others, Stores, check_brought
from holdfast_node.sweep import sweep
from holdfast_wire.errors import Forbidden, HoldfastError, NotFound, Unavailable

from .conftest import Contexts

KEYS = Keys(b"0123456789abcdef0123456789abcdef")
KEEP = Keep(
    namespace="team", name="build-2-k1", uid="c", session="build", session_uid="uid-1", epoch=2,
    image="sha256:1", volumes=(), deadline=30.0, phase=Phase.TRANSFERRING, source_node="a",
    source_pod="pod-a", store=Where.PEER, keepers=("b", "c", "a"), then=Then.RUN_ON, location="",
)  # fmt: skip
FACTS = Facts(
    checkpoint="build-2-k1", session="uid-1", namespace="team", name="build", epoch=2,
    source_pod="pod-a", target_pod="", image="sha256:1", architecture="x86_64", kernel="6.18",
    features=("avx",), created=1.5,
)  # fmt: skip
PARTS = {
    "images/pages-1.img": b"secret of the session" * 100_000,
    "layer": b"",
    "layer.later": b"l",
    "state/ring": b"r" * 5000,
    "queued": b"{}",
}


class World:
    """Agents a, b, c without sessions: their stores, and the API that all ask."""

    def __init__(self, folder: Path, tls: Contexts) -> None:
        self.folder, self._tls = folder, tls
        self.orders: dict[tuple[str, str], Order] = {}
        self.ports: dict[str, int] = {}
        self.disks: dict[str, Peer] = {}
        self.stores: dict[str, Stores] = {}
        self._stack = AsyncExitStack()

    async def start(self, node: str, budget: int = 1 << 30) -> None:
        others = Others(self._address, partial(self._tls, ssl.Purpose.SERVER_AUTH, node))
        disk = Peer(self.folder / node / "kept", budget, reserve=0)
        stores = Stores(node, disk, self.folder / node / "spool", others, self._find)

        async def asked(receiver: Receiver) -> None:
            await (stores.keep if receiver.about["for"] == "keep" else stores.give)(receiver)

        context = partial(self._tls, ssl.Purpose.CLIENT_AUTH, node)
        serving = transfer.serve("127.0.0.1", 0, context, asked)
        self.ports[node] = await self._stack.enter_async_context(serving)
        self.disks[node], self.stores[node] = disk, stores

    async def close(self) -> None:
        await self._stack.aclose()

    async def _address(self, node: str) -> tuple[str, int]:
        if node not in self.ports:
            raise Unavailable(f"no agent is ready on node {node}")
        return "127.0.0.1", self.ports[node]

    async def _find(self, namespace: str, name: str) -> Order:
        try:
            return self.orders[namespace, name]
        except KeyError:
            raise NotFound(f"nobody ordered {namespace}/{name}") from None

    def order(self, order: Order) -> None:
        self.orders[order.namespace, order.name] = order

    async def spool(self, facts: Facts = FACTS) -> tuple[Path, Manifest]:
        """As the source has it when the session runs again."""
        name = os.urandom(4).hex()
        folder = self.folder / f"taking-{name}"
        folder.mkdir()
        spool = Spool(folder, self.folder / f"images-{name}", KEYS, bytes(32), facts.checkpoint)
        for name, data in PARTS.items():
            await spool.send_bytes(name, data)
        return folder, spool.manifest(facts)

    async def get(self, order: Bring, into: Path, node: str = "a", keys: Keys = KEYS) -> Found:
        memory, disk = into / "memory", into / "disk"
        for made in (memory, disk):
            made.mkdir(parents=True, exist_ok=True)
        return await self.stores[node].get(order, keys, memory, disk)

    async def kept(self, node: str) -> Manifest:
        folder, manifest = await self.spool()
        order = replace(KEEP, keepers=(node,))
        self.order(order)
        assert await self.stores["a"].put(order, folder, manifest, KEYS) == f"peer://{node}"
        return manifest

    def left_over(self) -> list[Path]:
        return [path for node in self.ports for path in (self.folder / node).glob("spool/*")]


@pytest.fixture
async def world(tmp_path: Path, tls: Contexts) -> AsyncIterator[World]:
    made = World(tmp_path, tls)
    for node in ("a", "b"):
        await made.start(node)
    yield made
    await made.close()


def bring(manifest: Manifest, location: str) -> Bring:
    return Bring(
        namespace="team", name="build-3-from-x", uid="d", session="build", session_uid="uid-1",
        epoch=2, image="sha256:1", volumes=(), deadline=30.0, phase=Phase.TRANSFERRING,
        target_node="a", target_pod="pod-b", why="Recover", checkpoint="build-2-k1",
        of_session="build", of_session_uid="uid-1", digest=manifest.digest, location=location,
        taken=1,
    )  # fmt: skip


async def test_kept_by_another_node_and_brought_from_it(world: World, tmp_path: Path) -> None:
    folder, manifest = await world.spool()
    world.order(KEEP)
    await world.stores["a"].ready(KEEP)
    assert await world.stores["a"].put(KEEP, folder, manifest, KEYS) == "peer://b"
    assert world.disks["a"].list() == []
    (item,) = world.disks["b"].list("uid-1")
    assert item.manifest.digest == manifest.digest
    # Asked again, because the answer was lost.
    assert await world.stores["a"].put(KEEP, folder, manifest, KEYS) == "peer://b"
    world.order(order := bring(manifest, "peer://b"))
    found = await world.get(order, tmp_path / "out")
    assert found.manifest == manifest
    for name, data in PARTS.items():
        with found.reader(name) as source:
            assert source.read() == data
        in_memory = not name.startswith("layer")
        assert (found.parts / name).exists() == in_memory
        assert not in_memory or (found.parts / name).read_bytes() == data
    for root in (tmp_path / "out/disk", tmp_path / "a", tmp_path / "b"):
        for path in filter(Path.is_file, root.rglob("*")):
            assert b"secret of the session" not in path.read_bytes()
    assert world.left_over() == []


async def test_what_lies_here_needs_no_network(world: World, tmp_path: Path) -> None:
    manifest = await world.kept("a")
    world.ports.clear()
    order = bring(manifest, "peer://a")
    found = await world.get(order, tmp_path / "out")
    assert found.manifest == manifest
    assert (found.parts / "queued").read_bytes() == b"{}"


async def test_the_next_keeper_is_asked(world: World) -> None:
    """b has no room, c no agent; the source is its own last resort."""
    await world.start("b", budget=1 << 20)
    folder, manifest = await world.spool()
    world.order(KEEP)
    assert await world.stores["a"].put(KEEP, folder, manifest, KEYS) == "peer://a"
    assert world.disks["b"].list() == []
    assert world.left_over() == []
    folder, manifest = await world.spool()
    nobody = replace(KEEP, keepers=("b", "c"))
    world.order(nobody)
    with pytest.raises(Unavailable) as raised:
        await world.stores["a"].put(nobody, folder, manifest, KEYS)
    assert "of the 1 MiB for checkpoints" in str(raised.value)
    assert "no agent is ready on node c" in str(raised.value)


async def test_without_a_keeper_nothing_is_begun(world: World) -> None:
    with pytest.raises(Unavailable, match="no agent is ready on node c"):
        await world.stores["a"].ready(replace(KEEP, keepers=("c",)))
    with pytest.raises(Unavailable, match="none is named"):
        await world.stores["a"].ready(replace(KEEP, keepers=()))
    with pytest.raises(Unavailable, match="no object store"):
        await world.stores["a"].ready(replace(KEEP, store=Where.S3))


@pytest.mark.parametrize(
    "ordered",
    [
        None,
        replace(KEEP, keepers=("c",)),
        replace(KEEP, phase=Phase.FAILED),
        replace(KEEP, store=Where.S3),
        replace(KEEP, session_uid="uid-2"),
        replace(KEEP, epoch=3),
        replace(KEEP, source_pod="pod-x"),
    ],
)
async def test_what_is_not_ordered_is_not_kept(world: World, ordered: Keep | None) -> None:
    folder, manifest = await world.spool()
    if ordered is not None:
        world.order(ordered)
    with pytest.raises(HoldfastError, match="b: "):
        await world.stores["a"].put(replace(KEEP, keepers=("b",)), folder, manifest, KEYS)
    assert world.disks["b"].list() == []
    assert world.left_over() == []


async def test_what_is_on_a_move_is_not_kept(world: World) -> None:
    folder, manifest = await world.spool(replace(FACTS, target_pod="pod-b"))
    world.order(KEEP)
    with pytest.raises(Unavailable, match="not the checkpoint that"):
        await world.stores["a"].put(replace(KEEP, keepers=("b",)), folder, manifest, KEYS)


async def test_what_is_not_ordered_is_not_given(world: World, tmp_path: Path) -> None:
    manifest = await world.kept("b")
    meant = bring(manifest, "peer://b")
    for ordered in (
        None,
        replace(meant, location="peer://c"),
        replace(meant, phase=Phase.COMPLETE),
        replace(meant, checkpoint="build-2-k2"),
        replace(KEEP, name=meant.name),
    ):
        world.orders.clear()
        if ordered is not None:
            world.order(ordered)
        with pytest.raises((Forbidden, NotFound), match=r"nothing is to be brought|nobody ordered"):
            await world.get(meant, tmp_path / "out")
    world.order(gone := replace(meant, of_session_uid="uid-2"))
    with pytest.raises(NotFound, match="not kept here"):
        await world.get(gone, tmp_path / "out")
    with pytest.raises(Unavailable, match="no object store"):
        await world.get(replace(meant, location="s3://b/p"), tmp_path / "out")
    assert not (tmp_path / "out/memory/parts").exists()


async def test_damaged_where_it_lay(world: World, tmp_path: Path) -> None:
    manifest = await world.kept("b")
    path = tmp_path / "b/kept/uid-1/build-2-k1/parts/images/pages-1.img"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    world.order(order := bring(manifest, "peer://b"))
    with pytest.raises(HoldfastError, match="altered or cut short"):
        await world.get(order, tmp_path / "out")
    assert not (tmp_path / "out/memory/parts").exists()


async def test_an_answer_that_is_lost(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """b has it and cannot say so: another is asked, and b's goes when the order says where."""

    async def silent(receiver: Receiver) -> None:
        receiver.link.interrupt()
        receiver.said = receiver.lost = True

    monkeypatch.setattr(Receiver, "committed", silent)
    folder, manifest = await world.spool()
    world.order(KEEP)
    assert await world.stores["a"].put(KEEP, folder, manifest, KEYS) == "peer://a"
    assert len(world.disks["b"].list()) == 1
    owned = {("team", "uid-1", "build-2-k1"): (True, "peer://a")}
    await sweep(world.disks["a"], owned, lambda _kept: "peer://a", 1e9)
    await sweep(world.disks["b"], owned, lambda _kept: "peer://b", 1e9)
    assert [len(world.disks[node].list()) for node in ("a", "b")] == [1, 0]


async def test_a_keeper_that_ends_while_it_gives(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = await world.kept("b")
    world.order(order := bring(manifest, "peer://b"))
    ending: list[Receiver] = []
    give = fetching.give

    async def breaking(receiver: Receiver, *rest: Any) -> None:
        ending.append(receiver)
        await give(receiver, *rest)

    async def pieces(*_: object) -> None:
        ending[0].link.interrupt()

    monkeypatch.setattr(fetching, "give", breaking)
    monkeypatch.setattr(fetching, "send_sealed", pieces)
    with pytest.raises(LinkLost):
        await world.get(order, tmp_path / "out")
    assert not (tmp_path / "out/memory/parts").exists()


async def test_two_at_once_stay_within_the_budget(world: World) -> None:
    await world.start("b", budget=3 << 20)
    made = []
    for number in (1, 2):
        order = replace(KEEP, name=f"build-2-k{number}", keepers=("b",))
        world.order(order)
        made.append((order, *await world.spool(replace(FACTS, checkpoint=order.name))))
    done = await asyncio.gather(
        *(world.stores["a"].put(order, folder, one, KEYS) for order, folder, one in made),
        return_exceptions=True,
    )
    assert sorted(isinstance(one, Unavailable) for one in done) == [False, True]
    assert len(world.disks["b"].list()) == 1


async def test_only_the_source_is_kept_for_and_only_the_target_given_to(
    world: World, tmp_path: Path
) -> None:
    """Attack 34: another node of the cluster asks, with its own good certificate."""
    await world.start("c")
    folder, manifest = await world.spool()
    world.order(order := replace(KEEP, keepers=("b",)))
    with pytest.raises(Unavailable, match="names node a, and c has come"):
        await world.stores["c"].put(order, folder, manifest, KEYS)
    assert world.disks["b"].list() == []
    await world.stores["a"].put(order, folder, manifest, KEYS)
    world.order(meant := bring(manifest, "peer://b"))
    with pytest.raises(Forbidden, match="names node a, and c has come"):
        await world.get(meant, tmp_path / "out", node="c")
    # And with the bytes, from the disk of the keeper: they are sealed with a key that c has not.
    stolen = tmp_path / "b/kept/uid-1/build-2-k1"
    for key in (bytes(32), manifest.salt):
        with pytest.raises(Unfit) as raised:
            lay_out(stolen, tmp_path / "opened", Keys(key), lambda _part: True)
        assert raised.value.fault is Fault.UNSIGNED


@pytest.mark.parametrize("data", [b"short", bytes(1000)])
async def test_what_is_not_whole_is_not_kept(world: World, data: bytes) -> None:
    folder, manifest = await world.spool()
    (folder / "parts/queued").write_bytes(data)
    world.order(order := replace(KEEP, keepers=("b",)))
    with pytest.raises(Unavailable, match="lacks its part queued, or it is cut short"):
        await world.stores["a"].put(order, folder, manifest, KEYS)
    assert world.disks["b"].list() == []


def test_only_the_ordered_checkpoint_is_restored() -> None:
    manifest = Manifest(replace(FACTS, architecture="x86_64"), bytes(32), {})
    order = bring(manifest, "peer://b")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("platform.machine", lambda: "x86_64")
        check_brought(order, manifest, ("avx", "sse"))
        fork = replace(order, session="copy", session_uid="uid-9", why="Fork")
        check_brought(fork, manifest, ("avx",))
        for wrong, fault in (
            (replace(order, digest="sha256:0"), Fault.FOREIGN),
            (replace(order, of_session_uid="uid-9"), Fault.FOREIGN),
            (replace(order, namespace="else"), Fault.FOREIGN),
            (replace(order, epoch=3), Fault.OLDER),
            (replace(order, epoch=1), Fault.NEWER),
            (replace(order, image="sha256:2"), Fault.IMAGE),
            (replace(order, volumes=("/data",)), Fault.FOREIGN),
        ):
            with pytest.raises(Unfit) as raised:
                check_brought(wrong, manifest, ("avx",))
            assert raised.value.fault is fault
        with pytest.raises(Unfit) as raised:
            check_brought(order, manifest, ())
        assert raised.value.fault is Fault.CPU
        moved = replace(manifest, facts=replace(FACTS, target_pod="pod-b"))
        with pytest.raises(Unfit, match="was a move"):
            check_brought(replace(order, digest=moved.digest), moved, ("avx",))
