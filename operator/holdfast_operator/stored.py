"""The conditions about checkpoints: what an incarnation goes on from, and what it could go on from
if it were lost. Pure."""

from __future__ import annotations

from holdfast_operator import forks, keeps, quota, restores, suspension
from holdfast_operator.conditions import Condition, Reason, Type, as_it_was
from holdfast_operator.model import TERMINAL, LeaseSeen, Observed, Phase
from holdfast_operator.orders import CheckpointSeen, last_complete, named
from holdfast_operator.orders import keeps as newest
from holdfast_operator.times import at_second, moment


def restored(seen: Observed) -> Condition:
    """Whether the current incarnation goes on from a checkpoint; its message says what is lost."""
    lease = seen.lease
    before = as_it_was(seen, Type.RESTORED)
    if before is not None and (lease is None or not lease.owned or seen.rolled_back or lease.moved):
        return before
    told = lease.restore if lease is not None else None
    if lease is None or told is None:
        return Condition(
            Type.RESTORED, "False", Reason.NOT_RESTORED, "it did not begin from a checkpoint"
        )
    if lease.started:
        known = told.reason in set(Reason)
        reason = Reason(told.reason) if known else Reason.RESTORED
        return Condition(Type.RESTORED, "True", reason, told.message)
    why = restores.problem(seen)
    if why:
        message = f"it could not be brought back from {told.checkpoint} and is tried again: {why}"
        return Condition(Type.RESTORED, "False", Reason.RESTORE_FAILED, message)
    message = f"it is being brought back from checkpoint {told.checkpoint}"
    return Condition(Type.RESTORED, "Unknown", Reason.RESTORING, message)


def checkpointed(seen: Observed) -> Condition:
    """Whether there is a checkpoint, and whether it is as new as it should be."""
    before = as_it_was(seen, Type.CHECKPOINTED)
    if seen.orders is None and before is not None:
        return before
    found = newest(seen.orders or ())
    done = [order for order in found if order.over]
    last = last_complete(found)
    if full := quota.refusal(seen):
        goal = "be suspended" if suspension.wanted(seen) is not None else "be stored"
        message = f"it runs on and could not {goal}: {full}; {_still(last)}"
        return _no(Reason.QUOTA_EXCEEDED, message)
    if done and done[0].failed:
        return _no(Reason.CHECKPOINT_FAILED, _failed(done[0], last))
    if _wanted(seen) and seen.node is not None and not seen.node.agent:
        return _no(
            Reason.NO_NODE_AGENT, f"no node agent is ready on {seen.node.name}: {_still(last)}"
        )
    if last is not None:
        return Condition(Type.CHECKPOINTED, "True", Reason.STORED, _still(last))
    if seen.session.keep_every == 0:
        return _no(Reason.SWITCHED_OFF, "spec.checkpoints.everySeconds is 0: there is none")
    return _no(Reason.NOT_YET, "there is none yet")


def _no(reason: Reason, message: str) -> Condition:
    return Condition(Type.CHECKPOINTED, "False", reason, message)


def _wanted(seen: Observed) -> bool:
    return seen.session.keep_every > 0 or suspension.wanted(seen) is not None


def _still(last: CheckpointSeen | None) -> str:
    if last is None:
        return "there is no checkpoint"
    taken = moment(last.taken)
    when = f", taken {at_second(taken)}" if taken else ""
    return f"the last checkpoint is {last.name}{when}"


def _failed(order: CheckpointSeen, last: CheckpointSeen | None) -> str:
    goal = "be suspended" if order.stops else "be stored"
    why = order.message or "the agent did not say why"
    return f"it runs on and could not {goal}: {why}. It is tried again; {_still(last)}"


def sleeping(seen: Observed) -> Condition:
    """Ready, of a suspended session."""
    sleep, name = suspension.asleep(seen), seen.session.name
    if sleep is None:
        return _not_ready(Reason.SUSPENDED, "spec.suspended is true: it has not begun")
    order = named(seen.orders or (), sleep.checkpoint)
    # The Lease may say it a moment before the order does.
    done = order is not None and (order.usable or order.under_way(seen.wall))
    if seen.orders is not None and not done:
        state = "gone" if order is None else f"not complete ({order.phase})"
        return _not_ready(
            Reason.CHECKPOINT_GONE,
            f"checkpoint {sleep.checkpoint}, in which it is stored, is {state}: it cannot go on."
            " Set spec.ended to true to end it",
        )
    return _not_ready(
        Reason.SUSPENDED,
        f"it is stored in checkpoint {sleep.checkpoint}; kubectl holdfast wake {name} lets it go"
        " on",
    )


def coming_back(seen: Observed, lease: LeaseSeen) -> Condition:
    """Ready, of one that is being brought back."""
    pod = seen.pod
    if seen.problem:
        return _not_ready(Reason(seen.problem.reason), seen.problem.message)
    if pod is not None and pod.trouble and not pod.up:
        return _not_ready(Reason(pod.trouble[0]), pod.trouble[1])
    if pod is None and seen.now < seen.retry_at:
        why = restores.problem(seen) or "its pods end before it is back"
        return _not_ready(Reason.BACKING_OFF, f"{why}; trying again later")
    told = lease.restore
    name = told.checkpoint if told is not None else "a checkpoint"
    return _not_ready(Reason.RESTORING, f"incarnation {seen.epoch} is to go on from {name}")


def forking(seen: Observed) -> Condition:
    """Ready, of a fork that waits for the other session to be stored."""
    asked = seen.session.fork_from or {}
    name = asked.get("session") or asked.get("checkpoint")
    why = forks.problem(seen) or forks.full(seen)
    if why:
        return _not_ready(Reason.FORKING, f"{name} could not be stored and is tried again: {why}")
    return _not_ready(Reason.FORKING, f"waiting until {name} is stored")


def _not_ready(reason: Reason, message: str) -> Condition:
    return Condition(Type.READY, "False", reason, message)


def suspending(seen: Observed) -> Condition | None:
    """Ready, of one that is just being stored to be stopped."""
    order = keeps.under_way(seen)
    if order is None or not order.stops:
        return None
    return Condition(
        Type.READY, "True", Reason.SUSPENDING, f"it is being stored ({order.name}), then it stops"
    )


def phase_of(seen: Observed) -> Phase | None:
    """Suspended or Restoring; None: neither."""
    lease, sleep = seen.lease, suspension.asleep(seen)
    taken = lease is not None and not lease.owned
    if seen.session.phase in TERMINAL or seen.rolled_back or taken:
        return None
    if sleep is not None and (lease is None or lease.record.released or seen.barred):
        return Phase.SUSPENDED
    if not seen.begun:
        return Phase.SUSPENDED if seen.session.suspended and not seen.refusal else None
    if lease is None or not lease.vacant or lease.restore is None:
        return None
    waits = sleep is not None and seen.session.suspended and seen.pod is None
    return Phase.SUSPENDED if waits else Phase.RESTORING
