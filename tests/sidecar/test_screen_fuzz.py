"""Anything a program may print, at any size: the screen can always be had, and memory is bounded.

A crash of the library is a crash of this test's process: that is noticed."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from holdfast_sidecar import snapshot
from holdfast_sidecar.ghostty import Terminal
from holdfast_sidecar.history import History

MIB = 1 << 20
MAX_GROWTH = 200 * MIB
SCROLLBACK = 1000
INTRODUCERS = (
    b"\x1b[",
    b"\x1b]",
    b"\x1bP",
    b"\x1b_",
    b"\x1b^",
    b"\x1bX",
    b"\x1b",
    b"\x9b",
    b"\x9d",
)
BROKEN = (
    *(b"\xff", b"\xc0\x80", b"\xe6\x97", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xf0\x9f\x99"),
    *(b"\x80" * 9, b"\xef\xbf\xbf", b"\xf8\x88\x80\x80\x80", b"\0", b"\x7f", b"\x18", b"\x1a"),
)
GIANT = (
    b"0",
    b"65535",
    b"65536",
    b"4294967296",
    b"9" * 40,
    b"-1",
    b";" * 200,
    b"1:" * 50,
    b"?999999",
)


def resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def look(terminal: Terminal, history: History) -> None:
    """Every way there is to see it."""
    history.warm(terminal)
    assert isinstance(snapshot.take(terminal, history), bytes)
    for scrollback in (False, True):
        text = snapshot.text(terminal, scrollback=scrollback)
        snapshot.text(terminal, scrollback=scrollback, unwrap=True)
        snapshot.ansi(terminal, scrollback=scrollback)
        assert "\x1b" not in text
    column, row = terminal.cursor
    assert 0 <= column < terminal.columns
    assert 0 <= row < terminal.rows
    assert terminal.title is not None


def noise(chance: random.Random) -> bytes:
    kind = chance.randrange(6)
    if kind == 0:
        return chance.randbytes(chance.randrange(1, 300))
    if kind == 1:
        return b"".join(chance.choices(BROKEN, k=10))
    if kind == 2:
        final = bytes([chance.randrange(0x40, 0x7F)])
        giants = b";".join(chance.choices(GIANT, k=chance.randrange(1, 5)))
        return chance.choice((b"\x1b[", b"\x1b[?", b"\x1b[>", b"\x1b[=")) + giants + final
    if kind == 3:
        return chance.choice(INTRODUCERS) + chance.randbytes(chance.randrange(40))
    if kind == 4:
        return bytes(chance.choices(b"\x1b[]0123456789;?hlmHJKr\r\n\tabcP\\", k=200))
    return "".join(chance.choices("aé日🙂\u0301\u200d\ufe0f\U0001f1e9\u202e", k=40)).encode()


@pytest.mark.parametrize("seed", range(12))
def test_noise(seed: int) -> None:
    chance, history = random.Random(seed), History()
    terminal = Terminal(chance.choice((2, 20, 80)), chance.choice((1, 5, 24)), SCROLLBACK)
    for _ in range(12):
        terminal.feed(b"".join(noise(chance) for _ in range(chance.randrange(1, 25))))
        look(terminal, history)
    copy = terminal.clone()
    if copy is not None:  # where it cannot be encoded, keyframes are written in another form
        look(copy, History())
    terminal.feed(b"\x18\x1bc\x1b[3Jit still works")
    assert snapshot.text(terminal, scrollback=True).replace("\n", "") == "it still works"


@pytest.mark.parametrize("giant", GIANT)
def test_giant_parameters_of_every_sequence(giant: bytes) -> None:
    terminal, history = Terminal(20, 5, SCROLLBACK), History()
    for prefix in (b"", b"?", b">", b"!", b" "):
        for final in range(0x40, 0x7F):
            terminal.feed(b"text\r\n\x1b[%s%s%c" % (prefix, giant, final))
            terminal.feed(b"\x1b[%s;%s%s%c" % (giant, giant, prefix, final))
        look(terminal, history)


@pytest.mark.parametrize(
    "introducer", [b"\x1b]2;", b"\x1b]52;c;", b"\x1bP", b"\x1b_G", b"\x1b^", b"\x1b["]
)
def test_strings_of_megabytes_that_never_end(introducer: bytes) -> None:
    terminal, history, before = Terminal(80, 24, SCROLLBACK), History(), resident()
    terminal.feed(b"before" + introducer)
    for _ in range(16):
        terminal.feed(b"1;" * (MIB // 2))
    assert resident() - before < MAX_GROWTH
    terminal.feed(b"\x18")
    look(terminal, history)
    terminal.feed(introducer + b"1;" * 30_000)
    look(terminal, history)
    assert snapshot.take(terminal, history).endswith(introducer + b"1;" * 30_000)
    copy = terminal.clone()
    if copy is not None:  # where it cannot be encoded, keyframes are written in another form
        look(copy, History())
    terminal.feed(b"\x18\x1b[2J\x1b[Hafter")
    assert snapshot.text(terminal, scrollback=False) == "after"


def test_output_without_end_is_kept_within_bounds() -> None:
    terminal, history, before = Terminal(80, 24, SCROLLBACK), History(), resident()
    coloured = b"".join(b"\x1b[38;2;%d;0;0mx" % (n % 256) for n in range(4000)) + b"\r\n"
    for _ in range(300):
        terminal.feed(coloured)
    for n in range(20_000):
        terminal.feed(b"\x1b]8;;http://example.com/%d\x1b\\l\x1b]8;;\x1b\\e\xcc\x81\r\n" % n)
    look(terminal, history)
    assert resident() - before < MAX_GROWTH


def test_combining_without_end_is_kept_within_bounds() -> None:
    terminal, before = Terminal(80, 24, SCROLLBACK), resident()
    terminal.feed(b"e")
    for _ in range(32):
        terminal.feed(b"\xcc\x81" * (MIB // 16))
    look(terminal, History())
    assert resident() - before < MAX_GROWTH


@pytest.mark.parametrize("seed", range(3))
def test_a_storm_of_resizes(seed: int) -> None:
    chance, history, before = random.Random(seed), History(), resident()
    terminal = Terminal(80, 24, SCROLLBACK)
    extremes = [(2, 1), (1000, 1), (2, 1000), (1000, 1000), (80, 24)]
    for step in range(40):
        terminal.feed(b"".join(noise(chance) for _ in range(10)) + b"line of text\r\n" * 20)
        size = extremes[step % 5] if step < 5 else (chance.randint(2, 300), chance.randint(1, 100))
        history.forget()
        terminal.resize(*size)
        assert (terminal.columns, terminal.rows) == size
        if step in (0, 2) or step % 8 == 7:
            look(terminal, history)
    look(terminal, history)
    assert resident() - before < MAX_GROWTH


def test_the_largest_screen_filled_and_shrunk() -> None:
    terminal, history, before = Terminal(1000, 1000, SCROLLBACK), History(), resident()
    terminal.feed(b"x" * (1000 * 1000))
    assert len(snapshot.text(terminal, scrollback=False)) == 1000 * 1001 - 1
    history.forget()
    terminal.resize(2, 1)
    look(terminal, history)
    assert resident() - before < MAX_GROWTH


def test_questions_are_answered_within_bounds() -> None:
    replies: list[bytes] = []
    terminal = Terminal(80, 24, SCROLLBACK)
    terminal.on_reply(replies.append, "holdfast test")
    asked = b"\x1b[c\x1b[6n\x1b[>q\x1b]11;?\x07\x1b[18t\x1b[?2026$p"
    terminal.feed(asked * 100)
    assert len(b"".join(replies)) < 100 * len(asked) * 10
    assert b"holdfast test" in b"".join(replies)
    for _ in range(50):
        terminal.feed(b"".join(noise(random.Random(n)) for n in range(20)))
    look(terminal, History())
