"""Sessions stored and brought back by the agent's own code, in containers made by hand. The
sidecars are stand-ins that answer as docs/checkpoints.md says; CRIU, the terminals, the files and
the stores are real."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from e2e import engine_kit as kit
from e2e.engine_pods import POD_A, POD_B, Pods, typist
from e2e.engine_session import Outside, Session, bench, engine, eventually, node, tidy
from holdfast_node import bringing, containers, cpu, freezer, keeping
from holdfast_node.engine import Engine
from holdfast_node.keeping import Keeping
from holdfast_node.order import Bring, Keep, Phase, Saved, Then, Where
from holdfast_node.pair import Keys
from holdfast_node.peers import Refused
from holdfast_node.spool import Spool
from holdfast_node.store import Peer
from holdfast_node.stores import Others, Stores
from holdfast_node.taking import QUEUED, Gone, Taking, settle
from holdfast_wire.errors import Unavailable

__all__ = ["bench", "engine", "node", "tidy"]  # fixtures; `tidy` stands in for the cluster's

pytestmark = [pytest.mark.long, pytest.mark.timeout(60)]

KEYS = Keys(b"0123456789abcdef0123456789abcdef")
KEEP = Keep(
    namespace="team", name="build-2-k1", uid="c", session="build", session_uid="uid-1", epoch=2,
    image="sha256:1", volumes=(), deadline=30.0, phase=Phase.PENDING, source_node="a",
    source_pod=POD_A, store=Where.PEER, keepers=("a",), then=Then.RUN_ON, location="",
)  # fmt: skip


class Node:
    """One that has both pods, and keeps what is stored."""

    def __init__(self, folder: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.engine = folder, engine
        self.pods = Pods(folder, monkeypatch)
        self.here, self.there = self.pods.here, self.pods.there
        self.disk = Peer(folder / "kept", 1 << 30, reserve=0)
        others = Others(_nowhere, _nowhere)
        self.stores = Stores("a", self.disk, folder / "spool", others, _nowhere)
        self.said: list[tuple[Phase, Saved | None]] = []

    async def report(self, *, phase: Phase, left: Saved | None = None) -> bool:
        self.said.append((phase, left))
        return True

    async def keep(self, order: Keep = KEEP) -> Saved:
        work = self.folder / "work"
        work.mkdir()
        act = Keeping(order, self.engine, cpu.features(), KEYS, "ours", self.stores, self.report)
        with tempfile.TemporaryDirectory(dir="/dev/shm") as memory:
            return await act.run(work, Path(memory), 0)

    async def bring(self, saved: Saved, **changes: Any) -> None:
        work = self.folder / "bringing"
        work.mkdir()
        order = replace(brought(saved), **changes)
        with tempfile.TemporaryDirectory(dir="/dev/shm") as memory:
            get = partial(self.stores.get, order, KEYS, Path(memory), work)
            await bringing.bring(order, self.engine, cpu.features(), get)


def _nowhere(*_: object) -> Any:
    raise AssertionError("nothing goes over the network here")


def brought(saved: Saved) -> Bring:
    return Bring(
        namespace="team", name="build-3-from-x", uid="d", session="build", session_uid="uid-1",
        epoch=2, image="sha256:1", volumes=(), deadline=30.0, phase=Phase.PENDING,
        target_node="a", target_pod=POD_B, why="Recover", checkpoint="build-2-k1",
        of_session="build", of_session_uid="uid-1", digest=saved.digest, location=saved.location,
        taken=1,
    )  # fmt: skip


@pytest.fixture
async def host(
    tmp_path: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Node]:
    made = Node(tmp_path, engine, monkeypatch)
    async with made.pods.served():
        yield made


async def test_a_session_is_stored_and_runs_on(host: Node, bench: kit.Lab) -> None:
    """And is brought back as it was then, whatever it did since."""
    container = bench.container(f"pod{POD_A}")
    host.pods.put(POD_A, container)
    with Outside(container) as outside:
        session = Session(container)
        session.typist.type("echo old > file; exec 5<>/dev/tcp/10.9.9.2/8000; sleep 1000 &\n")
        session.typist.type("read -p 'na''me? ' x\n")
        session.typist.until("name? ")
        session.typist.type("ha")
        session.typist.until("name? ha")
        kit.until(lambda: "sleep" in session.pids().values(), "the job runs")
        pids = session.pids()
        frozen: list[bool] = []
        cage = host.engine.freezer(container.hold)
        host.here.seen = {"seal": lambda: frozen.append(cage.frozen())}
        saved = await host.keep()
        assert frozen == [True]
        assert not cage.wanted()
        assert host.here.words == ["park", "seal", "unpark"]
        assert [body.get("keep") for body in host.here.asked] == [True, True, None]
        assert not (host.here.state / QUEUED).exists()
        assert [phase for phase, _ in host.said] == [Phase.DUMPING, Phase.TRANSFERRING]
        assert (saved.location, saved.seq) == ("peer://a", 7)
        assert 0 < saved.freeze_seconds < 10
        # It has noticed nothing.
        assert session.pids() == pids
        session.typist.type("lf\n")
        session.typist.type("echo got=$x; echo hello >&5; echo new > file; jobs; echo al''l\n")
        seen = session.typist.until("all")
        assert "got=half" in seen
        assert "Stopped" not in seen
        assert seen.count("Running") == 1
        outside.peer.settimeout(5)
        assert outside.peer.recv(10) == b"hello\n"
    target = bench.container(f"pod{POD_B}", address="10.9.9.3")
    host.pods.put(POD_B, target)
    (host.there.state / "ring").write_bytes(b"in the way")
    await host.bring(saved)
    assert (host.there.state / "ring").read_bytes() == b"what was shown"
    assert (host.there.state / "cut.json").exists()
    prepared, committed = host.there.asked
    assert (prepared["do"], committed["do"]) == ("prepare", "commit")
    assert prepared["stored"] == committed["stored"] == {
        "epoch": 2, "taken": 1, "why": "Recover", "from": "build", "checkpoint": "build-2-k1",
    }  # fmt: skip
    with typist(target) as other:
        other.type("ve\n")
        other.type("echo got=$x; cat file; jobs; echo al''l\n")
        seen = other.until("all")
    assert "got=have" in seen
    assert "old" in seen
    assert "new" not in seen
    assert seen.count("Running") == 1


async def test_a_session_is_stored_again_and_again(host: Node, bench: kit.Lab) -> None:
    container = bench.container(f"pod{POD_A}", "bash", "-c", "n=0; while read x; do echo g$x; done")
    host.pods.put(POD_A, container)
    session = Session(container)
    for number in range(5):
        session.typist.type("ha")
        with contextlib.suppress(FileNotFoundError):
            await asyncio.to_thread((host.folder / "work").rename, host.folder / f"work-{number}")
        await host.keep(replace(KEEP, name=f"build-2-k{number + 1}"))
        session.typist.type(f"lf-{number}\n")
        session.typist.until(f"ghalf-{number}")
    assert len(host.disk.list("uid-1")) == 5


async def test_a_session_is_stored_and_stops(host: Node, bench: kit.Lab) -> None:
    container = bench.container(f"pod{POD_A}")
    host.pods.put(POD_A, container)
    session = Session(container)
    session.typist.type("read -p 'na''me? ' x; echo got=$x\n")
    session.typist.until("name? ")
    cage = host.engine.freezer(container.hold)
    stored: list[tuple[bool, int]] = []
    host.here.seen = {"suspend": lambda: stored.append((cage.frozen(), len(host.disk.list())))}
    host.here.refusals = {"suspend": ["unavailable"]}
    saved = await host.keep(replace(KEEP, then=Then.STOP))
    assert stored == [(True, 1), (True, 1)]  # asked again: still frozen, and stored before
    assert host.here.words == ["park", "seal", "suspend", "suspend"]
    assert host.here.asked[-1]["checkpoint"] == "build-2-k1"
    assert host.said[-1] == (Phase.TRANSFERRING, replace(saved, freeze_seconds=_said(host)))
    await eventually(lambda: freezer.children(container.hold) == [])
    host.pods.put(POD_B, target := bench.container(f"pod{POD_B}"))
    await host.bring(saved, why="Wake")
    with typist(target) as other:
        other.type("awake\n")
        other.until("got=awake")


def _said(host: Node) -> float:
    left = host.said[-1][1]
    assert left is not None
    return left.freeze_seconds


@pytest.mark.parametrize("at", ["park", "seal", "suspend"])
async def test_what_does_not_stop_runs_on(host: Node, bench: kit.Lab, at: str) -> None:
    host.pods.put(POD_A, container := bench.container(f"pod{POD_A}"))
    session = Session(container)
    session.typist.type("read -p 'na''me? ' x; echo got=$x\n")
    session.typist.until("name? ")
    session.typist.type("ha")
    session.typist.until("name? ha")
    host.here.refusals = {at: ["failed"]}
    with pytest.raises(Refused):
        await host.keep(replace(KEEP, then=Then.STOP))
    assert host.here.words[-1] == "unpark"
    session.typist.type("lf\n")
    session.typist.until("got=half")


async def test_a_session_that_is_anothers_by_then_is_dead(host: Node, bench: kit.Lab) -> None:
    host.pods.put(POD_A, container := bench.container(f"pod{POD_A}"))
    Session(container)
    host.here.refusals = {"suspend": ["superseded"], "unpark": ["superseded"]}
    with pytest.raises(Gone, match="it is stored"):
        await host.keep(replace(KEEP, then=Then.STOP))
    await eventually(lambda: freezer.children(container.hold) == [])


async def test_an_agent_that_ends_in_the_middle(host: Node, bench: kit.Lab) -> None:
    """What it took out of the terminal is put back by the next one."""
    host.pods.put(POD_A, container := bench.container(f"pod{POD_A}"))
    session = Session(container)
    session.typist.type("read -p 'na''me? ' x; echo got=$x\n")
    session.typist.until("name? ")
    session.typist.type("ha")
    session.typist.until("name? ha")
    (work := host.folder / "work").mkdir()
    spool = Spool(work, host.folder / "images", KEYS, bytes(32), KEEP.name)
    taking = Taking(KEEP, host.engine, spool.images, spool)
    pod = containers.find(POD_A)
    async with host.engine.dumping(pod.hold, spool.images) as dumping:
        await taking.ahead(pod)
        await taking.stop(pod, keep=True)
        await taking.take(pod, dumping, keep=True)
    # Here it ends. Nothing of it is left but what the kernel and the sidecar's folder have.
    (cage,) = kit.ours(freezer.frozen_ones())
    assert cage.pod_uid == POD_A
    assert (host.here.state / QUEUED).exists()
    host.here.refusals = {"unpark": ["unavailable"]}
    assert await settle(POD_A, cage)
    with pytest.raises(Unavailable, match="started anew"):
        await keeping.resume(replace(KEEP, phase=Phase.DUMPING))
    session.typist.type("lf\n")
    session.typist.until("got=half")


async def test_an_agent_that_ends_at_the_last_moment(host: Node, bench: kit.Lab) -> None:
    """Stored and said so: whether it stopped only the sidecar knows."""
    host.pods.put(POD_A, bench.container(f"pod{POD_A}"))
    begun = replace(KEEP, phase=Phase.TRANSFERRING, then=Then.STOP)
    with pytest.raises(Unavailable, match="started anew"):
        await keeping.resume(begun)  # not yet stored
    stored = replace(begun, location="peer://a")
    await keeping.resume(stored)
    host.here.refusals = {"suspend": ["not_parked", "superseded"]}
    with pytest.raises(Unavailable, match="started anew"):
        await keeping.resume(stored)  # it runs on
    await keeping.resume(stored)
    assert host.here.words == ["suspend"] * 3
    host.pods.remove(POD_A)
    await keeping.resume(stored)  # its pod was deleted since


async def test_what_the_sidecar_refuses_does_not_run(host: Node, bench: kit.Lab) -> None:
    host.pods.put(POD_A, container := bench.container(f"pod{POD_A}"))
    Session(container)
    saved = await host.keep()
    host.pods.put(POD_B, target := bench.container(f"pod{POD_B}"))
    host.there.refusals = {"commit": ["busy", "refused"]}
    with pytest.raises(Refused):
        await host.bring(saved)
    assert host.there.words == ["prepare", "commit", "commit"]
    await eventually(lambda: target.pids() == [])
    # An agent after that one finds nothing.
    with pytest.raises(Unavailable, match="started anew"):
        await bringing.resume(replace(brought(saved), phase=Phase.TRANSFERRING), host.engine)


async def test_a_bring_whose_agent_ended_is_finished_or_undone(host: Node, bench: kit.Lab) -> None:
    host.pods.put(POD_A, container := bench.container(f"pod{POD_A}"))
    session = Session(container)
    begun = replace(
        brought(Saved(1, "sha256:0", 0.0, "peer://a", 7, 1.0)),
        phase=Phase.TRANSFERRING,
        target_pod=POD_A,
    )
    # The sidecar serves already; also if nobody knows that it was begun.
    host.here.serving = True
    await bringing.resume(begun, host.engine)
    await bringing.bring(begun, host.engine, (), _nowhere)
    # Held, and it is asked: as if the tree had just been restored.
    cage = await host.engine.freeze(container.hold)
    await bringing.resume(begun, host.engine)
    assert not cage.wanted()
    session.typist.type("echo al''ive\n")
    session.typist.until("alive")
    cage = await host.engine.freeze(container.hold)
    host.here.refusals = {"commit": ["refused"], "unpark": ["not_serving"]}
    with pytest.raises(Unavailable, match="started anew"):
        await bringing.resume(begun, host.engine)
    await eventually(lambda: freezer.children(container.hold) == [])
    assert not await settle(POD_A, cage)  # what goes on at the same time comes to its end
    assert host.here.words == ["status", "status", "commit", "commit", "unpark"]
