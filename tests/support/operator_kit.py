"""A cluster in memory (`operator_api.py`), with hosts on which sidecars of the simplest kind hold
Leases, and an operator to be killed."""

from __future__ import annotations

import asyncio
import atexit
import functools
import json
import shutil
import tempfile
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from holdfast_kube.client import CHECKPOINTS, LEASES, PODS, SESSIONS, Resource
from holdfast_operator import names
from holdfast_operator.keyring import Keyring
from holdfast_operator.leaving import lingers
from holdfast_operator.nodes import Nodes
from holdfast_operator.observe import Look
from holdfast_operator.order_making import OrderMaking
from holdfast_operator.orders import CheckpointSeen, Kind
from holdfast_operator.perform import Perform
from holdfast_operator.reconcile import Reconcile
from holdfast_operator.settings import Settings
from holdfast_operator.sightings import Sightings, Urgency
from holdfast_operator.times import stamp
from holdfast_operator.usage import NO_LIMITS, Limits
from holdfast_operator.watch import LATER_SECONDS
from holdfast_sidecar.kube import Answer
from holdfast_sidecar.leaving import Word, heeded, read
from holdfast_wire.errors import HoldfastError
from holdfast_wire.lease import Epoch, Holder, Record, Standing, Timing
from node_keys import Authority, keys_folder, shown
from operator_api import KEY, FakeApi, Json, Killed, Mishap

__all__ = ["KEY", "SETTINGS", "FakeApi", "Json", "Killed", "Mishap", "Trips", "World",
           "session_object"]  # fmt: skip

SETTINGS = Settings(image="example/holdfast:1")


@functools.cache
def order_making() -> OrderMaking:
    """With keys of its own, and a certificate for whichever node."""
    authority = Authority()
    folder = Path(tempfile.mkdtemp(prefix="holdfast-keys-"))
    atexit.register(shutil.rmtree, folder, True)
    keyring = Keyring(
        keys_folder(folder, [authority], {"g1": bytes(32), "legacy": bytes(32)}, "g1")
    )

    @functools.cache
    def certificate(node: str) -> str:
        return shown(authority.node(node)[0])

    return OrderMaking(keyring, certificate, _now)


def _now() -> datetime:
    return datetime.now(UTC)


def session_object(**spec: Any) -> Json:
    base = {
        "command": ["bash", "-l"],
        "template": {"spec": {"containers": [{"name": "session", "image": "python:3.13"}]}},
        "terminal": {"columns": 120, "rows": 40, "scrollbackLines": 10000},
        "lease": {"durationSeconds": 20},
        "recovery": {"onHostLoss": "RestoreLast"},
        "checkpoints": {"everySeconds": 0, "keep": 3, "store": "Peer"},
        "ended": False,
        "suspended": False,
        "ttlSecondsAfterEnded": 86400,
    }
    return {
        "apiVersion": names.API_VERSION,
        "kind": "Session",
        "metadata": {"name": KEY.name, "namespace": KEY.namespace},
        "spec": {**base, **spec},
    }


@dataclass
class Incarnation:
    """hold and sidecar of one pod, on a host that can be cut off or die."""

    world: World
    pod: Json
    holder: Holder
    cut_off: bool = False
    dead: bool = False
    acquired: bool = False
    over: bool = False  # ended, killed or released: it never runs again
    waits: bool = False  # for a session to arrive
    renewed_at: float = float("-inf")
    offered: bool = False
    told_at: float | None = None  # when its hold got SIGTERM
    word: Word = Word()  # noqa: RUF009 - frozen

    @property
    def runs(self) -> bool:
        return (
            self.acquired
            and not self.offered
            and not self.over
            and not self.dead
            and not self.holder.expired(self.world.now)
        )

    def beat(self) -> None:
        if self.dead or self.over or self.cut_off or self.world.api.down:
            return
        if self.pod["metadata"].get("deletionTimestamp") and self.heeds():
            self.end("terminated")
            return
        if self.waits:
            self.take_offer()
            return
        if self.world.now - self.renewed_at < self.holder.timing.renew_every:
            return
        lease = self.world.api.one(LEASES)
        standing = self.holder.standing(record_of(lease))
        if standing is Standing.VACANT and not self.acquired:
            self.write({names.STARTED: str(self.holder.epoch)}, holder=self.holder.identity)
            self.acquired = True
        elif standing is Standing.HELD:
            self.write({}, holder=self.holder.identity)
        elif standing in (Standing.SUPERSEDED, Standing.RELEASED):
            self.over = True
        else:  # missing or rolled back: frozen
            self.holder.deadline = None

    def heeds(self) -> bool:
        """A SIGTERM; hold puts it off if it was made so, by its sidecar's own rules."""
        if self.waits or not self.acquired or not lingers(self.pod["spec"]):
            return True
        now, found = self.world.now, self.world.api.one(SESSIONS)
        self.told_at = now if self.told_at is None else self.told_at
        (owner,) = self.pod["metadata"]["ownerReferences"]
        answer = Answer(404, {}) if found is None else Answer(200, found)
        self.word = read(answer, KEY.name, owner["uid"], self.holder.epoch) or self.word
        wall = self.world.wall().timestamp()
        return bool(heeded(self.word, self.offered, now - self.told_at, wall))

    def offer(self, order: Json | None = None) -> None:
        """What the agents do, up to the point where the target has all of it: it stands still, and
        says to whom it may go."""
        if not self.offered and not self.over:
            order = order or self.world.api.all(CHECKPOINTS)[-1]
            self.write({names.OFFER: order["spec"]["targetPodUID"]}, self.holder.identity)
            self.offered = True

    def take_offer(self) -> None:
        lease = self.world.api.one(LEASES)
        notes = (lease or {}).get("metadata", {}).get("annotations", {})
        uid = self.pod["metadata"]["uid"]
        if notes.get(names.OFFER) == uid and notes[names.EPOCH] == str(self.holder.epoch - 1):
            epoch = str(self.holder.epoch)
            notes.pop(names.OFFER)
            told = {names.EPOCH: epoch, names.STARTED: epoch, names.MOVED: str(int(epoch) - 1)}
            self.write(told, holder=self.holder.identity)
            self.waits, self.acquired = False, True

    def suspend(self, checkpoint: str) -> None:
        """Everything of it is stored."""
        epoch = str(self.holder.epoch)
        self.write({names.SUSPENDED: checkpoint, names.RELEASED: epoch}, holder="")
        self.over = True
        self.finished("Succeeded")

    def arrive(self) -> bool:
        """What was stored is all there: it takes the Lease, if that is vacant and its own."""
        standing = self.holder.standing(record_of(self.world.api.one(LEASES)))
        if standing is not Standing.VACANT or self.over or self.dead or self.cut_off:
            return False
        self.write({names.STARTED: str(self.holder.epoch)}, holder=self.holder.identity)
        self.waits, self.acquired = False, True
        return True

    def end(self, cause: str, **facts: Any) -> None:
        lease = self.world.api.one(LEASES)
        if self.holder.standing(record_of(lease)) is Standing.HELD:
            left = {"code": None, "signal": None, "cause": cause, "at": "", "lines": [], **facts}
            epoch = str(self.holder.epoch)
            self.write({names.EXIT: json.dumps(left), names.RELEASED: epoch}, holder="")
        self.over = True
        self.finished("Succeeded")

    def fail_to_start(self, message: str) -> None:
        epoch = str(self.holder.epoch)
        self.write({names.START_ERROR: message, names.RELEASED: epoch}, holder="")
        self.over = True
        self.finished("Failed")

    def finished(self, phase: str) -> None:
        self.pod.setdefault("status", {})["phase"] = phase
        self.world.api.touch(self.pod)

    def write(self, notes: Mapping[str, str], holder: str) -> None:
        lease = self.world.api.one(LEASES)
        assert lease is not None
        lease["metadata"].setdefault("annotations", {}).update(notes)
        lease["spec"]["holderIdentity"] = holder
        self.world.api.touch(lease)
        self.renewed_at = self.world.now
        self.holder.acknowledge(self.holder.send(self.world.now))


def record_of(lease: Json | None) -> Record | None:
    if lease is None:
        return None
    notes = lease["metadata"].get("annotations") or {}
    epoch = notes.get(names.EPOCH, "0")
    return Record(
        lease["metadata"]["resourceVersion"],
        Epoch(int(epoch)),
        lease["spec"].get("holderIdentity") or "",
        notes.get(names.RELEASED) == epoch,
    )


def _versions(items: list[Json]) -> list[str]:
    """The same for what is the same: quick, for it is asked every second of every story."""
    return [item["metadata"]["resourceVersion"] for item in items]


@dataclass
class World:
    api: FakeApi = field(default_factory=FakeApi)
    now: float = 1000.0
    start_pods: bool = True
    incarnations: dict[str, Incarnation] = field(default_factory=dict)
    overlap: list[str] = field(default_factory=list)
    due: float = 0.0  # when the operator looks next
    cordoned: bool = False  # node-1
    shown: object = None
    shown_orders: object = None
    agents: bool = True  # they do what they are ordered to
    spoiled: set[str] = field(default_factory=set)  # checkpoints that cannot be brought back
    unable: str = ""  # why nothing can be stored
    limits: Limits = NO_LIMITS  # of the checkpoints of a namespace
    renewed: list[Json] = field(default_factory=list)  # Leases of sessions that simply run

    def __post_init__(self) -> None:
        self.api.wall = self.wall
        self.restart()

    def restart(self) -> None:
        """A new operator process, which knows nothing."""
        self.due, self.shown = self.now, None
        self.sightings = Sightings()
        self.nodes = Nodes()
        self.cordon(self.cordoned)
        self.look = Look(
            self.api, self.sightings, lambda: self.now, self.wall, self.nodes, self.limits
        )
        perform = Perform(self.api, SETTINGS, lambda: self.now, order_making())
        self.reconcile = Reconcile(
            self.api, self.look, perform, lambda: True, lambda: self.now, "operator/1"
        )

    def cordon(self, cordoned: bool) -> None:
        self.cordoned = cordoned
        for name in ("node-1", "node-2"):
            can = {names.AGENT_MEMORY: "PostCopy"}
            meta = {"name": name, "labels": {names.AGENT: "ready"}, "annotations": can}
            shut = {"unschedulable": True} if cordoned and name == "node-1" else {}
            self.nodes.watched({"metadata": meta, "spec": shut}, gone=False)

    def delete_pod(self, name: str, grace: float = 30.0) -> None:
        """As `kubectl delete pod` does."""
        self.api.remove((PODS.plural, KEY.namespace, name))
        pod = self.api.one(PODS, name)
        assert pod is not None
        goes_at = self.wall() + timedelta(seconds=grace)
        pod["metadata"]["deletionTimestamp"] = stamp(goes_at)
        self.api.touch(pod)

    def wall(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self.now)

    @property
    def session(self) -> Json:
        found = self.api.one(SESSIONS)
        assert found is not None
        return found

    @property
    def status(self) -> Json:
        status: Json = self.session.get("status", {})
        return status

    def condition(self, kind: str) -> Json:
        found: Json = next(c for c in self.status["conditions"] if c["type"] == kind)
        return found

    @property
    def current(self) -> Incarnation:
        return [one for one in self.incarnations.values() if not one.waits][-1]

    async def run(self, seconds: float) -> None:
        """The operator looks when its watches or its own timers tell it to, as it really does;
        everything else goes on meanwhile."""
        end = self.now + seconds
        while self.now < end:
            self._notice()
            if self.now >= self.due:
                await self._work()
            self.pass_time(1.0)

    async def _work(self) -> None:
        self.due = float("inf")
        for _ in range(20):
            try:
                after = await self.reconcile(KEY)
            except HoldfastError:
                self.due = self.now + 0.5
                return
            except Killed:
                self.restart()
                continue
            if after is None:
                return
            if after > 0:
                self.due = self.now + after
                return
        raise AssertionError("the operator does not come to rest")

    def _notice(self) -> None:
        """What the watches would tell."""
        if self.api.down:
            self.due = min(self.due, self.now)
            return
        self.sightings.heard(self.now)  # the leader Lease is read all the time
        lease, session = self.api.one(LEASES), self.api.one(SESSIONS)
        urgency = (
            self.sightings.saw(lease, self.now)[1] if lease else self.sightings.gone(KEY, self.now)
        )
        orders = _versions(self.api.all(CHECKPOINTS))
        mine = _versions([session] if session else [])
        shown = (mine, _versions(self.api.pods()), orders, self.cordoned)
        if orders != self.shown_orders:
            self.look.stirred(KEY)
        self.shown_orders = orders
        if urgency is Urgency.NOW or shown != self.shown or self.sightings.ended(self.now):
            self.due = self.now
        elif urgency is Urgency.LATER:
            self.due = min(self.due, self.now + LATER_SECONDS)
        self.shown = shown

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self._hosts()
        for lease in self.renewed:
            self.api.touch(lease)
        if self.agents:
            self._agents()
        self.api.collect_garbage()
        running = [str(one.holder.epoch) for one in self.incarnations.values() if one.runs]
        if len(running) > 1:
            self.overlap.append(f"{self.now}: {running}")

    def _hosts(self) -> None:
        for pod in self.api.pods():
            if self.start_pods and not pod["spec"].get("nodeName"):
                pod["spec"]["nodeName"] = "node-2" if self.cordoned else "node-1"
                runs: Json = {"name": "session", "imageID": "app@1"}
                pod["status"] = {"phase": "Running", "containerStatuses": [runs]}
                epoch = Epoch(int(pod["metadata"]["labels"][names.EPOCH]))
                uid = pod["metadata"]["uid"]
                holder = Holder(Timing.of(20), f"{uid}/0", epoch)
                waits = names.RESTORE in pod["metadata"].get("annotations", {})
                if waits:
                    running: Json = {"state": {"running": {}}}
                    pod["spec"]["nodeName"] = "node-2"
                    pod["status"]["initContainerStatuses"] = [{"name": "holdfast", **running}]
                    runs |= running
                self.incarnations[uid] = Incarnation(self, pod, holder, waits=waits)
                self.api.touch(pod)
        for one in self.incarnations.values():
            one.beat()
            gone = one.pod["metadata"].get("deletionTimestamp") and one.over and not one.dead
            if gone and self.api.one(PODS, one.pod["metadata"]["name"]) is one.pod:
                self.api.vanish(PODS, one.pod["metadata"]["name"])

    def _agents(self) -> None:
        """Each order is done a second after it was given."""
        for order in self.api.all(CHECKPOINTS):
            if "status" in order:
                continue
            seen = CheckpointSeen.of(order)
            one = self.incarnations.get(seen.pod)
            young = order["metadata"]["creationTimestamp"] == stamp(self.wall())
            if young or seen.kind is Kind.MOVE or one is None or one.dead:
                continue
            if seen.kind is Kind.KEEP:
                problem = self.unable or ("" if one.runs else "it does not run")
            else:
                spoiled = seen.origin in self.spoiled
                problem = "it is spoiled" if spoiled else "" if one.arrive() else "not vacant"
            self.finish(order, problem)
            if seen.stops and not problem:
                one.suspend(seen.name)

    def finish(self, order: Json, problem: str = "") -> None:
        said = {"type": "Complete", "status": "False" if problem else "True", "message": problem}
        order["status"] = {
            "phase": "Failed" if problem else "Complete",
            "startedAt": stamp(self.wall()),
            "completedAt": stamp(self.wall()),
            "digest": f"sha256:{'0' * 64}",
            "location": "peer://node-2",
            "sizeBytes": 4096,
            "conditions": [said],
        }
        self.api.touch(order)


class Trips:
    """Counts round trips: what is in flight together is answered together, and is one."""

    def __init__(self, api: FakeApi) -> None:
        self.log: list[list[str]] = []
        self._pending: list[tuple[str, asyncio.Future[None]]] = []
        for name in ("get", "list_all", "create", "replace", "patch", "delete"):
            setattr(api, name, self._delayed(name, getattr(api, name)))

    def _delayed(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        async def delayed(kind: Resource, *args: Any, **more: Any) -> Any:
            future = asyncio.get_running_loop().create_future()
            what = "/".join(filter(None, (kind.plural, more.get("sub"))))
            self._pending.append((f"{name} {what}", future))
            await future
            return await call(kind, *args, **more)

        return delayed

    async def during(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        while not task.done():
            for _ in range(50):  # until everybody waits for an answer
                await asyncio.sleep(0)
            batch, self._pending = self._pending, []
            if batch:
                self.log.append([what for what, _ in batch])
            for _, future in batch:
                future.set_result(None)
        await task

    def before(self, what: str) -> int:
        """How many answers came, one after the other, before this was asked."""
        return next(number for number, batch in enumerate(self.log) if what in batch)
