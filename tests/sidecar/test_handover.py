"""Attack 16: no form of input passes the turn, and no half of one takes in another's bytes."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway_kit import until
from holdfast_sidecar.handover import PASTE, PASTED, Handover
from holdfast_wire import errors
from holdfast_wire.frames import Attach, Control, Input, encode
from holdfast_wire.ids import Actor, ClientId
from sidecar_kit import Client, Live

ANA, BEN = Actor("ana"), Actor("ben")
C1, C2 = ClientId("c1"), ClientId("c2")
WORDS = b"echo ben\r"
TOKEN = re.compile(
    rb"\x1b\[[0-?]*[ -/]*[@-~]|\x1bO.|\x1b[\]P][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b.?"
    rb"|[\xc2-\xdf].|[\xe0-\xef]..|[\xf0-\xf4]...|.", re.DOTALL
)  # fmt: skip
WHOLE = {
    "two bytes": "é".encode(),
    "three bytes": "漢".encode(),
    "the first of three bytes": "ࠀ".encode(),
    "four bytes": "😀".encode(),
    "the first of four bytes": "𐀀".encode(),
    "arrow": b"\x1b[1;5C",
    "application key": b"\x1bOA",
    "mouse": b"\x1b[<0;10;5M",
    "mode": b"\x1b[?2026;2$y",
    "colour": b"\x1b]11;rgb:1111/1414/1818\x1b\\",
    "clipboard": b"\x1b]52;c;aGk=\x07",
    "version": b"\x1bP>|xterm(390)\x1b\\",
    "paste": PASTE + "rm -rf é\r\n\0".encode() + PASTED,
}


def tokens(data: bytes) -> list[bytes]:
    """As a program reads them that believes what every token says of its length: the worst there
    is. A paste is one."""
    paste = re.escape(PASTE) + rb".*?" + re.escape(PASTED)
    return re.findall(rb"(?s:" + paste + rb")|" + TOKEN.pattern, data, re.DOTALL)


def typed(handover: Handover, actor: Actor, client: ClientId | None, data: bytes) -> bytes:
    kept = handover.taken(client, data, 0.0)
    if not kept:
        return b""
    before = handover.passed(actor)
    handover.typed(actor, client, kept)
    return before + kept


def pieces(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    return ((data[:at], data[at:]) for at in range(1, len(data)))


@pytest.mark.parametrize("whole", WHOLE.values(), ids=WHOLE.keys())
@pytest.mark.parametrize("in_frames_of", [1, 100])
def test_the_next_writers_bytes_are_his_own(whole: bytes, in_frames_of: int) -> None:
    for half, _ in pieces(b"x" + whole):
        handover, stream = Handover(), b""
        for at in range(0, len(half), in_frames_of):
            stream += typed(handover, ANA, C1, half[at : at + in_frames_of])
        stream += typed(handover, BEN, C2, WORDS)
        if half.endswith(b"\x1b") and len(half) == 2:  # a key
            assert stream == half + WORDS
        else:
            assert tokens(stream)[-len(WORDS) :] == [WORDS[i : i + 1] for i in range(len(WORDS))]
            assert len(stream) - len(half + WORDS) <= len("é".encode() + PASTED)
        assert typed(handover, ANA, None, b"y") == b"y", "nothing is finished twice"


@pytest.mark.parametrize(
    "data",
    [*WHOLE.values(), b"ls", b"\x1b", b"\x1b\x1b", b"\x1bb", b"\x1b_", b"\x1b]", b"\x1bP",
     b"\x1bPaul\r", b"\xff", b"\x80\x80", b"\x1b[[A", b"\0", PASTED],
)  # fmt: skip
def test_whole_keys_are_followed_by_nothing(data: bytes) -> None:
    handover = Handover()
    typed(handover, ANA, C1, data)
    assert typed(handover, BEN, C2, WORDS) == WORDS


def test_an_actors_own_clients_go_on_where_one_stopped() -> None:
    """A connection broke in mid-paste, and the client came back as another."""
    handover = Handover()
    typed(handover, ANA, C1, PASTE + b"one\xc3")
    handover.left(C1)
    assert typed(handover, ANA, C2, b"\xa9\r" + PASTED) == b"\xa9\r" + PASTED


def test_the_rest_of_a_paste_that_was_cut_is_not_typed() -> None:
    for first, second in pieces(PASTE + b"rm x\r" + PASTED):
        handover = Handover()
        if PASTE not in first:
            continue
        typed(handover, ANA, C1, first)
        typed(handover, BEN, C2, b"x")
        assert typed(handover, ANA, C1, second + b"mine") == b"mine", (first, second)
        assert typed(handover, ANA, C1, b"\r") == b"\r"


def test_a_paste_whose_beginning_was_refused_is_refused() -> None:
    """The turn was taken in the middle of it: its lines would be commands."""
    for first, second in pieces(PASTE + b"rm x\r" + PASTED):
        handover = Handover()
        handover.refused(C1, first, 0.0)
        got = typed(handover, ANA, C1, second + b"mine")
        assert got == b"mine" if PASTE in first else got == second + b"mine", (first, second)


def test_a_paste_with_a_hole_ends_there() -> None:
    handover = Handover()
    assert typed(handover, ANA, C1, PASTE + b"one\r") == PASTE + b"one\r"
    handover.refused(C1, b"two\r", 0.0)
    assert typed(handover, ANA, C1, b"three\r") == b""
    assert typed(handover, ANA, C1, PASTED + b"mine") == PASTED + b"mine"


def test_a_paste_whose_end_was_refused_is_closed_before_the_next_key() -> None:
    handover = Handover()
    typed(handover, ANA, C1, PASTE + b"one\r")
    handover.refused(C1, b"two" + PASTED, 0.0)
    assert typed(handover, ANA, C1, b"ls\r") == PASTED + b"ls\r"


def test_who_pauses_has_stopped_pasting() -> None:
    handover = Handover()
    handover.refused(C1, PASTE + b"one\r", 0.0)
    assert handover.taken(C1, b"two\r", 0.9) == b""
    assert handover.taken(C1, b"three\r", 1.8) == b""
    assert handover.taken(C1, b"ls\r", 2.9) == b"ls\r"


# -- on a real session ----------------------------------------------------------------------------

FORMS = [
    b"x", b"\r", b"\n", b"\0", b"\x03", b"\x04", b"\x1b", b"\x1bb", b"\xff\xfe", b"\x1b[A",
    b"rm -rf /\r" * 2000, PASTE + b"echo pasted\r" + PASTED, PASTE, PASTED, "é漢😀".encode(),
    b"\x1b[24;80R", b"\x1b[24;80Recho reply\r", b"echo reply\r\x1b[?62c", b"\x1b[I", b"\x1b[Ix",
    b"\x1b]52;c;aGk=\x07\r",
]  # fmt: skip


@pytest.fixture
def read(tmp_path: Path) -> Path:
    return tmp_path / "read"


@pytest.fixture
def raw(read: Path) -> Iterator[Live]:
    """A session whose program keeps every byte that it reads."""
    script = (
        "import os, sys, tty\n"
        "tty.setraw(0)\n"
        "with open(sys.argv[1], 'wb', 0) as file:\n"
        "    print('ready', flush=True)\n"
        "    while True: file.write(os.read(0, 65536))\n"
    )
    with Live(sys.executable, "-c", script, str(read)) as live, live.client() as client:
        until(lambda: "ready" in client.ask("screen")["text"], "the program")
        yield live


def refused(client: Client, count: int) -> None:
    while len(client.errors) < count:
        client.next()


def test_no_form_of_input_passes_the_turn(raw: Live, read: Path) -> None:
    """By the bytes that the program reads, which are those of who has the turn, all and no more."""
    with (
        raw.attached(actor="ana") as ana, raw.attached(actor="ben") as ben,
        raw.attached(actor="vic", mode="view") as vic, raw.client() as cleo,
    ):  # fmt: skip
        written, sent = b"", 1000
        for form in FORMS:
            cut = [(form[:at], form[at:]) for at in range(1, min(len(form), 24))]
            for frames in [(form,), (form, form), *cut]:
                coalesced = b"".join(encode(Input(sent, b"", piece)) for piece in frames)
                for client in (ben, vic):
                    client.sock.sendall(coalesced)
                sent += len(frames)
            with pytest.raises(errors.NoTurn):
                cleo.ask("send", text=form.decode("latin-1"))
            written += b"."
            ana.typed(b".")
        for kind, more in (("exec", {"command": "echo x"}), ("job_start", {"argv": ["true"]})):
            cleo.send(Control({"kind": kind, "id": 1, **more}))
        cleo.ask("ping")
        ben.ask("ping")
        vic.ask("ping")
        ana.typed(b"!")
        until(lambda: read.read_bytes().endswith(b"!"), "what was typed")
    assert read.read_bytes() == written + b"!"


@pytest.mark.parametrize("seized_with", ["attached", "unattached"])
def test_a_turn_that_is_seized_in_the_middle(raw: Live, read: Path, seized_with: str) -> None:
    halves = [(a, b) for data in ("漢".encode(), b"\x1b[1;5C") for a, b in pieces(data)]
    paste = PASTE + b"one\rtwo\r" + PASTED
    halves += [(paste[:at], paste[at:]) for at in (6, 9, 10, len(paste) - 1)]
    expected = b""
    with raw.attached(actor="ana") as ana, raw.attached(actor="ben") as ben:
        for number, (half, rest) in enumerate(halves):
            ana.ask("take")
            ana.typed(half, number=10)
            ana.ask("ping")
            handover = Handover()
            expected += typed(handover, ANA, C1, half) + typed(handover, BEN, C2, b"ls\r")
            if seized_with == "attached":
                ben.ask("take")
                ben.typed(b"ls\r")
                ben.ask("ping")
            else:
                with raw.client() as other:
                    whose = {"as": {"actor": "ben", "modality": "http"}}
                    other.ask("take", **whose)
                    other.ask("send", text="ls\r", **whose)
            ana.typed(rest, number=11)  # on its way, or sent by a client that does not look
            refused(ana, number + 1)
        ben.ask("take")
        ben.typed(b"!")
        until(lambda: read.read_bytes().endswith(b"!"), "what was typed")
    assert read.read_bytes() == expected + b"!"


def test_a_shells_open_paste_does_not_take_the_next_writers_enter(live_bash: Live) -> None:
    with live_bash.attached(actor="ana") as ana, live_bash.attached(actor="ben") as ben:
        until(lambda: ana.ask("state")["activity"] == "prompt", "the prompt")
        ana.typed(PASTE + b"echo ana-$((6*7))\r")
        ben.ask("take")
        ben.typed(b"\x15echo ben-$((6*7))\r")
        ben.until(b"ben-42")
        ana.typed(b"echo rest-$((6*7))\r" + PASTED)
        ana.ask("take")
        ana.typed(b"echo again-$((6*7))\r")
        ana.until(b"again-42")
        assert b"ana-42" not in ana.stream
        assert b"rest-42" not in ana.stream


def test_attaching_and_typing_in_one_frame_is_no_way_in(raw: Live, read: Path) -> None:
    with raw.attached(actor="ana") as ana, raw.client() as late:
        attach = Attach({"mode": "write", "columns": 80, "rows": 24, "actor": "ben"})
        late.sock.sendall(encode(Input(1, b"", b"early")) + encode(attach)
                          + encode(Input(2, b"", b"late")))  # fmt: skip
        refused(late, 2)
        ana.typed(b"!")
        until(lambda: read.read_bytes().endswith(b"!"), "what was typed")
    assert read.read_bytes() == b"!"
