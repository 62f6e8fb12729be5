"""The connection that a pod's sidecar makes to a gateway, with the streams of many clients on it.
Sans-I/O, version 1; over TLS.

A frame is an 8-byte header and a payload, all integers big-endian:

    u32 stream | u8 kind | u8 reserved (0) | u16 payload length | payload

    HELLO   the sidecar's first: JSON, who it is; the gateway's answer: `{}`, or an error, and
            then it closes. On stream 0, as PING
    OPEN    the gateway begins a stream for one of its clients; its number was never used before
    DATA    bytes of a stream, in either direction: frames of holdfast_wire.frames, cut anywhere
    CREDIT  u32: so many bytes more may be sent on this stream
    CLOSE   the stream has ended, for both
    PING    is answered by a PING with the payload `1`

A stream begins with a credit of `WINDOW` in each direction. So a client that reads slowly stops
its own stream and no other: nobody has to keep more than `WINDOW` bytes of one.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import Any, Final, NamedTuple

from holdfast_wire.errors import BadRequest

VERSION: Final = 1
PORT: Final = 7070
AUDIENCE: Final = "holdfast-gateway"
WINDOW: Final = 256 << 10
# Credit is given back in pieces, not for every byte.
CREDIT_EVERY: Final = WINDOW // 4
MAX_PAYLOAD: Final = 0xFFFF
HEADER: Final = struct.Struct("!IBBH")
_CREDIT: Final = struct.Struct("!I")
# Whoever hears nothing for so long takes the other for gone; who has nothing to say sends a PING.
SILENCE_SECONDS: Final = 15.0
PING_SECONDS: Final = 5.0


class Kind(IntEnum):
    HELLO = 1
    OPEN = 2
    DATA = 3
    CREDIT = 4
    CLOSE = 5
    PING = 6


class Piece(NamedTuple):
    stream: int
    kind: Kind
    payload: bytes


def encode(stream: int, kind: Kind, payload: bytes = b"") -> bytes:
    return HEADER.pack(stream, kind, 0, len(payload)) + payload


def data(stream: int, given: bytes | memoryview) -> Iterator[bytes]:
    """In as many frames as it takes. The bytes themselves are not copied: header, piece, …"""
    view = memoryview(given)
    for start in range(0, len(view), MAX_PAYLOAD):
        piece = view[start : start + MAX_PAYLOAD]
        yield HEADER.pack(stream, Kind.DATA, 0, len(piece))
        yield bytes(piece)


def credit(stream: int, count: int) -> bytes:
    return encode(stream, Kind.CREDIT, _CREDIT.pack(count))


def hello(body: dict[str, Any]) -> bytes:
    return encode(0, Kind.HELLO, json.dumps(body, separators=(",", ":")).encode())


def said(piece: Piece) -> dict[str, Any]:
    """The body of a HELLO."""
    try:
        body = json.loads(piece.payload)
    except (ValueError, RecursionError):
        body = None
    if piece.kind is not Kind.HELLO or not isinstance(body, dict):
        raise BadRequest("an uplink begins with a hello")
    return body


def credit_of(piece: Piece) -> int:
    if len(piece.payload) != _CREDIT.size:
        raise BadRequest("a credit is a number of four bytes")
    return int(_CREDIT.unpack(piece.payload)[0])


class Parser:
    """Bytes in, whole frames out; holds less than one frame between calls."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, received: bytes) -> Iterator[Piece]:
        self._rest += received
        at = 0
        try:
            while len(self._rest) - at >= HEADER.size:
                stream, kind, reserved, length = HEADER.unpack_from(self._rest, at)
                if reserved or kind not in Kind.__members__.values():
                    raise BadRequest("the uplink is out of step")
                end = at + HEADER.size + length
                if end > len(self._rest):
                    break
                payload = bytes(memoryview(self._rest)[at + HEADER.size : end])
                at = end
                yield Piece(stream, Kind(kind), payload)
        finally:
            del self._rest[:at]


class Windows:
    """The credit of one stream, in both directions."""

    __slots__ = ("_heard", "_taken", "may_send")

    def __init__(self) -> None:
        self.may_send = WINDOW
        self._heard = WINDOW  # what the other may still send
        self._taken = 0  # of what it sent, and was not yet told of

    def sent(self, count: int) -> None:
        self.may_send -= count

    def granted(self, count: int) -> None:
        self.may_send += count
        if self.may_send > WINDOW:
            raise BadRequest("more credit than was ever used")

    def heard(self, count: int) -> None:
        self._heard -= count
        if self._heard < 0:
            raise BadRequest("more was sent than there was credit for")

    def taken(self, count: int) -> int:
        """So many bytes were passed on; returns what the other is to be told, if it is time."""
        self._taken += count
        if self._taken < CREDIT_EVERY:
            return 0
        told, self._taken = self._taken, 0
        self._heard += told
        return told
