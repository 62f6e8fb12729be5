"""Places for orders, given out in turn to the namespaces that wait: however many orders one of them
has, another's next one waits for one place at most.

While others wait, a namespace has at most its share of the places. What it has is not taken away.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

_Waiting = asyncio.Future[None]


class FairQueue:
    def __init__(self, places: int) -> None:
        self._free, self._places = places, places
        self._held: Counter[str] = Counter()
        # By namespace, the one whose turn is next first.
        self._waiting: OrderedDict[str, deque[_Waiting]] = OrderedDict()

    @asynccontextmanager
    async def place(self, namespace: str) -> AsyncIterator[None]:
        coming: _Waiting = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(namespace, deque()).append(coming)
        self._give()
        try:
            await coming
        except asyncio.CancelledError:
            if coming.done() and not coming.cancelled():
                self._leave(namespace)
            else:
                self._forget(namespace, coming)
            raise
        try:
            yield
        finally:
            self._leave(namespace)

    def _leave(self, namespace: str) -> None:
        self._free += 1
        self._held[namespace] -= 1
        if not self._held[namespace]:
            del self._held[namespace]
        self._give()

    def _forget(self, namespace: str, coming: _Waiting) -> None:
        waiting = self._waiting.get(namespace)
        if waiting is not None and coming in waiting:
            waiting.remove(coming)
            if not waiting:
                del self._waiting[namespace]

    def _give(self) -> None:
        while self._free and (namespace := self._next()) is not None:
            waiting = self._waiting.pop(namespace)
            coming = waiting.popleft()
            if waiting:
                self._waiting[namespace] = waiting  # behind all others
            if coming.cancelled():
                continue
            self._free -= 1
            self._held[namespace] += 1
            coming.set_result(None)

    def _next(self) -> str | None:
        """Whose turn it is; one that has its share already only if nobody else waits."""
        share = max(1, self._places // max(1, len({*self._waiting, *self._held})))
        below = (one for one in self._waiting if self._held[one] < share)
        return next(below, next(iter(self._waiting), None))
