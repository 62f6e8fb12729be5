"""What the benchmarked programs print is what real ones print, and is made once."""

from __future__ import annotations

import re
import unicodedata
from pathlib import Path

import pytest
from bench import payloads


def made(kind: str) -> bytes:
    return b"".join(payloads.generate(kind, 300_000))


@pytest.mark.parametrize("kind", ["plain", "sgr", "unicode"])
def test_lines_are_whole_and_vary(kind: str) -> None:
    assert made(kind).endswith(b"\n")
    assert len({len(line) for line in made(kind).splitlines()}) > 20


def test_sgr_has_a_coloured_word_every_few() -> None:
    pairs = re.findall(rb"\x1b\[[0-9;]+m[^\x1b]+\x1b\[0m", made("sgr"))
    assert 25 <= len(made("sgr")) / len(pairs) <= 40


def test_unicode_mixes_widths() -> None:
    text = made("unicode").decode()
    assert {"W", "Na"} <= {unicodedata.east_asian_width(character) for character in text}
    assert "\u0301" in text


def test_tui_addresses_every_row_and_never_scrolls() -> None:
    assert b"\n" not in made("tui")
    rows = {int(row) for row in re.findall(rb"\x1b\[(\d+);1H", made("tui"))}
    assert rows == set(range(2, payloads.ROWS + 1))


def test_is_kept_between_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = payloads.payload("plain", 1_000_000)
    before = path.stat()
    assert payloads.payload("plain", 1_000_000) == path
    assert path.stat().st_ino == before.st_ino
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_lines_for_a_scrollback() -> None:
    assert payloads.lines(50).count(b"\n") == 50
