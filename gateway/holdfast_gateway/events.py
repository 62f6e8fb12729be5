"""The stream as server-sent events: `GET …/stream` with `Accept: text/event-stream` (sse.py has the
events). When the session's sidecar goes, because it was restarted or the session moved, the stream
goes on with the next one at the exact byte, on the same HTTP connection.

Nothing is queued here. A client that reads slowly makes `write` wait, so that nothing is read from
the sidecar, which bounds what it keeps for us and sends a gap and a snapshot later; in hand is one
read (`READ_AHEAD`) as events. A client that takes nothing for `_STUCK_SECONDS` is let go: it comes
back with its `Last-Event-ID`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Iterator
from typing import Any, Final

from aiohttp import web

from holdfast_gateway import log
from holdfast_gateway.backend import CONNECT_SECONDS, READ_AHEAD, Link
from holdfast_gateway.relay import vouched
from holdfast_gateway.routes import Call
from holdfast_gateway.sse import KEEP_ALIVE, Events, problem, resume_of
from holdfast_wire.errors import HoldfastError, Unavailable
from holdfast_wire.frames import Attach, Decoder, Frame, encode

MEDIA: Final = "text/event-stream"
# Proxies cut what is silent, often after a minute.
_KEEP_ALIVE_SECONDS: Final = 15.0
# How soon it is noticed that a client has gone, or that the gateway goes.
_LOOK_SECONDS: Final = 1.0
_STUCK_SECONDS: Final = 60.0
_RETRY_SECONDS: Final = 0.05
_CLIENTS_RETRY_MILLISECONDS: Final = 500
# A viewer's size is nobody's; this one is always allowed.
_SIZE: Final = {"columns": 80, "rows": 24}


class _Over(Exception):
    """The client has gone, or the gateway goes: then the answer ends, and the client comes back."""


class _Stream:
    def __init__(self, call: Call, resume: dict[str, Any] | None) -> None:
        self._call, self._resume = call, resume
        self._events = Events()
        self._silent_since: float | None = None
        self._response = web.StreamResponse(
            headers={
                "Content-Type": MEDIA,
                "Cache-Control": "no-store",
                "X-Accel-Buffering": "no",
                "X-Content-Type-Options": "nosniff",
            }
        )

    async def run(self) -> web.StreamResponse:
        """An error before the first sidecar was reached is a plain one."""
        try:
            while not self._events.finished:
                await self._connected()
        except HoldfastError as error:
            if not self._response.prepared:
                raise
            with contextlib.suppress(_Over):
                await self._write(problem(error))
        except _Over:
            pass
        return self._response

    async def _connected(self) -> None:
        """To one sidecar, until it goes."""
        call = self._call
        async with call.serving.sessions.connect(call.name, call.caller) as link:
            if not self._response.prepared:
                await self._response.prepare(call.request)
                await self._write(f"retry: {_CLIENTS_RETRY_MILLISECONDS}\n\n".encode())
            wanted = Attach({"mode": "view", **_SIZE, "resume": self._resume})
            link.writer.write(encode(vouched(wanted, call.caller)))
            heard = await self._pump(link)
        self._resume = self._events.resume() or self._resume
        now = asyncio.get_running_loop().time()
        if heard or self._silent_since is None:
            self._silent_since = None if heard else now
        elif now - self._silent_since > CONNECT_SECONDS:
            raise Unavailable(f"session {call.name!r} does not answer", "come back in a moment")
        if not heard:  # it was on its way out
            await asyncio.sleep(_RETRY_SECONDS)

    async def _pump(self, link: Link) -> bool:
        """Whether anything was heard of it."""
        decoder, heard = Decoder(), False
        loop = asyncio.get_running_loop()
        told = loop.time()
        reading = asyncio.ensure_future(link.reader.read(READ_AHEAD))
        try:
            while not self._events.finished:
                either: set[asyncio.Future[Any]] = {reading, link.cut}
                await asyncio.wait(
                    either, timeout=_LOOK_SECONDS, return_when=asyncio.FIRST_COMPLETED
                )
                if link.cut.done():
                    link.cut.result()
                if reading.done():
                    try:
                        chunk = reading.result()
                    except OSError:
                        chunk = b""
                    if not chunk:
                        break
                    heard, told = True, loop.time()
                    await self._write(b"".join(self._told(decoder.feed(chunk))))
                    reading = asyncio.ensure_future(link.reader.read(READ_AHEAD))
                elif loop.time() - told >= _KEEP_ALIVE_SECONDS:
                    told = loop.time()
                    await self._write(KEEP_ALIVE)
                self._look()
        finally:
            reading.cancel()
            await asyncio.wait({reading})
        return heard

    def _told(self, frames: Iterable[Frame]) -> Iterator[bytes]:
        for frame in frames:
            yield from self._events.feed(frame)

    def _look(self) -> None:
        transport = self._call.request.transport
        if transport is None or transport.is_closing() or self._call.serving.streams.closing:
            raise _Over

    async def _write(self, data: bytes) -> None:
        try:
            async with asyncio.timeout(_STUCK_SECONDS):
                await self._response.write(data)
        except (OSError, TimeoutError):
            raise _Over from None


def wants_events(request: web.Request) -> bool:
    accepted = request.headers.get("Accept", "")
    return any(part.split(";")[0].strip().lower() == MEDIA for part in accepted.split(","))


async def follow(call: Call) -> web.StreamResponse:
    stream = _Stream(call, resume_of(call.request.headers.get("Last-Event-ID")))
    log.info("client_attached", session=call.name, by=MEDIA, **call.caller.to_json())
    try:
        return await stream.run()
    finally:
        log.info("client_left", session=call.name, by=MEDIA)
