"""What an incarnation goes on from, if not from nothing: the last checkpoint of one that was lost,
the one that a suspended session is stored in, the one that a fork begins from. Pure.

Invariant: nothing here lets an incarnation run. The epoch is granted as any other (`decide`), with
a note in the Lease of what it goes on from; its pod waits, and its sidecar takes the vacant Lease
when the agent has brought everything. So a bring that fails, or that nobody answers for, leaves a
vacant Lease and nothing else.

With a vacant Lease that has such a note, and its pod. First row that fits:

    nobody told the agent    to be suspended again           DeletePods
                             keeps off a node that is fit    DeletePods: and another is made
                             its containers run              CreateBring
                             else                            (wait for them)
    told                     failed, or it takes too long    DeletePods: lost, and tried again
                             else                            (wait for it)
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from holdfast_operator.model import Cause, Observed, PodSeen
from holdfast_operator.notes import Restore
from holdfast_operator.orders import (
    CheckpointSeen,
    Kind,
    Trigger,
    bring_for,
    keeps,
    late_for,
    named,
)
from holdfast_operator.pods import in_vain
from holdfast_operator.suspension import Sleep
from holdfast_operator.times import at_second, length, moment, stamp

# How often one checkpoint is tried after a loss, before an older one is.
TRIES: Final = 2
WOKEN: Final = "Woken"
FORKED: Final = "Forked"


@dataclass(frozen=True, slots=True)
class CreateBring:
    """Tells the agent of the pod's node to bring what the checkpoint stored."""

    checkpoint: CheckpointSeen
    pod: PodSeen
    trigger: Trigger


@dataclass(frozen=True, slots=True)
class Abandon:
    """The pod goes: nothing will come into it."""

    pod: PodSeen


@dataclass(frozen=True, slots=True)
class Loss:
    """What was lost last, however often it was tried to go on since."""

    cause: Cause
    epoch: int
    until: str  # when it was last heard of
    node: str  # where it was, if that may be the reason

    @classmethod
    def of(cls, seen: Observed, cause: Cause) -> Loss:
        lease = seen.lease
        told = lease.restore if lease is not None and lease.vacant else None
        if told is not None and told.why is Trigger.RECOVER and told.reason in set(Cause):
            return cls(Cause(told.reason), told.lost, told.until, told.avoid)
        heard = (lease.renewed if lease else "", seen.session.status.get("lastActiveTime"))
        until = next((str(at) for at in heard if moment(at) is not None), stamp(seen.wall))
        pod = seen.pod
        node = pod.node if pod is not None and pod.node else seen.session.status.get("nodeName")
        late = late_for(seen.orders or (), pod.uid) if pod is not None else None
        if cause is Cause.MEMORY_LOST and late is not None:
            node = late.node  # it may be lost, and nobody has noticed
        avoid = str(node or "") if cause in (Cause.HOST_LOST, Cause.MEMORY_LOST) else ""
        return cls(cause, max(seen.epoch, seen.high_water), until, avoid)


def last(seen: Observed, epoch: int, cause: Cause) -> Restore | None:
    """What the incarnation `epoch` goes on from after a loss; None: there is nothing."""
    loss = Loss.of(seen, cause)
    found = [
        order
        for order in keeps(seen.orders or ())
        if order.usable and order.epoch <= seen.epoch and failures(seen, order.name) < TRIES
    ]
    # What the lost node itself kept can be had only if it comes back.
    found.sort(key=lambda order: order.location == f"peer://{loss.node}")
    if not found:
        return None
    order = found[0]
    return Restore(
        order.name, Trigger.RECOVER, loss.cause.value, _told(order, loss, epoch),
        loss.node, loss.epoch, loss.until,
    )  # fmt: skip


def _told(order: CheckpointSeen, loss: Loss, epoch: int) -> str:
    said = f"Incarnation {loss.epoch} of this session was lost: {loss.cause.sentence}."
    taken, until = moment(order.taken), moment(loss.until)
    if taken is None or until is None:
        return f"{said} Incarnation {epoch} goes on from checkpoint {order.name}."
    gone = length((until - taken).total_seconds())
    return (
        f"{said} Incarnation {epoch} goes on from checkpoint {order.name}, taken"
        f" {at_second(taken)}; what happened after that is gone. It was last heard of at"
        f" {at_second(until)}, {gone} later."
    )


def failures(seen: Observed, checkpoint: str) -> int:
    """How often it was tried in vain to go on from this one."""
    return sum(
        order.kind is Kind.BRING
        and order.origin == checkpoint
        and (order.failed or order.overdue(seen.wall))
        and not order.unread
        for order in seen.orders or ()
    )


def problem(seen: Observed) -> str:
    """Why the last try failed to bring this incarnation, or the one before it, back."""
    lease = seen.lease
    told = lease.restore if lease is not None else None
    if lease is None or lease.started:
        return ""
    failed = [
        order
        for order in seen.orders or ()
        if order.kind is Kind.BRING and (order.failed or order.overdue(seen.wall))
        and (told is None or told.checkpoint == order.origin)
    ]  # fmt: skip
    failed.sort(key=lambda order: (order.created, order.name))
    if not failed:
        return ""
    return failed[-1].message or f"the agent did not say why ({failed[-1].name})"


def woken(sleep: Sleep, epoch: int, order: CheckpointSeen) -> Restore:
    message = f"Incarnation {epoch} goes on where {order.epoch} was suspended ({sleep.checkpoint})."
    return Restore(sleep.checkpoint, Trigger.WAKE, WOKEN, message)


def forked(epoch: int, order: CheckpointSeen) -> Restore:
    taken = moment(order.taken)
    when = f" as it was at {at_second(taken)}" if taken else ""
    message = f"Incarnation {epoch} is a fork of session {order.session[0]}{when} ({order.name})."
    return Restore(
        order.name, Trigger.FORK, FORKED, message, session=order.session[0], taken=order.taken
    )


def found(seen: Observed, told: Restore) -> CheckpointSeen | None:
    """The checkpoint that the note is about, if it can be brought."""
    orders = seen.origins if told.why is Trigger.FORK else seen.orders or ()
    order = named(orders, told.checkpoint)
    if order is None or not order.usable:
        return None
    spent = told.why is Trigger.RECOVER and failures(seen, order.name) >= TRIES
    return None if spent else order


def bring(seen: Observed, told: Restore, pod: PodSeen) -> CreateBring | Abandon | None:
    order = bring_for(seen.orders or (), pod.uid)
    if order is not None:
        return Abandon(pod) if order.failed or order.overdue(seen.wall) else None
    stored = found(seen, told)
    if stored is None or (told.why is Trigger.WAKE and seen.session.suspended):
        return Abandon(pod)
    if in_vain(pod, seen.unfit):
        return Abandon(pod)
    return CreateBring(stored, pod, told.why) if pod.up else None


def gives_up_at(seen: Observed) -> datetime | None:
    pod = seen.pod
    order = bring_for(seen.orders or (), pod.uid) if pod is not None else None
    return None if order is None or order.over else order.ends_at(seen.wall)
