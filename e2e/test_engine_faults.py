"""What the engine leaves behind when something dies, resists or lies. No cluster."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from e2e import engine_kit as kit
from e2e.cluster.places import REPOSITORY
from e2e.engine_session import (
    Session,
    Target,
    bench,
    dumped,
    engine,
    eventually,
    move,
    node,
    tidy,
)
from holdfast_node import containers, freezer
from holdfast_node.engine import Engine
from holdfast_node.failure import DumpFailed, RestoreFailed
from holdfast_node.inside import OWN_PIDS

__all__ = ["bench", "engine", "node", "tidy"]  # fixtures; `tidy` stands in for the cluster's

pytestmark = pytest.mark.timeout(60)


COUNTER = """
import mmap, os
file = os.open("/home/user/count", os.O_RDWR | os.O_CREAT)
os.ftruncate(file, 8)
shared = mmap.mmap(file, 8)
print("up", flush=True)
count = 0
while True:
    count += 1
    shared[:8] = count.to_bytes(8, "little")
"""


async def test_a_frozen_tree_does_not_run_until_killed(bench: kit.Lab, engine: Engine) -> None:
    session = Session(bench.container("a", "python3", "-c", COUNTER))
    session.typist.until("up")
    count = session.container.root / "home/user/count"

    def value() -> int:
        return int.from_bytes(count.read_bytes(), "little")

    async with dumped(engine, session, bench.images()) as cage:
        stopped = value()
        await asyncio.sleep(0.1)
        assert value() == stopped > 0
        cage.kill()
        assert value() == stopped
    await eventually(lambda: session.container.pids() == [])


async def test_a_container_that_ends_while_its_tree_is_frozen_can_be_let_go(
    bench: kit.Lab, engine: Engine
) -> None:
    session = Session(bench.container("a"))
    hold = session.container.hold
    cage = await engine.freeze(hold)
    assert not containers.ending(hold)
    os.kill(hold, signal.SIGKILL)
    await eventually(lambda: containers.ending(hold))
    cage.kill()
    await eventually(lambda: not Path(f"/proc/{hold}").exists())
    assert containers.ending(hold)


async def test_a_fork_bomb_of_short_lives_is_frozen_whole(bench: kit.Lab, engine: Engine) -> None:
    session = Session(bench.container("a", "bash", "-c", "while :; do (:) & (sleep 0.01) & done"))
    await asyncio.sleep(0.3)
    cage = await engine.freeze(session.container.hold)
    assert set(session.container.pids()) <= set(cage.members())
    was = sorted(cage.members())
    await asyncio.sleep(0.1)
    assert sorted(cage.members()) == was
    cage.kill()


AGENT = """
import asyncio, sys
from pathlib import Path
from e2e import engine_kit
engine_kit.use_pycriu()
from holdfast_node import preflight
from holdfast_node.engine import Engine

async def held(restored):
    print("held", flush=True)
    await asyncio.sleep(100)

async def main(bundle, hold, images):
    engine = Engine(bundle, notes=preflight.look(bundle).notes)
    async with engine.restoring(hold, images) as restoring:
        await restoring.restore(held)

asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])))
"""
HEAP = """
import os
heap = os.urandom(1 << 20) * 400
print("up", flush=True)
print("got=" + input())
"""


@pytest.mark.parametrize("held", [False, True])
async def test_an_agent_killed_while_restoring_lets_nothing_run(
    bench: kit.Lab, engine: Engine, held: bool
) -> None:
    """CRIU by itself would let the tree run when nobody answers it. Before the agent could have
    committed the move, the tree is killed; after that it stays, frozen, for the next agent."""
    session = Session(bench.container("a", "python3", "-c", HEAP))
    session.typist.until("up")
    target = bench.container("b")
    there = engine.freezer(target.hold)
    images = bench.images()
    async with dumped(engine, session, images) as source:
        words = [sys.executable, "-c", AGENT, str(bench.bundle), str(target.hold), str(images)]
        agent = await asyncio.create_subprocess_exec(
            *words, stdout=asyncio.subprocess.PIPE, cwd=REPOSITORY
        )
        assert agent.stdout is not None
        if held:
            assert await agent.stdout.readline() == b"held\n"
        else:
            await eventually(lambda: there.exists() and len(there.members()) == 3)
        agent.kill()
        await agent.wait()
        if held:
            await eventually(lambda: len(freezer.children(target.hold)) == 1)
            assert there.frozen()
            [keeper] = freezer.children(target.hold)  # which hold has not been told of
            assert sorted(there.members()) == sorted(freezer.descendants(keeper))
            assert there.path in [one.path for one in freezer.frozen_ones()]
            there.kill()
        await eventually(lambda: target.pids() == [])
        source.thaw()
    session.typist.type("alive\n")
    session.typist.until("got=alive")


HOSTILE = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>
__attribute__((constructor)) static void begin(void)
{
    struct { unsigned version; int pid; } header = {0x20080522, 0};
    struct { unsigned effective, permitted, inheritable; } data[2];
    if (syscall(SYS_capget, &header, data) == 0 && (data[0].effective || data[1].effective))
        close(open("/home/user/owned", O_CREAT | O_WRONLY, 0644));
}
int main(void) { return 0; }
"""


def plant(container: kit.Container, folder: Path) -> None:
    """What a user's image could bring for CRIU to load, run or believe."""
    source = folder / "hostile.c"
    source.write_text(HOSTILE)
    library, program = folder / "hostile.so", folder / "hostile"
    for flags in (["-shared", "-fPIC", "-o", str(library)], ["-static", "-o", str(program)]):
        subprocess.run(["gcc", "-w", *flags, str(source)], check=True)
    root = container.root
    for path in ("etc/hostile.so", "usr/lib/criu/hostile.so", "usr/lib/libnl-3.so.200"):
        (root / path).parent.mkdir(exist_ok=True)
        shutil.copy(library, root / path)
    (root / "etc/ld.so.preload").write_text("/etc/hostile.so\n")
    for path in ("usr/local/bin/iptables", "usr/sbin/iptables", "usr/bin/sh"):
        (root / path).unlink(missing_ok=True)
        shutil.copy(program, root / path)
    (root / "etc/criu").mkdir()
    (root / "etc/criu/default.conf").write_text("action-script /usr/local/bin/iptables\n")
    (root / "run/criu.kdat").write_bytes(bytes(4096))


async def test_an_image_cannot_have_its_own_code_run_with_the_agent_s_rights(
    bench: kit.Lab, engine: Engine, tmp_path: Path
) -> None:
    source, target = bench.container("a"), Target(bench.container("b"))
    for container in (source, target.container):
        plant(container, tmp_path)
    session = Session(source)
    session.typist.type("read -p 'na''me? ' x; echo got=$x\n")
    session.typist.until("name? ")
    await move(engine, session, target, bench.images())
    target.typist.type("moved\n")
    target.typist.until("got=moved")
    assert not (source.root / "home/user/owned").exists()
    assert not (target.container.root / "home/user/owned").exists()


def kill_criu(bench: kit.Lab) -> None:
    """What it restores has its program too at first, but has it for a parent."""
    found: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (path / "exe").samefile(bench.bundle / "ld.so"):
                found[int(path.name)] = int(containers.status(int(path.name))["PPid"])
    [criu] = [pid for pid, parent in found.items() if parent not in found]
    os.kill(criu, signal.SIGKILL)


async def test_criu_killed_while_dumping_leaves_the_tree_frozen(
    bench: kit.Lab, engine: Engine
) -> None:
    """It has the tree thawed while it works, held by ptrace, which ends with it. Whether a process
    that had CRIU's code in it at that moment survives is another matter: it may not."""
    session = Session(bench.container("a", "python3", "-c", HEAP))
    session.typist.until("up")
    hold = session.container.hold
    cage = engine.freezer(hold)
    async with engine.dumping(hold, bench.images()) as dumping:
        await engine.freeze(hold)
        dump = asyncio.create_task(dumping.dump())
        await eventually(lambda: not cage.frozen())
        kill_criu(bench)
        with pytest.raises(DumpFailed):
            await dump
    assert cage.frozen()
    cage.kill()


async def test_a_dump_that_is_given_up_leaves_the_tree_as_it_was(
    bench: kit.Lab, engine: Engine
) -> None:
    session = Session(bench.container("a", "python3", "-c", HEAP))
    session.typist.until("up")
    hold = session.container.hold
    async with engine.dumping(hold, bench.images()):
        await asyncio.sleep(0.3)  # CRIU stands ready
        words = ["nsenter", "-t", str(hold), "-p", "sh", "-c", "echo $$"]
        shell = await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.PIPE)
        told, _ = await shell.communicate()
        assert int(told) not in OWN_PIDS  # the session's PIDs go on as they did
    assert not engine.freezer(hold).wanted()
    async with engine.dumping(hold, bench.images()) as dumping:
        cage = await engine.freeze(hold)
        dump = asyncio.create_task(dumping.dump())
        await eventually(lambda: not cage.frozen())
        dump.cancel()
        with pytest.raises(asyncio.CancelledError):
            await dump
    assert cage.frozen()
    cage.thaw()
    session.typist.type("alive\n")
    session.typist.until("got=alive")
    assert not cage.wanted()


@pytest.mark.parametrize("members", [2, 3])
async def test_criu_killed_while_restoring_leaves_nothing(
    bench: kit.Lab, engine: Engine, members: int
) -> None:
    """Itself and the first of the tree, which has just begun and has CRIU's socket too; or two."""
    session = Session(bench.container("a", "python3", "-c", HEAP))
    session.typist.until("up")
    target = Target(bench.container("b"))
    images = bench.images()
    async with dumped(engine, session, images) as cage:
        async with engine.restoring(target.container.hold, images) as restoring:
            restore = asyncio.create_task(restoring.restore(target.held))
            there = engine.freezer(target.container.hold)
            await eventually(lambda: len(there.members()) >= members)
            kill_criu(bench)
            with pytest.raises(RestoreFailed):
                await restore
        await eventually(lambda: target.container.pids() == [])
        cage.thaw()
    session.typist.type("alive\n")
    session.typist.until("got=alive")
