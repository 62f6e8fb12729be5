"""Sessions that go on before their memory is there: real dumps and restores, without a cluster."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from e2e import engine_kit as kit
from e2e.engine_lazy import Late, heap, lazily, pagers
from e2e.engine_session import Session, Target, bench, engine, eventually, node, tidy
from holdfast_node import containers, memory_due, preflight
from holdfast_node.engine import Engine
from holdfast_wire.errors import Unavailable

__all__ = ["bench", "engine", "node", "tidy"]  # fixtures; `tidy` stands in for the cluster's

pytestmark = [pytest.mark.long, pytest.mark.timeout(60)]


async def test_memory_follows_the_session(bench: kit.Lab, engine: Engine) -> None:
    session, digest = heap(bench, 256)
    target = Target(bench.container("b"))
    target.waited = 0.2
    async with lazily(engine, session, target, bench.images()) as move:
        await move.all_came()
        assert move.tunnel.carried > 256 << 20
    target.typist.type("\n")
    target.typist.until(f"again={digest}", 30)
    assert not memory_due.blocked(move.there)
    await eventually(lambda: pagers() == [])


async def test_memory_comes_before_the_session_runs(bench: kit.Lab, engine: Engine) -> None:
    session, digest = heap(bench, 256)
    target = Target(bench.container("b"))
    async with lazily(engine, session, target, bench.images(), whole=True) as move:
        assert move.tunnel.carried > 256 << 20
        assert await move.serving > 256 << 20
        await eventually(lambda: pagers() == [])
        assert not memory_due.coming(move.there)
        await move.tunnel.cut()
        move.cage.kill()
        await move.restoring.arrived()
    target.typist.type("\n")
    target.typist.until(f"again={digest}", 30)


async def test_what_is_not_there_is_waited_for(bench: kit.Lab, engine: Engine) -> None:
    """It runs, and stops at the first page that it touches and that has not come."""
    session, digest = heap(bench, 64)
    target = Late(bench.container("b"))
    async with lazily(engine, session, target, bench.images()) as move:
        assert not move.there.frozen()
        with pytest.raises(Unavailable, match="still on its way"):
            async with engine.dumping(target.container.hold, bench.images()):
                pass
        target.typist.type("\n")
        await asyncio.sleep(0.5)
        assert b"again=" not in target.typist.read()
        assert not move.serving.done()
        await move.all_came()
    target.typist.until(f"again={digest}", 30)


async def test_a_session_of_another_user_moves_lazily(bench: kit.Lab, engine: Engine) -> None:
    session = Session(bench.container("a", uid=1000))
    session.typist.type("id -u; read -p 'na''me? ' x; echo got=$x:$UID\n")
    session.typist.until("name? ")
    target = Target(bench.container("b", uid=1000))
    async with lazily(engine, session, target, bench.images()) as move:
        target.typist.type("moved\n")
        await move.all_came()
    target.typist.until("got=moved:1000")


BUSY = """
import mmap, os, random, threading
SIZE, PAGE, PARTS = 96 << 20, 4096, 4
rand = random.Random(7)
areas = [mmap.mmap(-1, SIZE // PARTS, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
         for _ in range(PARTS)]
model = [[rand.getrandbits(64).to_bytes(8, "little") for _ in range(SIZE // PARTS // PAGE)]
         for _ in range(PARTS)]
for area, pages in zip(areas, model):
    for at, page in enumerate(pages):
        area[at * PAGE:at * PAGE + PAGE] = page * (PAGE // 8)

def check(part):
    area, pages = areas[part], model[part]
    wrong = sum(area[at * PAGE:at * PAGE + PAGE] != page * (PAGE // 8)
                for at, page in enumerate(pages))
    return f"{part}:{wrong}"

def writes(part, count):
    rand = random.Random(part)
    for _ in range(count):
        at = rand.randrange(len(model[part]))
        page = rand.getrandbits(64).to_bytes(8, "little")
        areas[part][at * PAGE:at * PAGE + PAGE] = page * (PAGE // 8)
        model[part][at] = page

def forks():
    if os.fork() == 0:
        if os.fork() == 0:
            writes(0, 500)
            print("grandchild=" + check(0), flush=True)
            os._exit(0)
        print("child=" + check(0), flush=True)
        os.wait()
        os._exit(0)

def shuffles():
    area, pages = areas[1], model[1]
    area.madvise(mmap.MADV_DONTNEED, 0, 512 * PAGE)
    pages[:512] = [bytes(8)] * 512
    block = mmap.mmap(-1, 64 * PAGE)  # so that it has to go elsewhere to grow
    area.resize(len(area) + (8 << 20))
    pages += [bytes(8)] * ((8 << 20) // PAGE)
    area.resize(len(area) - (10 << 20))
    del pages[-((10 << 20) // PAGE):]

print("up", flush=True)
input()
threads = [threading.Thread(target=writes, args=(part, 20000)) for part in (2, 3)]
for thread in threads:
    thread.start()
forks()
shuffles()
writes(1, 5000)
for thread in threads:
    thread.join()
os.wait()
print("wrong=" + " ".join(check(part) for part in range(PARTS)) + " end", flush=True)
"""


@pytest.mark.parametrize("late", [False, True])
async def test_what_processes_do_with_memory_that_is_not_there(
    bench: kit.Lab, engine: Engine, late: bool
) -> None:
    """Two threads write all over it, it forks, and its child does, it gives memory back, and moves
    some about: every page is what it would have been."""
    session = Session(bench.container("a", "python3", "-c", BUSY))
    session.typist.until("up", 30)
    target = (Late if late else Target)(bench.container("b"))
    async with lazily(engine, session, target, bench.images()) as move:
        target.typist.type("\n")
        await asyncio.sleep(0.2)
        await move.all_came()
        assert move.tunnel.carried < 160 << 20  # nothing comes twice, though three want it
    seen = target.typist.until(" end", 60)
    assert "wrong=0:0 1:0 2:0 3:0 end" in seen
    assert "grandchild=0:0" in seen
    assert "child=0:0" in seen.replace("grandchild", "")


async def test_a_process_that_ends_before_its_pages_came(bench: kit.Lab, engine: Engine) -> None:
    session = Session(bench.container("a"))
    program = "import os; heap = os.urandom(1 << 20) * 400; print('up'); input()"
    session.typist.type(f"python3 -c \"{program}\"; echo le''ft=$?\n")
    session.typist.until("up")
    target = Late(bench.container("b"))
    async with lazily(engine, session, target, bench.images()) as move:
        [python] = [pid for pid in move.there.members() if containers.name(pid) == "python3"]
        os.kill(python, signal.SIGKILL)
        await eventually(lambda: containers.ending(python))
        await move.all_came()
        assert move.tunnel.carried < 300 << 20  # what nobody wants any more is not fetched
    target.typist.until("left=137")


@pytest.mark.timed
@pytest.mark.timeout(120)
async def test_the_freeze_does_not_wait_for_the_memory(bench: kit.Lab, engine: Engine) -> None:
    """1 GiB of heap; the best of three, for others may use the machine too."""
    best = 60.0
    for _ in range(3):
        session, digest = heap(bench, 1024)
        target = Target(bench.container("b"))
        async with lazily(engine, session, target, bench.images()) as move:
            await move.all_came()
        target.typist.type("\n")
        target.typist.until(f"again={digest}", 30)
        best = min(best, move.freeze_seconds)
        if best < 0.6:
            break
        bench.end_all()
    assert best < 0.6


WIPED = """
import mmap, os
SIZE, WIPE_ON_FORK = 128 << 20, 18
area = mmap.mmap(-1, SIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for at in range(0, SIZE, 4096):
    area[at] = 1
area.madvise(WIPE_ON_FORK)
print("up", flush=True)
input()
child = os.fork()
there = sum(area[at] for at in range(0, SIZE, 4096))
if child == 0:
    print("child=%d." % there, flush=True)
    os._exit(0)
os.wait()
print("parent=%d." % there, flush=True)
"""


async def test_a_child_does_not_inherit_what_is_to_be_wiped(bench: kit.Lab, engine: Engine) -> None:
    """The kernel tells nothing of it; random number generators rely on it."""
    session = Session(bench.container("a", "python3", "-c", WIPED))
    session.typist.until("up")
    target = Late(bench.container("b"))
    async with lazily(engine, session, target, bench.images()) as move:
        assert move.tunnel.carried < 64 << 20
        move.tunnel.delay = 0.01
        target.typist.type("\n")
        await move.all_came()
    assert "child=0." in target.typist.until("parent=32768.", 20)


ZOMBIE = """
import os
if os.fork() == 0:
    os._exit(7)
heap = os.urandom(1 << 20) * 16
print("up", flush=True)
input()
print("got", os.waitstatus_to_exitcode(os.wait()[1]), heap == heap[:1 << 20] * 16, flush=True)
"""


async def test_a_zombie_moves_lazily(bench: kit.Lab, engine: Engine) -> None:
    session = Session(bench.container("a", "python3", "-c", ZOMBIE))
    session.typist.until("up")
    target = Target(bench.container("b"))
    async with lazily(engine, session, target, bench.images()) as move:
        target.typist.type("\n")
        await move.all_came()
    target.typist.until("got 7 True")


def test_this_node_can_take_memory_that_follows(bench: kit.Lab) -> None:
    assert preflight.can_follow(bench.bundle)
