"""What the Lease is told of the last lines, and the terminal of where it goes on from."""

from __future__ import annotations

from holdfast_sidecar import words
from holdfast_sidecar.stored import Stored, Why


def test_last_lines_are_few_and_plain() -> None:
    lines = words.plain_lines
    assert lines("") == [""]
    assert lines("a\n\n\x1b[1mb\u202e\t\n\n") == ["a", "", "[1mb"]
    assert lines("\n".join(map(str, range(100)))) == [str(n) for n in range(80, 100)]
    long = lines("first\n" + "\u20ac" * 4000)
    assert len(long) == 1
    assert 4000 < len(long[0].encode()) < 4096
    assert len("\n".join(lines("\n".join(["x" * 1000] * 20)))) <= 4096


def test_where_it_goes_on_from_is_said_if_something_is_other_than_it_was() -> None:
    def said(why: Why, now: float = 1_000_090.4) -> str:
        return words.gone_on(Stored(3, 1_000_000, why, "build\x1b", "it-3-k1"), now).decode()

    when = "1970-01-12 13:46:40 UTC"
    lost = f"Restored from the checkpoint of {when}: what happened in the 90 s since is gone"
    assert lost in said(Why.RECOVER)
    assert "the 0 s since" in said(Why.RECOVER, 999_999), "clocks differ"
    assert f"This is a fork of build, taken {when}" in said(Why.FORK)
    assert said(Why.WAKE) == ""
    for why in (Why.RECOVER, Why.FORK):
        assert said(why).startswith("\r\n")
        assert said(why).endswith("\x1b[0m\r\n")
