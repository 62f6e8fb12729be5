"""Queued input out of real terminals and into others. Putting in needs CAP_SYS_ADMIN."""

from __future__ import annotations

import os
import pty
import random
import select
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast_node import terminal
from holdfast_node.inside import may
from holdfast_node.terminal import Taken, put, take

SYS_ADMIN = 21
can_put = pytest.mark.skipif(not may(SYS_ADMIN), reason="needs CAP_SYS_ADMIN")


class Pty:
    """A terminal with nobody reading, as when its processes are frozen."""

    def __init__(self) -> None:
        self.master, self.slave = pty.openpty()
        os.set_blocking(self.master, False)
        os.set_blocking(self.slave, False)
        self.path = Path(os.ttyname(self.slave))

    def type(self, text: bytes) -> bytes:
        """What the terminal did not take."""
        while text:
            try:
                text = text[os.write(self.master, text) :]
            except BlockingIOError:
                return text
        return text

    def shown(self, seconds: float = 0.05) -> bytes:
        found = b""
        while select.select([self.master], [], [], seconds)[0]:
            found += os.read(self.master, 65536)
        return found

    def read(self) -> bytes | None:
        """One read by a process; None where it would wait."""
        try:
            return os.read(self.slave, 65536)
        except BlockingIOError:
            return None

    def read_all(self) -> list[bytes]:
        found = []
        while (part := self.read()) is not None:
            found.append(part)
        return found

    def settings(self) -> object:
        return terminal._Settings.of(self.slave)

    def change(self, *, iflag: int = 0, lflag: int = 0, without: int = 0) -> None:
        mode = termios.tcgetattr(self.slave)
        mode[0] = (mode[0] | iflag) & ~without
        mode[3] = (mode[3] | lflag) & ~without
        termios.tcsetattr(self.slave, termios.TCSANOW, mode)

    def raw(self) -> None:
        self.change(without=termios.ICANON | termios.ECHO)

    def close(self) -> None:
        os.close(self.master)
        os.close(self.slave)


@pytest.fixture
def one() -> Iterator[Pty]:
    made = Pty()
    yield made
    made.close()


@pytest.fixture
def other() -> Iterator[Pty]:
    made = Pty()
    yield made
    made.close()


def test_nothing_is_taken_from_an_empty_terminal(one: Pty) -> None:
    before = one.settings()
    assert take(one.master) == Taken(True, b"", 0, b"")
    assert not take(one.master)
    assert one.settings() == before


def test_lines_marks_and_a_half_typed_line_are_told_apart(one: Pty) -> None:
    one.type(b"one\rtw\x7fwo\rno newline\x04\x04half")
    assert one.shown() == b"one\r\ntw\b \bwo\r\nno newlinehalf"
    before = one.settings()
    taken = take(one.master)
    assert taken == Taken(True, b"one\ntwo\nno newline\0\0half", 20, b"")
    assert one.settings() == before
    assert one.read() is None
    assert one.shown() == b""


@pytest.mark.parametrize(
    ("typed", "complete"),
    [(b"\x04", 1), (b"\x04\x04ab", 2), (b"ab", 0), (b"\r", 1), (b"a\x04b\x04c", 4), (b"\rx", 1)],
)
def test_where_the_half_typed_line_begins(one: Pty, typed: bytes, complete: int) -> None:
    one.type(typed)
    one.shown()
    assert take(one.master).complete == complete


@can_put
def test_it_is_put_back_as_it_was(one: Pty, other: Pty) -> None:
    one.type(b"one\rtwo\x04\x04ha")
    one.shown()
    before = other.settings()
    assert put(other.master, take(one.master)) == b""
    assert other.settings() == before
    assert other.shown() == b""  # not echoed a second time
    assert other.read_all() == [b"one\n", b"two", b""]  # and the half line not read
    other.type(b"lf\x7ff\r")
    assert other.shown() == b"lf\b \bf\r\n"
    assert other.read_all() == [b"half\n"]


@can_put
def test_control_characters_are_not_obeyed_a_second_time(one: Pty, other: Pty) -> None:
    """They were quoted when they were typed: ^V before each."""
    quoted = b"\x03\x1a\x1c\x15\x17\x7f\x04\x13\x11\x0f\x16\n\r"
    one.type(b"a" + b"".join(b"\x16" + bytes([key]) for key in quoted) + b"z")
    one.shown()
    taken = take(one.master)
    assert taken.seen == b"a" + quoted + b"z"
    assert taken.complete == 0
    put(other.master, taken)
    assert other.read() is None
    other.type(b"\x04")
    assert b"".join(other.read_all()) == b"a" + quoted + b"z"


@can_put
def test_raw_input_stays_raw(one: Pty, other: Pty) -> None:
    everything = bytes(range(256)) * 4
    for terminal_ in (one, other):
        terminal_.raw()
        terminal_.change(without=termios.ISIG | termios.IXON | termios.IEXTEN)
        terminal_.change(without=termios.ICRNL)
    one.type(everything)
    taken = take(one.master)
    assert taken == Taken(False, everything, len(everything), b"")
    before = other.settings()
    assert put(other.master, taken) == b""
    assert other.settings() == before
    assert b"".join(other.read_all()) == everything


@can_put
@pytest.mark.parametrize("canonical", [True, False])
@pytest.mark.parametrize("echo", [True, False])
def test_64_kib_of_type_ahead(one: Pty, other: Pty, canonical: bool, echo: bool) -> None:
    """More than a terminal takes: the rest stays with whoever types."""
    maker = random.Random(1)
    text = b""
    while len(text) < 65536:
        text += bytes(maker.choices(b"abcdefgh ", k=maker.randint(1, 300))) + b"\r"
    for terminal_ in (one, other):
        if not canonical:
            terminal_.change(without=termios.ICANON)
        if not echo:
            terminal_.change(without=termios.ECHO)
    rest = one.type(text)
    shown = one.shown(0.2)
    rest = one.type(rest)
    shown += one.shown(0.2)
    assert len(text) - len(rest) > 8192
    taken = take(one.master)
    assert one.shown() == b""
    assert len(taken.seen) + len(taken.unseen) == len(text) - len(rest)
    assert taken.unseen
    left = put(other.master, taken) + rest
    got = b""
    deadline = time.monotonic() + 20
    while len(got) < len(text) and time.monotonic() < deadline:
        left = other.type(left)
        shown += other.shown(0)
        got += b"".join(other.read_all())
    shown += other.shown(0.2)
    assert got == text.replace(b"\r", b"\n")
    assert shown == (text.replace(b"\r", b"\r\n") if echo else b"")


@can_put
def test_taken_and_put_back_many_times(one: Pty) -> None:
    one.type(b"first\rsecond\x04third")
    one.shown()
    for _ in range(20):
        assert put(one.master, take(one.master)) == b""
    assert one.shown() == b""
    one.type(b"\r")
    assert one.read_all() == [b"first\n", b"second", b"third\n"]


@can_put
def test_an_interrupt_in_what_nobody_saw_yet_still_interrupts(one: Pty, other: Pty) -> None:
    """Behind a full buffer it had no effect yet; it must have it once, in the other."""
    taken = Taken(True, b"x" * 100, 0, b"y\x03")
    assert put(other.master, taken) == b""
    time.sleep(0.05)
    assert other.shown().endswith(b"^C")
    assert other.read() is None  # what was typed before an interrupt is dropped with it
    other.type(b"\r")
    assert other.read_all() == [b"\n"]
    assert one.read() is None


def test_it_travels_as_json() -> None:
    taken = Taken(True, b"a\n\0\xff", 3, bytes(range(256)))
    assert Taken.from_json(taken.to_json()) == taken


@pytest.mark.parametrize(
    "change", [{"complete": 5}, {"complete": -1}, {"seen": "?"}, {"seen": "AAAA" * 2000}]
)
def test_what_no_terminal_can_hold_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r".*"):
        Taken.from_json({**Taken(True, b"abcd", 2).to_json(), **change})
