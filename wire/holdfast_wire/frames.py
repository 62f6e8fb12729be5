"""Frames: what travels between a client, a gateway and a sidecar. Sans-I/O, version 1.

A frame is an 8-byte header and a payload, all integers big-endian:

    u8 version (1) | u8 type | u16 reserved (0) | u32 payload length | payload

On a stream socket frames follow one another; a WebSocket message carries one or more whole frames.
`docs/protocol.md` describes each payload; `tests/wire/golden.json` pins them byte for byte and the
Python and the JavaScript tests both read it.

Invariant: `decode(encode(frame)) == frame`, and no input makes the decoder raise anything but
`BadRequest`, `TooLarge` or `Unsupported`, or hold more than one payload of `MAX_PAYLOAD`.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from typing import Any, Final

from holdfast_wire.errors import (
    BadRequest,
    HoldfastError,
    Internal,
    TooLarge,
    Unsupported,
    from_json,
)

VERSION: Final = 1
HEADER: Final = struct.Struct("!BBHI")
# Large enough for a whole screen or a pasted file, small enough that a peer which lies about a
# length costs a megabyte and no more. Longer things are sent in parts.
MAX_PAYLOAD: Final = 1 << 20
MAX_KEY: Final = 255

_SNAPSHOT: Final = struct.Struct("!QHHB")
_OUTPUT: Final = struct.Struct("!Q")
_GAP: Final = struct.Struct("!QQ")
_INPUT: Final = struct.Struct("!QB")
_ACK: Final = struct.Struct("!QQB")
_RESIZE: Final = struct.Struct("!QHH")
_ERROR: Final = struct.Struct("!Q")


class FrameType(IntEnum):
    ATTACH = 1
    SNAPSHOT = 2
    OUTPUT = 3
    GAP = 4
    INPUT = 5
    ACK = 6
    RESIZE = 7
    CONTROL = 8
    ERROR = 9


class Part(IntFlag):
    """Which part of a snapshot a frame carries. A small snapshot is both first and last."""

    MIDDLE = 0
    FIRST = 1
    LAST = 2


class AckStatus(IntEnum):
    APPLIED = 0
    DUPLICATE = 1


@dataclass(frozen=True, slots=True)
class Attach:
    """Client: who I am and what I want. Server, in answer: what you got."""

    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Bytes that, written to a reset terminal of this size, give the exact screen at `seq`."""

    seq: int
    columns: int
    rows: int
    part: Part
    data: bytes


@dataclass(frozen=True, slots=True)
class Output:
    """What the session printed; `seq` is the position of the first byte."""

    seq: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Gap:
    """The bytes from `start` up to `end` will not be sent. A snapshot at or after `end` follows."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Input:
    """Bytes for the terminal. `number` is the client's own and grows; `key` makes it idempotent."""

    number: int
    key: bytes
    data: bytes


@dataclass(frozen=True, slots=True)
class Ack:
    """Input `number` took effect, as the session's input number `order`."""

    number: int
    order: int
    status: AckStatus


@dataclass(frozen=True, slots=True)
class Resize:
    """Client: my window is this large (`seq` 0). Server: the session is, from `seq` on."""

    seq: int
    columns: int
    rows: int


@dataclass(frozen=True, slots=True)
class Control:
    """A request, an answer or a piece of news, by `kind`; see docs/protocol.md."""

    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Error:
    """`ref` is the number of the input or request it answers, 0 if none."""

    ref: int
    body: dict[str, Any]

    @classmethod
    def of(cls, error: HoldfastError, ref: int = 0) -> Error:
        return cls(ref, dict(error.to_json()))

    def exception(self) -> HoldfastError:
        return from_json(self.body)


Frame = Attach | Snapshot | Output | Gap | Input | Ack | Resize | Control | Error


def _json_out(body: dict[str, Any]) -> bytes:
    return json.dumps(body, separators=(",", ":"), ensure_ascii=False, sort_keys=True).encode(
        errors="replace"
    )


def _json_in(data: bytes) -> dict[str, Any]:
    try:
        body = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BadRequest("a frame's JSON cannot be read") from error
    if not isinstance(body, dict):
        raise BadRequest("a frame's JSON is not an object")
    return body


def output_header(seq: int, length: int) -> bytes:
    """Header of an Output frame whose bytes follow from elsewhere: the ring is never copied."""
    return HEADER.pack(VERSION, FrameType.OUTPUT, 0, _OUTPUT.size + length) + _OUTPUT.pack(seq)


def encode(frame: Frame) -> bytes:
    kind, payload = _encode_payload(frame)
    if len(payload) > MAX_PAYLOAD:
        raise TooLarge(f"a frame of {len(payload)} bytes is over {MAX_PAYLOAD}", "send it in parts")
    return HEADER.pack(VERSION, kind, 0, len(payload)) + payload


def _encode_payload(frame: Frame) -> tuple[FrameType, bytes]:
    match frame:
        case Output(seq, data):
            return FrameType.OUTPUT, _OUTPUT.pack(seq) + data
        case Input(number, key, data):
            if len(key) > MAX_KEY:
                raise TooLarge(f"an idempotency key is at most {MAX_KEY} bytes")
            return FrameType.INPUT, _INPUT.pack(number, len(key)) + key + data
        case Ack(number, order, status):
            return FrameType.ACK, _ACK.pack(number, order, status)
        case Snapshot(seq, columns, rows, part, data):
            return FrameType.SNAPSHOT, _SNAPSHOT.pack(seq, columns, rows, part) + data
        case Gap(start, end):
            return FrameType.GAP, _GAP.pack(start, end)
        case Resize(seq, columns, rows):
            return FrameType.RESIZE, _RESIZE.pack(seq, columns, rows)
        case Attach(body):
            return FrameType.ATTACH, _json_out(body)
        case Control(body):
            return FrameType.CONTROL, _json_out(body)
        case Error(ref, body):
            return FrameType.ERROR, _ERROR.pack(ref) + _json_out(body)


def _decode_payload(kind: int, data: bytes) -> Frame:
    match kind:
        case FrameType.OUTPUT:
            return Output(_OUTPUT.unpack_from(data)[0], data[_OUTPUT.size :])
        case FrameType.INPUT:
            number, length = _INPUT.unpack_from(data)
            key_end = _INPUT.size + length
            if key_end > len(data):
                raise BadRequest("an input's key is longer than its frame")
            return Input(number, data[_INPUT.size : key_end], data[key_end:])
        case FrameType.ACK:
            number, order, status = _ACK.unpack(data)
            return Ack(number, order, AckStatus(status))
        case FrameType.SNAPSHOT:
            seq, columns, rows, part = _SNAPSHOT.unpack_from(data)
            if part > (Part.FIRST | Part.LAST):
                raise BadRequest("a snapshot's part is unknown")
            return Snapshot(seq, columns, rows, Part(part), data[_SNAPSHOT.size :])
        case FrameType.GAP:
            return Gap(*_GAP.unpack(data))
        case FrameType.RESIZE:
            return Resize(*_RESIZE.unpack(data))
        case FrameType.ATTACH:
            return Attach(_json_in(data))
        case FrameType.CONTROL:
            return Control(_json_in(data))
        case FrameType.ERROR:
            return Error(_ERROR.unpack_from(data)[0], _json_in(data[_ERROR.size :]))
    raise Unsupported(f"frame type {kind} is unknown", "is the other side newer?")


class Decoder:
    """Bytes in, frames out. After it raised, the stream is lost: close the connection."""

    def __init__(self, max_payload: int = MAX_PAYLOAD) -> None:
        self._max = max_payload
        self._buffer = bytearray()

    def feed(self, data: bytes | bytearray | memoryview) -> Iterator[Frame]:
        """The frames that are whole now. Nothing is taken in before the first is asked for."""
        if not self._buffer and len(data) >= HEADER.size:
            version, kind, reserved, length = HEADER.unpack_from(data)
            if len(data) == HEADER.size + length:  # exactly one, as a keystroke comes
                self._check(version, reserved, length)
                yield self._decoded(kind, bytes(data[HEADER.size :]))
                return
        self._buffer += data
        start = 0
        try:
            while len(self._buffer) - start >= HEADER.size:
                version, kind, reserved, length = HEADER.unpack_from(self._buffer, start)
                self._check(version, reserved, length)
                end = start + HEADER.size + length
                if end > len(self._buffer):
                    break
                payload = bytes(memoryview(self._buffer)[start + HEADER.size : end])
                start = end
                yield self._decoded(kind, payload)
        finally:
            del self._buffer[:start]

    def _decoded(self, kind: int, payload: bytes) -> Frame:
        try:
            return _decode_payload(kind, payload)
        except (struct.error, ValueError) as error:
            raise BadRequest(f"a frame of type {kind} is malformed") from error

    def _check(self, version: int, reserved: int, length: int) -> None:
        if version != VERSION:
            raise Unsupported(
                f"frames of version {version} are not spoken here",
                f"this side speaks version {VERSION}; upgrade the older one",
            )
        if reserved:
            raise BadRequest("a frame's reserved bits are set")
        if length > self._max:
            raise TooLarge(f"a frame of {length} bytes is over {self._max}", "send it in parts")


class FrameCutter:
    """Chunks of a byte stream in; chunks that end where a frame ends out. For a WebSocket, whose
    messages hold whole frames; between calls it holds less than one."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, chunk: bytes) -> bytes:
        data = self._rest + chunk if self._rest else chunk
        end = whole_frames(data)
        self._rest = data[end:]
        return data[:end]


def whole_frames(data: bytes) -> int:
    """How many of these bytes make whole frames, by their headers alone."""
    end = 0
    while len(data) - end >= HEADER.size:
        version, _, reserved, length = HEADER.unpack_from(data, end)
        if version != VERSION or reserved or length > MAX_PAYLOAD:
            raise Internal("the stream of frames is out of step")
        if end + HEADER.size + length > len(data):
            break
        end += HEADER.size + length
    return end


def decode(data: bytes) -> Frame:
    """Exactly one frame, as in a WebSocket message of a small client."""
    frames = list(Decoder().feed(data))
    if len(frames) != 1 or HEADER.size + HEADER.unpack_from(data)[3] != len(data):
        raise BadRequest("not exactly one frame")
    return frames[0]
