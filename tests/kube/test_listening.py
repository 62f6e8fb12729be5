"""A listener of ours, attacked from the first byte on (attack 41)."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
from aiohttp import web

from holdfast_gateway import bodies, cluster_main
from holdfast_kube import listening as listening_module
from holdfast_kube.listening import Doorway, listening
from holdfast_operator import serve
from uplink_kit import authority

PATIENCE = 5.0


@pytest.fixture(scope="module")
def contexts(tmp_path_factory: pytest.TempPathFactory) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    ca = authority()
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(*ca.sign(tmp_path_factory.mktemp("tls"), "it", "localhost"))
    return server, ssl.create_default_context(cadata=ca.pem)


class Counting(asyncio.Protocol):
    def __init__(self, doorway: Doorway) -> None:
        self._doorway = doorway

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if data == b"me":
            self._doorway.identified(self._transport)
            assert isinstance(self._transport, asyncio.WriteTransport)
            self._transport.write(b"yes")


async def ends(reader: asyncio.StreamReader) -> bool:
    with suppress(ConnectionError, TimeoutError):
        async with asyncio.timeout(PATIENCE):
            return await reader.read() == b""
    return False


async def test_who_is_known_stays_and_strangers_go(
    contexts: tuple[ssl.SSLContext, ssl.SSLContext],
) -> None:
    server, client = contexts
    doorway = Doorway(8, 4, seconds=0.8)
    async with listening(lambda: Counting(doorway), server, 0, doorway, "127.0.0.1") as port:
        known = []
        for _ in range(6):
            reader, writer = await asyncio.open_connection("localhost", port, ssl=client)
            writer.write(b"me")
            assert await reader.read(3) == b"yes"
            known.append((reader, writer))
        assert doorway.strangers == 0
        plain = [await asyncio.open_connection("127.0.0.1", port) for _ in range(64)]
        await asyncio.sleep(0)
        reader, writer = await asyncio.open_connection("localhost", port, ssl=client)
        writer.write(b"me")
        async with asyncio.timeout(0.7):
            assert await reader.read(3) == b"yes", "64 idle ones do not keep it out"
        assert doorway.strangers <= 4
        silent, also = await asyncio.open_connection("localhost", port, ssl=client)
        assert await ends(silent), "it said nothing in time"
        assert all([await ends(reader) for reader, _ in plain])
        assert not any(reader.at_eof() for reader, _ in known)
        for _, one in (*known, *plain):
            one.close()
        writer.close()
        also.close()


async def test_a_handshake_has_an_end(
    contexts: tuple[ssl.SSLContext, ssl.SSLContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listening_module, "HANDSHAKE_SECONDS", 0.3)
    doorway = Doorway()
    async with listening(lambda: Counting(doorway), contexts[0], 0, doorway, "127.0.0.1") as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"\x16\x03\x01\x02")
        async with asyncio.timeout(2):
            with suppress(ConnectionError):
                assert await reader.read() == b""
        assert doorway.strangers == 0
        writer.close()


async def answered(_request: web.Request) -> web.Response:
    return web.Response(text="hello")


@asynccontextmanager
async def site(app: web.Application, doorway: Doorway) -> AsyncIterator[int]:
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    assert runner.server is not None
    async with listening(runner.server, None, 0, doorway, "127.0.0.1") as port:
        yield port
    await runner.cleanup()


HEAD = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n"


@pytest.mark.parametrize("sent", [b"", b"GET / HT", HEAD, HEAD + b"X-Lo"])
async def test_half_a_request_has_an_end(sent: bytes) -> None:
    """Attack 41: requests whose head never ends stayed open."""
    doorway = Doorway(seconds=0.4)
    app = web.Application(middlewares=[cluster_main.asked(doorway)])
    app.router.add_post("/", answered)
    async with site(app, doorway) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)
        assert await ends(reader)
        writer.close()


async def test_half_a_body_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attack 41: also of somebody who was let in."""
    monkeypatch.setattr(bodies, "SECONDS", 0.3)
    doorway = Doorway()

    async def answer(request: web.Request) -> web.Response:
        doorway.identified(request.transport)
        try:
            return web.Response(body=await bodies.read(request))
        except Exception as error:
            return web.Response(status=400, text=str(error))

    app = web.Application()
    app.router.add_post("/", answer)
    async with site(app, doorway) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(HEAD + b"\r\n12345")
        async with asyncio.timeout(PATIENCE):
            assert b"400" in await reader.readline()
            assert b"did not come within" in await reader.readuntil(b"within")
        writer.close()


@pytest.mark.parametrize("sent", [b"GET /metr", HEAD + b"\r\n12345"])
async def test_the_operators_listeners_end_half_a_request(
    sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attack 41: webhook and metrics."""
    monkeypatch.setattr(serve, "STRANGE_SECONDS", 0.3)
    doorway = Doorway(*serve.STRANGERS, serve.STRANGE_SECONDS)
    app = web.Application(middlewares=[serve.asked(doorway)])
    app.router.add_post("/", answered)
    async with site(app, doorway) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)
        async with asyncio.timeout(PATIENCE):
            with suppress(ConnectionError):
                await reader.read()
        writer.close()
