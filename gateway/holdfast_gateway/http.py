"""The routes: JSON for programs, a WebSocket for terminals, and the page. See docs/protocol.md."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from aiohttp import web
from aiohttp.typedefs import Middleware

from holdfast_gateway import auth, log
from holdfast_gateway.assets import Assets, security_headers
from holdfast_gateway.auth import Caller
from holdfast_gateway.backend import REQUEST_SECONDS, Backend
from holdfast_gateway.relay import MAX_CLIENT_MESSAGE, bid_farewell, relay
from holdfast_wire.errors import BadRequest, Ended, HoldfastError, Internal, NotFound, TooLarge
from holdfast_wire.ids import Actor

BODY_LIMIT: Final = 1 << 20
API: Final = "/api/v1"
# An hour is longer than anybody waits on one HTTP request; it also keeps the sum finite.
MAX_EXEC_SECONDS: Final = 3600.0
# The sidecar keeps the command's own time limit; we only outwait it.
_EXEC_MARGIN_SECONDS: Final = 5.0
# Finds peers that vanished behind a tunnel without a word.
_HEARTBEAT_SECONDS: Final = 30.0

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Door(Protocol):
    """Who is let in."""

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


class Http:
    def __init__(
        self,
        door: Door,
        sessions: Backend,
        assets: Assets,
        poke: Callable[[], None],
        one: str = f"{API}/sessions/{{name}}",
        more: Sequence[web.RouteDef] = (),
        outer: Sequence[Middleware] = (),
    ) -> None:
        """`one`: the path of one session; with `{namespace}` in it, where there are some. `more`:
        routes beside these. `outer`: what every answer passes last."""
        self._door = door
        self._sessions = sessions
        self._one = one
        self._more, self._outer = more, outer
        self._assets = assets
        self._poke = poke
        self._streams: set[web.WebSocketResponse] = set()

    def application(self) -> web.Application:
        app = web.Application(client_max_size=BODY_LIMIT, middlewares=[*self._outer, self._edge])
        one = self._one
        app.add_routes(
            [
                *self._more,
                web.get("/healthz", self._health),
                web.get(f"{API}/sessions", self._list),
                web.post(f"{API}/rescan", self._rescan),
                web.get(one, self._info),
                web.get(f"{one}/screen", self._screen),
                web.get(f"{one}/state", self._state),
                web.get(f"{one}/graph", self._graph),
                web.get(f"{one}/journal", self._journal),
                web.post(f"{one}/input", self._input),
                web.post(f"{one}/exec", self._exec),
                web.post(f"{one}/end", self._end),
                web.get(f"{one}/stream", self._stream),
                web.get("/{path:.*}", self._asset),
            ]
        )
        app.on_shutdown.append(self._close_streams)
        return app

    # The edge: every request passes here, every error becomes an answer here.

    @web.middleware
    async def _edge(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        began = time.monotonic()
        try:
            self._door.check(request)
            response = await handler(request)
        except web.HTTPException as error:
            response = _error(_of_http(error))
        except HoldfastError as error:
            response = _error(error)
        except Exception as error:
            log.fault("request_failed", error, method=request.method, path=request.path)
            response = _error(Internal("the gateway failed", "its log has the reason"))
        if not response.prepared:
            response.headers.update(security_headers(request.headers.get("Host", "")))
        milliseconds = round((time.monotonic() - began) * 1000, 1)
        log.debug(
            "request",
            method=request.method,
            path=request.path,
            status=response.status,
            ms=milliseconds,
        )
        return response

    async def _named(self, request: web.Request) -> tuple[Caller, str]:
        """Authenticated first: a stranger learns nothing of which names exist."""
        caller = await self._door.caller(request)
        return caller, _name(request)

    async def _ask(
        self, request: web.Request, body: dict[str, Any], seconds: float = REQUEST_SECONDS
    ) -> dict[str, Any]:
        caller, name = await self._named(request)
        return await self._sessions.request(name, body, caller, seconds=seconds)

    # Without a session

    async def _health(self, _: web.Request) -> web.Response:
        return _json({"status": "ok"})

    async def _list(self, request: web.Request) -> web.Response:
        return _json({"sessions": await self._sessions.list(await self._door.caller(request))})

    async def _rescan(self, request: web.Request) -> web.Response:
        await self._door.caller(request)
        self._poke()
        return _json({})

    async def _asset(self, request: web.Request) -> web.Response:
        if request.path == "/api" or request.path.startswith("/api/"):
            await self._door.caller(request)
            raise NotFound("there is no such route", "docs/protocol.md lists them")
        return self._assets.answer(request)

    # Reading

    async def _info(self, request: web.Request) -> web.Response:
        caller, name = await self._named(request)
        return _json(await self._sessions.describe(name, caller))

    async def _screen(self, request: web.Request) -> web.Response:
        wanted = request.query.get("format", "text")
        if wanted not in ("text", "ansi", "json"):
            raise BadRequest(f"{wanted!r} is not a format", "use text, ansi or json")
        scrollback = _flag(request, "scrollback")
        form = "ansi" if wanted == "ansi" else "text"
        answer = await self._ask(
            request, {"kind": "screen", "format": form, "scrollback": scrollback}
        )
        if wanted == "json":
            return _json(answer)
        return web.Response(text=str(answer.get("text", "")), content_type="text/plain")

    async def _state(self, request: web.Request) -> web.Response:
        try:
            return _json(await self._ask(request, {"kind": "state"}))
        except Ended:
            caller, name = await self._named(request)
            return _json((await self._sessions.describe(name, caller))["state"])

    async def _graph(self, request: web.Request) -> web.Response:
        return _json(await self._ask(request, {"kind": "graph"}))

    async def _journal(self, request: web.Request) -> web.Response:
        after, limit = _count(request, "after", 0), _count(request, "limit", 1000)
        return _json(await self._ask(request, {"kind": "journal", "after": after, "limit": limit}))

    # Acting

    async def _input(self, request: web.Request) -> web.Response:
        await self._door.caller(request)
        body = await _body(request, {"text": str, "base64": str, "key": str})
        if ("text" in body) == ("base64" in body):
            raise BadRequest("input is either 'text' or 'base64'", "send exactly one of them")
        return _json(await self._ask(request, {"kind": "send", **body}))

    async def _exec(self, request: web.Request) -> web.Response:
        await self._door.caller(request)
        body = await _body(request, {"command": str, "timeout": (int, float), "key": str})
        if "command" not in body:
            raise BadRequest("there is no 'command' to run")
        timeout = float(body.setdefault("timeout", 60.0))
        if not 0 < timeout <= MAX_EXEC_SECONDS:
            raise BadRequest(
                f"a timeout of {timeout:g} seconds cannot be kept",
                f"use more than 0 and at most {MAX_EXEC_SECONDS:g}",
            )
        answer = await self._ask(
            request, {"kind": "exec", **body}, seconds=timeout + _EXEC_MARGIN_SECONDS
        )
        return _json(answer)

    async def _end(self, request: web.Request) -> web.Response:
        await self._door.caller(request)
        body = await _body(request, {"grace": (int, float)})
        seconds = REQUEST_SECONDS + float(body.get("grace", 0.0))
        return _json(await self._ask(request, {"kind": "end", **body}, seconds=seconds))

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        caller, name = await self._door.stream_caller(request), _name(request)
        socket = web.WebSocketResponse(
            protocols=(auth.SUBPROTOCOL,),
            heartbeat=_HEARTBEAT_SECONDS,
            max_msg_size=MAX_CLIENT_MESSAGE,
            compress=False,
        )
        if not socket.can_prepare(request):
            raise BadRequest("this route is a WebSocket", "ask for an upgrade")
        # Before the upgrade, so that a session that has ended or is away is a plain error.
        async with self._sessions.connect(name, caller) as link:
            await socket.prepare(request)
            self._streams.add(socket)
            log.info("client_attached", session=name, **caller.to_json())
            try:
                await relay(socket, link, caller)
            finally:
                self._streams.discard(socket)
                log.info("client_left", session=name, code=socket.close_code)
        return socket

    async def _close_streams(self, _: web.Application) -> None:
        every = [bid_farewell(socket, 1001, b"gateway stops") for socket in set(self._streams)]
        await asyncio.gather(*every)


def _name(request: web.Request) -> str:
    named = request.match_info
    return f"{named['namespace']}/{named['name']}" if "namespace" in named else named["name"]


def _json(body: dict[str, Any], status: int = 200) -> web.Response:
    return web.json_response(
        body, status=status, dumps=lambda value: json.dumps(value, ensure_ascii=False)
    )


def _error(error: HoldfastError) -> web.Response:
    response = _json({"error": error.to_json()}, error.http_status)
    if error.http_status == 401:
        response.headers["WWW-Authenticate"] = 'Bearer realm="holdfast"'
    return response


def _of_http(error: web.HTTPException) -> HoldfastError:
    """aiohttp's own refusals, in our words."""
    if error.status == 413:
        return TooLarge(f"a request's body is at most {BODY_LIMIT} bytes", "send it in parts")
    if error.status == 404:
        return NotFound("there is nothing here", "docs/protocol.md lists the routes")
    if error.status == 405:
        return BadRequest("this route takes another method", "docs/protocol.md lists them")
    return BadRequest(error.reason) if error.status < 500 else Internal(error.reason)


async def _body(request: web.Request, fields: dict[str, type | tuple[type, ...]]) -> dict[str, Any]:
    """The request's JSON object with exactly these fields, each of its type, none required.
    An empty body is an empty object."""
    raw = await request.read()
    try:
        body = json.loads(raw) if raw else {}
    except (ValueError, RecursionError):
        raise BadRequest("the body is not JSON") from None
    if not isinstance(body, dict):
        raise BadRequest("the body is not a JSON object")
    for key, value in body.items():
        wanted = fields.get(key)
        if wanted is None:
            raise BadRequest(f"{key[:40]!r} is not known here", f"fields are {', '.join(fields)}")
        if not isinstance(value, wanted) or isinstance(value, bool):
            raise BadRequest(f"{key!r} has the wrong type")
    return body


def _flag(request: web.Request, name: str) -> bool:
    value = request.query.get(name, "false")
    if value not in ("true", "false"):
        raise BadRequest(f"{name!r} is true or false")
    return value == "true"


def _count(request: web.Request, name: str, default: int) -> int:
    value = request.query.get(name)
    if value is None:
        return default
    if not (value.isascii() and value.isdigit() and len(value) < 20):
        raise BadRequest(f"{name!r} is a whole number")
    return int(value)
