"""Frames over one TLS connection, with a blocking socket: OpenSSL works without Python's lock, and
a thread that reads, checks and writes in one go needs no copies between. One thread at a time uses
a link, for OpenSSL allows no more. Its silence is watched from the event loop: a socket with a
timeout of its own asks the kernel before each record, which takes a tenth of the time.

    frame  kind u8, part u16, length u32, then that many bytes
"""

from __future__ import annotations

import asyncio
import json
import select
import socket
import ssl
import struct
import time
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

from holdfast_kube.order_keys import node_of
from holdfast_wire.errors import BadRequest, Retry, Unauthenticated

VERSION: Final = 4
SILENCE: Final = 10.0  # seconds without a byte, and the link counts as lost
TICK: Final = 2.0  # a side with nothing to say says so this often
CHUNK: Final = 256 << 10  # of data in one frame: it stays in a core's cache from end to end
MESSAGE_MAX: Final = 4 << 20  # of any other frame: a manifest
_HEAD: Final = struct.Struct(">BHI")
# Of the kernel's struct tcp_info: tcpi_unacked and tcpi_notsent_bytes, since Linux 4.6.
_COUNT, _UNACKNOWLEDGED_AT, _UNSENT_AT, _INFO_SIZE = struct.Struct("=I"), 24, 144, 148


class LinkLost(Retry):
    """The connection to the other agent broke or fell silent. What the other side did with what
    it has by then is not known from this."""

    code = "link_lost"


class Frame(IntEnum):
    HELLO = 1
    BEGIN = 2  # a part, by its number; body: its name
    DATA = 3
    END = 4  # of a part; body: its size and tag
    MANIFEST = 5
    ABORT = 6
    TICK = 7
    PROGRESS = 8  # body: bytes taken so far
    RECEIVED = 9  # all is there and found right
    COMMITTED = 10
    FAILED = 11  # body: the reason
    ZEROS = 12  # of a part: as DATA, CHUNK of them
    READY = 13  # nothing has to be made any more before what was dumped can be restored
    PACKED = 14  # of a part: as DATA, packed (packing.py)
    AHEAD = 15  # of memory: where the bytes that come next belong (ahead.py)
    KNOWN = 16  # of memory: as DATA, which came before as AHEAD


_KINDS: Final = frozenset(Frame)
_BYTES: Final = (Frame.DATA, Frame.PACKED)


@dataclass(frozen=True, slots=True)
class Place:
    """Of an agent: which node it must prove to be of, and where it is."""

    node: str
    address: tuple[str, int]


class Link:
    def __init__(self, wrapped: ssl.SSLSocket, node: str) -> None:
        self._socket = wrapped
        self.node = node  # of the other agent, by its certificate
        self._head = memoryview(bytearray(_HEAD.size))
        self._since: float | None = None  # when the last byte moved; None: none is waited for
        self._silent = False

    async def watch(self) -> None:
        """Runs beside whatever uses the link, and interrupts it when it has waited too long."""
        while True:
            await asyncio.sleep(SILENCE / 10)
            since = self._since
            if since is not None and time.monotonic() - since > SILENCE:
                self._silent = True
                self.interrupt()

    def send(self, kind: Frame, body: bytes | memoryview = b"", part: int = 0) -> None:
        self._since = time.monotonic()
        try:
            if len(body) < CHUNK // 2:
                self._socket.sendall(_HEAD.pack(kind, part, len(body)) + body)
                return
            self._socket.sendall(_HEAD.pack(kind, part, len(body)))
            self._socket.sendall(body)
        except (OSError, ValueError) as error:
            raise self._lost(str(error)) from error
        finally:
            self._since = None

    def send_json(self, kind: Frame, body: Any, part: int = 0) -> None:
        self.send(kind, json.dumps(body).encode(), part)

    def head(self) -> tuple[Frame, int, int]:
        """(kind, part, length) of the next frame; its body is to be read next."""
        self.read_into(self._head)
        return self.parsed(self._head)

    @staticmethod
    def parsed(head: bytes | memoryview) -> tuple[Frame, int, int]:
        kind, part, length = _HEAD.unpack(head)
        if kind not in _KINDS or length > (CHUNK if kind in _BYTES else MESSAGE_MAX):
            raise BadRequest("the other agent sent what is no frame")
        return Frame(kind), part, length

    def body(self, length: int) -> bytes:
        data = bytearray(length)
        self.read_into(memoryview(data))
        return bytes(data)

    def read_into(self, view: memoryview) -> None:
        self._since = time.monotonic()
        try:
            while view:
                count = self._socket.recv_into(view)
                if not count:
                    raise self._lost("it was closed")
                view = view[count:]
                self._since = time.monotonic()
        except (OSError, ValueError) as error:
            raise self._lost(str(error)) from error
        finally:
            self._since = None

    def _lost(self, why: str) -> LinkLost:
        if self._silent:
            return LinkLost(f"nothing from the other agent for {SILENCE:.0f} s")
        return LinkLost(f"the connection to the other agent broke: {why}")

    def waiting(self, seconds: float = 0.0) -> bool:
        """There is something to read at once, or within that time."""
        if self._socket.pending():
            return True
        poller = select.poll()
        poller.register(self._socket, select.POLLIN)
        return bool(poller.poll(seconds * 1000))

    def held_by_receiver(self) -> bool:
        """Whether bytes wait to be sent and none is on its way: so the other end has no room for
        them. On a way that is slow some always are. As the kernel has it; one that does not know
        says no."""
        told = self._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_SIZE)
        if len(told) < _INFO_SIZE:
            return False
        (unacknowledged,) = _COUNT.unpack_from(told, _UNACKNOWLEDGED_AT)
        (unsent,) = _COUNT.unpack_from(told, _UNSENT_AT)
        return bool(unsent and not unacknowledged)

    # -- for one that cannot wait for the other side alone (frames.py)

    def unblock(self) -> None:
        self._socket.setblocking(False)

    def block(self, seconds: float) -> None:
        """What follows waits again, for so long."""
        self._socket.settimeout(seconds)

    def fileno(self) -> int:
        return self._socket.fileno()

    def try_send(self, view: memoryview) -> int:
        """How much of it was sent; 0: not now, and then the same must be tried again."""
        try:
            return self._socket.send(view)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return 0
        except (OSError, ValueError) as error:
            raise self._lost(str(error)) from error

    def try_read(self, view: memoryview) -> int:
        """0: nothing has come."""
        try:
            count = self._socket.recv_into(view)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return 0
        except (OSError, ValueError) as error:
            raise self._lost(str(error)) from error
        if not count:
            raise self._lost("it was closed")
        return count

    def drain(self) -> None:
        """Lets the other side read our last word: what it still sends is thrown away, for a
        moment, as closing on unread bytes would take that word from it."""
        until = time.monotonic() + TICK
        trash = bytearray(CHUNK)
        try:
            self._socket.settimeout(TICK)
            while time.monotonic() < until and self._socket.recv_into(trash):
                pass
        except (OSError, ValueError):
            return

    def interrupt(self) -> None:
        """From any thread: whoever waits for the other side stops waiting."""
        try:
            # Not the wrapped socket's own: that would take OpenSSL's state from under the thread.
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)
        except OSError:
            return

    def close(self) -> None:
        self._socket.close()


def frame_head(kind: Frame, length: int = 0, part: int = 0) -> bytes:
    return _HEAD.pack(kind, part, length)


def as_json(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise BadRequest("the other agent sent a message that is no object")
    return value


def _tune(plain: socket.socket) -> None:
    plain.settimeout(SILENCE)
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(SILENCE * 1000))


def dial(to: Place, context: ssl.SSLContext) -> Link:
    try:
        plain = socket.create_connection(to.address, timeout=SILENCE)
    except OSError as error:
        raise LinkLost(f"the other agent cannot be reached at {to.address[0]}: {error}") from error
    link = _wrap(plain, context, server=False)
    if link.node != to.node:
        link.close()
        raise Unauthenticated(f"the agent of {link.node} answers in the place of {to.node}'s")
    return link


class Coming:
    """A connection whose other end has not shown who it is."""

    def __init__(self, plain: socket.socket) -> None:
        # What can be cut off while a thread is in the handshake: TLS takes the other one away.
        self._cut = plain.dup()

    def cut(self) -> None:
        """From any thread: a handshake that is under way fails."""
        try:
            self._cut.shutdown(socket.SHUT_RDWR)
        except OSError:
            return

    def close(self) -> None:
        self._cut.close()


def answer(plain: socket.socket, context: ssl.SSLContext) -> Link:
    """Who has connected stands in `node`: what it may do there is the order's to say."""
    return _wrap(plain, context, server=True)


def _wrap(plain: socket.socket, context: ssl.SSLContext, *, server: bool) -> Link:
    """Both sides must show a certificate of the nodes' authority, and of one node. The names of
    nodes are compared here, whole, and not by OpenSSL, which knows wildcards."""
    context.check_hostname = False
    try:
        _tune(plain)
        wrapped = context.wrap_socket(plain, server_side=server)
    except ssl.SSLError as error:
        plain.close()
        raise Unauthenticated(f"the other side is no agent of this cluster: {error}") from error
    except OSError as error:
        plain.close()
        raise LinkLost(f"the connection to the other agent broke: {error}") from error
    shown: Any = wrapped.getpeercert() or {}
    names = shown.get("subjectAltName", ())
    node = node_of(name for _, name in names) if all(kind == "DNS" for kind, _ in names) else ""
    if not node:
        wrapped.close()
        raise Unauthenticated("the other side's certificate is not a node agent's")
    wrapped.settimeout(None)  # see `watch`
    return Link(wrapped, node)
