"""Faults between sessions, gateways and clients. Numbers are those of docs/faults.md."""

from __future__ import annotations

import asyncio
import re
import time
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest

from client_kit import Screen
from e2e.balancer import balanced, replicas, spread
from e2e.cluster import faults
from e2e.cluster.places import SHARED
from e2e.followers import ByEvents, BySdk, Stream
from e2e.guests import HTTPS, NAME, Guests, gateway_pid
from e2e.lab import LEASE, Lab, Session, sidecar_pid, until
from e2e.movers import other, pod_uid, shared

PATIENCE: Final = 60.0
REPLACED_WITHIN: Final = LEASE + 30.0
MIB: Final = 1 << 20
FLOOD: Final = 48 * MIB
# What one who does not read may cost (docs/gateway.md: 256 KiB for each), and noise.
GROWS_AT_MOST: Final = 12 * MIB
PRINTER: Final = """
import sys, time
sys.stdin.readline()
line, size = "x" * 79, 0
while size < int(sys.argv[2]):
    print(line)
    size += 80
print("all printed", flush=True)
open(sys.argv[1], "w").write("done")
time.sleep(3600)
"""


def counted(data: bytes, epoch: int) -> list[int]:
    return [int(number) for number in re.findall(rb"<%d:(\d+)>" % epoch, data)]


@asynccontextmanager
async def following(*streams: BySdk | ByEvents) -> AsyncIterator[None]:
    """In the background; an error of theirs is the test's."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one.follow()) for one in streams]
        try:
            yield
        finally:
            for task in tasks:
                if not task.done():
                    task.cancel()


async def seen(stream: Stream, epoch: int, more_than: int, patience: float = PATIENCE) -> None:
    async with asyncio.timeout(patience):
        while len(counted(bytes(stream.stream), epoch)) <= more_than:  # noqa: ASYNC110
            await asyncio.sleep(0.1)


def in_order(numbers: list[int]) -> None:
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers))), "a gap or a double"


@pytest.mark.long
@pytest.mark.faults(5)
@pytest.mark.timeout(200)
async def test_a_node_that_loses_the_gateways_keeps_its_session(lab: Lab, guests: Guests) -> None:
    session = guests.reached(lab.counting("unheard", node=lab.away()))
    own, events = BySdk(guests.sdk("otto", "unheard"), 0), ByEvents(guests, "otto", "unheard")
    async with following(own, events):
        await seen(events, 1, 20)
        await seen(own, 1, 20)
        with faults.cut_from_gateways(session.node):
            await asyncio.sleep(1)
            before = own.head
            await asyncio.sleep(2 * LEASE)
            assert own.head == before, "something came through"
            assert session.epoch == 1
            await asyncio.to_thread(session.writes_on)
        written = session.marks()[-1].number
        await seen(own, 1, written)
        await seen(events, 1, written - counted(bytes(events.stream), 1)[0] + 1)
    for one in (own, events):
        in_order(counted(bytes(one.stream), 1))
        assert "gap" not in one.kinds
    assert counted(bytes(own.stream), 1)[0] == 1
    assert session.epoch == 1
    session.check()


def refused(pod: dict[str, Any]) -> float:
    """Sidecars that this replica has not let in."""
    url = f"http://{pod['status']['podIP']}:8080/metrics"
    with urllib.request.urlopen(url, timeout=5) as answer:
        text = answer.read().decode()
    found = re.findall(r'^holdfast_gateway_uplinks_refused_total\{code="forbidden"\} (\S+)', text,
                       re.MULTILINE)  # fmt: skip
    return float(found[0]) if found else 0.0


@pytest.mark.long
@pytest.mark.faults(4)
@pytest.mark.timeout(240)
async def test_a_superseded_incarnation_is_not_served(lab: Lab, guests: Guests) -> None:
    """Its node has lost the API, but not the gateways and so not its clients."""
    spread(lab)
    session = guests.reached(lab.counting("stale", node=lab.away()))
    node, uid = session.node, pod_uid(lab, session.pod)
    (there,) = [pod for pod in replicas(lab) if pod["spec"]["nodeName"] == other(node)]
    before = refused(there)
    with balanced(lab, HTTPS) as beside:
        beside.only = lambda pod: pod["spec"]["nodeName"] != node
        own = BySdk(guests.sdk("otto", "stale", f"https://{NAME}:{beside.port[HTTPS]}"))
        async with following(own):
            await seen(own, 1, 20)
            with faults.cut_from_api(node):
                await asyncio.to_thread(session.await_epoch, 2, REPLACED_WITHIN)
                await seen(own, 2, 20)
                assert session.frozen(uid) or not session.processes(uid)
                await asyncio.to_thread(
                    until, lambda: refused(there) > before, "the old one is turned away", PATIENCE
                )
            await asyncio.to_thread(until, lambda: not session.processes(uid), "it is killed")
            await seen(own, 2, 60)
    assert own.kinds.count("restarted") == 1
    assert b"<1:" not in own.stream, "the old one was heard after the new one"
    in_order(counted(bytes(own.earlier), 1))
    in_order(counted(bytes(own.stream), 2))
    session.check()


def resident(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.findall(r"VmRSS:\s+(\d+) kB", status)[0]) << 10


def printing(lab: Lab, guests: Guests, name: str) -> Session:
    (SHARED / f"{name}.done").unlink(missing_ok=True)
    words = ("python3", "-c", PRINTER, f"/shared/{name}.done", str(FLOOD))
    return guests.reached(lab.session(name, *words, **shared()))


async def printed(guests: Guests, session: Session) -> tuple[float, list[int]]:
    """How long it takes to print all, for the session itself; and by how much the gateways and its
    sidecar have grown."""
    lab, done = guests.lab, SHARED / f"{session.name}.done"
    pids = [gateway_pid(pod) for pod in replicas(lab)]
    pids.append(sidecar_pid(pod_uid(lab, session.pod)))
    before = [resident(pid) for pid in pids]
    async with guests.sdk("wanda", session.name) as own:
        await own.send("go", enter=True)
    began = time.monotonic()
    await asyncio.to_thread(until, done.exists, "all is printed", 90, 0.05)
    took = time.monotonic() - began
    return took, [resident(pid) - size for pid, size in zip(pids, before, strict=True)]


@pytest.mark.long
@pytest.mark.faults(36)
@pytest.mark.timeout(240)
async def test_clients_that_never_read(lab: Lab, guests: Guests) -> None:
    """A terminal that takes nothing, and a program that reads no events: the session prints as if
    they were not there, nobody keeps it for them, and the terminal is right when it reads again."""
    alone, by_itself = await printed(guests, printing(lab, guests, "alone"))
    session = printing(lab, guests, "flood")
    headers = {"Authorization": f"Bearer {guests['otto'].token}", "Accept": "text/event-stream"}
    with closing(guests.attach("wanda", "flood")) as deaf:
        deaf.expect(rb"attached to flood", PATIENCE)
        async with (
            aiohttp.ClientSession(headers=headers, read_bufsize=1 << 10) as http,
            http.get(f"{guests.base('flood')}/stream", ssl=guests.tls) as response,
        ):
            assert response.status == 200
            took, grown = await printed(guests, session)
        await asyncio.to_thread(_wakes, deaf)
    more = [size - usual for size, usual in zip(grown, by_itself, strict=True)]
    lab.report["never_reading_grown_mib"] = round(max(more) / MIB, 1)
    lab.report["never_reading_slowdown_ratio"] = round(took / alone, 2)
    assert max(more) < GROWS_AT_MOST, (grown, by_itself)
    assert took < 2 * alone


def _wakes(deaf: Screen) -> None:
    deaf.expect(rb"all printed", PATIENCE)
    assert len(deaf.seen) < FLOOD // 2, "it was kept for him"
    deaf.type(b"\x1cd")
    assert deaf.wait(PATIENCE) == 0
