"""What happened to a Session, in plain words, for `kubectl describe`.

`between` is pure: events come from how the status changes, and are said before it is written. So an
operator that was killed after it acted and before it spoke says it when it comes back.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from holdfast_operator import names
from holdfast_operator.model import Phase, Session
from holdfast_operator.text import plain

AGAIN_SECONDS: Final = 600.0  # the same words about the same Session are not said sooner
REMEMBERED: Final = 4096  # how many words are remembered for that
NOTE_LIMIT: Final = 1000  # events.k8s.io refuses notes over 1 KiB


class Said(StrEnum):
    """Reasons of events."""

    REFUSED = "Refused"
    RESERVED_KEYS_STRIPPED = "ReservedKeysStripped"
    STARTED = "Started"
    STARTED_FRESH = "StartedFresh"
    NOT_STARTING = "NotStarting"
    FROZEN = "Frozen"
    THAWED = "Thawed"
    MOVING = "Moving"
    MOVE_FROZEN = "MoveFrozen"
    MOVED = "Moved"
    MOVE_COMPLETE = "MoveComplete"
    NOT_MOVED = "NotMoved"
    NOT_MOVABLE = "NotMovable"
    MOVABLE = "Movable"
    CONNECTIONS_CUT = "ConnectionsCut"
    LOST = "Lost"
    SUSPENDED = "Suspended"
    RESTORING = "Restoring"
    RESTORED = "Restored"
    WOKEN = "Woken"
    FORKED = "Forked"
    NOT_RESTORED = "NotRestored"
    NOT_STORED = "NotStored"
    QUARANTINED = "Quarantined"
    IDLE = "Idle"
    ENDED = "Ended"
    FAILED = "Failed"
    DELETED_AFTER_END = "DeletedAfterEnd"
    DELETION_OVERDUE = "DeletionOverdue"


@dataclass(frozen=True, slots=True)
class Saying:
    reason: Said
    message: str
    warning: bool = False


_STUCK: Final = ("ImagePull", "ContainerStuck", "Unschedulable", "PodRefused", "BackingOff",
                 "CheckpointGone")  # fmt: skip


def between(
    before: Mapping[str, Any], after: Mapping[str, Any], reserved: tuple[str, ...] = ()
) -> list[Saying]:
    said: list[Saying] = []
    was, now = _conditions(before), _conditions(after)

    def turned(kind: str, status: str) -> bool:
        one, other = was.get(kind, {}), now.get(kind, {})
        if other.get("status") != status:
            return False
        return one.get("status") != status or one.get("reason") != other.get("reason")

    if reserved and "Accepted" not in was:
        keys = ", ".join(reserved)
        said.append(
            Saying(
                Said.RESERVED_KEYS_STRIPPED,
                f"left out of the pod, because {names.PREFIX} is holdfast's own: {keys}",
                warning=True,
            )
        )
    refused = turned("Accepted", "False")
    if refused:
        said.append(Saying(Said.REFUSED, now["Accepted"]["message"], warning=True))
    if turned("Quarantined", "True"):
        said.append(Saying(Said.QUARANTINED, now["Quarantined"]["message"], warning=True))
    fresh_before = was.get("Fresh", {}).get("message")
    if now.get("Fresh", {}).get("status") == "True" and fresh_before != now["Fresh"]["message"]:
        said.append(Saying(Said.STARTED_FRESH, now["Fresh"]["message"], warning=True))
    cut = after.get("cutConnections") or []
    if cut and cut != before.get("cutConnections"):
        ends = ", ".join(f"{one['local']} to {one['remote']}" for one in cut)
        said.append(Saying(Said.CONNECTIONS_CUT, f"not brought along by the move: {ends}"))
    said += _moves(before, after)
    movable = now.get("Movable", {})
    if turned("Movable", "False") and movable.get("reason") in ("MoveFailed", "NoTarget"):
        said.append(Saying(Said.NOT_MOVED, movable["message"], warning=True))
    if turned("Movable", "False") and movable.get("reason") == "Blocked":
        said.append(Saying(Said.NOT_MOVABLE, movable["message"]))
    if turned("Movable", "True") and was.get("Movable", {}).get("reason") == "Blocked":
        said.append(Saying(Said.MOVABLE, movable["message"]))
    said += _stored(now, turned)
    ready = now.get("Ready", {})
    if turned("Ready", "False") and ready.get("reason") in _STUCK and not refused:
        said.append(Saying(Said.NOT_STARTING, ready["message"], warning=True))
    return said + _phases(before, after, ready.get("message", ""))


def _moves(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Saying]:
    """One that is over within seconds is not said to stand still: the figures come with its end."""
    said = []
    now, last = after.get("move") or {}, after.get("lastMove")
    if now.get("step") == "Frozen" and (before.get("move") or {}).get("step") != "Frozen":
        size = _megabytes(now.get("expectedBytes"))
        said.append(Saying(Said.MOVE_FROZEN, f"it stands still while {size} are copied"))
    if last is not None and last != before.get("lastMove"):
        said.append(
            Saying(
                Said.MOVE_COMPLETE,
                f"{_megabytes(last.get('sizeBytes'))} came along from node {last.get('from')}, and"
                f" it stood still for {last.get('freezeSeconds', 0)} s",
            )
        )
    return said


def _megabytes(count: int | None) -> str:
    return "an unknown number of MB" if count is None else f"{count / 1_000_000:.0f} MB"


_NOT_STORED: Final = ("CheckpointFailed", "QuotaExceeded")


def _stored(
    now: Mapping[str, Mapping[str, Any]], turned: Callable[[str, str], bool]
) -> list[Saying]:
    restored, kept = now.get("Restored", {}), now.get("Checkpointed", {})
    if turned("Restored", "True"):
        said = {"Woken": Said.WOKEN, "Forked": Said.FORKED}.get(restored["reason"], Said.RESTORED)
        found = [Saying(said, restored["message"], warning=said is Said.RESTORED)]
    elif turned("Restored", "False") and restored["reason"] == "RestoreFailed":
        found = [Saying(Said.NOT_RESTORED, restored["message"], warning=True)]
    else:
        found = []
    if turned("Checkpointed", "False") and kept["reason"] in _NOT_STORED:
        found.append(Saying(Said.NOT_STORED, kept["message"], warning=True))
    return found


def _phases(before: Mapping[str, Any], after: Mapping[str, Any], message: str) -> list[Saying]:
    was, now = before.get("phase"), after.get("phase")
    if was == now:
        return []
    if now == Phase.MOVING:
        return [Saying(Said.MOVING, message)]
    if now == Phase.RUNNING and was == Phase.MOVING and before.get("epoch") == after.get("epoch"):
        return []  # the condition Movable says why it did not move
    if now == Phase.RUNNING and _conditions(after).get("Fresh", {}).get("reason") == "Moved":
        place = after.get("nodeName") or "another node"
        return [Saying(Said.MOVED, f"it goes on, alive, on node {place}")]
    if now == Phase.RUNNING and was == Phase.FROZEN:
        return [Saying(Said.THAWED, "the Lease is renewed again and the session goes on")]
    if now == Phase.RUNNING and _conditions(after).get("Fresh", {}).get("reason") == "Restored":
        return []  # the condition Restored says it
    if now == Phase.SUSPENDED:
        return [Saying(Said.SUSPENDED, message)]
    if now == Phase.RESTORING:
        return [Saying(Said.RESTORING, message)]
    if now == Phase.RUNNING:
        return [Saying(Said.STARTED, f"{message} on node {after.get('nodeName') or 'unknown'}")]
    if now == Phase.FROZEN:
        return [Saying(Said.FROZEN, message, warning=True)]
    if now == Phase.LOST:
        return [Saying(Said.LOST, message, warning=True)]
    if now == Phase.ENDED:
        return [Saying(Said.ENDED, message)]
    if now == Phase.FAILED:
        return [Saying(Said.FAILED, message, warning=True)]
    return []


def _conditions(status: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    return {item["type"]: item for item in status.get("conditions") or ()}


class Recent:
    """What this process said lately, so that it is not said again. Bounded: the oldest go."""

    def __init__(self) -> None:
        self._at: dict[tuple[str, str, str], float] = {}

    def first(self, uid: str, saying: Saying, now: float) -> bool:
        key = (uid, saying.reason.value, saying.message)
        at = self._at.get(key)
        if at is not None and now - at < AGAIN_SECONDS:
            return False
        self._at.pop(key, None)
        self._at[key] = now
        while len(self._at) > REMEMBERED:
            self._at.pop(next(iter(self._at)))
        return True


def manifest(session: Session, saying: Saying, wall: datetime, instance: str) -> dict[str, Any]:
    """events.k8s.io/v1. The name is made from the words and the second, so that a repeated POST
    after a lost answer makes no second one."""
    at = wall.strftime("%Y-%m-%dT%H:%M:%S")
    digest = hashlib.sha256(f"{session.uid}{saying}{at}".encode()).hexdigest()[:16]
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {
            "name": f"{session.name}.{digest}",
            "namespace": session.key.namespace,
        },
        "eventTime": f"{at}.{wall.microsecond:06d}Z",
        "type": "Warning" if saying.warning else "Normal",
        "reason": saying.reason.value,
        "action": "Reconcile",
        "note": plain(saying.message, NOTE_LIMIT),
        "reportingController": "holdfast.dev/operator",
        "reportingInstance": instance[:128],
        "regarding": {
            "apiVersion": names.API_VERSION,
            "kind": "Session",
            "namespace": session.key.namespace,
            "name": session.name,
            "uid": session.uid,
        },
    }
