"""Places for orders go round the namespaces (attack 42)."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast_node.fair_queue import FairQueue


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


class Orders:
    def __init__(self, places: int) -> None:
        self.queue = FairQueue(places)
        self.began: list[str] = []
        self.running: list[tuple[str, asyncio.Event]] = []
        self.tasks: list[asyncio.Task[None]] = []

    def order(self, namespace: str) -> None:
        async def run() -> None:
            async with self.queue.place(namespace):
                self.began.append(namespace)
                over = asyncio.Event()
                self.running.append((namespace, over))
                try:
                    await over.wait()
                finally:
                    self.running.remove((namespace, over))

        self.tasks.append(asyncio.create_task(run()))

    async def end_one(self) -> None:
        if self.running:
            self.running[0][1].set()
        await settle()

    async def close(self) -> None:
        for task in self.tasks:
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*self.tasks, return_exceptions=True)


async def test_one_tenants_many_orders_hold_up_anothers_by_one() -> None:
    """Attack 42: 50 orders of one namespace were done before another's first."""
    orders = Orders(2)
    for _ in range(50):
        orders.order("greedy")
    await settle()
    assert orders.began == ["greedy", "greedy"], "alone it may have all places"
    orders.order("modest")
    orders.order("modest")
    await settle()
    await orders.end_one()
    assert orders.began[2:] == ["modest"]
    await orders.end_one()
    assert sorted(one for one, _ in orders.running) == ["greedy", "modest"]
    await orders.close()


async def test_who_gives_up_leaves_no_hole() -> None:
    orders = Orders(1)
    for name in ("a", "b", "c"):
        orders.order(name)
    await settle()
    orders.tasks[1].cancel()
    await settle()
    await orders.end_one()
    assert orders.began == ["a", "c"]
    orders.tasks[2].cancel()
    await settle()
    orders.order("d")
    await settle()
    assert orders.began[-1] == "d"
    await orders.close()


@given(
    st.integers(1, 4),
    st.lists(st.sampled_from(["a", "b", "c", "end", "cancel"]), min_size=1, max_size=60),
)
def test_places_are_never_more_nor_idle_while_somebody_waits(places: int, acts: list[str]) -> None:
    async def play() -> None:
        orders = Orders(places)
        for act in acts:
            if act == "end":
                await orders.end_one()
            elif act == "cancel" and orders.tasks:
                orders.tasks.pop(len(orders.tasks) // 2).cancel()
            else:
                orders.order(act)
            await settle()
            live = sum(not task.done() for task in orders.tasks)
            assert len(orders.running) == min(places, live)
        waiting = {*orders.queue._waiting}
        held = Counter(namespace for namespace, _ in orders.running)
        assert held == orders.queue._held
        while orders.running:
            before = set(waiting)
            await orders.end_one()
            waiting = {*orders.queue._waiting}
            assert len(before - waiting) <= len(before)
        assert not waiting
        await orders.close()

    asyncio.run(play())


@pytest.mark.parametrize("places", [1, 2, 3])
async def test_nobody_waits_for_more_than_a_round(places: int) -> None:
    orders = Orders(places)
    for name in ("a", "b", "c", "d"):
        for _ in range(5):
            orders.order(name)
    await settle()
    for _ in range(20):
        await orders.end_one()
    last = {name: [i for i, one in enumerate(orders.began) if one == name] for name in "abcd"}
    for turns in last.values():
        assert all(later - sooner <= 4 + places for sooner, later in itertools.pairwise(turns))
    await orders.close()
