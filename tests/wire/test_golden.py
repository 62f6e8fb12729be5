"""Every frame, byte for byte, against `golden.json`. The page's `wire.js` is held to the same file,
so the two can only change together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast_wire import frames
from holdfast_wire.errors import HoldfastError
from holdfast_wire.frames import Frame

GOLDEN: dict[str, list[dict[str, Any]]] = json.loads(
    (Path(__file__).parent / "golden.json").read_text(encoding="utf-8")
)
FRAMES, REFUSED = GOLDEN["frames"], GOLDEN["refused"]


def _name(case: dict[str, Any]) -> str:
    return f"{case.get('frame', 'refused')}: {case['name']}"


def _build(case: dict[str, Any]) -> Frame:
    data = bytes.fromhex(case.get("data", ""))
    match case["frame"]:
        case "attach":
            return frames.Attach(case["body"])
        case "snapshot":
            part = frames.Part(case["part"])
            return frames.Snapshot(case["seq"], case["columns"], case["rows"], part, data)
        case "output":
            return frames.Output(case["seq"], data)
        case "gap":
            return frames.Gap(case["start"], case["end"])
        case "input":
            return frames.Input(case["number"], bytes.fromhex(case["key"]), data)
        case "ack":
            return frames.Ack(case["number"], case["order"], frames.AckStatus(case["status"]))
        case "resize":
            return frames.Resize(case["seq"], case["columns"], case["rows"])
        case "control":
            return frames.Control(case["body"])
        case "error":
            return frames.Error(case["ref"], case["body"])
    raise AssertionError(f"golden.json has an unknown frame {case['frame']!r}")


@pytest.mark.parametrize("case", FRAMES, ids=_name)
def test_encodes_to_these_bytes(case: dict[str, Any]) -> None:
    assert frames.encode(_build(case)).hex() == case["hex"]


@pytest.mark.parametrize("case", FRAMES, ids=_name)
def test_decodes_from_these_bytes(case: dict[str, Any]) -> None:
    assert frames.decode(bytes.fromhex(case["hex"])) == _build(case)


@pytest.mark.parametrize("case", REFUSED, ids=_name)
def test_refuses_these_bytes(case: dict[str, Any]) -> None:
    with pytest.raises(HoldfastError) as caught:
        list(frames.Decoder().feed(bytes.fromhex(case["hex"])))
    assert caught.value.code == case["code"]


def test_a_stream_cut_anywhere_gives_the_same_frames() -> None:
    stream = b"".join(bytes.fromhex(case["hex"]) for case in FRAMES)
    decoder = frames.Decoder()
    found = [frame for byte in stream for frame in decoder.feed(bytes([byte]))]
    assert found == [_build(case) for case in FRAMES]


def test_every_frame_type_has_several_cases() -> None:
    counted = {kind.name.lower(): 0 for kind in frames.FrameType}
    for case in FRAMES:
        counted[case["frame"]] += 1
    assert min(counted.values()) >= 3
