from __future__ import annotations

import asyncio
import contextlib

from holdfast_kube.client import Overloaded
from holdfast_operator.queue import LONGEST_BACKOFF, WORKERS, Queue, Schedule
from holdfast_wire.errors import Unavailable


def test_twice_is_once_and_the_earlier_counts() -> None:
    schedule: Schedule[str] = Schedule()
    schedule.add("a", 5)
    schedule.add("a", 3)
    schedule.add("a", 9)
    assert len(schedule) == 1
    assert schedule.take(2.9) is None
    assert schedule.next_due() == 3
    assert schedule.take(3) == "a"
    assert schedule.take(9) is None
    assert schedule.next_due() is None


def test_one_key_at_a_time_and_once_more_after() -> None:
    schedule: Schedule[str] = Schedule()
    schedule.add("a", 0)
    assert schedule.take(0) == "a"
    schedule.add("a", 0)
    schedule.add("a", 0)
    assert schedule.take(1) is None
    schedule.done("a")
    assert schedule.take(1) == "a"
    schedule.done("a")
    assert schedule.take(1) is None


def test_failures_wait_longer_each_time_whatever_is_added() -> None:
    schedule: Schedule[str] = Schedule()
    now, waits = 0.0, []
    for _ in range(10):
        schedule.add("a", now)
        assert schedule.take(now) == "a"
        waits.append(schedule.failed("a", now))
        schedule.add("a", now)  # an event must not restart what fails
        assert schedule.take(now + waits[-1] - 0.01) is None
        now += waits[-1]
    assert waits[:4] == [0.5, 1, 2, 4]
    assert waits[-1] == LONGEST_BACKOFF
    schedule.add("a", now)
    assert schedule.take(now) == "a"
    schedule.done("a")
    schedule.add("a", now)
    assert schedule.take(now) == "a"
    assert schedule.failed("a", now) == 0.5
    assert schedule.take(now) is None
    assert schedule.failed("b", now, at_least=7) == 7


def test_due_keys_come_in_order() -> None:
    schedule: Schedule[str] = Schedule()
    for key, at in (("c", 3), ("a", 1), ("b", 2)):
        schedule.add(key, at)
    assert [schedule.take(5) for _ in range(4)] == ["a", "b", "c", None]


async def test_it_runs_what_is_added_boundedly_and_survives_failures() -> None:
    under_way, most = 0, 0
    full, gate, done = asyncio.Event(), asyncio.Event(), asyncio.Event()
    failures: list[tuple[int, str]] = []

    async def work(key: int) -> float | None:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        if under_way == WORKERS:
            full.set()
        await gate.wait()
        under_way -= 1
        if key == 3:
            raise Overloaded("busy", 9)
        if key == 4:
            raise ZeroDivisionError
        if key == 29:
            done.set()
        return 50.0 if key == 5 else None

    queue: Queue[int] = Queue(
        work, lambda: 100.0, lambda key, error: failures.append((key, type(error).__name__))
    )
    task = asyncio.create_task(queue.run())
    for key in range(30):
        queue.add(key)
    await full.wait()
    gate.set()
    await done.wait()
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert most == WORKERS
    assert failures == [(3, "Overloaded"), (4, "ZeroDivisionError")]
    assert len(queue) == 3  # two failed, one wants to be looked at again


async def test_an_earlier_key_wakes_it() -> None:
    seen: list[str] = []
    both = asyncio.Event()

    async def work(key: str) -> float | None:
        seen.append(key)
        both.set()
        return None

    queue: Queue[str] = Queue(work, lambda: 0.0, lambda *_: None)
    queue.add("late", after=1000)
    task = asyncio.create_task(queue.run())
    await asyncio.sleep(0)
    queue.add("now")
    await both.wait()
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert seen == ["now"]


def test_an_error_of_ours_is_expected() -> None:
    from holdfast_operator.queue import is_expected

    assert is_expected(Unavailable("x"))
    assert not is_expected(KeyError("x"))
