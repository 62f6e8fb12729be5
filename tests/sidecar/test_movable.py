"""What keeps a session from moving: the table, and the survey of a real session."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

import stuck_kit
from api_kit import Pod
from gateway_kit import until
from holdfast_sidecar import movable
from holdfast_sidecar.hold import HoldError, HoldLink
from holdfast_sidecar.session import Session
from holdfast_sidecar.state import Descriptor, Graph, Process
from holdfast_sidecar.survey import Survey

from .test_pod import SHORTEST, MakePod, make_pod

__all__ = ["make_pod"]  # a fixture

PATIENCE = 20.0  # it is told with a renewal, every two seconds


def process(*fds: Descriptor, pid: int = 9, **more: Any) -> Process:
    plain = Process(
        pid, 2, 9, 9, "S", "vi", ("vi", "--password=x"), "/bin/vi", "/", 0, 0, fds, len(fds), (),
        "", (),
    )  # fmt: skip
    return replace(plain, **more)


def graph(*processes: Process) -> Graph:
    return Graph(processes, 9, True, True, True, 9, "/dev/pts/0")


def told(*processes: Process) -> list[str]:
    return [blocker.what for blocker in movable.blockers(graph(*processes))]


def device(kind: str) -> Descriptor:
    return Descriptor(3, "/dev/it", kind)


MOVES = [
    Descriptor(0, "/dev/pts/0", "char 136:0"),
    Descriptor(0, "/dev/ptmx", "char 5:2"),
    Descriptor(0, "/dev/null", "char 1:3"),
    Descriptor(0, "/dev/net/tun", "char 10:200"),
    Descriptor(3, "/dev/tty", "char 5:0"),
    Descriptor(3, "/dev/tty"),
    Descriptor(3, "/dev/pts/0"),  # an older hold does not say which device
    Descriptor(3, "/dev/kvm"),
    *(
        Descriptor(3, f"anon_inode:{name}")
        for name in ("[eventfd]", "[eventpoll]", "inotify", "[fanotify]", "[signalfd]")
    ),
    *(Descriptor(3, f"anon_inode:{name}") for name in ("[timerfd]", "[pidfd]", "bpf-map", "[new]")),
    *(
        Descriptor(3, "socket:[1]", protocol=name)
        for name in ("TCP", "TCPv6", "UDP", "RAW", "PING", "PACKET", "NETLINK", "UNIX", "x", None)
    ),
    Descriptor(3, "/home/me/secretmem"),
]  # fmt: skip
STAYS = {
    "the device /dev/it": device("char 10:229"),
    "the device /dev/it ": device("char 195:0"),
    "the device /dev/it  ": device("block 1:0"),
    "an io_uring": Descriptor(3, "anon_inode:[io_uring]"),
    "a userfaultfd": Descriptor(3, "anon_inode:[userfaultfd]"),
    "a perf_event": Descriptor(3, "anon_inode:[perf_event]"),
    "a BPF program": Descriptor(3, "anon_inode:bpf-prog"),
    "a seccomp listener": Descriptor(3, "anon_inode:seccomp notify"),
    "secret memory (memfd_secret)": Descriptor(3, "/secretmem (deleted)"),
    "a socket of the kind MPTCP": Descriptor(3, "socket:[1]", protocol="MPTCP"),
    "a socket of the kind AF_VSOCK": Descriptor(3, "socket:[1]", protocol="AF_VSOCK"),
}


@pytest.mark.parametrize("descriptor", MOVES, ids=str)
def test_what_moves(descriptor: Descriptor) -> None:
    assert told(process(descriptor)) == []


@pytest.mark.parametrize("what", STAYS, ids=str.strip)
def test_what_does_not(what: str) -> None:
    assert told(process(STAYS[what])) == [f"has {what.rstrip()} open, which cannot be moved"]


def test_each_thing_once() -> None:
    ring = Descriptor(3, "anon_inode:[io_uring]")
    assert len(told(process(ring, replace(ring, fd=4)), process(ring, pid=10))) == 2
    traced = [process(pid=pid, tracer=7) for pid in (10, 11)]
    assert told(*traced, process(pid=7, name="gdb")) == ["is being traced by gdb (process 7)"]
    assert told(*traced, process(pid=12, tracer=8)) == [
        "is being traced by process 7",
        "is being traced by process 8",
    ]
    boxed = [process(pid=pid, ppid=pid - 1, own_users=True) for pid in (10, 11)]
    assert len(told(*boxed)) == 1
    assert told(process(ring, state="Z", tracer=7)) == []


def test_what_is_told_is_bounded_and_acts_nowhere() -> None:
    name = "\x1b]0;owned\x07\x1b[2J\u202e\nv" + "i" * 100
    path = "/dev/" + "\x1b[31m" * 99 + "x" * 999
    odd = [process(Descriptor(3, path, "char 9:9"), pid=n, name=name) for n in range(99)]
    note = movable.encode(movable.blockers(graph(*odd)))
    assert len(note) < 2000
    found = json.loads(note)
    assert len(found) == movable.MOST_TOLD
    for text in (text for one in found for text in (one["command"], one["what"], one["advice"])):
        assert text.isprintable()
        assert "owned" not in text
        assert "[2J" not in text
        assert "password" not in text


# -- the survey -----------------------------------------------------------------------------------


class Fake:
    """A session and a hold that say what they are told to."""

    def __init__(self, *graphs: Graph | HoldError) -> None:
        self.graphs, self.asked = list(graphs), 0
        self.session = SimpleNamespace(parked=False, exit=None, ring=SimpleNamespace(head=0))
        self.frozen = False
        self.news: list[str | None] = []
        link = SimpleNamespace(graph=self._graph)
        self.survey = Survey(
            cast(Session, self.session),
            cast(HoldLink, link),
            lambda: self.frozen,
            lambda: self.news.append(self.survey.note),
        )

    async def _graph(self) -> Graph:
        self.asked += 1
        got = self.graphs.pop(0) if len(self.graphs) > 1 else self.graphs[0]
        if isinstance(got, HoldError):
            raise got
        return got

    async def rounds(self, number: int) -> int:
        """How often it asked in so many."""
        before = self.asked
        for _ in range(number):
            if self.survey._due():
                await self.survey._look()
                self.survey._not_before = 0.0
        return self.asked - before


STUCK = graph(process(device("char 10:229")))


async def test_told_when_seen_twice_and_until_gone() -> None:
    fake = Fake(STUCK, STUCK, STUCK, STUCK, graph())
    await fake.rounds(9)
    first, second, third = fake.news
    assert first == third == "[]"
    assert "/dev/it" in str(second)


async def test_another_process_with_the_same_is_another() -> None:
    fake = Fake(*(graph(process(device("char 10:229"), pid=pid)) for pid in range(9)))
    for _ in range(9):
        await fake.rounds(1)
    assert fake.news == ["[]"]


async def test_where_nothing_happens_it_looks_less_often() -> None:
    fake = Fake(graph())
    assert await fake.rounds(1) == 1
    assert await fake.rounds(9) == 3
    fake.session.ring.head = 5
    assert await fake.rounds(1) == 1
    stuck = Fake(STUCK)
    assert await stuck.rounds(9) == 9


async def test_not_while_it_moves_or_is_frozen_or_over() -> None:
    fake = Fake(STUCK)
    fake.session.parked = True
    assert await fake.rounds(9) == 0
    fake.session.parked, fake.frozen = False, True
    assert await fake.rounds(9) == 0
    fake.frozen, fake.session.exit = False, object()
    assert await fake.rounds(9) == 0
    assert fake.survey.note is None


async def test_a_slow_graph_is_asked_for_less_often() -> None:
    fake = Fake(STUCK)
    graph_of = fake.survey._hold.graph

    async def slow() -> Graph:
        await asyncio.sleep(taking)
        return await graph_of()

    fake.survey._hold.graph = slow  # type: ignore[method-assign]
    taking = 0.05
    await fake.survey._look()
    assert 0.9 <= fake.survey._not_before - time.monotonic() <= 60
    assert not fake.survey._due()
    fake.graphs, taking = [graph(*(process(pid=pid) for pid in range(2000)))], 0.0
    await fake.survey._look()
    assert 500 <= fake.survey._not_before - time.monotonic() <= 600
    fake.survey._not_before, fake.session.ring.head = 0.0, 7
    assert fake.survey._due()


# Each line of it has something else that cannot be moved, until told to go on.
PROGRAM = (
    stuck_kit.TOOLS
    + """
def until(stage):
    while not os.path.exists(os.environ["COUNTER"] + stage):
        time.sleep(0.02)

child = trace()
until(".ring")
os.kill(child, signal.SIGKILL)
os.wait()
held = call(425, 4, ctypes.create_string_buffer(120))
if held < 0:
    open(os.environ["COUNTER"] + ".refused", "w").close()
until(".nothing")
os.closerange(held, held + 1)
until(".end")
"""
)


def test_real_ones_are_told_in_the_lease_and_taken_back(make_pod: MakePod) -> None:
    pod = make_pod(SHORTEST)
    pod.start(sys.executable, "-c", PROGRAM, HOLDFAST_SURVEY_SECONDS="0.2")

    def told(what: str) -> None:
        until(lambda: what in json.dumps(blockers(pod)), what, PATIENCE)

    def go(stage: str) -> None:
        (pod.folder / f"counter.{stage}").touch()

    told("is being traced by python")
    [found] = blockers(pod)
    assert found["pid"] > 0
    assert found["command"] == "patient"
    go("ring")
    refused = pod.folder / "counter.refused"  # by this kernel
    until(lambda: refused.exists() or "an io_uring" in json.dumps(blockers(pod)), "it", PATIENCE)
    until(lambda: "traced" not in json.dumps(blockers(pod)), "nothing of the former", PATIENCE)
    go("nothing")
    until(lambda: blockers(pod) == [], "nothing in the way", PATIENCE)


def blockers(pod: Pod) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(pod.api.notes().get("blockers", "[]"))
    return found
