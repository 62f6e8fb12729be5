"""How many strangers a listener has, and how often one may be refused. Pure.

A stranger is a connection of which it is not known yet who is at its other end. Each takes memory,
perhaps a thread, and time. So they are few, of one address and together. The one that has waited
longest goes when another comes: who is entitled needs milliseconds, an idle one never leaves by
itself. Who was identified is not counted any more.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Final

_MOST_ADDRESSES: Final = 10_000


class Strangers:
    def __init__(self, most: int, most_of_one: int) -> None:
        """`most_of_one`: of one address."""
        self._most, self._most_of_one = most, most_of_one
        self._numbers = itertools.count(1)
        self._here: OrderedDict[int, tuple[str, Callable[[], None]]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._here)

    def enter(self, address: str, turn_away: Callable[[], None]) -> int:
        """`turn_away` ends the connection, at once. Returns its number."""
        same = [number for number, (peer, _) in self._here.items() if peer == address]
        if len(same) >= self._most_of_one:
            self._turn_away(same[0])
        elif len(self._here) >= self._most:
            self._turn_away(self._longest_of_the_busiest())
        number = next(self._numbers)
        self._here[number] = address, turn_away
        return number

    def leave(self, number: int) -> None:
        """It is known who it is, or the connection is gone."""
        self._here.pop(number, None)

    def _turn_away(self, number: int) -> None:
        _, turn_away = self._here.pop(number)
        turn_away()

    def _longest_of_the_busiest(self) -> int:
        ((address, _),) = Counter(peer for peer, _ in self._here.values()).most_common(1)
        return next(number for number, (peer, _) in self._here.items() if peer == address)


class Refusals:
    """Of each address: so many at once, and after that so many a second. What turns out to be right
    is given back, so only what is refused counts."""

    def __init__(
        self, burst: float, each_second: float, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._burst, self._rate, self._now = burst, each_second, now
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, address: str) -> bool:
        """Whether another try is allowed. It counts until it is given back."""
        left = self._of(address)
        if left < 1:
            return False
        self._set(address, left - 1)
        return True

    def give_back(self, address: str) -> None:
        self._set(address, self._of(address) + 1)

    def _of(self, address: str) -> float:
        left, at = self._left.get(address, (self._burst, 0.0))
        return min(self._burst, left + (self._now() - at) * self._rate)

    def _set(self, address: str, left: float) -> None:
        self._left[address] = min(self._burst, left), self._now()
        self._left.move_to_end(address)
        while len(self._left) > _MOST_ADDRESSES:
            self._left.popitem(last=False)
