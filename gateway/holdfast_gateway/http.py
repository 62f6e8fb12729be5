"""The HTTP server: every request passes the edge here, every error becomes an answer here.

reading.py acting.py streaming.py    the routes; docs/api.md
mcp_server.py                        /mcp; docs/mcp.md
assets.py                            the page
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Middleware

from holdfast_gateway import (
    acting,
    api_page,
    bodies,
    fields,
    job_routes,
    log,
    mcp_server,
    openapi,
    reading,
    streaming,
)
from holdfast_gateway.assets import Assets, security_headers
from holdfast_gateway.backend import Backend
from holdfast_gateway.door import Door
from holdfast_gateway.login import Login
from holdfast_gateway.mcp_server import Mcp
from holdfast_gateway.routes import API, ONE, Call, Route, Serving, Streams, answer
from holdfast_wire.errors import BadRequest, HoldfastError, Internal, NotFound, TooLarge

BODY_LIMIT: Final = 1 << 20
ROUTES: Final[tuple[Route, ...]] = (
    *reading.ROUTES,
    *acting.ROUTES,
    *job_routes.ROUTES,
    *streaming.ROUTES,
)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_WHERE: Final = f"{openapi.PATH} lists what there is"


class Http:
    def __init__(
        self,
        door: Door,
        sessions: Backend,
        assets: Assets,
        poke: Callable[[], None],
        one: str = ONE,
        more: Sequence[web.RouteDef] = (),
        outer: Sequence[Middleware] = (),
        *,
        by_right: bool = False,
        mcp: bool = False,
        login: Login = Login(),  # noqa: B008 - frozen
    ) -> None:
        """`one`: the path of one session; with `{namespace}` in it, where there are some. `more`:
        routes beside these. `outer`: what every answer passes last. `by_right`: below a session
        each path begins with the right that it needs. `mcp`: with `/mcp`. `login`: how the page
        gets past the door."""
        self._door, self._assets = door, assets
        self._one, self._by_right = one, by_right
        self._serving = Serving(sessions, poke, Streams())
        self._more, self._outer, self._login = more, outer, login
        self._mcp = Mcp(door, sessions) if mcp else None
        self._document = openapi.document(ROUTES, one, by_right)

    def application(self) -> web.Application:
        app = web.Application(client_max_size=BODY_LIMIT, middlewares=[*self._outer, self._edge])
        for route in ROUTES:
            app.router.add_route(
                route.method, route.at(self._one, self._by_right), self._served(route)
            )
        app.add_routes(
            [
                *self._more,
                web.get("/healthz", self._health),
                web.get(f"{API}/login", self._ways),
                web.get(openapi.PATH, self._described),
                web.get(api_page.PATH, self._explained),
                web.get("/{path:(?!(?:apis?|mcp)(?:/|$)).*}", self._asset),
            ]
        )
        app.on_shutdown.append(self._close_streams)
        if self._mcp is not None:
            app.router.add_post(mcp_server.PATH, self._mcp.handle)
            app.on_shutdown.append(self._mcp.close)
        return app

    @web.middleware
    async def _edge(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        began = time.monotonic()
        try:
            self._door.check(request)
            response = await handler(request)
        except web.HTTPException as error:
            response = _error(_of_http(error))
            if isinstance(error, web.HTTPMethodNotAllowed):
                response.set_status(405)
                response.headers["Allow"] = error.headers["Allow"]
        except HoldfastError as error:
            response = _error(error)
        except Exception as error:
            log.fault("request_failed", error, method=request.method, path=request.path)
            response = _error(Internal("the gateway failed", "its log has the reason"))
        if not response.prepared:
            host = request.headers.get("Host", "")
            response.headers.update(security_headers(host, self._login.origins))
        milliseconds = round((time.monotonic() - began) * 1000, 1)
        log.debug(
            "request",
            method=request.method,
            path=request.path,
            status=response.status,
            ms=milliseconds,
        )
        return response

    def _served(self, route: Route) -> Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            # Authenticated first: a stranger learns nothing, not even whether he asked rightly.
            upgrade = route.upgrades and streaming.upgrade_asked(request)
            caller = await (self._door.stream_caller if upgrade else self._door.caller)(request)
            given = fields.of_query(request.query.items(), route.query)
            if route.body is not None:
                given |= fields.of_body(await bodies.read(request), route.body)
            return await route.handler(Call(request, caller, _name(request), given, self._serving))

        return handle

    async def _health(self, _: web.Request) -> web.Response:
        return answer({"status": "ok"})

    async def _ways(self, _: web.Request) -> web.Response:
        return answer(self._login.to_json())

    async def _described(self, _: web.Request) -> web.Response:
        return answer(self._document)

    async def _explained(self, _: web.Request) -> web.Response:
        return web.Response(text=api_page.page(self._document), content_type="text/html")

    async def _asset(self, request: web.Request) -> web.Response:
        return self._assets.answer(request)

    async def _close_streams(self, _: web.Application) -> None:
        await streaming.close_all(self._serving.streams)


def _name(request: web.Request) -> str:
    named = request.match_info
    if "namespace" in named:
        return f"{named['namespace']}/{named['name']}"
    return named.get("name", "")


def _error(error: HoldfastError) -> web.Response:
    response = answer({"error": error.to_json()}, error.http_status)
    if error.http_status == 401:
        response.headers["WWW-Authenticate"] = 'Bearer realm="holdfast"'
    return response


def _of_http(error: web.HTTPException) -> HoldfastError:
    """aiohttp's own refusals, in our words."""
    if error.status == 413:
        return TooLarge(f"a request's body is at most {BODY_LIMIT} bytes", "send it in parts")
    if error.status == 404:
        return NotFound("there is nothing here", _WHERE)
    if error.status == 405:
        return BadRequest("this route takes another method", _WHERE)
    return BadRequest(error.reason) if error.status < 500 else Internal(error.reason)
