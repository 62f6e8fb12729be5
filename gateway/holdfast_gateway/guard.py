"""What takes long is stopped when its caller may not do it any more, as a stream is."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from holdfast_gateway.auth import Caller
from holdfast_gateway.backend import CONNECT_SECONDS, Backend
from holdfast_wire.rights import Right

T = TypeVar("T")


async def while_allowed(
    sessions: Backend, name: str, caller: Caller, right: Right, work: Callable[[], Awaitable[T]]
) -> T:
    """What `work` gives; or the error with which the caller's right to it was taken back
    meanwhile. In the session it goes on: only the caller hears no more of it."""
    async with sessions.connect(name, caller, CONNECT_SECONDS, right) as link:
        task = asyncio.ensure_future(work())
        try:
            either: set[asyncio.Future[Any]] = {task, link.cut}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                link.cut.result()
            return await task
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task})
