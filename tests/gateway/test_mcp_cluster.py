"""MCP at a cluster's door: RBAC decides each call, and a token goes to the TokenReview alone."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from cluster_kit import POD, POD_UID, FakeApi, answering, lease, session, sessions_of
from holdfast_gateway.assets import Assets
from holdfast_gateway.cluster_http import ONE, TokenReviewDoor
from holdfast_gateway.http import Http
from holdfast_wire.rights import Right
from uplink_kit import authority, dialling, until

HEADERS = {"Accept": "application/json, text/event-stream"}
STATE = {"activity": "running", "process": None, "sentence": "", "exit": None}
SCREEN = {"text": "hello", "cursor": {}, "title": "", "seq": 7, "truncated": False}


class Agents:
    """Any number of them, each with a token, at one gateway with one session."""

    def __init__(self, base: str, client: aiohttp.ClientSession, api: FakeApi) -> None:
        self._base, self._client, self.api = base, client, api
        self.heard: list[dict[str, Any]] = []

    async def call(self, who: str, tool: str, **arguments: Any) -> dict[str, Any]:
        params = {"name": tool, "arguments": {"session": "ns/it", **arguments}}
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        headers = {**HEADERS, "Authorization": f"Bearer secret-of-{who}"}
        async with self._client.post(f"{self._base}/mcp", json=body, headers=headers) as answer:
            assert answer.status == 200, await answer.text()
            (data,) = [
                line.removeprefix("data: ")
                for line in (await answer.text()).splitlines()
                if line.startswith("data: ")
            ]
            told: dict[str, Any] = json.loads(data)["result"]["structuredContent"]
            return told


@pytest.fixture
async def agents(tmp_path: Path) -> AsyncIterator[Agents]:
    api = FakeApi()
    sidecar = {POD: "it-1", POD_UID: "pod"}
    api.know("token", "system:serviceaccount:ns:it", "holdfast-gateway", **sidecar)
    for who in ("observer", "writer", "stranger"):
        api.know(f"secret-of-{who}", who)
    api.allow("observer", Right.OBSERVE)
    api.allow("writer", Right.OBSERVE, Right.TYPE)
    api.leases["ns", "it"] = lease("it", "pod/nonce", 1)
    api.sessions = [session("ns", "it")]
    ca = authority()
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(*ca.sign(tmp_path, "gateway", "localhost"))
    async with sessions_of(api) as (backend, uplinks, reviews):
        door = TokenReviewDoor(reviews, frozenset())
        http = Http(door, backend, Assets(), lambda: None, one=ONE, mcp=True)
        runner = web.AppRunner(http.application(), access_log=None, shutdown_timeout=1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        base = f"http://127.0.0.1:{runner.addresses[0][1]}"
        async with aiohttp.ClientSession(trust_env=False) as client:
            made = Agents(base, client, api)
            answers = {"state": STATE, "screen": SCREEN, "send": {"order": 1, "duplicate": False}}
            async with (
                uplinks.listening(tls, 0, "127.0.0.1") as port,
                dialling(ca, port, tmp_path, 1, answering(answers, made.heard)),
            ):
                await until(lambda: uplinks.get(("ns", "it")))
                yield made
        await runner.cleanup()


async def test_observer_writer_and_stranger(agents: Agents) -> None:
    for who in ("observer", "writer"):
        assert (await agents.call(who, "observe"))["screen"] == "hello"
    assert (await agents.call("writer", "send_keys", text="x"))["order"] == 1
    typed = await agents.call("observer", "send_keys", text="x")
    assert typed["error"]["code"] == "forbidden"
    assert "sessions/type" in typed["error"]["advice"]
    there = await agents.call("stranger", "observe")
    absent = await agents.call("stranger", "observe", session="ns/absent")
    assert there["error"]["code"] == absent["error"]["code"] == "forbidden"
    assert there["error"]["message"].replace("/it", "/absent") == absent["error"]["message"]
    assert {one["as"]["actor"] for one in agents.heard} == {"observer", "writer"}
    assert {one["as"]["modality"] for one in agents.heard} == {"mcp"}


async def test_a_token_goes_to_the_review_and_nowhere_else(
    agents: Agents, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(0)
    await agents.call("writer", "observe")
    await agents.call("writer", "send_keys", text="x")
    with_it = {kind for kind, spec in agents.api.asked if "secret-of" in repr(spec)}
    assert with_it == {"tokenreviews"}
    assert "secret-of" not in repr(agents.heard)
    assert "secret-of" not in "".join(r.getMessage() for r in caplog.records if _ours(r.name))


def _ours(logger: str) -> bool:
    return logger.startswith(("holdfast", "mcp", "aiohttp"))


@pytest.mark.parametrize("what", ["allowed", "tokens"])
async def test_a_right_or_a_token_that_is_taken_back_ends_what_waits(
    agents: Agents, what: str
) -> None:
    waiting = asyncio.create_task(agents.call("observer", "wait_for", state="prompt", timeout=600))
    await until(lambda: len(agents.heard) > 2)
    getattr(agents.api, what).clear()
    code = {"allowed": "forbidden", "tokens": "unauthenticated"}[what]
    async with asyncio.timeout(5):
        assert (await waiting)["error"]["code"] == code
