"""What every way in (page, HTTP, SSH, MCP) needs of the sessions behind it, wherever they are:
folders of this machine (sessions.py), or pods that have dialled in (cluster.py).

A session goes by its name: `build`, in a cluster also `team/build` with its namespace.

Invariant: nothing reaches a session but through here, and here every act is allowed or refused,
with the caller's own identity. Who may not even look at a session hears the same of it as of one
that does not exist.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Protocol

from holdfast_gateway.auth import Caller
from holdfast_wire.errors import Unsupported
from holdfast_wire.frames import Attach, Control, Frame

# A killed sidecar is back well within this; longer, and the caller should hear of it.
CONNECT_SECONDS: Final = 3.0
REQUEST_SECONDS: Final = 10.0
# What is read ahead from one sidecar. Beyond it the sidecar's own bounded queue takes over.
READ_AHEAD: Final = 1 << 18


class Act(StrEnum):
    """What is done to a session; in a cluster the subresource of `sessions` that RBAC is asked
    about."""

    STREAM = "stream"  # to observe: what it is, its state, its screen, its output
    GRAPH = "graph"  # its processes, with their command lines
    JOURNAL = "journal"  # who did what
    INPUT = "input"  # to write: type, run a command, take the turn, send a signal
    END = "end"


# By the kind of a request. One that is not here is refused: a newer client asks an older gateway.
ACTS: Final = {
    "info": Act.STREAM,
    "state": Act.STREAM,
    "screen": Act.STREAM,
    "ping": Act.STREAM,
    "graph": Act.GRAPH,
    "journal": Act.JOURNAL,
    "send": Act.INPUT,
    "exec": Act.INPUT,
    "job_start": Act.INPUT,
    "job_signal": Act.INPUT,
    "job_list": Act.STREAM,
    "job_get": Act.STREAM,
    "job_output": Act.STREAM,
    "take": Act.INPUT,
    "ask": Act.INPUT,
    "release": Act.INPUT,
    "signal": Act.INPUT,
    "freeze": Act.END,
    "thaw": Act.END,
    "end": Act.END,
}


def act_of(frame: Frame) -> Act | None:
    """What a client's frame does, beyond what it was let in for. Whether an attached client may
    type is asked when it attaches, and from then on by the link; the session itself drops what a
    viewer types, and journals it."""
    match frame:
        case Attach({"mode": "view"}):
            return None
        case Attach():
            return Act.INPUT
        case Control(body):
            kind = body.get("kind")
            if kind not in ACTS:
                raise Unsupported(
                    f"this gateway does not know the request {str(kind)[:40]!r}",
                    "upgrade the gateway, or use an older client",
                )
            return ACTS[kind]
        case _:
            return None


class Writer(Protocol):
    """As asyncio.StreamWriter."""

    def write(self, data: bytes) -> None: ...

    async def drain(self) -> None:
        """Waits while the session does not take what was written."""


class Reader(Protocol):
    """As asyncio.StreamReader."""

    async def read(self, n: int = -1) -> bytes:
        """What came; empty at the end."""


@dataclass(frozen=True, slots=True)
class Link:
    """An open connection to a sidecar: frames in both directions (holdfast_wire.frames)."""

    reader: Reader
    writer: Writer
    allow: Callable[[Act], Awaitable[None]]
    """Forbidden, if this caller may not."""
    cut: asyncio.Future[None]
    """Set, with the error, when the caller may not do any more what was allowed before."""


class Backend(Protocol):
    async def list(self, caller: Caller) -> list[dict[str, Any]]:
        """Those that he may observe, as `describe` tells of them."""

    async def describe(self, name: str, caller: Caller) -> dict[str, Any]:
        """What the sidecar says of its session (`info`), or what else is known if there is none:
        `session`, `session_id`, `state`, `exit`."""

    async def request(
        self,
        name: str,
        body: dict[str, Any],
        caller: Caller,
        *,
        seconds: float = REQUEST_SECONDS,
        patience: float = CONNECT_SECONDS,
    ) -> dict[str, Any]:
        """One request, one answer. If the sidecar dies over it, it is put to the next one, unless
        that could do a thing twice: then `Unavailable`, and the caller decides. `patience`: how
        long a sidecar may be away before that is the answer."""

    def connect(
        self, name: str, caller: Caller, patience: float = CONNECT_SECONDS
    ) -> AbstractAsyncContextManager[Link]:
        """For an attach. Waits out a sidecar that is just being restarted."""
