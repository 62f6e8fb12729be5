"""The ring against a list of bytes, around its wrap, reopened, damaged, and killed: after every
single line of its code, and for real."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from holdfast_sidecar import ring as ring_module
from holdfast_sidecar.ring import GUARD, MAX_MARKS, Mark, Ring
from holdfast_wire.errors import Internal

SIZE = 4 * GUARD
HEADER = 8192
PATTERN = ring_module._PATTERN


def text(count: int, start: int = 0) -> bytes:
    """Distinguishable bytes, all of them UTF-8."""
    line = b"".join(b"%06d\n" % (start // 7 + n) for n in range(count // 7 + 2))
    return line[start % 7 : start % 7 + count]


def read(ring: Ring, start: int, end: int) -> bytes:
    return b"".join(ring.slices(start, end))


class Pipe:
    def __init__(self) -> None:
        self.out, self.inn = os.pipe()
        os.set_blocking(self.out, False)
        os.set_blocking(self.inn, False)

    def pour(self, ring: Ring, data: bytes) -> None:
        """All of `data` through the pipe into the ring, in as many reads as it takes."""
        while data:
            data = data[os.write(self.inn, data[: 32 << 10]) :]
            self.drain(ring)

    def drain(self, ring: Ring) -> None:
        while True:
            try:
                ring.fill(self.out)
            except BlockingIOError:
                return

    def close(self) -> None:
        os.close(self.out)
        os.close(self.inn)


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    made = Pipe()
    yield made
    made.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ring"


class RingMachine(RuleBasedStateMachine):
    """A ring and what it should hold: every byte, every mark, the floor."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "ring"
        self.ring = Ring(self.path, SIZE)
        self.pipe = Pipe()
        self.all = bytearray()
        self.marks: list[Mark] = []
        self.floor = 0

    def said(self, count: int) -> bytes:
        return text(count, len(self.all))

    @rule(count=st.integers(1, 3000) | st.sampled_from([GUARD - 1, GUARD, GUARD + 1, 2 * GUARD]))
    def print(self, count: int) -> None:
        data = self.said(count)
        self.pipe.pour(self.ring, data)
        self.all += data

    @rule(count=st.integers(0, 300) | st.sampled_from([GUARD, GUARD + 1, SIZE, 2 * SIZE + 1]))
    def append(self, count: int) -> None:
        data = self.said(count)
        self.ring.append(data)
        self.all += data

    @rule(columns=st.integers(2, 1000), rows=st.integers(1, 1000))
    def mark(self, columns: int, rows: int) -> None:
        self.ring.mark(columns, rows)
        self.marks = [mark for mark in self.marks if mark.seq < len(self.all)]
        self.marks.append(Mark(len(self.all), columns, rows))

    @rule(back=st.integers(0, SIZE))
    def lose(self, back: int) -> None:
        self.floor = max(self.floor, len(self.all) - back)
        self.ring.lose(len(self.all) - back)

    @rule()
    def close_and_open(self) -> None:
        before = self.ring.head, self.ring.oldest, self.ring.marks_after(0)
        self.ring.close()
        self.ring = Ring(self.path, SIZE)
        assert (self.ring.head, self.ring.oldest, self.ring.marks_after(0)) == before

    @rule()
    def die_and_open(self) -> None:
        """Nothing was committed since the last guard, and the process is gone."""
        self.ring = Ring(self.path, SIZE)

    @precondition(lambda self: self.ring.head > self.ring.oldest)
    @rule(data=st.data())
    def look(self, data: st.DataObject) -> None:
        start = data.draw(st.integers(self.ring.oldest, self.ring.head))
        end = data.draw(st.integers(start, self.ring.head))
        assert read(self.ring, start, end) == self.all[start:end]

    @invariant()
    def has_the_newest_bytes(self) -> None:
        ring = self.ring
        assert ring.head == len(self.all)
        assert max(self.floor, ring.head - SIZE) <= ring.oldest
        assert ring.oldest <= max(self.floor, ring.head - SIZE + 2 * GUARD)
        assert read(ring, ring.oldest, ring.head) == self.all[ring.oldest :]

    @invariant()
    def has_the_marks(self) -> None:
        oldest = self.ring.oldest
        wanted = [mark for mark in self.marks if mark.seq >= oldest]
        assert self.ring.marks_after(oldest) == wanted

    def teardown(self) -> None:
        self.ring.close()
        self.pipe.close()
        self.folder.cleanup()


TestRing = RingMachine.TestCase
TestRing.settings = settings(max_examples=12, stateful_step_count=20, deadline=None)


def test_slices_around_the_wrap(path: Path, pipe: Pipe) -> None:
    ring = Ring(path, SIZE)
    data = text(SIZE + 100)
    pipe.pour(ring, data)
    assert len(ring.slices(SIZE - 5, SIZE)) == 1
    assert len(ring.slices(SIZE, SIZE + 5)) == 1
    assert [bytes(v) for v in ring.slices(SIZE - 5, SIZE + 5)] == [
        data[SIZE - 5 : SIZE],
        data[SIZE : SIZE + 5],
    ]
    assert ring.slices(SIZE, SIZE) == ()
    for start, end in ((ring.oldest - 1, ring.head), (0, 1), (5, 4), (0, ring.head + 1)):
        with pytest.raises(Internal):
            ring.slices(start, end)


def test_a_read_says_when_the_pipe_is_dry_and_when_it_is_closed(path: Path, pipe: Pipe) -> None:
    ring = Ring(path, SIZE)
    with pytest.raises(BlockingIOError):
        ring.fill(pipe.out)
    os.write(pipe.inn, b"last")
    os.dup2(pipe.out, pipe.inn)  # the writing end is gone
    assert ring.fill(pipe.out) == 4
    assert ring.fill(pipe.out) == 0
    assert read(ring, 0, 4) == b"last"


def test_would_lose_warns_before_every_fill_that_does(path: Path, pipe: Pipe) -> None:
    ring, kept = Ring(path, SIZE), 1000
    while not ring.would_lose(kept):
        os.write(pipe.inn, text(40 << 10))
        while not ring.would_lose(kept):
            try:
                ring.fill(pipe.out)
            except BlockingIOError:
                break
            assert ring.oldest <= kept
    assert ring.head > SIZE - 3 * GUARD, "warned much too early"


@pytest.mark.parametrize("count", [1, 7, GUARD - 1, GUARD, GUARD + 1, 2 * GUARD - 1])
def test_bytes_read_and_not_noted_are_found(path: Path, pipe: Pipe, count: int) -> None:
    first = Ring(path, SIZE)
    pipe.pour(first, text(10))
    first.commit()
    pipe.pour(first, text(count, 10))
    again = Ring(path, SIZE)
    assert again.head == 10 + count
    assert read(again, 0, again.head) == text(10 + count)


def test_nothing_read_is_nothing_found(path: Path) -> None:
    Ring(path, SIZE)
    assert Ring(path, SIZE).head == 0
    ring = Ring(path, SIZE)
    ring.append(text(GUARD))
    assert Ring(path, SIZE).head == GUARD


def test_the_patterns_own_bytes_in_the_middle_are_no_end(path: Path, pipe: Pipe) -> None:
    first = Ring(path, SIZE)
    data = b"begin" + PATTERN[5:3000] + b"\xc0\xff\xfe\n"
    pipe.pour(first, data)
    again = Ring(path, SIZE)
    assert read(again, 0, again.head) == data


def test_recovered_across_the_files_end(path: Path, pipe: Pipe) -> None:
    first = Ring(path, SIZE)
    pipe.pour(first, text(SIZE - 100))
    first.commit()
    pipe.pour(first, text(90, SIZE - 100))
    second = Ring(path, SIZE)
    assert second.head == SIZE - 10
    pipe.pour(second, text(500, SIZE - 10))
    third = Ring(path, SIZE)
    assert third.head == SIZE + 490
    assert read(third, third.oldest, third.head) == text(SIZE + 490)[third.oldest :]


def test_numbers_that_cannot_be_are_refused(path: Path) -> None:
    """A word is stored at once, so no kill leaves these; a damaged disk might."""
    Ring(path, SIZE).close()
    for at in (16, 24):
        blob = bytearray(path.read_bytes())
        blob[at : at + 8] = (2**60).to_bytes(8, "little")
        other = path.with_suffix(".damaged")
        other.write_bytes(blob)
        with pytest.raises(Internal):
            Ring(other, SIZE)


def test_a_file_that_was_only_made_is_a_fresh_ring(path: Path) -> None:
    path.write_bytes(bytes(HEADER + SIZE))
    assert (Ring(path, SIZE).head, Ring(path, SIZE).size) == (0, SIZE)


def test_when_the_table_of_marks_is_full_older_seqs_are_no_longer_served(path: Path) -> None:
    ring = Ring(path, SIZE)
    for n in range(MAX_MARKS + 10):
        ring.append(b"x")
        ring.mark(80 + n, 24)
    kept = ring.marks_after(0)
    assert kept == [Mark(n + 1, 80 + n, 24) for n in range(10, MAX_MARKS + 10)]
    assert ring.oldest == kept[0].seq
    again = Ring(path, SIZE)
    assert (again.oldest, again.marks_after(0)) == (ring.oldest, kept)
    assert again.marks_after(kept[-1].seq) == kept[-1:]
    assert again.marks_after(kept[-1].seq + 1) == []


def test_the_file_is_private_and_has_its_size(path: Path) -> None:
    Ring(path, SIZE).close()
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.stat().st_size == HEADER + SIZE
    assert Ring(path, 2 * SIZE).size == SIZE, "an existing ring keeps its size"


def test_resting_keeps_the_bytes(path: Path) -> None:
    ring = Ring(path, SIZE)
    ring.append(text(SIZE))
    ring.rest()
    assert read(ring, ring.oldest, ring.head) == text(SIZE)[ring.oldest :]


@pytest.mark.parametrize("size", [0, GUARD, 3 * GUARD, SIZE + 1, SIZE - GUARD, -SIZE])
def test_a_size_that_cannot_be(path: Path, size: int) -> None:
    with pytest.raises(Internal):
        Ring(path, size)


@pytest.mark.parametrize(
    "damage",
    [
        lambda blob: b"X" + blob[1:],
        lambda blob: blob[:-1],
        lambda blob: blob + b"\0",
        lambda blob: blob[:HEADER],
        lambda blob: blob[:8] + struct.pack("<Q", 2 * SIZE) + blob[16:],
        lambda blob: b"#!/bin/sh\necho not a ring\n" * 300,
    ],
    ids=["magic", "cut", "longer", "header only", "another size", "foreign"],
)
def test_a_file_that_is_not_ours_is_refused(path: Path, damage: object) -> None:
    Ring(path, SIZE).close()
    assert callable(damage)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(Internal):
        Ring(path, SIZE)


# -- killed ---------------------------------------------------------------------------------------


class EveryLine:
    """Copies the ring's file before each line of `ring.py` that runs: what a kill there leaves."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.left: list[Path] = []

    def _trace(self, frame: FrameType, event: str, _arg: Any) -> Any:
        if frame.f_code.co_filename != ring_module.__file__:
            return None
        if event in ("line", "return"):
            copy = self.path.with_name(f"killed-{len(self.left)}")
            shutil.copyfile(self.path, copy)
            self.left.append(copy)
        return self._trace

    def run(self, act: Callable[[], object]) -> list[Path]:
        self.left = []
        before = sys.gettrace()
        sys.settrace(self._trace)
        try:
            act()
        finally:
            sys.settrace(before)
        return self.left


@pytest.mark.parametrize("way", ["fill", "append"])
@pytest.mark.parametrize("start", [100, GUARD - 100, SIZE - 100, SIZE, SIZE + GUARD - 1])
def test_killed_at_any_line_nothing_is_lost(path: Path, pipe: Pipe, way: str, start: int) -> None:
    ring, count = Ring(path, SIZE), 300
    pipe.pour(ring, text(start))
    truth = text(start + count)
    os.write(pipe.inn, truth[start:])
    act = (lambda: ring.fill(pipe.out)) if way == "fill" else (lambda: ring.append(truth[start:]))
    heads = set()
    for left in EveryLine(path).run(act):
        again = Ring(left, SIZE)
        heads.add(again.head)
        assert read(again, again.oldest, again.head) == truth[again.oldest : again.head]
        again.close()
        left.unlink()
    part = min(start + count, -(-start // SIZE) * SIZE or SIZE)  # a read ends at the file's end
    assert heads <= {start, part, start + count}
    assert ring.head == max(heads)


BLOCK = bytes(random.Random(1).choices(b"abcdefghijklmnopqrstuvwxyz \n", k=1_000_003))
READER = """
import os, sys
from pathlib import Path
from holdfast_sidecar.ring import Ring
path, size, pipe = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
for _ in sys.stdin:
    child = os.fork()
    if child == 0:
        ring = Ring(path, size)
        while ring.fill(pipe):
            pass
        os._exit(0)
    print(child, flush=True)
    print(os.waitpid(child, 0)[1], flush=True)
"""


def printed(start: int, end: int) -> bytes:
    first = start // len(BLOCK)
    many = BLOCK * (-(-end // len(BLOCK)) - first)
    return many[start - first * len(BLOCK) : end - first * len(BLOCK)]


class Killed:
    """A process that fills a ring from a pipe and never commits, and is killed while it does."""

    def __init__(self, path: Path, size: int) -> None:
        self.path, self.size, self.written = path, size, 0
        self._pipe, self._inn = os.pipe()
        self._stop = threading.Event()
        self._writer = threading.Thread(target=self._write)
        self._process = subprocess.Popen(
            [sys.executable, "-c", READER, str(path), str(size), str(self._pipe)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[self._pipe], text=True,
        )  # fmt: skip
        self._writer.start()

    def _write(self) -> None:
        while not self._stop.is_set():
            at = self.written % len(BLOCK)
            with contextlib.suppress(BrokenPipeError):  # the test has failed and closed the pipe
                self.written += os.write(self._inn, memoryview(BLOCK)[at : at + (48 << 10)])
        os.close(self._inn)

    def _start(self) -> int:
        assert self._process.stdin is not None
        print("go", file=self._process.stdin, flush=True)
        return int(self._line())

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def kill_after(self, seq: int, spin: int) -> None:
        """Kills it a moment after it has come to `seq`."""
        child = self._start()
        with self.path.open("rb", buffering=0) as file:
            while struct.unpack("<Q", os.pread(file.fileno(), 8, 24))[0] < seq:
                pass
        for _ in range(spin):
            pass
        os.kill(child, signal.SIGKILL)
        assert int(self._line()) == signal.SIGKILL

    def finish(self) -> None:
        """The writer ends, and the last reader reads what there is."""
        self._stop.set()
        self._start()
        assert int(self._line()) == 0

    def close(self) -> None:
        self._stop.set()
        os.close(self._pipe)
        self._process.kill()
        self._process.communicate()
        self._writer.join()


@pytest.mark.parametrize(("size", "kills"), [(SIZE, 40), (32 << 20, 20)])
def test_killed_for_real_while_it_reads(path: Path, size: int, kills: int) -> None:
    Ring(path, size).close()
    chance, killed, head = random.Random(size), Killed(path, size), 0
    try:
        for _ in range(kills):
            killed.kill_after(head + chance.randrange(300 << 10), chance.randrange(3000))
            ring = Ring(path, size)
            assert ring.head >= head, "bytes that were there are gone"
            head = ring.head
            assert read(ring, ring.oldest, head) == printed(ring.oldest, head)
            ring.close()
        killed.finish()
        ring = Ring(path, size)
        assert ring.head == killed.written
        assert read(ring, ring.oldest, ring.head) == printed(ring.oldest, ring.head)
        ring.close()
    finally:
        killed.close()
