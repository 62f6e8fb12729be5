"""How far a move has come, for people: nothing is decided by it, and it may be lost."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from holdfast_wire.errors import HoldfastError

_API_SECONDS: Final = 2.0
_MEMORY: Final = ("RssAnon:", "VmSwap:")


@dataclass(slots=True)
class Progress:
    """Each field has one thread that writes it."""

    sent: int = 0  # bytes of parts
    taken: int = 0  # of these, by the receiver's last word
    early: int = 0  # bytes of memory that went while the session ran; 0 when it stands still
    memory: int = 0  # bytes that went from process to process
    expected: int = 0  # about how many it will be in all; 0: not known yet
    since: float = 0.0  # when that was known: just before the freeze

    @property
    def all_sent(self) -> int:
        return self.sent + self.early + self.memory

    def expect(self, pids: Iterable[int]) -> None:
        """What these processes have now, and what went before."""
        self.expected = self.sent + sum(map(memory_of, pids))
        self.since = time.monotonic()


Tell = Callable[[Progress], Awaitable[object]]


@asynccontextmanager
async def told(progress: Progress, tell: Tell, every: float = _API_SECONDS) -> AsyncIterator[None]:
    """Now and then, if it has changed."""

    async def work() -> None:
        last = 0
        while True:
            await asyncio.sleep(every)
            if progress.all_sent != last:
                last = progress.all_sent
                with suppress(HoldfastError, OSError):  # the pod may be gone meanwhile
                    await tell(progress)

    telling = asyncio.create_task(work())
    try:
        yield
    finally:
        telling.cancel()
        await asyncio.wait([telling])


def memory_of(pid: int) -> int:
    """Bytes that are its own; by the kernel's counters, which take no walk through its pages."""
    found = 0
    with suppress(OSError):  # it ended
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(_MEMORY):
                found += int(line.split()[1]) << 10
    return found
