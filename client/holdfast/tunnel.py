"""A session behind a gateway as a connected socket: its frames, out of and into a WebSocket that a
thread keeps.

As `relay.Relay`: the socket can be written to at once, and connecting, logging in and waiting for a
session that sleeps happen in the thread, so that a terminal still hears its user. When the socket
reaches its end, `why` says why. While the gateway has not let us in, what is being waited for comes
as a control frame of ours, `{"kind": "waiting", "sentence"}`.

Queues: `_QUEUE_BYTES` in each direction beside the kernel's own; what is full is not read any more,
so that a slow reader slows the gateway's outlet for this client, and nobody else.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable
from typing import Final

from holdfast import websocket
from holdfast.access import Access
from holdfast.answers import error_of, is_ours
from holdfast.http1 import Response, Stream, head, read_body, read_head
from holdfast_wire.errors import Forbidden, HoldfastError, Unavailable
from holdfast_wire.frames import HEADER, Control, FrameCutter, encode, whole_frames

_QUEUE_BYTES: Final = 1 << 18
_READ_BYTES: Final = 1 << 16
# A gateway takes no longer a message (its relay.MAX_CLIENT_MESSAGE).
_MESSAGE_BYTES: Final = 1 << 18
# It waits a minute for a session that is moved or woken, before it says that it is not there.
_UPGRADE_SECONDS: Final = 90.0
_ASK_SECONDS: Final = 1.0
# A gateway pings every 30 s; a path that is dead is found sooner by a ping of our own.
_PING_SECONDS: Final = 15.0
_SILENCE_SECONDS: Final = 25.0
_WHY_SECONDS: Final = 1.0
_CLOSE_SECONDS: Final = 0.2
_FAREWELL_SECONDS: Final = 1.0


class Tunnel:
    def __init__(
        self,
        access: Access,
        path: str,
        client: str,
        waits: Callable[[], str] | None = None,
    ) -> None:
        """`waits` says, while the gateway does not let us in, what it waits for; it is called in
        the thread."""
        self.socket, self._theirs = socket.socketpair()
        self.opened = threading.Event()
        """Let in, or failed."""
        self.let_in = False
        """At least for a moment."""
        self.refused: Response | None = None
        """What was said instead of letting us in."""
        self.sentence = ""
        """What is being waited for."""
        self._access, self._path, self._client, self._waits = access, path, client, waits
        self._error: HoldfastError | None = None
        self._given_up = False
        self._thread = threading.Thread(target=self._run, name="tunnel", daemon=True)
        self._thread.start()

    # -- the owner's side

    def why(self) -> HoldfastError | None:
        """Once the socket has ended, or `opened` is set and nothing came of it."""
        self._thread.join(_WHY_SECONDS)
        return None if self._thread.is_alive() else self._error

    def failed(self) -> bool:
        """Of one that is `opened`."""
        return self._error is not None

    def finish(self) -> None:
        """Let what was sent arrive."""
        try:
            self.socket.settimeout(_FAREWELL_SECONDS)
            self.socket.shutdown(socket.SHUT_WR)
            while self.socket.recv(_READ_BYTES):
                pass
        except OSError:
            return

    def close(self) -> None:
        self._given_up = True
        self.socket.close()
        self._thread.join(_CLOSE_SECONDS)

    # -- the thread

    def _run(self) -> None:
        try:
            with self._theirs, self._let_in() as stream:
                self.let_in = True
                self.opened.set()
                self._error = Pump(stream, self._theirs).run()
        except HoldfastError as error:
            self._error = error
        except (OSError, EOFError) as error:
            host, said = self._access.address.host, str(error) or "it was closed"
            self._error = Unavailable(f"the connection to {host} broke: {said}")
        finally:
            self.opened.set()

    def _let_in(self) -> _Open:
        for attempt in (1, 2):
            key = websocket.new_key()
            headers = [*websocket.upgrade_headers(key), ("X-Holdfast-Client", self._client)]
            stream = Stream(self._access.dial())
            try:
                stream.socket.sendall(head(self._access, "GET", self._path, headers))
                self._await_answer(stream)
                status, answer = read_head(stream)
                if status == 101:
                    websocket.check_upgrade(answer, key)
                    return _Open(stream)
                refused = Response(status, answer, read_body(stream, status, answer))
            except BaseException:
                stream.socket.close()
                raise
            stream.socket.close()
            if status != 401 or attempt == 2 or not self._access.renew():
                break
        self.refused = refused
        raise error_of(refused.status, refused.body)

    def _await_answer(self, stream: Stream) -> None:
        """A gateway answers at once, but for a session that is not there yet."""
        began = time.monotonic()
        stream.socket.settimeout(_ASK_SECONDS)
        while not stream.arrived():
            if self._given_up or time.monotonic() - began > _UPGRADE_SECONDS:
                raise Unavailable("the gateway does not answer", "try again")
            sentence = self._waits() if self._waits is not None else ""
            if sentence and sentence != self.sentence:
                self.sentence = sentence
                news = encode(Control({"kind": "waiting", "sentence": sentence}))
                with contextlib.suppress(OSError):
                    self._theirs.send(news, socket.MSG_DONTWAIT)
        stream.socket.settimeout(_UPGRADE_SECONDS)

    def foreign_refusal(self) -> bool:
        """Whether it was refused by what stands before the gateway."""
        return (
            isinstance(self._error, Forbidden)
            and self.refused is not None
            and not is_ours(self.refused.body)
        )


class _Open:
    """A stream to close behind us."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def __enter__(self) -> Stream:
        return self._stream

    def __exit__(self, *_: object) -> None:
        self._stream.socket.close()


class Pump:
    """Carries bytes between a WebSocket (`wire`) and a socket of ours, until either ends."""

    def __init__(self, stream: Stream, ours: socket.socket) -> None:
        self._wire, self._ours = stream.socket, ours
        self._early = stream.take(len(stream.buffer))
        self._receiver = websocket.Receiver()
        self._cutter = FrameCutter()
        self._up = bytearray()  # WebSocket frames for the gateway
        self._down = bytearray()  # bytes for our owner
        self._owner_done = False
        self._closed: websocket.Closed | None = None
        self._heard = self._pinged = time.monotonic()

    def run(self) -> HoldfastError | None:
        """None if our owner has gone; else why the other side has."""
        self._wire.setblocking(False)
        self._ours.setblocking(False)
        self._received(self._early)
        while True:
            try:
                if self._closed is not None and not self._down:
                    self._write_wire()
                    return _why(self._closed)
                self._turn()
            except EOFError:
                if self._owner_done:
                    return None
                self._flush_down()
                return Unavailable("the gateway went away")

    def _turn(self) -> None:
        poll = select.poll()
        wants = (
            select.POLLIN if len(self._down) < _QUEUE_BYTES and self._closed is None else 0
        ) | (select.POLLOUT if self._up else 0)
        poll.register(self._wire, wants)
        mine = select.POLLOUT if self._down else 0
        if not self._owner_done and len(self._up) < _QUEUE_BYTES:
            mine |= select.POLLIN
        if mine:
            poll.register(self._ours, mine)
        buffered = isinstance(self._wire, ssl.SSLSocket) and self._wire.pending() > 0
        ready = dict(poll.poll(0 if buffered and wants & select.POLLIN else 1000))
        if self._ours.fileno() in ready:
            self._serve_owner(ready[self._ours.fileno()])
        if (buffered or self._wire.fileno() in ready) and wants & select.POLLIN:
            self._read_wire()
        self._write_wire()
        self._keep_alive()

    def _serve_owner(self, events: int) -> None:
        if events & select.POLLOUT:
            self._flush_down()
        if self._owner_done or not events & (select.POLLIN | select.POLLHUP | select.POLLERR):
            return
        try:
            data = self._ours.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self._pack(self._cutter.feed(data))
        else:
            self._owner_done = True
            self._up += websocket.close()
            self._heard = time.monotonic()

    def _pack(self, frames: bytes) -> None:
        """As messages, none longer than a gateway takes."""
        while frames:
            end = whole_frames(frames[:_MESSAGE_BYTES]) or (
                HEADER.size + HEADER.unpack_from(frames)[3]
            )
            self._up += websocket.message(frames[:end])
            frames = frames[end:]

    def _flush_down(self) -> None:
        with contextlib.suppress(BlockingIOError):
            try:
                while self._down:
                    del self._down[: self._ours.send(self._down[:_READ_BYTES])]
            except (BrokenPipeError, ConnectionResetError):
                self._down.clear()  # nobody wants it any more; that reading tells

    def _read_wire(self) -> None:
        try:
            data = self._wire.recv(_READ_BYTES)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return
        except (ssl.SSLEOFError, ConnectionError) as error:
            raise EOFError from error
        if not data:
            raise EOFError
        self._heard = time.monotonic()
        self._received(data)

    def _received(self, data: bytes) -> None:
        for event in self._receiver.feed(data):
            match event:
                case bytes():
                    self._down += event
                case websocket.Ping(payload):
                    self._up += websocket.pong(payload)
                case websocket.Closed():
                    self._closed = event
                    if not self._owner_done:
                        self._up += websocket.close()
        self._flush_down()

    def _write_wire(self) -> None:
        try:
            while self._up:
                del self._up[: self._wire.send(bytes(self._up[:_READ_BYTES]))]
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return
        except (ssl.SSLError, ConnectionError) as error:
            raise EOFError from error

    def _keep_alive(self) -> None:
        """Finds out about a path that is dead without a word, and about a gateway that does not
        answer our farewell."""
        now = time.monotonic()
        silent = now - self._heard
        if silent > (_FAREWELL_SECONDS if self._owner_done else _SILENCE_SECONDS):
            raise EOFError
        if silent > _PING_SECONDS and now - self._pinged > _PING_SECONDS and not self._up:
            self._pinged = now
            self._up += websocket.ping()


def _why(closed: websocket.Closed) -> HoldfastError:
    """1001 and 1012 say that it goes; what else there is was said by a frame before."""
    said = f": {closed.reason}" if closed.reason else ""
    return Unavailable(f"the gateway closed the connection ({closed.code}{said})")
