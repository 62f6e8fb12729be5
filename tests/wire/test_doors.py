"""Strangers at a listener: few, and the one that waited longest goes (attack 41)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast_wire.doors import Refusals, Strangers


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=100))
def test_there_are_never_more_and_only_strangers_go(comes: list[tuple[int, bool]]) -> None:
    strangers, gone = Strangers(10, 4), set[int]()
    addresses: dict[int, int] = {}
    for order, (address, known) in enumerate(comes):
        number = strangers.enter(str(address), lambda order=order: gone.add(order))  # type: ignore[misc]
        assert order not in gone, "who has just come is heard"
        addresses[order] = address
        if known:
            strangers.leave(number)
            addresses.pop(order)
        here = [addr for one, addr in addresses.items() if one not in gone]
        assert len(here) == len(strangers) <= 10
        assert all(here.count(addr) <= 4 for addr in here)
    assert gone <= set(addresses), "nobody who was identified"


def test_of_many_addresses_the_busiest_pays() -> None:
    gone: list[str] = []
    strangers = Strangers(6, 5)
    for name in ("a", "a", "a", "b", "c", "d", "e"):
        strangers.enter(name, lambda name=name: gone.append(name))  # type: ignore[misc]
    assert gone == ["a"]


def test_only_what_is_refused_counts() -> None:
    now = [0.0]
    refusals = Refusals(3, 0.5, lambda: now[0])
    for _ in range(50):
        assert refusals.take("a")
        refusals.give_back("a")
    assert [refusals.take("a") for _ in range(5)] == [True, True, True, False, False]
    assert refusals.take("b"), "another address"
    now[0] += 2.0
    assert [refusals.take("a") for _ in range(3)] == [True, False, False]
    now[0] += 1e6
    assert [refusals.take("a") for _ in range(4)] == [True, True, True, False]


def test_addresses_are_bounded() -> None:
    refusals = Refusals(3, 0.5)
    for number in range(20_000):
        refusals.take(str(number))
    assert len(refusals._left) <= 10_000
