from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast_node.missing import Missing, Piece, Ranges, in_turn

_SPAN = 40
Span = tuple[int, int]
spans = st.tuples(st.integers(0, _SPAN), st.integers(1, 12)).map(lambda one: (one[0], sum(one)))
steps = st.lists(
    st.one_of(
        st.tuples(st.just("drop"), spans, st.just(0)),
        st.tuples(st.just("move"), spans, st.integers(100, 100 + _SPAN)),
        st.tuples(st.just("back"), spans, st.integers(-100, -60)),
    ),
    max_size=12,
)


def test_adjacent_ranges_are_one() -> None:
    ranges = Ranges([(8, 12), (0, 4), (4, 8), (16, 20)])
    assert list(ranges) == [(0, 12), (16, 20)]
    assert len(ranges) == 16
    assert ranges.within(10, 18) == [(10, 12), (16, 18)]


def test_what_lies_beside_a_large_range_comes_before_it() -> None:
    missing = {7: Ranges([(0, 2), (10, 25), (30, 34)]), 8: Ranges([(40, 45)])}
    assert list(in_turn(missing, size=4, large=5)) == [
        (7, 0, 2), (7, 30, 34), (8, 40, 44), (8, 44, 45),
        (7, 10, 14), (7, 14, 18), (7, 18, 22), (7, 22, 25),
    ]  # fmt: skip


@given(st.lists(st.tuples(st.booleans(), spans), max_size=20))
def test_ranges_are_what_a_set_would_be(acts: list[tuple[bool, Span]]) -> None:
    ranges, model = Ranges(), set[int]()
    for add, (start, end) in acts:
        if add:
            ranges.add(start, end)
            model |= set(range(start, end))
        else:
            gone = ranges.remove(start, end)
            assert {at for a, b in gone for at in range(a, b)} == model & set(range(start, end))
            model -= set(range(start, end))
        assert {at for a, b in ranges for at in range(a, b)} == model
        assert len(ranges) == len(model)
        assert bool(ranges) == bool(model)


@given(st.lists(spans, max_size=4), steps, spans)
def test_missing_is_what_a_table_of_pages_would_be(
    begin: list[Span], acts: list[tuple[str, Span, int]], asked: Span
) -> None:
    first = Ranges()
    for start, end in begin:
        first.add(start, end)
    missing = Missing(first)
    model = {at: at for a, b in first for at in range(a, b)}  # where it is now: where it was
    for act, span, by in acts:
        start, end = (at + 100 * (act == "back") for at in span)
        if act == "drop":
            missing.drop(start, end)
            model = {at: was for at, was in model.items() if not start <= at < end}
            continue
        to = start + by
        missing.move(start, to, end - start)
        moved = {at + by: was for at, was in model.items() if start <= at < end}
        model = {
            at: was
            for at, was in model.items()
            if not start <= at < end and not to <= at < to + end - start
        }
        model |= moved
    for at in range(-120, 300):
        assert missing.was(at) == model.get(at)
    assert bool(missing) == bool(model)
    found = {
        at: piece.was + at - piece.start
        for piece in missing.pieces(*asked)
        for at in range(piece.start, piece.end)
    }
    assert found == {at: was for at, was in model.items() if asked[0] <= was < asked[1]}


def test_a_child_s_is_its_own() -> None:
    parent = Missing([(0, 10)])
    parent.move(0, 20, 4)
    child = parent.copy()
    parent.drop(0, 100)
    assert not parent
    assert child.pieces(0, 10) == [Piece(4, 10, 4), Piece(20, 24, 0)]
