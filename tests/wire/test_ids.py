"""Names and sizes at the edge."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast_wire.errors import BadName, BadRequest
from holdfast_wire.ids import (
    MAX_COLUMNS,
    MAX_NAME,
    MAX_ROWS,
    MIN_COLUMNS,
    MIN_ROWS,
    session_name,
    terminal_size,
)

GOOD = ["a", "0", "build", "a-b", "a--b", "0-0", "x" * MAX_NAME, "a" + "-" * 61 + "a"]
BAD = [
    *("", ".", "..", "../etc", "a/b", "/", "a\0b", "-", "-a", "a-", "--help", "A", "Build"),
    *("a\n", "\na", "a b", " a", "a\t", "a_b", "a.b", "a:b", "~", "*", "%2e%2e", "a\x1b[2J"),
    *("ä", "é", "日本", "٣", "²", "\ufb01", "\u017f", "\u212a", "a\u200b", "a\udcff", "🙂"),
    *("x" * (MAX_NAME + 1), "x" * 300, "x" * 1_000_000, "-" * 100_000),
]


@pytest.mark.parametrize("name", GOOD)
def test_a_dns_label_is_a_name(name: str) -> None:
    assert session_name(name) == name


@pytest.mark.parametrize("name", BAD, ids=lambda name: ascii(name)[:24])
def test_anything_else_is_not(name: str) -> None:
    with pytest.raises(BadName) as caught:
        session_name(name)
    assert len(str(caught.value)) < 400, "what a stranger sent is not repeated at length"
    assert caught.value.advice


@given(st.text(max_size=70) | st.from_regex(r"[a-z0-9-]{1,70}", fullmatch=True))
def test_a_name_is_safe_as_a_file_and_as_a_hostname(text: str) -> None:
    label = len(text) <= 63 and re.match(r"\A[a-z0-9]([a-z0-9-]*[a-z0-9])?\Z", text)
    try:
        name = session_name(text)
    except BadName:
        assert not label
    else:
        assert label
        assert name.isascii()


@pytest.mark.parametrize(
    "size", [(MIN_COLUMNS, MIN_ROWS), (80, 24), (MAX_COLUMNS, MAX_ROWS), (2, 1000), (1000, 1)]
)
def test_sizes_that_can_be(size: tuple[int, int]) -> None:
    assert terminal_size(*size) == size


@pytest.mark.parametrize(
    "size",
    [
        *((0, 0), (0, 24), (80, 0), (1, 1), (1, 24), (-1, 24), (80, -1), (-80, -24)),
        *((MAX_COLUMNS + 1, 24), (80, MAX_ROWS + 1), (100_000, 24), (80, 100_000), (2**64, 2**64)),
    ],
)
def test_sizes_that_cannot(size: tuple[int, int]) -> None:
    with pytest.raises(BadRequest) as caught:
        terminal_size(*size)
    assert caught.value.advice


@given(st.integers(), st.integers())
def test_a_size_is_kept_or_refused(columns: int, rows: int) -> None:
    possible = 2 <= columns <= 1000 and 1 <= rows <= 1000
    try:
        assert terminal_size(columns, rows) == (columns, rows)
    except BadRequest:
        assert not possible
    else:
        assert possible
