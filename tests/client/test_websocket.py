"""The client's half of a WebSocket, byte by byte; what is said instead of one; and the order of a
stream of frames."""

from __future__ import annotations

import json
from typing import Any

import pytest

from holdfast import websocket
from holdfast.answers import NotServed, error_of
from holdfast.results import News
from holdfast.streams import Stream
from holdfast.websocket import Closed, Ping, Pong, Receiver, accepted, check_upgrade, message
from holdfast_wire.errors import (
    BadRequest,
    Busy,
    Ended,
    Forbidden,
    HoldfastError,
    Internal,
    NotFound,
    NoTurn,
    Unauthenticated,
    Unavailable,
)
from holdfast_wire.frames import Attach, Control, Error, Gap, Output, Part, Snapshot

SENDER = {"modality": "sdk"}


def test_the_handshake() -> None:
    # RFC 6455, 1.3
    assert accepted("dGhlIHNhbXBsZSBub25jZQ==") == "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
    good = {"sec-websocket-accept": accepted("k"), "sec-websocket-protocol": "holdfast.v1"}
    check_upgrade(good, "k")
    for name in good:
        with pytest.raises(BadRequest):
            check_upgrade({**good, name: "x"}, "k")


@pytest.mark.parametrize("size", [0, 1, 125, 126, 65535, 65536])
def test_messages_are_masked(size: int) -> None:
    data = bytes(range(256)) * (size // 256 + 1)
    made = message(data[:size])
    head = 2 + (0 if size < 126 else 2 if size < 65536 else 8)
    assert made[0] == 0x82
    assert made[1] & 0x80
    key, body = made[head : head + 4], made[head + 4 :]
    assert bytes(b ^ key[i % 4] for i, b in enumerate(body)) == data[:size]


def frame(opcode: int, data: bytes, final: bool = True) -> bytes:
    first = (0x80 if final else 0) | opcode
    if len(data) < 126:
        return bytes((first, len(data))) + data
    return bytes((first, 126)) + len(data).to_bytes(2, "big") + data


def test_received_in_any_pieces() -> None:
    stream = (
        frame(2, b"ab", final=False) + frame(9, b"p") + frame(0, b"x" * 200) + frame(10, b"")
        + frame(2, b"") + frame(8, (1012).to_bytes(2, "big") + b"gone") + b"after"
    )  # fmt: skip
    for step in (1, 3, 7, len(stream)):
        receiver = Receiver()
        data, others = b"", []
        for at in range(0, len(stream), step):
            for event in receiver.feed(stream[at : at + step]):
                if isinstance(event, bytes):
                    data += event
                else:
                    others.append(event)
        assert data == b"ab" + b"x" * 200
        assert others == [Ping(b"p"), Pong(), Closed(1012, "gone")]


@pytest.mark.parametrize(
    "bad",
    [
        frame(1, b"text"), frame(0, b"x"), frame(2, b"x", final=False) + frame(2, b"x"),
        frame(3, b""), frame(9, b"", final=False), frame(11, b""), bytes((0xC2, 0)),
        bytes((0x82, 0x80, 0, 0, 0, 0)), bytes((0x89, 126, 0, 126)),
    ],
)  # fmt: skip
def test_what_is_no_websocket(bad: bytes) -> None:
    with pytest.raises(BadRequest):
        list(Receiver().feed(bad))


def test_a_close_is_answered_in_kind() -> None:
    assert websocket.close()[0] == 0x88


# -- answers


def ours(error: HoldfastError) -> bytes:
    return json.dumps({"kind": "Status", "message": "m", "error": error.to_json()}).encode()


def theirs(**more: Any) -> bytes:
    return json.dumps({"kind": "Status", "message": "theirs", **more}).encode()


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (409, ours(NoTurn("bob holds it", "ask")), NoTurn),
        (404, ours(NotFound("x")), NotFound),
        (410, json.dumps({"error": Ended("x").to_json()}).encode(), Ended),
        (401, theirs(), Unauthenticated),
        (403, theirs(), Forbidden),
        (404, theirs(), NotFound),
        (409, theirs(), Busy),
        (429, theirs(), Unavailable),
        (500, theirs(), Unavailable),
        (404, b"404 page not found\n", NotServed),
        (503, b"service unavailable", NotServed),
        (503, theirs(), Unavailable),
        (302, b"", Internal),
        (502, b"<html>", Unavailable),
    ],
)
def test_answers(status: int, body: bytes, kind: type[HoldfastError]) -> None:
    error = error_of(status, body)
    assert type(error) is kind
    if kind is NoTurn:
        assert (error.message, error.advice) == ("bob holds it", "ask")


# -- the order of a stream


def answer(session_id: str = "u.1", resumed: bool = True, **more: Any) -> Attach:
    return Attach({"session_id": session_id, "resumed": resumed, **more})


def items(stream: Stream, *frames: Any) -> list[Any]:
    return [item for one in frames for item in stream.received(one)[0]]


def test_a_stream_is_joined_by_seq() -> None:
    stream = Stream("", None)
    assert "resume" not in stream.attach(SENDER).body
    first, last = (Snapshot(4, 80, 24, part, b"ab") for part in (Part.FIRST, Part.LAST))
    assert items(stream, answer(resumed=False), first, last) == [
        Snapshot(4, 80, 24, Part.FIRST | Part.LAST, b"abab")
    ]
    assert items(stream, Output(4, b"cd")) == [Output(4, b"cd")]
    # Cut, and resumed: what comes twice is given once.
    assert stream.attach(SENDER).body["resume"] == {"session_id": "u.1", "seq": 6}
    assert items(stream, answer(), Output(4, b"cdef")) == [Output(6, b"ef")]
    assert items(stream, Gap(8, 20), Output(20, b"x")) == [Gap(8, 20), Output(20, b"x")]
    with pytest.raises(Internal, match="went on at 30 where 21"):
        items(stream, Output(30, b"y"))


def test_a_session_that_began_anew_and_one_that_is_another() -> None:
    stream = Stream("u.1", 5)
    (news,) = items(stream, answer("u.2", resumed=False))
    assert isinstance(news, News)
    assert news.kind == "restarted"
    assert "resume" not in stream.attach(SENDER).body
    with pytest.raises(Ended, match="another session's"):
        items(stream, answer("v.1", resumed=False))


def test_the_end_waits_for_the_last_byte() -> None:
    stream = Stream("u.1", 0)
    given, asked = stream.received(Control({"kind": "ended", "exit": {"code": 3}}))
    assert (given, asked) == ([], Control({"kind": "info", "id": 1}))
    told = Control({"kind": "answer", "id": 1, "result": {"seq": 4}})
    assert items(stream, told, Output(0, b"ab")) == [Output(0, b"ab")]
    assert not stream.over
    assert items(stream, Output(2, b"cd")) == [
        Output(2, b"cd"), News("ended", {"kind": "ended", "exit": {"code": 3}}),
    ]  # fmt: skip
    assert stream.over


def test_a_refusal_ends_a_stream() -> None:
    with pytest.raises(Forbidden):
        Stream("", None).received(Error.of(Forbidden("no")))
