"""A right that is taken back ends what goes on for long: a command that is waited for, a stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer

from holdfast_gateway.assets import Assets
from holdfast_gateway.auth import Caller, Modality
from holdfast_gateway.backend import Link
from holdfast_gateway.door import TokenDoor
from holdfast_gateway.guard import while_allowed
from holdfast_gateway.http import Http
from holdfast_wire.errors import Forbidden
from holdfast_wire.frames import Attach, Output, encode
from holdfast_wire.ids import Actor
from holdfast_wire.rights import Right

ANA = Caller(Actor("ana"), Modality.HTTP)
TOKEN = "x" * 43


class Silent:
    """A writer to nobody."""

    def write(self, data: bytes) -> None:
        """It is not what is looked at here."""

    async def drain(self) -> None:
        """There is nothing to wait for."""


class Backend:
    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.cut: asyncio.Future[None] = loop.create_future()
        self.reader = asyncio.StreamReader()
        self.allowed: list[Right] = []
        self.asked = asyncio.Event()

    @asynccontextmanager
    async def connect(
        self, _name: str, _caller: Caller, _: float = 0, right: Right = Right.OBSERVE
    ) -> AsyncIterator[Link]:
        self.allowed.append(right)

        async def allow(_: Right) -> None:
            """Asked before."""

        yield Link(self.reader, Silent(), allow, self.cut)

    async def request(self, *_: Any, **__: Any) -> dict[str, Any]:
        self.asked.set()
        await asyncio.Event().wait()
        raise AssertionError

    def take_back(self) -> None:
        self.cut.set_exception(Forbidden("ana may not do this any more", "ask for it"))


@asynccontextmanager
async def client(backend: Backend) -> AsyncIterator[TestClient[Any, Any]]:
    door = TokenDoor(Actor("ana"), TOKEN)
    http = Http(door, backend, Assets(), lambda: None)  # type: ignore[arg-type]
    async with TestClient(TestServer(http.application())) as made:
        made.session.headers["Authorization"] = f"Bearer {TOKEN}"
        yield made


async def test_work_is_done_while_it_is_allowed() -> None:
    backend = Backend()

    async def work() -> int:
        return 7

    assert await while_allowed(backend, "build", ANA, Right.TYPE, work) == 7  # type: ignore[arg-type]
    assert backend.allowed == [Right.TYPE]


async def test_who_waits_for_a_command_is_cut() -> None:
    backend = Backend()
    async with client(backend) as http:
        path = "/api/v1/sessions/build/exec"
        asking = asyncio.create_task(http.post(path, json={"command": "make", "timeout": 600}))
        await backend.asked.wait()
        backend.take_back()
        async with asyncio.timeout(5), await asking as answer:
            assert answer.status == 403
            assert (await answer.json())["error"]["code"] == "forbidden"


async def test_a_stream_of_events_is_cut_and_says_why() -> None:
    backend = Backend()
    backend.reader.feed_data(
        encode(Attach({"session_id": "s", "resumed": True, "seq": 0})) + encode(Output(0, b"hi"))
    )
    async with client(backend) as http:
        headers = {"Accept": "text/event-stream"}
        async with http.get("/api/v1/sessions/build/stream", headers=headers) as answer:
            assert b'"text": "hi"' in await _until(answer, b"event: output")
            backend.take_back()
            async with asyncio.timeout(5):
                rest = await answer.content.read()
            assert b"event: problem" in rest
            assert b'"code": "forbidden"' in rest


async def _until(answer: Any, text: bytes) -> bytes:
    got = b""
    while text not in got or not got.endswith(b"\n\n"):
        got += await answer.content.readany()
    return got


async def test_who_may_no_more_is_told_at_once() -> None:
    backend = Backend()
    backend.take_back()

    async def work() -> None:
        await asyncio.Event().wait()

    with pytest.raises(Forbidden):
        await while_allowed(backend, "build", ANA, Right.TYPE, work)  # type: ignore[arg-type]
