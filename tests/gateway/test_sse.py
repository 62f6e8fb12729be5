"""Frames as events: nothing is lost or doubled, wherever the stream is cut."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast_gateway import sse
from holdfast_gateway.sse import Events
from holdfast_wire.errors import BadRequest, Unavailable
from holdfast_wire.frames import (
    Attach,
    Control,
    Error,
    Frame,
    Gap,
    Output,
    Part,
    Resize,
    Snapshot,
)

ATTACHED = Attach({"session_id": "s-1", "resumed": True, "seq": 100})
Told = tuple[str, dict[str, Any], str]


def parsed(raw: bytes) -> list[Told]:
    found = []
    for block in raw.decode().split("\n\n")[:-1]:
        lines = dict(line.split(": ", 1) for line in block.split("\n"))
        found.append((lines["event"], json.loads(lines["data"]), lines.get("id", "")))
    return found


def told(events: Events, *frames: Frame) -> list[Told]:
    return parsed(b"".join(one for frame in frames for one in events.feed(frame)))


def data_of(body: dict[str, Any]) -> bytes:
    return body["text"].encode() if "text" in body else base64.b64decode(body["base64"])


def outputs(seq: int, chunks: Iterable[bytes]) -> list[Output]:
    made = []
    for chunk in chunks:
        made.append(Output(seq, chunk))
        seq += len(chunk)
    return made


pieces = st.one_of(st.binary(max_size=6), st.text(max_size=4).map(str.encode))


@given(st.lists(pieces, max_size=8), st.data())
def test_joined_output_is_the_output_and_each_id_is_where_it_goes_on(
    parts: list[bytes], data: st.DataObject
) -> None:
    whole = b"".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=6)))
    chunks = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    events = Events()
    got = told(events, ATTACHED, *outputs(100, chunks), Resize(0, 80, 24))
    assert [kind for kind, _, _ in got if kind != "output"] == ["attached", "resize"]
    joined = b""
    for _, body, mark in (one for one in got if one[0] == "output"):
        assert body["seq"] == 100 + len(joined)
        joined += data_of(body)
        assert mark == f"{100 + len(joined)}@s-1"
        assert sse.resume_of(mark) == {"session_id": "s-1", "seq": 100 + len(joined)}
    assert joined == whole


def test_half_a_character_waits_for_its_other_half() -> None:
    euro = "€".encode()
    events = Events()
    assert told(events, ATTACHED, Output(100, b"a" + euro[:2]))[1:] == [
        ("output", {"seq": 100, "text": "a"}, "101@s-1")
    ]
    assert events.resume() == {"session_id": "s-1", "seq": 101}, "the held bytes come again"
    events = Events()
    got = told(events, ATTACHED, Output(100, euro[:2]), Output(102, euro[2:]))
    assert got[1:] == [("output", {"seq": 100, "text": "€"}, "103@s-1")]


def test_a_snapshot_in_parts_has_its_id_at_the_end() -> None:
    euro = "€".encode()
    got = told(
        Events(),
        Attach({"session_id": "s-1", "resumed": False, "seq": 7}),
        Gap(3, 9),
        Snapshot(9, 80, 24, Part.FIRST, b"\x1b[2J" + euro[:1]),
        Snapshot(9, 80, 24, Part.LAST, euro[1:] + b"$ "),
        Output(9, b"x"),
    )
    assert [(kind, mark) for kind, _, mark in got] == [
        ("attached", ""),
        ("gap", ""),
        ("snapshot", ""),
        ("snapshot", "9@s-1"),
        ("output", "10@s-1"),
    ]
    assert (got[2][1]["first"], got[2][1]["last"]) == (True, False)
    assert b"".join(data_of(body) for kind, body, _ in got if kind == "snapshot") == (
        "\x1b[2J€$ ".encode()
    )


def test_it_is_finished_when_the_last_byte_was_told() -> None:
    events = Events()
    (_, news) = told(events, ATTACHED, Control({"kind": "ended", "seq": 102, "exit": None}))
    assert news[0] == "ended"
    assert not events.finished
    told(events, Output(100, b"ab"))
    assert events.finished


def test_news_cannot_pass_for_something_else() -> None:
    odd: list[dict[str, Any]] = [{"kind": "output"}, {"kind": "a\ndata: x"}, {"kind": 5}, {}]
    assert told(Events(), *(Control(body) for body in odd)) == []
    assert told(Events(), Control({"kind": "moving"})) == [("moving", {"kind": "moving"}, "")]


def test_an_error_is_raised() -> None:
    with pytest.raises(Unavailable):
        list(Events().feed(Error.of(Unavailable("away"))))


@pytest.mark.parametrize("last", ["7", "@s", "-1@s", "7@", "7@s s", "7@" + "s" * 200, "x@s"])
def test_ids_that_are_none(last: str) -> None:
    with pytest.raises(BadRequest):
        sse.resume_of(last)
