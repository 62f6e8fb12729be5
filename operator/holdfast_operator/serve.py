"""/metrics, /healthz and /readyz, for the cluster's own use; nothing of a session is here."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Middleware
from prometheus_client import generate_latest

from holdfast_kube.listening import Doorway
from holdfast_operator import metrics
from holdfast_operator.contact import Contact

# Whoever has sent a whole request is no stranger: kubelet, Prometheus and the API server send
# theirs at once. Where a request stays unfinished, the connection ends.
STRANGE_SECONDS: Final = 10.0
IDLE_SECONDS: Final = 60.0
STRANGERS: Final = (128, 64)  # together, and of one address

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def asked(doorway: Doorway) -> Middleware:
    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            async with asyncio.timeout(STRANGE_SECONDS):
                await request.read()
        except TimeoutError:
            return web.Response(status=408)
        doorway.identified(request.transport)
        return await handler(request)

    return middleware


def application(
    contact: Contact,
    clock: Callable[[], float],
    ready: Callable[[], bool],
    depth: Callable[[], int],
) -> web.Application:
    async def healthz(_request: web.Request) -> web.Response:
        stale = contact.stale(clock())
        if stale:
            return web.Response(status=503, text=f"no contact for too long: {', '.join(stale)}\n")
        return web.Response(text="ok\n")

    async def readyz(_request: web.Request) -> web.Response:
        if not ready():
            return web.Response(status=503, text="still starting\n")
        return web.Response(text="ok\n")

    async def page(_request: web.Request) -> web.Response:
        now = clock()
        for source, age in contact.ages(now).items():
            metrics.CONTACT_AGE.labels(source).set(age)
        metrics.QUEUE_DEPTH.set(depth())
        metrics.phases.publish()
        body = generate_latest(metrics.REGISTRY)
        return web.Response(body=body, headers={"Content-Type": "text/plain; version=0.0.4"})

    made = web.Application()
    made.add_routes(
        [
            web.get("/healthz", healthz),
            web.get("/readyz", readyz),
            web.get("/metrics", page),
        ]
    )
    return made
