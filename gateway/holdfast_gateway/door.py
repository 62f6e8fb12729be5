"""Who is let in, over HTTP."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from aiohttp import web

from holdfast_gateway import auth
from holdfast_gateway.auth import Caller
from holdfast_wire.ids import Actor


class Door(Protocol):
    def check(self, request: web.Request) -> None:
        """What every request must be, whoever sends it."""

    async def caller(self, request: web.Request) -> Caller:
        """Who sent it, or `Unauthenticated`."""

    async def stream_caller(self, request: web.Request) -> Caller:
        """The same of a WebSocket's."""


@dataclass(frozen=True, slots=True)
class TokenDoor:
    """Of one machine: whoever has the token is its user."""

    actor: Actor
    token: str

    def check(self, request: web.Request) -> None:
        host = auth.check_host(request.headers.get("Host"))
        auth.check_query(request.query.items(), self.token)
        auth.check_origin(request.headers.get("Origin"), host)

    async def caller(self, request: web.Request) -> Caller:
        return auth.authenticate(request.headers, self.actor, self.token)

    async def stream_caller(self, request: web.Request) -> Caller:
        return auth.authenticate_stream(request.headers, self.actor, self.token)
