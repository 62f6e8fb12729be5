"""Whether a session is to be stored and stopped, whether it is, and whether it is to go on. Pure.

Invariant: a session that is stored is asleep until an incarnation of it has started, whatever
becomes of its Lease meanwhile. One that is asleep never begins anew.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from holdfast_operator import names
from holdfast_operator.model import Observed
from holdfast_operator.orders import Trigger, named
from holdfast_operator.times import moment


@dataclass(frozen=True, slots=True)
class Sleep:
    checkpoint: str
    why: str  # Suspend | Idle | Drain
    epoch: int  # the incarnation that was stored


def asleep(seen: Observed) -> Sleep | None:
    """By the Lease that its last incarnation gave back; by the status, which outlives that Lease,
    until another incarnation has started."""
    lease, noted = seen.lease, seen.session.status.get("suspended") or {}
    name = lease.suspended if lease is not None else ""
    if not name and (lease is None or not lease.started):
        name = str(noted.get("checkpoint") or "")
    if not name:
        return None
    order = named(seen.orders or (), name)
    if order is not None:
        return Sleep(name, order.trigger, order.epoch)
    same = noted.get("checkpoint") == name
    return Sleep(name, str(noted.get("why") if same else Trigger.SUSPEND.value), seen.epoch)


def wanted(seen: Observed) -> Trigger | None:
    """Why the current incarnation should be stored and stopped."""
    session = seen.session
    if session.ended:
        return None
    if session.suspended:
        return Trigger.SUSPEND
    if seen.drained and session.on_drain == "Hibernate":
        return Trigger.DRAIN
    return Trigger.IDLE if session.when_idle == "Hibernate" and is_idle(seen) else None


def is_idle(seen: Observed) -> bool:
    at = idle_at(seen)
    return at is not None and at <= seen.wall


def idle_at(seen: Observed) -> datetime | None:
    """When nobody will have been there for long enough; None: somebody is, or it does not matter.

    Counted from its start too: one that was woken has been idle for long by its own memory."""
    session, lease = seen.session, seen.lease
    if lease is None or session.when_idle == "Keep" or lease.annotations.get(names.CLIENTS) != "0":
        return None
    times = (lease.annotations.get(names.ACTIVE), session.status.get("startedAt"))
    found = [at for at in map(moment, times) if at is not None]
    if len(found) < len(times):
        return None
    return max(found) + timedelta(seconds=session.idle_seconds)


def wakes(seen: Observed, sleep: Sleep) -> bool:
    """Whether it is to go on. What was drained goes on wherever there is room."""
    if seen.session.suspended:
        return False
    return sleep.why != Trigger.IDLE or seen.session.asked_to_wake >= sleep.epoch
