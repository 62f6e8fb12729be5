"""A terminal saved at any byte and restored goes on exactly as if it had not been."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast_sidecar import snapshot
from holdfast_sidecar.ghostty import Terminal
from holdfast_sidecar.history import History

SCROLLBACK = 200
# Neither ?69 nor CSI Z: with them a wrap can be pending although the cursor is not in the last
# column, and the library does not save that.
MODES = (1, 3, 5, 6, 7, 12, 25, 45, 66, 1000, 1002, 1003, 1004, 1006, 1007, 2004, 2026, 2027, 2031)
FIXED = [
    *(b"\r", b"\n", b"\r\n" * 4, b"\b", b"\t", b"\a", b"\x0e", b"\x0f", b"\x18", b"\x1a", b"\0"),
    *(b"\x1b7", b"\x1b8", b"\x1bD", b"\x1bM", b"\x1bE", b"\x1bH", b"\x1b=", b"\x1b>", b"\x1bc"),
    *(b"\x1b(0", b"\x1b)0", b"\x1b(B", b"\x1b#8", b"\x1b[!p", b"\x1b[3J", b"\x1b[2J", b"\x1b[5b"),
    *(b"\x1b[1;31m", b"\x1b[4:3m\x1b[58:2::9:8:7m", b"\x1b[38;2;1;2;3;48;5;99m", b"\x1b[0m"),
    *(b"\x1b[?1049h", b"\x1b[?1049l", b"\x1b[?47h", b"\x1b[?1047l", b'\x1b[1"q', b"\x1b[4h"),
    *(b"\x1b]8;id=1;http://x/\x1b\\", b"\x1b]8;;\x07", b"\x1b]133;A\x07", b"\x1b[>1u", b"\x1b[<u"),
    *(b"\x1bP+q544e\x1b\\", b"\x1b_Gq=1;AAAA\x1b\\", b"\x1b^privacy\x1b\\", b"\x1bXsos\x1b\\"),
    *(b"\xff\xfe", b"\xe6\x97", b"\xc3", b"\x80", b"\xed\xa0\x80", b"\x1b[1;2;3", b"\x1b]2;cut"),
]
PARAMETRIC = [
    *(b"\x1b[%d;%dH", b"\x1b[%d;%dr", b"\x1b]4;%d;rgb:12/34/%02x\x07", b"\x1b[%d;%dm"),
    *(b"\x1b]2;title %d %d\x1b\\", b"\x1b]11;rgb:%02x/%02x/00\x07"),
]
NUMBER = st.integers(0, 99)
PIECE = st.one_of(
    st.sampled_from(FIXED),
    st.builds(lambda form, a, b: form % (a, b), st.sampled_from(PARAMETRIC), NUMBER, NUMBER),
    st.builds(lambda n, c: b"\x1b[%d%c" % (n, c), NUMBER, st.sampled_from(b"ABCDEFGIJKLMPSTX@`d")),
    st.builds(lambda n, c: b"\x1b[?%d%c" % (n, c), st.sampled_from(MODES), st.sampled_from(b"hl")),
    st.text("ab1 éü\u0301\u200d", min_size=1, max_size=30).map(str.encode),
    st.integers(1, 90).map(lambda n: b"x" * n),
)
# Wide characters apart: one that does not fit after a gap is not yet written the same twice.
WIDE = st.one_of(
    st.text("a 日本🙂é\u0301\u200d", min_size=1, max_size=30).map(str.encode),
    st.sampled_from([b"\r\n", b"\r", b"\x1b[31;44m", b"\x1b[0m", b"\x1b[?2027h", b"\xe6\x97"]),
)
SIZE = st.sampled_from([(2, 1), (5, 3), (20, 5), (80, 24)])


def both(terminal: Terminal) -> tuple[bytes, str, bytes]:
    """All that a client could be given of it."""
    return (
        snapshot.take(terminal, History()),
        snapshot.text(terminal, scrollback=True),
        terminal.title,
    )


def restored(terminal: Terminal) -> Terminal:
    copy = terminal.clone()
    assert copy is not None
    return copy


@given(
    SIZE,
    st.lists(PIECE, min_size=1, max_size=40) | st.lists(WIDE, min_size=1, max_size=20),
    st.lists(st.floats(0, 1), max_size=3),
)
@settings(max_examples=100, deadline=None)
def test_cut_anywhere_any_stream_goes_on_exactly(
    size: tuple[int, int], pieces: list[bytes], cuts: list[float]
) -> None:
    data, start = b"".join(pieces), 0
    whole, broken = Terminal(*size, SCROLLBACK), Terminal(*size, SCROLLBACK)
    for cut in sorted(int(cut * len(data)) for cut in cuts):
        broken.feed(data[start:cut])
        whole.feed(data[start:cut])
        broken, start = restored(broken), cut
        assert both(broken) == both(whole)
    broken.feed(data[start:])
    whole.feed(data[start:])
    assert both(broken) == both(whole)


STORY = (
    "Grüße, 日本語 👩\u200d👩\u200d👧 é\r\n".encode()
    + b"\x1b[1;38;2;10;20;30mcolour\x1b[0m\x1b]8;;http://x/\x1b\\link\x1b]8;;\x1b\\\r\n"
    + b"\x1b]2;a title\x07\x1bP$qm\x1b\\\x1b[?2004h\x1b[2;4r\x1b[5;10Hx\x1b7"
    + b"\x1b[?1049h\x1b[2J\x1b[Hvim\x1b[?25l\x1b[?1000;1006h\x1b(0lqk\x1b(B"
)


@pytest.mark.parametrize("cut", range(len(STORY) + 1))
def test_cut_at_every_byte_of_one_story(cut: int) -> None:
    whole, broken = Terminal(40, 6, SCROLLBACK), Terminal(40, 6, SCROLLBACK)
    whole.feed(STORY)
    broken.feed(STORY[:cut])
    again = restored(broken)
    assert again.continuation() == broken.continuation()
    again.feed(STORY[cut:])
    assert both(again) == both(whole)
    again.feed(b"\x1b[?1049l\x1b8!")
    whole.feed(b"\x1b[?1049l\x1b8!")
    assert both(again) == both(whole)


# Scrolled down, a row that wraps into the next is encoded as one that does not.
NOT_SCROLLED_DOWN = PIECE.filter(lambda piece: not piece.endswith(b"T"))


@given(SIZE, SIZE, st.lists(NOT_SCROLLED_DOWN, min_size=1, max_size=20))
@settings(max_examples=30, deadline=None)
def test_a_resize_after_it_is_the_same_resize(
    size: tuple[int, int], then: tuple[int, int], pieces: list[bytes]
) -> None:
    whole = Terminal(*size, SCROLLBACK)
    whole.feed(b"".join(pieces))
    again = restored(whole)
    for terminal in (whole, again):
        terminal.resize(*then)
        terminal.feed(b"after\r\n")
    assert both(again) == both(whole)


def test_scrollback_and_its_colours_come_along() -> None:
    whole = Terminal(20, 5, SCROLLBACK)
    for n in range(150):
        whole.feed(b"\x1b[3%dmline %d\x1b[0m\r\n" % (n % 8, n))
    again = restored(whole)
    assert "line 0\n" in snapshot.text(again, scrollback=True)
    assert both(again) == both(whole)


def test_encoding_changes_nothing_and_is_the_same_twice() -> None:
    terminal = Terminal(40, 6, SCROLLBACK)
    terminal.feed(STORY[:-3])
    before = both(terminal)
    assert terminal.encode() == terminal.encode()
    assert both(terminal) == before
