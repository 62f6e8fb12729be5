"""A line above the one that somebody is typing. The judges are a real bash with readline, a real
kernel's line editing, and xterm.js, each beside the same session to which nothing was said."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gateway_kit import until
from holdfast_sidecar import snapshot
from holdfast_sidecar.ghostty import Terminal
from holdfast_sidecar.hold import HoldLink
from holdfast_sidecar.notices import Notice, Notices, paint
from holdfast_sidecar.session import Session
from holdfast_sidecar.state import Descriptor, Graph, Process, Thread
from judge import Judge
from sidecar_kit import Client, Live

COLUMNS, ROWS = 40, 10
LONG = "echo " + "0123456789" * 9
LEFT, HOME, BACK = b"\x1b[D", b"\x01", b"\x7f"
SAID = Notice("ada runs (http): ", "make test")

# What is typed before something is said, what then, and what the shell must print for it.
STORIES = [
    ("at the top of the screen", b"echo on", b"e\r", "one"),
    ("longer than the row", LONG.encode(), b"abc\r", LONG[5:] + "abc"),
    ("cursor at its beginning", LONG.encode() + HOME, b"echo\r", LONG),
    ("cursor in its middle", LONG.encode() + LEFT * 50, BACK * 5 + b"_\r", "_"),
    ("as long as the row", b"echo " + b"w" * 33, b"xyz\r", "w" * 33 + "xyz"),
    ("one less", b"echo " + b"v" * 32, b"xyz\r", "v" * 32 + "xyz"),
    ("wide characters", b"echo " + "漢字".encode() * 12, b"!\r", "漢字" * 12 + "!"),
    ("coloured prompt", b"PS1='\\[\\e[32m\\]dir\\[\\e[0m\\]$ '\recho he", b"re\r", "here"),
    ("nothing typed", b"", b"echo empty\r", "empty"),
    ("the kernel's editing", b"cat\r" + b"k" * 40, BACK * 3 + b"K\r\x04", "k" * 37 + "K"),
]  # fmt: skip


def rows(client: Client) -> str:
    """The screen without line breaks: what is typed may be wrapped anywhere."""
    return str(client.ask("screen", scrollback=True)["text"]).replace("\n", "")


def settled(client: Client) -> bool:
    """Whoever reads the terminal has shown everything that was typed."""
    before = client.ask("state"), client.ask("info")["seq"]
    time.sleep(0.03)
    waits = before[0]["activity"] in ("prompt", "reading")
    return waits and before == (client.ask("state"), client.ask("info")["seq"])


def prints(client: Client, wanted: str) -> bool:
    return wanted in rows(client) and client.ask("state")["activity"] == "prompt"


def told(client: Client, number: int) -> None:
    client.ask("job_start", command="true")
    until(lambda: rows(client).count("true ended with 0") == number + 1, "the line that says so")


def played(interrupt: bool) -> tuple[bytes, dict[str, Any]]:
    """Everything printed, and the screen at the end."""
    with Live("bash", "--norc", columns=COLUMNS, rows=ROWS) as live, live.client() as client:
        start = client.ask("info")["session_id"]
        client.attach(columns=COLUMNS, rows=ROWS, resume={"session_id": start, "seq": 0})
        until(lambda: client.ask("state")["activity"] == "prompt", "the first prompt")
        for number, (_, before, after, printed) in enumerate(STORIES):
            client.typed(before, 2 * number + 1)
            until(lambda: settled(client), "what was typed to be shown")
            if interrupt:
                told(client, number)
            client.typed(after, 2 * number + 2)
            until(partial(prints, client, printed), printed)
            until(lambda: settled(client), "the prompt")
        end = client.ask("screen", scrollback=True)
        assert client.seq is not None
        while client.seq < end["seq"]:
            client.next()
        return bytes(client.stream), end


def lines_of(judge: Judge, stream: bytes) -> tuple[list[Any], Any]:
    with judge.terminal(COLUMNS, ROWS) as terminal:
        terminal.write(stream)
        dump = terminal.dump()
    lines = [line["cells"] for line in dump["normal"]["lines"]]
    while lines and not lines[-1]:
        lines.pop()
    text = ["".join(cell[0] for cell in cells) for cells in lines]
    own = [cells for cells, row in zip(lines, text, strict=True) if not row.startswith("── ")]
    return own, dump["cursor"][0]


def test_readline_and_the_kernel_go_on_as_if_nothing_had_been_said(judge: Judge) -> None:
    """Cell by cell the same, in xterm.js and in the sidecar's own screen, but for those lines."""
    quiet, quiet_end = played(interrupt=False)
    stream, end = played(interrupt=True)
    expected, column = lines_of(judge, quiet)
    found, column_found = lines_of(judge, stream)
    assert found == expected
    assert column_found == column
    own = [line for line in end["text"].split("\n") if not line.startswith("── ")]
    assert own == quiet_end["text"].split("\n")
    said = [line for line in end["text"].split("\n") if line.startswith("── ")]
    assert len(said) == 2 * len(STORIES)
    assert said[0].endswith("runs (socket): true ──")
    assert "true ended with 0 in 0." in said[1]


def test_in_an_editor_nothing_is_said_until_the_prompt_is_back() -> None:
    script = r"printf '\e[?1049h'; read -r x; printf '\e[?1049l'"
    with Live("bash", "--norc", columns=60, rows=ROWS) as live, live.attached() as client:
        client.typed(script.encode() + b"\r")
        until(lambda: client.ask("screen")["alternate"], "the alternate screen")
        job = client.ask("job_start", command="true")["job"]["id"]
        client.until_news("job")
        until(lambda: client.ask("job_get", job=job)["job"]["state"] == "ended", "its end")
        assert "──" not in rows(client)
        client.typed(b"\r", 2)
        until(lambda: "true ended with 0" in rows(client), "what was to be said")
        assert client.ask("screen")["text"].split("\n")[-1] == "$"


# -- without processes ----------------------------------------------------------------------------


def shown(data: bytes, notice: Notice = SAID, rows: int = 5) -> tuple[str, Terminal]:
    terminal = Terminal(30, rows, 100)
    terminal.feed(data)
    painted = paint(terminal, notice)
    assert painted is not None
    terminal.feed(painted)
    return snapshot.text(terminal, scrollback=True), terminal


def test_it_stands_above_the_line_and_the_pen_is_kept() -> None:
    text, terminal = shown(b"one\r\n$ tw\x1b[1;31m")
    assert text == "one\n── ada runs (http): make … ──\n$ tw"
    assert terminal.cursor == (4, 2)
    assert terminal.extras("style")["style"] == b"\x1b[0m\x1b[1m\x1b[38;5;1m"


def test_at_the_bottom_the_oldest_row_scrolls_away() -> None:
    text, terminal = shown(b"1\r\n2\r\n3\r\n4\r\n$ ", Notice("a: ", "b"))
    assert text == "1\n2\n3\n4\n── a: b ──\n$"
    assert (terminal.cursor, terminal.history) == ((2, 4), 1)


def test_what_stands_below_the_cursor_moves_along() -> None:
    text, terminal = shown(b"$ x\r\nmenu\x1b[A\x1b[3G", Notice("a: ", "b"))
    assert text == "── a: b ──\n$ x\nmenu"
    assert terminal.cursor == (2, 1)


def test_a_cursor_that_hangs_past_the_last_column_hangs_there_again() -> None:
    _, terminal = shown(b"z" * 30, Notice("a: ", "b"))
    assert terminal.pending_wrap
    terminal.feed(b"y")
    assert snapshot.text(terminal, scrollback=True) == "── a: b ──\n" + "z" * 30 + "\ny"


def test_nothing_in_it_reaches_the_terminal_as_a_command() -> None:
    text, _ = shown(b"$ ", Notice("a\x1b[2J: ", "b\nc\x07", "\u202e\x9b31m"))
    assert text == "── a[2J: bc31m ──\n$"


class Reading:
    """In place of hold and session: `cat`, to which nobody types."""

    parked, exit = False, None
    size = (60, 5)

    def __init__(self) -> None:
        self.terminal = Terminal(*self.size, 100)
        self.ring, self.emulator = SimpleNamespace(head=0), self
        self.said: list[str] = []
        self.enough = asyncio.Event()

    async def foreground(self) -> Graph:
        waits = Thread(2, "S", 0, 0, (0,), 1)
        cat = Process(
            2, 1, 2, 2, "S", "cat", ("cat",), "/bin/cat", "/", 0, 0,
            (Descriptor(0, "/dev/pts/0"),), 1, (), "", (waits,),
        )  # fmt: skip
        return Graph(
            (cat,), 2, echo=True, canonical=True, icrnl=True, command_pid=2, tty="/dev/pts/0"
        )

    async def call(self, ask: Callable[[Terminal, int], bytes | None], _least: int) -> bytes | None:
        return ask(self.terminal, 0)

    def interject(self, data: bytes) -> None:
        self.terminal.feed(data)
        self.said = [
            line
            for line in snapshot.text(self.terminal, scrollback=True).split("\n")
            if line.startswith("── ")
        ]
        if len(self.said) == 17:
            self.enough.set()


async def test_of_too_many_the_last_are_said_and_how_many_were_not() -> None:
    reading = Reading()
    notices = Notices(cast(Session, reading), cast(HoldLink, reading))
    for number in range(20):
        notices.add("ada: ", str(number))
    saying = asyncio.create_task(notices.run())
    await asyncio.wait_for(reading.enough.wait(), 20)
    saying.cancel()
    wanted = ["4 more are in the journal", *(f"ada: {number}" for number in range(4, 20))]
    assert reading.said == [f"── {text} ──" for text in wanted]


@pytest.mark.parametrize(
    "data",
    [
        b"\x1b[?1049h",
        b"$ \x1b[3",
        b"$ \xe6",
        b"\x1b[2;4r",
        b"\x1b[?6h",
        b"\x1b[?7l",
        b"\x1b[4h",
        b"\x1b[?2026h",
        b"x" * 30 * 5,
    ],
)
def test_where_there_is_no_place_for_it_there_is_none(data: bytes) -> None:
    terminal = Terminal(30, 5, 100)
    terminal.feed(data)
    assert paint(terminal, SAID) is None
