"""The agent of one node: follows its orders, takes what arrives, and says what it can do.

Level-triggered: what is to be done is read from the Checkpoints of this node, each time. An order
that was begun by an agent before this one is not gone on with; its session is settled first, and
then the order has failed.
"""

from __future__ import annotations

import asyncio
import shutil
import ssl
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from holdfast_kube.client import CHECKPOINTS, NODES, Gone, Kube
from holdfast_node import cpu, freezer, log, preflight, target
from holdfast_node.arrival import Arrivals
from holdfast_node.departure import Departure, settle
from holdfast_node.departure import Gone as GoneOn
from holdfast_node.engine import Engine
from holdfast_node.order import Left, Order, Phase, status
from holdfast_node.pair import Keys
from holdfast_node.settings import Settings
from holdfast_node.transfer import connect, serve
from holdfast_wire.errors import BadRequest, HoldfastError, NotFound, Retry, Unavailable

PREFIX: Final = "holdfast.dev/"
AT_ONCE: Final = 2  # sessions that leave at the same time: more would only share the disk and CPU
WATCH_SECONDS: Final = 240
SILENCE_SECONDS: Final = 100.0
PAUSE_SECONDS: Final = 2.0
REPORT_TRIES: Final = 10


class Agent:
    def __init__(self, settings: Settings, kube: Kube, can: preflight.Preflight) -> None:
        self._settings, self._kube, self._can = settings, kube, can
        self._engine, self._features = (
            Engine(settings.bundle, settings.cgroups, can.notes),
            cpu.features(),
        )
        self._keys = Keys(settings.seal_key())
        self._room = asyncio.Semaphore(AT_ONCE)
        self._under_way: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Until cancelled; then what is under way is taken back first."""
        settings = self._settings
        await self._settle_former()
        arrivals = Arrivals(settings.node, self._engine, self._features, settings.work, self._find)
        tls = settings.tls(ssl.Purpose.CLIENT_AUTH)
        async with serve("", settings.port, tls, self._keys, arrivals):
            await self._publish()
            log.info("ready", node=settings.node, problems=list(self._can.problems))
            try:
                await self._follow()
            finally:
                for task in self._under_way.values():
                    task.cancel()
                await asyncio.gather(*self._under_way.values(), return_exceptions=True)

    async def _settle_former(self) -> None:
        """What an agent before this one left frozen, or was about to send."""
        for cage in freezer.frozen_ones(self._settings.cgroups):
            uid = cage.pod_uid
            if uid is None:
                continue
            ours = await settle(uid, cage)
            log.warning("settled what was frozen", pod=uid, runs_on=ours)
        for left in self._settings.work.glob("*"):
            await asyncio.to_thread(shutil.rmtree, left, True)

    async def _publish(self) -> None:
        """Where sessions may be moved to, and how agents find each other."""
        settings = self._settings
        ready = "problem" if self._can.problems else "ready"
        marks = {
            "labels": {f"{PREFIX}agent": ready},
            "annotations": {
                target.ADDRESS: f"{settings.address}:{settings.port}",
                f"{PREFIX}agent-problems": "; ".join(self._can.problems) or None,
                target.CPU: cpu.told(self._features),
            },
        }
        await self._kube.patch(NODES, "", settings.node, {"metadata": marks})

    # -- orders -----------------------------------------------------------------------------------

    async def _follow(self) -> None:
        labels, version = f"{PREFIX}node={self._settings.node}", ""
        while True:
            try:
                if not version:
                    items, version = await self._kube.list_all(CHECKPOINTS, None, labels)
                    for item in items:
                        self._consider(item)
                async for event in self._kube.watch(
                    CHECKPOINTS, None, labels, version,
                    seconds=WATCH_SECONDS, silence=SILENCE_SECONDS, metadata_only=False,
                ):  # fmt: skip
                    item = event["object"]
                    version = item["metadata"].get("resourceVersion", version)
                    if event["type"] in ("ADDED", "MODIFIED"):
                        self._consider(item)
            except HoldfastError as error:
                version = ""
                if not isinstance(error, Gone):
                    log.warning("the watch of orders broke", why=str(error))
                await asyncio.sleep(PAUSE_SECONDS)

    def _consider(self, item: Mapping[str, Any]) -> None:
        try:
            order = Order.of(item)
        except BadRequest as error:
            log.warning("an order was not understood", why=str(error))
            return
        if order.over or order.uid in self._under_way:
            return
        task = asyncio.create_task(self._obey(order), name=order.name)
        self._under_way[order.uid] = task
        task.add_done_callback(lambda _task: self._under_way.pop(order.uid, None))

    async def _obey(self, order: Order) -> None:
        try:
            if order.phase is not Phase.PENDING:
                raise Unavailable("the node's agent was started anew in the middle of it")
            async with self._room:
                left = await self._depart(order)
        except GoneOn as error:
            log.info("left", order=order.name, session=order.session, note=str(error))
            await self._report(order, phase=Phase.COMPLETE, message=str(error))
        except HoldfastError as error:
            log.warning("not moved", order=order.name, session=order.session, why=str(error))
            await self._report(order, phase=Phase.FAILED, message=str(error))
        except asyncio.CancelledError:
            await self._report(order, phase=Phase.FAILED, message="the node's agent was stopped")
            raise
        except Exception as error:  # the edge: one session's fault must not stop the others
            log.fault("a move failed", error, order=order.name, session=order.session)
            await self._report(order, phase=Phase.FAILED, message=f"the agent failed: {error!r}")
        else:
            log.info(
                "left",
                order=order.name,
                session=order.session,
                seconds=round(left.freeze_seconds, 3),
                bytes=left.size,
            )
            await self._report(order, phase=Phase.COMPLETE, left=left)

    async def _depart(self, order: Order) -> Left:
        work = self._settings.work / f"leaving-{order.source_pod}"
        await asyncio.to_thread(shutil.rmtree, work, True)
        work.mkdir(parents=True, mode=0o700)
        departure = Departure(
            order, self._engine, self._features, work, partial(self._report, order)
        )
        tls = self._settings.tls(ssl.Purpose.SERVER_AUTH)
        try:
            async with connect(
                await self._address(order.target_node, self._features), tls, self._keys, order.name,
                {"namespace": order.namespace},
            ) as sender:  # fmt: skip
                return await departure.run(sender)
        finally:
            await asyncio.to_thread(shutil.rmtree, work, True)

    async def _address(self, node: str, features: tuple[str, ...] | None = None) -> tuple[str, int]:
        return await target.address(self._kube, node, features)

    async def _find(self, namespace: str, name: str) -> Order:
        item = await self._kube.get(CHECKPOINTS, namespace, name) if namespace else None
        if item is None:
            raise NotFound(f"nobody ordered {namespace}/{name}")
        return Order.of(item)

    async def _report(
        self, order: Order, *, phase: Phase, message: str = "", left: Left | None = None
    ) -> None:
        body = status(self._settings.node, phase, message, left, datetime.now(UTC))
        for attempt in range(REPORT_TRIES):
            try:
                await self._kube.patch(
                    CHECKPOINTS, order.namespace, order.name, {"status": body}, sub="status"
                )
            except Retry as error:
                log.warning("a report was not taken", order=order.name, why=str(error))
                if phase not in (Phase.COMPLETE, Phase.FAILED):
                    return
                await asyncio.sleep(min(0.2 * 2**attempt, 10.0))
            except HoldfastError as error:
                log.warning("a report was refused", order=order.name, why=str(error))
                return
            else:
                return
