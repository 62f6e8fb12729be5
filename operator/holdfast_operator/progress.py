"""How far a move has come, and what the last one cost: for people, in the Session's status. Pure.

Nothing is decided by it. It is written every two seconds at most (`status.due`), so that a move
that is over by then costs the API no more than it would without.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final

from holdfast_operator import moves
from holdfast_operator.model import Observed
from holdfast_operator.orders import CheckpointSeen, Kind

_MIB: Final = 1 << 20


class Step(StrEnum):
    PREPARING = "Preparing"  # a pod is ready; the agents begin
    COPYING = "Copying"  # its files and memory, while it runs
    FROZEN = "Frozen"  # it stands still, and all else is copied
    FOLLOWING = "Following"  # it runs there, and its memory comes after it


def move(seen: Observed, *, moving: bool) -> dict[str, Any] | None:
    """`moving`: the phase says so. None: nothing is on its way."""
    late = None if moving else moves.following(seen)
    order = seen.checkpoint if moving else late
    if order is None:
        return None
    step = _step(order, follows=late is not None)
    place = seen.target if late is None else seen.pod
    made: dict[str, Any] = {"step": step.value, "progress": _words(step, order)}
    if place is not None and place.node:
        made["to"] = place.node
    if order.sent:
        made["sentBytes"] = order.sent
    if order.expected:
        made["expectedBytes"] = order.expected
    return made


def _step(order: CheckpointSeen, *, follows: bool) -> Step:
    if follows:
        return Step.FOLLOWING
    if order.phase == "Pending":
        return Step.COPYING if order.sent else Step.PREPARING
    return Step.FROZEN


def _words(step: Step, order: CheckpointSeen) -> str:
    """For a column. What is expected is a guess, and never less than what has been sent."""
    if step is Step.PREPARING:
        return "preparing"
    word = "following" if step is Step.FOLLOWING else "copying"
    sent = order.sent // _MIB
    if not order.expected:
        return f"{word} {sent} MiB"
    return f"{word} {sent}/{max(sent, order.expected // _MIB)} MiB"


def last(seen: Observed) -> dict[str, Any] | None:
    """What the move that brought the current incarnation here was, once its agent has said so."""
    pod, lease = seen.pod, seen.lease
    if pod is None or lease is None or not lease.moved:
        return None
    for order in seen.orders or ():
        came = order.kind is Kind.MOVE and order.target == pod.uid and order.phase == "Complete"
        if came and order.size is not None:
            facts = {
                "from": order.node, "to": pod.node, "epoch": order.epoch,
                "sizeBytes": order.size, "freezeSeconds": order.freeze,
                "completedAt": order.completed,
            }  # fmt: skip
            return {key: value for key, value in facts.items() if value not in (None, "")}
    return None
