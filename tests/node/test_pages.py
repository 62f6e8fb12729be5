"""Bytes that two agents carry between them, in both directions, over real TLS."""

from __future__ import annotations

import asyncio
import os
import select
import socket
import ssl
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from cryptography.hazmat.primitives.poly1305 import Poly1305

from holdfast_node import frames, pages
from holdfast_node.frames import Frames
from holdfast_node.link import CHUNK, Frame, Link, LinkLost, Place, answer, dial
from holdfast_node.pages import Asked, Carrier, Needed
from holdfast_node.pair import Unfit
from holdfast_node.progress import Progress
from holdfast_wire.errors import BadRequest, NotFound

from .conftest import Contexts

Pair = tuple[Link, Link]


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as made:
        yield made


@pytest.fixture
def links(tls: Contexts, pool: ThreadPoolExecutor) -> Iterator[Pair]:
    """Of the one that dials, and of the one that answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = tls(ssl.Purpose.CLIENT_AUTH)
        server.num_tickets = 0
        there = pool.submit(lambda: answer(listening.accept()[0], server))
        here = dial(Place("a", listening.getsockname()), tls(ssl.Purpose.SERVER_AUTH))
    yield here, there.result()
    for link in (here, there.result()):
        link.interrupt()
        link.close()


def carried(pool: ThreadPoolExecutor, link: Link) -> tuple[socket.socket, Future[None]]:
    ours, theirs = socket.socketpair()
    ours.settimeout(20)
    return ours, pool.submit(Carrier(Frames(link), theirs).run)


def everything(end: socket.socket) -> bytes:
    data = b""
    while piece := end.recv(1 << 20):
        data += piece
    return data


def pour(end: socket.socket) -> None:
    while True:
        end.sendall(bytes(1 << 20))


def said(end: socket.socket, data: bytes) -> None:
    end.sendall(data)
    end.shutdown(socket.SHUT_WR)


def test_much_goes_both_ways_at_once_and_each_way_ends_by_itself(
    links: Pair, pool: ThreadPoolExecutor
) -> None:
    (a, first), (b, second) = (carried(pool, link) for link in links)
    there, back = os.urandom(9_000_001), os.urandom(7_000_003)
    with a, b:
        saying = [pool.submit(said, a, there), pool.submit(said, b, back)]
        heard = pool.submit(everything, b)
        assert everything(a) == back
        assert heard.result() == there
        for done in saying:
            done.result()
        first.result(10)
        second.result(10)


def test_who_has_ended_his_own_still_hears_the_other(links: Pair, pool: ThreadPoolExecutor) -> None:
    (a, first), (b, second) = (carried(pool, link) for link in links)
    with a, b:
        a.shutdown(socket.SHUT_WR)
        assert b.recv(1) == b""
        b.sendall(b"late")
        assert a.recv(4) == b"late"
        b.close()
        first.result(10)
        second.result(10)


def test_a_link_that_breaks_ends_both(links: Pair, pool: ThreadPoolExecutor) -> None:
    (a, first), (b, second) = (carried(pool, link) for link in links)
    with a, b:
        links[0].interrupt()
        assert a.recv(1) == b.recv(1) == b""
        for one in (first, second):
            with pytest.raises(LinkLost):
                one.result(10)


def test_an_end_that_nobody_reads_any_more_ends_both(links: Pair, pool: ThreadPoolExecutor) -> None:
    (a, first), (b, second) = (carried(pool, link) for link in links)
    with a:
        b.close()
        with pytest.raises(OSError, match=r"pipe|reset"):
            pour(a)
        for one in (first, second):
            with pytest.raises(LinkLost):
                one.result(5)


def test_silence_ends_it_and_having_nothing_to_say_does_not(
    links: Pair, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frames, "TICK", 0.05)
    monkeypatch.setattr(pages, "TICK", 0.05)
    monkeypatch.setattr(frames, "SILENCE", 0.4)
    (a, first), (b, second) = (carried(pool, link) for link in links)
    with a, b:
        time.sleep(1.0)
        a.sendall(b"still there")
        assert b.recv(11) == b"still there"
        links[1].interrupt()
        for one in (first, second):
            with pytest.raises(LinkLost):
                one.result(10)


def test_who_says_nothing_at_all_is_gone(
    links: Pair, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frames, "SILENCE", 0.4)
    a, first = carried(pool, links[0])
    with a, pytest.raises(LinkLost, match="nothing from"):
        first.result(10)


def test_the_other_agents_reason_is_heard(links: Pair, pool: ThreadPoolExecutor) -> None:
    a, first = carried(pool, links[0])
    links[1].send_json(Frame.FAILED, NotFound("no memory is to come by this").to_json())
    with a:
        assert a.recv(1) == b""
        with pytest.raises(NotFound, match="no memory"):
            first.result(10)


def test_a_frame_out_of_turn_is_refused(links: Pair, pool: ThreadPoolExecutor) -> None:
    a, first = carried(pool, links[0])
    links[1].send(Frame.MANIFEST, b"x" * 10_000)
    with a, pytest.raises(BadRequest, match="MANIFEST"):
        first.result(10)


def asked(link: Link, pool: ThreadPoolExecutor, key: bytes | None = None) -> Asked:
    return Asked(link, pool, None if key is None else Poly1305(key), Progress())


def answers(source: Asked, data: bytes) -> bytes:
    """To the first byte that is asked for; what was asked."""
    question = memoryview(bytearray(5))
    assert source.read(question)
    for at in range(0, len(data), CHUNK):
        source.write(memoryview(data)[at : at + CHUNK])
    while source.read(memoryview(bytearray(1))):  # a pager says that it has done
        pass
    source.end()
    return bytes(question)


@pytest.mark.parametrize("key", [None, bytes(32)])
def test_what_is_asked_for_is_answered(
    links: Pair, pool: ThreadPoolExecutor, key: bytes | None
) -> None:
    ours, theirs = socket.socketpair()
    tagger = None if key is None else Poly1305(key)
    carrying = pool.submit(Carrier(Frames(links[1], tagger), theirs).run)
    data = os.urandom(3_000_001)
    answering = pool.submit(answers, asked(links[0], pool, key), data)
    with ours:
        said(ours, b"page?")
        assert everything(ours) == data
        carrying.result(10)
        links[1].interrupt()
        assert answering.result(10) == b"page?"


def test_memory_that_was_altered_is_refused(links: Pair, pool: ThreadPoolExecutor) -> None:
    ours, theirs = socket.socketpair()
    carrying = pool.submit(Carrier(Frames(links[1], Poly1305(bytes(32))), theirs).run)
    answering = pool.submit(answers, asked(links[0], pool, b"x" * 32), bytes(100_000))
    with ours:
        said(ours, b"page?")
        with pytest.raises(Unfit, match="altered"):
            carrying.result(10)
        answering.result(10)


def filled(frames: Frames, size: int) -> bytes:
    """What a pager does: asks, takes that much, and has done."""
    data = memoryview(bytearray(size))
    assert frames.send(b"page?") == 5
    got = 0
    while got < size:
        try:
            got += frames.recv_into(data[got:])
        except BlockingIOError:
            select.select([frames], [], [])
    frames.patient()
    frames.finish(b"!")
    return bytes(data)


@pytest.mark.parametrize("key", [bytes(32), b"x" * 32], ids=["right", "altered"])
def test_a_pager_has_done_when_all_was_found_right(
    links: Pair, pool: ThreadPoolExecutor, key: bytes
) -> None:
    data = os.urandom(1_000_003)
    answering = pool.submit(answers, asked(links[0], pool, key), data)
    filling = pool.submit(filled, Frames(links[1], Poly1305(bytes(32))), len(data))
    if key == bytes(32):
        assert filling.result(10) == data
    else:
        with pytest.raises(Unfit, match="altered"):
            filling.result(10)
    links[1].interrupt()
    answering.result(10)


def test_more_than_was_asked_for_is_refused(links: Pair, pool: ThreadPoolExecutor) -> None:
    filling = pool.submit(filled, Frames(links[1]), 10)
    links[0].send(Frame.DATA, b"ten bytes.more")
    with pytest.raises(BadRequest, match="more than was asked for"):
        filling.result(10)


async def test_a_source_that_is_not_asked_yet_says_that_it_is_there(
    links: Pair, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "TICK", 0.01)
    source = asked(links[0], pool)
    ticking = asyncio.create_task(source.ticking())
    assert (await asyncio.to_thread(links[1].head))[0] is Frame.TICK
    hearing = asyncio.create_task(source.run(lambda: source.read(memoryview(bytearray(1)))))
    for _ in range(3):
        assert (await asyncio.to_thread(links[1].head))[0] is Frame.TICK
    links[1].send_json(Frame.FAILED, NotFound("no memory is to come by this").to_json())
    with pytest.raises(NotFound, match="no memory"):
        await hearing
    ticking.cancel()
    await asyncio.wait([ticking])


async def test_between_two_works_a_source_is_still_there(
    links: Pair, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "TICK", 0.01)
    source = asked(links[0], pool)
    ticking = asyncio.create_task(source.ticking())
    await source.run(lambda: None)
    assert (await asyncio.to_thread(links[1].head))[0] is Frame.TICK
    links[1].send(Frame.END)
    drained = asyncio.create_task(asyncio.to_thread(links[1].drain))
    await source.run(source.end)
    await ticking
    links[0].interrupt()
    await drained


def test_a_target_that_says_nothing_is_gone(
    links: Pair, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "TICK", 0.01)
    monkeypatch.setattr(pages, "SILENCE", 0.05)
    with pytest.raises(LinkLost, match="nothing from"):
        asked(links[0], pool).read(memoryview(bytearray(1)))


async def test_what_is_needed_is_waited_for() -> None:
    needed = Needed()
    await needed.no_more()
    with needed.now():
        with needed.now():
            pass
        waiting = asyncio.create_task(needed.no_more())
        await asyncio.sleep(0.01)
        assert not waiting.done()
    await waiting
