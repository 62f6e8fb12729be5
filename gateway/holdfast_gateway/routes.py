"""What a route is: one entry in a table, from which it is served (http.py) and described
(openapi.py), so that the two cannot differ. And what its handler is given: a `Call`, whose caller
has been authenticated and whose fields have been checked.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from aiohttp import web

from holdfast_gateway.auth import Caller
from holdfast_gateway.backend import REQUEST_SECONDS, Backend
from holdfast_gateway.fields import Field, Given, Schema
from holdfast_wire.rights import Right, path_of, right_of_request

API: Final = "/api/v1"
ONE: Final = f"{API}/sessions/{{name}}"
JSON: Final = "application/json"


@dataclass(slots=True)
class Streams:
    """Those that are open, so that they can be closed when the gateway goes."""

    sockets: set[web.WebSocketResponse] = field(default_factory=set)
    closing: bool = False


@dataclass(frozen=True, slots=True)
class Serving:
    """What handlers work with."""

    sessions: Backend
    poke: Callable[[], None]
    streams: Streams


@dataclass(frozen=True, slots=True)
class Call:
    """A request that was let in."""

    request: web.Request
    caller: Caller
    name: str
    """The session's; empty where it is about none."""
    given: Given
    serving: Serving

    async def ask(
        self, kind: str, body: Given | None = None, *, seconds: float = REQUEST_SECONDS
    ) -> dict[str, Any]:
        asked = {"kind": kind, **(body or {})}
        return await self.serving.sessions.request(self.name, asked, self.caller, seconds=seconds)


Handler = Callable[[Call], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class Route:
    method: str
    path: str
    """Absolute; or below that of one session, and then without a slash at its beginning."""
    name: str
    asks: str
    """The kind of what it asks of a session, by which the table of rights has its right; empty if
    it is about no session."""
    says: str
    handler: Handler
    answers: Mapping[str, Schema]
    """What a success carries, by media type."""
    query: tuple[Field, ...] = ()
    body: tuple[Field, ...] | None = None
    status: int = 200
    upgrades: bool = False
    """To a WebSocket, if asked."""

    @property
    def right(self) -> Right | None:
        return right_of_request(self.asks) if self.asks else None

    def at(self, one: str, by_right: bool = False) -> str:
        """`by_right`: as the API server wants it, which asks for the right that the path names."""
        if self.path.startswith("/"):
            return self.path
        below = path_of(self.right, self.path) if by_right and self.right else self.path
        return f"{one}/{below}".rstrip("/")


def answer(body: dict[str, Any], status: int = 200) -> web.Response:
    return web.json_response(
        body, status=status, dumps=lambda value: json.dumps(value, ensure_ascii=False)
    )
