"""When a session leaves its node alive, and the operator's part of it. Pure.

The agents of the two nodes do the work, and the sidecars decide who has it, by the Lease: a move is
over when the Lease says the next epoch, and until then the source can take its offer back. So
nothing here can make two of a session; at worst a target pod waits in vain, and is deleted.

With post-copy the session runs elsewhere before its memory is there (`following`). Until the order
is over, or it is clear that nobody comes to its end, the former pod and its budget stay, and
nothing else is ordered.

A pod that is deleted is a reason too, as long as there is time (`leaving.py`). Its hold puts the
SIGTERM off while `leaving` says so, in the status, where the sidecar reads it.

Called for a session whose command runs and whose Lease is renewed. First row that fits:

    no reason to move    a target pod, and an order       Wait: it may be just arriving there
                         a target pod                     CancelMove: the source goes on
                         none                             nothing
    target               keeps off a node that is fit now CancelMove, and another is made
                         finished, or its move failed     AbandonMove, and later again
                         of another image                 AbandonMove, likewise
                         being deleted, or coming up      Wait
                         up, and it is just being stored  Wait: one order at a time
                         up, and nobody told the agent    CreateCheckpoint; its memory may follow
                                                          if the session wants it and both nodes can
                         up                               Wait: the agents are at it
    no target            failed just now                  Wait
                         else                             CreateTarget
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from holdfast_operator import keeps, suspension
from holdfast_operator import leaving as leaves
from holdfast_operator.model import Observed, PodSeen
from holdfast_operator.orders import CheckpointSeen, Trigger, late_for
from holdfast_operator.pods import in_vain


@dataclass(frozen=True, slots=True)
class Reason:
    trigger: Trigger
    node: str = ""  # where to; "": wherever there is room


@dataclass(frozen=True, slots=True)
class CreateTarget:
    """A pod for the next epoch in which nothing runs until the session has arrived."""

    epoch: int
    reason: Reason


@dataclass(frozen=True, slots=True)
class CreateCheckpoint:
    """Tells the source's agent to go."""

    epoch: int
    target: PodSeen
    trigger: Trigger
    post_copy: bool = False
    until: datetime | None = None  # by then it is over: the source's pod goes


@dataclass(frozen=True, slots=True)
class AbandonMove:
    """The target pod goes; the session runs on where it is, and the move is tried again later."""

    target: PodSeen
    why: str


@dataclass(frozen=True, slots=True)
class CancelMove:
    """There is no reason for it any more, or for this target."""

    target: PodSeen


@dataclass(frozen=True, slots=True)
class AwaitMove:
    """Nothing to do until something changes, or `until`."""

    until: float | None = None


Move = CreateTarget | CreateCheckpoint | AbandonMove | CancelMove | AwaitMove


def reason(seen: Observed) -> Reason | None:
    """Why the current incarnation should be elsewhere; None: it should not, or it cannot."""
    node, pod = seen.node, seen.pod
    if node is None or pod is None or not node.agent or seen.session.ended:
        return None
    if int(seen.session.status.get("epoch") or 0) < seen.epoch:
        return None  # the mark that outlives the Lease comes first: docs/lease.md, rule 15
    if suspension.wanted(seen) is not None or (pod.deleting and not _in_time(seen, pod)):
        return None
    asked = seen.session.asked_to_move
    if asked is not None and asked[0] == seen.epoch and asked[1] != node.name:
        return Reason(Trigger.MANUAL, asked[1])
    if (seen.drained or pod.deleting) and seen.session.on_drain == "Live":
        return Reason(Trigger.DRAIN)
    return None


def _in_time(seen: Observed, pod: PodSeen) -> bool:
    """Whether a pod that is being deleted leaves time to move. What a process of the session keeps
    from moving for certain has the command told at once, while it has all of its time."""
    if not pod.lingers or pod.goes_at is None or (seen.lease is not None and seen.lease.blockers):
        return False
    return seen.wall < leaves.too_late_at(pod.goes_at)


def leaving(seen: Observed) -> datetime | None:
    """Until when the current incarnation's hold is to put off the SIGTERM that its pod's deletion
    brought: the session is being moved away meanwhile."""
    pod, lease = seen.pod, seen.lease
    if pod is None or not pod.deleting or pod.goes_at is None or seen.session.deleting:
        return None
    runs = lease is not None and lease.started and not lease.record.released and not seen.may_take
    return leaves.until(pod.goes_at) if runs and reason(seen) is not None else None


def decide(seen: Observed) -> Move | None:
    wanted, target = reason(seen), seen.target
    if wanted is None:
        if target is None or target.deleting:
            return None
        under_way = seen.checkpoint is not None and not seen.checkpoint.over
        return AwaitMove() if under_way else CancelMove(target)
    if target is None:
        if seen.now < seen.move_retry_at:
            return _await(seen, seen.move_retry_at)
        return CreateTarget(seen.epoch + 1, wanted)
    if target.deleting:
        return _await(seen)
    if in_vain(target, seen.unfit):
        return CancelMove(target)
    if target.finished:
        return AbandonMove(target, f"pod {target.name} ended before the session arrived in it")
    found = seen.checkpoint
    if found is not None and found.phase == "Failed":
        return AbandonMove(target, found.message or "the agent did not say why")
    source = seen.pod
    if target.up and source is not None and target.image != source.image:
        return AbandonMove(
            target,
            f"{target.node} has another image by that name: {target.image or 'unknown'} instead of"
            f" {source.image or 'unknown'}. Name the image by its digest",
        )
    if target.up and found is None and keeps.under_way(seen) is None:
        return _order(seen, target, wanted)
    return _await(seen)


def _order(seen: Observed, target: PodSeen, wanted: Reason) -> CreateCheckpoint:
    """Memory follows for as long as it takes, and a pod that is being deleted does not wait."""
    both, goes_at = (seen.node, seen.target_node), seen.pod.goes_at if seen.pod else None
    can = all(node is not None and node.post_copy for node in both) and goes_at is None
    until = None if goes_at is None else leaves.order_until(goes_at)
    return CreateCheckpoint(
        seen.epoch, target, wanted.trigger, seen.session.post_copy and can, until
    )


def _await(seen: Observed, until: float | None = None) -> AwaitMove:
    """And to be looked at again when the time of a pod that is being deleted is up."""
    goes_at = seen.pod.goes_at if seen.pod is not None else None
    if goes_at is None:
        return AwaitMove(until)
    late = seen.now + (leaves.too_late_at(goes_at) - seen.wall).total_seconds()
    return AwaitMove(late if until is None else min(until, late))


def following(seen: Observed) -> CheckpointSeen | None:
    """The order by which memory of the current incarnation is still on its way to it, out of the
    pod that it ran in before. Without that pod it would be lost."""
    lease, pod = seen.lease, seen.pod
    if lease is None or lease.vacant or lease.record.released or not lease.moved or pod is None:
        return None
    if seen.may_take or seen.session.ended:
        return None
    order = late_for(seen.orders or (), pod.uid)
    return order if order is not None and order.under_way(seen.wall) else None
