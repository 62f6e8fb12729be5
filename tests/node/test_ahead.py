"""Memory that is sent while its session runs: what of it need not be sent again, and what the
target keeps. Real processes and links; the frozen tree is one that does nothing."""

from __future__ import annotations

import mmap
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.poly1305 import Poly1305
from hypothesis import given
from hypothesis import strategies as st

from holdfast_node import ahead
from holdfast_node.ahead import PIECE, PLACE, Early, Kept, joined
from holdfast_node.frames import Frames
from holdfast_node.link import Frame
from holdfast_node.pages import Asked
from holdfast_node.pair import Unfit
from holdfast_node.progress import Progress
from holdfast_wire.errors import BadRequest, TooLarge

from .test_pages import Pair, links, pool

__all__ = ["links", "pool"]

PID, BASE = 7, 16 * PIECE
MOST = 1 << 30


def pieces(letters: str) -> bytes:
    return b"".join(letter.encode() * PIECE for letter in letters)


def told(early: Early, data: bytes, address: int = BASE, most: int = MOST) -> list[tuple[int, int]]:
    return list(joined(early.changed(PID, address, memoryview(data), most)))


def same(early: Early, data: bytes, address: int = BASE) -> list[tuple[int, int]]:
    return list(joined(early.same(PID, address, memoryview(data))))


def test_what_has_not_changed_is_the_same_once() -> None:
    early = Early()
    assert told(early, pieces("abcd")) == [(0, 4 * PIECE)]
    assert told(early, pieces("abcd")) == []
    assert told(early, pieces("abXd")) == [(2 * PIECE, 3 * PIECE)]
    assert same(early, pieces("aYXd")) == [(0, PIECE), (2 * PIECE, 4 * PIECE)]
    assert same(early, pieces("aYXd")) == [], "the target keeps them no longer"


def test_another_process_has_other_memory() -> None:
    early = Early()
    told(early, pieces("ab"))
    assert list(early.same(PID + 1, BASE, memoryview(pieces("ab")))) == []


def test_no_more_is_sent_than_can_be_kept() -> None:
    early = Early()
    assert told(early, pieces("abcd"), most=3 * PIECE) == [(0, 3 * PIECE)]
    assert early.kept == 3 * PIECE
    # What it has can be replaced.
    assert told(early, pieces("aXcd"), most=3 * PIECE) == [(PIECE, 2 * PIECE)]


@given(
    st.lists(st.sampled_from("abc"), min_size=1, max_size=12),
    st.lists(st.sampled_from("abc"), min_size=12, max_size=12),
    st.integers(0, 11),
    st.integers(0, 3),
)
def test_whatever_is_asked_for_what_is_named_is_what_was_sent(
    sent: list[str], now: list[str], first: int, page: int
) -> None:
    """From any page on: what is named lies in whole pieces, and is as it was sent."""
    early = Early()
    before, after = pieces("".join(sent)), pieces("".join(now))
    told(early, before)
    at = first * PIECE + page * (PIECE // 4)
    for start, end in same(early, after[at:], BASE + at):
        assert (BASE + at + start) % PIECE == (end - start) % PIECE == 0
        assert after[at:][start:end] == before[at + start : at + end]


# -- the target


def kept(data: bytes, address: int = BASE) -> Kept:
    made = Kept(MOST)
    made.expect(PLACE.pack(PID, address, len(data)))
    while made.due:
        count = min(1000, len(made.due))
        at = len(data) - len(made.due)
        made.due[:count] = data[at : at + count]
        made.came(count)
    return made


def test_what_was_kept_is_given_once() -> None:
    made = kept(pieces("abc"))
    assert bytes(made.take(PLACE.pack(PID, BASE + PIECE, 2 * PIECE))) == pieces("bc")
    assert bytes(made.take(PLACE.pack(PID, BASE, PIECE))) == pieces("a")
    with pytest.raises(BadRequest, match="did not send"):
        made.take(PLACE.pack(PID, BASE, PIECE))


@pytest.mark.parametrize(
    "body",
    [b"", b"x" * 5, PLACE.pack(PID, BASE, 0), PLACE.pack(PID, BASE + 1, PIECE),
     PLACE.pack(PID, BASE, PIECE + 1)],
)  # fmt: skip
def test_what_is_no_place_is_refused(body: bytes) -> None:
    for act in (Kept(MOST).expect, Kept(MOST).take):
        with pytest.raises(BadRequest, match="no place"):
            act(body)


def test_more_than_was_offered_is_refused() -> None:
    made = Kept(2 * PIECE)
    with pytest.raises(TooLarge, match="more memory"):
        made.expect(PLACE.pack(PID, BASE, 3 * PIECE))
    with pytest.raises(BadRequest, match="pieces that are none"):
        Kept(MOST).expect(PLACE.pack(PID, BASE, 1 << 20))


def test_some_room_is_offered(tmp_path: Path) -> None:
    everything = ahead.room(tmp_path)
    assert 0 < everything < 1 << 44
    assert ahead.room() <= everything + (1 << 30)


def test_a_limit_on_memory_counts(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text("max\n")
    assert list(ahead._left(tmp_path)) == []
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("300\n")
    assert list(ahead._left(tmp_path)) == [700]


# -- both, over a link


KEY = b"k" * 32


def answered(source: Asked, memory: bytes, question: memoryview) -> None:
    """As lazy.serve: a head, and the memory that was asked for."""
    assert source.read(question)
    step = ahead.STEP
    for at in range(0, len(memory), step):
        head = b"head" if at == 0 else b""
        view = memoryview(head + memory[at : at + step])
        source.write(view, len(head), PID, BASE + at)
    while source.read(memoryview(bytearray(1))):
        pass
    source.end()


def asks(frames: Frames, size: int, patience: float = 10.0) -> bytes:
    data, got = memoryview(bytearray(size)), 0
    while frames.tick() or select.select([frames], [], [], 0.2)[0]:
        pass  # what comes ahead
    assert frames.send(b"page?") == 5
    while got < size:
        try:
            got += frames.recv_into(data[got:])
        except BlockingIOError:
            assert select.select([frames], [], [], patience)[0], "it waits for what has come"
    frames.patient()
    frames.finish(b"!")
    return bytes(data)


@pytest.mark.parametrize("packed", [False, True])
def test_only_what_changed_is_sent_again(
    links: Pair, pool: ThreadPoolExecutor, packed: bool
) -> None:
    random = os.urandom(PIECE * 40)
    memory = bytearray(random + bytes(PIECE * 40))
    source = Asked(links[0], pool, Poly1305(KEY), Progress())
    source.packer.allowed = packed
    target = Frames(links[1], Poly1305(KEY), Kept(MOST))
    question = memoryview(bytearray(5))

    def work() -> None:
        for at in range(0, len(memory), ahead.STEP):
            view = memoryview(memory)[at : at + ahead.STEP]
            for start, end in joined(source.early.changed(PID, BASE + at, view, MOST)):
                source.send_ahead(PID, BASE + at + start, view[start:end])
        memory[5 * PIECE] ^= 1
        memory[77 * PIECE] ^= 1
        answered(source, bytes(memory), question)

    working = pool.submit(work)
    assert asks(target, 4 + len(memory)) == b"head" + memory
    links[1].interrupt()
    working.result(10)
    assert source.known == len(memory) - 2 * PIECE


def test_memory_that_is_wrongly_taken_for_the_same_fails_the_move(
    links: Pair, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Early, "_tag", lambda *_: b"always")
    source = Asked(links[0], pool, Poly1305(KEY), Progress())
    target = Frames(links[1], Poly1305(KEY), Kept(MOST))

    def work() -> None:
        view = memoryview(pieces("ab"))
        for start, end in source.early.changed(PID, BASE, view, MOST):
            source.send_ahead(PID, BASE + start, view[start:end])
        answered(source, pieces("aX"), memoryview(bytearray(5)))

    working = pool.submit(work)
    with pytest.raises(Unfit, match="altered"):
        asks(target, 4 + 2 * PIECE)
    links[1].interrupt()
    working.result(10)


def test_nothing_is_kept_that_was_not_offered(links: Pair, pool: ThreadPoolExecutor) -> None:
    links[0].send(Frame.AHEAD, PLACE.pack(PID, BASE, PIECE))
    frames = Frames(links[1], Poly1305(KEY))
    with pytest.raises(TooLarge):
        asks(frames, 10)


# -- a process that runs


HEAP = """
import mmap, sys
heap = mmap.mmap(-1, 40 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
heap[4 << 20 : 12 << 20] = b"x" * (8 << 20)
print("up", flush=True)
for line in sys.stdin:
    heap[5 << 20] ^= 1
    print("changed", flush=True)
"""


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(
        [sys.executable, "-c", HEAP], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as made:
        assert made.stdout is not None
        assert made.stdout.readline() == b"up\n"
        yield made
        made.send_signal(signal.SIGKILL)


class Taken:
    """A target that remembers."""

    def __init__(self) -> None:
        self.early = Early()
        self.memory: dict[int, bytes] = {}

    def send_ahead(self, pid: int, address: int, view: memoryview) -> None:
        for at in range(0, len(view), PIECE):
            self.memory[address + at] = bytes(view[at : at + PIECE])

    def still_there(self) -> None:
        pass


def changed(child: subprocess.Popen[bytes]) -> None:
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(b"\n")
    child.stdin.flush()
    assert child.stdout.readline() == b"changed\n"


def sent(taken: Taken, pid: int, room: int = MOST) -> int:
    buffer = memoryview(bytearray(ahead.STEP))
    return sum(part for part, _ in ahead._sent(taken, pid, buffer, room))


def test_a_process_gives_what_it_has_and_then_what_it_changed(
    child: subprocess.Popen[bytes],
) -> None:
    taken = Taken()
    first = sent(taken, child.pid)
    assert 8 << 20 <= first < 30 << 20, "not what it has, or what it never touched"
    assert sum(body == b"x" * PIECE for body in taken.memory.values()) >= (8 << 20) // PIECE - 2
    changed(child)
    assert PIECE <= sent(taken, child.pid) < first / 4
    with Path(f"/proc/{child.pid}/mem").open("rb", buffering=0) as memory:
        for address, body in taken.memory.items():
            assert os.pread(memory.fileno(), PIECE, address) == body


def test_no_more_than_there_is_room_for(child: subprocess.Popen[bytes]) -> None:
    assert sent(Taken(), child.pid, 1 << 20) == 1 << 20


def test_one_that_has_ended_gives_nothing(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    child.wait()
    assert sent(Taken(), child.pid) == 0


def test_where_a_process_has_pages_of_its_own() -> None:
    with mmap.mmap(-1, 8 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as heap:
        before = sum(end - start for start, end in ahead.owned(os.getpid()))
        heap[: 4 << 20] = b"y" * (4 << 20)
        after = list(ahead.owned(os.getpid()))
    assert all((start | end) % PIECE == 0 for start, end in after)
    assert sum(end - start for start, end in after) - before >= 3 << 20
    longest = max(end - start for start, end in ahead.steps(iter(after)))
    assert longest <= ahead.STEP
