"""Which pod an order is about, by the API's word.

An order names a pod by its UID; anybody who may write Checkpoints could name another tenant's. So
the agent reads the Pod itself, from the order's own namespace, and checks that it is the session's
incarnation on this node. From the Pod come the IDs of its containers, by which their processes are
found (containers.py), and what is signed: image, volumes, session. The order's words are not used
for any of these.

Invariant: no process of a pod is looked for before its Pod was read and checked here.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from holdfast_kube.client import PODS, Kube
from holdfast_node import containers
from holdfast_node.containers import Pod
from holdfast_node.order import Bring, Keep, Move
from holdfast_wire.errors import Forbidden, NotFound

PREFIX: Final = "holdfast.dev/"
SESSION, SIDECAR = "session", "holdfast"  # the names of the two containers
_OURS: Final = frozenset({"holdfast-bin", "holdfast-hold", "holdfast-run", "holdfast-state"})
_ID: Final = re.compile(r"[a-z0-9-]+://([0-9a-f]{12,128})")
Given = TypeVar("Given", bound=Move | Keep | Bring)


class Foreign(Forbidden):
    """The order is about a pod that is not its session's. Nothing was touched."""

    code = "foreign"


@dataclass(frozen=True)
class Known:
    namespace: str
    name: str
    uid: str
    node: str
    session: str
    session_uid: str
    epoch: int
    image: str  # what the session's container runs, as the runtime names it
    volumes: tuple[str, ...]  # the pod's own, by where the session's container has them
    ids: Mapping[str, str]  # of the containers, by name; one that does not run has none

    @classmethod
    def of(cls, item: Mapping[str, Any]) -> Known:
        meta, spec, status = item["metadata"], item["spec"], item.get("status") or {}
        owner = _owner(meta)
        found = [
            *(status.get("containerStatuses") or ()),
            *(status.get("initContainerStatuses") or ()),
        ]
        epoch = str((meta.get("labels") or {}).get(f"{PREFIX}epoch") or "")
        return cls(
            namespace=str(meta["namespace"]),
            name=str(meta["name"]),
            uid=str(meta["uid"]),
            node=str(spec.get("nodeName") or ""),
            session=str(owner.get("name") or ""),
            session_uid=str(owner.get("uid") or ""),
            epoch=int(epoch) if re.fullmatch(r"[0-9]{1,9}", epoch) else 0,
            image=next((str(one.get("imageID") or "") for one in found if _is(one, SESSION)), ""),
            volumes=_volumes(spec),
            ids={str(one["name"]): match[1] for one in found if (match := _id(one)) is not None},
        )

    def address(self) -> dict[str, Any]:
        """The fields of each request by which the sidecar checks that the order is for it."""
        return {"session": self.session_uid, "namespace": self.namespace, "epoch": self.epoch}


def _is(one: Mapping[str, Any], name: str) -> bool:
    return one.get("name") == name


def _id(one: Mapping[str, Any]) -> re.Match[str] | None:
    running = (one.get("state") or {}).get("running") is not None
    return _ID.fullmatch(str(one.get("containerID") or "")) if running else None


def _owner(meta: Mapping[str, Any]) -> Mapping[str, Any]:
    for one in meta.get("ownerReferences") or ():
        api = str(one.get("apiVersion") or "")
        if one.get("controller") and one.get("kind") == "Session" and api.startswith(PREFIX):
            return dict(one)
    return {}


def _volumes(spec: Mapping[str, Any]) -> tuple[str, ...]:
    own = {one["name"] for one in spec.get("volumes") or () if "emptyDir" in one} - _OURS
    return tuple(
        str(mount["mountPath"])
        for container in spec.get("containers") or ()
        if _is(container, SESSION)
        for mount in container.get("volumeMounts") or ()
        if mount.get("name") in own and not mount.get("subPath") and not mount.get("subPathExpr")
    )


def names_of(order: Move | Keep | Bring, *, target: bool) -> tuple[str, str, int | None]:
    """Name and UID of the pod that an order is about on this node, and its epoch if that is known.
    The operator names pods SESSION-EPOCH."""
    if isinstance(order, Bring):
        return order.name.rpartition("-from-")[0] or order.session, order.target_pod, None
    if isinstance(order, Move) and target:
        return f"{order.session}-{order.epoch + 1}", order.target_pod, order.epoch + 1
    return f"{order.session}-{order.epoch}", order.source_pod, order.epoch


def check(order: Move | Keep | Bring, found: Known, node: str, *, target: bool) -> None:
    """Raises Foreign with the first thing that does not fit."""
    name, uid, epoch = names_of(order, target=target)
    facts = (
        ("namespace", order.namespace, found.namespace),
        ("name", name, found.name),
        ("UID", uid, found.uid),
        ("node", node, found.node),
        ("session", order.session, found.session),
        ("session's UID", order.session_uid, found.session_uid),
        ("epoch", found.epoch if epoch is None else epoch, found.epoch),
    )
    for what, wanted, have in facts:
        if wanted != have:
            raise Foreign(
                f"the order is not for pod {found.namespace}/{found.name}: its {what} is"
                f" {have or 'not known'}, the order says {wanted}"
            )


class Register:
    """The pods that were read and checked, by their UIDs."""

    def __init__(self) -> None:
        self._known: dict[str, Known] = {}
        self._read: Callable[[str, str], Awaitable[Mapping[str, Any] | None]] | None = None

    def connect(self, kube: Kube) -> None:
        async def read(namespace: str, name: str) -> Mapping[str, Any] | None:
            return await kube.get(PODS, namespace, name)

        self._read = read

    async def bind(self, order: Given, node: str, *, target: bool = False) -> Given:
        """The order with what the Pod says in the place of what it said itself."""
        name, _, _ = names_of(order, target=target)
        item = None if self._read is None else await self._read(order.namespace, name)
        if item is None:
            raise NotFound(f"there is no pod {order.namespace}/{name} for this order")
        found = Known.of(item)
        check(order, found, node, target=target)
        self._keep(found)
        # An image that the kubelet has not named yet must not pass for the one that is signed.
        return replace(order, image=found.image, volumes=found.volumes)

    async def learn(self, namespace: str, name: str, uid: str, node: str) -> bool:
        """Whether there is such a session's pod on this node. The names may be anybody's guess."""
        item = None if self._read is None else await self._read(namespace, name)
        if item is None:
            return False
        found = Known.of(item)
        if (found.uid, found.node) != (uid, node) or not found.session_uid:
            return False
        if not {SESSION, SIDECAR} <= found.ids.keys():
            return False
        self._keep(found)
        return True

    def knows(self, uid: str) -> bool:
        return uid in self._known

    def _keep(self, found: Known) -> None:
        self._known[found.uid] = found
        containers.know(found.uid, found.ids.get(SESSION, ""), found.ids.get(SIDECAR, ""))

    def address(self, uid: str) -> dict[str, Any]:
        known = self._known.get(uid)
        return {} if known is None else known.address()

    async def find(self, uid: str) -> Pod:
        """Its processes. The Pod is read again only if its sidecar's container is gone: another
        has another ID."""
        known = self._known.get(uid)
        found = containers.find(uid)
        if found.sidecar is not None or known is None or self._read is None:
            return found
        item = await self._read(known.namespace, known.name)
        if item is None or (fresh := Known.of(item)).uid != uid:
            raise NotFound(f"pod {known.namespace}/{known.name} is gone")
        self._keep(fresh)
        return containers.find(uid)


register: Final = Register()
