"""Scrollback, serialized once. A line that has scrolled off never changes, so its bytes are kept
and the next snapshot only formats what is new; the emulator may keep its own copy compressed.

Invariant: the kept chunks are, in order, the rows that end with the tracked one. The library moves
the tracked row along as lines are added and dropped, and forgets it when it is dropped or cleared;
then nothing is kept. A resize rewraps lines: whoever does it calls `forget`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final, NamedTuple

from holdfast_sidecar import rows
from holdfast_sidecar.ghostty import Terminal, TrackedRow

# Blocks made ready in one go; a few milliseconds, after which somebody else may want the terminal.
_SLICE: Final = 8


class _Chunk(NamedTuple):
    rows: int
    data: bytes


class History:
    def __init__(self) -> None:
        self._chunks: deque[_Chunk] = deque()
        self._count = 0
        self._last: TrackedRow | None = None

    def forget(self) -> None:
        self._chunks.clear()
        self._count = 0
        self._last = None

    def _end(self, terminal: Terminal) -> int:
        """The row after the last one kept."""
        row = self._last.row() if self._last is not None else None
        if row is None or row >= terminal.history:
            self.forget()
            return 0
        return row + 1

    def warm(self, terminal: Terminal) -> bool:
        """Serializes some of what is new. True if there is more to do."""
        if terminal.alternate:
            return False
        end, history = self._end(terminal), terminal.history
        oldest = max(0, history - terminal.scrollback_limit)
        end = max(end, oldest) if not self._chunks else end
        for _ in range(_SLICE):
            if history - end < rows.BLOCK:
                break
            last = end + rows.BLOCK - 1
            self._chunks.append(_Chunk(rows.BLOCK, rows.block_with_break(terminal, end, last)))
            self._count += rows.BLOCK
            end = last + 1
            self._last = terminal.track(last)
        while self._chunks and end - self._count + self._chunks[0].rows <= oldest:
            self._count -= self._chunks.popleft().rows
        return history - end >= rows.BLOCK

    def lines(self, terminal: Terminal, first: int) -> Iterator[bytes]:
        """All rows of the screen from `first` on, scrollback and visible."""
        end = self._end(terminal)
        start = end - self._count
        if first < start:
            yield from rows.between(terminal, first, start - 1)
        for chunk in self._chunks:
            after = start + chunk.rows
            if start >= first:
                yield chunk.data
            elif after > first:
                yield from rows.between(terminal, first, after - 1)
            start = after
        yield from rows.to_end(terminal, max(end, first))
