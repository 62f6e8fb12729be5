"""All the operator's parts, wired together, and their one owner."""

from __future__ import annotations

import asyncio
import secrets
import ssl
import time
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from typing import Final

from aiohttp import web

from holdfast_kube.client import SESSIONS, Kube
from holdfast_kube.credentials import Credentials
from holdfast_kube.listening import Doorway, listening
from holdfast_operator import log, metrics, serve
from holdfast_operator.contact import Contact
from holdfast_operator.keyring import Keyring
from holdfast_operator.leader import Leader
from holdfast_operator.names import Key
from holdfast_operator.node_certificates import NodeCertificates
from holdfast_operator.nodes import Nodes
from holdfast_operator.observe import Look
from holdfast_operator.order_making import OrderMaking
from holdfast_operator.perform import Perform
from holdfast_operator.queue import Queue, is_expected
from holdfast_operator.reconcile import Reconcile
from holdfast_operator.resync import Resync
from holdfast_operator.rotation import Rotation
from holdfast_operator.settings import Settings
from holdfast_operator.sightings import Sightings
from holdfast_operator.watch import LeaseWatch
from holdfast_operator.webhook import PORT, Keys, Webhook
from holdfast_wire.errors import HoldfastError

DISCOVER_SECONDS: Final = 5.0  # between looks for the CRDs, which may be installed after us


class App:
    def __init__(self, settings: Settings, credentials: Credentials) -> None:
        clock = time.monotonic
        identity = f"{settings.pod_name}/{secrets.token_hex(4)}"
        self.settings = settings
        self.server = credentials.server
        self.stopped = asyncio.Event()  # also by a fault of ours: kopf ends then
        self.failed = False
        self._sightings = Sightings()
        self._kube = Kube(credentials, self._answered)
        self._contact = Contact(clock())
        self._ready = False
        self.nodes = Nodes()
        self.look = look = Look(
            self._kube, self._sightings, clock, _wall, self.nodes, settings.limits
        )
        keyring = Keyring()
        orders = OrderMaking(keyring, self.nodes.certificate, _wall)
        perform = Perform(self._kube, settings, clock, orders)
        self._leader = Leader(self._kube, settings.namespace, identity, clock, self._chosen)
        reconcile = Reconcile(
            self._kube, look, perform, lambda: self._leader.leads, clock, identity
        )
        self.queue: Queue[Key] = Queue(reconcile, clock, _failed)
        watched = settings.watch_namespaces
        self.resync = Resync(self._kube, watched, self.queue.add, self._contact, clock)
        self._watch = LeaseWatch(
            self._kube, watched, self._sightings, self.queue.add, self._contact, clock
        )
        self._http = serve.application(
            self._contact, clock, lambda: self._ready, lambda: len(self.queue)
        )
        leads = lambda: self._leader.leads  # noqa: E731
        self._rotation = Rotation(self._kube, keyring, watched, leads)
        account = settings.agent_account
        self._certificates = (
            NodeCertificates(self._kube, keyring, account, leads) if account else None
        )
        folder = settings.webhook_keys
        self._keys = Keys(folder, settings.webhook_client_ca) if folder else None
        self._runners: list[web.AppRunner] = []
        self._listeners = AsyncExitStack()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Until the Session kind is served; then everything runs in the background."""
        if not self.settings.policies:
            log.warning(
                "no admission policies: agents tell true orders by their signature alone",
                advice="use Kubernetes 1.30 or later, and leave admission.policies on",
            )
        await self._listen(self._http, self.settings.port)
        await self._kube.__aenter__()
        await self._served()
        if self._keys is not None:
            webhook = Webhook(self._kube, self._keys, self.settings.webhook_client_names)
            await self._listen(webhook.application(), PORT, self._keys.tls)
        self._task = asyncio.create_task(self._run(), name="holdfast")
        self._task.add_done_callback(self._over)
        self._ready = True

    async def stop(self) -> None:
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._listeners.aclose()
        await asyncio.gather(*(runner.cleanup() for runner in self._runners))
        await self._kube.__aexit__()

    async def _listen(
        self, application: web.Application, port: int, tls: ssl.SSLContext | None = None
    ) -> None:
        """On every interface: kubelet, Prometheus and the API server come from outside the pod."""
        doorway = Doorway(*serve.STRANGERS, serve.STRANGE_SECONDS)
        application.middlewares.append(serve.asked(doorway))
        runner = web.AppRunner(
            application, access_log=None, shutdown_timeout=5.0, keepalive_timeout=serve.IDLE_SECONDS
        )
        await runner.setup()
        server = runner.server
        if server is None:
            raise AssertionError("it was just made")
        await self._listeners.enter_async_context(listening(server, tls, port, doorway))
        self._runners.append(runner)

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._leader.run())
            group.create_task(self._watch.run())
            group.create_task(self.resync.run())
            group.create_task(self.queue.run())
            if self._certificates is not None:
                group.create_task(self._certificates.run())
                group.create_task(self._rotation.run())
            if self._keys is not None:
                group.create_task(self._keys.follow())

    async def _served(self) -> None:
        told = False
        while True:
            try:
                if SESSIONS.plural in await self._kube.resources(SESSIONS.base):
                    return
                problem = "the cluster has no Sessions: install the chart's CRDs"
            except HoldfastError as error:
                problem = error.message
            if not told:
                log.warning("waiting for the API", error=problem)
                told = True
            await asyncio.sleep(DISCOVER_SECONDS)

    def _over(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception():
            self.failed = True
            log.fault("the operator failed", task.exception() or RuntimeError())
        self.stopped.set()

    def _answered(self, verb: str, code: str) -> None:
        metrics.API_REQUESTS.labels(verb, code).inc()
        if code.startswith(("2", "4")) and code != "429":
            self._sightings.heard(time.monotonic())

    def _chosen(self, leads: bool) -> None:
        metrics.LEADER.set(1 if leads else 0)
        if leads:
            self.resync.now()
        else:
            metrics.phases.clear()


def _wall() -> datetime:
    return datetime.now(UTC)


def _failed(key: Key, error: Exception) -> None:
    code = error.code if isinstance(error, HoldfastError) else "bug"
    metrics.RECONCILE_ERRORS.labels(code).inc()
    if is_expected(error):
        log.info(
            "will try again", session=key.name, namespace=key.namespace, code=code, error=str(error)
        )
    else:
        log.fault("a look at a session failed", error, session=key.name, namespace=key.namespace)
