"""A request's body, in time. Its size is limited by the application that it comes to."""

from __future__ import annotations

import asyncio
from typing import Final

from aiohttp import web

from holdfast_wire.errors import BadRequest

# For 1 MiB, the most that is taken: 35 KiB a second.
SECONDS: Final = 30.0


async def read(request: web.Request) -> bytes:
    try:
        async with asyncio.timeout(SECONDS):
            return await request.read()
    except TimeoutError:
        raise BadRequest(
            f"the request's body did not come within {SECONDS:g} s", "send it at once, or in parts"
        ) from None
