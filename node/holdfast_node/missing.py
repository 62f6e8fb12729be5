"""Which pages of a process have not come yet. Pure.

What it lacks is kept by the addresses it has now; where those differ from the ones it was dumped
with, because it has moved memory about since (mremap), both are kept.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass


class Ranges:
    """Disjoint ranges of addresses, each from its first up to its end, in order."""

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        for start, end in sorted(ranges):
            if self._ends and start == self._ends[-1]:
                self._ends[-1] = end
            else:
                self._starts.append(start)
                self._ends.append(end)

    def __bool__(self) -> bool:
        return bool(self._starts)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(list(zip(self._starts, self._ends, strict=True)))

    def __len__(self) -> int:
        """In bytes."""
        return sum(self._ends) - sum(self._starts)

    def copy(self) -> Ranges:
        new = Ranges()
        new._starts, new._ends = self._starts.copy(), self._ends.copy()
        return new

    def within(self, start: int, end: int) -> list[tuple[int, int]]:
        """What of it lies between the two."""
        first = bisect_right(self._ends, start)
        last = bisect_left(self._starts, end)
        return [
            (max(start, self._starts[at]), min(end, self._ends[at])) for at in range(first, last)
        ]

    def add(self, start: int, end: int) -> None:
        self.remove(start, end)
        at = bisect_left(self._starts, start)
        self._starts.insert(at, start)
        self._ends.insert(at, end)

    def remove(self, start: int, end: int) -> list[tuple[int, int]]:
        """What of it was there."""
        first = bisect_right(self._ends, start)
        last = bisect_left(self._starts, end)
        if first >= last:
            return []
        gone = self.within(start, end)
        left = [(self._starts[first], start)] if self._starts[first] < start else []
        if self._ends[last - 1] > end:
            left.append((end, self._ends[last - 1]))
        self._starts[first:last] = [one for one, _ in left]
        self._ends[first:last] = [one for _, one in left]
        return gone


def in_turn(missing: Mapping[int, Ranges], size: int, large: int) -> Iterator[tuple[int, int, int]]:
    """(PID, start, end) of pieces of at most `size`, in the order to ask for them when nobody waits
    for one. First what lies in ranges that are not `large`: a heap is one range, and what a
    program needs to go on at all lies beside it."""
    every = [(pid, *one) for pid, ranges in missing.items() for one in ranges]
    every.sort(key=lambda one: one[2] - one[1] > large)
    for pid, start, end in every:
        for at in range(start, end, size):
            yield pid, at, min(end, at + size)


@dataclass(frozen=True)
class Piece:
    start: int
    end: int
    was: int  # where its beginning was when it was dumped


class Missing:
    """Of one address space."""

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self._home = Ranges(ranges)
        self._moved: list[Piece] = []

    def __bool__(self) -> bool:
        return bool(self._home or self._moved)

    def copy(self) -> Missing:
        """What a child that is forked now lacks."""
        new = Missing()
        new._home, new._moved = self._home.copy(), self._moved.copy()
        return new

    def was(self, address: int) -> int | None:
        """Where the page at this address was when it was dumped; None: it is not missing."""
        if self._home.within(address, address + 1):
            return address
        for piece in self._moved:
            if piece.start <= address < piece.end:
                return piece.was + address - piece.start
        return None

    def pieces(self, start: int, end: int) -> list[Piece]:
        """Where pages that were between these two when dumped are wanted now."""
        found = [Piece(a, b, a) for a, b in self._home.within(start, end)]
        for piece in self._moved:
            first, last = max(start, piece.was), min(end, piece.was + piece.end - piece.start)
            if first < last:
                by = piece.start - piece.was
                found.append(Piece(first + by, last + by, first))
        return found

    def drop(self, start: int, end: int) -> None:
        """They have come, or nobody wants them any more."""
        self._take(start, end)

    def move(self, start: int, to: int, size: int) -> None:
        taken = self._take(start, start + size)
        self._take(to, to + size)
        for piece in taken:
            by = to - start
            if piece.start + by == piece.was:
                self._home.add(piece.start + by, piece.end + by)
            else:
                self._moved.append(Piece(piece.start + by, piece.end + by, piece.was))

    def _take(self, start: int, end: int) -> list[Piece]:
        taken = [Piece(a, b, a) for a, b in self._home.remove(start, end)]
        left: list[Piece] = []
        for piece in self._moved:
            first, last = max(start, piece.start), min(end, piece.end)
            if first >= last:
                left.append(piece)
                continue
            taken.append(Piece(first, last, piece.was + first - piece.start))
            if piece.start < first:
                left.append(Piece(piece.start, first, piece.was))
            if last < piece.end:
                left.append(Piece(last, piece.end, piece.was + last - piece.start))
        self._moved = left
        return taken
