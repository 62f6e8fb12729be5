"""The routes: JSON for programs, a WebSocket for terminals, and the page. See docs/protocol.md."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from aiohttp import web

from holdfast_gateway import auth, log
from holdfast_gateway.assets import Assets, security_headers
from holdfast_gateway.auth import Caller
from holdfast_gateway.folders import Folder
from holdfast_gateway.relay import MAX_CLIENT_MESSAGE, bid_farewell, relay
from holdfast_gateway.sessions import REQUEST_SECONDS, Sessions
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


@dataclass(frozen=True, slots=True)
class Settings:
    actor: Actor
    token: str


class Http:
    def __init__(
        self, settings: Settings, sessions: Sessions, assets: Assets, poke: Callable[[], None]
    ) -> None:
        self._settings = settings
        self._sessions = sessions
        self._assets = assets
        self._poke = poke
        self._streams: set[web.WebSocketResponse] = set()

    def application(self) -> web.Application:
        app = web.Application(client_max_size=BODY_LIMIT, middlewares=[self._edge])
        one = f"{API}/sessions/{{name}}"
        app.add_routes(
            [
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
            host = auth.check_host(request.headers.get("Host"))
            auth.check_query(request.query.items(), self._settings.token)
            auth.check_origin(request.headers.get("Origin"), host)
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

    def _caller(self, request: web.Request) -> Caller:
        return auth.authenticate(request.headers, self._settings.actor, self._settings.token)

    def _named(self, request: web.Request) -> tuple[Caller, Folder]:
        """Authenticated first: a stranger learns nothing of which names exist."""
        caller = self._caller(request)
        return caller, self._sessions.find(request.match_info["name"])

    async def _ask(
        self, request: web.Request, body: dict[str, Any], seconds: float = REQUEST_SECONDS
    ) -> dict[str, Any]:
        caller, folder = self._named(request)
        return await self._sessions.request(folder, body, caller, seconds=seconds)

    # Without a session

    async def _health(self, _: web.Request) -> web.Response:
        return _json({"status": "ok"})

    async def _list(self, request: web.Request) -> web.Response:
        return _json({"sessions": await self._sessions.list(self._caller(request))})

    async def _rescan(self, request: web.Request) -> web.Response:
        self._caller(request)
        self._poke()
        return _json({})

    async def _asset(self, request: web.Request) -> web.Response:
        if request.path == "/api" or request.path.startswith("/api/"):
            self._caller(request)
            raise NotFound("there is no such route", "docs/protocol.md lists them")
        return self._assets.answer(request)

    # Reading

    async def _info(self, request: web.Request) -> web.Response:
        caller, folder = self._named(request)
        return _json(await self._sessions.describe(folder, caller))

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
            return _json(self._sessions.ended(request.match_info["name"]))

    async def _graph(self, request: web.Request) -> web.Response:
        return _json(await self._ask(request, {"kind": "graph"}))

    async def _journal(self, request: web.Request) -> web.Response:
        after, limit = _count(request, "after", 0), _count(request, "limit", 1000)
        return _json(await self._ask(request, {"kind": "journal", "after": after, "limit": limit}))

    # Acting

    async def _input(self, request: web.Request) -> web.Response:
        self._caller(request)
        body = await _body(request, {"text": str, "base64": str, "key": str})
        if ("text" in body) == ("base64" in body):
            raise BadRequest("input is either 'text' or 'base64'", "send exactly one of them")
        return _json(await self._ask(request, {"kind": "send", **body}))

    async def _exec(self, request: web.Request) -> web.Response:
        self._caller(request)
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
        self._caller(request)
        body = await _body(request, {"grace": (int, float)})
        seconds = REQUEST_SECONDS + float(body.get("grace", 0.0))
        return _json(await self._ask(request, {"kind": "end", **body}, seconds=seconds))

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        settings = self._settings
        caller = auth.authenticate_stream(request.headers, settings.actor, settings.token)
        folder = self._sessions.find(request.match_info["name"])
        socket = web.WebSocketResponse(
            protocols=(auth.SUBPROTOCOL,),
            heartbeat=_HEARTBEAT_SECONDS,
            max_msg_size=MAX_CLIENT_MESSAGE,
            compress=False,
        )
        if not socket.can_prepare(request):
            raise BadRequest("this route is a WebSocket", "ask for an upgrade")
        # Before the upgrade, so that a session that has ended or is away is a plain error.
        async with self._sessions.connect(folder) as sidecar:
            await socket.prepare(request)
            self._streams.add(socket)
            log.info("client_attached", session=folder.name, **caller.to_json())
            try:
                await relay(socket, sidecar, caller)
            finally:
                self._streams.discard(socket)
                self._poke()  # if it was the sidecar that went, do not wait for the next scan
                log.info("client_left", session=folder.name, code=socket.close_code)
        return socket

    async def _close_streams(self, _: web.Application) -> None:
        every = [bid_farewell(socket, 1001, b"gateway stops") for socket in set(self._streams)]
        await asyncio.gather(*every)


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
