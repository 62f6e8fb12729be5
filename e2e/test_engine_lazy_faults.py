"""What is left when pages do not come: never a session that runs on with zeros. No cluster."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from pathlib import Path

import pytest

from e2e import engine_kit as kit
from e2e.cluster.places import REPOSITORY
from e2e.engine_lazy import Late, Lazily, Tunnel, heap, lazily, pagers, serves
from e2e.engine_session import Refusal, Session, Target, bench, engine, eventually, node, tidy
from e2e.test_engine_faults import plant
from holdfast_node import containers, memory_due
from holdfast_node.engine import Engine
from holdfast_node.failure import RestoreFailed
from holdfast_node.lazy import PagesLost

__all__ = ["bench", "engine", "node", "tidy"]  # fixtures; `tidy` stands in for the cluster's

pytestmark = [pytest.mark.long, pytest.mark.timeout(60)]


async def check_blocked(move: Lazily, target: Target) -> None:
    """Frozen; and if somebody thaws it nevertheless, it stops where its memory does."""
    assert move.there.frozen()
    assert memory_due.blocked(move.there)
    target.typist.type("\n")
    move.there.thaw()
    await asyncio.sleep(0.5)
    assert b"again=" not in target.typist.read()
    assert move.there.members()
    move.there.kill()
    await eventually(lambda: not memory_due.coming(move.there))


async def test_a_stream_that_breaks_blocks_the_session_for_good(
    bench: kit.Lab, engine: Engine
) -> None:
    session, _ = heap(bench, 256)
    target = Late(bench.container("b"))
    async with lazily(engine, session, target, bench.images()) as move:
        await move.tunnel.cut()
        await move.lost()
    assert move.cage.frozen()  # the source has it still; who has the session, the Lease knows
    await check_blocked(move, target)


async def test_a_pager_that_is_killed_blocks_the_session_for_good(
    bench: kit.Lab, engine: Engine
) -> None:
    session, _ = heap(bench, 256)
    target = Late(bench.container("b"))
    async with lazily(engine, session, target, bench.images()) as move:
        watcher, child = pagers()
        assert int(containers.status(child)["PPid"]) == watcher
        os.kill(child, signal.SIGKILL)
        with pytest.raises(PagesLost, match="the pager was killed"):
            await move.restoring.arrived()
        assert pagers() == [watcher]
    await check_blocked(move, target)


async def test_a_source_that_is_not_as_it_was_serves_nothing(
    bench: kit.Lab, engine: Engine
) -> None:
    session, _ = heap(bench, 256)
    target = Late(bench.container("b"))
    async with lazily(engine, session, target, bench.images()) as move:
        move.cage.thaw()
        move.tunnel.open.set()
        with pytest.raises(PagesLost, match="not as it was dumped"):
            await move.serving
        move.tunnel.source.close()
        with pytest.raises(PagesLost):
            await move.restoring.arrived()
    await check_blocked(move, target)


async def test_one_that_waits_in_the_kernel_for_a_page_can_be_killed(
    bench: kit.Lab, engine: Engine
) -> None:
    """It cannot be frozen there; what could be has been."""
    program = """
import os
heap = os.urandom(1 << 20) * 256
pipe = os.pipe()
print("up", flush=True)
os.read(0, 1)
os.write(pipe[1], memoryview(heap)[200 << 20:][:4096])
"""
    session = Session(bench.container("a", "python3", "-c", program))
    session.typist.until("up")
    target = Late(bench.container("b"))
    async with lazily(engine, session, target, bench.images()) as move:
        target.typist.type("\n")
        await asyncio.sleep(0.3)
        await move.tunnel.cut()
        await move.lost()
    assert memory_due.blocked(move.there)
    assert move.there.wanted()
    move.there.kill()
    await eventually(lambda: target.container.pids() == [])


async def test_memory_that_does_not_all_come_before_it_runs_harms_nobody(
    bench: kit.Lab, engine: Engine
) -> None:
    session, digest = heap(bench, 256)
    there, images, hold = bench.container("b"), bench.images(), session.container.hold
    target = Target(there)
    async with Tunnel() as tunnel:
        tunnel.delay = 0.02
        async with engine.restoring(there.hold, images, **tunnel.taken(True)) as restoring:
            target.whole = restoring.whole
            async with engine.dumping(hold, images, lazy=True) as dumping:
                cage = await engine.freeze(hold)
                await dumping.dump()
            serving = serves(engine, hold, tunnel)
            restored = asyncio.create_task(restoring.restore(target.held))
            await eventually(lambda: tunnel.carried > 32 << 20)
            await tunnel.cut()
            with pytest.raises(PagesLost):
                await restored
            with pytest.raises(PagesLost):
                await serving
        await eventually(lambda: there.pids() == [] and pagers() == [])
    assert not memory_due.coming(engine.freezer(there.hold))
    assert cage.frozen()
    target.typist.close()
    cage.thaw()
    session.typist.type("\n")
    session.typist.until(f"again={digest}", 30)


async def test_a_move_that_is_given_up_before_it_runs_harms_nobody(
    bench: kit.Lab, engine: Engine
) -> None:
    session, digest = heap(bench, 256)
    there = bench.container("b")
    refusing = Late(there, refuse=True)
    hold = session.container.hold
    images = bench.images()
    async with Tunnel() as tunnel:
        refusing.tunnel = tunnel
        async with engine.restoring(there.hold, images, after=tunnel.target) as restoring:
            async with engine.dumping(hold, images, lazy=True) as dumping:
                cage = await engine.freeze(hold)
                await dumping.dump()
            serving = serves(engine, hold, tunnel)
            with pytest.raises(Refusal):
                await restoring.restore(refusing.held)
        tunnel.open.set()
        with pytest.raises(PagesLost):  # it was not told that all had come
            await serving
    await eventually(lambda: there.pids() == [])
    await eventually(lambda: pagers() == [])
    assert not engine.freezer(there.hold).wanted()
    assert cage.frozen()
    refusing.typist.close()
    # It may be tried again.
    target = Target(there)
    async with lazily(engine, session, target, bench.images()) as move:
        await move.all_came()
    target.typist.type("\n")
    target.typist.until(f"again={digest}", 30)


async def test_a_lazy_dump_that_nobody_takes_leaves_the_session_as_it_was(
    bench: kit.Lab, engine: Engine
) -> None:
    session, digest = heap(bench, 128)
    hold = session.container.hold
    async with engine.dumping(hold, bench.images(), lazy=True) as dumping:
        cage = await engine.freeze(hold)
        dumped = await dumping.dump()
        assert dumped.size < 16 << 20
    assert cage.frozen()
    listening = session.container.enter_network(
        lambda: Path("/proc/thread-self/net/tcp").read_text().splitlines()
    )
    assert len(listening) == 1  # its heading: CRIU has opened no port
    cage.thaw()
    session.typist.type("\n")
    session.typist.until(f"again={digest}", 30)


async def test_pages_that_do_not_come_while_it_is_restored_end_the_restore(
    bench: kit.Lab, engine: Engine
) -> None:
    """CRIU itself waits for one then, where nothing but its end can reach it."""
    session, digest = heap(bench, 64)
    target = Target(bench.container("b"))
    hold = session.container.hold
    images = bench.images()
    async with (
        Tunnel() as tunnel,
        engine.restoring(target.container.hold, images, after=tunnel.target) as restoring,
    ):
        tunnel.open.clear()
        async with engine.dumping(hold, images, lazy=True) as dumping:
            cage = await engine.freeze(hold)
            await dumping.dump()
        restore = asyncio.create_task(restoring.restore(target.held))
        await asyncio.sleep(0.5)
        assert not restore.done()
        await tunnel.cut()
        with pytest.raises(RestoreFailed):
            await restore
    await eventually(lambda: target.container.pids() == [])
    await eventually(lambda: pagers() == [])
    cage.thaw()
    session.typist.type("\n")
    session.typist.until(f"again={digest}", 30)


AGENT = """
import asyncio, socket, sys
from pathlib import Path
from e2e import engine_kit
engine_kit.use_pycriu()
from holdfast_node import preflight
from holdfast_node.engine import Engine

async def held(restored):
    print("held", flush=True)
    if sys.argv[5] == "held":
        await asyncio.sleep(100)

async def main(bundle, hold, images, stream):
    engine = Engine(bundle, notes=preflight.look(bundle).notes)
    async with engine.restoring(hold, images, after=stream) as restoring:
        await restoring.restore(held)
        print("runs", flush=True)
        await restoring.arrived()

stream = socket.socket(fileno=int(sys.argv[4]))
asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), stream))
"""


@pytest.mark.parametrize("when", ["held", "runs"])
async def test_an_agent_that_is_killed_leaves_it_frozen_and_blocked(
    bench: kit.Lab, engine: Engine, when: str
) -> None:
    """For the next agent, that tells the sidecar first."""
    session, _ = heap(bench, 256)
    target = bench.container("b")
    there = engine.freezer(target.hold)
    hold = session.container.hold
    images = bench.images()
    async with Tunnel() as tunnel:
        async with engine.dumping(hold, images, lazy=True) as dumping:
            cage = await engine.freeze(hold)
            await dumping.dump()
        serving = serves(engine, hold, tunnel)
        words = [str(bench.bundle), str(target.hold), str(images), str(tunnel.target.fileno())]
        agent = await asyncio.create_subprocess_exec(
            sys.executable, "-c", AGENT, *words, when,
            stdout=asyncio.subprocess.PIPE, cwd=REPOSITORY, pass_fds=[tunnel.target.fileno()],
        )  # fmt: skip
        tunnel.target.close()
        assert agent.stdout is not None
        while (said := await agent.stdout.readline()) != f"{when}\n".encode():
            assert said
            tunnel.open.clear()
        tunnel.open.clear()
        agent.kill()
        await agent.wait()
        await eventually(lambda: there.frozen() and memory_due.blocked(there))
        serving.cancel()
        await asyncio.wait([serving])
    assert len(there.members()) == 2
    assert cage.frozen()
    there.kill()
    await eventually(lambda: target.pids() == [])


async def test_a_container_that_ends_takes_the_pager_with_it(
    bench: kit.Lab, engine: Engine
) -> None:
    session, _ = heap(bench, 256)
    target = Late(bench.container("b"))
    async with lazily(engine, session, target, bench.images()) as move:
        os.kill(target.container.hold, signal.SIGKILL)
        await eventually(lambda: pagers() == [])
        with contextlib.suppress(PagesLost):
            await move.restoring.arrived()
        assert not move.serving.done()


async def test_an_image_cannot_have_its_own_code_run_lazily_either(
    bench: kit.Lab, engine: Engine, tmp_path: Path
) -> None:
    source, target = bench.container("a"), Target(bench.container("b"))
    for container in (source, target.container):
        plant(container, tmp_path)
    session = Session(source)
    session.typist.type("read -p 'na''me? ' x; echo got=$x\n")
    session.typist.until("name? ")
    async with lazily(engine, session, target, bench.images()) as move:
        target.typist.type("moved\n")
        await move.all_came()
    target.typist.until("got=moved")
    assert not (source.root / "home/user/owned").exists()
    assert not (target.container.root / "home/user/owned").exists()
