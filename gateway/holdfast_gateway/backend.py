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
from typing import Any, Final, Protocol

from holdfast_gateway.auth import Caller
from holdfast_wire.rights import Right

# A killed sidecar is back well within this; longer, and the caller should hear of it.
CONNECT_SECONDS: Final = 3.0
REQUEST_SECONDS: Final = 10.0
# What is read ahead from one sidecar. Beyond it the sidecar's own bounded queue takes over.
READ_AHEAD: Final = 1 << 18


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
    allow: Callable[[Right], Awaitable[None]]
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

    async def wake(self, name: str, caller: Caller) -> dict[str, Any]:
        """Lets a suspended session go on, also one that a person suspended; not waited for.
        What is known of it, as by `describe`."""

    def connect(
        self,
        name: str,
        caller: Caller,
        patience: float = CONNECT_SECONDS,
        right: Right = Right.OBSERVE,
    ) -> AbstractAsyncContextManager[Link]:
        """For an attach, or for what needs another `right`. Waits out a sidecar that is just being
        restarted."""
