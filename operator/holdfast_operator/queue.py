"""Which Session to look at next.

One key is worked on by one worker at a time; what is added while it is, is worked on once more
after; adding twice is adding once, at the earlier time. A key whose work fails waits longer each
time. The queue holds at most one entry per Session, so it is bounded by their number.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
from collections.abc import Awaitable, Callable, Hashable
from typing import Final, Generic, TypeVar

from holdfast_kube.client import Overloaded
from holdfast_wire.errors import HoldfastError

K = TypeVar("K", bound=Hashable)

FIRST_BACKOFF: Final = 0.5
LONGEST_BACKOFF: Final = 60.0  # whoever removed the cause waits no longer than this
WORKERS: Final = 8  # each has a handful of requests under way; more would only press on the API


class Schedule(Generic[K]):
    """The queue's rules. Pure: times come in, none is read."""

    def __init__(self) -> None:
        self._due: dict[K, float] = {}
        self._heap: list[tuple[float, int, K]] = []  # with entries that _due no longer agrees with
        self._busy: set[K] = set()
        self._failures: dict[K, int] = {}
        self._not_before: dict[K, float] = {}
        self._count = 0

    def __len__(self) -> int:
        return len(self._due)

    def add(self, key: K, at: float) -> None:
        # Else every event would restart at once what has just failed.
        at = max(at, self._not_before.get(key, at))
        known = self._due.get(key)
        if known is not None and known <= at:
            return
        self._due[key] = at
        if key not in self._busy:
            self._push(key, at)

    def take(self, now: float) -> K | None:
        """A key that is due and that nobody works on; it is worked on until `done`."""
        while self._heap and self._heap[0][0] <= now:
            at, _, key = heapq.heappop(self._heap)
            if self._due.get(key) == at and key not in self._busy:
                del self._due[key]
                self._busy.add(key)
                return key
        return None

    def done(self, key: K) -> None:
        self._failures.pop(key, None)
        self._not_before.pop(key, None)
        self._free(key)

    def failed(self, key: K, now: float, at_least: float = 0.0) -> float:
        """Puts the key back; returns how long it waits."""
        count = self._failures.get(key, 0)
        self._failures[key] = count + 1
        wait = max(at_least, min(LONGEST_BACKOFF, FIRST_BACKOFF * 2.0 ** min(count, 20)))
        self._due[key] = self._not_before[key] = now + wait
        self._free(key)
        return wait

    def next_due(self) -> float | None:
        while self._heap:
            at, _, key = self._heap[0]
            if self._due.get(key) == at and key not in self._busy:
                return at
            heapq.heappop(self._heap)
        return None

    def _free(self, key: K) -> None:
        self._busy.discard(key)
        if key in self._due:
            self._push(key, self._due[key])

    def _push(self, key: K, at: float) -> None:
        self._count += 1
        heapq.heappush(self._heap, (at, self._count, key))


class Queue(Generic[K]):
    """Runs `work` for what is due. It returns when to look again (seconds from now), or None."""

    def __init__(
        self,
        work: Callable[[K], Awaitable[float | None]],
        clock: Callable[[], float],
        failed: Callable[[K, Exception], None],
    ) -> None:
        self._work, self._clock, self._on_failure = work, clock, failed
        self._schedule: Schedule[K] = Schedule()
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        return len(self._schedule)

    def add(self, key: K, after: float = 0.0) -> None:
        self._schedule.add(key, self._clock() + after)
        self._changed.set()

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as group:
            room = asyncio.Semaphore(WORKERS)
            while True:
                await room.acquire()
                key = await self._next()
                task = group.create_task(self._one(key))
                task.add_done_callback(lambda _task: room.release())

    async def _next(self) -> K:
        while True:
            now = self._clock()
            key = self._schedule.take(now)
            if key is not None:
                return key
            self._changed.clear()
            due = self._schedule.next_due()
            # Not wait_for: before Python 3.12 it swallows a cancellation that comes with the event.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if due is None else max(0.0, due - now)):
                    await self._changed.wait()

    async def _one(self, key: K) -> None:
        try:
            after = await self._work(key)
        except Exception as error:  # the edge: one Session's fault must not stop the others
            least = error.retry_after if isinstance(error, Overloaded) else 0.0
            self._schedule.failed(key, self._clock(), least)
            self._on_failure(key, error)
        else:
            self._schedule.done(key)
            if after is not None:
                self._schedule.add(key, self._clock() + after)
        self._changed.set()


def is_expected(error: Exception) -> bool:
    """Whether it is one of ours: said in a line. Others come with their traceback."""
    return isinstance(error, HoldfastError)
