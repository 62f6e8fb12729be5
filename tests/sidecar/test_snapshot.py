"""A snapshot equals the truth. The judge is another emulator: `@xterm/headless` that saw every
byte, against one that was given a snapshot and the bytes after it."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from gateway_kit import until
from holdfast_sidecar import snapshot
from holdfast_sidecar.ghostty import Terminal
from holdfast_sidecar.history import History
from judge import Judge
from sidecar_kit import Live

SCROLLBACK = 10_000


def differences(one: Any, other: Any, path: str = "") -> list[str]:
    if one == other:
        return []
    if isinstance(one, dict) and isinstance(other, dict):
        keys = sorted(set(one) | set(other))
        return [d for k in keys for d in differences(one.get(k), other.get(k), f"{path}.{k}")]
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        pairs = enumerate(zip(one, other, strict=True))
        return [d for i, (a, b) in pairs for d in differences(a, b, f"{path}[{i}]")]
    return [f"{path}: {str(one)[:3000]} != {str(other)[:3000]}"]


def compare(
    judge: Judge,
    before: bytes,
    given_bytes: bytes,
    after: bytes = b"",
    size: tuple[int, int] = (80, 24),
    *,
    wraps: bool = True,
) -> None:
    with judge.terminal(*size, SCROLLBACK) as saw_all, judge.terminal(*size, SCROLLBACK) as came:
        saw_all.write(before + after)
        came.write(given_bytes + after)
        found = differences(saw_all.dump(), came.dump())
    assert [d for d in found if wraps or ".wrapped:" not in d][:5] == []


def check(
    judge: Judge,
    stream: bytes,
    cut: int | None = None,
    size: tuple[int, int] = (80, 24),
    *,
    wraps: bool = True,
) -> None:
    cut = len(stream) if cut is None else cut
    terminal = Terminal(*size, SCROLLBACK)
    terminal.feed(stream[:cut])
    taken = snapshot.take(terminal, History())
    compare(judge, stream[:cut], taken, stream[cut:], size, wraps=wraps)


WRAPPED = (
    b"a long line that is wider than the terminal and so wraps into the next row, twice\r\n" * 2
)
CASES = {
    "plain": b"hello\r\nworld",
    "wrapped": WRAPPED * 20,
    "full row": b"x" * 80,
    "full row, wide": ("x" * 78 + "漢").encode(),
    "full row then wide": ("x" * 79 + "漢").encode(),
    "wide": "漢字かな 한국어 \uff46\uff55\uff4c\uff4c 日本語\r\n".encode() * 30,
    "combining": "e\u0301 n\u0303 a\u0308o\u0308 क्षि\r\n".encode() * 3,
    "emoji": "👍🏽 👩\u200d👩\u200d👧 🇩🇪 ✓ ✔\ufe0f\r\n".encode() * 3,
    "colours": b"\x1b[1;31mred\x1b[0m \x1b[38;5;200mx\x1b[48;2;1;2;3mr\x1b[0m\x1b[4;9mu\x1b[m\r\n",
    "background to the end": b"\x1b[44mblue\x1b[K\r\n\x1b[K\r\n\x1b[0mplain\r\n",
    "background without text": b"\x1b[5;9H\x1b[41m\x1b[7X\x1b[7;1H\x1b[42m\x1b[2K\x1b[0m\x1b[3;3H",
    "inverse blanks": b"\x1b[7m      \x1b[27m  \x1b[4m    \x1b[0m|",
    "erased screen with colour": b"text\x1b[45m\x1b[2J\x1b[Hhome",
    "cursor hidden, keys": b"\x1b[?25l\x1b[?1h\x1b=",
    "mouse and paste": b"\x1b[?1000h\x1b[?1002h\x1b[?1006h\x1b[?2004h\x1b[?1004h",
    "insert and no wrap": b"abc\x1b[4h\x1b[?7l\x1b[1;2H",
    "margins and origin": b"\x1b[3;9r\x1b[?6h\x1b[2;2Habc",
    "line drawing": b"\x1b(0lqqk\x1b(B text \x1b(0",
    "saved cursor": b"\x1b[5;6H\x1b[31m\x1b7\x1b[0m\x1b[10;10Hx",
    "tab stops": b"\x1b[3g\x1b[5G\x1bH\x1b[20G\x1bH\r",
    "title": b"\x1b]2;a title with \xc3\xbc\x07x",
    "palette": b"\x1b]4;1;rgb:11/22/33\x1b\\\x1b[31mx",
    "alternate": b"primary\r\n" * 40 + b"\x1b[33mfoo\x1b[?1049h\x1b[2J\x1b[5;5Halt\x1b[41m\x1b[K",
    "alternate the old way": b"primary\r\nx\x1b[?47h\x1b[2J\x1b[3;3Hin",
    "alternate after scrolling": b"l\r\n" * 500
    + b"\x1b[?1049h\x1b[H~\r\n~\r\n\x1b[24;1H-- INSERT --",
    "scrolled": b"".join(b"line %d\r\n" % i for i in range(500)),
    "reverse index": b"a\r\nb\r\nc\x1b[H\x1bM\x1bMtop",
    "inserted and deleted lines": b"1\r\n2\r\n3\r\n4\x1b[2;1H\x1b[2L\x1b[4;1H\x1b[1M",
    "cursor shape": b"\x1b[5 qx",
    "gap between colours": b"\x1b[41ma\tb\x1b[0m\x1b[4mu\x1b[9Cv\x1b[0m\r\n\x1b[7m \x1b[6C \x1b[0m",
    "alternate entered in mid-line": b"prompt$ \x1b[?1049hx",
}
# What a program does next, to see that what does not show is there too.
AFTERWARDS = {
    "insert and no wrap": b"Z" * 200,
    "margins and origin": b"\r\n" * 12 + b"\x1b[1;1Hx",
    "line drawing": b"mqqj",
    "saved cursor": b"\x1b8here",
    "tab stops": b"\tx\ty\tz",
    "alternate": b"more\x1b[?1049lback\r\n",
    "alternate the old way": b"\x1b[?47lback",
    "full row": b"next",
    "full row, wide": b"next",
    "cursor hidden, keys": b"\x1b[?25h",
}


@pytest.mark.parametrize("name", CASES)
def test_without_the_scrollback_the_screen_is_the_same(name: str) -> None:
    """Against what came of the whole, which the judge has judged. Also after the alternate screen
    was left."""
    terminal, scant, whole = (Terminal(80, 24, SCROLLBACK) for _ in range(3))
    terminal.feed(CASES[name])
    scant.feed(snapshot.take(terminal, History(), whole=False))
    whole.feed(snapshot.take(terminal, History()))
    for after in (b"", AFTERWARDS.get(name, b"x"), b"\x18\x1b[?1049l"):
        scant.feed(after)
        whole.feed(after)
        screens = [snapshot.take(one, History(), whole=False) for one in (scant, whole)]
        assert screens[0] == screens[1]
    assert scant.history <= 1  # what the last bytes themselves scrolled away


@pytest.mark.parametrize("name", CASES)
def test_a_snapshot_equals_the_truth(judge: Judge, name: str) -> None:
    stream = CASES[name]
    check(judge, stream + AFTERWARDS.get(name, b""), len(stream))


def test_two_hundred_thousand_lines(judge: Judge) -> None:
    check(judge, b"".join(b"%d \x1b[3%dmline\x1b[0m\r\n" % (i, i % 8) for i in range(200_000)))


@pytest.mark.parametrize("columns", [2, 7, 133])
def test_scrollback_is_whole_at_any_width(judge: Judge, columns: int) -> None:
    check(judge, b"".join(b"%d\r\n" % i for i in range(12_000)), size=(columns, 10))


@pytest.mark.parametrize("columns", [2, 80, 250, 1000])
@pytest.mark.parametrize("line", ["x", "\x1b[31mx\x1b[0m", "e\u0301漢👍🏽" * 3])
def test_as_many_lines_are_kept_as_were_asked_for(columns: int, line: str) -> None:
    terminal = Terminal(columns, 10, SCROLLBACK)
    for _ in range(30):
        terminal.feed(f"{line}\r\n".encode() * 1000)
    assert terminal.history >= SCROLLBACK


def test_every_cut_of_a_difficult_stream(judge: Judge) -> None:
    """Also inside escape sequences, strings and characters."""
    stream = (
        "漢é\x1b[1;31mr\x1b[0m\x1b]2;títle\x1b\\\x1b[?1049h\x1b[2J\x1b[3;3H\x1b[44mb\x1b[K"
        "\x1b[0m\x1b7\x1b[9;9H\x1b8\x1b[?1049lz👩\u200d👧\x1bP+q544e\x1b\\\x1b(0q\x1b(B\r\n"
    ).encode()
    for cut in range(len(stream) + 1):
        check(judge, stream, cut, (20, 6))


# -- random streams, cut anywhere -----------------------------------------------------------------

_words = st.sampled_from(
    ["a", "hello world ", "x" * 25, "漢字", "e\u0301", "ünï", "한", "→✓", "  ", "│─┐", "\t"]
).map(str.encode)
_moves = st.builds(
    lambda n, k: b"\x1b[%d%s" % (n, k),
    st.integers(1, 30),
    st.sampled_from(list(map(str.encode, "ABCDGdEF"))),
)
_places = st.builds(lambda r, c: b"\x1b[%d;%dH" % (r, c), st.integers(1, 8), st.integers(1, 24))
_erases = st.sampled_from(
    [b"\x1b[K", b"\x1b[1K", b"\x1b[2K", b"\x1b[J", b"\x1b[1J", b"\x1b[2J", b"\x1b[3X"]
)
# Terminals differ on the colour of what edits leave blank, so these come without one.
_edits = st.sampled_from(
    [b"\x1b[0m" + edit for edit in b"\x1b[2@|\x1b[3P|\x1b[L|\x1b[2M|\x1bM|\x1bD|\x1bE".split(b"|")]
)
_pens = st.one_of(
    st.sampled_from([b"\x1b[0m", b"\x1b[m", b"\x1b[1m", b"\x1b[7m", b"\x1b[4m", b"\x1b[22;27m"]),
    st.builds(lambda n: b"\x1b[%dm" % n, st.sampled_from([*range(30, 38), *range(40, 48), 39, 49])),
    st.builds(lambda n: b"\x1b[48;5;%dm" % n, st.integers(0, 255)),
)
# One string, to be split: terminals differ on what a line-drawing set does to other than ASCII.
_MODES = (
    "\x1b[?25l|\x1b[?25h|\x1b[?1h|\x1b[?2004h|\x1b[?1000h|\x1b[?7l|\x1b[?7h|\x1b[?6h|\x1b[?6l|"
    "\x1b[2;5r|\x1b[r|\x1b7|\x1b8|\x1b(0lqk\x1b(B|\x1b[0m\x1b[?1049h|\x1b[?1049l|\x1b]2;title\x07|"
    "\x1b[4h|\x1b[4l"
)
_modes = st.sampled_from(_MODES.encode().split(b"|"))
_lines = st.sampled_from([b"\r\n", b"\n", b"\r", b"\b", b"\r\n\r\n\r\n"])
streams = st.lists(
    st.one_of(_words, _words, _lines, _lines, _moves, _places, _erases, _edits, _pens, _modes),
    min_size=1,
    max_size=60,
).map(b"".join)


@settings(
    max_examples=400,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(stream=streams, where=st.floats(0, 1))
@example(stream=b"\x1b[42m\x1b[2J\r\n\r\nx", where=1.0)
def test_streams_cut_at_random(judge: Judge, stream: bytes, where: float) -> None:
    cut = round(where * len(stream))
    # Terminals differ on when a row that was wrapped into and then overwritten is one no more.
    check(judge, stream, cut, (24, 8), wraps=False)


# -- real programs in a real session --------------------------------------------------------------

TEXT = "".join(f"line {n} of a text with some words in it\n" for n in range(300))
# `top` is not among them: it erases to the end of the line after writing its last column, where
# terminals differ on what that erases.
PROGRAMS = {
    "vim": (["vim", "-u", "NONE", "FILE"], b":set number\r50Goinserted\x1b", "inserted"),
    "less": (["less", "FILE"], b"  /line 77\r", "line 77"),
    "htop": (["htop"], b"", "PID"),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(judge: Judge, name: str, tmp_path: Path) -> None:
    (tmp_path / "text").write_text(TEXT)
    words, keys, seen = PROGRAMS[name]
    command = [word.replace("FILE", str(tmp_path / "text")) for word in words]
    assert shutil.which(command[0]), f"{command[0]} is not installed; `make setup` says how"
    with Live(*command, columns=100, rows=30) as live, live.attached(columns=100, rows=30) as first:
        until(lambda: first.ask("screen")["text"], f"{name} to draw")
        if keys:
            first.typed(keys)
        until(lambda: seen in first.ask("screen")["text"], f"{name} to show {seen}")
        time.sleep(0.5)  # let it draw on; whatever it does, the comparison is at an exact seq
        session_id = first.welcome["session_id"]
        with live.client() as late:
            late.attach(mode="view", columns=40, rows=10)
            seq, size, data = late.seq, late.size, late.snapshot
        with live.client() as whole:
            whole.attach(mode="view", resume={"session_id": session_id, "seq": 0})
            assert seq is not None
            while len(whole.stream) < seq:
                whole.next()
            truth = bytes(whole.stream[:seq])
        assert size == (100, 30), "a viewer does not resize"
        compare(judge, truth, data, size=size)
