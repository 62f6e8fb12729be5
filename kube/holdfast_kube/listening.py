"""A listener with limits from the first byte: on strangers, on the TLS handshake, and on the time
until it is known who is there.

Its own loop of `accept`, for what asyncio makes of a listening socket tells nobody of a connection
before the handshake is over.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple

from holdfast_wire.doors import Strangers

# A handshake takes three packets, or six where one was lost.
HANDSHAKE_SECONDS: Final = 5.0
# From the first byte to a request that is let in. The page asks its user for a token meanwhile:
# its connection is made again.
IDENTITY_SECONDS: Final = 20.0
# A TLS connection costs up to 140 KiB. Behind one address there may be a balancer with all people.
STRANGERS: Final = 512
STRANGERS_OF_ONE: Final = 128
_BACKLOG: Final = 512
_NO_FILES_SECONDS: Final = 0.1


class _Stranger(NamedTuple):
    number: int
    timer: asyncio.TimerHandle
    gone: Callable[[], bool]


class Doorway:
    """One listener's strangers."""

    def __init__(
        self,
        most: int = STRANGERS,
        of_one: int = STRANGERS_OF_ONE,
        seconds: float = IDENTITY_SECONDS,
    ) -> None:
        self._strangers, self._seconds = Strangers(most, of_one), seconds
        self._here: dict[Any, _Stranger] = {}

    @property
    def strangers(self) -> int:
        return len(self._strangers)

    def enter(self, peer: Any, turn_away: Callable[[], None], gone: Callable[[], bool]) -> None:
        """`gone`: whether the connection has ended."""
        for one in [one for one, stranger in self._here.items() if stranger.gone() or one == peer]:
            self.leave(one)

        def out() -> None:
            self.leave(peer)
            turn_away()

        timer = asyncio.get_running_loop().call_later(self._seconds, out)
        number = self._strangers.enter(str(peer[0]), out)
        self._here[peer] = _Stranger(number, timer, gone)

    def leave(self, peer: Any) -> None:
        found = self._here.pop(peer, None)
        if found is not None:
            self._strangers.leave(found.number)
            found.timer.cancel()

    def identified(self, transport: asyncio.BaseTransport | None) -> None:
        """It is known who is there."""
        if transport is not None:
            self.leave(transport.get_extra_info("peername"))


Factory = Callable[[], asyncio.BaseProtocol]


@asynccontextmanager
async def listening(
    factory: Factory,
    tls: ssl.SSLContext | None,
    port: int,
    doorway: Doorway,
    host: str | None = None,
) -> AsyncIterator[int]:
    """On every address, or one. Yields the port."""
    sockets = _bound(host, port)
    accepting = [asyncio.create_task(_accept(one, factory, tls, doorway)) for one in sockets]
    try:
        yield int(sockets[0].getsockname()[1])
    finally:
        for task in accepting:
            task.cancel()
        await asyncio.wait(accepting)
        for one in sockets:
            one.close()


def _bound(host: str | None, port: int) -> list[socket.socket]:
    if host is None and socket.has_dualstack_ipv6():
        made = socket.create_server(
            ("", port), family=socket.AF_INET6, backlog=_BACKLOG, dualstack_ipv6=True
        )
    else:
        family = socket.AF_INET6 if ":" in (host or "") else socket.AF_INET
        made = socket.create_server((host or "", port), family=family, backlog=_BACKLOG)
    made.setblocking(False)
    return [made]


async def _accept(
    listener: socket.socket, factory: Factory, tls: ssl.SSLContext | None, doorway: Doorway
) -> None:
    loop = asyncio.get_running_loop()
    coming: set[asyncio.Task[None]] = set()
    try:
        while True:
            try:
                sock, peer = await loop.sock_accept(listener)
            except OSError:  # such as too many open files
                await asyncio.sleep(_NO_FILES_SECONDS)
                continue
            task = asyncio.create_task(_take(sock, peer, factory, tls, doorway))
            coming.add(task)
            task.add_done_callback(coming.discard)
    finally:
        for task in coming:
            task.cancel()


async def _take(
    sock: socket.socket, peer: Any, factory: Factory, tls: ssl.SSLContext | None, doorway: Doorway
) -> None:
    task = asyncio.current_task()
    transport: asyncio.BaseTransport | None = None

    def turn_away() -> None:
        if isinstance(transport, asyncio.Transport):
            transport.abort()
        elif task is not None:
            task.cancel()

    def gone() -> bool:
        return transport is not None and transport.is_closing()

    doorway.enter(peer, turn_away, gone)
    late = None if tls is None else HANDSHAKE_SECONDS
    try:
        transport, _ = await asyncio.get_running_loop().connect_accepted_socket(
            factory, sock, ssl=tls, ssl_handshake_timeout=late
        )  # fmt: skip
    except (OSError, asyncio.CancelledError):  # also ssl.SSLError, and a handshake that is late
        doorway.leave(peer)
        sock.close()
