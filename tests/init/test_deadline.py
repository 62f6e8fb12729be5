"""The dead-man's switch: past its deadline the session does not run, whoever is there to see."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest

from holdfast_sidecar.hold import EventKind, HoldError

from .holding import Session, Start, descendants, process_state

SECOND = 1_000_000_000

# Leaves the time of its last instruction in a file.
TICKER = """
import time, os
fd = os.open("tick", os.O_CREAT | os.O_RDWR, 0o600)
def tick(): os.pwrite(fd, b"%020d" % time.clock_gettime_ns(time.CLOCK_BOOTTIME), 0)
tick()
print("ticking", flush=True)
while True:
    tick()
    time.sleep(0.002)
"""

# Sets a deadline, then has nothing more to do with it.
PEER = """
import socket, sys, time
s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
s.connect(sys.argv[1])
s.send(b"deadline " + sys.argv[2].encode())
s.recv(1000)
print("set", flush=True)
time.sleep(60)
"""


def now() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def last_tick() -> int:
    return int(Path("tick").read_bytes())


async def frozen(session: Session) -> None:
    await session.event(EventKind.FROZEN)
    status = await session.link.status()
    assert status.frozen
    assert status.expired
    assert {p.state for p in (await session.link.graph()).processes} == {"T"}


@pytest.mark.timed
async def test_freezes_in_time_though_its_peer_is_stopped(start: Start, python: str) -> None:
    session = await start(python, "-c", TICKER)
    await session.terminal.expect(b"ticking")
    at = now() + SECOND // 2
    peer = await asyncio.create_subprocess_exec(
        python, "-c", PEER, session.socket, str(at), stdout=asyncio.subprocess.PIPE
    )
    try:
        assert peer.stdout is not None
        assert await peer.stdout.readline() == b"set\n"
        os.kill(peer.pid, signal.SIGSTOP)
        assert (await session.event(EventKind.FROZEN)).by == "deadline"
        await frozen(session)
        late = (last_tick() - at) / SECOND
        assert -0.1 < late < 0.5
    finally:
        peer.kill()
        await peer.wait()


async def test_later_deadline_thaws_and_only_that(start: Start, python: str) -> None:
    session = await start(python, "-c", TICKER)
    await session.terminal.expect(b"ticking")
    await session.link.deadline(now() - SECOND)
    await frozen(session)
    with pytest.raises(HoldError, match="expired"):
        await session.link.thaw()
    await frozen(session)
    stopped_at = last_tick()
    await session.link.deadline(now() + 60 * SECOND)
    await session.event(EventKind.THAWED)
    status = await session.link.status()
    assert not status.expired
    assert not status.frozen
    assert status.deadline_ns > status.boottime_ns
    while last_tick() == stopped_at:  # noqa: ASYNC110 - a file has no event
        await asyncio.sleep(0.01)


async def test_asked_for_freeze_outlives_an_expiry(start: Start) -> None:
    session = await start("cat")
    await session.link.freeze()
    await session.link.deadline(0)
    assert (await session.link.status()).expired
    await session.link.deadline(now() + 60 * SECOND)
    status = await session.link.status()
    assert status.frozen
    assert not status.expired
    await session.link.thaw()
    assert not (await session.link.status()).frozen


async def test_continued_from_outside_it_is_stopped_again(start: Start) -> None:
    session = await start("sh", "-c", "cat")
    await session.link.deadline(0)
    await frozen(session)
    everyone = descendants(session.link.hold_pid)
    for pid in everyone:
        os.kill(pid, signal.SIGCONT)
    while any(process_state(pid) != "T" for pid in everyone):  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def test_past_the_deadline_an_end_gives_no_grace(start: Start) -> None:
    session = await start("bash", "-c", "trap 'echo ran; exit 5' HUP; while :; do read x; done")
    await session.link.deadline(0)
    await frozen(session)
    await session.link.end(5)
    assert (await session.event(EventKind.EXITED)).signal == signal.SIGKILL
    assert b"ran" not in session.terminal.drain()


async def test_deadline_moves_both_ways(start: Start) -> None:
    session = await start("cat")
    await session.link.deadline(now() + 60 * SECOND)
    await session.link.deadline(now() + 120 * SECOND)
    await session.link.deadline(now() + SECOND // 10)
    await frozen(session)
