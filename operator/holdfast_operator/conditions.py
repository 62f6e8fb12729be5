"""The Session's conditions: facts in, one condition out. Pure.

Unknown is not absent: where the operator cannot know, the status is Unknown and says why.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from holdfast_operator import moves, names
from holdfast_operator.model import TERMINAL, Observed, Phase
from holdfast_operator.steps import End, Step, Wait
from holdfast_operator.text import plain
from holdfast_operator.times import stamp


class Type(StrEnum):
    ACCEPTED = "Accepted"
    READY = "Ready"
    FENCED = "Fenced"
    FRESH = "Fresh"
    RESTORED = "Restored"
    CHECKPOINTED = "Checkpointed"
    MOVABLE = "Movable"
    QUARANTINED = "Quarantined"


class Reason(StrEnum):
    # Accepted
    VALID = "Valid"
    UNSAFE_LEASE = "UnsafeLease"
    NO_SESSION_CONTAINER = "NoSessionContainer"
    NO_COMMAND = "NoCommand"
    PROBE_WOULD_KILL = "ProbeWouldKill"
    RUNS_BESIDE_HOLD = "RunsBesideHold"
    RESTART_POLICY = "RestartPolicy"
    SHARED_NAMESPACE = "SharedNamespace"
    RESERVED_NAME = "ReservedName"
    TOKEN_IN_SESSION = "TokenInSession"  # noqa: S105 - a reason
    RESERVED_PATH = "ReservedPath"
    NAME_TAKEN = "NameTaken"
    NOT_FORKABLE = "NotForkable"
    # Ready
    NOT_ACCEPTED = "NotAccepted"
    STARTING = "Starting"
    RUNNING = "Running"
    FROZEN = "Frozen"
    FREEZE_INCOMPLETE = "FreezeIncomplete"
    ENDING = "Ending"
    IMAGE_PULL = "ImagePull"
    CONTAINER_STUCK = "ContainerStuck"
    UNSCHEDULABLE = "Unschedulable"
    POD_REFUSED = "PodRefused"
    KEY_UNKNOWN = "KeyUnknown"
    LOST = "Lost"
    BACKING_OFF = "BackingOff"
    ENDED = "Ended"
    DRAINED = "Drained"
    START_ERROR = "StartError"
    SUSPENDING = "Suspending"
    SUSPENDED = "Suspended"
    CHECKPOINT_GONE = "CheckpointGone"
    RESTORING = "Restoring"
    FORKING = "Forking"
    # Fresh, and Ready of a Failed session
    FIRST_INCARNATION = "FirstIncarnation"
    HOST_LOST = "HostLost"
    POD_DELETED = "PodDeleted"
    POD_FAILED = "PodFailed"
    RELEASED = "Released"
    MEMORY_LOST = "MemoryLost"
    LEASE_MISSING = "LeaseMissing"
    ROLLED_BACK = "RolledBack"
    BEGAN_ANEW = "BeganAnew"
    # Fenced
    NOT_BEGUN = "NotBegun"
    HELD = "Held"
    VACANT = "Vacant"
    EXPIRED = "Expired"
    SUPERSEDED = "Superseded"
    MOVED = "Moved"
    # Restored, and Fresh
    RESTORED = "Restored"
    WOKEN = "Woken"
    FORKED = "Forked"
    NOT_RESTORED = "NotRestored"
    RESTORE_FAILED = "RestoreFailed"
    # Checkpointed
    STORED = "Stored"
    NOT_YET = "NotYet"
    SWITCHED_OFF = "SwitchedOff"
    CHECKPOINT_FAILED = "CheckpointFailed"
    QUOTA_EXCEEDED = "QuotaExceeded"
    # Movable, Quarantined
    MOVING = "Moving"
    NO_NODE_AGENT = "NoNodeAgent"
    AGENT_READY = "AgentReady"
    BLOCKED = "Blocked"
    MOVE_FAILED = "MoveFailed"
    NO_TARGET = "NoTarget"
    EPOCHS_GROW = "EpochsGrow"


@dataclass(frozen=True, slots=True)
class Condition:
    type: Type
    status: str  # True | False | Unknown
    reason: Reason
    message: str


def accepted(seen: Observed, step: Step) -> Condition:
    if seen.refusal:
        return Condition(Type.ACCEPTED, "False", Reason(seen.refusal.reason), seen.refusal.message)
    if isinstance(step, Wait) and step.blocked:
        return Condition(Type.ACCEPTED, "False", Reason(step.blocked[0]), step.blocked[1])
    if seen.problem and seen.problem.of_spec and seen.pod is None:
        return Condition(Type.ACCEPTED, "False", Reason(seen.problem.reason), seen.problem.message)
    return Condition(Type.ACCEPTED, "True", Reason.VALID, "the session can be run")


def ready(seen: Observed, step: Step, phase: Phase) -> Condition:
    """But for a session that is stored or comes from there: see `stored`."""

    def no(reason: Reason, message: str) -> Condition:
        return Condition(Type.READY, "False", reason, message)

    if isinstance(step, End):
        return no(Reason(step.reason), step.message)
    if phase in TERMINAL:
        return as_it_was(seen, Type.READY) or no(Reason.ENDED, "the session is over")
    if phase is Phase.PENDING:
        return _pending(seen, step)
    if seen.rolled_back:
        return no(Reason.ROLLED_BACK, "see the condition Quarantined")
    if phase is Phase.LOST:
        return _lost(seen)
    if seen.session.ended:
        return no(Reason.ENDING, "the session is being ended")
    notes = {} if seen.lease is None else seen.lease.annotations
    left = plain(notes.get(names.INCOMPLETE, ""), 256)
    if left and phase in (Phase.FROZEN, Phase.RUNNING):
        return no(
            Reason.FREEZE_INCOMPLETE,
            "it was to stand still, and some of its processes could not be stopped:"
            f" {left}. They are tried again; end them from where they were started",
        )
    if phase is Phase.FROZEN:
        return no(
            Reason.FROZEN,
            "every process is stopped until the Lease is renewed again; nothing is lost",
        )
    if phase is Phase.MOVING:
        to = seen.target.node if seen.target is not None else "another node"
        return Condition(Type.READY, "True", Reason.MOVING, f"it is moving to {to}")
    if phase is Phase.RUNNING:
        return Condition(
            Type.READY, "True", Reason.RUNNING, f"incarnation {seen.epoch} runs the command"
        )
    if seen.problem:
        return no(Reason(seen.problem.reason), seen.problem.message)
    pod = seen.pod
    if pod is not None and pod.trouble:
        return no(Reason(pod.trouble[0]), pod.trouble[1])
    if pod is None and seen.now < seen.retry_at:
        return no(Reason.BACKING_OFF, "its pods end before the command runs; trying again later")
    return no(Reason.STARTING, f"incarnation {seen.epoch} is coming up")


def _pending(seen: Observed, step: Step) -> Condition:
    if accepted(seen, step).status != "True":
        return Condition(Type.READY, "False", Reason.NOT_ACCEPTED, "see the condition Accepted")
    if seen.problem:
        return Condition(Type.READY, "False", Reason(seen.problem.reason), seen.problem.message)
    return Condition(Type.READY, "False", Reason.STARTING, "about to begin")


def _lost(seen: Observed) -> Condition:
    reason, message = Reason.LOST, "its incarnation is gone or does not answer"
    if seen.barred:
        reason, message = Reason.LEASE_MISSING, "its Lease was deleted"
    if seen.now < seen.retry_at and seen.may_take:
        return Condition(
            Type.READY,
            "False",
            Reason.BACKING_OFF,
            f"{message} again and again; the next try waits",
        )
    if not seen.may_take:
        message += "; the next one may begin when the Lease has run out"
    return Condition(Type.READY, "False", reason, message)


def fenced(seen: Observed, phase: Phase) -> Condition:
    """Whether what was granted is known not to run."""
    lease = seen.lease
    if lease is None or not lease.owned or seen.barred:
        if seen.high_water == 0:
            return Condition(Type.FENCED, "False", Reason.NOT_BEGUN, "nothing was ever granted")
        status = "True" if seen.may_take else "Unknown"
        return Condition(
            Type.FENCED, status, Reason.LEASE_MISSING,
            "a holder that finds no Lease stops its session within the Lease's duration",
        )  # fmt: skip
    if lease.record.released:
        return Condition(
            Type.FENCED, "True", Reason.RELEASED, "the holder stopped and gave the Lease back"
        )
    if seen.rolled_back:
        return Condition(
            Type.FENCED, "Unknown", Reason.ROLLED_BACK,
            "a holder of a later epoch stops when it sees this Lease",
        )  # fmt: skip
    if phase in TERMINAL and lease.record.holder == "":
        return Condition(
            Type.FENCED, "True", Reason.SUPERSEDED, "the Lease belongs to no incarnation"
        )
    if lease.record.holder == "":
        return Condition(
            Type.FENCED, "True", Reason.VACANT, "nothing runs until a pod takes the Lease"
        )
    if seen.may_take:
        return Condition(
            Type.FENCED, "True", Reason.EXPIRED,
            "the Lease was not renewed for its whole duration: its holder has stopped the session",
        )  # fmt: skip
    return Condition(Type.FENCED, "False", Reason.HELD, "the holder renews the Lease")


def fresh(seen: Observed) -> Condition:
    """Whether the current incarnation lost what the one before it had in memory."""
    if seen.lease is None or seen.rolled_back:
        before = as_it_was(seen, Type.FRESH)
        if before:
            return before
    restored = seen.lease is not None and seen.lease.restore is not None
    if seen.epoch <= 1 and not restored:
        return Condition(Type.FRESH, "False", Reason.FIRST_INCARNATION, "there was none before it")
    if seen.lease is not None and seen.lease.moved:
        message = f"incarnation {seen.epoch} goes on where {seen.epoch - 1} was"
        return Condition(Type.FRESH, "False", Reason.MOVED, message)
    if restored:
        message = f"incarnation {seen.epoch} goes on from a checkpoint: see the condition Restored"
        return Condition(Type.FRESH, "False", Reason.RESTORED, message)
    told = seen.lease.fresh if seen.lease else None
    if told is None:
        return as_it_was(seen, Type.FRESH) or Condition(
            Type.FRESH, "True", Reason.BEGAN_ANEW, f"incarnation {seen.epoch} began anew"
        )
    known = told.reason in set(Reason)
    return Condition(
        Type.FRESH, "True", Reason(told.reason) if known else Reason.BEGAN_ANEW, told.message
    )


def movable(seen: Observed) -> Condition:
    def no(reason: Reason, message: str) -> Condition:
        return Condition(Type.MOVABLE, "False", reason, message)

    if seen.node is None or not seen.node.agent:
        return no(
            Reason.NO_NODE_AGENT,
            "no node agent is ready on its node: a drain waits, or ends this incarnation",
        )
    target = seen.target
    if target is not None and target.trouble is not None and not target.up:
        return no(Reason.NO_TARGET, f"no node takes it: {target.trouble[1]}{_lacking(seen.unfit)}")
    if seen.move_problem:
        return no(
            Reason.MOVE_FAILED,
            f"it runs on where it is, and the move is tried again: {seen.move_problem}",
        )
    before = as_it_was(seen, Type.MOVABLE)
    if before is not None and before.reason is Reason.MOVE_FAILED and moves.reason(seen):
        return before  # another operator's word for it
    if seen.lease is not None and seen.lease.started and seen.lease.blockers:
        sentences = ". ".join(blocker.sentence for blocker in seen.lease.blockers)
        return no(Reason.BLOCKED, f"a drain of its node would not move it: {sentences}")
    said = "a drain of its node moves it, alive, to another"
    if not (seen.session.spec.get("move") or {}).get("syscallFilter", True):
        said += (
            "; but not while a process has an io_uring or a multipath TCP socket open, which"
            " spec.move.syscallFilter, switched off, would keep it from"
        )
    return Condition(Type.MOVABLE, "True", Reason.AGENT_READY, said)


def quarantined(seen: Observed) -> Condition:
    if not seen.rolled_back:
        return Condition(
            Type.QUARANTINED, "False", Reason.EPOCHS_GROW, "the Lease's epoch only ever grew"
        )
    mark, key = seen.high_water, seen.session.key
    return Condition(
        Type.QUARANTINED,
        "True",
        Reason.ROLLED_BACK,
        f"the Lease says epoch {seen.epoch} but {mark} was granted: the API's storage was set back,"
        " or somebody edited the Lease. Nothing more is done, because an incarnation that is not"
        " seen here may live. Make sure that no pod of it runs, then: kubectl annotate"
        f" -n {key.namespace} session {key.name} {names.ACCEPT_EPOCH}={mark}",
    )


def merged(
    found: Iterable[Condition], before: Iterable[Mapping[str, Any]], generation: int, wall: datetime
) -> list[dict[str, Any]]:
    """As metav1.Condition; the transition time moves only with the status."""
    old = {item.get("type"): item for item in before}
    made = []
    for one in found:
        was = old.get(one.type.value, {})
        same = was.get("status") == one.status and was.get("lastTransitionTime")
        made.append(
            {
                "type": one.type.value,
                "status": one.status,
                "reason": one.reason.value,
                "message": one.message,
                "observedGeneration": generation,
                "lastTransitionTime": was["lastTransitionTime"] if same else stamp(wall),
            }
        )
    return made


def _lacking(nodes: tuple[str, ...]) -> str:
    if not nodes:
        return ""
    named = ", ".join(nodes[:8]) + (", …" if len(nodes) > 8 else "")
    return f". The processors of {named} lack what it may be using"


def as_it_was(seen: Observed, kind: Type) -> Condition | None:
    for item in seen.session.status.get("conditions") or ():
        if item.get("type") == kind.value and item.get("reason") in set(Reason):
            return Condition(kind, item["status"], Reason(item["reason"]), item.get("message", ""))
    return None
