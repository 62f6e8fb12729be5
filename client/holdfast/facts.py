"""What a Session object says of itself, and how to say it to a person. Pure.

A field may be absent (the operator has not come to it yet) or from a newer version; neither is an
error here.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final, NamedTuple

from holdfast_wire.exits import describe_exit


class Phase(StrEnum):
    PENDING = "Pending"
    STARTING = "Starting"
    RUNNING = "Running"
    MOVING = "Moving"
    FROZEN = "Frozen"
    LOST = "Lost"
    SUSPENDED = "Suspended"
    RESTORING = "Restoring"
    ENDED = "Ended"
    FAILED = "Failed"


_OVER: Final = (Phase.ENDED, Phase.FAILED)
_REACHABLE: Final = (Phase.STARTING, Phase.RUNNING, Phase.MOVING, Phase.FROZEN)
PHASE_COLOURS: Final[Mapping[str, str]] = {
    Phase.PENDING: "yellow",
    Phase.STARTING: "yellow",
    Phase.RUNNING: "green",
    Phase.MOVING: "cyan",
    Phase.FROZEN: "cyan",
    Phase.LOST: "red",
    Phase.SUSPENDED: "dim",
    Phase.RESTORING: "yellow",
    Phase.FAILED: "red",
    Phase.ENDED: "dim",
}
# Whose reason tells most, when a session cannot be reached.
_TELLING: Final = ("Accepted", "Quarantined", "Fenced", "Ready")
# A condition of which True is the bad news.
_BAD_IF_TRUE: Final = ("Quarantined",)


class Condition(NamedTuple):
    type: str
    status: str
    reason: str
    message: str

    @property
    def bad(self) -> bool:
        if self.type == "Restored":
            return self.reason == "RestoreFailed"
        return self.status == ("True" if self.type in _BAD_IF_TRUE else "False")


class Facts(NamedTuple):
    name: str
    namespace: str
    phase: str
    """One of `Phase`, or what a newer operator says."""
    activity: str
    node: str
    pod: str
    epoch: int | None
    turn: str
    clients: int | None
    command: list[str]
    exit: dict[str, Any] | None
    last_lines: list[str]
    notice: str
    move: str
    """How far a move has come; empty if nothing moves."""
    created: float | None
    started: float | None
    active: float | None
    ended: float | None
    stored: float | None
    """When it was last stored."""
    suspended: str
    """The checkpoint it is stored in, and not elsewhere; empty if it is not."""
    suspends: bool
    """Whether it is to be so."""
    conditions: list[Condition]

    @property
    def over(self) -> bool:
        return self.phase in _OVER

    @property
    def reachable(self) -> bool:
        return bool(self.pod) and self.phase in _REACHABLE

    def condition(self, kind: str) -> Condition | None:
        return next((one for one in self.conditions if one.type == kind), None)

    def trouble(self) -> str:
        """The sentence of the condition that says most; empty if all is well."""
        bad = {one.type: one for one in self.conditions if one.bad}
        for name in _TELLING:
            if name in bad:
                return bad[name].message or bad[name].reason
        return ""

    def ending(self) -> str:
        """How it ended, in words. Only for one that did."""
        if self.exit is not None:
            return describe_exit(self.exit)[0]
        return self.trouble() or "its exit code is not known"

    def to_json(self) -> dict[str, Any]:
        return {**self._asdict(), "conditions": [one._asdict() for one in self.conditions]}


def facts(body: Mapping[str, Any]) -> Facts:
    meta, spec, status = (_part(body, name) for name in ("metadata", "spec", "status"))
    exit_status = status.get("exit")
    return Facts(
        name=_text(meta.get("name")),
        namespace=_text(meta.get("namespace")) or "default",
        phase=_text(status.get("phase")) or Phase.PENDING,
        activity=_text(status.get("activity")),
        node=_text(status.get("nodeName")),
        pod=_text(status.get("podName")),
        epoch=_number(status.get("epoch")),
        turn=_text(status.get("turn")),
        clients=_number(status.get("clients")),
        command=[str(word) for word in _items(spec.get("command"))],
        exit=exit_status if isinstance(exit_status, dict) else None,
        last_lines=[str(line) for line in _items(status.get("lastLines"))],
        notice=_text(status.get("notice")),
        move=_text(_part(status, "move").get("progress")),
        created=moment(meta.get("creationTimestamp")),
        started=moment(status.get("startedAt")),
        active=moment(status.get("lastActiveTime")),
        ended=moment(status.get("endedAt")),
        stored=moment(_part(status, "lastCheckpoint").get("takenAt")),
        suspended=_text(_part(status, "suspended").get("checkpoint")),
        suspends=spec.get("suspended") is True,
        conditions=[
            Condition(*(_text(one.get(key)) for key in ("type", "status", "reason", "message")))
            for one in _items(status.get("conditions"))
            if isinstance(one, dict)
        ],
    )


def moment(text: object) -> float | None:
    """Seconds since 1970 of an RFC 3339 time; None if it is none."""
    from datetime import datetime

    try:
        when = datetime.fromisoformat(_text(text))
    except ValueError:
        return None
    return when.timestamp() if when.tzinfo else None


def _part(body: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = body.get(name)
    return part if isinstance(part, dict) else {}


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _items(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def manifest(
    name: str, image: str, command: list[str], size: tuple[int, int], scrollback: int
) -> dict[str, Any]:
    """The smallest Session, in a pod that the restricted profile admits."""
    columns, rows = size
    container = {
        "name": "session",
        "image": image,
        # The user below has no home in most images, and shells want one they can write to.
        "env": [{"name": "HOME", "value": "/tmp"}],  # noqa: S108 - inside the container
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    pod = {
        "securityContext": {
            "runAsNonRoot": True,
            # Many images say root or nothing; then the kubelet would refuse to start them.
            "runAsUser": 1000,
            "runAsGroup": 1000,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
    }
    return {
        "apiVersion": "holdfast.dev/v1alpha1",
        "kind": "Session",
        "metadata": {"name": name},
        "spec": {
            "command": command,
            "terminal": {"columns": columns, "rows": rows, "scrollbackLines": scrollback},
            "template": {"spec": pod},
        },
    }
