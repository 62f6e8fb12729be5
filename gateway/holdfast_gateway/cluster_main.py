"""`holdfast-gateway`: the gateway in a cluster. Stateless: any replica serves any session, and one
that goes loses nothing, for its clients go on at another.

    sidecars ─ 7070 ─┐
    people   ─ 8443 ─┼─ this ─ API server: TokenReview, SubjectAccessReview, Sessions, Leases
    kubectl  ─ 8444 ─┤         8080: probes and metrics
    ssh      ─ 2222 ─┘
"""

from __future__ import annotations

import asyncio
import os
import signal
import ssl
import sys
from asyncio import sslproto
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Middleware

from holdfast_gateway import front, log, metrics
from holdfast_gateway.assets import Assets
from holdfast_gateway.certificates import Certificate
from holdfast_gateway.cluster import ClusterSessions, Verifier
from holdfast_gateway.cluster_http import (
    ONE,
    ONE_AGGREGATED,
    Discovery,
    FrontDoor,
    TokenReviewDoor,
    as_status,
)
from holdfast_gateway.cluster_settings import Settings
from holdfast_gateway.front import Front
from holdfast_gateway.http import Handler, Http
from holdfast_gateway.reviews import Reviews
from holdfast_gateway.uplinks import Uplinks
from holdfast_gateway.watched import Watched
from holdfast_kube.client import Kube, Object
from holdfast_kube.credentials import find
from holdfast_kube.listening import Doorway, listening
from holdfast_wire.errors import HoldfastError

# Open streams are told to come back; nobody needs longer to hear that.
_STOP_SECONDS: Final = 2.0
# Between "do not send me anybody new" and the end of what is here.
_DRAIN_SECONDS: Final = 3.0
_LOOK_SECONDS: Final = 30.0
# What asyncio reads at once from a TLS connection, and keeps a buffer of for each: its own 256 KiB
# would be the most of what a viewer costs.
TLS_READ: Final = 64 << 10
_RETRY_SECONDS: Final = 2.0
# Between two requests on one connection, of which the second may have begun.
_IDLE_SECONDS: Final = 60.0


class Gateway:
    def __init__(self, settings: Settings, api: Kube) -> None:
        self._settings, self._api = settings, api
        self._certificate = Certificate(settings.keys)
        reviews = Reviews(api, settings.oidc)
        self._uplinks = Uplinks(Verifier(api, reviews))
        self._watched = Watched(api, settings.watch_namespaces, self._deleted)
        self._sessions = ClusterSessions(
            api, reviews, self._uplinks, self._watched, settings.namespace
        )
        self._reviews = reviews
        self._front: Front | None = None
        self._stopping = False

    def _deleted(self, session: Object) -> None:
        self._uplinks.forget(str(session["metadata"]["uid"]))

    def _missing(self) -> str | None:
        if self._stopping:
            return "stopping"
        if not self._watched.ready.is_set():
            return "the sessions were not listed yet"
        if self._settings.aggregated and self._front is None:
            return "the API server has not said yet how it is known"
        return None

    async def run(self, stop: asyncio.Event) -> None:
        settings = self._settings
        tls = self._certificate.context
        async with AsyncExitStack() as stack, asyncio.TaskGroup() as tasks:
            serve = stack.enter_async_context
            health = metrics.application(self._missing, self._uplinks.counts)
            await serve(_site(health, settings.health_port))
            background = [
                tasks.create_task(self._watched.run()),
                tasks.create_task(self._certificate.run()),
            ]
            await serve(self._uplinks.listening(tls(), settings.uplink_port))
            public = tls(settings.proxy_authority, optional=True)
            doorway = Doorway()
            public_site = _site(self._public(doorway).application(), settings.port, public, doorway)
            await serve(public_site)
            if settings.ssh:
                await serve(self._ssh())
            if settings.aggregated:
                background.append(tasks.create_task(self._behind_api_server()))
            log.info("listening", port=settings.port, uplinks=settings.uplink_port)
            await stop.wait()
            self._stopping = True
            log.info("stopping", note="sessions go on; clients find another gateway")
            await asyncio.sleep(_DRAIN_SECONDS)
            for task in background:
                task.cancel()

    @asynccontextmanager
    async def _ssh(self) -> AsyncIterator[None]:
        # Not imported where it is not served: it is large.
        from holdfast_gateway.ssh import Server
        from holdfast_gateway.ssh_keys import Keys, host_key

        folder, port = self._settings.ssh_folder, self._settings.ssh_port
        own = host_key(folder / "host" / "ssh_host_key", make=False)
        server = Server(self._sessions, Keys([folder / "secret", folder / "configmap"]))
        async with server.listening("", port, own):
            log.info("listening_ssh", port=port)
            yield

    def _public(self, doorway: Doorway) -> Http:
        told = self._settings
        door = TokenReviewDoor(self._reviews, told.hosts, told.proxy, doorway)
        return Http(door, self._sessions, Assets(), _nothing, one=ONE, mcp=True, login=told.login)

    def _fronted(self, doorway: Doorway) -> Http:
        door = FrontDoor(self._known, doorway)
        more = Discovery(door, self._settings.hosts, self._settings.service).routes()
        return Http(
            door, self._sessions, Assets(), _nothing, one=ONE_AGGREGATED, more=more,
            outer=(as_status,), by_right=True,
        )  # fmt: skip

    def _known(self) -> Front:
        if self._front is None:
            raise AssertionError("nobody is let in before it is known")
        return self._front

    async def _behind_api_server(self) -> None:
        """Listens with the authority that the API server publishes; with the next one, when it
        has another."""
        while True:
            found = await self._read_front()
            self._front = found
            tls = self._certificate.context(found.authority)
            doorway, port = Doorway(), self._settings.front_port
            try:
                async with _site(self._fronted(doorway).application(), port, tls, doorway):
                    while found == self._front:
                        await asyncio.sleep(_LOOK_SECONDS)
                        self._front = await self._read_front()
                    log.info("front_changed")
            finally:
                self._certificate.forget(tls)

    async def _read_front(self) -> Front:
        while True:
            try:
                return await front.read(self._api)
            except front.Misconfigured:
                raise
            except HoldfastError as error:
                log.warning("front_not_read", why=str(error))
                await asyncio.sleep(_RETRY_SECONDS)


def _nothing() -> None:
    """There are no folders to look at again."""


@asynccontextmanager
async def _site(
    app: web.Application,
    port: int,
    tls: ssl.SSLContext | None = None,
    doorway: Doorway | None = None,
) -> AsyncIterator[None]:
    """`doorway`: told by the application who was identified; None: whoever has sent a request."""
    # No access log: it would write whole URLs. http.py logs paths.
    made = doorway or Doorway()
    if doorway is None:
        app.middlewares.append(asked(made))
    runner = web.AppRunner(
        app, access_log=None, shutdown_timeout=_STOP_SECONDS, keepalive_timeout=_IDLE_SECONDS
    )
    await runner.setup()
    try:
        server = runner.server
        if server is None:
            raise AssertionError("it was just made")
        async with listening(server, tls, port, made):
            yield
    finally:
        await runner.cleanup()


def asked(doorway: Doorway) -> Middleware:
    """Nobody has to say who it is; who sends a whole request is no stranger."""

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        doorway.identified(request.transport)
        return await handler(request)

    return middleware


def _counted(verb: str, code: str) -> None:
    metrics.API_REQUESTS.labels(verb, code).inc()


async def _serve(settings: Settings) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with Kube(find(), _counted, "holdfast-gateway") as api:
        await Gateway(settings, api).run(stop)


def main() -> int:
    failed = 0
    try:
        settings = Settings.from_env(os.environ)
        sslproto.SSLProtocol.max_size = TLS_READ
        log.to_stderr(settings.log_level)
        asyncio.run(_serve(settings))
    except* HoldfastError as group:
        for error in group.exceptions:
            print(f"holdfast gateway: {error}", file=sys.stderr)
        failed = 1
    return failed


if __name__ == "__main__":
    sys.exit(main())
