"""Work in a thread that nobody leaves behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar

T = TypeVar("T")


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
