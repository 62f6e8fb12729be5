"""What clients get wrong: each hears an error with its code and what to do about it, and somebody
else, who is attached all the while, misses nothing. Slow readers: test_gateway_faults.py; sessions
that move, or sleep: test_six_at_once.py."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import aiohttp
import pytest
import yaml
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from e2e.cluster.places import PKI
from e2e.guests import Guests
from e2e.lab import Lab
from events_kit import viewing
from holdfast_wire.frames import Attach, Decoder, Error, Input, encode

PATIENCE: Final = 60.0
COUNTS: Final = 'i=0; while :; do echo "<$((i++))>"; sleep .05; done'
SIGNED_BY: Final = PKI / "sa.key"
# The gateway asks after thirty seconds of silence, and waits for half as long.
SILENT_SECONDS: Final = 30.0 + 15.0


@asynccontextmanager
async def undisturbed(guests: Guests, session: str) -> AsyncIterator[None]:
    """Somebody who looks on, to whom nothing happens meanwhile."""

    def seen() -> list[int]:
        return [int(number) for number in re.findall(rb"<(\d+)>", bytes(other.stream))]

    url, token = f"{guests.base(session)}/stream", guests["otto"].token
    async with viewing(url, token, tls=guests.tls, patience=PATIENCE) as other:
        await other.until(lambda: len(seen()) > 3)
        yield
        before = len(seen())
        await other.until(lambda: len(seen()) > before + 20)
    numbers = seen()
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert not {"gap", "problem"} & set(other.kinds)


def expired(token: str) -> str:
    """The same, of an hour ago: signed by the cluster itself."""

    def part(data: bytes) -> bytes:
        return base64.urlsafe_b64encode(data).rstrip(b"=")

    head, body, _ = token.split(".")
    claims = json.loads(base64.urlsafe_b64decode(body + "=="))
    for name in ("exp", "iat", "nbf"):
        claims[name] -= 3600 + claims["exp"] - int(time.time())
    signed = head.encode() + b"." + part(json.dumps(claims).encode())
    key = serialization.load_pem_private_key(SIGNED_BY.read_bytes(), None)
    assert isinstance(key, rsa.RSAPrivateKey)
    return (signed + b"." + part(key.sign(signed, padding.PKCS1v15(), hashes.SHA256()))).decode()


async def error_of(guests: Guests, path: str, token: str, **headers: str) -> tuple[int, str, str]:
    """Status, code and all that is said, of which something is advice."""
    sent = {"Authorization": f"Bearer {token}", **headers}
    async with (
        aiohttp.ClientSession(headers=sent) as http,
        http.get(path, ssl=guests.tls) as answer,
    ):
        told = (await answer.json())["error"]
    assert told["message"]
    assert told["advice"]
    return answer.status, told["code"], f"{told['message']} {told['advice']}"


@pytest.mark.timeout(180)
async def test_tokens_and_sessions_that_will_not_do(lab: Lab, guests: Guests) -> None:
    session = guests.reached(lab.session("steady", "bash", "-c", COUNTS))
    lab.begin("never", "bash", pod={"nodeSelector": {"there-is": "none-such"}})
    one, wanda = f"{guests.base(session.name)}/screen", guests["wanda"]
    other = yaml.safe_load(wanda.kubeconfig.read_text())["users"][0]["user"]["token"]
    async with undisturbed(guests, session.name):
        tokens = {"another audience's": other, "no token": "x.y.z"}
        if SIGNED_BY.exists():  # not in a cluster of kind, which keeps its own
            tokens["expired"] = expired(wanda.token)
        for which, token in tokens.items():
            status, code, said = await error_of(guests, one, token)
            assert (status, code) == (401, "unauthenticated"), which
            assert "kubectl create token" in said
        unknown = await error_of(guests, one.replace("steady", "unknown"), wanda.token)
        assert unknown[:2] == (404, "not_found")
        status, code, said = await error_of(guests, one.replace("steady", "never"), wanda.token)
        assert (status, code) == (503, "unavailable")
        assert re.search("Pending|Starting", said)


@pytest.mark.timeout(180)
async def test_versions_and_sizes_that_will_not_do(lab: Lab, guests: Guests) -> None:
    session = guests.reached(lab.session("steady", "bash", "-c", COUNTS))
    url, token = f"{guests.base(session.name)}/stream", guests["wanda"].token
    too_new = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13",
               "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
               "Sec-WebSocket-Protocol": "holdfast.v3"}  # fmt: skip
    async with undisturbed(guests, session.name):
        status, code, said = await error_of(guests, url, token, **too_new)
        assert (status, code, "holdfast.v1" in said) == (426, "unsupported", True)
        for message, code in (
            (b"\x03\x01\x00\x00\x00\x00\x00\x02{}", "unsupported"),
            (encode(Input(1, b"", bytes(1 << 18))), "too_large"),
        ):
            async with attached(guests, session.name, "wanda") as socket:
                await socket.send_bytes(message)
                told = await heard(socket, Error)
                assert told.body["code"] == code
                assert told.body["advice"]


@pytest.mark.long
@pytest.mark.timeout(240)
async def test_a_client_that_vanished_without_a_word(lab: Lab, guests: Guests) -> None:
    """Half-open: its end of the connection is no more, and nothing said so. By one that answers no
    ping, which is all that can be seen of it."""
    session = guests.reached(lab.session("steady", "bash", "-c", COUNTS))
    async with (
        undisturbed(guests, session.name),
        guests.sdk("wanda", session.name) as own,
        attached(guests, session.name, "wanda", autoping=False) as silent,
    ):
        assert (await own.info()).clients == 2
        began = time.monotonic()
        async with asyncio.timeout(SILENT_SECONDS + 15):
            while not silent.closed:
                await silent.receive()
        lab.report["half_open_gone_seconds"] = round(time.monotonic() - began, 1)
        assert (await own.info()).clients == 1


@asynccontextmanager
async def attached(
    guests: Guests, session: str, who: str, **more: Any
) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
    headers = {"Authorization": f"Bearer {guests[who].token}"}
    url = f"{guests.base(session)}/stream"
    async with (
        aiohttp.ClientSession(headers=headers) as http,
        http.ws_connect(url, ssl=guests.tls, **more) as socket,
    ):
        await socket.send_bytes(encode(Attach({"mode": "view", "columns": 80, "rows": 24})))
        await heard(socket, Attach)
        yield socket


async def heard(socket: aiohttp.ClientWebSocketResponse, kind: type[Any]) -> Any:
    decoder = Decoder()
    while True:
        message = await socket.receive(PATIENCE)
        for frame in decoder.feed(message.data):
            if isinstance(frame, kind):
                return frame
