"""Many clients of one session, over real sockets from a real ring: who gets what, and what all of
them together cost."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from gateway_kit import until
from holdfast_sidecar import audience
from holdfast_sidecar.audience import FEW, MOST_TOLD, Allowance, Audience
from holdfast_sidecar.fanout import Outlet
from holdfast_sidecar.ring import Ring
from holdfast_sidecar.turn import Mode, Participant, Turn
from holdfast_wire.frames import Control, Decoder, Frame, Gap, Output, Resize, Snapshot
from holdfast_wire.ids import Actor, ClientId
from sidecar_kit import Client, Live

SIZE = (80, 24)
MANY = 3 * FEW
FLOOD = 3 << 20
PURSE = 1 << 20
PATIENCE = 20.0


class Viewer:
    """One client: its outlet, and what came out of it."""

    def __init__(self, hall: Hall, name: str, mode: Mode) -> None:
        self.hall, self.name = hall, ClientId(name)
        self.here, self.there = socket.socketpair()
        for end in (self.here, self.there):
            end.setblocking(False)
        self.outlet = Outlet(self.here, hall.ring, hall.interpreted, self._behind, self.leave)
        self._decoder = Decoder()
        self.frames: list[Frame] = []
        self.seq = hall.ring.head
        self.bytes, self.reads = 0, True
        self.news: dict[str, object] = {}
        hall.turn.join(Participant(self.name, Actor(name), "test", mode, *SIZE, 0.0))
        hall.audience.add(self.name, self.outlet)
        self.outlet.stream_from(self.seq, SIZE)

    def _behind(self) -> None:
        """As a connection does: a snapshot of its own."""
        taken = self.hall.taken(whole=True)
        audience.Picture(*taken).show(self.outlet, self.outlet.left_at)

    def read(self) -> int:
        """What there is; joined by seq it has no gap but those that are named."""
        try:
            data = self.there.recv(1 << 20) if self.reads else b""
        except BlockingIOError:
            return 0
        for frame in self._decoder.feed(data):
            match frame:
                case Output(seq, printed):
                    assert seq == self.seq
                    assert printed == self.hall.printed[seq : seq + len(printed)]
                    self.seq += len(printed)
                case Gap(start, end):
                    assert start == self.seq < end
                    self.seq = end
                case Snapshot(seq):
                    assert seq == self.seq, "after the gap that names what it stands for"
                case Control(body):
                    self.news = body
            self.frames.append(frame)
        self.bytes += len(data)
        return len(data)

    def shown(self) -> list[bytes]:
        return [frame.data for frame in self.frames if isinstance(frame, Snapshot)]

    def saw_the_whole(self) -> bool:
        return bool(self.shown()) and self.shown()[-1].startswith(b"whole")

    def leave(self) -> None:
        self.outlet.close()
        self.hall.turn.leave(self.name)
        self.hall.audience.remove(self.name)
        self.hall.viewers.remove(self)
        self.here.close()
        self.there.close()


class Purse(Allowance):
    """By a clock that the test turns."""

    def __init__(self, most: int) -> None:
        super().__init__(4 * most, 0.0)
        self.clock = 0.0

    def left(self, now: float) -> float:
        return super().left(self.clock)


class Hall:
    def __init__(self, folder: Path) -> None:
        self.ring, self.turn = Ring(folder / "ring"), Turn()
        self.audience = Audience(self.ring, self._take, self.turn)
        self.purse = self.audience._allowance = Purse(PURSE)
        self.words = self.audience._words = Purse(PURSE)
        self.viewers: list[Viewer] = []
        self.printed = bytearray()
        self.taken_scant = 0
        self.stuck_at: int | None = None
        """Where the emulator is, if it does not come along."""

    def interpreted(self) -> int:
        return self.ring.head if self.stuck_at is None else self.stuck_at

    def taken(self, *, whole: bool) -> tuple[int, bytes, tuple[int, int]]:
        return self.interpreted(), b"whole" * 1000 if whole else b"scant", SIZE

    async def _take(self, at_least: int, whole: bool) -> tuple[int, bytes, tuple[int, int]]:
        assert at_least <= self.ring.head
        self.taken_scant += not whole
        return self.taken(whole=whole)

    def enter(self, count: int, mode: Mode = Mode.VIEW) -> list[Viewer]:
        start = len(self.viewers)
        self.viewers += [Viewer(self, f"c{start + n}", mode) for n in range(count)]
        return self.viewers[start:]

    def print(self, count: int) -> None:
        data = (b"%08d" % len(self.printed)) * (count // 8 + 1)
        self.ring.append(data[:count])
        self.printed += data[:count]
        self.audience.publish()

    async def flood(self, count: int = FLOOD, step: int = 256 << 10) -> None:
        for _ in range(0, count, step):
            self.print(step)
            for viewer in self.viewers:
                viewer.read()
            await asyncio.sleep(0)

    async def read_until(self, condition: Callable[[], bool], pace: float = 0.1) -> None:
        """`pace`: how time goes meanwhile."""
        async with asyncio.timeout(PATIENCE):
            while not condition():
                for viewer in self.viewers:
                    viewer.read()
                for purse in (self.purse, self.words):
                    purse.clock += pace
                await asyncio.sleep(0.001)

    def at_the_head(self) -> bool:
        return all(viewer.seq == self.ring.head for viewer in self.viewers)

    def close(self) -> None:
        self.audience.close()
        for viewer in list(self.viewers):
            viewer.leave()


@pytest.fixture
async def hall(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Hall]:
    monkeypatch.setattr(audience, "_TURN_SECONDS", 0.005)
    made = Hall(tmp_path)
    yield made
    made.close()


def test_an_allowance_saves_a_little_and_is_overdrawn_once() -> None:
    purse = Allowance(100, 0.0)
    assert purse.left(1000.0) == 25
    purse.spend(225)
    assert purse.left(1000.0) == -200
    assert purse.left(1001.0) == -100
    assert purse.left(1002.0) == 0
    assert purse.left(1003.0) == 25


async def test_a_few_get_every_byte_at_once(hall: Hall) -> None:
    few = hall.enter(FEW)
    hall.print(50_000)
    for viewer in few:
        viewer.read()
        assert viewer.seq == hall.ring.head
        assert viewer.shown() == []


async def test_a_crowd_gets_every_byte_as_long_as_that_is_cheap(hall: Hall) -> None:
    crowd = hall.enter(MANY)
    for _ in range(40):
        hall.print(900)
        await asyncio.sleep(0)
    await hall.read_until(hall.at_the_head)
    for viewer in crowd:
        assert {type(frame) for frame in viewer.frames} == {Output}


async def test_in_a_flood_the_first_gets_all_and_the_rest_what_can_be_spared(hall: Hall) -> None:
    first, *rest = hall.enter(MANY)
    before = len(hall.printed)
    await hall.flood()
    await hall.read_until(lambda: first.seq == hall.ring.head, pace=0)
    assert {type(frame) for frame in first.frames} == {Output}
    assert first.bytes > FLOOD
    assert 0 < sum(viewer.bytes for viewer in rest) < 1.2 * PURSE, "what was begun, it finishes"
    # When it is over all have the whole screen, and every byte since.
    await hall.read_until(lambda: all(viewer.saw_the_whole() for viewer in rest))
    assert hall.at_the_head()
    assert hall.ring.head == before + FLOOD
    assert b"scant" in {picture for viewer in rest for picture in viewer.shown()}
    assert hall.taken_scant < sum(len(viewer.shown()) for viewer in rest) / 2, "they share them"


async def test_what_nobody_will_see_is_not_sent_while_the_picture_is_on_its_way(hall: Hall) -> None:
    """In a flood the emulator is behind as well: that is no reason to send bytes instead."""
    hall.stuck_at = 0
    first, *rest = hall.enter(MANY)
    hall.print(FLOOD)
    for _ in range(5):
        await hall.read_until(lambda: first.seq == hall.ring.head)
        await asyncio.sleep(0.005)
    assert [viewer.frames for viewer in rest] == [[]] * len(rest)
    hall.stuck_at = None
    await hall.read_until(lambda: all(viewer.saw_the_whole() for viewer in rest))
    assert hall.at_the_head()


async def test_who_leads_gets_everything_whenever_he_came(hall: Hall) -> None:
    hall.enter(MANY)
    (typist,) = hall.enter(1, Mode.WRITE)
    hall.audience.look_who_leads()
    await hall.flood()
    await hall.read_until(lambda: typist.seq == hall.ring.head)
    assert {type(frame) for frame in typist.frames} == {Output}
    # Another one takes over in the middle of a flood: what he was not shown he sees now.
    other = hall.viewers[3]
    await hall.read_until(lambda: other.outlet.scant, pace=0.01)
    hall.turn.lead = other.name
    hall.audience.look_who_leads()
    await hall.flood(1 << 20)
    await hall.read_until(lambda: other.seq == hall.ring.head)
    assert other.saw_the_whole()


async def test_when_the_crowd_goes_who_stays_is_shown_the_whole(hall: Hall) -> None:
    hall.enter(MANY)
    await hall.flood(2 * FLOOD)
    await hall.read_until(lambda: any(viewer.outlet.scant for viewer in hall.viewers), pace=0.01)
    for viewer in hall.viewers[:-FEW]:
        viewer.leave()
    await hall.read_until(hall.at_the_head)
    for viewer in hall.viewers:
        assert not viewer.outlet.scant
        assert viewer.saw_the_whole()
    hall.print(1000)
    for viewer in hall.viewers:
        viewer.read()
    assert hall.at_the_head()


async def test_after_the_end_nobody_waits_for_a_turn(hall: Hall) -> None:
    hall.enter(MANY)
    await hall.flood(2 * FLOOD)
    hall.audience.release()
    await hall.read_until(hall.at_the_head)
    assert all(viewer.saw_the_whole() for viewer in hall.viewers[1:])


async def test_a_crowd_hears_of_a_resize_where_it_stands(hall: Hall) -> None:
    crowd = hall.enter(MANY)
    hall.print(100)
    hall.ring.mark(100, 30)
    hall.audience.publish()
    hall.print(100)
    await hall.read_until(hall.at_the_head)
    for viewer in crowd:
        assert [frame for frame in viewer.frames if isinstance(frame, Resize)] == [
            Resize(100, 100, 30)
        ]


async def test_one_of_a_crowd_who_does_not_read_holds_nobody_up(hall: Hall) -> None:
    first, stalled, *rest = hall.enter(MANY)
    stalled.reads = False

    def settled() -> bool:
        return all(viewer.saw_the_whole() for viewer in rest) and not hall.audience._pressed

    await hall.flood()
    await hall.read_until(settled)
    assert stalled.outlet.queued < 1 << 20
    hall.print(500)
    for viewer in (first, *rest):
        viewer.read()
        assert viewer.seq == hall.ring.head, "at once, although one does not read"
    stalled.reads = True
    await hall.read_until(lambda: hall.at_the_head() and stalled.saw_the_whole())


async def test_who_comes_back_gets_what_he_missed_also_in_a_crowd(hall: Hall) -> None:
    hall.enter(MANY)
    hall.print(3 << 20)
    (back,) = hall.enter(1)
    back.seq = 5
    back.outlet.stream_from(5, SIZE)
    await hall.read_until(hall.at_the_head)
    assert {type(frame) for frame in back.frames} == {Output}


async def test_five_hundred_may_come_and_all_know_who_is_here(hall: Hall) -> None:
    """To tell each of them of each of them whenever one comes would be seven gigabytes."""
    for _ in range(500):
        hall.enter(1)
        hall.audience.tell_clients()
    for viewer in hall.viewers:
        while viewer.read():
            pass
    assert sum(viewer.bytes for viewer in hall.viewers) < 1.2 * PURSE

    def all_know() -> bool:
        return all(viewer.news.get("more") == 500 - MOST_TOLD for viewer in hall.viewers)

    await hall.read_until(all_know)
    named = hall.viewers[0].news["clients"]
    assert isinstance(named, list)
    assert len(named) == MOST_TOLD
    assert len(json.dumps(named)) < 16 << 10


# -- with a real session --------------------------------------------------------------------------

PRINTER = """
import sys
line = "".join("number %07d of many lines, in a flood that nobody can read\\n" % n
               for n in range(20000))
input()
for _ in range(20):
    sys.stdout.write(line)
print("the last line", flush=True)
input()
"""


def test_a_real_crowd_sees_the_end_of_a_real_flood() -> None:
    with Live(sys.executable, "-c", PRINTER) as live:
        crowd: list[Client] = [live.attached(mode="view") for _ in range(2 * FEW)]
        with live.client() as typist:
            typist.ask("send", text="\n")
        for client in crowd:
            client.sock.settimeout(0.001)

        def right() -> bool:
            for client in crowd:
                try:
                    for _ in range(50):
                        client.next()
                except TimeoutError:
                    pass
            return all(_saw(client) for client in crowd)

        until(right, "all to have the last line, and the scrollback before it")
        assert not crowd[0].gaps or b"the last line" in crowd[0].stream + crowd[0].snapshot
        for client in crowd:
            client.close()


def _saw(client: Client) -> bool:
    since = client.snapshot + client.stream[-(1 << 16) :]
    return b"the last line" in since and since.count(b"in a flood") > 500
