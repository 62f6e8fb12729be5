"""Who has shown no agent's certificate keeps no agent out (attack 41)."""

from __future__ import annotations

import asyncio
import socket
import ssl
from contextlib import suppress
from pathlib import Path

import pytest

from holdfast_node import receiving, transfer
from holdfast_node.transfer import Receiver

from .conftest import Contexts
from .test_transfer import FACTS, Taking, at, server, whole


async def test_idle_connections_do_not_keep_agents_out(tls: Contexts, tmp_path: Path) -> None:
    """Attack 41: 64 connections that say nothing, and an agent that comes after them."""
    context = tls(ssl.Purpose.CLIENT_AUTH)
    serving = transfer.serve("127.0.0.1", 0, lambda: context, Taking(tmp_path / "in"))
    async with serving as port:
        loop, idle = asyncio.get_running_loop(), []
        try:
            for _ in range(64):
                plain = socket.socket()
                plain.setblocking(False)
                await loop.sock_connect(plain, ("127.0.0.1", port))
                idle.append(plain)
            client = tls(ssl.Purpose.SERVER_AUTH)
            async with asyncio.timeout(3):
                async with transfer.connect(at(port), client, None, FACTS.checkpoint) as sender:
                    await whole(sender, ("images/a", b"1"))
                    await sender.finish(FACTS)
                    await sender.outcome()
            ended = 0
            for plain in idle:
                with suppress(OSError, TimeoutError):
                    async with asyncio.timeout(receiving._HANDSHAKE_SECONDS + 3):
                        ended += not await loop.sock_recv(plain, 1)
            assert ended == 64, "and they do not stay"
        finally:
            for plain in idle:
                plain.close()


async def test_a_trickled_handshake_has_an_end(
    tls: Contexts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attack 41: a byte now and then is not silence, and no identity either."""
    monkeypatch.setattr(receiving, "_HANDSHAKE_SECONDS", 0.6)

    async def handler(receiver: Receiver) -> None:
        raise AssertionError

    serving = transfer.serve("127.0.0.1", 0, server(tls), handler)
    async with serving as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")

        async def trickle() -> None:
            while True:
                writer.write(b"\0")
                await asyncio.sleep(0.05)

        trickling = asyncio.create_task(trickle())
        async with asyncio.timeout(3):
            with suppress(ConnectionError):
                await reader.read()
        trickling.cancel()
        writer.close()
