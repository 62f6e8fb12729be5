"""The SSH listener: who is let in (ssh_keys.py), to what (ssh_channel.py), and how many.

Keys and certificates only. No forwarding of anything, no sftp, no environment, no shell here:
asyncssh offers these when a server says yes, and this one does not.

Invariant: nobody stays connected whose key is not mapped any more: it is looked at every
`WATCH_SECONDS`, and where RBAC decides, by the session's link as well (`Caller.still`).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Final

import asyncssh

from holdfast_gateway import log
from holdfast_gateway.auth import Caller, Modality
from holdfast_gateway.backend import Backend
from holdfast_gateway.ssh_channel import Channel
from holdfast_gateway.ssh_keys import Admission, Identity, Keys, Line, no_longer
from holdfast_wire.doors import Strangers
from holdfast_wire.errors import AlreadyExists, HoldfastError, Unavailable
from holdfast_wire.ids import Actor

WATCH_SECONDS: Final = 1.0
_FAREWELL_SECONDS: Final = 1.0
_MAX_PEERS: Final = 10_000
# What a client may have sent that we have not read. A paste waits; it is not lost.
_WINDOW: Final = 1 << 17


@dataclass(frozen=True, slots=True)
class Limits:
    connections: int = 600
    waiting: int = 60
    """Of these, not yet authenticated: who has tried for longest makes room for the next."""
    waiting_of_one: int = 40
    """Address."""
    channels: int = 10
    """On one connection."""
    looks: int = 12
    """At keys, on one connection; one that is good takes two."""
    login_seconds: float = 20.0
    failures: int = 30
    """Connections of one address on which no key was good, within `failure_seconds`: then it is not
    heard. Generous, because behind a load balancer many are one address."""
    failure_seconds: float = 60.0
    keepalive_seconds: float = 15.0
    """Three of these without an answer, and a client is gone."""


class Failures:
    """Addresses that tried in vain. Of each the last few times are kept."""

    def __init__(
        self, most: int, seconds: float, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._most, self._seconds, self._now = most, seconds, now
        self._times: dict[str, list[float]] = {}

    def add(self, peer: str) -> None:
        if len(self._times) >= _MAX_PEERS:
            self._times = {one: kept for one in self._times if (kept := self._recent(one))}
        if len(self._times) < _MAX_PEERS or peer in self._times:
            self._times[peer] = [*self._recent(peer), self._now()][-self._most :]

    def too_many(self, peer: str) -> bool:
        return len(self._recent(peer)) >= self._most

    def _recent(self, peer: str) -> list[float]:
        late = self._now() - self._seconds
        return [moment for moment in self._times.get(peer, ()) if moment > late]


class Server:
    """One listener, and all its connections."""

    def __init__(self, backend: Backend, keys: Keys, limits: Limits | None = None) -> None:
        self.backend, self.keys = backend, keys
        self.limits = limits or Limits()
        self.failures = Failures(self.limits.failures, self.limits.failure_seconds)
        self.strangers = Strangers(self.limits.waiting, self.limits.waiting_of_one)
        self.connections: set[Connection] = set()
        self._empty = asyncio.Event()

    def left(self, connection: Connection) -> None:
        self.connections.discard(connection)
        if not self.connections:
            self._empty.set()

    @contextlib.asynccontextmanager
    async def listening(
        self, host: str, port: int, host_key: asyncssh.SSHKey
    ) -> AsyncIterator[int]:
        """Gives the port. At the end everybody is told to come back."""
        asyncssh.set_log_level("WARNING")  # its other lines have commands in them
        try:
            acceptor = await asyncssh.listen(
                host,
                port,
                server_factory=lambda: Connection(self),
                server_host_keys=[host_key],
                server_version="holdfast",
                public_key_auth=True,
                password_auth=False,
                kbdint_auth=False,
                host_based_auth=False,
                gss_host=None,
                gss_kex=False,
                gss_auth=False,
                x509_trusted_certs=None,
                agent_forwarding=False,
                x11_forwarding=False,
                allow_scp=False,
                line_editor=False,
                encoding=None,
                rdns_lookup=False,
                compression_algs=None,
                login_timeout=self.limits.login_seconds,
                keepalive_interval=self.limits.keepalive_seconds,
                keepalive_count_max=3,
                window=_WINDOW,
            )
        except OSError as error:
            raise AlreadyExists(
                f"SSH cannot listen on {host}: {error}", "choose another port"
            ) from error
        watch = asyncio.create_task(self._watch())
        try:
            yield acceptor.get_port()
        finally:
            acceptor.close()
            watch.cancel()
            await self._stop()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            for connection in tuple(self.connections):
                connection.check()

    async def _stop(self) -> None:
        if not self.connections:
            return
        self._empty.clear()
        for connection in tuple(self.connections):
            connection.stop(_stopping())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FAREWELL_SECONDS):
                await self._empty.wait()
        for connection in tuple(self.connections):
            connection.abort()


def _stopping() -> Unavailable:
    return Unavailable("this gateway stops; the session goes on", "come back in a moment")


class Connection(asyncssh.SSHServer):
    """One client's, from the first byte to the last."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._conn: asyncssh.SSHServerConnection | None = None
        self._peer = ""
        self._user = ""
        self._looks = 0
        self._identity: Identity | None = None
        self._known: tuple[tuple[Line, ...], bool] = ((), False)
        self._channels: set[Channel] = set()
        self._stopped = False
        self._number = 0  # among the strangers

    # -- coming and going

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self._conn = conn
        self._peer = str((conn.get_extra_info("peername") or ("unknown",))[0])
        here, limits = self._server.connections, self._server.limits
        if self._server.failures.too_many(self._peer):
            why = "too many failures"
        elif len(here) >= limits.connections:
            why = "too many connections"
        else:
            here.add(self)
            self._number = self._server.strangers.enter(self._peer, conn.abort)
            return
        log.warning("ssh_turned_away", peer=self._peer, why=why)
        conn.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.left(self)
        self._server.strangers.leave(self._number)
        if self._identity is not None:
            log.info("ssh_left", user=self._identity.user, peer=self._peer)
        elif self._looks:
            self._server.failures.add(self._peer)
            log.info("ssh_refused", peer=self._peer, looks=self._looks)

    # -- who it is

    def begin_auth(self, username: str) -> bool:
        self._user = username
        if self._conn is not None:
            self._conn.set_authorized_keys(Admission(self._server.keys, self._look))
        return True

    def _look(self) -> bool:
        """Whether one more key, or one more signature, is looked at."""
        self._looks += 1
        if self._looks <= self._server.limits.looks:
            return True
        if self._conn is not None:
            self._conn.disconnect(
                asyncssh.DISC_NO_MORE_AUTH_METHODS_AVAILABLE,
                "too many keys were offered; choose one with 'ssh -o IdentitiesOnly=yes -i FILE'",
            )
        return False

    def auth_completed(self) -> None:
        found = self._conn.get_key_option("identity") if self._conn is not None else None
        if not isinstance(found, Identity):
            self.abort()
            return
        self._identity = found
        self._server.strangers.leave(self._number)
        log.info("ssh", user=found.user, peer=self._peer, key=found.fingerprint, name=self._user)

    def mapped(self) -> bool:
        """Whether he would be let in again, as the same. Looked up only when the lines change."""
        lines = self._server.keys.lines()
        if lines is not self._known[0] and self._identity is not None:
            self._known = lines, self._server.keys.still(self._identity, self._peer)
        return self._known[1]

    async def still(self) -> None:
        if not self.mapped():
            raise no_longer()

    # -- what it may do

    def session_requested(self) -> Channel | bool:
        if (
            self._identity is None
            or self._stopped
            or len(self._channels) >= self._server.limits.channels
        ):
            return False
        caller = Caller(
            Actor(self._identity.user),
            Modality.SSH,
            groups=self._identity.groups,
            still=self.still,
        )
        channel = Channel(self._server.backend, self._user, caller, self._gone)
        self._channels.add(channel)
        return channel

    # -- being sent away

    def check(self) -> None:
        if self._identity is not None and not self._stopped and not self.mapped():
            log.info("cut", actor=self._identity.user, peer=self._peer, why="its key was removed")
            self.stop(no_longer())

    def stop(self, error: HoldfastError) -> None:
        """Tells why, and closes; whoever does not listen is cut off."""
        self._stopped = True
        for channel in tuple(self._channels):
            channel.stop(error)
        if not self._channels:
            self._close()
        asyncio.get_running_loop().call_later(_FAREWELL_SECONDS, self.abort)

    def _gone(self, channel: Channel) -> None:
        self._channels.discard(channel)
        if self._stopped and not self._channels:
            self._close()

    def _close(self) -> None:
        if self._conn is not None:
            self._conn.close()

    def abort(self) -> None:
        if self._conn is not None:
            self._conn.abort()
