"""The API server in memory: level-accurate where it matters (versions, conflicts, finalizers,
owners), and any write can come to grief."""

from __future__ import annotations

import itertools
import json
import marshal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Any, TypeVar

from holdfast_kube.client import EVENTS, PODS, Conflict, Resource
from holdfast_operator.names import Key
from holdfast_wire.errors import AlreadyExists, HoldfastError, NotFound, Unavailable

Json = dict[str, Any]
T = TypeVar("T")
KEY = Key("team", "build")


def copied(value: T) -> T:
    """As through the API: also a tenth of what a deep copy takes."""
    made: T = json.loads(json.dumps(value))
    return made


def shown(stored: T) -> T:
    """A copy of what went through the API already, in half the time."""
    kept: Any = stored
    made: T = marshal.loads(marshal.dumps(kept))  # noqa: S302 - our own bytes
    return made


class Killed(BaseException):
    """The operator's process ends here."""


class Mishap(Enum):
    KILLED = "the operator is killed after the write"
    REPLY_LOST = "the write lands, its answer is lost"
    NOT_SENT = "the write does not land"


class FakeApi:
    def __init__(self) -> None:
        self.items: dict[tuple[str, str, str], Json] = {}
        self.writes: list[str] = []
        self.listed: list[str] = []  # of orders, which are not to be read for nothing
        self.mishap: tuple[int, Mishap] | None = None  # after so many writes
        self.begun = 0  # writes that only led up to what is told
        self.refuse: dict[str, HoldfastError] = {}  # plural: why creating it is
        self.strict: set[str] = set()  # what was created so that unknown fields are refused
        self.down = False
        self.wall: Callable[[], datetime] = lambda: datetime(2026, 1, 1, tzinfo=UTC)
        self._numbers = itertools.count(1)

    # -- what the operator calls ----------------------------------------------------------------

    async def get(self, kind: Resource, namespace: str, name: str) -> Json | None:
        if self.down:
            raise Unavailable("no answer")
        return shown(self.items.get((kind.plural, namespace, name)))

    async def list_all(
        self, kind: Resource, namespace: str | None, labels: str = "", metadata_only: bool = False
    ) -> tuple[list[Json], str]:
        if kind.plural == "checkpoints":
            self.listed.append(labels)
        label, _, value = labels.partition("=")
        found = [
            shown(item)
            for item in self.all(kind)
            if namespace in (None, item["metadata"]["namespace"])
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
        return shown(self.items[where])

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
                new = copied(dict(body))
                new["metadata"] |= {**kept, "resourceVersion": self._next()}
                self.items[where] = new
        return shown(self.items[where])

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
        return shown(old)

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

    def vanish_pod(self, pod: Json) -> None:
        self.vanish(PODS, pod["metadata"]["name"])

    def put(self, body: Mapping[str, Any]) -> Json:
        """By somebody else than the operator."""
        plural = f"{body['kind'].lower()}s"
        stored = self._stored(body, KEY.namespace)
        self.items[(plural, KEY.namespace, body["metadata"]["name"])] = stored
        return stored

    def touch(self, item: Json) -> None:
        item["metadata"]["resourceVersion"] = self._next()

    def one(self, kind: Resource, name: str = KEY.name) -> Json | None:
        return self.items.get((kind.plural, KEY.namespace, name))

    def pods(self) -> list[Json]:
        return self.all(PODS)

    def all(self, kind: Resource) -> list[Json]:
        plural = kind.plural
        return [self.items[where] for where in sorted(w for w in self.items if w[0] == plural)]

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
        made = copied(dict(body))
        made["metadata"] |= {
            "namespace": namespace,
            "uid": f"uid-{self._next()}",
            "resourceVersion": self._next(),
            "generation": 1,
            "creationTimestamp": self.wall().strftime("%Y-%m-%dT%H:%M:%SZ"),
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
            target[key] = copied(value)
