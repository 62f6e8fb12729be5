"""Our own watch of the sessions' Leases, metadata only: every session renews every few seconds,
and what kopf does for each event would be most of the operator's work.

A watch that says nothing is not trusted: bookmarks come every minute, so silence means that it
broke, and everything is listed again.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any, Final

from holdfast_kube.client import LEASES, Gone, Kube
from holdfast_operator import log
from holdfast_operator.contact import Contact
from holdfast_operator.names import SESSION_LABEL, Key
from holdfast_operator.sightings import Sightings, Urgency
from holdfast_wire.errors import HoldfastError

WATCH_SECONDS: Final = 240
SILENCE_SECONDS: Final = 100.0  # a bookmark is due each minute
SWEEP_SECONDS: Final = 0.5  # how late an ended wait may be noticed
LATER_SECONDS: Final = 30.0  # as `status.PASTIME_SECONDS`
PAUSES: Final = (0.5, 1.0, 2.0, 5.0, 10.0)  # after failures in a row


class LeaseWatch:
    def __init__(
        self,
        kube: Kube,
        namespaces: tuple[str, ...],
        sightings: Sightings,
        dirty: Callable[[Key, float], None],
        contact: Contact,
        clock: Callable[[], float],
    ) -> None:
        self._kube, self._sightings, self._dirty = kube, sightings, dirty
        self._contact, self._clock = contact, clock
        self._namespaces: tuple[str | None, ...] = namespaces or (None,)

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._sweep())
            for namespace in self._namespaces:
                group.create_task(self._follow(namespace))

    async def _sweep(self) -> None:
        while True:
            for key in self._sightings.ended(self._clock()):
                self._dirty(key, 0.0)
            await asyncio.sleep(SWEEP_SECONDS)

    async def _follow(self, namespace: str | None) -> None:
        version, failures = "", 0
        while True:
            try:
                if not version:
                    version = await self._list(namespace)
                version = await self._watch(namespace, version)
                failures = 0
            except HoldfastError as error:
                version = ""
                if not isinstance(error, Gone):
                    log.warning("the Lease watch failed", namespace=namespace, error=error.message)
                pause = PAUSES[min(failures, len(PAUSES) - 1)]
                failures += 1
                # Spread: all watches of all operators break together when the API server goes.
                await asyncio.sleep(pause * random.uniform(0.5, 1.5))  # noqa: S311

    async def _list(self, namespace: str | None) -> str:
        items, version = await self._kube.list_all(
            LEASES, namespace, labels=SESSION_LABEL, metadata_only=True
        )
        now = self._clock()
        self._contact.made(f"leases/{namespace or ''}", now)
        found = [self._sightings.saw(item, now) for item in items]
        for key, urgency in found:
            self._mark(key, urgency)
        for key in self._sightings.listed(namespace, (key for key, _ in found), now):
            self._mark(key, Urgency.NOW)
        return version

    async def _watch(self, namespace: str | None, version: str) -> str:
        events = self._kube.watch(
            LEASES, namespace, SESSION_LABEL, version,
            seconds=WATCH_SECONDS, silence=SILENCE_SECONDS,
        )  # fmt: skip
        async for event in events:
            self._contact.made(f"leases/{namespace or ''}", self._clock())
            version = self._apply(event) or version
        # Ended by the server as asked: go on where it left off.
        self._contact.made(f"leases/{namespace or ''}", self._clock())
        return version

    def _apply(self, event: Any) -> str | None:
        item = event["object"]
        meta = item.get("metadata") or {}
        if event["type"] in ("ADDED", "MODIFIED"):
            self._mark(*self._sightings.saw(item, self._clock()))
        elif event["type"] == "DELETED":
            key = Key(meta["namespace"], meta["name"])
            self._mark(key, self._sightings.gone(key, self._clock()))
        found = meta.get("resourceVersion")
        return found if isinstance(found, str) else None

    def _mark(self, key: Key, urgency: Urgency) -> None:
        if urgency is not Urgency.NOTHING:
            self._dirty(key, LATER_SECONDS if urgency is Urgency.LATER else 0.0)
