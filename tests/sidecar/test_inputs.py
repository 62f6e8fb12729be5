"""Inputs: one order, each key once, and a terminal's own words told from a person's."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast_sidecar.inputs import REMEMBERED, Inputs, is_focus_report, without_replies
from holdfast_wire.ids import Actor

ANA, BEN = Actor("ana"), Actor("ben")

REPLIES = {
    "DA1": b"\x1b[?62;22;52c",
    "DA1, VT100": b"\x1b[?1;2c",
    "DA2": b"\x1b[>1;10;0c",
    "DA3": b"\x1bP!|00000000\x1b\\",
    "cursor": b"\x1b[24;80R",
    "cursor, extended": b"\x1b[?24;80;1R",
    "status": b"\x1b[0n",
    "colour scheme": b"\x1b[?997;1n",
    "mode": b"\x1b[?2026;2$y",
    "ANSI mode": b"\x1b[4;2$y",
    "window size": b"\x1b[8;24;80t",
    "in-band size": b"\x1b[48;24;80;384;640t",
    "kitty keyboard": b"\x1b[?1u",
    "background, BEL": b"\x1b]11;rgb:1111/1414/1818\x07",
    "background, ST": b"\x1b]11;rgb:1111/1414/1818\x1b\\",
    "palette": b"\x1b]4;1;rgb:ffff/0000/0000\x1b\\",
    "clipboard": b"\x1b]52;c;aGVsbG8=\x1b\\",
    "version": b"\x1bP>|xterm(390)\x1b\\",
    "termcap": b"\x1bP1+r544e=787465726d\x1b\\",
    "setting": b"\x1bP1$r0m\x1b\\",
    "several at once": b"\x1b[?62;22c\x1b]11;rgb:1111/1414/1818\x07\x1b[24;80R",
}
ARROWS = {f"arrow {c}": b"\x1b[" + c.encode() for c in "ABCD"}
APPLICATION = {f"application {c}": b"\x1bO" + c.encode() for c in "ABCDHFPQRSM"}
FUNCTION = {f"F, {n}~": b"\x1b[%d~" % n for n in (2, 3, 5, 6, 11, 15, 17, 24, 200, 201)}
MODIFIED = {f"ctrl {c}": b"\x1b[1;5" + c.encode() for c in "ABCDHFPQS"}
ALT = {f"alt {chr(c)}": b"\x1b" + bytes([c]) for c in range(32, 127)}
TYPED = {
    **ARROWS, **APPLICATION, **FUNCTION, **MODIFIED, **ALT,
    "nothing": b"",
    "escape": b"\x1b",
    "twice": b"\x1b\x1b",
    "enter": b"\r",
    "control c": b"\x03",
    "letters": b"ls -l\r",
    "home": b"\x1b[H",
    "back tab": b"\x1b[Z",
    "linux F1": b"\x1b[[A",
    "kitty ctrl a": b"\x1b[97;5u",
    "kitty release": b"\x1b[97;1:3u",
    "modifyOtherKeys": b"\x1b[27;5;13~",
    "mouse, SGR": b"\x1b[<0;10;5M",
    "mouse release, SGR": b"\x1b[<0;10;5m",
    "mouse, X10": b"\x1b[M !!",
    "mouse, urxvt": b"\x1b[32;10;5M",
    "bracketed paste": b"\x1b[200~\x1b[0n\x1b[201~",
    "reply cut short": b"\x1b[24;80",
    "OSC without an end": b"\x1b]11;rgb:1111/1414/1818",
    "DCS without an end": b"\x1bP>|xterm",
    "pasted text that talks about it": b"press \x1b[I to\x1b[O",
    "reply within": b"echo \x1b[0n\n",
}  # fmt: skip
MIXED = {
    "reply and a key": (b"\x1b[24;80Rx", b"x"),
    "key and a reply": (b"x\x1b[24;80R", b"x"),
    "a key between": (b"\x1b[24;80Rx\x1b]11;rgb:1/2/3\x07", b"x"),
    "newline after": (b"\x1b[0n\n", b"\n"),
    "more than one read": (b"\x1b[?62c" * 9000 + b"\x1b[?6", b"\x1b[?6"),
}


@pytest.mark.parametrize("data", REPLIES.values(), ids=REPLIES.keys())
def test_what_terminals_say(data: bytes) -> None:
    assert without_replies(data) == b""
    assert without_replies(data * 2) == b""


@pytest.mark.parametrize("data", TYPED.values(), ids=TYPED.keys())
def test_what_people_type(data: bytes) -> None:
    assert without_replies(data) == data
    assert not is_focus_report(data)


@pytest.mark.parametrize(("data", "meant"), MIXED.values(), ids=MIXED.keys())
def test_what_came_together(data: bytes, meant: bytes) -> None:
    assert without_replies(data) == meant


@pytest.mark.parametrize("data", [b"\x1b[I", b"\x1b[O", b"\x1b[O\x1b[I"])
def test_what_windows_say_when_they_are_looked_at(data: bytes) -> None:
    assert is_focus_report(data)
    assert without_replies(data) == data


@given(st.text(max_size=60))
def test_text_is_typed(text: str) -> None:
    data = text.replace("\x1b", "").encode()
    assert without_replies(data) == data


@pytest.mark.parametrize(
    "data",
    [
        b"\x1b[" + b"1;" * 500_000,
        b"x" + b"\x1b[0n" * 250_000 + b"x",
        b"\x1b]1;" + b"a" * 1_000_000,
        b"\x1bP" + b"a" * 1_000_000,
        b"\x1b[I\x1bP" * 200_000,
    ],
)
@pytest.mark.timeout(20)
def test_a_megabyte_made_to_be_slow_is_not(data: bytes) -> None:
    assert without_replies(data) == data


def test_numbers_grow_by_one_with_or_without_a_key() -> None:
    inputs = Inputs()
    assert [inputs.take(ANA, key) for key in (b"", b"k", b"", b"l")] == [1, 2, 3, 4]
    assert inputs.last == 4


def test_a_key_is_remembered_for_its_actor_alone() -> None:
    inputs = Inputs()
    order = inputs.take(ANA, b"k")
    assert inputs.seen(ANA, b"k") == order
    assert inputs.seen(BEN, b"k") is None
    assert inputs.seen(ANA, b"other") is None


def test_no_key_is_never_seen() -> None:
    inputs = Inputs()
    inputs.take(ANA, b"")
    assert inputs.seen(ANA, b"") is None
    inputs.restore(5, ANA, b"")
    assert inputs.seen(ANA, b"") is None


def test_the_oldest_keys_go_first_and_the_number_kept_is_bounded() -> None:
    inputs = Inputs()
    for n in range(REMEMBERED + 10):
        inputs.take(ANA, b"%d" % n)
    assert inputs.seen(ANA, b"9") is None
    assert inputs.seen(ANA, b"10") == 11
    assert inputs.seen(ANA, b"%d" % (REMEMBERED + 9)) == REMEMBERED + 10
    assert len(inputs._keys) == REMEMBERED


@given(
    st.lists(st.tuples(st.sampled_from([ANA, BEN]), st.sampled_from([b"", b"a", b"b", b"c"]))),
    st.integers(0, 40),
)
def test_a_second_life_goes_on_where_the_first_ended(
    asked: list[tuple[Actor, bytes]], cut: int
) -> None:
    """Whatever the journal has is restored, and the rest goes as if nothing had happened."""
    whole, first, second = Inputs(), Inputs(), Inputs()
    journal: list[tuple[int, Actor, bytes]] = []
    for place, (actor, key) in enumerate(asked):
        if place == cut:
            for record in journal:
                second.restore(*record)
        now = first if place < cut else second
        assert now.seen(actor, key) == whole.seen(actor, key)
        if whole.seen(actor, key) is None:
            order = now.take(actor, key)
            assert order == whole.take(actor, key)
            journal.append((order, actor, key))


def test_restored_out_of_order_the_highest_number_counts() -> None:
    inputs = Inputs()
    for order in (3, 9, 5):
        inputs.restore(order, ANA, b"%d" % order)
    assert inputs.take(ANA, b"") == 10
    assert inputs.seen(ANA, b"5") == 5
