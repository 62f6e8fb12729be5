"""One aiohttp request, answered by an ASGI application.

The application gets the request without its `Authorization`: who asks was found out before, and
what is not there cannot be passed on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

from aiohttp import web

from holdfast_gateway import bodies

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

_KEPT_BACK: Final = frozenset({b"authorization", b"cookie", b"proxy-authorization"})
# How soon it is noticed that a client has gone.
_LOOK_SECONDS: Final = 1.0
# Of a client that does not read its answer.
_STUCK_SECONDS: Final = 60.0


async def respond(
    application: Application, request: web.Request, state: dict[str, Any]
) -> web.StreamResponse:
    """`state`: what the application finds in its request's state."""
    bridge = _Bridge(request, await bodies.read(request))
    await application(_scope(request, state), bridge.receive, bridge.send)
    return bridge.answered()


def _scope(request: web.Request, state: dict[str, Any]) -> MutableMapping[str, Any]:
    headers = [(name.lower(), value) for name, value in request.raw_headers]
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": request.scheme,
        "path": request.path,
        "raw_path": request.raw_path.partition("?")[0].encode(),
        "query_string": request.query_string.encode(),
        "root_path": "",
        "headers": [(name, value) for name, value in headers if name not in _KEPT_BACK],
        "client": None,
        "server": None,
        "state": state,
    }


class _Bridge:
    def __init__(self, request: web.Request, body: bytes) -> None:
        self._request, self._body = request, body
        self._read = False
        self._response: web.StreamResponse | None = None

    async def receive(self) -> Message:
        if not self._read:
            self._read = True
            return {"type": "http.request", "body": self._body, "more_body": False}
        while not self._gone():  # noqa: ASYNC110 - aiohttp has no event for it
            await asyncio.sleep(_LOOK_SECONDS)
        return {"type": "http.disconnect"}

    def _gone(self) -> bool:
        transport = self._request.transport
        return transport is None or transport.is_closing()

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._response = web.StreamResponse(status=message["status"])
            for name, value in message.get("headers", ()):
                if name.lower() != b"connection":
                    self._response.headers.add(name.decode("latin-1"), value.decode("latin-1"))
            return
        try:
            async with asyncio.timeout(_STUCK_SECONDS):
                await self._body_sent(message.get("body", b""), message.get("more_body", False))
        except TimeoutError:
            if self._request.transport is not None:
                self._request.transport.abort()
        except OSError:
            pass  # the client has gone: `receive` says so

    async def _body_sent(self, body: bytes, more: bool) -> None:
        response = self.answered()
        if not response.prepared:
            await response.prepare(self._request)
        if body:
            await response.write(body)
        if not more:
            await response.write_eof()

    def answered(self) -> web.StreamResponse:
        if self._response is None:
            raise RuntimeError("the application gave no answer")
        return self._response
