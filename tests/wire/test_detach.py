"""The detach keys are found in whatever shape a terminal sends them, and nothing else is lost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast_wire.detach import HOLD_SECONDS, DetachScanner
from holdfast_wire.errors import BadRequest
from holdfast_wire.keys import Key, encode_keys, parse_detach_keys, spell

KEYS = parse_detach_keys("ctrl-\\,d")
KITTY = b"\x1b[92;5u"
XTERM = b"\x1b[27;5;92~"


def scan(*pieces: bytes, keys: tuple[Key, ...] = KEYS) -> tuple[bytes, bool]:
    scanner = DetachScanner(keys)
    out = b""
    for piece in pieces:
        typed = scanner.feed(piece, 0.0)
        out += typed.data
        if typed.detach:
            return out, True
    return out + scanner.expire(HOLD_SECONDS), False


@pytest.mark.parametrize(
    "pieces",
    [
        (b"\x1cd",),
        (b"\x1c", b"d"),
        (KITTY + b"d",),
        (KITTY, b"d"),
        (XTERM + b"d",),
        (b"\x1b[92;133ud",),  # num lock is on
        (b"\x1b[92::124;5:1u\x1b[92;5:3u\x1b[57442;5:3u\x1b[100;1:1u",),  # releases in between
        (KITTY + b"\x1b[100u",),
    ],
)
def test_detach(pieces: tuple[bytes, ...]) -> None:
    assert scan(b"before", *pieces) == (b"before", True)


@pytest.mark.parametrize(
    ("typed", "sent"),
    [
        (b"d", b"d"),
        (b"\x1cx", b"\x1cx"),
        (b"\x1c\x1c", b"\x1c"),
        (b"\x1c\x1cd", b"\x1cd"),
        (KITTY + KITTY, KITTY),
        (b"\x1c", b"\x1c"),  # after a while
        (b"\x1b[92;6u" + b"d", b"\x1b[92;6ud"),  # with shift: another key
        (b"\x1b[92;5:3ud", b"\x1b[92;5:3ud"),  # a release alone
        (b"\x1b[A\x1b[B", b"\x1b[A\x1b[B"),
        (b"\x1c\x1b[A", b"\x1c\x1b[A"),
    ],
)
def test_everything_else_is_passed_on(typed: bytes, sent: bytes) -> None:
    assert scan(typed) == (sent, False)


def test_pasted_text_does_not_detach() -> None:
    paste = b"\x1b[200~a\x1cdb\x1b[201~"
    assert scan(paste) == (paste, False)
    assert scan(paste + b"\x1cd") == (paste, True)
    assert scan(b"\x1b[200~a", b"\x1cd", b"b\x1b[20", b"1~", b"\x1cd") == (paste, True)


def test_one_key_and_no_key() -> None:
    assert scan(b"a\x1db", keys=parse_detach_keys("ctrl-]")) == (b"a", True)
    assert scan(b"\x1cd\x1d", keys=parse_detach_keys("none")) == (b"\x1cd\x1d", False)


@given(st.lists(st.binary(max_size=12).filter(lambda b: b"\x1c" not in b and b"\x1b" not in b)))
def test_bytes_without_the_key_pass_in_order(pieces: list[bytes]) -> None:
    assert scan(*pieces) == (b"".join(pieces), False)


@given(st.lists(st.sampled_from([b"\x1c", b"x", b"\x1b", b"[", b"92;5u", b"\x1b[200~", KITTY])))
def test_nothing_is_invented(pieces: list[bytes]) -> None:
    sent, _ = scan(*pieces)
    whole = b"".join(pieces)
    position = 0
    for byte in sent:  # a subsequence: only doubled first keys are taken out
        position = whole.index(byte, position) + 1


@pytest.mark.parametrize(
    "text", ["d", "", "ctrl-", "alt-x,d", "ctrl-1", "ctrl-é", "F1", "ctrl-\\,"]
)
def test_impossible_detach_keys(text: str) -> None:
    with pytest.raises(BadRequest):
        parse_detach_keys(text)


def test_spelling() -> None:
    assert spell(KEYS) == "ctrl-\\ then d"
    assert parse_detach_keys("C-a, C-d") == (Key(ord("a"), True), Key(ord("d"), True))


@pytest.mark.parametrize(
    ("text", "sent"),
    [
        ("C-c Up Enter", b"\x03\x1b[A\r"),
        ("^c", b"\x03"),
        ("ctrl-\\", b"\x1c"),
        ("M-x", b"\x1bx"),
        ("C-M-a", b"\x1b\x01"),
        ("Escape : w q Enter", b"\x1b:wq\r"),
        ("C-Up PageDown F5 Space BSpace", b"\x1b[1;5A\x1b[6~\x1b[15~ \x7f"),
        ("- ^", b"-^"),
        ("C-- ".strip()[:1], b"C"),
        ("é", "é".encode()),
        ("C-Space", b"\0"),
    ],
)
def test_keys_to_send(text: str, sent: bytes) -> None:
    assert encode_keys(text) == sent


@pytest.mark.parametrize("text", ["Hyper", "C-é", "C-1", "X-y", "C-Enter", "Enterr"])
def test_unknown_keys(text: str) -> None:
    with pytest.raises(BadRequest, match="is not a key"):
        encode_keys(text)
