"""/metrics, /healthz and /readyz, for the cluster's own use; nothing of a session is here."""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web
from prometheus_client import generate_latest

from holdfast_operator import metrics
from holdfast_operator.contact import Contact


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
