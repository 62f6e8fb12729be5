"""What a session says of itself cannot touch the terminal it is listed in."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.render import (
    Cell,
    Style,
    command_line,
    cut,
    duration,
    process_tree,
    table,
    width_of,
)
from holdfast_wire.plain import plain

PLAIN = Style(colour=False, width=None)
HOSTILE = [
    "\x1b]0;owned\x07x",
    "\x1b[2J\x1b[Hx",
    "\x1b]52;c;ZXZpbA==\x1b\\x",
    "\x9b31mx",
    "\x9d0;owned\x9cx",
    "\x1bP+q\x1b\\x",
    "x\x08\x7f",
    "\u202ex",
    "x\x00",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_sequences_vanish(text: str) -> None:
    assert plain(text) == "x"


@given(st.text())
def test_plain_is_printable(text: str) -> None:
    for char in plain(text):
        assert char == " " or char >= "!"
        assert not "\x7f" <= char <= "\x9f"
    plain(text).encode()


def test_an_unfinished_sequence_eats_only_itself() -> None:
    assert plain("a\x1b[3") == "a3" or plain("a\x1b[3") == "a"
    assert plain("a\nb\tc") == "a b c"


def test_table() -> None:
    rows = [[Cell("build"), Cell("x" * 50)], [Cell("a"), Cell("\x1b[31mred\x1b[0m")]]
    assert table(("NAME", "COMMAND"), rows, PLAIN) == (
        f"NAME   COMMAND\nbuild  {'x' * 50}\na      red\n"
    )
    narrow = table(("NAME", "COMMAND"), rows, Style(False, 30)).splitlines()
    assert max(map(len, narrow)) == 30
    assert narrow[1].endswith("…")


def test_hostile_cells_keep_the_columns() -> None:
    rows = [[Cell(text), Cell("end")] for text in HOSTILE]
    lines = table(("A", "B"), rows, PLAIN).splitlines()
    assert lines[1:] == ["x  end"] * len(HOSTILE)


def test_colours_only_where_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Style.of(io.StringIO()) == Style(False, None)
    assert Style(True, None).paint("x", "red") == "\x1b[31mx\x1b[0m"
    assert Style(False, None).paint("x", "red") == "x"

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert Style.of(Terminal()).colour
    monkeypatch.setenv("NO_COLOR", "1")
    assert not Style.of(Terminal()).colour


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-5, "0s"), (59.9, "59s"), (60, "1m"), (3600, "1h"), (3900, "1h5m"), (86400 * 2, "2d"),
     (90000, "1d1h")],
)  # fmt: skip
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_wide_characters() -> None:
    assert width_of("日本") == 4
    assert cut("日本語", 4) == "日…"
    assert cut("abc", 3) == "abc"


def test_command_lines() -> None:
    assert command_line(["bash", "-c", "echo hi"]) == "bash -c 'echo hi'"
    assert command_line("plain\x1b[31m") == "plain"


def test_process_tree() -> None:
    processes = [
        {"pid": 1, "ppid": 0, "pgid": 1, "state": "S", "name": "hold", "cwd": "/"},
        {"pid": 2, "ppid": 1, "pgid": 2, "state": "S", "name": "bash", "command": ["bash"]},
        {
            "pid": 9, "ppid": 2, "pgid": 9, "state": "R", "name": "x",
            "command": ["py\x1b[31m", "a b"],
            "cwd": "/srv",
            "listening": [{"protocol": "tcp", "address": "::", "port": 80, "path": None},
                          {"protocol": "unix", "address": "/run/x", "port": None}],
        },
        {"pid": 3, "ppid": 1, "pgid": 3, "state": "Z", "name": "dead"},
        {"pid": 7, "ppid": 7, "pgid": 7, "state": "?", "name": "own parent"},
    ]  # fmt: skip
    tree = process_tree({"processes": processes, "foreground_pgid": 9}, PLAIN)
    assert tree.splitlines() == [
        "1  hold  sleeping  /",
        "├─ 2  bash  sleeping",
        "│  └─ 9  * py 'a b'  running  /srv  listens on [::]:80  listens on /run/x",
        "└─ 3  dead  zombie",
        "7  own parent  ?",
    ]
