"""Freezing and thawing without job control noticing."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from holdfast_sidecar.hold import EventKind, HoldError
from holdfast_sidecar.state import Graph

from .holding import INTERACTIVE_BASH, Session, Start, eventually


def names(graph: Graph) -> list[str]:
    return sorted(p.name for p in graph.processes)


def states(graph: Graph) -> dict[int, str]:
    return {p.pid: p.state for p in graph.processes if p.state != "Z"}


def size(name: str) -> int:
    return Path(name).stat().st_size if Path(name).exists() else 0


async def grows(name: str) -> None:
    before = size(name)

    async def look() -> int:
        return size(name)

    await eventually(look, lambda now: now > before, f"growth of {name}")


async def stands_still(name: str) -> None:
    before = size(name)
    await asyncio.sleep(0.05)  # that nothing happens can only be seen by waiting for it
    assert size(name) == before


async def test_bash_never_notices_its_foreground_job_stop(start: Start) -> None:
    session = await start(*INTERACTIVE_BASH)
    await session.terminal.expect(b"ready> ")
    session.terminal.send(b"cat | sh -c 'cat; true'\n")
    await session.graph_when(lambda g: names(g).count("cat") == 2, "the pipeline")
    for _ in range(20):
        frozen = await session.link.freeze()
        assert (frozen.stopped, frozen.refused) == (5, 0)
        assert set(states(await session.link.graph()).values()) == {"T"}
        await session.link.thaw()
    session.terminal.send(b"still here\n")
    output = await session.terminal.expect(b"still here\r\n", times=2)
    assert b"Stopped" not in output
    assert output.count(b"ready> ") == 1
    kinds = [e.kind for e in session.events]
    assert kinds == [EventKind.FROZEN, EventKind.THAWED] * 20


async def test_jobs_stopped_before_stay_stopped_after(start: Start) -> None:
    session = await start(*INTERACTIVE_BASH)
    await session.terminal.expect(b"ready> ")
    session.terminal.send(b"sleep 1000\n")
    await session.graph_when(lambda g: "sleep" in names(g), "the job")
    session.terminal.send(b"\x1a")
    await session.terminal.expect(b"Stopped")
    for _ in range(2):  # freezing twice must not forget who was stopped before the first
        await session.link.freeze()
    await session.link.thaw()
    graph = await session.link.graph()
    assert {p.name: p.state == "T" for p in graph.processes} == {
        "keeper": False,
        "bash": False,
        "sleep": True,
    }
    session.terminal.send(b"kill %1; fg\n")
    await session.graph_when(lambda g: "sleep" not in names(g), "the end of the job")


@pytest.mark.timed
async def test_forking_loops_are_frozen_whole(start: Start) -> None:
    loop = "while [ $SECONDS -lt 20 ]; do (true) & true; /bin/true; echo >> rounds; done"
    session = await start("bash", "-c", f"({loop}) & ({loop}) & {loop}")
    await grows("rounds")
    for _ in range(5):
        frozen = await session.link.freeze()
        assert frozen.milliseconds < 3000
        first = states(await session.link.graph())
        assert set(first.values()) <= {"T", "D"}  # D: in vfork(), until its child goes on
        await stands_still("rounds")
        assert states(await session.link.graph()).keys() == first.keys()
        await session.link.thaw()
        await grows("rounds")


THREADS = """
import threading, time, ctypes, os
def work():
    while True:
        with open("ticks", "a") as f: f.write(".")
threading.Thread(target=work).start()
print("threads", flush=True)
# The leader goes, its thread goes on.
ctypes.CDLL(None).pthread_exit(None)
"""


async def test_threads_of_a_dead_leader_are_frozen_too(start: Start, python: str) -> None:
    session = await start(python, "-c", THREADS)
    await session.terminal.expect(b"threads")
    command = (await session.link.status()).command_pid
    await session.graph_when(
        lambda g: any(p.pid == command and p.state == "Z" for p in g.processes), "a dead leader"
    )
    await session.link.freeze()
    await stands_still("ticks")
    await session.link.thaw()
    await grows("ticks")


async def test_freeze_and_thaw_repeat_and_idle_thaw_is_fine(start: Start) -> None:
    session = await start("cat")
    await session.link.thaw()
    first, second = await session.link.freeze(), await session.link.freeze()
    assert first.stopped == second.stopped == 2
    assert (await session.link.status()).frozen
    await session.link.thaw()
    await session.link.thaw()
    assert not (await session.link.status()).frozen
    session.terminal.send(b"alive\n")
    await session.terminal.expect(b"alive\r\n", times=2)


async def reads(session: Session) -> None:
    """Its traps are set by then."""
    await session.foreground_when(
        lambda g: any(t.waits_on for p in g.processes for t in p.threads), "a read"
    )


async def test_a_frozen_session_can_be_ended_but_not_continued(start: Start) -> None:
    session = await start("bash", "-c", "trap 'exit 5' HUP; while :; do read x; done")
    await reads(session)
    await session.link.freeze()
    with pytest.raises(HoldError, match="frozen"):
        await session.link.signal(signal.SIGCONT)
    await session.link.end(5)
    assert (await session.event(EventKind.EXITED)).code == 5


async def test_end_kills_what_does_not_listen(start: Start) -> None:
    session = await start("bash", "-c", "trap '' HUP TERM; while :; do read x; done")
    await reads(session)
    await session.link.end(0.1)
    assert (await session.event(EventKind.EXITED)).signal == signal.SIGKILL


async def test_signal_goes_to_the_foreground_group(start: Start) -> None:
    session = await start(*INTERACTIVE_BASH)
    await session.terminal.expect(b"ready> ")
    session.terminal.send(b"sleep 1000\n")
    await session.foreground_when(lambda g: names(g) == ["sleep"], "sleep in front")
    await session.link.signal(signal.SIGINT)
    await session.foreground_when(lambda g: names(g) == ["bash"], "bash in front")
