"""The orders to the node agents, as the API shows them. Pure.

move     takes a session from its node to the pod that waits on another
keep     stores it; it runs on, or gives its Lease back and stops
bring    gives a pod what a keep stored
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final

from holdfast_operator import names
from holdfast_operator.text import plain
from holdfast_operator.times import moment

OVER: Final = ("Complete", "Failed")
# An agent that has not come to an end of an order so long after its deadline never will.
OVERDUE_SECONDS: Final = 900.0
# If memory is to follow, there may be much of it, and it is sent for as long as it takes.
FOLLOWING_SECONDS: Final = 4 * 3600.0
KEY_NOT_FOR_NODE: Final = "KeyNotForNode"  # an agent's word, as a reason
# Waits after the 1st, 2nd, … order in a row that failed.
BACKOFF: Final = (30.0, 60.0, 120.0, 300.0, 600.0)


class Kind(StrEnum):
    MOVE = "move"
    KEEP = "keep"
    BRING = "bring"


class Trigger(StrEnum):
    """Why; as in a Checkpoint's spec."""

    DRAIN = "Drain"
    MANUAL = "Manual"
    PERIODIC = "Periodic"
    IDLE = "Idle"
    SUSPEND = "Suspend"
    FORK = "Fork"
    RECOVER = "Recover"
    WAKE = "Wake"


@dataclass(frozen=True, slots=True)
class CheckpointSeen:
    name: str
    phase: str  # Pending | Dumping | Transferring | Complete | Failed
    message: str
    kind: Kind = Kind.MOVE
    uid: str = ""
    epoch: int = 0
    trigger: str = ""
    stops: bool = False  # a keep after which nothing runs
    post_copy: bool = False  # a move whose memory follows when the session runs elsewhere
    pod: str = ""  # UID: the source's; of a bring the target's
    target: str = ""  # UID of the pod that a move is to
    origin: str = ""  # of a bring: the keep
    image: str = ""
    session: tuple[str, str] = ("", "")  # whose: name and UID
    digest: str = ""
    location: str = ""
    size: int | None = None
    sent: int = 0  # bytes so far, of a move
    expected: int = 0  # and about how many it will be; 0: not known yet
    freeze: float | None = None  # seconds
    taken: str = ""  # when the session was frozen
    completed: str = ""
    created: str = ""
    deadline: float = 60.0
    node: str = ""  # where it was taken
    fork: str = ""  # UID of the session that is to begin from it
    reason: str = ""  # of its end, in one word
    keyed: bool = False  # it has a data key of its own
    # That key, as it can be opened again: the ids of wrapping keys, and what they made of it.
    wrapped: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    @classmethod
    def of(cls, item: Mapping[str, Any]) -> CheckpointSeen:
        meta, spec, status = item["metadata"], item.get("spec") or {}, item.get("status") or {}
        origin = spec.get("from") or {}
        kind = Kind.KEEP if spec.get("store") else Kind.BRING if origin else Kind.MOVE
        return cls(
            name=meta["name"],
            phase=str(status.get("phase") or "Pending"),
            message=plain(_said(status, "message")),
            reason=_said(status, "reason"),
            kind=kind,
            uid=str(meta.get("uid") or ""),
            epoch=int(spec.get("epoch") or 0),
            trigger=str(spec.get("trigger") or ""),
            stops=spec.get("then") == "Stop",
            post_copy=kind is Kind.MOVE and spec.get("memory") == "PostCopy",
            target=str(spec.get("targetPodUID") or "") if kind is Kind.MOVE else "",
            pod=str(spec.get("targetPodUID" if kind is Kind.BRING else "sourcePodUID") or ""),
            origin=str(origin.get("checkpoint") or ""),
            image=str(spec.get("image") or ""),
            session=(str(spec.get("sessionName") or ""), str(spec.get("sessionUID") or "")),
            digest=str(status.get("digest") or ""),
            location=str(status.get("location") or ""),
            size=status.get("sizeBytes"),
            sent=int(status.get("sentBytes") or 0),
            expected=int(status.get("expectedBytes") or 0),
            freeze=status.get("freezeSeconds"),
            taken=str(status.get("startedAt") or ""),
            completed=str(status.get("completedAt") or ""),
            created=str(meta.get("creationTimestamp") or ""),
            deadline=float(spec.get("deadlineSeconds") or 60),
            node=str(spec.get("sourceNode") or ""),
            fork=str((meta.get("annotations") or {}).get(names.FORK) or ""),
            keyed=bool(spec.get("key")),
            wrapped=tuple(_wrapped(status.get("key"), spec.get("key"))),
        )

    @property
    def number(self) -> int:
        """Of a keep, counted from 1 among all of its session."""
        found = re.search(r"-k(\d{1,9})$", self.name)
        return int(found[1]) if found else 0

    @property
    def over(self) -> bool:
        return self.phase in OVER

    @property
    def failed(self) -> bool:
        return self.phase == "Failed"

    @property
    def unread(self) -> bool:
        """Its agent had another key by then than it was sealed to: it says nothing of what it was
        about."""
        return self.failed and self.reason == KEY_NOT_FOR_NODE

    @property
    def usable(self) -> bool:
        """A bring can be made of it."""
        whole = "" not in (self.digest, self.location, self.taken)
        return self.kind is Kind.KEEP and self.phase == "Complete" and whole

    def ends_at(self, wall: datetime) -> datetime:
        """When it is given up, if it is not over by then."""
        more = FOLLOWING_SECONDS if self.post_copy else OVERDUE_SECONDS
        return (moment(self.created) or wall) + timedelta(seconds=self.deadline + more)

    def overdue(self, wall: datetime) -> bool:
        return not self.over and self.ends_at(wall) <= wall

    def under_way(self, wall: datetime) -> bool:
        return not self.over and not self.overdue(wall)


def _wrapped(*keys: Mapping[str, Any] | None) -> Iterator[tuple[str, str]]:
    for key in keys:
        if key and key.get("wrapped"):
            yield str(key.get("id") or ""), str(key["wrapped"])


def _said(status: Mapping[str, Any], what: str) -> str:
    for condition in status.get("conditions") or ():
        if condition.get("type") == "Complete":
            return str(condition.get(what) or "")
    return ""


def keeps(orders: Iterable[CheckpointSeen]) -> list[CheckpointSeen]:
    """The newest first."""
    found = [order for order in orders if order.kind is Kind.KEEP]
    return sorted(found, key=lambda order: order.number, reverse=True)


def last_complete(orders: Iterable[CheckpointSeen]) -> CheckpointSeen | None:
    return next((order for order in keeps(orders) if order.usable), None)


def named(orders: Iterable[CheckpointSeen], name: str) -> CheckpointSeen | None:
    return next((order for order in orders if order.name == name), None)


def bring_for(orders: Iterable[CheckpointSeen], pod: str) -> CheckpointSeen | None:
    """The order to bring something into this pod."""
    found = (order for order in orders if order.kind is Kind.BRING and order.pod == pod)
    return next(found, None)


def late_for(orders: Iterable[CheckpointSeen], pod: str) -> CheckpointSeen | None:
    """The move into this pod whose memory has not all come, as far as anybody said."""
    found = (order for order in orders if order.post_copy and order.target == pod)
    return next((order for order in found if order.phase != "Complete"), None)


def retry_at(tried: Iterable[CheckpointSeen]) -> datetime | None:
    """When to try again, from the tries so far, the newest first; None: now."""
    failed = 0
    last: datetime | None = None
    for order in tried:
        if not order.failed:
            break
        last = last or moment(order.completed) or moment(order.created)
        failed += 1
    if last is None:
        return None
    return last + timedelta(seconds=BACKOFF[min(failed, len(BACKOFF)) - 1])
