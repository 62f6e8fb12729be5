"""The client's half of a WebSocket (RFC 6455), without I/O: bytes in, what they mean out.

What a message carries is passed on as it comes, whether the message is whole or not: it is a stream
of frames with lengths of their own. Invariant: no more than a header and a control frame's 125
bytes is held between calls.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final, NamedTuple

from holdfast_wire.errors import BadRequest

PROTOCOL: Final = "holdfast.v1"
NORMAL: Final = 1000
_GUID: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_CONTINUED, _TEXT, _BINARY, _CLOSE, _PING, _PONG = 0, 1, 2, 8, 9, 10
_SHORT: Final = 125


class Ping(NamedTuple):
    data: bytes


class Pong(NamedTuple):
    pass


class Closed(NamedTuple):
    code: int
    reason: str


Event = bytes | Ping | Pong | Closed


def new_key() -> str:
    from base64 import b64encode

    return b64encode(os.urandom(16)).decode()


def accepted(key: str) -> str:
    """What a server that has understood answers."""
    from base64 import b64encode
    from hashlib import sha1

    return b64encode(sha1(key.encode() + _GUID).digest()).decode()  # noqa: S324 - as the RFC wants


def upgrade_headers(key: str) -> list[tuple[str, str]]:
    return [
        ("Connection", "Upgrade"),
        ("Upgrade", "websocket"),
        ("Sec-WebSocket-Version", "13"),
        ("Sec-WebSocket-Key", key),
        ("Sec-WebSocket-Protocol", PROTOCOL),
    ]


def check_upgrade(headers: dict[str, str], key: str) -> None:
    """Of a 101; names in small letters."""
    if headers.get("sec-websocket-accept") != accepted(key):
        raise BadRequest("the server's answer to the WebSocket's key is wrong")
    if headers.get("sec-websocket-protocol") != PROTOCOL:
        raise BadRequest(f"the server does not speak {PROTOCOL}", "is it a gateway of holdfast?")


def message(data: bytes) -> bytes:
    return _frame(_BINARY, data)


def ping() -> bytes:
    return _frame(_PING, b"")


def pong(data: bytes) -> bytes:
    return _frame(_PONG, data)


def close(code: int = NORMAL) -> bytes:
    return _frame(_CLOSE, code.to_bytes(2, "big"))


def _frame(opcode: int, data: bytes) -> bytes:
    size = len(data)
    if size <= _SHORT:
        head = bytes((0x80 | opcode, 0x80 | size))
    elif size < 1 << 16:
        head = bytes((0x80 | opcode, 0x80 | 126)) + size.to_bytes(2, "big")
    else:
        head = bytes((0x80 | opcode, 0x80 | 127)) + size.to_bytes(8, "big")
    key = os.urandom(4)
    return head + key + _masked(data, key)


def _masked(data: bytes, key: bytes) -> bytes:
    size = len(data)
    mask = (key * (size // 4 + 1))[:size]
    mixed = int.from_bytes(data, "little") ^ int.from_bytes(mask, "little")
    return mixed.to_bytes(size, "little")


class Receiver:
    def __init__(self) -> None:
        self._buffer = bytearray()
        self._left = 0  # of the data frame that is being passed on
        self._open = False  # a message is continued in the next frame
        self._closed = False

    def feed(self, data: bytes) -> Iterator[Event]:
        self._buffer += data
        while self._buffer and not self._closed:
            if self._left:
                part = bytes(self._buffer[: self._left])
                del self._buffer[: len(part)]
                self._left -= len(part)
                yield part
                continue
            found = self._header()
            if found is None:
                return
            opcode, size, length = found
            if opcode in (_CONTINUED, _BINARY):
                del self._buffer[:size]
                self._left = length
                continue
            if len(self._buffer) < size + length:
                return
            payload = bytes(self._buffer[size : size + length])
            del self._buffer[: size + length]
            yield self._control(opcode, payload)

    def _header(self) -> tuple[int, int, int] | None:
        """The next frame's opcode, the size of its header and of what follows; None if its header
        is not whole."""
        if len(self._buffer) < 2:
            return None
        first, second = self._buffer[:2]
        opcode, length, size = first & 0x0F, second & 0x7F, 2
        if first & 0x70 or second & 0x80:
            raise BadRequest("the server sent a WebSocket frame that is none")
        final = bool(first & 0x80)
        if opcode >= _CLOSE:
            if length > _SHORT or not final or opcode > _PONG:
                raise BadRequest("the server sent a control frame that is none")
            return opcode, size, length
        if opcode not in (_CONTINUED, _BINARY) or (opcode == _CONTINUED) != self._open:
            raise BadRequest("the server sent something else than frames")
        if length > _SHORT:
            size = 4 if length == 126 else 10
            if len(self._buffer) < size:
                return None
            length = int.from_bytes(self._buffer[2:size], "big")
        self._open = not final
        return opcode, size, length

    def _control(self, opcode: int, payload: bytes) -> Event:
        if opcode == _PING:
            return Ping(payload)
        if opcode == _PONG:
            return Pong()
        self._closed = True
        code = int.from_bytes(payload[:2], "big") if len(payload) >= 2 else 1005
        return Closed(code, payload[2:].decode(errors="replace"))
