"""The Session's status, and whether a change of it is worth a write. Pure.

An idle session costs no write: nothing in here changes by itself. What changes as people work
(`PASTIME`) is written every half minute at most, how far a move has come (`PROGRESS`) every two
seconds; a change of anything else is written at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from holdfast_operator import conditions, keeps, moves, names, progress, stored, suspension
from holdfast_operator.model import TERMINAL, LeaseSeen, Observed, Phase
from holdfast_operator.orders import Trigger, last_complete
from holdfast_operator.steps import End, Step
from holdfast_operator.text import plain
from holdfast_operator.times import moment, stamp

PASTIME: Final = frozenset({"activity", "turn", "clients", "lastActiveTime"})
PASTIME_SECONDS: Final = 30.0
PROGRESS: Final = frozenset({"move"})
# As often as agents say it; a small session has moved by then, and was not held up by a write.
PROGRESS_SECONDS: Final = 2.0
MAX_CLIENTS: Final = 1_000_000
ACTIVITIES: Final = frozenset({"running", "prompt", "reading", "password", "frozen", "ended"})

Status = dict[str, Any]


def phase_of(seen: Observed, step: Step) -> Phase:
    if isinstance(step, End):
        return step.phase
    if seen.session.phase in TERMINAL:
        return seen.session.phase
    lease, pod = seen.lease, seen.pod
    found = stored.phase_of(seen)
    if found is not None:
        return found
    if lease is None:
        return Phase.LOST if seen.high_water else Phase.PENDING
    if not lease.owned:
        return Phase.PENDING
    if seen.rolled_back:
        return Phase.FROZEN
    held = lease.record.holder != ""
    if lease.record.released or (held and (seen.may_take or pod is None or pod.finished)):
        return Phase.LOST
    if not held or not lease.started:
        return Phase.STARTING
    if seen.checkpoint is not None and seen.checkpoint.phase != "Failed":
        return Phase.MOVING
    frozen = lease.annotations.get(names.ACTIVITY) == "frozen" and keeps.under_way(seen) is None
    return Phase.FROZEN if frozen else Phase.RUNNING


def status_of(seen: Observed, step: Step) -> Status:
    """The whole status as it ought to be."""
    before = seen.session.status
    phase = phase_of(seen, step)
    made: Status = {
        "phase": phase.value,
        "observedGeneration": seen.session.generation,
        "epoch": max(seen.epoch, seen.high_water),
        "conditions": conditions.merged(
            [
                conditions.accepted(seen, step),
                _ready(seen, step, phase),
                conditions.fenced(seen, phase),
                conditions.fresh(seen),
                stored.restored(seen),
                stored.checkpointed(seen),
                conditions.movable(seen),
                conditions.quarantined(seen),
            ],
            before.get("conditions") or (),
            seen.session.generation,
            seen.wall,
        ),
    }
    pod = seen.pod
    if pod is not None:
        made["podName"] = pod.name
        if pod.node:
            made["nodeName"] = pod.node
    elif phase in TERMINAL or phase is Phase.LOST:
        # Where it was last: for people, and for the next incarnation to keep away from.
        made |= {key: before[key] for key in ("podName", "nodeName") if key in before}
    if seen.lease is not None and seen.lease.owned:
        made |= _from_lease(seen, seen.lease)
    made |= _checkpoints(seen)
    if phase is Phase.SUSPENDED:
        for key in ("activity", "turn", "clients", "nodeName", "podName"):
            made.pop(key, None)
    if phase in TERMINAL:
        made |= _ending(seen, step)
        return made
    if (under_way := progress.move(seen, moving=phase is Phase.MOVING)) is not None:
        made["move"] = under_way
    if (last := progress.last(seen) or before.get("lastMove")) is not None:
        made["lastMove"] = last
    leaves = moves.leaving(seen)
    if leaves is not None:
        made["leaving"] = {"epoch": seen.epoch, "until": stamp(leaves)}
    return made


def _ready(seen: Observed, step: Step, phase: Phase) -> conditions.Condition:
    lease = seen.lease
    if phase is Phase.SUSPENDED:
        return stored.sleeping(seen)
    if phase is Phase.RESTORING and lease is not None and not seen.session.ended:
        return stored.coming_back(seen, lease)
    forks = phase is Phase.PENDING and seen.session.fork_from is not None
    if forks and conditions.accepted(seen, step).status == "True" and not seen.problem:
        return stored.forking(seen)
    stops = stored.suspending(seen) if phase is Phase.RUNNING else None
    return stops or conditions.ready(seen, step, phase)


def _checkpoints(seen: Observed) -> Status:
    """What is stored of it, and where it comes from."""
    before = seen.session.status
    made: Status = {key: before[key] for key in ("lastCheckpoint", "forkedFrom") if key in before}
    last = last_complete(seen.orders or ())
    if seen.orders is not None:
        made.pop("lastCheckpoint", None)
    if last is not None:
        facts = {"name": last.name, "takenAt": last.taken or None, "sizeBytes": last.size}
        made["lastCheckpoint"] = {k: v for k, v in facts.items() if v is not None}
    sleep = suspension.asleep(seen)
    if sleep is not None and seen.session.phase not in TERMINAL:
        was = before.get("suspended") or {}
        since = was.get("at") if was.get("checkpoint") == sleep.checkpoint else None
        made["suspended"] = {
            "checkpoint": sleep.checkpoint, "at": since or stamp(seen.wall), "why": sleep.why,
        }  # fmt: skip
    lease = seen.lease
    told = lease.restore if lease is not None and lease.started else None
    if told is not None and told.why is Trigger.FORK and "forkedFrom" not in made:
        facts = {"session": told.session, "checkpoint": told.checkpoint, "takenAt": told.taken}
        made["forkedFrom"] = {key: value for key, value in facts.items() if value}
    return made


def _from_lease(seen: Observed, lease: LeaseSeen) -> Status:
    before = seen.session.status
    made: Status = {}
    told = lease.restore
    if lease.fresh is not None:
        made["notice"] = lease.fresh.message
    elif told is not None and told.why is Trigger.RECOVER:
        made["notice"] = told.message
    elif "notice" in before and before.get("epoch") == lease.epoch:
        made["notice"] = before["notice"]
    if not lease.started:
        kept = seen.session.phase in TERMINAL and "startedAt" in before
        return made | ({"startedAt": before["startedAt"]} if kept else {})
    same = before.get("epoch") == lease.epoch and before.get("startedAt")
    made["startedAt"] = before["startedAt"] if same else stamp(seen.wall)
    if lease.moved and lease.cut:
        made["cutConnections"] = lease.cut
    notes = lease.annotations
    activity = notes.get(names.ACTIVITY)
    if activity in ACTIVITIES:
        made["activity"] = activity
    clients = notes.get(names.CLIENTS, "")
    if clients.isascii() and clients.isdigit() and len(clients) < 8:
        made["clients"] = min(int(clients), MAX_CLIENTS)
    if names.TURN in notes:
        made["turn"] = plain(notes[names.TURN], 256)
    active = moment(notes.get(names.ACTIVE))
    if active is not None:
        made["lastActiveTime"] = notes[names.ACTIVE]
    return made


def _ending(seen: Observed, step: Step) -> Status:
    before = seen.session.status
    kept = ("endedAt", "exit", "lastLines")
    if not isinstance(step, End):
        made = {key: before[key] for key in kept if key in before}
        return made | {"endedAt": before.get("endedAt") or stamp(seen.wall)}
    left = step.exit
    if left is None:
        return {"endedAt": stamp(seen.wall)}
    facts = {"code": left.code, "signal": left.signal, "cause": plain(left.cause, 32)}
    return {
        # Not the sidecar's word for it: the time to live counts from here, and its clock may be
        # an hour off.
        "endedAt": stamp(seen.wall),
        "exit": {key: value for key, value in facts.items() if value is not None},
        "lastLines": list(left.lines),
    }


def difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> Status:
    """A merge patch from one to the other; empty if they are the same."""
    made: Status = {key: None for key in before if key not in after}
    for key, value in after.items():
        if before.get(key) == value and key in before:
            continue
        nested = isinstance(value, dict) and isinstance(before.get(key), dict)
        made[key] = {**dict.fromkeys(before[key]), **value} if nested else value
    return made


def due(patch: Mapping[str, Any], written_at: float | None, now: float) -> float | None:
    """When to write this patch: now or later; None if there is nothing to write."""
    if not patch:
        return None
    if written_at is None or not patch.keys() <= PASTIME | PROGRESS:
        return now
    wait = PASTIME_SECONDS if patch.keys() <= PASTIME else PROGRESS_SECONDS
    return max(now, written_at + wait)
