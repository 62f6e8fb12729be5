"""A Checkpoint as the agents read and write it. Pure.

    Move    a session goes on in another pod, now
    Keep    a session is stored as it is, and runs on here or stops
    Bring   a stored session goes on in a pod that waits for it

What the object says is the authority for every agent. Each reads it from the API itself, and takes
or gives nothing that is not ordered there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, ClassVar, Final, Self, TypeAlias

from holdfast_wire.errors import BadRequest, Forbidden

_TIME: Final = "%Y-%m-%dT%H:%M:%SZ"


class Phase(StrEnum):
    PENDING = "Pending"
    DUMPING = "Dumping"
    TRANSFERRING = "Transferring"
    COMPLETE = "Complete"
    FAILED = "Failed"


class Memory(StrEnum):
    """How that of a session that moves goes over."""

    IMAGES = "images"  # in files, like all the rest
    BEFORE = "before"  # from process to process, before it runs there
    AFTER = "after"  # and after it: post-copy


class Where(StrEnum):
    PEER = "Peer"
    S3 = "S3"


class Then(StrEnum):
    RUN_ON = "RunOn"
    STOP = "Stop"


@dataclass(frozen=True, slots=True)
class About:
    """What all orders have. `epoch`: of the incarnation that is, or was, dumped."""

    namespace: str
    name: str
    uid: str
    session: str
    session_uid: str
    epoch: int
    image: str
    volumes: tuple[str, ...]  # where the container has them
    deadline: float
    phase: Phase
    # The order's data key, by the node that it is sealed to.
    sealed: Mapping[str, str] = field(default_factory=dict, kw_only=True, repr=False)

    done: ClassVar[tuple[str, str]]  # the reason and the words for it, when it is complete

    def may_freeze(self, _wall: float) -> float:
        """For how many seconds, from now."""
        return self.deadline

    def only_for(self, node: str, meant: str) -> None:
        """Who is at the other end is who the order names. Raises Forbidden."""
        if node != meant:
            raise Forbidden(f"{self.name} names node {meant}, and {node} has come")

    @property
    def over(self) -> bool:
        return self.phase in (Phase.COMPLETE, Phase.FAILED)

    @classmethod
    def _of(cls, item: Mapping[str, Any], **more: Any) -> Self:
        meta, spec, status = item["metadata"], item["spec"], item.get("status") or {}
        return cls(
            namespace=meta["namespace"],
            name=meta["name"],
            uid=meta["uid"],
            session=spec["sessionName"],
            session_uid=spec["sessionUID"],
            epoch=int(spec["epoch"]),
            image=str(spec.get("image", "")),
            volumes=tuple(str(path) for path in spec.get("volumes") or ()),
            deadline=float(spec.get("deadlineSeconds", 60)),
            phase=Phase(status.get("phase") or Phase.PENDING),
            sealed={one["node"]: one["sealed"] for one in (spec.get("key") or {}).get("for") or ()},
            **more,
        )


@dataclass(frozen=True, slots=True)
class Move(About):
    source_node: str
    source_pod: str
    target_node: str
    target_pod: str
    post_copy: bool = False  # its memory follows when it runs there
    until: int | None = None  # seconds since 1970: by then it is over, for the source's pod goes

    done = ("Arrived", "the session has gone on elsewhere")

    @classmethod
    def of(cls, item: Mapping[str, Any]) -> Self:
        spec = item["spec"]
        return cls._of(
            item,
            source_node=spec["sourceNode"],
            source_pod=spec["sourcePodUID"],
            target_node=spec["targetNode"],
            target_pod=spec["targetPodUID"],
            post_copy=spec.get("memory") == "PostCopy",
            until=_seconds(spec["until"]) if "until" in spec else None,
        )

    def may_freeze(self, wall: float) -> float:
        return self.deadline if self.until is None else min(self.deadline, self.until - wall)


@dataclass(frozen=True, slots=True)
class Keep(About):
    source_node: str
    source_pod: str
    store: Where
    keepers: tuple[str, ...]  # nodes, first choice first; of a Peer
    then: Then
    location: str  # where it lies, once an agent has said so

    done = ("Stored", "it is stored, and was checked")

    @classmethod
    def of(cls, item: Mapping[str, Any]) -> Self:
        spec = item["spec"]
        return cls._of(
            item,
            source_node=spec["sourceNode"],
            source_pod=spec["sourcePodUID"],
            store=Where(spec["store"]),
            keepers=tuple(str(node) for node in spec.get("keepers") or ()),
            then=Then(spec.get("then") or Then.RUN_ON),
            location=str((item.get("status") or {}).get("location") or ""),
        )


@dataclass(frozen=True, slots=True)
class Bring(About):
    """`session` and `session_uid` are those of the session that gets it; what it is a checkpoint
    of, which for a fork is another, stands in `of_session` and `of_session_uid`."""

    target_node: str
    target_pod: str
    why: str
    checkpoint: str
    of_session: str
    of_session_uid: str
    digest: str
    location: str
    taken: int  # seconds since 1970

    done = ("Restored", "the session goes on from the checkpoint")

    @classmethod
    def of(cls, item: Mapping[str, Any]) -> Self:
        spec = item["spec"]
        stored = spec["from"]
        return cls._of(
            item,
            target_node=spec["targetNode"],
            target_pod=spec["targetPodUID"],
            why=spec["trigger"],
            checkpoint=stored["checkpoint"],
            of_session=stored["sessionName"],
            of_session_uid=stored["sessionUID"],
            digest=stored["digest"],
            location=stored["location"],
            taken=_seconds(stored["takenAt"]),
        )


Order: TypeAlias = Move | Keep | Bring


def read(item: Mapping[str, Any]) -> Order:
    """Which of the three it is, is told by the fields that it has."""
    try:
        spec = item["spec"]
        kind = Bring if "from" in spec else Keep if "store" in spec else Move
        return kind.of(item)
    except (KeyError, TypeError, ValueError) as error:
        raise BadRequest(f"this Checkpoint is no order: {error!r}") from None


def _seconds(text: str) -> int:
    found = datetime.fromisoformat(text)
    if found.tzinfo is None:
        raise ValueError(f"{text} names no time zone")
    return int(found.timestamp())


@dataclass(frozen=True, slots=True)
class Left:
    """What became of a session that left, for the Checkpoint's status."""

    size: int
    digest: str
    freeze_seconds: float

    def to_json(self) -> dict[str, Any]:
        return {
            "sizeBytes": self.size,
            "digest": self.digest,
            "freezeSeconds": round(self.freeze_seconds, 3),
        }


@dataclass(frozen=True, slots=True)
class Saved(Left):
    """Of one that was stored."""

    location: str
    seq: int  # of its terminal at the freeze
    taken: float  # seconds since 1970

    def to_json(self) -> dict[str, Any]:
        at = datetime.fromtimestamp(self.taken, UTC).strftime(_TIME)
        more = {"location": self.location, "seq": self.seq, "startedAt": at}
        return Left.to_json(self) | more


def event(order: Order, node: str, why: str, now: datetime) -> dict[str, Any]:
    """That an order was refused, for events.k8s.io."""
    return {
        "metadata": {"generateName": f"{order.name[:200]}-", "namespace": order.namespace},
        "eventTime": now.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "type": "Warning",
        "reason": "ForeignOrder",
        "action": "Refuse",
        "note": f"refused by the agent of {node}: {why}"[:1000],
        "reportingController": "holdfast.dev/node-agent",
        "reportingInstance": node,
        "regarding": {
            "apiVersion": "holdfast.dev/v1alpha1",
            "kind": "Checkpoint",
            "namespace": order.namespace,
            "name": order.name,
            "uid": order.uid,
        },
    }


def status(
    order: Order,
    node: str,
    phase: Phase,
    message: str,
    left: Left | None,
    now: datetime,
    failed: str = "Failed",
) -> dict[str, Any]:
    """`failed`: the reason in one word, if it did."""
    at = now.strftime(_TIME)
    made: dict[str, Any] = {"phase": phase.value, "node": node}
    if phase is Phase.DUMPING:
        made["startedAt"] = at
    if left is not None:
        made |= left.to_json()
    if phase in (Phase.COMPLETE, Phase.FAILED):
        done = phase is Phase.COMPLETE
        reason, words = order.done
        made["completedAt"] = at
        made["conditions"] = [
            {
                "type": "Complete",
                "status": "True" if done else "False",
                "reason": reason if done else failed,
                "message": message or words,
                "lastTransitionTime": at,
            }
        ]
    return made
