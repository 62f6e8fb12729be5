"""A cluster in memory, level-accurate where it matters (versions, conflicts, finalizers, owners),
with hosts on which sidecars of the simplest kind hold Leases, and an operator to be killed."""

from __future__ import annotations

import asyncio
import copy
import itertools
import json
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any

from holdfast_operator import names
from holdfast_operator.kube import EVENTS, LEASES, PODS, SESSIONS, Conflict, Resource
from holdfast_operator.names import Key
from holdfast_operator.observe import Look
from holdfast_operator.perform import Perform
from holdfast_operator.reconcile import Reconcile
from holdfast_operator.settings import Settings
from holdfast_operator.sightings import Sightings, Urgency
from holdfast_operator.watch import LATER_SECONDS
from holdfast_wire.errors import AlreadyExists, HoldfastError, NotFound, Unavailable
from holdfast_wire.lease import Epoch, Holder, Record, Standing, Timing

Json = dict[str, Any]
KEY = Key("team", "build")
SETTINGS = Settings(image="example/holdfast:1")


class Killed(BaseException):
    """The operator's process ends here."""


class Mishap(Enum):
    KILLED = "the operator is killed after the write"
    REPLY_LOST = "the write lands, its answer is lost"
    NOT_SENT = "the write does not land"


def session_object(**spec: Any) -> Json:
    base = {
        "command": ["bash", "-l"],
        "template": {"spec": {"containers": [{"name": "session", "image": "python:3.13"}]}},
        "terminal": {"columns": 120, "rows": 40, "scrollbackLines": 10000},
        "lease": {"durationSeconds": 20},
        "recovery": {"onHostLoss": "RestoreLast"},
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


class FakeApi:
    def __init__(self) -> None:
        self.items: dict[tuple[str, str, str], Json] = {}
        self.writes: list[str] = []
        self.mishap: tuple[int, Mishap] | None = None  # after so many writes
        self.refuse: dict[str, HoldfastError] = {}  # plural: why creating it is
        self.strict: set[str] = set()  # what was created so that unknown fields are refused
        self.down = False
        self._numbers = itertools.count(1)

    # -- what the operator calls ----------------------------------------------------------------

    async def get(self, kind: Resource, namespace: str, name: str) -> Json | None:
        if self.down:
            raise Unavailable("no answer")
        return copy.deepcopy(self.items.get((kind.plural, namespace, name)))

    async def list_all(
        self, kind: Resource, namespace: str | None, labels: str = "", metadata_only: bool = False
    ) -> tuple[list[Json], str]:
        label, _, value = labels.partition("=")
        found = [
            copy.deepcopy(item)
            for (plural, space, _), item in sorted(self.items.items())
            if plural == kind.plural
            and namespace in (None, space)
            and (not label or item["metadata"].get("labels", {}).get(label) == value)
        ]
        return found, "1"

    async def create(
        self, kind: Resource, namespace: str, body: Mapping[str, Any], strict: bool = False
    ) -> Json:
        where = (kind.plural, namespace, body["metadata"]["name"])
        with self._write(f"create {kind.plural}") as write:
            if strict:
                self.strict.add(kind.plural)
            if kind.plural in self.refuse:
                raise self.refuse[kind.plural]
            if where in self.items:
                raise AlreadyExists(f"{where} is there")
            if write.lands:
                self.items[where] = self._stored(body, namespace)
        return copy.deepcopy(self.items[where])

    async def replace(
        self, kind: Resource, namespace: str, name: str, body: Mapping[str, Any]
    ) -> Json:
        where = (kind.plural, namespace, name)
        with self._write(f"replace {kind.plural}") as write:
            old = self._at(where)
            if body["metadata"].get("resourceVersion") != old["metadata"]["resourceVersion"]:
                raise Conflict("written since")
            if write.lands:
                kept = {k: old["metadata"][k] for k in ("uid",)}
                new = copy.deepcopy(dict(body))
                new["metadata"] |= {**kept, "resourceVersion": self._next()}
                self.items[where] = new
        return copy.deepcopy(self.items[where])

    async def patch(
        self,
        kind: Resource,
        namespace: str,
        name: str,
        body: Mapping[str, Any],
        sub: str | None = None,
    ) -> Json:
        where = (kind.plural, namespace, name)
        with self._write(f"patch {kind.plural} {sub or ''}".strip()) as write:
            old = self._at(where)
            wanted = body.get("metadata", {}).get("resourceVersion")
            if wanted is not None and wanted != old["metadata"]["resourceVersion"]:
                raise Conflict("written since")
            if write.lands:
                if sub == "status":
                    merge(old.setdefault("status", {}), body["status"])
                else:
                    merge(old, {k: v for k, v in body.items() if k != "status"})
                old["metadata"]["resourceVersion"] = self._next()
                self._finish(where)
        return copy.deepcopy(old)

    async def delete(
        self, kind: Resource, namespace: str, name: str, uid: str, version: str | None = None
    ) -> None:
        where = (kind.plural, namespace, name)
        with self._write(f"delete {kind.plural}") as write:
            item = self.items.get(where)
            if item is None or item["metadata"]["uid"] != uid:
                return
            if version is not None and version != item["metadata"]["resourceVersion"]:
                raise Conflict("written since")
            if write.lands:
                self.remove(where)

    # -- what happens in a cluster --------------------------------------------------------------

    def remove(self, where: tuple[str, str, str]) -> None:
        item = self.items[where]
        meta = item["metadata"]
        on_node = where[0] == "pods" and item["spec"].get("nodeName")
        if (meta.get("finalizers") or on_node) and not meta.get("deletionTimestamp"):
            meta["deletionTimestamp"] = "2026-01-01T00:00:00Z"
            meta["resourceVersion"] = self._next()
        elif not on_node:
            self._finish(where)
            if not meta.get("finalizers"):
                self.items.pop(where, None)

    def vanish(self, kind: Resource, name: str) -> None:
        """Gone without further ado, as after a forced delete."""
        self.items.pop((kind.plural, KEY.namespace, name), None)

    def put(self, body: Mapping[str, Any]) -> Json:
        """By somebody else than the operator."""
        plural = {"Session": "sessions", "Pod": "pods", "Lease": "leases"}[body["kind"]]
        stored = self._stored(body, KEY.namespace)
        self.items[(plural, KEY.namespace, body["metadata"]["name"])] = stored
        return stored

    def touch(self, item: Json) -> None:
        item["metadata"]["resourceVersion"] = self._next()

    def one(self, kind: Resource, name: str = KEY.name) -> Json | None:
        return self.items.get((kind.plural, KEY.namespace, name))

    def pods(self) -> list[Json]:
        return [item for (plural, _, _), item in sorted(self.items.items()) if plural == "pods"]

    def said(self) -> list[str]:
        return [i["reason"] for (plural, _, _), i in self.items.items() if plural == EVENTS.plural]

    def collect_garbage(self) -> None:
        alive = {item["metadata"]["uid"] for item in self.items.values()}
        for where, item in list(self.items.items()):
            owners = item["metadata"].get("ownerReferences") or []
            if owners and not any(owner["uid"] in alive for owner in owners):
                self.remove(where)

    # -- within ---------------------------------------------------------------------------------

    def _at(self, where: tuple[str, str, str]) -> Json:
        if where not in self.items:
            raise NotFound(f"{where} is not there")
        return self.items[where]

    def _next(self) -> str:
        return str(next(self._numbers))

    def _stored(self, body: Mapping[str, Any], namespace: str) -> Json:
        made = copy.deepcopy(dict(body))
        made["metadata"] |= {
            "namespace": namespace,
            "uid": f"uid-{self._next()}",
            "resourceVersion": self._next(),
            "generation": 1,
        }
        return made

    def _finish(self, where: tuple[str, str, str]) -> None:
        meta = self.items[where]["metadata"]
        if meta.get("deletionTimestamp") and not meta.get("finalizers") and where[0] != "pods":
            del self.items[where]

    def _write(self, what: str) -> _Write:
        number, mishap = self.mishap or (0, None)
        hit = mishap if number == len(self.writes) + 1 else None
        return _Write(self, what, hit)


@dataclass
class _Write:
    api: FakeApi
    what: str
    mishap: Mishap | None

    @property
    def lands(self) -> bool:
        return self.mishap is not Mishap.NOT_SENT

    def __enter__(self) -> _Write:
        if self.mishap is Mishap.NOT_SENT:
            self.api.writes.append(f"{self.what} (not sent)")
            raise Unavailable("no answer")
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.api.writes.append(self.what)
        if kind is None and self.mishap is Mishap.KILLED:
            raise Killed
        if kind is None and self.mishap is Mishap.REPLY_LOST:
            raise Unavailable("no answer")


def merge(target: Json, patch: Mapping[str, Any]) -> None:
    for key, value in patch.items():
        if value is None:
            target.pop(key, None)
        elif isinstance(value, dict) and isinstance(target.get(key), dict):
            merge(target[key], value)
        else:
            target[key] = copy.deepcopy(value)


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
    renewed_at: float = float("-inf")

    @property
    def runs(self) -> bool:
        return (
            self.acquired
            and not self.over
            and not self.dead
            and not self.holder.expired(self.world.now)
        )

    def beat(self) -> None:
        if self.dead or self.over or self.cut_off or self.world.api.down:
            return
        if self.pod["metadata"].get("deletionTimestamp"):
            self.end("terminated")
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

    def end(self, cause: str, **facts: Any) -> None:
        lease = self.world.api.one(LEASES)
        if self.holder.standing(record_of(lease)) is Standing.HELD:
            left = {"code": None, "signal": None, "cause": cause, "at": "", "lines": [], **facts}
            epoch = str(self.holder.epoch)
            self.write({names.EXIT: json.dumps(left), names.RELEASED: epoch}, holder="")
        self.over = True
        self.pod.setdefault("status", {})["phase"] = "Succeeded"

    def fail_to_start(self, message: str) -> None:
        epoch = str(self.holder.epoch)
        self.write({names.START_ERROR: message, names.RELEASED: epoch}, holder="")
        self.over = True
        self.pod.setdefault("status", {})["phase"] = "Failed"

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


@dataclass
class World:
    api: FakeApi = field(default_factory=FakeApi)
    now: float = 1000.0
    start_pods: bool = True
    incarnations: dict[str, Incarnation] = field(default_factory=dict)
    overlap: list[str] = field(default_factory=list)
    due: float = 0.0  # when the operator looks next
    shown: str = ""

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """A new operator process, which knows nothing."""
        self.due, self.shown = self.now, ""
        self.sightings = Sightings()
        self.look = Look(self.api, self.sightings, lambda: self.now, self.wall)
        perform = Perform(self.api, SETTINGS, lambda: self.now)
        self.reconcile = Reconcile(
            self.api, self.look, perform, lambda: True, lambda: self.now, "operator/1"
        )

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
        return list(self.incarnations.values())[-1]

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
        shown = repr([session, self.api.pods()])
        if urgency is Urgency.NOW or shown != self.shown or self.sightings.ended(self.now):
            self.due = self.now
        elif urgency is Urgency.LATER:
            self.due = min(self.due, self.now + LATER_SECONDS)
        self.shown = shown

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self._hosts()
        self.api.collect_garbage()
        running = [str(one.holder.epoch) for one in self.incarnations.values() if one.runs]
        if len(running) > 1:
            self.overlap.append(f"{self.now}: {running}")

    def _hosts(self) -> None:
        for pod in self.api.pods():
            if self.start_pods and not pod["spec"].get("nodeName"):
                pod["spec"]["nodeName"] = "node-1"
                pod["status"] = {"phase": "Running"}
                epoch = Epoch(int(pod["metadata"]["labels"][names.EPOCH]))
                uid = pod["metadata"]["uid"]
                holder = Holder(Timing.of(20), f"{uid}/0", epoch)
                self.incarnations[uid] = Incarnation(self, pod, holder)
        for one in self.incarnations.values():
            one.beat()
            gone = one.pod["metadata"].get("deletionTimestamp") and one.over and not one.dead
            if gone and self.api.one(PODS, one.pod["metadata"]["name"]) is one.pod:
                self.api.vanish(PODS, one.pod["metadata"]["name"])


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
