"""Sidecars that dial in, over real TLS: the two ends against each other."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import random
import socket
import ssl
from asyncio import sslproto
from pathlib import Path
from typing import Any

import pytest

from holdfast_gateway import cluster_main
from holdfast_gateway import uplinks as uplinks_module
from holdfast_gateway.uplinks import Incarnation, Stream, Uplink
from holdfast_wire import uplink as wire
from holdfast_wire.errors import Forbidden, Unavailable
from uplink_kit import Authority, authority, dialling, gateway, until

KEY = ("ns", "it")
PATIENCE = 10.0


@pytest.fixture(scope="module")
def ca() -> Authority:
    return authority()


async def verified(said: dict[str, Any]) -> Incarnation:
    if said["token"] != "token":
        raise Forbidden("a wrong token", "have the right one")
    epoch = int(said["epoch"])
    return Incarnation(said["namespace"], said["session"], "uid", epoch, f"it-{epoch}", "h")


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()


async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Without end to whoever says `more`; an echo to others."""
    first = await reader.read(4)
    while first == b"more":
        writer.write(b"x" * 65536)
        await writer.drain()
    writer.write(first)
    await echo(reader, writer)


async def whole(stream: Stream, count: int) -> bytes:
    got = b""
    async with asyncio.timeout(PATIENCE):
        while len(got) < count:
            part = await stream.read(1 << 16)
            assert part, "it ended early"
            got += part
    return got


async def test_both_ways_by_many_at_once(ca: Authority, tmp_path: Path) -> None:
    async with (
        gateway(ca, tmp_path, verified) as (uplinks, port),
        dialling(ca, port, tmp_path, 1, echo),
    ):
        link = await uplinks.wait(KEY, PATIENCE)
        assert link is not None
        assert link.incarnation == await verified(
            {"namespace": "ns", "session": "it", "epoch": 1, "token": "token"}
        )

        async def once(seed: int) -> None:
            data = random.Random(seed).randbytes(700_000)  # more than two windows
            number, stream = link.open()

            async def send() -> None:
                for start in range(0, len(data), 50_001):
                    stream.write(data[start : start + 50_001])
                    await stream.drain()

            sending = asyncio.create_task(send())
            got = await whole(stream, len(data))
            await sending
            assert hashlib.sha256(got).digest() == hashlib.sha256(data).digest()
            link.shut(number)

        await asyncio.gather(*(once(seed) for seed in range(4)))
        assert uplinks.counts() == (1, 0)


async def test_one_who_does_not_read_stops_himself_alone(ca: Authority, tmp_path: Path) -> None:
    async with (
        gateway(ca, tmp_path, verified) as (uplinks, port),
        dialling(ca, port, tmp_path, 1, flood),
    ):
        link = await uplinks.wait(KEY, PATIENCE)
        assert link is not None
        _, stalled = link.open()
        stalled.write(b"more")
        _, lively = link.open()
        for number in range(50):
            lively.write(b"%4d" % number)
            assert await whole(lively, 4) == b"%4d" % number
        kept = sum(map(len, stalled._came))
        assert 0 < kept <= wire.WINDOW
        # It reads again, and gets all that it left.
        assert set(await whole(stalled, 3 * wire.WINDOW)) == {ord("x")}


async def test_the_end_of_one_is_the_end_of_both(ca: Authority, tmp_path: Path) -> None:
    gone = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        said = await reader.read(1)
        if said == b"l":  # leaves by itself
            return
        assert await reader.read() == b""
        gone.set()

    async with (
        gateway(ca, tmp_path, verified) as (uplinks, port),
        dialling(ca, port, tmp_path, 1, serve),
    ):
        link = await uplinks.wait(KEY, PATIENCE)
        assert link is not None
        _, stream = link.open()
        stream.write(b"l")
        assert await asyncio.wait_for(stream.read(), PATIENCE) == b""
        with pytest.raises(ConnectionResetError):
            stream.write(b"too late")
        number, other = link.open()
        other.write(b"s")
        link.shut(number)
        await asyncio.wait_for(gone.wait(), PATIENCE)
        # And that of the connection is the end of all.
        _, third = link.open()
        link.close()
        assert await asyncio.wait_for(third.read(), PATIENCE) == b""
        with pytest.raises(Unavailable):
            link.open()
        # The sidecar dials again.
        again = await uplinks.wait(KEY, PATIENCE)
        assert again is not None
        assert again is not link


async def test_only_the_newest_incarnation_is_served(ca: Authority, tmp_path: Path) -> None:
    async with gateway(ca, tmp_path, verified) as (uplinks, port):
        async with dialling(ca, port, tmp_path, 3, echo):
            old = await uplinks.wait(KEY, PATIENCE)
            assert old is not None
            _, stream = old.open()
            async with dialling(ca, port, tmp_path, 4, echo):
                assert await asyncio.wait_for(stream.read(), PATIENCE) == b""
                new = uplinks.get(KEY)
                assert new is not None
                assert new.incarnation is not None
                assert new.incarnation.epoch == 4
        # Also when the newest has left, and the old one comes back.
        async with dialling(ca, port, tmp_path, 3, echo) as log:
            await until(lambda: any("newer incarnation" in line for line in log))
            assert uplinks.get(KEY) is None
        # Deleted, and made anew under the same name: nothing is held against it.
        uplinks.forget("uid")
        async with dialling(ca, port, tmp_path, 1, echo):
            assert await uplinks.wait(KEY, PATIENCE) is not None


async def test_who_is_refused_hears_why_and_tries_again(ca: Authority, tmp_path: Path) -> None:
    async with (
        gateway(ca, tmp_path, verified) as (uplinks, port),
        dialling(ca, port, tmp_path, 1, echo, token="wrong") as log,
    ):
        await until(lambda: len(log) >= 2)
        assert all("a wrong token (have the right one)" in line for line in log)
        assert uplinks.counts() == (0, 0)
        # The token is read anew each time: kubelet renews it.
        (tmp_path / "token-1").write_text("token")
        assert await uplinks.wait(KEY, PATIENCE) is not None


class Names:
    """The name service, as it is at the moment."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fault: int | None = None
        self.asked = 0
        monkeypatch.setattr(socket, "getaddrinfo", self._look_up)

    def _look_up(self, _host: str, port: int, *_: object, **__: object) -> list[Any]:
        self.asked += 1
        if self.fault is not None:
            raise socket.gaierror(self.fault, "as the test wants it")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]


async def test_a_gateway_is_found_again_without_the_name_service(
    ca: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = Names(monkeypatch)
    async with contextlib.AsyncExitStack() as first:
        uplinks, port = await first.enter_async_context(gateway(ca, tmp_path, verified))
        async with dialling(ca, port, tmp_path, 1, echo) as log:
            assert await uplinks.wait(KEY, PATIENCE) is not None
            names.fault = socket.EAI_AGAIN
            await first.aclose()
            await until(lambda: any("is not reached" in line for line in log))
            await until(lambda: any("is not known" in line for line in log))
            async with gateway(ca, tmp_path, verified, port) as (back, _):
                assert await back.wait(KEY, PATIENCE) is not None
            assert sum("is not known" in line for line in log) == 1, "said over and over"


async def test_a_gateway_that_has_gone_for_good_is_not_dialled_for_ever(
    ca: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = Names(monkeypatch)
    async with contextlib.AsyncExitStack() as first:
        uplinks, port = await first.enter_async_context(gateway(ca, tmp_path, verified))
        async with dialling(ca, port, tmp_path, 1, echo) as log:
            assert await uplinks.wait(KEY, PATIENCE) is not None
            names.fault = socket.EAI_NONAME
            await first.aclose()
            await until(lambda: any("is not reached" in line for line in log))
            before = names.asked
            await until(lambda: names.asked > before + 2)
            assert sum("is not reached" in line for line in log) == 1


async def test_a_gateway_of_another_authority_gets_no_token(ca: Authority, tmp_path: Path) -> None:
    other = authority("other")
    async with (
        gateway(other, tmp_path, verified) as (uplinks, port),
        dialling(ca, port, tmp_path, 1, echo) as log,
    ):
        await until(lambda: log)
        assert "is not reached" in log[0]
        assert "token" not in log[0]
        assert uplinks.counts() == (0, 0)


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        wire.encode(0, wire.Kind.PING),
        wire.encode(0, wire.Kind.HELLO, b"[]"),
        wire.encode(0, wire.Kind.HELLO, b"{}" * 20_000),
        wire.hello({"token": "token"}) + wire.encode(1, wire.Kind.DATA, b"before an answer"),
    ],
)
async def test_nonsense_is_hung_up_on(ca: Authority, tmp_path: Path, said: bytes) -> None:
    async with gateway(ca, tmp_path, verified) as (uplinks, port):
        trust = ssl.create_default_context(cadata=ca.pem)
        trust.verify_flags &= ~ssl.VERIFY_X509_STRICT
        reader, writer = await asyncio.open_connection("localhost", port, ssl=trust)
        writer.write(said)
        answer = await asyncio.wait_for(reader.read(), PATIENCE)
        assert b'"error"' in answer or answer == b""
        writer.close()
        assert uplinks.counts() == (0, 0)


async def test_more_than_its_credit_ends_the_connection() -> None:
    class Owner:
        def arrived(self, _: object) -> None: ...

        def left(self, _: object) -> None: ...

    link = Uplink(Owner())  # type: ignore[arg-type]
    link.incarnation = Incarnation("ns", "it", "u", 1, "p", "h")
    link._greeting = asyncio.create_task(asyncio.sleep(0))
    number, stream = link.open()
    for _ in range(wire.WINDOW // wire.MAX_PAYLOAD + 1):
        link.data_received(wire.encode(number, wire.Kind.DATA, b"x" * wire.MAX_PAYLOAD))
    assert stream._ended
    with pytest.raises(Unavailable):
        link.open()


async def test_what_a_tls_connection_reads_into_is_as_small_as_is_asked(
    ca: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five hundred viewers have one each. It is asyncio's own, and kept while they stay."""
    monkeypatch.setattr(sslproto.SSLProtocol, "max_size", cluster_main.TLS_READ)
    async with (
        gateway(ca, tmp_path, verified) as (uplinks, port),
        dialling(ca, port, tmp_path, 1, echo),
    ):
        link = await uplinks.wait(KEY, PATIENCE)
        assert link is not None
        assert link._transport is not None
        made = link._transport._ssl_protocol  # type: ignore[attr-defined]
        assert len(made._ssl_buffer) == cluster_main.TLS_READ
        _, stream = link.open()
        data = random.Random(1).randbytes(3 * cluster_main.TLS_READ)
        stream.write(data)
        assert await whole(stream, len(data)) == data


# -- strangers (attack 41) ------------------------------------------------------------------------


async def test_uplinks_that_trickle_or_say_nothing_do_not_keep_a_sidecar_out(
    ca: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hello that comes a byte at a time was waited for as long as it came."""
    monkeypatch.setattr(uplinks_module, "_STRANGE_SECONDS", 1.0)
    monkeypatch.setattr(uplinks_module, "_STRANGERS_OF_ONE", 16)
    client = ssl.create_default_context(cadata=ca.pem)
    async with gateway(ca, tmp_path, verified) as (uplinks, port):
        idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(40)]
        slow = [await asyncio.open_connection("localhost", port, ssl=client) for _ in range(8)]

        async def trickle(writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(ConnectionError):
                for byte in wire.hello({"session": "it" * 1000}):
                    writer.write(bytes([byte]))
                    await asyncio.sleep(0.1)

        trickling = [asyncio.create_task(trickle(writer)) for _, writer in slow]
        async with dialling(ca, port, tmp_path, 1, echo):
            assert await uplinks.wait(KEY, 5.0) is not None
            for reader, _ in (*idle, *slow):
                with contextlib.suppress(ConnectionError):
                    async with asyncio.timeout(3):
                        assert await reader.read() == b""
            assert uplinks.get(KEY) is not None, "who was identified stays"
        for task in trickling:
            task.cancel()
        for _, writer in (*idle, *slow):
            writer.close()


async def test_hellos_that_are_refused_are_counted(
    ca: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is a question to the API server."""
    monkeypatch.setattr(uplinks_module, "_REFUSALS", (3, 0.0))
    asked: list[str] = []

    async def verify(said: dict[str, Any]) -> Incarnation:
        asked.append(str(said.get("token")))
        return await verified(said)

    client = ssl.create_default_context(cadata=ca.pem)
    async with gateway(ca, tmp_path, verify) as (_uplinks, port):
        said = {"namespace": "ns", "session": "it", "epoch": 1, "token": "wrong"}
        for _ in range(6):
            reader, writer = await asyncio.open_connection("localhost", port, ssl=client)
            writer.write(wire.hello(said))
            async with asyncio.timeout(PATIENCE):
                with contextlib.suppress(ConnectionError):
                    await reader.read()
            writer.close()
    assert len(asked) == 3
