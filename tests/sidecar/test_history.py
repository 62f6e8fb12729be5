"""Kept scrollback changes nothing: a snapshot with it is, byte for byte, the one without."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from holdfast_sidecar import rows, snapshot
from holdfast_sidecar.ghostty import Terminal
from holdfast_sidecar.history import History

SCROLLBACK = 700

EDITS = [
    b"\x1b[3J", b"\x1b[2J", b"\x1b[J", b"\x1b[1J", b"\x1bc", b"\x1b[!p", b"\x1b[H", b"\x1b[2;1H",
    b"\x1b[K", b"\x1b[1K", b"\x1b[2K", b"\x1b[3L", b"\x1b[3M", b"\x1b[2S", b"\x1b[2T", b"\x1bM",
    b"\x1b[3X", b"\x1b[3P", b"\x1b[3@", b"\x1b[2;4r", b"\x1b[r", b"\x1b[31;44m", b"\x1b[0m", b"\b",
    b"\x1b[?1049h", b"\x1b[?1049l", b"\x1b[?47h", b"\x1b[?47l", b"\x1b[?7l", b"\x1b[?7h", b"\x1b#8",
    b"\x1b[44m\x1b[K\r\n\x1b[m", b"\x1b]8;;http://x/\x1b\\", b"\x1b]8;;\x1b\\", b"\x1b[22J",
    b"\x1b7", b"\x1b8", b"\x1b[100C", b"\x1b]133;A\x07", b"\x1b]133;C\x07", b"\x18", b"\x1b[",
    b"\xe6\x97",
]  # fmt: skip


def lines(count: int, start: int, width: int, wide: str = "日本") -> bytes:
    """Plain, coloured, empty, painted, wide and wrapped ones."""
    kinds = (
        b"line %d",
        b"",
        b"\x1b[3%dmcoloured\x1b[0m",
        b"%d" + wide.encode() * width,
        b"\x1b[4%dm\x1b[K\x1b[0m",
        b"%d" + b"wrapped " * (width // 3),
        b"%d  ",
    )
    some = []
    for number in range(start, start + count):
        kind = kinds[number * 7919 % 31 % len(kinds)]
        some.append(kind % (number % 8) if b"%d" in kind else kind)
    return b"\r\n".join(some) + b"\r\n"


def same(terminal: Terminal, history: History) -> None:
    assert snapshot.take(terminal, history) == snapshot.take(terminal, History())


class HistoryMachine(RuleBasedStateMachine):
    """Without wide characters: where a resize cuts one in half, the library cannot save it."""

    def __init__(self) -> None:
        super().__init__()
        self.terminal = Terminal(20, 5, SCROLLBACK)
        self.history = History()
        self.count = 0

    @rule(count=st.integers(1, 40) | st.sampled_from([255, 256, 257, 700]))
    def print(self, count: int) -> None:
        self.terminal.feed(lines(count, self.count, self.terminal.columns, wide="é "))
        self.count += count

    @rule(data=st.lists(st.sampled_from(EDITS), min_size=1, max_size=4))
    def edit(self, data: list[bytes]) -> None:
        self.terminal.feed(b"".join(data))

    @rule(text=st.text("ab éüe\u0301", max_size=50))
    def write(self, text: str) -> None:
        self.terminal.feed(text.encode())

    @rule(turns=st.integers(1, 4))
    def warm(self, turns: int) -> None:
        for _ in range(turns):
            if not self.history.warm(self.terminal):
                break

    @rule(columns=st.sampled_from([2, 11, 20, 80]), height=st.sampled_from([1, 5, 24]))
    def resize(self, columns: int, height: int) -> None:
        self.history.forget()
        self.terminal.resize(columns, height)

    @rule()
    def compress(self) -> None:
        self.terminal.compress()

    @invariant()
    def changes_nothing(self) -> None:
        same(self.terminal, self.history)


TestHistory = HistoryMachine.TestCase
TestHistory.settings = settings(max_examples=10, stateful_step_count=12, deadline=None)


@pytest.fixture
def terminal() -> Terminal:
    made = Terminal(30, 6, 2000)
    made.feed(lines(1500, 0, 30))
    return made


@pytest.fixture
def history(terminal: Terminal) -> History:
    made = History()
    while made.warm(terminal):
        pass
    assert made._count > 1000, "there is something kept to be wrong about"
    return made


@pytest.mark.parametrize("count", [1, rows.BLOCK - 1, rows.BLOCK, 1000, 3000, 30_000])
def test_more_lines(terminal: Terminal, history: History, count: int) -> None:
    terminal.feed(lines(count, 1500, 30))
    same(terminal, history)
    while history.warm(terminal):
        pass
    same(terminal, history)


@pytest.mark.parametrize("clear", [b"\x1b[3J", b"\x1bc", b"\x1b[H\x1b[2J\x1b[3J"])
def test_scrollback_cleared_and_filled_again(
    terminal: Terminal, history: History, clear: bytes
) -> None:
    terminal.feed(clear)
    same(terminal, history)
    terminal.feed(clear + lines(1500, 7, 30))
    same(terminal, history)
    history.warm(terminal)
    same(terminal, history)


def test_the_alternate_screen_and_back(terminal: Terminal, history: History) -> None:
    terminal.feed(b"\x1b[?1049h\x1b[2Jin the other one")
    same(terminal, history)
    assert not history.warm(terminal)
    terminal.feed(b"\x1b[?1049l" + lines(300, 3, 30))
    same(terminal, history)


def test_a_resize_with_forget(terminal: Terminal, history: History) -> None:
    for size in ((7, 6), (120, 40), (30, 6), (30, 2)):
        history.forget()
        terminal.resize(*size)
        same(terminal, history)
        history.warm(terminal)
        same(terminal, history)


def test_a_line_that_wraps_from_the_last_kept_row_into_the_screen() -> None:
    terminal, history = Terminal(10, 3, 1000), History()
    terminal.feed(b"x\r\n" * (rows.BLOCK - 1) + b"0123456789abcdef\r\n\r\n\r\n")
    for _ in range(4):
        terminal.feed(b"\x1b[A")
    while history.warm(terminal):
        pass
    for edit in (b"\x1b[H\x1b[2K", b"\x1b[H\x1b[1K", b"\x1b[H\x1b[M", b"\x1b[2J", b"\x1b[Hnew"):
        terminal.feed(edit)
        same(terminal, history)


def test_compressed_rows_read_the_same(terminal: Terminal, history: History) -> None:
    before = snapshot.take(terminal, History())
    terminal.compress()
    assert snapshot.take(terminal, history) == before
    assert snapshot.take(terminal, History()) == before


def test_kept_bytes_are_bounded_by_the_scrollback(terminal: Terminal, history: History) -> None:
    for start in range(0, 30_000, 1500):
        terminal.feed(lines(1500, start, 30))
        while history.warm(terminal):
            pass
        assert history._count <= 2000 + 2 * rows.BLOCK
    same(terminal, history)
