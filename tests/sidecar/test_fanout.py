"""One client's output over a real socket from a real ring: whole, in order, bounded."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast_sidecar.fanout import MAX_BEHIND, MAX_QUEUED, Outlet
from holdfast_sidecar.ring import GUARD, Ring
from holdfast_wire.frames import Control, Decoder, Frame, Output, Resize, encode, output_header

SIZE = (80, 24)
RING = 8 << 20


class Rig:
    """An outlet, the ring behind it and the other end of its socket."""

    def __init__(self, folder: Path, ring_size: int = RING) -> None:
        self.ring = Ring(folder / "ring", ring_size)
        self.here, self.there = socket.socketpair()
        for end in (self.here, self.there):
            end.setblocking(False)
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 64 << 10)
        self.behind, self.lost = 0, 0
        self.emulated: int | None = None
        self.outlet = Outlet(self.here, self.ring, self._snapshot_seq, self._behind, self._lost)
        self.printed = bytearray()
        self._decoder = Decoder()
        self.frames: list[Frame] = []

    def _snapshot_seq(self) -> int:
        return self.ring.head if self.emulated is None else self.emulated

    def _behind(self) -> None:
        self.behind += 1

    def _lost(self) -> None:
        self.lost += 1

    def print(self, count: int) -> None:
        data = random.Random(len(self.printed)).randbytes(count)
        self.ring.append(data)
        self.printed += data
        self.outlet.pump()
        assert self.outlet.queued <= MAX_QUEUED

    def read(self, count: int = 1 << 20) -> int:
        """What there is, at most `count` bytes."""
        try:
            data = self.there.recv(count)
        except BlockingIOError:
            return 0
        self.frames += self._decoder.feed(data)
        return len(data)

    async def read_all(self, count: int = 1 << 20) -> None:
        quiet = 0
        while quiet < 3:
            quiet = 0 if self.read(count) else quiet + 1
            await asyncio.sleep(0)  # lets the loop find the socket writable

    def stream(self, start: int = 0) -> bytes:
        """The output frames joined; each must begin where the last ended."""
        joined = bytearray()
        for frame in self.frames:
            if isinstance(frame, Output):
                assert frame.seq == start + len(joined)
                assert frame.data
                joined += frame.data
        return bytes(joined)

    def close(self) -> None:
        self.outlet.close()
        self.here.close()
        self.there.close()


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Rig]]:
    made: list[Rig] = []

    def build(ring_size: int = RING) -> Rig:
        made.append(Rig(tmp_path, ring_size))
        return made[-1]

    yield build
    for rig in made:
        rig.close()


Make = Callable[..., Rig]


@pytest.mark.parametrize("dribble", [1, 7, 1000, 4096, 70_000])
async def test_a_reader_in_dribbles_gets_every_byte_once(make: Make, dribble: int) -> None:
    rig, chance = make(), random.Random(dribble)
    rig.outlet.stream_from(0, SIZE)
    for _ in range(30):
        rig.print(chance.choice((1, 10, 500, 20_000)) if dribble > 100 else chance.randrange(90))
        rig.read(dribble)
        await asyncio.sleep(0)
    await rig.read_all(max(dribble, 100))
    assert rig.stream() == rig.printed
    assert (rig.behind, rig.lost, rig.outlet.queued) == (0, 0, 0)


async def test_a_small_ring_that_wraps_again_and_again(make: Make) -> None:
    rig = make(4 * GUARD)
    rig.outlet.stream_from(0, SIZE)
    for _ in range(60):
        rig.print(30_011)
        await rig.read_all()
    assert rig.stream() == rig.printed
    assert rig.ring.oldest > 0


async def test_the_stream_begins_where_it_was_asked_to(make: Make) -> None:
    rig = make()
    rig.print(5000)
    assert rig.outlet.place is None
    await rig.read_all()
    assert rig.frames == []
    rig.outlet.stream_from(1234, SIZE)
    await rig.read_all()
    assert rig.stream(1234) == rig.printed[1234:]


async def test_who_never_reads_costs_little_and_stops_nobody(make: Make) -> None:
    rig = make()
    rig.outlet.stream_from(0, SIZE)
    rig.emulated = 0
    for _ in range(100):
        rig.print(50_000)
        assert rig.outlet.queued < 100_000, "output waits in the ring, not in memory"
    assert (rig.behind, rig.lost) == (0, 0)


async def test_who_never_reads_news_is_dropped_at_the_bound(make: Make) -> None:
    rig = make()
    frame = Control({"kind": "title", "title": "x" * 500_000})
    for _ in range(120):
        rig.outlet.send(frame)
        assert rig.outlet.queued <= MAX_QUEUED
    assert (rig.lost, rig.outlet.queued) == (1, 0)
    rig.print(10)
    assert rig.lost == 1


async def test_too_far_behind_is_said_once_until_the_stream_starts_again(make: Make) -> None:
    rig = make()
    rig.outlet.stream_from(0, SIZE)
    rig.print(1 << 20)
    assert rig.behind == 0
    while not rig.behind:
        rig.print(1 << 20)
    for _ in range(5):
        rig.print(1000)
        rig.outlet.pump()
    await rig.read_all()
    assert rig.behind == 1
    assert rig.outlet.place is None
    left = rig.outlet.left_at
    assert rig.stream() == rig.printed[:left], "all up to there came, and whole"
    assert rig.ring.head - left > MAX_BEHIND
    rig.frames.clear()
    rig.outlet.stream_from(rig.ring.head - 500, SIZE)
    await rig.read_all()
    assert rig.stream(rig.ring.head - 500) == rig.printed[-500:]
    assert rig.behind == 1


async def test_far_behind_but_no_snapshot_is_nearer_it_is_still_served(make: Make) -> None:
    rig = make()
    rig.emulated = 0
    rig.outlet.stream_from(0, SIZE)
    rig.print(MAX_BEHIND + (1 << 20))
    await rig.read_all()
    assert rig.behind == 0
    assert rig.stream() == rig.printed


async def test_overtaken_by_the_ring_is_behind_even_so(make: Make) -> None:
    rig = make(4 * GUARD)
    rig.emulated = 0
    rig.outlet.stream_from(0, SIZE)
    for _ in range(20):
        rig.print(GUARD)
    await rig.read_all()
    assert rig.behind == 1
    assert rig.stream() == rig.printed[: rig.outlet.left_at]


async def test_a_partly_sent_frame_survives_the_ring_coming_round(make: Make) -> None:
    """What the socket did not take of a frame is copied: the ring may overwrite it."""
    rig = make(4 * GUARD)
    rig.emulated = 0
    rig.outlet.stream_from(0, SIZE)
    for _ in range(4):
        rig.print(40_000)
    for _ in range(12):
        rig.print(GUARD)
    await rig.read_all(999)
    assert rig.stream() == rig.printed[: rig.outlet.left_at]
    assert rig.outlet.left_at > 0


@pytest.mark.parametrize("dribble", [50, 1 << 20])
async def test_resizes_stand_exactly_where_they_belong(make: Make, dribble: int) -> None:
    rig, chance, wanted = make(), random.Random(3), []
    rig.outlet.stream_from(0, SIZE)
    for n in range(40):
        rig.print(chance.choice((0, 1, 50, 3000)))
        rig.ring.mark(100 + n, 30)
        wanted.append((rig.ring.head, 100 + n, 30))
        rig.outlet.pump()
        rig.read(dribble)
    rig.print(100)
    await rig.read_all(dribble)
    assert rig.stream() == rig.printed
    at, seen = 0, []
    for frame in rig.frames:
        if isinstance(frame, Output):
            at = frame.seq + len(frame.data)
        elif isinstance(frame, Resize):
            assert frame.seq == at, "a resize comes after all that was printed before it"
            seen.append((frame.seq, frame.columns, frame.rows))
    last = {seq: (seq, *size) for seq, *size in wanted}
    assert [mark for mark in seen if mark in last.values()] == list(last.values())
    assert set(seen) <= set(wanted)
    assert seen == sorted(seen)


async def test_a_size_the_client_already_has_is_not_told_again(make: Make) -> None:
    rig = make()
    rig.print(10)
    rig.ring.mark(100, 30)
    rig.outlet.stream_from(10, (100, 30))
    await rig.read_all()
    assert rig.frames == []
    rig.ring.mark(90, 20)
    rig.outlet.pump()
    rig.ring.mark(100, 30)
    rig.outlet.pump()
    await rig.read_all()
    assert rig.frames == [Resize(10, 90, 20), Resize(10, 100, 30)]


async def test_one_who_resumes_hears_the_resizes_since(make: Make) -> None:
    rig = make()
    rig.print(10)
    rig.ring.mark(100, 30)
    rig.print(10)
    rig.ring.mark(50, 10)
    rig.outlet.stream_from(5, (0, 0))
    await rig.read_all()
    data = bytes(rig.printed)
    assert rig.frames == [
        Output(5, data[5:10]),
        Resize(10, 100, 30),
        Output(10, data[10:20]),
        Resize(20, 50, 10),
    ]


async def test_news_comes_between_whole_frames_and_in_order(make: Make) -> None:
    rig, said = make(), []
    rig.outlet.stream_from(0, SIZE)
    for n in range(50):
        rig.print(30_000)
        said.append(Control({"kind": "title", "title": str(n)}))
        rig.outlet.send(said[-1])
        if n % 3:
            rig.read(9_999)
    await rig.read_all()
    assert rig.stream() == rig.printed
    assert [frame for frame in rig.frames if isinstance(frame, Control)] == said


async def test_a_peer_that_closes_is_lost_once(make: Make) -> None:
    rig = make()
    rig.outlet.stream_from(0, SIZE)
    rig.print(100)
    rig.there.close()
    for _ in range(5):
        rig.print(100)
        rig.outlet.send(Control({"kind": "x"}))
    assert (rig.lost, rig.behind, rig.outlet.queued) == (1, 0, 0)


async def test_a_peer_that_closes_while_it_is_waited_for(make: Make) -> None:
    rig = make()
    rig.outlet.stream_from(0, SIZE)
    rig.print(1 << 20)
    assert rig.outlet.place != rig.ring.head
    rig.there.close()
    for _ in range(5):
        await asyncio.sleep(0)
    assert rig.lost == 1
    assert not asyncio.get_running_loop().remove_writer(rig.here), "nobody waits any more"


async def test_closed_it_is_silent(make: Make) -> None:
    rig = make()
    rig.outlet.close()
    rig.outlet.close()
    rig.outlet.send_bytes(encode(Control({"kind": "x"})))
    rig.outlet.stream_from(0, SIZE)
    rig.print(100)
    await rig.read_all()
    assert (rig.frames, rig.lost) == ([], 0)


def test_the_frames_it_cuts_are_ordinary_ones() -> None:
    data = b"x" * 10
    assert output_header(3, 10) + data == encode(Output(3, data))
