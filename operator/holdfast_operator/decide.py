"""What to do next for one Session, from everything that is known of it. Pure.

Invariant: a step that lets another incarnation run (`Grant`, `TakeOver`) or that makes an end of
one (`Fence`) is returned only if the Observer said that this very version of the Lease may be
taken: its holder released it, or nobody renewed it for the Lease's whole duration. `perform` then
does it by compare-and-swap on that version.

First row that fits:

    being deleted    no finalizer of ours                     Wait
                     pods not yet deleted                     DeletePods
                     pods still going, not overdue            Wait, grace + duration at most
                     Lease there                              DeleteLease (an overdue holder fences)
                     else                                     RemoveFinalizer
    no finalizer                                              AddFinalizer
    over             current pod may still run, may take      Fence
                     pods of older epochs, or for a move      DeletePods
                     its pod runs on a minute later           DeletePods
                     budget there                             DeleteBudget
                     time to live is up                       DeleteSession
                     else                                     Wait
    not begun        to be ended                              End: Ended
                     spec refused, or names taken             Wait
                     suspended                                Wait
                     a fork                                   (forks.py), then Grant with a note
                     else                                     Grant epoch 1, and access with it
    no access        ServiceAccount, Role, RoleBinding        EnsureAccess
    no Lease                                                  Bar, for nobody, then wait as ever
    rolled back      a person accepted, may take              TakeOver above the accepted epoch
                     else                                     Wait
    older epochs     their pods not yet deleted               DeletePods, but not the one that
                                                              memory is still to come from
    asleep           to be ended                              DeletePods, End: Ended
                     not yet in the status                    RaiseEpoch
                     its pod is done with                     DeletePods
                     budget there                             DeleteBudget
                     is to wake                               woken
                     else                                     Wait
    released         command could not start                  End: Failed
                     command exited, or was to be ended       End: Ended
                     drained, onDrain: End                    End: Ended
                     pod was terminated                       lost: PodDeleted
                     no word                                  lost: Released, or MemoryLost if
                                                              that was still to come
    to be ended      pod runs                                 DeletePods
                     may take                                 End: Ended
                     else                                     Wait
    vacant           epoch not yet in the status              RaiseEpoch
                     pod waits for a move that came to nought DeletePods
                     no pod, and its checkpoint is spent      lost
                     no pod                                   CreatePod, if not again and again
                     pod finished or going                    lost: PodFailed, PodDeleted
                     pod waits for a checkpoint               (restores.py)
                     pod coming up                            (below)
    held             may take                                 lost: HostLost
                     no pod, or it finished                   Wait
    in order         budget is not for this epoch             SetBudget; or while memory is still to
                                                              come, for the one before, then Wait
                     onDrain: End, and there is a budget      DeleteBudget: a drain ends it
                     nobody there for long, idle.then: End    SetEnded
                     it runs, and is to be elsewhere          (moves.py)
                     it runs, and is to be stored             (keeps.py)
                     else                                     Wait

    lost             may not yet take                         Wait
                     to be ended                              End: Ended
                     drained, onDrain: End                    End: Ended
                     status says asleep, and it has started   RaiseEpoch: it is not any more
                     asleep until now                         woken
                     a fork that never started                (forks.py), then TakeOver
                     onHostLoss: Fail                         End: Failed
                     failing again and again                  Wait
                     RestoreLast, and there is a checkpoint   TakeOver, epoch + 1, to go on from it
                     else                                     TakeOver, epoch + 1, to begin anew
    woken            may not yet take, or no checkpoint       Wait: it never begins anew
                     failing again and again                  Wait
                     else                                     TakeOver, epoch + 1, to go on from it
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from holdfast_operator import forks, keeps, moves, names, restores, suspension
from holdfast_operator.model import TERMINAL, Cause, LeaseSeen, Observed, Phase, Recovery
from holdfast_operator.notes import Exit
from holdfast_operator.orders import CheckpointSeen, Trigger, late_for, named
from holdfast_operator.steps import (
    AddFinalizer,
    Bar,
    CreatePod,
    DeleteBudget,
    DeleteLease,
    DeletePods,
    DeleteSession,
    End,
    EnsureAccess,
    Fence,
    Grant,
    RaiseEpoch,
    RemoveFinalizer,
    SetBudget,
    SetEnded,
    Step,
    TakeOver,
    Wait,
)
from holdfast_operator.suspension import Sleep
from holdfast_operator.times import moment

# How long a step that waits for another's act (names taken) waits before it looks again.
LOOK_AGAIN_SECONDS: Final = 10.0
# A pod whose session ended stops by itself, unless another container of the template goes on.
SETTLE_SECONDS: Final = 60.0
DRAINED: Final = "its node was drained, and spec.move.onDrain is End"


def decide(seen: Observed) -> Step:
    session = seen.session
    if session.deleting:
        return _deleting(seen)
    if names.FINALIZER not in session.finalizers:
        return AddFinalizer()
    if session.phase in TERMINAL:
        return _over(seen)
    if session.ended and not seen.begun:
        return End(Phase.ENDED, "Ended", "it was ended before it began")
    if seen.refusal and not seen.begun:
        return Wait()
    taken = _names_taken(seen)
    if taken:
        return Wait(seen.now + LOOK_AGAIN_SECONDS, ("NameTaken", taken))
    if not seen.begun:
        return _begin(seen)
    if not seen.access:
        return EnsureAccess()
    if seen.lease is None:
        return Bar(seen.high_water + 1)
    if seen.rolled_back:
        return _rolled_back(seen)
    return _current(seen)


def _begin(seen: Observed) -> Step:
    if seen.session.suspended:
        return Wait()
    if seen.session.fork_from is not None:
        return _fork(seen, lambda order: Grant(1, restores.forked(1, order)))
    return Grant(1)


def _fork(seen: Observed, begin: Callable[[CheckpointSeen], Step]) -> Step:
    match forks.decide(seen):
        case CheckpointSeen() as order:
            return begin(order)
        case forks.Unable(message):
            return Wait(seen.now + LOOK_AGAIN_SECONDS, ("NotForkable", message))
        case forks.Awaiting(until):
            return Wait(min(until or seen.now + LOOK_AGAIN_SECONDS, seen.now + LOOK_AGAIN_SECONDS))
        case keeps.CreateKeep() as step:
            return step


def _deleting(seen: Observed) -> Step:
    if names.FINALIZER not in seen.session.finalizers:
        return Wait()
    owned = [pod for pod in seen.pods if pod.owned]
    going = _to_delete(seen, seen.high_water + 2)  # a target's too
    if going:
        return going
    if owned:
        since = seen.now if seen.deleting_since is None else seen.deleting_since
        overdue = since + seen.session.grace + seen.session.lease_seconds
        if seen.now < overdue:
            return Wait(overdue)
    if seen.lease is not None and seen.lease.owned:
        return DeleteLease()
    return RemoveFinalizer()


def _over(seen: Observed) -> Step:
    lease = seen.lease
    if lease is not None and lease.owned and not lease.record.released:
        pod = seen.pod
        may_run = lease.record.holder != "" or (pod is not None and not pod.finished)
        if may_run and seen.may_take:
            return Fence(max(lease.epoch, seen.high_water) + 1)
    old = _to_delete(seen, seen.epoch)
    if old:
        return old
    target = seen.target
    if target is not None and not target.deleting:
        return DeletePods(((target.name, target.uid),))
    if seen.budget is not None:
        return DeleteBudget()
    ended = moment(seen.session.status.get("endedAt"))
    if ended is None:
        return Wait()
    since = (seen.wall - ended).total_seconds()
    pod = seen.pod
    if pod is not None and not pod.finished and not pod.deleting:
        if since >= SETTLE_SECONDS:
            return DeletePods(((pod.name, pod.uid),))
        return Wait(seen.now + SETTLE_SECONDS - since)
    left = seen.session.ttl - since
    return DeleteSession() if left <= 0 else Wait(seen.now + left)


def _names_taken(seen: Observed) -> str | None:
    """Objects of somebody else, or of a deleted Session of the same name that is not quite gone:
    its holder might still look at a Lease of this name."""
    name = seen.session.name
    if seen.lease is not None and not seen.lease.owned:
        return (
            f'a Lease "{name}" is there that is not this session\'s: delete it, or use another name'
        )
    others = [pod.name for pod in seen.pods if not pod.owned]
    if others and seen.lease is None:
        return (
            f'pod "{others[0]}" has this session\'s label and is not its own: waiting for it to go'
        )
    return None


def _rolled_back(seen: Observed) -> Step:
    accepted = seen.session.accepted_epoch
    if accepted is None or accepted < seen.high_water:
        return Wait()
    if not seen.may_take:
        return Wait(seen.take_at)
    sleep = suspension.asleep(seen)
    if sleep is None:
        return TakeOver(accepted + 1, Cause.ROLLED_BACK)
    order = named(seen.orders or (), sleep.checkpoint)
    if order is None or not order.usable:
        return Wait()
    told = restores.woken(sleep, accepted + 1, order)
    return TakeOver(accepted + 1, Cause.ROLLED_BACK, told)


def _current(seen: Observed) -> Step:
    lease = seen.lease
    if lease is None:
        raise AssertionError("the rows for a missing Lease come first")
    late = moves.following(seen)
    old = _to_delete(seen, lease.epoch, keep="" if late is None else late.pod)
    if old:
        return old
    sleep = suspension.asleep(seen)
    if sleep is not None and (lease.record.released or seen.barred):
        return _asleep(seen, sleep)
    if lease.record.released:
        return _released(seen)
    if seen.session.ended:
        return _to_be_ended(seen)
    pod = seen.pod
    if lease.record.holder == "":
        step = _vacant(seen, lease)
        if step is not None:
            return step
    elif seen.may_take:
        return _lost(seen, Cause.LEASE_MISSING if seen.barred else Cause.HOST_LOST)
    elif pod is None or pod.finished:
        return Wait(seen.take_at)
    covered = lease.epoch if late is None else late.epoch
    if seen.session.on_drain == "End" and late is None:
        if seen.budget is not None:
            return DeleteBudget()
    elif seen.budget != covered:
        return SetBudget(covered)
    if late is not None:
        return Wait(seen.now + (late.ends_at(seen.wall) - seen.wall).total_seconds())
    if lease.record.holder != "":
        return _running(seen) if lease.started else Wait()
    at = restores.gives_up_at(seen)
    return Wait(None if at is None else seen.now + (at - seen.wall).total_seconds())


def _vacant(seen: Observed, lease: LeaseSeen) -> Step | None:
    """None: its pod is coming up."""
    pod, told = seen.pod, lease.restore
    if pod is not None and pod.restores:
        return Wait() if pod.deleting else DeletePods(((pod.name, pod.uid),))
    if pod is None:
        if int(seen.session.status.get("epoch") or 0) < lease.epoch:
            return RaiseEpoch()
        if told is not None and told.why is Trigger.WAKE and seen.session.suspended:
            return Wait()
        stored = None if told is None else restores.found(seen, told)
        if stored is None and (told is not None or suspension.asleep(seen) is not None):
            return _lost(seen, Cause.POD_FAILED)
        again = seen.now < seen.retry_at
        return Wait(seen.retry_at) if again else CreatePod(lease.epoch, stored)
    if pod.finished or pod.deleting:
        return _lost(seen, Cause.POD_FAILED if pod.finished else Cause.POD_DELETED)
    step = restores.bring(seen, told, pod) if told is not None else None
    if isinstance(step, restores.Abandon):
        return DeletePods(((pod.name, pod.uid),))
    return step


def _running(seen: Observed) -> Step:
    if seen.session.when_idle == "End" and suspension.is_idle(seen):
        return SetEnded()
    later: float | None = None
    match moves.decide(seen):
        case None:
            pass
        case moves.AwaitMove(until) if seen.target is None:
            later = until  # a move that is to be tried again keeps nobody from storing it
        case moves.AwaitMove(until):
            return Wait(until)
        case step:
            return step
    match keeps.decide(seen):
        case None:
            return Wait(later)
        case keeps.AwaitKeep(until):
            times = [at for at in (later, until) if at is not None]
            return Wait(min(times) if times else None)
        case kept:
            return kept


def _asleep(seen: Observed, sleep: Sleep) -> Step:
    pod, order = seen.pod, named(seen.orders or (), sleep.checkpoint)
    if seen.session.ended:
        return _to_be_ended(seen)
    if (seen.session.status.get("suspended") or {}).get("checkpoint") != sleep.checkpoint:
        return RaiseEpoch()
    if pod is not None and not pod.deleting and (pod.finished or order is None or order.over):
        # Not sooner: the agent is still at it.
        return DeletePods(((pod.name, pod.uid),))
    if seen.budget is not None:
        return DeleteBudget()
    return _woken(seen, sleep) if suspension.wakes(seen, sleep) else Wait()


def _woken(seen: Observed, sleep: Sleep) -> Step:
    if not seen.may_take:
        return Wait(seen.take_at)
    order = named(seen.orders or (), sleep.checkpoint)
    if order is None or not order.usable:
        return Wait()
    if seen.now < seen.retry_at:
        return Wait(seen.retry_at)
    epoch = max(seen.epoch, seen.high_water) + 1
    return TakeOver(epoch, Cause.SUSPENDED, restores.woken(sleep, epoch, order))


def _released(seen: Observed) -> Step:
    lease = seen.lease
    if lease is None:
        raise AssertionError("a missing Lease is not released")
    if lease.start_error is not None:
        return End(Phase.FAILED, "StartError", lease.start_error)
    left = lease.exit
    if left is not None and (left.cause != "terminated" or seen.session.ended):
        return End(Phase.ENDED, "Ended", _how(left), left)
    if left is not None and _drain_ends(seen):
        return End(Phase.ENDED, "Drained", f"{DRAINED}: {_how(left)}", left)
    if left is not None:
        return _lost(seen, Cause.POD_DELETED)
    pod = seen.pod
    late = late_for(seen.orders or (), pod.uid) if pod is not None else None
    return _lost(seen, Cause.RELEASED if late is None else Cause.MEMORY_LOST)


def _to_be_ended(seen: Observed) -> Step:
    pod = seen.pod
    if pod is not None and not pod.deleting and not pod.finished:
        return DeletePods(((pod.name, pod.uid),))
    if not seen.may_take:
        return Wait(seen.take_at)
    return _ended(seen)


def _ended(seen: Observed) -> End:
    if suspension.asleep(seen) is not None:
        return End(Phase.ENDED, "Ended", "it was ended while it was suspended")
    return End(Phase.ENDED, "Ended", "it was ended; its command's exit was not seen")


def _lost(seen: Observed, cause: Cause) -> Step:
    if not seen.may_take:
        return Wait(seen.take_at)
    session, epoch = seen.session, max(seen.epoch, seen.high_water) + 1
    if session.ended:
        return _ended(seen)
    if cause in (Cause.POD_DELETED, Cause.HOST_LOST) and _drain_ends(seen):
        return End(Phase.ENDED, "Drained", f"{DRAINED}; its command's exit was not seen")
    if _behind(seen):
        return RaiseEpoch()
    sleep = suspension.asleep(seen)
    if sleep is not None:
        return _woken(seen, sleep) if suspension.wakes(seen, sleep) else Wait()
    if session.fork_from is not None:
        if seen.now < seen.retry_at:
            return Wait(seen.retry_at)
        return _fork(seen, lambda order: TakeOver(epoch, cause, restores.forked(epoch, order)))
    if session.recovery is Recovery.FAIL:
        message = f"incarnation {seen.epoch} was lost: {cause.sentence}"
        return End(Phase.FAILED, cause.value, f"{message}; spec.recovery.onHostLoss is Fail")
    if seen.now < seen.retry_at:
        return Wait(seen.retry_at)
    goes_on = session.recovery is Recovery.RESTORE_LAST
    return TakeOver(epoch, cause, restores.last(seen, epoch, cause) if goes_on else None)


def _drain_ends(seen: Observed) -> bool:
    return seen.session.on_drain == "End" and seen.drained


def _behind(seen: Observed) -> bool:
    """The status still says that it is asleep, or a fork that has not begun, and one incarnation
    has started since. Forgotten with its Lease, that would be taken for true."""
    lease, session = seen.lease, seen.session
    if lease is None or not lease.started:
        return False
    told = lease.restore
    forked = told is not None and told.why is Trigger.FORK and session.fork_from is not None
    return forked or (bool(session.status.get("suspended")) and not lease.suspended)


def _to_delete(seen: Observed, below: int, keep: str = "") -> DeletePods | None:
    """Two pods that both claim the same epoch are never chosen between: only older ones go.
    `keep`: the UID of one that does not yet."""
    found = [
        (pod.name, pod.uid)
        for pod in seen.pods
        if pod.owned and not pod.deleting and pod.epoch < below and pod.uid != keep
    ]
    return DeletePods(tuple(found)) if found else None


def _how(left: Exit) -> str:
    if left.signal is not None:
        return f"the command was ended by signal {left.signal}"
    if left.code is not None:
        return f"the command exited with status {left.code}"
    return "the command is gone; how it ended is not known"
