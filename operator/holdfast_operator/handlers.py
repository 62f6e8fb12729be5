"""kopf's part: it watches Sessions, their pods and checkpoints, and the nodes, and tells us that
something happened. What, we read anew. There are no change handlers, so kopf writes nothing to any
object."""

from __future__ import annotations

import dataclasses
import itertools
import ssl
from collections.abc import Iterator
from typing import Any, Final

import kopf

from holdfast_kube.credentials import lenient
from holdfast_operator import names
from holdfast_operator.app import App
from holdfast_operator.names import Key

# Whole: kopf passes it on as it is, and the API server refuses 240.0.
SERVER_SECONDS: Final = 240  # the server ends each watch; kopf lists and watches again
CLIENT_SECONDS: Final = 300.0  # for a server that does not
SILENCE_SECONDS: Final = 100.0


class Backoffs:
    """Seconds between tries, for ever. kopf's own end after a minute and the operator with them;
    after a long outage it would then come back as late as kubelet restarts it."""

    def __iter__(self) -> Iterator[float]:
        yield from (0.5, 1.0, 2.0, 3.0)
        yield from itertools.repeat(5.0)


class Connection(kopf.ConnectionInfo):
    """kopf's own, trusting the same certificates as the rest of the operator."""

    def as_ssl_context(self) -> ssl.SSLContext:
        return lenient(super().as_ssl_context())


def login(server: str, **given: Any) -> Connection | None:
    """`server`: by its address, as kubelet gives it. kopf would look its name up, and watch nothing
    while the cluster's DNS is away."""
    found = kopf.login_with_service_account(**given) or kopf.login_with_kubeconfig(**given)
    if found is None:
        return None
    fields = dataclasses.fields(found)
    copied = {field.name: getattr(found, field.name) for field in fields}
    return Connection(**{**copied, "server": server})


def register(app: App) -> kopf.OperatorRegistry:
    registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=registry)
    def log_in(**given: Any) -> Connection | None:
        return login(app.server, **given)

    @kopf.on.startup(registry=registry, errors=kopf.ErrorsMode.PERMANENT)
    async def startup(settings: kopf.OperatorSettings, **_: Any) -> None:
        configure(settings)
        await app.start()

    @kopf.on.cleanup(registry=registry)
    async def cleanup(**_: Any) -> None:
        await app.stop()

    @kopf.on.event(names.GROUP, names.VERSION, "sessions", registry=registry)
    async def session(event: Any, **_: Any) -> None:
        meta = event["object"]["metadata"]
        app.resync.watched(meta, gone=event["type"] == "DELETED")
        app.queue.add(Key(meta["namespace"], meta["name"]))

    @kopf.on.event("v1", "pods", labels={names.SESSION_LABEL: kopf.PRESENT}, registry=registry)
    async def pod(event: Any, **_: Any) -> None:
        meta = event["object"]["metadata"]
        app.queue.add(Key(meta["namespace"], meta["labels"][names.SESSION_LABEL]))

    @kopf.on.event(names.GROUP, names.VERSION, "checkpoints", registry=registry)
    async def checkpoint(event: Any, **_: Any) -> None:
        meta = event["object"]["metadata"]
        labels = meta.get("labels") or {}
        # A fork waits for the order to store another session.
        for name in filter(None, (labels.get(names.SESSION_LABEL), labels.get(names.FORK))):
            key = Key(meta["namespace"], name)
            app.look.stirred(key)
            app.queue.add(key)

    @kopf.on.event("v1", "nodes", registry=registry)
    async def node(event: Any, **_: Any) -> None:
        if app.nodes.watched(event["object"], gone=event["type"] == "DELETED"):
            app.resync.now()

    return registry


def configure(settings: kopf.OperatorSettings) -> None:
    settings.posting.enabled = False  # our events say what happened, not what kopf did
    settings.scanning.disabled = True  # kinds and namespaces are as at the start
    settings.watching.server_timeout = SERVER_SECONDS
    settings.watching.client_timeout = CLIENT_SECONDS
    settings.watching.connect_timeout = 10.0
    settings.watching.inactivity_timeout = SILENCE_SECONDS
    # Else every pod of the cluster would come through here.
    settings.watching.label_selectors["pods"] = names.SESSION_LABEL
    settings.networking.request_timeout = 30.0
    settings.networking.error_backoffs = Backoffs()
    settings.process.ultimate_exiting_timeout = 20.0
