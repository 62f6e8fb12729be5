"""Which right each act on a session needs: one table for every way in. Pure data.

A right is a subresource of `sessions` in the API group `subresources.holdfast.dev`, with one verb,
which RBAC is asked about. Whoever may not `observe` a session hears the same of it as of one that
does not exist.

Invariant: what is not in the table is refused. Through the API server a path has its right as the
first element below the session, so the API server asks what the gateway asks.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from holdfast_wire.errors import Unsupported
from holdfast_wire.frames import Attach, Control, Frame, Input, Resize

GROUP: Final = "subresources.holdfast.dev"
RESOURCE: Final = "sessions"


class Right(StrEnum):
    """What an actor may do to a session; the name is the subresource."""

    OBSERVE = "observe"  # read: screen, output, state, processes, journal
    INTERRUPT = "interrupt"  # send signals to its programs
    RUN = "run"  # submit whole commands and jobs
    TYPE = "type"  # send keystrokes, and have the turn for that
    MODERATE = "moderate"  # end it
    HALT = "halt"  # stop every process, and let them go on
    SEIZE = "seize"  # take the turn whatever its policy
    APPROVE = "approve"  # decide about what waits for approval
    SHARE = "share"  # let others in
    FORK = "fork"  # begin another session from its memory
    WAKE = "wake"  # let it go on when it is suspended

    @property
    def verb(self) -> str:
        return "get" if self is Right.OBSERVE else "create"

    @property
    def subresource(self) -> str:
        return f"{RESOURCE}/{self.value}"


# By the kind of a request. `stream` and `list` are no requests to a sidecar, but acts like them.
REQUESTS: Final = {
    "list": Right.OBSERVE,
    "stream": Right.OBSERVE,
    "info": Right.OBSERVE,
    "state": Right.OBSERVE,
    "screen": Right.OBSERVE,
    "ping": Right.OBSERVE,
    "graph": Right.OBSERVE,
    "journal": Right.OBSERVE,
    "job_list": Right.OBSERVE,
    "job_get": Right.OBSERVE,
    "job_output": Right.OBSERVE,
    "signal": Right.INTERRUPT,
    "job_signal": Right.INTERRUPT,
    "exec": Right.RUN,
    "job_start": Right.RUN,
    "send": Right.TYPE,
    "take": Right.TYPE,
    "ask": Right.TYPE,
    "release": Right.TYPE,
    "freeze": Right.HALT,
    "thaw": Right.HALT,
    "end": Right.MODERATE,
    "wake": Right.WAKE,
}
# By the mode of an attachment. What an attached client types needs no further right: who attached
# to write has `type`, and the session itself drops what a viewer types, and journals that.
ATTACH: Final = {"view": Right.OBSERVE, "write": Right.TYPE}
# What goes on for long is asked about again and again; the others are done when they are said.
LASTING: Final = frozenset({Right.OBSERVE, Right.TYPE, Right.RUN})


def right_of_request(kind: object) -> Right:
    found = REQUESTS.get(kind) if isinstance(kind, str) else None
    if found is None:
        raise Unsupported(
            f"the request {str(kind)[:40]!r} is not known here",
            "upgrade the gateway, or use an older client",
        )
    return found


def right_of_frame(frame: Frame) -> Right | None:
    """What a client's frame needs; None for one that its attachment's right covers."""
    match frame:
        case Attach(body):
            return ATTACH.get(str(body.get("mode", "write")), Right.TYPE)
        case Control(body):
            return right_of_request(body.get("kind"))
        case Input() | Resize():
            return None
        case _:
            raise Unsupported(f"a client does not send {type(frame).__name__.lower()} frames")


def path_of(right: Right, below: str = "") -> str:
    """Below a session, where the API server asks for the right that the first element names."""
    return right.value if below in ("", right.value) else f"{right.value}/{below}"


def missing(actor: str, right: Right, namespace: str, name: str) -> tuple[str, str]:
    """What who lacks a right is told, and advised; the same for a session that does not exist."""
    said = f"{actor} may not {right.verb} {right.subresource} of {namespace}/{name or '*'}"
    advice = (
        f"somebody who may grants the verb {right.verb} on {right.subresource} in the API group"
        f" {GROUP}, as the chart's ClusterRoles holdfast-observer, holdfast-user and"
        " holdfast-moderator do"
    )
    return said, advice
