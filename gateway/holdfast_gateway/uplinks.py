"""Sidecars that have dialled in, each with the streams of our clients on its one connection
(holdfast_wire.uplink).

    client ─ Link (backend.py) ─ Stream ─ Uplink ─ TLS ─ the sidecar's end (holdfast_sidecar.uplink)

Invariant: of each session the newest incarnation that was ever seen here is served, and nothing
older: an epoch below the highest is refused, and its connection ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import ssl
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, cast

from holdfast_gateway import log, metrics
from holdfast_kube import listening
from holdfast_wire import uplink as wire
from holdfast_wire.doors import Refusals
from holdfast_wire.errors import BadRequest, Forbidden, HoldfastError, Internal, Unavailable
from holdfast_wire.uplink import Kind, Parser, Piece, Windows

_HELLO_SECONDS: Final = 10.0  # to say who it is, and for us to look that up
_PENDING: Final = 1 << 20
# Until it has said who it is and was found right: the handshake, and the hello. A node's sidecars
# may come from one address, all at once when a gateway starts.
_STRANGE_SECONDS: Final = 15.0
_STRANGERS, _STRANGERS_OF_ONE = 512, 256
# Of one address: at once, and a second. Each costs the API server a TokenReview.
_REFUSALS: Final = (256, 5.0)
_MAX_STREAMS: Final = 1000  # on one uplink; the sidecar has a limit of its own


@dataclass(frozen=True, slots=True)
class Incarnation:
    """Who has dialled in, as it was verified."""

    namespace: str
    name: str
    uid: str  # the session's
    epoch: int
    pod: str
    holder: str  # the Lease's holderIdentity

    @property
    def key(self) -> tuple[str, str]:
        return self.namespace, self.name


Verify = Callable[[dict[str, Any]], Awaitable[Incarnation]]


class Stream:
    """One client's: a `Reader` and a `Writer`."""

    def __init__(self, number: int, link: Uplink) -> None:
        self._number, self._link = number, link
        self._windows = Windows()
        self._out = bytearray()  # beyond the credit
        self._came: deque[bytes] = deque()
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._ended = False

    async def read(self, n: int = -1) -> bytes:
        while not self._came:
            if self._ended:
                return b""
            self._news.clear()
            await self._news.wait()
        parts = [self._came.popleft()]
        size = len(parts[0])
        while self._came and (n < 0 or size + len(self._came[0]) <= n):
            parts.append(self._came.popleft())
            size += len(parts[-1])
        if told := self._windows.taken(size):
            self._link.send(wire.credit(self._number, told))
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def write(self, data: bytes) -> None:
        if self._ended:
            raise ConnectionResetError("the session's sidecar has left")
        self._out += data
        self._flush()

    def _flush(self) -> None:
        count = min(len(self._out), self._windows.may_send)
        if count:
            for part in wire.data(self._number, memoryview(self._out)[:count].tobytes()):
                self._link.send(part)
            self._windows.sent(count)
            del self._out[:count]
        if self._out:
            self._room.clear()
        else:
            self._room.set()

    async def drain(self) -> None:
        await self._room.wait()
        if self._ended:
            raise ConnectionResetError("the session's sidecar has left")
        await self._link.drained()

    # -- what the uplink hears

    def came(self, data: bytes) -> None:
        self._windows.heard(len(data))
        self._came.append(data)
        self._news.set()

    def granted(self, count: int) -> None:
        self._windows.granted(count)
        self._flush()

    def end(self) -> None:
        self._ended = True
        self._news.set()
        self._room.set()


class Uplink(asyncio.Protocol):
    def __init__(self, owner: Uplinks) -> None:
        self._owner = owner
        self._parser = Parser()
        self._transport: asyncio.Transport | None = None
        self._streams: dict[int, Stream] = {}
        self._numbers = itertools.count(1)
        self._greeting: asyncio.Task[None] | None = None
        self._takes = asyncio.Event()
        self._takes.set()
        self._heard = time.monotonic()
        self._closed = False
        self._peer = ""
        self.incarnation: Incarnation | None = None

    @property
    def streams(self) -> int:
        return len(self._streams)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = made = cast(asyncio.Transport, transport)
        self._peer = str((made.get_extra_info("peername") or ("unknown",))[0])
        made.set_write_buffer_limits(_PENDING)
        self._owner.arrived(self)

    def data_received(self, data: bytes) -> None:
        self._heard = time.monotonic()
        try:
            for piece in self._parser.feed(data):
                self._take(piece)
        except HoldfastError as error:
            log.warning("uplink_broken", error=str(error))
            self.close()

    def _take(self, piece: Piece) -> None:
        if self._closed:
            return
        if self._greeting is None:
            self._greeting = asyncio.create_task(self._greet(wire.said(piece)))
            return
        if self.incarnation is None:
            raise BadRequest("it speaks before it was answered")
        stream = self._streams.get(piece.stream)
        match piece.kind:
            case Kind.DATA if stream is not None:
                stream.came(piece.payload)
            case Kind.CREDIT if stream is not None:
                stream.granted(wire.credit_of(piece))
            case Kind.CLOSE if stream is not None:
                del self._streams[piece.stream]
                stream.end()
            case Kind.PING:
                if not piece.payload:
                    self.send(wire.encode(0, Kind.PING, b"1"))
            case Kind.DATA | Kind.CREDIT | Kind.CLOSE:
                pass  # of one that we have just closed
            case _:
                raise BadRequest(f"a sidecar does not send {piece.kind.name} here")

    async def _greet(self, body: dict[str, Any]) -> None:
        try:
            if not self._owner.refusals.take(self._peer):
                raise Unavailable("too many from this address were refused", "try again later")
            async with asyncio.timeout(_HELLO_SECONDS):
                found = await self._owner.verify(body)
            self._owner.refusals.give_back(self._peer)
            self._owner.admit(self, found)
        except (HoldfastError, TimeoutError) as error:
            told = error if isinstance(error, HoldfastError) else Unavailable("it took too long")
            metrics.UPLINKS_REFUSED.labels(told.code).inc()
            log.info("uplink_refused", why=str(told), session=str(body.get("session"))[:200])
            self.send(wire.hello({"error": told.to_json()}))
            self.close()
        except Exception as error:
            log.fault("uplink_failed", error)
            self.send(wire.hello({"error": Internal("the gateway failed").to_json()}))
            self.close()

    def welcome(self, found: Incarnation) -> None:
        self.incarnation = found
        self._owner.doorway.identified(self._transport)
        self.send(wire.hello({}))

    def open(self) -> tuple[int, Stream]:
        if self._closed or self.incarnation is None:
            raise Unavailable("the session's sidecar has left", "try again")
        if len(self._streams) >= _MAX_STREAMS:
            raise Unavailable("too many are attached to this session", "try again later")
        number = next(self._numbers)
        stream = self._streams[number] = Stream(number, self)
        self.send(wire.encode(number, Kind.OPEN))
        return number, stream

    def shut(self, number: int) -> None:
        stream = self._streams.pop(number, None)
        if stream is not None:
            stream.end()
            self.send(wire.encode(number, Kind.CLOSE))

    def send(self, frame: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(frame)

    async def drained(self) -> None:
        await self._takes.wait()

    def pause_writing(self) -> None:
        self._takes.clear()

    def resume_writing(self) -> None:
        self._takes.set()

    def tick(self) -> None:
        if time.monotonic() - self._heard > wire.SILENCE_SECONDS:
            self.close()
        elif self.incarnation is not None:
            self.send(wire.encode(0, Kind.PING))

    def connection_lost(self, error: Exception | None) -> None:
        self.close()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._takes.set()
        for stream in self._streams.values():
            stream.end()
        self._streams.clear()
        if self._transport is not None:
            self._transport.close()  # with what was written last
            asyncio.get_running_loop().call_later(1.0, self._transport.abort)
        self._owner.left(self)


class Uplinks:
    """All of them, by session."""

    def __init__(self, verify: Verify) -> None:
        self.verify = verify
        self.doorway = listening.Doorway(_STRANGERS, _STRANGERS_OF_ONE, _STRANGE_SECONDS)
        self.refusals = Refusals(*_REFUSALS)
        self._everyone: set[Uplink] = set()
        self._serving: dict[tuple[str, str], Uplink] = {}
        self._highest: dict[str, int] = {}  # epoch by the session's UID
        self._news = asyncio.Condition()
        self._telling: set[asyncio.Task[None]] = set()

    @contextlib.asynccontextmanager
    async def listening(
        self, tls: ssl.SSLContext, port: int, host: str | None = None
    ) -> AsyncIterator[int]:
        """On every address, or one. Yields the port."""
        async with listening.listening(lambda: Uplink(self), tls, port, self.doorway, host) as at:
            ticking = asyncio.create_task(self._tick())
            try:
                yield at
            finally:
                ticking.cancel()
                for link in list(self._everyone):
                    link.close()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(wire.PING_SECONDS)
            for link in list(self._everyone):
                link.tick()

    def arrived(self, link: Uplink) -> None:
        self._everyone.add(link)

    def admit(self, link: Uplink, found: Incarnation) -> None:
        """The newest of a session is served, and no older one any more. A sidecar that was
        started again in the same pod takes the place of the one before."""
        if found.epoch < self._highest.get(found.uid, 0):
            raise Forbidden("a newer incarnation of this session was here already")
        self._highest[found.uid] = found.epoch
        before = self._serving.get(found.key)
        self._serving[found.key] = link
        link.welcome(found)
        if before is not None:
            before.close()
        log.info("uplink", session="/".join(found.key), epoch=found.epoch, pod=found.pod)
        self._tell()

    def left(self, link: Uplink) -> None:
        self._everyone.discard(link)
        found = link.incarnation
        if found is not None and self._serving.get(found.key) is link:
            del self._serving[found.key]
            log.info("uplink_left", session="/".join(found.key), epoch=found.epoch)

    def _tell(self) -> None:
        async def tell() -> None:
            async with self._news:
                self._news.notify_all()

        task = asyncio.create_task(tell())
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)

    def counts(self) -> tuple[int, int]:
        """Sessions, and streams of clients."""
        return len(self._serving), sum(link.streams for link in self._serving.values())

    def get(self, key: tuple[str, str]) -> Uplink | None:
        return self._serving.get(key)

    def forget(self, uid: str) -> None:
        """The session is deleted: nothing of it will come again."""
        self._highest.pop(uid, None)

    async def wait(self, key: tuple[str, str], seconds: float) -> Uplink | None:
        """The session's, or None if it does not come in time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds), self._news:
                await self._news.wait_for(lambda: key in self._serving)
        return self._serving.get(key)
