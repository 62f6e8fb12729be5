from __future__ import annotations

import pytest

from holdfast_wire import sequences


@pytest.mark.parametrize(
    "tail",
    [b"", b"text", b"\x1b[31m", b"\x1b[31mred", b"\x1b]0;title\x07", b"\x1b]0;t\x1b\\", b"\x1bc",
     "é".encode(), "🙂".encode(), b"\x1b(B", b"\x1b[?25h", b"a\x1b7b", b"\x1bPq#0\x1b\\x"],
)  # fmt: skip
def test_in_ground(tail: bytes) -> None:
    assert sequences.in_ground(tail)


@pytest.mark.parametrize(
    "tail",
    [b"\x1b", b"\x1b[", b"\x1b[38;5", b"\x1b]0;tit", b"\x1b]0;t\x1b", b"\x1b(", b"\x1bPq#0;1",
     "é".encode()[:1], "🙂".encode()[:3], b"done\x1b[0m\x1b[?20"],
)  # fmt: skip
def test_in_the_middle(tail: bytes) -> None:
    assert not sequences.in_ground(tail)


def test_the_users_scrollback_is_never_wiped() -> None:
    for data in (
        sequences.before_snapshot(24, 24),
        sequences.farewell(24),
        sequences.make_room(24),
    ):
        assert b"\x1b[3J" not in data
        assert b"\x1bc" not in data
        assert b"?1049l" not in data


def test_the_bottom_line_keeps_colours_begun_above() -> None:
    painted = sequences.bottom_line("a\x1b[41mb\nc\nd", 3)
    assert painted == b"\x1b7\x1b[3;1H\x1b[0m\x1b[2K\x1b[41md\x1b[0m\x1b8"
    assert sequences.bottom_line("a", 3) == b"\x1b7\x1b[3;1H\x1b[0m\x1b[2K\x1b[0m\x1b8"


def test_a_status_fits_its_window() -> None:
    assert b"x" * 18 in sequences.status_line("x" * 100, 20, 5)
    assert b"x" * 19 not in sequences.status_line("x" * 100, 20, 5)
