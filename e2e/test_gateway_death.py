"""kill -9 of gateways, while some type and some follow: each line that was typed is read once and
in its turn, and no byte that was printed is lost or seen twice.

Two oracles: what the program in the session has read, which it writes to storage outside; and the
numbers that it prints all the time, which each stream must have whole. By kubectl, the SDK and
server-sent events, each in its own way back.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final

import pytest

from client_kit import Screen
from e2e.balancer import replicas
from e2e.cluster.places import SHARED
from e2e.followers import ByEvents, BySdk
from e2e.guests import Guests, gateway_pid
from e2e.lab import Lab, Session, until
from e2e.movers import shared

PATIENCE: Final = 60.0
DETACH: Final = b"\x1cd"
KILLS: Final = 3  # kubelet lets a gateway that died twice wait for ten seconds
READER: Final = """
import os, sys, threading, time
store = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
def count():
    n = 0
    while True:
        n += 1
        os.write(1, b"<%d>\\n" % n)
        time.sleep(0.005)
threading.Thread(target=count, daemon=True).start()
for line in sys.stdin:
    os.write(store, line.encode())
"""


def reading(lab: Lab, name: str) -> Session:
    (SHARED / name).unlink(missing_ok=True)
    return lab.session(name, "python3", "-c", READER, f"/shared/{name}", **shared())


def lines_read(session: Session, letter: str) -> list[int]:
    lines = (SHARED / session.name).read_text().splitlines()
    return [int(line[1:]) for line in lines if line[:1] == letter]


def numbers(stream: bytes) -> list[int]:
    return [int(found) for found in re.findall(rb"<(\d+)>", stream)]


class Death:
    """Gateways are killed, one after the other, each while the other serves."""

    def __init__(self, guests: Guests) -> None:
        self._guests = guests
        self.killed: list[str] = []

    def next(self) -> None:
        lab = self._guests.lab
        until(lambda: len(replicas(lab)) == 2, "both replicas are ready", PATIENCE)
        pods = {pod["metadata"]["name"]: pod for pod in replicas(lab)}
        serving = self._guests.balancer.serving()
        # The one with more clients; but not the same one again and again.
        name = max(pods, key=lambda one: (-self.killed.count(one), serving.count(one)))
        os.kill(gateway_pid(pods[name]), signal.SIGKILL)
        self.killed.append(name)


@pytest.fixture
def screen(guests: Guests) -> Iterator[Callable[[str], Screen]]:
    opened: list[Screen] = []

    def attach(name: str) -> Screen:
        opened.append(guests.attach("wanda", name))
        return opened[-1]

    yield attach
    for one in opened:
        one.close()


def typing(screen: Screen, stop: threading.Event) -> int:
    """Somebody at a terminal, who types line after line whatever happens; how many."""
    number = 0
    while not stop.is_set():
        number += 1
        screen.type(b"k%d\r" % number)
        screen.pump(0.02)
    return number


def all_read(session: Session, screen: Screen, typed: int) -> None:
    """What was typed while there was no gateway is on its way."""

    def look() -> bool:
        screen.pump(0.05)
        return lines_read(session, "k")[-1:] == [typed]

    until(look, f"{typed} lines are read", PATIENCE, 0)


@pytest.mark.faults(37)
@pytest.mark.timeout(240)
async def test_typing_and_streaming_through_the_death_of_gateways(
    lab: Lab, guests: Guests, screen: Callable[[str], Screen]
) -> None:
    session = guests.reached(reading(lab, "typed"))
    terminal = screen("typed")
    terminal.expect(rb"<\d+>\r\n", PATIENCE)
    events = ByEvents(guests, "otto", "typed")
    own = BySdk(guests.sdk("otto", "typed"), from_seq=0)
    death, stop, sent, slowest = Death(guests), threading.Event(), 0, 0.0
    async with guests.sdk("wanda", "typed") as writer:
        followers = [asyncio.create_task(one.follow()) for one in (own, events)]
        while not (own.stream and events.stream):
            assert not any(task.done() for task in followers)
            await asyncio.sleep(0.05)
        by_hand = asyncio.create_task(asyncio.to_thread(typing, terminal, stop))
        try:
            for _ in range(KILLS):
                kill = asyncio.create_task(asyncio.to_thread(death.next))
                after = 0
                while after < 40:  # lines that are acknowledged after it
                    began = time.monotonic()
                    sent += 1
                    await writer.send(f"s{sent}", enter=True)
                    slowest = max(slowest, time.monotonic() - began)
                    after += kill.done()
                await kill
        finally:
            stop.set()
        typed = await by_hand
        await asyncio.to_thread(all_read, session, terminal, typed)
        terminal.type(DETACH)
        assert await asyncio.to_thread(terminal.wait, PATIENCE) == 0
        head = (await writer.info()).raw["seq"]
        async with asyncio.timeout(PATIENCE):
            while own.head < head or events.head < head:
                for task in followers:
                    assert not task.done(), task.exception()
                await asyncio.sleep(0.1)
        for task in followers:
            task.cancel()
        await asyncio.wait(followers)
    assert lines_read(session, "s") == list(range(1, sent + 1)), "each line once, in its turn"
    assert lines_read(session, "k") == list(range(1, typed + 1)), "each line once, in its turn"
    assert "gap" not in own.kinds + events.kinds
    for follower in (own, events):
        found = numbers(bytes(follower.stream))
        assert found == list(range(found[0], found[0] + len(found))), "a gap or a double"
        assert len(found) > 300
    assert (own.began, numbers(bytes(own.stream))[0]) == (0, 1)
    start = events.began or 0
    assert events.stream[: head - start] == own.stream[start:head]
    assert events.connections > 1, "no gateway that served it was killed"
    assert session.epoch == 1
    lab.report["gateway_kill_slowest_input_seconds"] = round(slowest, 2)
    lab.report["gateway_kill_inputs"] = sent + typed
