"""What kubelet asks, and what others on the pod network may send instead."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from holdfast_sidecar import probe


class Probed:
    def __init__(self) -> None:
        self.ready = False
        self.port = 0

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def ask(self, request: bytes) -> bytes:
        reader, writer = await self.connect()
        writer.write(request)
        try:
            return await asyncio.wait_for(reader.read(), 10)
        except ConnectionResetError:
            return b""
        finally:
            writer.transport.abort()

    async def get(self, path: str) -> bytes:
        return await self.ask(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())


@pytest.fixture
async def probed() -> AsyncIterator[Probed]:
    it = Probed()
    server = await probe.serve(lambda: it.ready, 0)
    # Where there is IPv6 it listens there too, on a port of its own when given none.
    it.port = next(s.getsockname()[1] for s in server.sockets if len(s.getsockname()) == 2)
    yield it
    server.close()
    for _ in range(5):
        await asyncio.sleep(0)


async def test_alive_is_not_ready(probed: Probed) -> None:
    assert (await probed.get("/healthz")).startswith(b"HTTP/1.1 200 ")
    assert (await probed.get("/readyz")).startswith(b"HTTP/1.1 503 ")
    probed.ready = True
    answer = await probed.get("/readyz")
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert answer.endswith(b"Content-Length: 6\r\nConnection: close\r\n\r\nready\n")


@pytest.mark.parametrize(
    "request_",
    [b"GET /other HTTP/1.1\r\n\r\n", b"\r\n\r\n", b"GET\r\n\r\n", b"\xff \xff \xff\r\n\r\n"],
)
async def test_anything_else_is_not_there(probed: Probed, request_: bytes) -> None:
    assert (await probed.ask(request_)).startswith(b"HTTP/1.1 404 ")


async def test_too_long_a_request_ends_the_connection(
    probed: Probed, caplog: pytest.LogCaptureFixture
) -> None:
    assert await probed.ask(b"GET /" + b"x" * 100_000) == b""
    assert caplog.records == []
    assert (await probed.get("/healthz")).startswith(b"HTTP/1.1 200 ")


async def test_who_says_nothing_is_not_waited_for(
    probed: Probed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "_SECONDS", 0.05)
    assert await probed.ask(b"GET /healthz") == b""


async def test_many_who_say_nothing_keep_nobody_out(probed: Probed) -> None:
    idle = [await probed.connect() for _ in range(100)]
    assert (await probed.get("/healthz")).startswith(b"HTTP/1.1 200 ")
    gone = 0
    for reader, writer in idle:
        try:
            async with asyncio.timeout(0.01):
                gone += await reader.read() == b""
        except ConnectionResetError:
            gone += 1
        except TimeoutError:
            pass
        writer.transport.abort()
    assert gone >= 100 - 32
