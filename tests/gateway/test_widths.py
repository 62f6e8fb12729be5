"""The page gives every character as many columns as the sidecar's emulator does."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pyghostty

WIDTHS = Path(__file__).parents[2] / "gateway/holdfast_gateway/web/widths.js"
DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


def _table(name: str) -> list[tuple[int, int]]:
    text = WIDTHS.read_text(encoding="utf-8")
    found = re.search(rf"const {name} = `([0-9a-z\s]*)`", text)
    assert found is not None
    numbers = [int(word, 36) for word in found[1].split()]
    runs, at = [], 0
    for skipped, length in zip(numbers[::2], numbers[1::2], strict=True):
        runs.append((at + skipped, at + skipped + length))
        at += skipped + length
    return runs


def _printable() -> Iterator[int]:
    # Planes 4 to 13 have no characters; the emulator gives them one column like everybody else.
    for start, end in ((0x20, 0x7F), (0xA0, 0xD800), (0xE000, 0x40000), (0xE0000, 0xE1000)):
        yield from range(start, end)


def _runs(wanted: int, widths: dict[int, int]) -> list[tuple[int, int]]:
    runs: list[tuple[int, int]] = []
    for codepoint, width in widths.items():
        if width != wanted:
            continue
        if runs and runs[-1][1] == codepoint:
            runs[-1] = (runs[-1][0], codepoint + 1)
        else:
            runs.append((codepoint, codepoint + 1))
    return runs


def _written(runs: list[tuple[int, int]]) -> str:
    """As widths.js has it, to paste there."""

    def base36(number: int) -> str:
        more, last = divmod(number, 36)
        return (base36(more) if more else "") + DIGITS[last]

    words, at = [], 0
    for start, end in runs:
        words += [base36(start - at), base36(end - start)]
        at = end
    return " ".join(words)


def test_the_tables_are_the_emulators() -> None:
    widths = {}
    with pyghostty.Terminal(10, 2) as terminal:
        for codepoint in _printable():
            # After a letter, because a combining character needs something to combine with.
            terminal.feed(b"\x1b[2J\x1b[Ha" + chr(codepoint).encode())
            widths[codepoint] = terminal.cursor[0] - 1
    for name, wanted in (("ZERO", 0), ("WIDE", 2)):
        runs = _runs(wanted, widths)
        assert _table(name) == runs, f"{name} in widths.js should be:\n{_written(runs)}"
