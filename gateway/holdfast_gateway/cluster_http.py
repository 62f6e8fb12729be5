"""The two doors of a gateway in a cluster, each on a port of its own.

    8443  people and programs, with a token of the cluster's (reviews.py), or by an auth proxy
          (login.py)
    8444  the API server alone, which says for whom it asks (front.py): what kubectl needs

Invariant: headers that name a user are believed on 8444, where nobody gets past the TLS handshake
whose certificate the requestheader CA has not signed; and on 8443 of a trusted proxy, if one is
set. The two know each other's peers by different authorities, and their ports are not shared.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from aiohttp import web

from holdfast_gateway import auth
from holdfast_gateway.auth import Caller, Modality
from holdfast_gateway.front import Front
from holdfast_gateway.http import Handler
from holdfast_gateway.login import Peer, TrustedProxy
from holdfast_gateway.reviews import Reviews
from holdfast_gateway.routes import API
from holdfast_kube.listening import Doorway
from holdfast_wire.errors import Forbidden, Unauthenticated
from holdfast_wire.rights import GROUP, Right

VERSION: Final = "v1alpha1"
AGGREGATED: Final = f"/apis/{GROUP}/{VERSION}"
_ONE: Final = "/namespaces/{namespace}/sessions/{name}"
ONE: Final = API + _ONE
ONE_AGGREGATED: Final = AGGREGATED + _ONE


class TokenReviewDoor:
    def __init__(
        self,
        reviews: Reviews,
        hosts: frozenset[str],
        proxy: TrustedProxy | None = None,
        doorway: Doorway | None = None,
    ) -> None:
        """`hosts`: by which browsers may know this gateway; empty: any. `doorway`: hears whose
        connection belongs to somebody."""
        self._reviews, self._hosts, self._proxy = reviews, hosts, proxy
        self._doorway = doorway or Doorway()

    def check(self, request: web.Request) -> None:
        host = (request.headers.get("Host") or "").lower()
        if self._hosts and host not in self._hosts and _without_port(host) not in self._hosts:
            raise Forbidden(
                "this gateway is not known by that name",
                "whoever runs it adds the name to gateway.hosts in the chart's values",
            )
        auth.check_query(request.query.items())
        auth.check_origin(request.headers.get("Origin"), host, scheme="https")

    async def caller(self, request: web.Request) -> Caller:
        modality = auth.modality_of(request.headers, Modality.HTTP)
        found = self._proxied(request, modality)
        if found is None:
            found = await self._known(request, auth.bearer(request.headers) or "", modality)
        self._doorway.identified(request.transport)
        return found

    async def _known(self, request: web.Request, token: str, modality: Modality) -> Caller:
        told = None if request.transport is None else request.transport.get_extra_info("peername")
        return await self._reviews.caller(token, modality, str((told or ("unknown",))[0]))

    async def stream_caller(self, request: web.Request) -> Caller:
        if auth.bearer(request.headers) is not None:
            return await self.caller(request)
        caller = self._proxied(request, Modality.BROWSER)
        if caller is None:
            offered = auth.offered(request.headers) or ""
            caller = await self._known(request, offered, Modality.BROWSER)
        auth.check_browser(request.headers)
        self._doorway.identified(request.transport)
        return caller

    def _proxied(self, request: web.Request, modality: Modality) -> Caller | None:
        if self._proxy is None or request.transport is None:
            return None
        told = request.transport.get_extra_info
        peer = Peer(str((told("peername") or ("",))[0]), told("peercert"))
        return self._proxy.caller(peer, request.headers, modality)


class FrontDoor:
    """`front`: as the API server publishes it at the moment."""

    def __init__(self, front: Callable[[], Front], doorway: Doorway | None = None) -> None:
        self._front, self._doorway = front, doorway or Doorway()

    def check(self, request: web.Request) -> None:
        auth.check_query(request.query.items())

    async def caller(self, request: web.Request) -> Caller:
        transport = request.transport
        if transport is None:
            raise Unauthenticated("the connection is gone")
        found = self._front().caller(transport.get_extra_info("peercert"), request.headers)
        self._doorway.identified(transport)
        return replace(found, modality=auth.modality_of(request.headers, found.modality))

    async def stream_caller(self, request: web.Request) -> Caller:
        return await self.caller(request)


def _without_port(host: str) -> str:
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdigit() else host


class Discovery:
    """What the API server and kubectl look for: which resources there are. And, for who may look
    for these, by which names and Service a browser finds the page."""

    def __init__(
        self, door: FrontDoor, hosts: frozenset[str] = frozenset(), service: str = ""
    ) -> None:
        self._door = door
        self._page = {"hosts": sorted(hosts), "service": service}

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/apis", self._groups),
            web.get(f"/apis/{GROUP}", self._group),
            web.get(AGGREGATED, self._resources),
        ]

    async def _groups(self, request: web.Request) -> web.Response:
        await self._door.caller(request)
        return web.json_response({"kind": "APIGroupList", "apiVersion": "v1", "groups": [_group()]})

    async def _group(self, request: web.Request) -> web.Response:
        await self._door.caller(request)
        return web.json_response({"kind": "APIGroup", "apiVersion": "v1", **_group()})

    async def _resources(self, request: web.Request) -> web.Response:
        await self._door.caller(request)
        return web.json_response({**resources(), "page": self._page})


def _group() -> dict[str, Any]:
    version = {"groupVersion": f"{GROUP}/{VERSION}", "version": VERSION}
    return {"name": GROUP, "versions": [version], "preferredVersion": version}


def resources() -> dict[str, Any]:
    listed = [
        {
            "name": right.subresource,
            "singularName": "",
            "namespaced": True,
            "kind": "Session",
            "verbs": [right.verb],
        }
        for right in sorted(Right)
    ]
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": f"{GROUP}/{VERSION}",
        "resources": listed,
    }


@web.middleware
async def as_status(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Errors as Kubernetes' own clients read them, with ours beside it; and never a redirect, which
    the API server would follow with the user's own rights (attack 8)."""
    response = await handler(request)
    if 300 <= response.status < 400:
        raise AssertionError("nothing here redirects")
    if response.status < 400 or not isinstance(response, web.Response) or not response.text:
        return response
    error = json.loads(response.text).get("error") or {}
    answer = web.json_response(status(response.status, error), status=response.status)
    for name in ("WWW-Authenticate", "Retry-After"):
        if name in response.headers:
            answer.headers[name] = response.headers[name]
    return answer


def status(code: int, error: dict[str, Any]) -> dict[str, Any]:
    message, advice = str(error.get("message", "")), str(error.get("advice") or "")
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": f"{message}; {advice}" if advice else message,
        "reason": _REASONS.get(code, "InternalError" if code >= 500 else "BadRequest"),
        "code": code,
        "error": error,
    }


_REASONS: Final = {
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    409: "Conflict",
    410: "Gone",
    413: "RequestEntityTooLarge",
    429: "TooManyRequests",
    503: "ServiceUnavailable",
    504: "Timeout",
}
