"""The way to the gateways: this sidecar dials every replica, and takes their clients' streams from
there. Nothing in the pod listens.

    gateway ─ TLS, one connection ─ Uplink ─ a pair of sockets per client ─ server.py

Each stream is a connection like any other to the server, made by ourselves, and so trusted with the
names that the gateway vouches for: it has authenticated its clients, and we it, by its certificate.

Invariant: of a client's stream at most a window (holdfast_wire.uplink) is kept here, in each
direction; a slow one stops itself alone, and the session never waits for it.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from holdfast_wire import uplink as wire
from holdfast_wire.errors import BadRequest, HoldfastError, from_json
from holdfast_wire.uplink import Kind, Parser, Piece, Windows

_LOOK_SECONDS: Final = 5.0  # a new replica is found within this
_LOOK_AGAIN_SECONDS: Final = 1.0  # after nobody said where they are
_CONNECT_SECONDS: Final = 5.0
_RETRY_SECONDS: Final = (0.2, 5.0)
_NO_SUCH_NAME: Final = (socket.EAI_NONAME, socket.EAI_NODATA)  # said by who knows
_PIECE: Final = wire.MAX_PAYLOAD
_PENDING: Final = 1 << 20  # in the TLS connection, not yet sent

Log = Callable[[str], None]


class Channel:
    """One client's stream: our end of the pair whose other end the server has."""

    def __init__(self, number: int, sock: socket.socket, link: Uplink) -> None:
        self._number, self._sock, self._link = number, sock, link
        self._windows = Windows()
        self._loop = asyncio.get_running_loop()
        self._unread = bytearray()  # from the gateway; the server has not taken it yet
        self._listening = False
        self._closed = False
        self.listen()

    # -- to the gateway

    def listen(self) -> None:
        """As long as there is credit, and the connection takes it."""
        wanted = not self._closed and self._windows.may_send > 0 and not self._link.full
        if wanted and not self._listening:
            self._loop.add_reader(self._sock, self._readable)
        elif not wanted and self._listening:
            self._loop.remove_reader(self._sock)
        self._listening = wanted

    def _readable(self) -> None:
        try:
            data = self._sock.recv(min(_PIECE, self._windows.may_send))
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close()
            self._link.ended(self._number)
            return
        self._windows.sent(len(data))
        self._link.send(wire.encode(self._number, Kind.DATA, data))
        self.listen()

    def granted(self, count: int) -> None:
        self._windows.granted(count)
        self.listen()

    # -- from the gateway

    def came(self, data: bytes) -> None:
        self._windows.heard(len(data))
        self._unread += data
        self._give()

    def _give(self) -> None:
        try:
            while self._unread:
                count = self._sock.send(self._unread)
                del self._unread[:count]
                if told := self._windows.taken(count):
                    self._link.send(wire.credit(self._number, told))
        except BlockingIOError:
            self._loop.add_writer(self._sock, self._give)
            return
        except OSError:
            self._unread.clear()  # `_readable` hears the end of it
        self._loop.remove_writer(self._sock)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._loop.remove_reader(self._sock)
        self._loop.remove_writer(self._sock)
        self._sock.close()


class Uplink(asyncio.Protocol):
    """One connection to one replica, from its hello on."""

    def __init__(self, greeting: dict[str, Any], adopt: Callable[[socket.socket], None]) -> None:
        """`adopt`: a connection for the server."""
        self._greeting, self._adopt = greeting, adopt
        self._parser = Parser()
        self._channels: dict[int, Channel] = {}
        self._transport: asyncio.Transport | None = None
        self._welcome = False
        self._heard = time.monotonic()
        self.full = False
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """When the connection has ended; with the gateway's reason, if it gave one."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = made = cast(asyncio.Transport, transport)
        made.set_write_buffer_limits(_PENDING)
        made.write(wire.hello(self._greeting))

    def data_received(self, data: bytes) -> None:
        self._heard = time.monotonic()
        try:
            for piece in self._parser.feed(data):
                self._take(piece)
        except HoldfastError as error:
            self._end(error)

    def _take(self, piece: Piece) -> None:
        if not self._welcome:
            answer = wire.said(piece)
            if "error" in answer:
                raise from_json(answer["error"])
            self._welcome = True
            return
        channel = self._channels.get(piece.stream)
        match piece.kind:
            case Kind.OPEN if channel is None and piece.stream:
                self._open(piece.stream)
            case Kind.DATA if channel is not None:
                channel.came(piece.payload)
            case Kind.CREDIT if channel is not None:
                channel.granted(wire.credit_of(piece))
            case Kind.CLOSE if channel is not None:
                del self._channels[piece.stream]
                channel.close()
            case Kind.PING:
                if not piece.payload:
                    self.send(wire.encode(0, Kind.PING, b"1"))
            case Kind.DATA | Kind.CREDIT | Kind.CLOSE:
                pass  # of one that we have just closed
            case _:
                raise BadRequest(f"a gateway does not send {piece.kind.name} here")

    def _open(self, number: int) -> None:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        theirs.setblocking(False)
        self._channels[number] = Channel(number, ours, self)
        self._adopt(theirs)

    def send(self, frame: bytes) -> None:
        if self._transport is not None:
            self._transport.write(frame)

    def ended(self, number: int) -> None:
        if self._channels.pop(number, None) is not None:
            self.send(wire.encode(number, Kind.CLOSE))

    def pause_writing(self) -> None:
        self._full(True)

    def resume_writing(self) -> None:
        self._full(False)

    def _full(self, now: bool) -> None:
        self.full = now
        for channel in self._channels.values():
            channel.listen()

    def tick(self) -> None:
        """Every few seconds."""
        if time.monotonic() - self._heard > wire.SILENCE_SECONDS:
            self._end(None)
        elif self._welcome:
            self.send(wire.encode(0, Kind.PING))

    def connection_lost(self, error: Exception | None) -> None:
        self._end(None)

    def _end(self, error: HoldfastError | None) -> None:
        for channel in list(self._channels.values()):
            channel.close()
        self._channels.clear()
        if self._transport is not None:
            self._transport.abort()
        if not self.over.done():
            if error is None:
                self.over.set_result(None)
            else:
                self.over.set_exception(error)


@dataclass(frozen=True, slots=True)
class Gateways:
    """Where they are, and how to know them."""

    host: str  # a name that has the address of every replica
    port: int
    authority: str  # PEM
    token: Path

    def trust(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.load_verify_locations(cadata=self.authority)
        return context


class Uplinks:
    """One to each replica, for as long as `run` does."""

    def __init__(
        self,
        gateways: Gateways,
        about: dict[str, Any],
        adopt: Callable[[socket.socket], None],
        log: Log,
    ) -> None:
        self._gateways, self._about, self._adopt, self._log = gateways, about, adopt, log
        self._context = gateways.trust()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._unknown = False  # where they are; said once

    async def run(self) -> None:
        try:
            while True:
                found = await self._addresses()
                if found is not None:
                    self._tend(found)
                await asyncio.sleep(_LOOK_SECONDS if found else _LOOK_AGAIN_SECONDS)
        finally:
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _addresses(self) -> set[str] | None:
        """None if nobody said: that is not none, for the name service may be away."""
        loop, where = asyncio.get_running_loop(), self._gateways
        try:
            found = await loop.getaddrinfo(where.host, where.port, type=socket.SOCK_STREAM)
        except OSError as error:
            if not self._unknown:
                self._log(f"where {where.host} is, is not known: {error}")
            self._unknown = True
            return set() if error.errno in _NO_SUCH_NAME else None
        self._unknown = False
        return {str(one[4][0]) for one in found}

    def _tend(self, found: set[str]) -> None:
        """One that has no address any more goes by itself when its connection does."""
        for address in [one for one, task in self._tasks.items() if task.done()]:
            del self._tasks[address]
        for address in found - self._tasks.keys():
            self._tasks[address] = asyncio.create_task(self._keep(address))

    async def _keep(self, address: str) -> None:
        """Until it is refused, or the address is nobody's."""
        first, longest = _RETRY_SECONDS
        wait = first
        while True:
            began = time.monotonic()
            try:
                await self._once(address)
            except OSError as error:
                self._log(f"gateway {address} is not reached: {error}")
                found = await self._addresses()
                if found is not None and address not in found:
                    return
            except HoldfastError as error:
                self._log(f"gateway {address} refuses this sidecar: {error}")
            if time.monotonic() - began > longest:
                wait = first
            await asyncio.sleep(wait)
            wait = min(2 * wait, longest)

    async def _once(self, address: str) -> None:
        where = self._gateways
        greeting = {**self._about, "token": where.token.read_text().strip()}
        link = Uplink(greeting, self._adopt)
        async with asyncio.timeout(_CONNECT_SECONDS):
            await asyncio.get_running_loop().create_connection(
                lambda: link, address, where.port, ssl=self._context, server_hostname=where.host
            )
        try:
            while not link.over.done():
                await asyncio.wait([link.over], timeout=wire.PING_SECONDS)
                link.tick()
            link.over.result()
        finally:
            link.connection_lost(None)
