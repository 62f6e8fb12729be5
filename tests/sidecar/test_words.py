"""What the Lease is told of the last lines."""

from __future__ import annotations

from holdfast_sidecar import words


def test_last_lines_are_few_and_plain() -> None:
    lines = words.plain_lines
    assert lines("") == [""]
    assert lines("a\n\n\x1b[1mb\u202e\t\n\n") == ["a", "", "[1mb"]
    assert lines("\n".join(map(str, range(100)))) == [str(n) for n in range(80, 100)]
    long = lines("first\n" + "\u20ac" * 4000)
    assert len(long) == 1
    assert 4000 < len(long[0].encode()) < 4096
    assert len("\n".join(lines("\n".join(["x" * 1000] * 20)))) <= 4096
