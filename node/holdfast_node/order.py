"""A Checkpoint as the agents read and write it: which session, from where, to where. Pure.

What the object says is the authority for both ends. The target's agent reads it from the API too,
and takes nothing that is not ordered there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from holdfast_wire.errors import BadRequest


class Phase(StrEnum):
    PENDING = "Pending"
    DUMPING = "Dumping"
    TRANSFERRING = "Transferring"
    COMPLETE = "Complete"
    FAILED = "Failed"


@dataclass(frozen=True, slots=True)
class Order:
    namespace: str
    name: str
    uid: str
    session: str
    session_uid: str
    epoch: int
    image: str
    source_node: str
    source_pod: str
    target_node: str
    target_pod: str
    volumes: tuple[str, ...]  # where the container has them
    deadline: float
    phase: Phase

    @property
    def over(self) -> bool:
        return self.phase in (Phase.COMPLETE, Phase.FAILED)

    @classmethod
    def of(cls, item: Mapping[str, Any]) -> Order:
        meta, spec, status = item["metadata"], item["spec"], item.get("status") or {}
        try:
            return cls(
                namespace=meta["namespace"],
                name=meta["name"],
                uid=meta["uid"],
                session=spec["sessionName"],
                session_uid=spec["sessionUID"],
                epoch=int(spec["epoch"]),
                image=str(spec.get("image", "")),
                source_node=spec["sourceNode"],
                source_pod=spec["sourcePodUID"],
                target_node=spec["targetNode"],
                target_pod=spec["targetPodUID"],
                volumes=tuple(str(path) for path in spec.get("volumes") or ()),
                deadline=float(spec.get("deadlineSeconds", 60)),
                phase=Phase(status.get("phase") or Phase.PENDING),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise BadRequest(f"this Checkpoint orders no move: {error!r}") from None


@dataclass(frozen=True, slots=True)
class Left:
    """What became of it, for the Checkpoint's status."""

    size: int
    digest: str
    freeze_seconds: float


def status(
    node: str, phase: Phase, message: str, left: Left | None, now: datetime
) -> dict[str, Any]:
    at = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    made: dict[str, Any] = {"phase": phase.value, "node": node}
    if phase is Phase.DUMPING:
        made["startedAt"] = at
    if left is not None:
        made |= {
            "sizeBytes": left.size,
            "digest": left.digest,
            "freezeSeconds": round(left.freeze_seconds, 3),
        }
    if phase in (Phase.COMPLETE, Phase.FAILED):
        done = phase is Phase.COMPLETE
        made["completedAt"] = at
        made["conditions"] = [
            {
                "type": "Complete",
                "status": "True" if done else "False",
                "reason": "Arrived" if done else "Failed",
                "message": message or "the session has gone on elsewhere",
                "lastTransitionTime": at,
            }
        ]
    return made
