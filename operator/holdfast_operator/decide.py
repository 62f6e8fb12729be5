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
                     else                                     Grant epoch 1, and access with it
    no access        ServiceAccount, Role, RoleBinding        EnsureAccess
    no Lease                                                  Bar, for nobody, then wait as ever
    rolled back      a person accepted, may take              TakeOver above the accepted epoch
                     else                                     Wait
    older epochs     their pods not yet deleted               DeletePods
    released         command could not start                  End: Failed
                     command exited, or was to be ended       End: Ended
                     pod was terminated                       lost: PodDeleted
                     no word                                  lost: Released
    to be ended      pod runs                                 DeletePods
                     may take                                 End: Ended
                     else                                     Wait
    vacant           epoch not yet in the status              RaiseEpoch
                     pod waits for a move that came to nought DeletePods
                     no pod                                   CreatePod, if not again and again
                     pod finished or going                    lost: PodFailed, PodDeleted
                     pod coming up                            (below)
    held             may take                                 lost: HostLost
                     no pod, or it finished                   Wait
    in order         budget is not for this epoch             SetBudget
                     it runs, and is to be elsewhere          (moves.py)
                     else                                     Wait

    lost             may not yet take                         Wait
                     to be ended                              End: Ended
                     onHostLoss: Fail                         End: Failed
                     failing again and again                  Wait
                     else                                     TakeOver, epoch + 1
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from holdfast_operator import moves, names
from holdfast_operator.model import TERMINAL, Cause, Exit, Observed, Phase, Recovery

# How long a step that waits for another's act (names taken) waits before it looks again.
LOOK_AGAIN_SECONDS: Final = 10.0
# A pod whose session ended stops by itself, unless another container of the template goes on.
SETTLE_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do until something changes, or `until` (monotonic)."""

    until: float | None = None
    blocked: tuple[str, str] | None = None  # reason and message, if a person should know


@dataclass(frozen=True, slots=True)
class AddFinalizer:
    pass


@dataclass(frozen=True, slots=True)
class EnsureAccess:
    pass


@dataclass(frozen=True, slots=True)
class Grant:
    """Create the first Lease, vacant, for this epoch; and the access to it, if it is missing."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Bar:
    """Create a Lease that was deleted, held by nobody: what still runs is superseded by it, and
    there is a version again to wait on and to swap."""

    epoch: int


@dataclass(frozen=True, slots=True)
class RaiseEpoch:
    """Write the status, before the epoch's pod is made: the mark outlives the Lease."""


@dataclass(frozen=True, slots=True)
class TakeOver:
    """Swap the Lease to this epoch, vacant."""

    epoch: int
    cause: Cause


@dataclass(frozen=True, slots=True)
class Fence:
    """Swap the Lease to an epoch that gets no pod: the session is over and stays so."""

    epoch: int


@dataclass(frozen=True, slots=True)
class CreatePod:
    epoch: int


@dataclass(frozen=True, slots=True)
class SetBudget:
    epoch: int


@dataclass(frozen=True, slots=True)
class DeletePods:
    """By name and UID, with their grace period: never by force."""

    pods: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class DeleteBudget:
    pass


@dataclass(frozen=True, slots=True)
class DeleteLease:
    pass


@dataclass(frozen=True, slots=True)
class RemoveFinalizer:
    pass


@dataclass(frozen=True, slots=True)
class DeleteSession:
    pass


@dataclass(frozen=True, slots=True)
class End:
    """Write the terminal phase. From then on there is no further incarnation."""

    phase: Phase
    reason: str
    message: str
    exit: Exit | None = None


Step = (
    Wait | AddFinalizer | EnsureAccess | Grant | Bar | TakeOver | Fence | RaiseEpoch | CreatePod
    | SetBudget
    | DeletePods | DeleteBudget | DeleteLease | RemoveFinalizer | DeleteSession | End | moves.Move
)  # fmt: skip


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
        return Grant(1)
    if not seen.access:
        return EnsureAccess()
    if seen.lease is None:
        return Bar(seen.high_water + 1)
    if seen.rolled_back:
        return _rolled_back(seen)
    return _current(seen)


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
    return TakeOver(accepted + 1, Cause.ROLLED_BACK)


def _current(seen: Observed) -> Step:
    lease = seen.lease
    if lease is None:
        raise AssertionError("the rows for a missing Lease come first")
    old = _to_delete(seen, lease.epoch)
    if old:
        return old
    if lease.record.released:
        return _released(seen)
    if seen.session.ended:
        return _to_be_ended(seen)
    pod = seen.pod
    if lease.record.holder == "":
        if pod is not None and pod.restores:
            return Wait() if pod.deleting else DeletePods(((pod.name, pod.uid),))
        if pod is None:
            if int(seen.session.status.get("epoch") or 0) < lease.epoch:
                return RaiseEpoch()
            again = seen.now < seen.retry_at
            return Wait(seen.retry_at) if again else CreatePod(lease.epoch)
        if pod.finished or pod.deleting:
            return _lost(seen, Cause.POD_FAILED if pod.finished else Cause.POD_DELETED)
    elif seen.may_take:
        return _lost(seen, Cause.LEASE_MISSING if seen.barred else Cause.HOST_LOST)
    elif pod is None or pod.finished:
        return Wait(seen.take_at)
    if seen.budget != lease.epoch:
        return SetBudget(lease.epoch)
    step = moves.decide(seen) if lease.record.holder != "" and lease.started else None
    match step:
        case None:
            return Wait()
        case moves.AwaitMove(until):
            return Wait(until)
    return step


def _released(seen: Observed) -> Step:
    lease = seen.lease
    if lease is None:
        raise AssertionError("a missing Lease is not released")
    if lease.start_error is not None:
        return End(Phase.FAILED, "StartError", lease.start_error)
    left = lease.exit
    if left is not None and (left.cause != "terminated" or seen.session.ended):
        return End(Phase.ENDED, "Ended", _how(left), left)
    return _lost(seen, Cause.RELEASED if left is None else Cause.POD_DELETED)


def _to_be_ended(seen: Observed) -> Step:
    pod = seen.pod
    if pod is not None and not pod.deleting and not pod.finished:
        return DeletePods(((pod.name, pod.uid),))
    if not seen.may_take:
        return Wait(seen.take_at)
    return End(Phase.ENDED, "Ended", "it was ended; its command's exit was not seen")


def _lost(seen: Observed, cause: Cause) -> Step:
    if not seen.may_take:
        return Wait(seen.take_at)
    if seen.session.ended:
        return End(Phase.ENDED, "Ended", "it was ended; its command's exit was not seen")
    if seen.session.recovery is Recovery.FAIL:
        message = f"incarnation {seen.epoch} was lost: {cause.sentence}"
        return End(Phase.FAILED, cause.value, f"{message}; spec.recovery.onHostLoss is Fail")
    if seen.now < seen.retry_at:
        return Wait(seen.retry_at)
    return TakeOver(max(seen.epoch, seen.high_water) + 1, cause)


def _to_delete(seen: Observed, below: int) -> DeletePods | None:
    """Two pods that both claim the same epoch are never chosen between: only older ones go."""
    found = [
        (pod.name, pod.uid)
        for pod in seen.pods
        if pod.owned and not pod.deleting and pod.epoch < below
    ]
    return DeletePods(tuple(found)) if found else None


def _how(left: Exit) -> str:
    if left.signal is not None:
        return f"the command was ended by signal {left.signal}"
    if left.code is not None:
        return f"the command exited with status {left.code}"
    return "the command is gone; how it ended is not known"


def moment(text: object) -> datetime | None:
    """An RFC 3339 time; None if it is not one."""
    if not isinstance(text, str):
        return None
    try:
        found = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return None
    return found if found.tzinfo else None
