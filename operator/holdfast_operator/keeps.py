"""When a running session is stored, and how many of these checkpoints stay. Pure.

The agent of the session's node does the work. A keep changes nothing but what is stored, unless it
is to stop the session: then the sidecar gives the Lease back, and that, not the order, is what says
that the session is suspended (`suspension`).

Called for a session whose command runs, whose Lease is renewed, and that has no pod to move into.
First row that fits:

    a keep under way                             AwaitKeep
    stored to be stopped, a moment ago           AwaitKeep: the Lease will say so too
    more orders than are to stay                 DeleteCheckpoints
    no agent on its node, or to be ended, or     nothing, until it is idle for long enough
    which image it runs is not known yet
    to be suspended      failed just now         AwaitKeep
                         else                    CreateKeep, then Stop
    periodic             due                     CreateKeep, then RunOn
                         else                    AwaitKeep, until it is due or idle for long enough

Where the namespace has as many or as large ones as it may (`quota`), instead of CreateKeep:

    it has more than one of its own              DeleteCheckpoints: its oldest
    else                                         AwaitKeep, and Checkpointed says so
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from holdfast_operator import quota, suspension
from holdfast_operator.model import Observed
from holdfast_operator.orders import CheckpointSeen, Kind, Trigger, keeps, retry_at
from holdfast_operator.times import moment

# Of what failed or is done with, for people to look at.
OTHERS_STAY: Final = 3
# How long after it is complete a keep may take to be seen in the Lease too.
STOPPED_SECONDS: Final = 60.0
# What was stored for a fork is left alone until the fork has surely begun from it.
FORK_SECONDS: Final = 600.0
AGE_SECONDS: Final = 604800.0  # as the CRD's default


@dataclass(frozen=True, slots=True)
class CreateKeep:
    """Tells the agent of a session's node to store it."""

    number: int
    trigger: Trigger
    stops: bool = False
    # The session to store, for a fork; None: this one.
    origin: Observed | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class DeleteCheckpoints:
    """By name and UID. The agents remove what they stored."""

    found: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class AwaitKeep:
    """Nothing to do until something changes, or `until`."""

    until: float | None = None


Keep = CreateKeep | DeleteCheckpoints | AwaitKeep


def under_way(seen: Observed) -> CheckpointSeen | None:
    """The keep that the current pod's agent is at."""
    pod = seen.pod
    for order in keeps(seen.orders or ()):
        if pod is not None and order.pod == pod.uid and order.under_way(seen.wall):
            return order
    return None


def _stopped(seen: Observed) -> datetime | None:
    """Until when a keep that stopped this pod's session explains that it seems to run."""
    pod = seen.pod
    for order in keeps(seen.orders or ()):
        if pod is not None and order.pod == pod.uid and order.stops and order.usable:
            until = (moment(order.completed) or seen.wall) + timedelta(seconds=STOPPED_SECONDS)
            return until if until > seen.wall else None
    return None


def able(seen: Observed) -> bool:
    """Whether it can be stored now. Its image must be known: what was stored without it fits no
    pod, and a kubelet may be seconds late in saying which it is."""
    node, pod, lease = seen.node, seen.pod, seen.lease
    runs = lease is not None and lease.record.holder != "" and lease.started and not seen.may_take
    return (
        runs
        and node is not None
        and node.agent
        and pod is not None
        and not pod.deleting
        and pod.image != ""
        and not seen.session.ended
        and seen.orders is not None
    )


def next_number(orders: Iterable[CheckpointSeen]) -> int:
    return max((order.number for order in keeps(orders)), default=0) + 1


def decide(seen: Observed) -> Keep | None:
    found = wanted(seen)
    return _within_quota(seen, found) if isinstance(found, CreateKeep) else found


def _within_quota(seen: Observed, step: CreateKeep) -> Keep:
    """Its own oldest go first, down to the newest."""
    if seen.usage is None:
        return AwaitKeep(seen.now)  # it was decided on a picture that does not show it
    if not quota.refusal(seen):
        return step
    stored = [order for order in keeps(seen.orders or ()) if order.phase == "Complete"]
    sleep = suspension.asleep(seen)
    spare = [
        order
        for order in stored[1:]
        if not _for_fork(order, seen.wall) and (sleep is None or order.name != sleep.checkpoint)
    ]
    if spare:
        return DeleteCheckpoints(((spare[-1].name, spare[-1].uid),))
    return AwaitKeep(seen.now + quota.AGAIN_SECONDS)


def wanted(seen: Observed) -> Keep | None:
    """Without regard to what the namespace may have."""
    orders = seen.orders or ()
    now = under_way(seen)
    if now is not None:
        return AwaitKeep(_until(seen, now.ends_at(seen.wall)))
    stopped = _stopped(seen)
    if stopped is not None:
        return AwaitKeep(_until(seen, stopped))
    old = surplus(seen)
    if old:
        return DeleteCheckpoints(tuple((order.name, order.uid) for order in old))
    if not able(seen):
        at = suspension.idle_at(seen) if seen.session.when_idle == "End" else None
        return None if at is None else AwaitKeep(_until(seen, at))
    why = suspension.wanted(seen)
    if why is not None:
        again = retry_at(order for order in keeps(orders) if order.stops)
        if again is not None and again > seen.wall:
            return AwaitKeep(_until(seen, again))
        return CreateKeep(next_number(orders), why, stops=True)
    at = due(seen)
    if at is not None and at <= seen.wall:
        return CreateKeep(next_number(orders), Trigger.PERIODIC)
    times = [when for when in (at, suspension.idle_at(seen)) if when is not None]
    return AwaitKeep(_until(seen, min(times))) if times else None


def due(seen: Observed) -> datetime | None:
    """When the next periodic one is; None: never, or not known yet. An incarnation that did not
    move here began with nothing that is not stored."""
    every, lease = seen.session.keep_every, seen.lease
    if every == 0:
        return None
    over = [order for order in keeps(seen.orders or ()) if order.over]
    done = [moment(order.completed) or moment(order.created) for order in over]
    moved = lease is not None and lease.moved and any(done)
    times = [*done, None if moved else moment(seen.session.status.get("startedAt"))]
    last = max((at for at in times if at is not None), default=None)
    return None if last is None else last + timedelta(seconds=every)


def surplus(seen: Observed) -> list[CheckpointSeen]:
    """What is not to stay: too many, or too old. Never the newest, nor what a suspended session is
    stored in."""
    orders, sleep = seen.orders or (), suspension.asleep(seen)
    stored = [order for order in keeps(orders) if order.phase == "Complete"]
    count = seen.session.keep_count
    found = [
        order
        for order in (*(one for one in stored[1:count] if _aged(seen, one)), *stored[count:])
        if not _for_fork(order, seen.wall) and (sleep is None or order.name != sleep.checkpoint)
    ]
    done = [order for order in orders if order.over and order not in stored]
    for kind in Kind:
        same = [order for order in done if order.kind is kind]
        same.sort(key=lambda order: (order.created, order.number, order.name), reverse=True)
        found += same[OTHERS_STAY:]
    # An order that nobody came to the end of: its node is gone.
    return found + [order for order in orders if order.overdue(seen.wall)]


def _aged(seen: Observed, order: CheckpointSeen) -> bool:
    most = float((seen.session.spec.get("checkpoints") or {}).get("maxAgeSeconds", AGE_SECONDS))
    done = moment(order.completed)
    return most > 0 and done is not None and (seen.wall - done).total_seconds() > most


def _for_fork(order: CheckpointSeen, wall: datetime) -> bool:
    done = moment(order.completed)
    young = done is not None and (wall - done).total_seconds() < FORK_SECONDS
    return order.trigger == Trigger.FORK and young


def _until(seen: Observed, at: datetime) -> float:
    return seen.now + max(0.0, (at - seen.wall).total_seconds())
