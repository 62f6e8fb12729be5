"""Frames against chance: every frame there can be, in every cut, and every byte that is not one."""

from __future__ import annotations

import contextlib
import json
import random
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast_wire import frames
from holdfast_wire.errors import BadRequest, HoldfastError, NoTurn, TooLarge, Unsupported
from holdfast_wire.frames import HEADER, MAX_KEY, MAX_PAYLOAD, Decoder, Frame, FrameType

U64 = st.integers(0, 2**64 - 1)
U16 = st.integers(0, 2**16 - 1)
BYTES = st.binary(max_size=300)
TEXT = st.text(max_size=20)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)
BODY = st.dictionaries(TEXT, JSON, max_size=5)
ANY_FRAME: dict[type[Frame], st.SearchStrategy[Any]] = {
    frames.Attach: st.builds(frames.Attach, BODY),
    frames.Snapshot: st.builds(
        frames.Snapshot, U64, U16, U16, st.integers(0, 3).map(frames.Part), BYTES
    ),
    frames.Output: st.builds(frames.Output, U64, BYTES),
    frames.Gap: st.builds(frames.Gap, U64, U64),
    frames.Input: st.builds(frames.Input, U64, st.binary(max_size=MAX_KEY), BYTES),
    frames.Ack: st.builds(frames.Ack, U64, U64, st.sampled_from(frames.AckStatus)),
    frames.Resize: st.builds(frames.Resize, U64, U16, U16),
    frames.Control: st.builds(frames.Control, BODY),
    frames.Error: st.builds(frames.Error, U64, BODY),
}
FRAME: st.SearchStrategy[Frame] = st.one_of(*ANY_FRAME.values())
GOLDEN = [
    bytes.fromhex(case["hex"])
    for case in json.loads((Path(__file__).parent / "golden.json").read_text())["frames"]
]
DEEP = (b"[" * 200_000, b'{"a":' * 150_000, b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}")


def raw(kind: int, payload: bytes, version: int = 1, reserved: int = 0) -> bytes:
    return HEADER.pack(version, kind, reserved, len(payload)) + payload


def held(decoder: Decoder) -> int:
    return len(decoder._buffer)


def fed(data: bytes, cuts: list[int]) -> list[Frame]:
    """What one decoder makes of the pieces; never holding more than one frame."""
    decoder, found, start = Decoder(), [], 0
    for cut in [*sorted(cuts), len(data)]:
        found += list(decoder.feed(data[start:cut]))
        start = cut
        assert held(decoder) <= HEADER.size + MAX_PAYLOAD
    return found


@st.composite
def cut_stream(draw: st.DrawFn) -> tuple[list[Frame], bytes, list[int]]:
    some = draw(st.lists(FRAME, min_size=1, max_size=6))
    data = b"".join(map(frames.encode, some))
    return some, data, draw(st.lists(st.integers(0, len(data)), max_size=12))


def test_the_strategies_know_every_frame_type() -> None:
    assert {t.__name__.upper() for t in ANY_FRAME} == {kind.name for kind in FrameType}


@given(cut_stream())
@settings(max_examples=60, deadline=None)
def test_any_frames_in_any_pieces_come_out_as_they_went_in(
    case: tuple[list[Frame], bytes, list[int]],
) -> None:
    sent, data, cuts = case
    assert fed(data, cuts) == sent


@given(FRAME)
@settings(max_examples=60, deadline=None)
def test_decode_takes_exactly_one(frame: Frame) -> None:
    data = frames.encode(frame)
    assert frames.decode(data) == frame
    for wrong in (b"", data[:-1], data + data, data + b"\x01"):
        with pytest.raises(BadRequest):
            frames.decode(wrong)


@given(st.binary(max_size=400), st.lists(st.integers(0, 400), max_size=5))
@settings(max_examples=100, deadline=None)
def test_random_bytes_are_refused_or_awaited(data: bytes, cuts: list[int]) -> None:
    with contextlib.suppress(BadRequest, TooLarge, Unsupported):
        fed(data, cuts)


def mutated(stream: bytes, chance: random.Random) -> bytes:
    """A valid stream with bytes changed, dropped or put in: header fields included."""
    data = bytearray(stream)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(data) + 1)
        match chance.choice(("set", "drop", "insert")):
            case "set":
                data[at : at + 1] = bytes([chance.choice((0, 1, 9, 127, 128, 255))])
            case "drop":
                del data[at : at + chance.randint(1, 9)]
            case _:
                data[at:at] = chance.randbytes(chance.randint(1, 9))
    return bytes(data)


@pytest.mark.parametrize("seed", range(4))
def test_damaged_frames_raise_what_is_promised_and_nothing_else(seed: int) -> None:
    chance = random.Random(seed)
    outcomes = set()
    for _ in range(1500):
        stream = b"".join(chance.choices(GOLDEN, k=chance.randint(1, 4)))
        data = mutated(stream, chance)
        cuts = [chance.randrange(len(data) + 1) for _ in range(chance.randint(0, 4))]
        try:
            fed(data, cuts)
            outcomes.add("fine")
        except (BadRequest, TooLarge, Unsupported) as error:
            outcomes.add(error.code)
    assert outcomes == {"fine", "bad_request", "too_large", "unsupported"}


@given(st.sampled_from(FrameType), st.binary(max_size=60))
@settings(max_examples=100, deadline=None)
def test_any_payload_under_a_true_header(kind: FrameType, payload: bytes) -> None:
    try:
        (frame,) = Decoder().feed(raw(kind, payload))
    except BadRequest:
        return
    assert type(frame).__name__.upper() == kind.name


def test_a_length_over_the_limit_is_refused_before_its_payload_comes() -> None:
    decoder = Decoder()
    with pytest.raises(TooLarge):
        list(decoder.feed(HEADER.pack(1, FrameType.OUTPUT, 0, MAX_PAYLOAD + 1)))
    assert held(decoder) <= HEADER.size


def test_the_largest_frame_passes_in_pieces_and_is_let_go() -> None:
    frame = frames.Output(7, bytes(MAX_PAYLOAD - 8))
    data = frames.encode(frame)
    decoder, found = Decoder(), []
    for start in range(0, len(data), 65_521):
        found += list(decoder.feed(memoryview(data)[start : start + 65_521]))
        assert held(decoder) <= HEADER.size + MAX_PAYLOAD
    assert found == [frame]
    assert held(decoder) == 0


def test_one_byte_more_than_the_largest_cannot_be_encoded() -> None:
    with pytest.raises(TooLarge):
        frames.encode(frames.Output(0, bytes(MAX_PAYLOAD - 7)))
    with pytest.raises(TooLarge):
        frames.encode(frames.Input(1, bytes(MAX_KEY + 1), b""))


@pytest.mark.parametrize("version", [0, 2, 255])
def test_another_version_is_unsupported(version: int) -> None:
    with pytest.raises(Unsupported):
        list(Decoder().feed(raw(FrameType.CONTROL, b"{}", version=version)))


@pytest.mark.parametrize("reserved", [1, 0x80, 0x8000, 0xFFFF])
def test_reserved_bits_must_be_zero(reserved: int) -> None:
    with pytest.raises(BadRequest):
        list(Decoder().feed(raw(FrameType.CONTROL, b"{}", reserved=reserved)))


@pytest.mark.parametrize("kind", [0, 10, 255])
def test_an_unknown_type_is_unsupported(kind: int) -> None:
    with pytest.raises(Unsupported):
        list(Decoder().feed(raw(kind, b"")))


@pytest.mark.parametrize("kind", [k for k in FrameType if k.name not in ("ATTACH", "CONTROL")])
def test_a_payload_shorter_than_its_fields_is_malformed(kind: FrameType) -> None:
    for length in range(8):
        with pytest.raises(BadRequest):
            list(Decoder().feed(raw(kind, bytes(length))))


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        (FrameType.INPUT, struct.pack("!QB", 1, 5) + b"four"),
        (FrameType.ACK, struct.pack("!QQB", 1, 1, 2)),
        (FrameType.ACK, struct.pack("!QQB", 1, 1, 0) + b"x"),
        (FrameType.SNAPSHOT, struct.pack("!QHHB", 1, 80, 24, 4)),
        (FrameType.GAP, struct.pack("!QQ", 1, 2) + b"x"),
        (FrameType.RESIZE, struct.pack("!QHH", 1, 2, 3) + b"x"),
    ],
)
def test_fields_that_cannot_be_are_malformed(kind: FrameType, payload: bytes) -> None:
    with pytest.raises(BadRequest):
        list(Decoder().feed(raw(kind, payload)))


@pytest.mark.parametrize("kind", [FrameType.ATTACH, FrameType.CONTROL, FrameType.ERROR])
@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"[]", b"1", b"null", b'"text"', b"{", b'{"a":1}x', b"\xff\xfe", b'{"a":\x00}'),
        *(b'{"a":' + b"9" * 5000 + b"}", b'{"a":"\xff"}', b"{1:2}", b"\xef\xbb\xbf"),
    ],
)
def test_json_that_is_not_an_object_is_malformed(kind: FrameType, body: bytes) -> None:
    ref = bytes(8) if kind is FrameType.ERROR else b""
    with pytest.raises(BadRequest):
        list(Decoder().feed(raw(kind, ref + body)))


@pytest.mark.parametrize("bomb", DEEP, ids=["open lists", "open objects", "closed lists"])
def test_a_json_bomb_is_malformed(bomb: bytes) -> None:
    with pytest.raises(BadRequest):
        list(Decoder().feed(raw(FrameType.CONTROL, bomb)))


def test_frames_before_a_bad_one_are_still_given() -> None:
    good = frames.Ack(1, 2, frames.AckStatus.APPLIED)
    found = Decoder().feed(frames.encode(good) + raw(FrameType.CONTROL, b"[]"))
    assert next(found) == good
    with pytest.raises(BadRequest):
        next(found)


def test_who_stops_listening_midway_hears_the_rest_with_the_next_bytes() -> None:
    sent = [frames.Output(n, b"x") for n in range(5)]
    decoder = Decoder()
    for frame in decoder.feed(b"".join(map(frames.encode, sent))):
        assert frame == sent[0]
        break
    assert list(decoder.feed(b"")) == sent[1:]


def test_text_that_is_not_unicode_does_not_stop_a_frame() -> None:
    """A file name may hold lone surrogates; they are replaced, and the frame still goes out."""
    data = frames.encode(frames.Control({"kind": "title", "title": "a\udcffb"}))
    assert frames.decode(data) == frames.Control({"kind": "title", "title": "a?b"})


@given(U64, st.integers(0, 300))
def test_the_output_header_alone_is_that_of_the_frame(seq: int, length: int) -> None:
    data = bytes(length)
    assert frames.output_header(seq, length) + data == frames.encode(frames.Output(seq, data))


def test_an_error_travels_whole() -> None:
    sent = NoTurn("ana holds the turn", "take it")
    frame = frames.decode(frames.encode(frames.Error.of(sent, 9)))
    assert isinstance(frame, frames.Error)
    assert frame.ref == 9
    got: HoldfastError = frame.exception()
    assert (type(got), got.message, got.advice) == (NoTurn, sent.message, sent.advice)
    assert json.dumps(frame.body)
