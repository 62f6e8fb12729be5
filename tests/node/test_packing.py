"""Bytes are packed where the way is slow and nowhere else; what comes packed is not believed."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from gateway_kit import until
from holdfast_node import packing, transfer
from holdfast_node.frames import Frames
from holdfast_node.link import CHUNK, Frame, Link, Place, answer, dial
from holdfast_node.packing import SELDOM, SLOW, Judge, Packer, unpacked
from holdfast_node.pages import Carrier
from holdfast_node.pair import Facts
from holdfast_node.transfer import Receiver, Sender
from holdfast_wire.errors import BadRequest

from .conftest import Contexts

MB = 1 << 20
zstd = packing._zstd()
HEAP = b"".join(b"object %d at %d; " % (n, n * 7919 % 65536) for n in range(CHUNK // 16))[:CHUNK]
NOISE = os.urandom(CHUNK)


def sends(judge: Judge, megabytes: float, rate: float) -> bool:
    """So much, a piece at a time, as fast as that; whether the way looked slow at last."""
    looked = False
    for _ in range(int(megabytes * MB / CHUNK)):
        looked = judge.sent(CHUNK, CHUNK / rate)
    return looked


def slow(rate: float = 25e6) -> Judge:
    judge = Judge()
    assert sends(judge, 16, rate)
    judge.begin()
    return judge


def test_a_fast_link_is_left_alone() -> None:
    judge = Judge()
    assert not sends(judge, 1000, SLOW * 1.01)
    assert not judge.wants()
    judge.sent(CHUNK, 0.09)
    assert not judge.slow, "a moment says nothing"


def test_a_slow_one_is_known_soon_and_packed_while_that_gains() -> None:
    assert sends(Judge(), 1, 1e6)
    judge = slow()
    for _ in range(100):
        assert judge.wants()
        judge.packed(CHUNK, CHUNK * 3 // 4, 0.0005)
        judge.sent(CHUNK // 4, 0.01)


def test_what_does_not_become_less_is_tried_seldom() -> None:
    judge = slow()
    tries = 0
    for _ in range(SELDOM * 10):
        if judge.wants():
            tries += 1
            judge.packed(CHUNK, 0, 0.0001)
        judge.sent(CHUNK, 0.01)
    assert tries == 10


def test_a_busy_processor_makes_packing_take_as_long() -> None:
    """A link at half of what counts as slow, and packing that takes longer than that."""
    judge = slow(SLOW / 2)
    assert judge.wants()
    judge.packed(CHUNK, CHUNK * 3 // 4, CHUNK / (SLOW / 2))
    assert not judge.wants()


def test_a_moment_without_a_processor_is_soon_forgotten() -> None:
    judge = slow()
    assert judge.wants()
    judge.packed(CHUNK, CHUNK * 3 // 4, 5.0)  # the very first
    tries = [judge.wants() for _ in range(SELDOM)]
    assert tries.count(True) == 1
    for _ in range(8):
        judge.packed(CHUNK, CHUNK * 3 // 4, 0.0005)
    assert judge.wants()
    judge.packed(CHUNK, CHUNK * 3 // 4, 5.0)
    assert judge.wants()


def test_that_nothing_holds_it_up_while_packing_does_not_make_the_link_fast() -> None:
    judge = slow()
    for _ in range(100):
        assert judge.wants()
        judge.packed(CHUNK, CHUNK * 3 // 4, 0.0005)
        judge.sent(CHUNK // 4, 0.00001)
    sends(judge, 520, 1e9)
    assert not judge.slow, "but it is seen anew in the end"
    assert not sends(judge, 100, 1e9)


def test_an_agent_that_takes_it_slowly_is_not_helped_by_packing() -> None:
    clock = iter(range(10**6))
    packer = Packer(lambda *_: None, lambda: True)
    packer.allowed = True
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("holdfast_node.packing.time.monotonic", lambda: float(next(clock)))
        for _ in range(50):
            packer.send(memoryview(HEAP))
    assert packer.saved == 0


def frames_of(data: bytes, *, allowed: bool = True, judge: Judge | None = None) -> list[Frame]:
    sent: list[tuple[Frame, bytes]] = []
    packer = Packer(lambda kind, body, _part: sent.append((kind, bytes(body))), lambda: False)
    packer.allowed, packer._judge = allowed, slow(1e6) if judge is None else judge
    for at in range(0, len(data), CHUNK):
        packer.send(memoryview(data)[at : at + CHUNK])
    came = b"".join(unpacked(body) if kind is Frame.PACKED else body for kind, body in sent)
    assert came == data
    assert packer.saved == len(data) - sum(len(body) for _, body in sent)
    return [kind for kind, _ in sent]


def test_only_what_becomes_less_is_packed_and_only_for_who_can_unpack() -> None:
    assert frames_of(HEAP + NOISE + HEAP[:1000]) == [Frame.PACKED, Frame.DATA, Frame.DATA]
    assert frames_of(HEAP, allowed=False) == [Frame.DATA]
    assert frames_of(HEAP, judge=Judge()) == [Frame.DATA]


def test_who_can_unpack_says_so() -> None:
    assert packing.accepted(packing.offer())
    for said in ({}, {"unpacks": None}, {"unpacks": "zstd"}, {"unpacks": ["lz4"]}):
        assert not packing.accepted(said)


BOMB = zstd.compress(bytes(64 * MB))
LIAR = bytes(BOMB[:6]) + CHUNK.to_bytes(4, "little") + bytes(BOMB[10:])
NOT_SAID = {zstd.CompressionParameter.content_size_flag: 0}
UNSIZED = zstd.compress(bytes(64 * MB), options=NOT_SAID)
SMALL = zstd.compress(b"x" * 5000)


@pytest.mark.parametrize(
    "body", [BOMB, LIAR, UNSIZED, SMALL + SMALL, SMALL[:-1], b"", b"nonsense", SMALL[:4]]
)
def test_what_claims_too_much_or_is_nothing_is_refused(body: bytes) -> None:
    assert zstd.get_frame_info(LIAR).decompressed_size == CHUNK
    with pytest.raises(BadRequest):
        unpacked(body)


@pytest.fixture
def links(tls: Contexts) -> Iterator[tuple[Link, Link]]:
    with ThreadPoolExecutor(1) as pool, socket.create_server(("127.0.0.1", 0)) as listening:
        server = tls(ssl.Purpose.CLIENT_AUTH)
        server.num_tickets = 0
        there = pool.submit(lambda: answer(listening.accept()[0], server))
        here = dial(Place("a", listening.getsockname()), tls(ssl.Purpose.SERVER_AUTH))
        both = here, there.result()
    yield both
    for link in both:
        link.close()


def test_memory_that_comes_packed_is_carried_on(links: tuple[Link, Link]) -> None:
    here, there = links
    ours, theirs = socket.socketpair()
    with ours, ThreadPoolExecutor(1) as pool:
        carrying = pool.submit(Carrier(Frames(there), theirs).run)
        for kind, body in ((Frame.PACKED, zstd.compress(HEAP)), (Frame.END, b"")):
            here.send(kind, body)
        came = b"".join(iter(lambda: ours.recv(CHUNK), b""))
        ours.shutdown(socket.SHUT_WR)
        carrying.result(10)
    assert came == HEAP


def poured(link: Link, count: int) -> None:
    for _ in range(count):
        link.send(Frame.DATA, NOISE)


def test_who_takes_nothing_is_told_from_a_slow_way(links: tuple[Link, Link]) -> None:
    here, there = links
    assert not here.held_by_receiver(), "nothing waits"
    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(poured, here, 200)
        until(here.held_by_receiver, "the other end has no room")
        for _ in range(200):
            there.body(there.head()[2])
        sending.result(10)


def taken(frames: Frames, size: int, step: int) -> bytes:
    data, view = b"", memoryview(bytearray(step))
    while len(data) < size:
        frames.tick()
        data += view[: frames.read(view)]
    return data


def test_memory_that_comes_packed_is_taken_in_whatever_pieces(links: tuple[Link, Link]) -> None:
    here, there = links
    packed = zstd.compress(HEAP)
    for kind, body in ((Frame.PACKED, packed), (Frame.DATA, b"plain"), (Frame.PACKED, packed)):
        here.send(kind, body)
    assert taken(Frames(there), 2 * CHUNK + 5, 99_991) == HEAP + b"plain" + HEAP


@pytest.mark.parametrize("body", [BOMB, b"nonsense"])
def test_memory_that_claims_too_much_is_refused(links: tuple[Link, Link], body: bytes) -> None:
    here, there = links
    here.send(Frame.PACKED, body)
    with pytest.raises(BadRequest):
        taken(Frames(there), 1, 1)


# -- parts of a checkpoint ------------------------------------------------------------------------

FACTS = Facts("c", "s", "n", "n", 1, "a", "b", "i", "x86_64", "6", (), 1.0)


@asynccontextmanager
async def linked(
    tls: Contexts, folder: Path, ready: Callable[[Receiver], Awaitable[object]]
) -> AsyncIterator[Sender]:
    async def handler(receiver: Receiver) -> None:
        await ready(receiver)
        await receiver.receive(folder / "parts")
        await receiver.committed()

    server, client = partial(tls, ssl.Purpose.CLIENT_AUTH), tls(ssl.Purpose.SERVER_AUTH)
    async with (
        transfer.serve("127.0.0.1", 0, server, handler) as port,
        transfer.connect(Place("a", ("127.0.0.1", port)), client, None, FACTS.checkpoint) as sender,
    ):
        await sender.ready()
        yield sender


async def older(receiver: Receiver) -> None:
    """An agent that was before there was anything to unpack."""
    await receiver.run(lambda: receiver.link.send(Frame.READY))


@pytest.mark.parametrize(("ready", "packs"), [(Receiver.ready, True), (older, False)])
async def test_parts_go_packed_to_who_can_unpack_them(
    tls: Contexts, tmp_path: Path, ready: Callable[[Receiver], Awaitable[object]], packs: bool
) -> None:
    async with linked(tls, tmp_path, ready) as sender:
        sender.packer._judge = slow(1e6)
        await sender.send_bytes("part", HEAP * 3 + NOISE)
        await sender.finish(FACTS)
        await sender.outcome()
        assert sender.progress.sent == 4 * CHUNK
        assert (sender.packer.saved > CHUNK) == packs
    assert (tmp_path / "parts/part").read_bytes() == HEAP * 3 + NOISE


async def test_a_part_that_claims_too_much_is_refused_and_its_sender_told(
    tls: Contexts, tmp_path: Path
) -> None:
    def hostile(_write: object) -> None:
        sender._send(Frame.PACKED, BOMB, 1)

    async with linked(tls, tmp_path, Receiver.ready) as sender:
        sending = asyncio.gather(sender.send_from("part", hostile), sender.finish(FACTS))
        with pytest.raises(BadRequest, match="packed more than fits"):
            await sending
        await asyncio.wait([sending])
    assert not (tmp_path / "parts").exists()


# -- a slow link ----------------------------------------------------------------------------------

MBIT, LARGE, SMALLER = 100, 100, 12


@pytest.fixture(scope="module")
def figures(keys_folder: Path) -> dict[str, dict[str, float]]:
    words = [sys.executable, str(Path(__file__).with_name("slow_link.py")), str(keys_folder)]
    done = subprocess.run(
        ["unshare", "-rn", *words, f"{MBIT}mbit", str(LARGE), str(SMALLER)],
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, dict[str, float]] = json.loads(done.stdout)
    return found


needs_tc = pytest.mark.skipif(
    not (shutil.which("tc") and shutil.which("unshare")), reason="needs tc, to make a link slow"
)


@needs_tc
@pytest.mark.timed
@pytest.mark.parametrize("how", ["parts", "pages"])
def test_over_a_slow_link_memory_goes_several_times_as_fast(
    figures: dict[str, dict[str, float]], how: str
) -> None:
    plain = LARGE * MB * 8 / (MBIT * 1e6)
    assert figures[how]["seconds"] < plain / 3
    assert figures[how]["saved"] > 0.6


@needs_tc
@pytest.mark.timed
def test_what_cannot_be_packed_is_not_held_up(figures: dict[str, dict[str, float]]) -> None:
    assert figures["noise"]["saved"] == 0
    assert figures["noise"]["seconds"] < figures["noise_plain"]["seconds"] * 1.05
