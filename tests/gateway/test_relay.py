"""Frames through the gateway: what is cut, what is checked, who is named."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gateway_kit
from gateway_kit import Place
from holdfast_gateway.auth import Caller, Modality
from holdfast_gateway.relay import MAX_CLIENT_PAYLOAD, checked
from holdfast_wire.errors import BadRequest, HoldfastError, Internal, TooLarge
from holdfast_wire.frames import (
    MAX_PAYLOAD,
    Ack,
    Attach,
    Control,
    Decoder,
    Error,
    Frame,
    FrameCutter,
    Gap,
    Input,
    Output,
    Resize,
    Snapshot,
    encode,
)
from holdfast_wire.ids import Actor

ANA = Caller(Actor("ana"), Modality.BROWSER)


@given(st.lists(st.binary(max_size=60), max_size=8), st.data())
def test_a_stream_cut_anywhere_comes_out_whole(payloads: list[bytes], data: st.DataObject) -> None:
    frames = [encode(Output(0, payload)) for payload in payloads]
    stream = b"".join(frames)
    cutter, out, at = FrameCutter(), [], 0
    while at < len(stream):
        step = data.draw(st.integers(1, 100))
        out.append(cutter.feed(stream[at : at + step]))
        at += step
    assert b"".join(out) == stream
    edges = {0}
    for frame in frames:
        edges.add(max(edges) + len(frame))
    total = 0
    for chunk in out:
        total += len(chunk)
        assert total in edges


def test_a_sidecar_out_of_step_is_noticed() -> None:
    with pytest.raises(Internal):
        FrameCutter().feed(b"HTTP/1.1")


def test_the_sender_is_who_we_know_not_who_it_says() -> None:
    said = {"actor": "root", "modality": "cli", "mode": "write"}
    assert checked(encode(Attach(said)), ANA) == [
        Attach({"actor": "ana", "uid": "", "modality": "browser", "mode": "write"})
    ]
    request = Control({"kind": "take", "id": 1, "as": {"actor": "root"}})
    assert checked(encode(request), ANA) == [
        Control({"kind": "take", "id": 1, "as": {"actor": "ana", "uid": "", "modality": "browser"}})
    ]


def test_input_and_resize_pass_unchanged_several_in_a_message() -> None:
    message = encode(Input(1, b"k", b"x")) + encode(Resize(0, 80, 24))
    assert b"".join(encode(frame) for frame in checked(message, ANA)) == message


@pytest.mark.parametrize(
    ("message", "error"),
    [
        (encode(Output(0, b"")), BadRequest),
        (encode(Error(0, {})), BadRequest),
        (encode(Input(1, b"", b"x"))[:-1], BadRequest),
        (encode(Input(1, b"", b"x")) + b"\x01", BadRequest),
        (encode(Input(1, b"", b"x" * MAX_CLIENT_PAYLOAD)), TooLarge),
        (b"\x02" + bytes(7), HoldfastError),
    ],
)
def test_what_a_client_may_not_send(message: bytes, error: type[HoldfastError]) -> None:
    with pytest.raises(error):
        checked(message, ANA)


# With a real gateway and sidecar


class Client:
    """A program attached through the gateway."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.socket = socket
        self.frames: list[Frame] = []

    async def send(self, *frames: Frame) -> None:
        await self.socket.send_bytes(b"".join(encode(frame) for frame in frames))

    async def until(self, wanted: type[Frame] | Any, seconds: float = 40) -> Any:
        """The next frame for which `wanted` holds; others wait in `frames` for their turn."""
        test = (lambda f: isinstance(f, wanted)) if isinstance(wanted, type) else wanted
        async with asyncio.timeout(seconds):
            while True:
                for index, frame in enumerate(self.frames):
                    if test(frame):
                        return self.frames.pop(index)
                message = await self.socket.receive()
                assert message.type is aiohttp.WSMsgType.BINARY, message
                decoder = Decoder()
                self.frames.extend(decoder.feed(message.data))
                assert not list(decoder.feed(b"")), "a message held part of a frame"


@contextlib.asynccontextmanager
async def attached(place: Place, **body: Any) -> AsyncIterator[tuple[Client, dict[str, Any]]]:
    headers = {"Authorization": f"Bearer {place.token}"}
    url = f"{place.url}api/v1/sessions/build/stream"
    async with (
        aiohttp.ClientSession(trust_env=False) as session,
        session.ws_connect(url, headers=headers, max_msg_size=0) as socket,
    ):
        client = Client(socket)
        await client.send(Attach({"mode": "write", "columns": 80, "rows": 24, **body}))
        yield client, (await client.until(Attach)).body


async def test_attach_type_and_read(served: Place) -> None:
    async with attached(served, actor="mallory", modality="cli") as (client, answer):
        assert answer["session"] == "build"
        own = next(c for c in answer["clients"] if c["client"] == answer["client"])
        assert own["actor"] != "mallory"
        assert own["modality"] == "http"
        snapshot = await client.until(Snapshot)
        assert (snapshot.columns, snapshot.rows) == (answer["columns"], answer["rows"])
        await client.send(Input(1, b"relay-1", b"echo $((6*7))-relay\n"))
        ack = await client.until(Ack)
        assert ack.number == 1
        printed = b""
        while b"42-relay" not in printed:
            printed += (await client.until(Output)).data


async def test_resume_gives_what_was_missed_and_a_repeated_key_nothing(served: Place) -> None:
    async with attached(served) as (client, answer):
        seq = (await client.until(Snapshot)).seq
        await client.send(Input(1, b"resume-1", b"echo first-$((1+1))\n"))
        await client.until(Ack)
    resume = {"session_id": answer["session_id"], "seq": seq}
    async with attached(served, resume=resume) as (client, answer):
        assert answer["resumed"] is True
        await client.send(Input(1, b"resume-1", b"echo first-$((1+1))\n"))
        assert (await client.until(Ack)).status == 1
        await client.send(Input(2, b"resume-2", b"echo done-$((1+1))\n"))
        printed, at = b"", seq
        while b"done-2\r\n" not in printed:
            frame = await client.until(lambda f: isinstance(f, Output | Gap))
            assert isinstance(frame, Output)
            assert frame.seq == at, "bytes were skipped or doubled"
            printed += frame.data
            at += len(frame.data)
        assert printed.count(b"first-2\r\n") == 1


async def test_a_viewer_cannot_type(served: Place) -> None:
    async with attached(served, mode="view") as (client, _):
        await client.send(Input(9, b"viewer", b"echo intruder\n"))
        error = await client.until(Error)
        assert error.ref == 9
        assert error.body["disposition"] == "refused"
    assert b"intruder" not in served.get("/api/v1/sessions/build/screen").body


async def test_what_cannot_be_decoded_ends_only_its_own_connection(served: Place) -> None:
    async with attached(served) as (good, _), attached(served) as (bad, _):
        await bad.socket.send_bytes(b"\x01\x03\x00\x00\x00\x00\x00\x08" + bytes(8))
        error = await bad.until(Error)
        assert error.body["code"] == "bad_request"
        async with asyncio.timeout(5):
            while not bad.socket.closed:
                await bad.socket.receive()
        assert bad.socket.close_code == 1008
        await good.send(Control({"kind": "ping", "id": 5}))
        await good.until(lambda f: isinstance(f, Control) and f.body.get("id") == 5)


@pytest.mark.parametrize(
    ("message", "code", "close"),
    [
        (b"\x03\x01\x00\x00\x00\x00\x00\x02{}", "unsupported", 1008),  # of version 3
        (encode(Input(1, b"", bytes(MAX_CLIENT_PAYLOAD))), "too_large", 1009),
        (encode(Input(1, b"", bytes(MAX_PAYLOAD - 9))), "too_large", 1009),
    ],
    ids=["two versions ahead", "too large", "the largest there is"],
)
async def test_what_is_too_new_or_too_large_is_told(
    served: Place, message: bytes, code: str, close: int
) -> None:
    async with attached(served) as (good, _), attached(served) as (bad, _):
        await bad.socket.send_bytes(message)
        error = await bad.until(Error)
        assert error.body["code"] == code
        assert error.body["advice"]
        async with asyncio.timeout(5):
            while not bad.socket.closed:
                await bad.socket.receive()
        assert bad.socket.close_code == close
        await good.send(Control({"kind": "ping", "id": 5}))
        await good.until(lambda f: isinstance(f, Control) and f.body.get("id") == 5)


@pytest.mark.parametrize("page", [False, True])
async def test_a_client_of_another_version_is_told_before_the_upgrade(
    served: Place, page: bool
) -> None:
    by_header = {"Authorization": f"Bearer {served.token}"}
    by_page = {"Origin": served.url.rstrip("/")}
    asked = {
        **(by_page if page else by_header), "Connection": "Upgrade", "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
        "Sec-WebSocket-Protocol": "holdfast.v3" + (f", bearer.{served.token}" if page else ""),
    }  # fmt: skip
    async with (
        aiohttp.ClientSession(trust_env=False) as session,
        session.get(f"{served.url}api/v1/sessions/build/stream", headers=asked) as answer,
    ):
        error = (await answer.json())["error"]
    assert (answer.status, error["code"]) == (426, "unsupported")
    assert "holdfast.v1" in error["message"]


@pytest.mark.timed
async def test_a_gateway_stops_at_once_though_a_client_does_not_read() -> None:
    with gateway_kit.place() as here:
        here.session("build")
        here.start()
        here.sidecar("build")
        async with attached(here) as (stalled, _), attached(here) as (other, _):
            await stalled.until(Snapshot)
            await other.until(Snapshot)
            await stalled.send(Input(1, b"flood", b"yes $(seq 1000)\n"))
            await asyncio.sleep(2)
            began = time.monotonic()
            assert await asyncio.to_thread(here.stop) == 0
            assert time.monotonic() - began < 5


async def test_a_client_that_does_not_read_costs_others_nothing(served: Place) -> None:
    async with attached(served) as (stalled, _), attached(served) as (client, _):
        await client.until(Snapshot)
        await stalled.until(Snapshot)
        await client.send(
            Input(1, b"flood", b"head -c 30000000 /dev/zero | tr '\\0' x; echo over-$((1+1))\n")
        )
        seen = b""
        while b"over-2" not in seen:
            frame = await client.until(lambda f: isinstance(f, Output | Snapshot), 60)
            seen = seen[-20:] + frame.data
        # The stalled one hears of a gap, then a snapshot at or after its end, and is whole again.
        gap = await stalled.until(Gap, 30)
        snapshot = await stalled.until(Snapshot, 30)
        assert snapshot.seq >= gap.end
