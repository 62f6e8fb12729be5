"""The agent of one node: follows its orders, takes what arrives, and says what it can do.

Level-triggered: what is to be done is read from the Checkpoints of this node, each time. An order
that was begun by an agent before this one is not gone on with; its session is settled first, and
then the order has failed, unless it turns out that it was as good as done.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import ssl
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from holdfast_kube.client import CHECKPOINTS, EVENTS, NODES, Gone, Kube
from holdfast_node import (
    bringing,
    cpu,
    keeping,
    log,
    pages,
    preflight,
    sweep,
    target,
)
from holdfast_node.abandoned import Abandoned
from holdfast_node.arrival import Arrivals
from holdfast_node.certificate import Identity, Untrusted
from holdfast_node.departure import Departure
from holdfast_node.engine import Engine
from holdfast_node.fair_queue import FairQueue
from holdfast_node.fence_guard import FenceGuard
from holdfast_node.keeping import Keeping
from holdfast_node.lazy import PagesLost
from holdfast_node.link import Place
from holdfast_node.order import (
    Bring,
    Keep,
    Left,
    Memory,
    Move,
    Order,
    Phase,
    Then,
    event,
    read,
    status,
)
from holdfast_node.pods import Foreign, register
from holdfast_node.progress import Progress, told
from holdfast_node.receiving import Handler, Receiver, serve
from holdfast_node.settings import Bucket, Settings
from holdfast_node.spool import folders, spooled
from holdfast_node.store import Peer
from holdfast_node.stores import PEER, Others, Stores
from holdfast_node.taking import Gone as GoneOn
from holdfast_node.taking import show
from holdfast_node.threads import give_back
from holdfast_node.transfer import connect
from holdfast_wire.errors import BadRequest, HoldfastError, NotFound, Retry, Unavailable

if TYPE_CHECKING:
    from holdfast_node.s3 import S3

PREFIX: Final = "holdfast.dev/"
AT_ONCE: Final = 2  # of each kind of order: more would only share the disk and CPU
WATCH_SECONDS: Final = 240
SILENCE_SECONDS: Final = 100.0
PAUSE_SECONDS: Final = 2.0
SWEEP_SECONDS: Final = 180.0
BUCKET_SECONDS: Final = 3600.0  # between two looks at the bucket, which all agents look at
REPORT_TRIES: Final = 10
SHOW_SECONDS: Final = 1.0  # between two words to who is attached
CONDITION: Final = "HoldfastReady"
_MOMENT: Final = "%Y-%m-%dT%H:%M:%SZ"


class Agent:
    def __init__(self, settings: Settings, kube: Kube, can: preflight.Preflight) -> None:
        self._settings, self._kube, self._can = settings, kube, can
        self._engine = Engine(settings.bundle, settings.cgroups, can.notes)
        self._features = cpu.features()
        self._identity = Identity(settings.node, settings.keys, kube)
        self._spool = settings.store / "spool"
        self._places = self._spool, settings.work
        kept = settings.store / "kept", settings.store_bytes, settings.store_reserve
        self._disk = Peer(*kept, settings.store_percent)
        self._tls = partial(self._identity.tls, ssl.Purpose.SERVER_AUTH)
        others = Others(self._address, self._tls)
        self._bucket = None if settings.bucket is None else _bucket(settings.bucket)
        self._ours = sweep.Ours()
        self._stores = Stores(
            settings.node, self._disk, self._spool, others, self._find, self._bucket
        )
        register.connect(kube)
        self._needed = pages.Needed()
        self._arrivals = Arrivals(
            settings.node,
            self._engine,
            self._features,
            settings.work,
            self._find,
            self._report,
            self._needed,
            self._identity.keys,
        )
        self._room = {kind: FairQueue(AT_ONCE) for kind in (Move, Keep, Bring)}
        self._abandoned = Abandoned(settings.node, kube)
        self._under_way: dict[str, asyncio.Task[None]] = {}
        self._about: dict[str, frozenset[str]] = {}  # the pods of each order that is under way
        self._guard = FenceGuard(settings.node, register, self._busy, settings.cgroups)
        self._since = datetime.now(UTC).strftime(_MOMENT)

    async def run(self) -> None:
        """Until cancelled; then what is under way is taken back first, but for sessions that run
        already and whose memory is still to follow: that is waited for."""
        settings = self._settings
        await self._clear()
        with suppress(HoldfastError):  # nothing must be sealed to a key that is gone
            await self._kube.patch(NODES, "", settings.node, target.WITHOUT_CERTIFICATE)
        await self._identity.obtain()
        tls = partial(self._identity.tls, ssl.Purpose.CLIENT_AUTH)
        async with serve("", settings.port, tls, self._asked):
            await self._publish()
            log.info("ready", node=settings.node, problems=list(self._can.problems))
            guarding = asyncio.create_task(self._guard.run())
            sweeping = asyncio.create_task(self._sweep_ever())
            renewing = asyncio.create_task(self._identity.keep(self._publish))
            try:
                await self._follow()
            finally:
                await self._needed.no_more()
                tasks = [
                    guarding, sweeping, renewing,
                    *self._under_way.values(), *self._abandoned.tasks.values(),
                ]  # fmt: skip
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _clear(self) -> None:
        """What an agent before this one left frozen, or was about to send or to store."""
        self._abandoned.begin(self._settings.cgroups)
        for folder in (self._settings.work, self._spool):
            for left in folder.glob("*"):
                await asyncio.to_thread(shutil.rmtree, left, True)

    async def _publish(self) -> None:
        """Where sessions may be moved to, and how agents find each other."""
        settings = self._settings
        ready = "problem" if self._can.problems else "ready"
        marks = {
            "labels": {f"{PREFIX}agent": ready},
            "annotations": {
                target.ADDRESS: f"{settings.address}:{settings.port}",
                target.CERTIFICATE: self._identity.published,
                f"{PREFIX}agent-problems": "; ".join(self._can.problems) or None,
                f"{PREFIX}agent-lacks": " ".join(self._can.lacks) or None,
                target.MEMORY: target.FOLLOWS if self._can.follows else "Copy",
                target.CPU: cpu.told(self._features),
            },
        }
        await self._kube.patch(NODES, "", settings.node, {"metadata": marks})
        await self._show()

    async def _show(self) -> None:
        """The same for people, among the node's conditions. Nothing goes by it."""
        now = datetime.now(UTC).strftime(_MOMENT)
        problems = "; ".join(self._can.problems)
        condition = {
            "type": CONDITION,
            "status": "False" if problems else "True",
            "reason": "Problems" if problems else "CheckedByAgent",
            "message": problems or f"sessions can be moved from and to this node: {self._can}",
            "lastHeartbeatTime": now,
            "lastTransitionTime": self._since,
        }
        await self._kube.set_condition(NODES, self._settings.node, condition)

    async def _asked(self, receiver: Receiver) -> None:
        """By another agent."""
        purpose = receiver.about.get("for", "move")
        handlers: dict[str, Handler] = {
            "move": self._arrivals,
            pages.FOR: self._arrivals.pages,
            "keep": self._stores.keep,
            "fetch": self._stores.give,
        }
        if purpose not in handlers:
            raise BadRequest(f"this agent does not know what to do for a {purpose[:20]}")
        try:
            await handlers[purpose](receiver)
        finally:
            await asyncio.to_thread(give_back)

    # -- the store --------------------------------------------------------------------------------

    async def _sweep_ever(self) -> None:
        bucket_due = time.monotonic()
        while True:
            try:
                await self._sweep()
                if self._bucket is not None and time.monotonic() >= bucket_due:
                    bucket_due = time.monotonic() + BUCKET_SECONDS * random.uniform(0.5, 1.5)  # noqa: S311
                    await self._sweep_bucket(self._bucket)
            except HoldfastError as error:
                log.warning("stored checkpoints were not looked through", why=str(error))
            except OSError as error:
                log.fault("stored checkpoints cannot be looked through", error)
            await asyncio.sleep(SWEEP_SECONDS)

    async def _sweep(self) -> None:
        items, _ = await self._kube.list_all(CHECKPOINTS, None)
        owned, now = sweep.owners(items), time.time()
        await sweep.sweep(self._disk, owned, lambda _kept: PEER + self._settings.node, now)
        await sweep.sweep_unfinished(self._disk, self._stores.writing, now)
        note = await asyncio.to_thread(sweep.room, self._disk)
        marks = {"annotations": {f"{PREFIX}store": note}}
        await self._kube.patch(NODES, "", self._settings.node, {"metadata": marks})
        await self._show()

    async def _sweep_bucket(self, bucket: S3) -> None:
        items, _ = await self._kube.list_all(CHECKPOINTS, None)
        owned = sweep.owners(items)
        self._ours.look(owned, self._identity.marks())
        await sweep.sweep(
            bucket, owned, lambda kept: bucket.location(kept.session, kept.checkpoint), time.time(),
            self._ours,
        )  # fmt: skip
        for key in await asyncio.to_thread(bucket.delete_abandoned, datetime.now(UTC)):
            log.warning("removed what was not whole", name=key)

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
            order = read(item)
        except BadRequest as error:
            log.warning("an order was not understood", why=str(error))
            return
        if order.over or order.uid in self._under_way:
            return
        task = asyncio.create_task(self._obey(order, item), name=order.name)
        self._under_way[order.uid] = task
        pods = (getattr(order, name, "") for name in ("source_pod", "target_pod"))
        self._about[order.uid] = frozenset(pods)
        task.add_done_callback(lambda _task: self._done(order.uid))

    def _done(self, uid: str) -> None:
        self._under_way.pop(uid, None)
        self._about.pop(uid, None)

    def _busy(self, pod: str) -> bool:
        settling = self._abandoned.tasks.get(pod)
        return (settling is not None and not settling.done()) or any(
            pod in pods for pods in self._about.values()
        )

    async def _obey(self, order: Order, item: Mapping[str, Any]) -> None:
        try:
            with ExitStack() as until:
                await self._obeyed(order, item, until)
        finally:
            await asyncio.to_thread(give_back)

    async def _obeyed(self, order: Order, item: Mapping[str, Any], until: ExitStack) -> None:
        said = partial(self._report, order)
        try:
            self._identity.check(item)
            left = await self._begin(order, until)
        except Untrusted as error:
            log.warning("refused", order=order.name, session=order.session, why=str(error))
            await self._refused(order, error)
            await said(phase=Phase.FAILED, message=str(error), reason=error.reason)
        except GoneOn as error:
            log.info("done", order=order.name, session=order.session, note=str(error))
            await said(phase=Phase.COMPLETE, message=str(error))
        except PagesLost as error:
            log.warning("lost on its way", order=order.name, session=order.session, why=str(error))
            await said(phase=Phase.FAILED, message=str(error), reason="PagesLost")
        except HoldfastError as error:
            log.warning("not done", order=order.name, session=order.session, why=str(error))
            await said(phase=Phase.FAILED, message=str(error))
        except asyncio.CancelledError:
            await said(phase=Phase.FAILED, message="the node's agent was stopped")
            raise
        except Exception as error:  # the edge: one session's fault must not stop the others
            log.fault("an order failed", error, order=order.name, session=order.session)
            await said(phase=Phase.FAILED, message=f"the agent failed: {error!r}")
        else:
            more = {} if left is None else {"seconds": left.freeze_seconds, "bytes": left.size}
            log.info("done", order=order.name, session=order.session, **more)
            await said(phase=Phase.COMPLETE, left=left)

    async def _begin(self, order: Order, until: ExitStack) -> Left | None:
        """Or what is left to do of one that was begun before this agent was. `until`: its end."""
        begun = order.phase is not Phase.PENDING
        try:
            order = await self._bound(order)
        except NotFound:
            if begun and isinstance(order, Keep) and order.then is Then.STOP and order.location:
                return None  # it was stored, and its pod is gone since
            raise
        if isinstance(order, Bring):
            if begun:
                await bringing.resume(order, self._engine)
                return None
            async with self._room[Bring].place(order.namespace):
                await self._bring(order)
                return None
        if (settling := self._abandoned.tasks.get(order.source_pod)) is not None:
            await asyncio.wait([settling])
        if begun and isinstance(order, Keep):
            await keeping.resume(order)
            return None
        if begun:
            raise Unavailable("the node's agent was started anew in the middle of it")
        async with self._room[type(order)].place(order.namespace):
            if isinstance(order, Keep):
                return await self._keep(order)
            return await self._depart(order, until)

    async def _bound(self, order: Order) -> Order:
        """With what its Pod says. A foreign one is said in an event too: somebody tried."""
        try:
            return await register.bind(order, self._settings.node)
        except (Foreign, NotFound) as error:
            await self._refused(order, error)
            raise

    async def _refused(self, order: Order, error: HoldfastError) -> None:
        with suppress(HoldfastError):
            note = event(order, self._settings.node, str(error), datetime.now(UTC))
            await self._kube.create(EVENTS, order.namespace, note)

    async def _depart(self, order: Move, until: ExitStack) -> Left:
        async with spooled(self._settings.work, f"leaving-{order.source_pod}") as work:
            said = partial(self._report, order)
            departure = Departure(
                order,
                self._engine,
                self._features,
                work,
                said,
                lambda: until.enter_context(self._needed.now()),
            )
            to = await target.look(self._kube, order.target_node, self._features)
            how = self._memory(order, to)
            keys, there = self._identity.keys(order), Place(order.target_node, to.address)
            about = {"namespace": order.namespace, "for": "move", "memory": how}
            async with (
                connect(there, self._tls(), keys, order.name, about) as sender,
                told(sender.progress, partial(self._sent, order)),
                told(sender.progress, partial(show, order.source_pod), SHOW_SECONDS),
            ):
                if how is Memory.IMAGES:
                    return await departure.run(sender)
                tagger = keys.tagger(sender.salt, pages.PART)
                async with pages.asked(
                    there, self._tls(), order.name, order.namespace, sender.salt,
                    None if order.post_copy else tagger, sender.progress,
                ) as asked:  # fmt: skip
                    return await departure.run(sender, asked)

    def _memory(self, order: Move, to: target.Target) -> Memory:
        if order.post_copy:
            return Memory.AFTER
        return Memory.BEFORE if self._can.follows and to.follows else Memory.IMAGES

    async def _sent(self, order: Order, progress: Progress) -> None:
        body = {"status": {"sentBytes": progress.all_sent}}
        await self._kube.patch(CHECKPOINTS, order.namespace, order.name, body, sub="status")

    async def _keep(self, order: Keep) -> Left:
        keeping = Keeping(
            order,
            self._engine,
            self._features,
            self._identity.keys(order),
            self._identity.marks()[0],
            self._stores,
            partial(self._report, order),
        )
        async with folders(*self._places, f"taking-{order.uid}") as (disk, memory):
            return await keeping.run(disk, memory, self._settings.store_reserve)

    async def _bring(self, order: Bring) -> None:
        keys = self._identity.keys(order)
        await self._report(order, phase=Phase.TRANSFERRING)
        async with folders(*self._places, f"bringing-{order.uid}") as (disk, memory):
            get = partial(self._stores.get, order, keys, memory, disk)
            await bringing.bring(order, self._engine, self._features, get)

    async def _address(self, node: str) -> tuple[str, int]:
        return (await target.look(self._kube, node, None)).address

    async def _find(self, namespace: str, name: str) -> Order:
        item = await self._kube.get(CHECKPOINTS, namespace, name) if namespace and name else None
        if item is None:
            raise NotFound(f"nobody ordered {namespace}/{name}")
        self._identity.check(item)
        return read(item)

    async def _report(
        self,
        order: Order,
        *,
        phase: Phase,
        message: str = "",
        left: Left | None = None,
        reason: str = "Failed",
        expected: int = 0,
    ) -> bool:
        """The API has it. A word on the way is said once, what matters until it is taken."""
        body = status(order, self._settings.node, phase, message, left, datetime.now(UTC), reason)
        if expected:
            body["expectedBytes"] = expected
        matters = phase in (Phase.COMPLETE, Phase.FAILED) or left is not None
        for attempt in range(REPORT_TRIES if matters else 1):
            try:
                await self._kube.patch(
                    CHECKPOINTS, order.namespace, order.name, {"status": body}, sub="status"
                )
            except Retry as error:
                log.warning("a report was not taken", order=order.name, why=str(error))
                if matters:
                    await asyncio.sleep(min(0.2 * 2**attempt, 10.0))
            except HoldfastError as error:
                log.warning("a report was refused", order=order.name, why=str(error))
                return False
            else:
                return True
        return False


def _bucket(where: Bucket) -> S3:
    """Its library is large, and most clusters have no bucket."""
    from holdfast_node.s3 import S3

    return S3(where)
