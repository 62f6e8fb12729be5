"""Work in threads: none is left behind, nor the memory that they needed."""

from __future__ import annotations

import asyncio
import ctypes
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Final, TypeVar

T = TypeVar("T")
_libc: Final = ctypes.CDLL(None)


async def to_its_end(
    work: Callable[[], T], hurry: Callable[[], None] = lambda: None, worker: Executor | None = None
) -> T:
    """When this is over so is the work, also by cancelling, and then `hurry` is called first:
    nothing writes into a folder that was removed, or uses a link that was closed."""
    running = asyncio.get_running_loop().run_in_executor(worker, work)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        hurry()
        await asyncio.wait([running])
        running.exception()  # nobody waits for it
        raise


def give_back() -> None:
    """What the allocator keeps for the next time, a heap for each thread there was: an agent has
    nothing to do for days. Not every C library has this."""
    if (trim := getattr(_libc, "malloc_trim", None)) is not None:
        trim(0)
