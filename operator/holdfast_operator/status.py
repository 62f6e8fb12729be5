"""The Session's status, and whether a change of it is worth a write. Pure.

An idle session costs no write: nothing in here changes by itself. What changes as people work
(`PASTIME`) is written every half minute at most; a change of anything else is written at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from holdfast_operator import conditions, names
from holdfast_operator.decide import End, Step, moment
from holdfast_operator.model import TERMINAL, LeaseSeen, Observed, Phase
from holdfast_operator.text import plain

PASTIME: Final = frozenset({"activity", "turn", "clients", "lastActiveTime"})
PASTIME_SECONDS: Final = 30.0
MAX_CLIENTS: Final = 1_000_000
ACTIVITIES: Final = frozenset({"running", "prompt", "reading", "password", "frozen", "ended"})

Status = dict[str, Any]


def phase_of(seen: Observed, step: Step) -> Phase:
    if isinstance(step, End):
        return step.phase
    if seen.session.phase in TERMINAL:
        return seen.session.phase
    lease, pod = seen.lease, seen.pod
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
    return Phase.FROZEN if lease.annotations.get(names.ACTIVITY) == "frozen" else Phase.RUNNING


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
                conditions.ready(seen, step, phase),
                conditions.fenced(seen, phase),
                conditions.fresh(seen),
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
    if phase in TERMINAL:
        made |= _ending(seen, step)
    return made


def _from_lease(seen: Observed, lease: LeaseSeen) -> Status:
    before = seen.session.status
    made: Status = {}
    if lease.fresh is not None:
        made["notice"] = lease.fresh.message
    elif "notice" in before and before.get("epoch") == lease.epoch:
        made["notice"] = before["notice"]
    if not lease.started:
        kept = seen.session.phase in TERMINAL and "startedAt" in before
        return made | ({"startedAt": before["startedAt"]} if kept else {})
    same = before.get("epoch") == lease.epoch and before.get("startedAt")
    made["startedAt"] = before["startedAt"] if same else conditions.stamp(seen.wall)
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
        return made | {"endedAt": before.get("endedAt") or conditions.stamp(seen.wall)}
    left = step.exit
    if left is None:
        return {"endedAt": conditions.stamp(seen.wall)}
    facts = {"code": left.code, "signal": left.signal, "cause": plain(left.cause, 32)}
    return {
        # Not the sidecar's word for it: the time to live counts from here, and its clock may be
        # an hour off.
        "endedAt": conditions.stamp(seen.wall),
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
    if written_at is None or not patch.keys() <= PASTIME:
        return now
    return max(now, written_at + PASTIME_SECONDS)
