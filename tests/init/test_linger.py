"""A SIGTERM that is announced first, so that the session can be moved away meanwhile."""

from __future__ import annotations

import asyncio
import os
import signal
import time

import pytest

from holdfast_sidecar.hold import EventKind, HoldError

from .holding import Session, Start, Wait, Waiting

LONG = ("--linger", "600000")


def tell_to_go(session: Session | Waiting) -> None:
    os.kill(session.link.hold_pid, signal.SIGTERM)


@pytest.mark.timed
async def test_it_is_announced_and_then_heeded(start: Start) -> None:
    session = await start("cat", options=("--linger", "700"))
    assert not (await session.link.status()).lingering
    begin = time.monotonic()
    tell_to_go(session)
    assert (await session.event(EventKind.LEAVING)).milliseconds == 700
    assert (await session.link.status()).lingering
    session.terminal.send(b"still here\n")
    await session.terminal.expect(b"still here\r\n", times=2)
    tell_to_go(session)
    assert not (await session.link.status()).exited
    assert time.monotonic() - begin < 0.7, "too slow a machine to tell"
    end = await session.event(EventKind.EXITED)
    took = time.monotonic() - begin
    assert (end.by, end.signal) == ("term", signal.SIGHUP)
    assert 0.7 <= took < 3
    assert not (await session.link.status()).lingering
    assert [e.kind for e in session.events] == [EventKind.LEAVING, EventKind.EXITED]


@pytest.mark.timed
async def test_another_sigterm_neither_ends_nor_prolongs_it(start: Start) -> None:
    session = await start("cat", options=("--linger", "1000"))
    begin = time.monotonic()
    while time.monotonic() - begin < 0.8:
        tell_to_go(session)
        assert not (await session.link.status()).exited
        await asyncio.sleep(0.05)
    await session.event(EventKind.EXITED)
    assert 1 <= time.monotonic() - begin < 1.75
    assert [e.kind for e in session.events] == [EventKind.LEAVING, EventKind.EXITED]


@pytest.mark.timed
async def test_after_it_the_grace_is_as_ever(start: Start) -> None:
    stubborn = ("sh", "-c", "trap '' HUP TERM; echo ready; while :; do sleep 1; done")
    session = await start(*stubborn, options=("--linger", "200", "--term-grace", "300"))
    await session.terminal.expect(b"ready")
    begin = time.monotonic()
    tell_to_go(session)
    end = await session.event(EventKind.EXITED)
    assert (end.by, end.signal) == ("term", signal.SIGKILL)
    assert 0.5 <= time.monotonic() - begin < 3


async def test_an_end_meanwhile_works_as_ever(start: Start) -> None:
    session = await start("cat", options=LONG)
    tell_to_go(session)
    await session.event(EventKind.LEAVING)
    await session.link.end(0)
    end = await session.event(EventKind.EXITED)
    assert (end.by, end.signal) == ("end", signal.SIGKILL)
    await session.link.collected()
    await session.hold_gone()


async def test_it_can_be_heeded_sooner_and_is_the_same_sigterm(start: Start) -> None:
    session = await start("cat", options=LONG)
    tell_to_go(session)
    await session.event(EventKind.LEAVING)
    await session.link.heed()
    end = await session.event(EventKind.EXITED)
    assert (end.by, end.signal) == ("term", signal.SIGHUP)
    assert not (await session.link.status()).lingering
    await session.link.heed()
    await session.link.collected()
    await session.hold_gone()


@pytest.mark.timed
async def test_heeded_it_has_its_grace_and_another_sigterm_changes_nothing(start: Start) -> None:
    stubborn = ("sh", "-c", "trap '' HUP TERM; echo ready; while :; do sleep 1; done")
    session = await start(*stubborn, options=(*LONG, "--term-grace", "700"))
    await session.terminal.expect(b"ready")
    tell_to_go(session)
    await session.event(EventKind.LEAVING)
    begin = time.monotonic()
    await session.link.heed()
    tell_to_go(session)
    await session.link.heed()
    end = await session.event(EventKind.EXITED)
    assert (end.by, end.signal) == ("term", signal.SIGKILL)
    assert 0.7 <= time.monotonic() - begin < 3


async def test_what_was_stopped_meanwhile_hears_it(start: Start) -> None:
    session = await start("sh", "-c", "trap 'exit 7' HUP; echo ready; read x", options=LONG)
    await session.terminal.expect(b"ready")
    await session.link.freeze()
    tell_to_go(session)
    await session.event(EventKind.LEAVING)
    await session.link.heed()
    end = await session.event(EventKind.EXITED)
    assert (end.by, end.code) == ("term", 7)


async def test_without_a_sigterm_there_is_nothing_to_heed(start: Start) -> None:
    session = await start("cat", options=LONG)
    await session.link.heed()
    session.terminal.send(b"still here\n")
    await session.terminal.expect(b"still here\r\n", times=2)
    assert not (await session.link.status()).exited


async def test_one_that_has_ended_is_still_there_to_be_read(start: Start) -> None:
    session = await start("sh", "-c", "read x; exit 5", options=LONG)
    tell_to_go(session)
    await session.event(EventKind.LEAVING)
    session.terminal.send(b"\n")
    await session.event(EventKind.EXITED)
    await session.link.heed()
    assert (await session.link.status()).code == 5
    await session.link.collected()
    await session.hold_gone()


async def test_before_it_begins_it_is_not_to_be_asked(wait: Wait) -> None:
    waiting = await wait("cat", options=LONG)
    with pytest.raises(HoldError) as refused:
        await waiting.link.heed()
    assert refused.value.code == "not_started"


async def test_a_command_may_end_by_itself_meanwhile(start: Start) -> None:
    session = await start("sh", "-c", "read x; exit 5", options=LONG)
    tell_to_go(session)
    await session.event(EventKind.LEAVING)
    session.terminal.send(b"\n")
    end = await session.event(EventKind.EXITED)
    assert (end.by, end.code) == ("itself", 5)
    await session.link.collected()
    await session.hold_gone()


async def test_once_it_has_ended_nobody_is_waited_for(wait: Wait) -> None:
    waiting = await wait("sh", "-c", "read x; exit 5", options=("--linger", "500"))
    await waiting.link.start(80, 24)
    terminal = await waiting.terminal()
    tell_to_go(waiting)
    await waiting.event(EventKind.LEAVING)
    terminal.send(b"\n")
    assert (await waiting.event(EventKind.EXITED)).code == 5
    terminal.close()
    assert await waiting.gone() == (5, "")


async def test_another_sigterm_once_it_has_ended_lets_hold_go(wait: Wait) -> None:
    waiting = await wait("sh", "-c", "read x; exit 5", options=LONG)
    await waiting.link.start(80, 24)
    terminal = await waiting.terminal()
    tell_to_go(waiting)
    await waiting.event(EventKind.LEAVING)
    terminal.send(b"\n")
    await waiting.event(EventKind.EXITED)
    terminal.close()
    tell_to_go(waiting)
    assert await waiting.gone() == (5, "")


async def test_what_has_not_begun_is_not_waited_for(wait: Wait) -> None:
    waiting = await wait("cat", options=LONG)
    tell_to_go(waiting)
    assert await waiting.gone() == (128 + signal.SIGTERM, "")
    assert waiting.events == []


async def test_the_deadline_holds_meanwhile(start: Start) -> None:
    session = await start("cat", options=LONG)
    tell_to_go(session)
    await session.event(EventKind.LEAVING)
    await session.link.deadline(time.clock_gettime_ns(time.CLOCK_BOOTTIME) + 200_000_000)
    assert (await session.event(EventKind.FROZEN)).by == "deadline"
    assert (await session.link.status()).lingering


async def test_without_the_option_it_is_heeded_at_once(start: Start) -> None:
    session = await start("cat")
    tell_to_go(session)
    assert (await session.event(EventKind.EXITED)).by == "term"
    assert [e.kind for e in session.events] == [EventKind.EXITED]
