"""What a cluster's gateway counts. Prometheus; described in docs/gateway.md, which a test holds to
be complete."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from aiohttp import web
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    disable_created_metrics,
    generate_latest,
)

disable_created_metrics()  # type: ignore[no-untyped-call]
REGISTRY: Final = CollectorRegistry()

SESSIONS: Final = Gauge(
    "holdfast_gateway_sessions", "Sessions whose sidecar has dialled in.", registry=REGISTRY
)
STREAMS: Final = Gauge(
    "holdfast_gateway_streams", "Streams of clients to their sidecars.", registry=REGISTRY
)
UPLINKS_REFUSED: Final = Counter(
    "holdfast_gateway_uplinks_refused", "Sidecars that were not let in, by error code.", ["code"],
    registry=REGISTRY,
)  # fmt: skip
CUT: Final = Counter(
    "holdfast_gateway_clients_cut", "Clients cut because what they did is not allowed any more.",
    registry=REGISTRY,
)  # fmt: skip
API_REQUESTS: Final = Counter(
    "holdfast_gateway_api_requests", "Requests to the API server; code none: no answer.",
    ["verb", "code"], registry=REGISTRY,
)  # fmt: skip


def application(
    ready: Callable[[], str | None], counts: Callable[[], tuple[int, int]]
) -> web.Application:
    """For the cluster's own use; nothing of a session is here. `ready`: what is missing, or None.
    `counts`: sessions and streams."""

    async def healthz(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(_: web.Request) -> web.Response:
        missing = ready()
        if missing is not None:
            return web.Response(status=503, text=f"{missing}\n")
        return web.Response(text="ok\n")

    async def page(_: web.Request) -> web.Response:
        sessions, streams = counts()
        SESSIONS.set(sessions)
        STREAMS.set(streams)
        body = generate_latest(REGISTRY)
        return web.Response(body=body, headers={"Content-Type": "text/plain; version=0.0.4"})

    made = web.Application()
    made.add_routes(
        [web.get("/healthz", healthz), web.get("/readyz", readyz), web.get("/metrics", page)]
    )
    return made
