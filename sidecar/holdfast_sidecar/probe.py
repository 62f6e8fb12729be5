"""The one port a pod's sidecar listens on: kubelet asks whether it lives and serves."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

PORT: Final = 7317
_SECONDS: Final = 5.0
_MAX_REQUEST: Final = 8192
_MAX_CONNECTIONS: Final = 32  # kubelet needs two; anybody on the pod network can come


async def serve(ready: Callable[[], bool], port: int = PORT) -> asyncio.Server:
    """`/healthz` is answered if the loop turns at all; `/readyz` says whether the session runs."""

    here: dict[asyncio.StreamWriter, None] = {}

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(here) >= _MAX_CONNECTIONS:  # the one that waited longest has nothing to say
            longest = next(iter(here))
            del here[longest]
            longest.transport.abort()
        here[writer] = None
        with contextlib.suppress(OSError, EOFError, asyncio.LimitOverrunError):
            async with asyncio.timeout(_SECONDS):
                request = await reader.readuntil(b"\r\n\r\n")
                writer.write(_answer(request, ready))
                await writer.drain()
        here.pop(writer, None)
        writer.close()

    return await asyncio.start_server(answer, port=port, limit=_MAX_REQUEST, backlog=16)


def _answer(request: bytes, ready: Callable[[], bool]) -> bytes:
    path = request.split(b" ", 2)[1] if request.count(b" ") >= 2 else b""
    if path == b"/healthz":
        status, text = "200 OK", b"alive\n"
    elif path == b"/readyz":
        status, text = ("200 OK", b"ready\n") if ready() else ("503 Not Ready", b"not ready\n")
    else:
        status, text = "404 Not Found", b"there is /healthz and /readyz\n"
    head = f"HTTP/1.1 {status}\r\nContent-Length: {len(text)}\r\nConnection: close\r\n\r\n"
    return head.encode() + text
