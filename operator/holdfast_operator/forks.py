"""How a session begins as a copy of another: that one is stored, this one goes on from it. Pure.

Called until a fork has its first epoch. Nothing of it exists before then but an order to store the
other session, which belongs to that session. First row that fits:

    forked from a checkpoint     not there, or not a whole keep       Wait, and say so
                                 else                                 Grant, with a note
    forked from a session        stored for this fork, or asleep      Grant, with a note
                                 not there, or it cannot be stored    Wait, and say so
                                 an order of it is under way          Wait
                                 failed just now                      Wait
                                 the namespace has all it may         Wait, and say so
                                 else                                 CreateKeep
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from holdfast_operator import keeps, quota, suspension
from holdfast_operator.model import TERMINAL, Observed
from holdfast_operator.orders import CheckpointSeen, Kind, Trigger, named, retry_at
from holdfast_operator.orders import keeps as newest


@dataclass(frozen=True, slots=True)
class Unable:
    """Why it cannot begin; it is tried again."""

    message: str


@dataclass(frozen=True, slots=True)
class Awaiting:
    until: float | None = None


Fork = CheckpointSeen | keeps.CreateKeep | Unable | Awaiting


def decide(seen: Observed) -> Fork:
    asked = seen.session.fork_from or {}
    if asked.get("checkpoint"):
        return _from_checkpoint(seen, str(asked["checkpoint"]))
    return _from_session(seen, str(asked.get("session") or ""))


def _from_checkpoint(seen: Observed, name: str) -> Fork:
    order = named(seen.origins, name)
    if order is None:
        return Unable(f"there is no checkpoint {name} to fork from")
    if order.usable:
        return order
    if order.kind is Kind.KEEP and order.under_way(seen.wall):
        return Awaiting()
    return Unable(f"checkpoint {name} stored no session: its phase is {order.phase}")


def _from_session(seen: Observed, name: str) -> Fork:
    origin, uid = seen.origin, seen.session.uid
    mine = [order for order in newest(seen.origins) if order.fork == uid]
    stored = next((order for order in mine if order.usable), None)
    if stored is not None:
        return stored
    if origin is None:
        return Unable(f"there is no session {name} to fork from")
    sleep = suspension.asleep(origin)
    order = named(seen.origins, sleep.checkpoint) if sleep is not None else None
    if order is not None and order.usable:
        return order
    if origin.session.phase in TERMINAL:
        return Unable(f"session {name} is over: fork from one of its checkpoints")
    if keeps.under_way(origin) is not None or origin.target is not None:
        return Awaiting()
    if origin.node is not None and not origin.node.agent:
        return Unable(f"no node agent is ready on {origin.node.name}, where session {name} runs")
    if origin.pod is not None and origin.pod.image == "":
        return Awaiting()  # kubelet may be seconds late in saying which it is
    if not keeps.able(origin):
        return Unable(f"session {name} does not run, so it cannot be stored")
    again = retry_at(mine)
    if again is not None and again > seen.wall:
        return Awaiting(seen.now + (again - seen.wall).total_seconds())
    if seen.usage is None:
        return Awaiting(seen.now)  # it was decided on a picture that does not show it
    if full(seen):
        return Awaiting(seen.now + quota.AGAIN_SECONDS)
    return keeps.CreateKeep(keeps.next_number(seen.origins), Trigger.FORK, origin=origin)


def full(seen: Observed) -> str:
    """Why the other session is not stored for it now."""
    origin = seen.origin
    return "" if origin is None else quota.refusal(replace(origin, usage=seen.usage))


def problem(seen: Observed) -> str:
    """Why the other session could not be stored for it, the last time."""
    mine = [order for order in newest(seen.origins) if order.fork == seen.session.uid]
    return mine[0].message if mine and mine[0].failed else ""
