"""An agent by MCP and a program that follows events, at the gateway of a real cluster, with tokens
of their own: RBAC says what each may, and a move goes on under both."""

from __future__ import annotations

import asyncio
import base64
import re
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import aiohttp
import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from e2e.lab import OPERATOR_NAMESPACE, Lab, Session
from e2e.movers import MOVED_WITHIN, cordoned
from events_kit import viewing

GATEWAY: Final = ("-l", "app.kubernetes.io/component=gateway")
NAME: Final = f"holdfast-gateway.{OPERATOR_NAMESPACE}.svc"
ROLES: Final = {"agent": "holdfast-user", "looker": "holdfast-observer", "stranger": ""}
COUNT: Final = "i=0; while sleep 0.02; do i=$((i+1)); echo n$i.; done"


@dataclass(frozen=True)
class Door:
    lab: Lab
    tls: ssl.SSLContext
    tokens: dict[str, str]

    def base(self, session: Session) -> str:
        """Of a replica that stays when the session's node is emptied."""
        pods = self.lab.get("pods", "-n", OPERATOR_NAMESPACE, *GATEWAY)["items"]
        there = next(pod for pod in pods if pod["spec"]["nodeName"] != session.node)
        return f"https://{there['status']['podIP']}:8443"

    def path(self, session: Session) -> str:
        return f"{self.base(session)}/api/v1/namespaces/default/sessions/{session.name}"

    @asynccontextmanager
    async def agent(self, session: Session, who: str) -> AsyncIterator[Client]:
        async def named(request: httpx2.Request) -> None:
            request.extensions["sni_hostname"] = NAME

        async with httpx2.AsyncClient(
            headers={"Authorization": f"Bearer {self.tokens[who]}"},
            verify=self.tls,
            trust_env=False,
            timeout=90,
            event_hooks={"request": [named]},
        ) as http:
            transport = streamable_http_client(f"{self.base(session)}/mcp", http_client=http)
            async with Client(transport) as client:
                yield client


@pytest.fixture(scope="module")
def door(lab: Lab) -> Iterator[Door]:
    look = ("secret", "holdfast-gateway", "-n", OPERATOR_NAMESPACE)
    authority = lab.kubectl("get", *look, "-o", r"jsonpath={.data.ca\.crt}")
    tls = ssl.create_default_context(cadata=base64.b64decode(authority).decode())
    tokens = {}
    for who, role in ROLES.items():
        lab.kubectl("create", "serviceaccount", who)
        if role:
            account = f"--serviceaccount=default:{who}"
            lab.kubectl("create", "rolebinding", who, f"--clusterrole={role}", account)
        tokens[who] = lab.kubectl("create", "token", who, "--audience=holdfast").strip()
    yield Door(lab, tls, tokens)
    for who in ROLES:
        lab.kubectl("delete", "serviceaccount", who)
        lab.kubectl("delete", "rolebinding", who, "--ignore-not-found")


async def call(client: Client, session: Session, tool: str, **given: Any) -> dict[str, Any]:
    result = await client.call_tool(tool, {"session": f"default/{session.name}", **given})
    found: dict[str, Any] = result.structured_content
    return found


async def reached(client: Client, session: Session) -> None:
    async with asyncio.timeout(60):
        while "error" in await call(client, session, "observe"):  # noqa: ASYNC110
            await asyncio.sleep(0.2)


@pytest.mark.timeout(240)
async def test_a_move_under_an_agent_and_a_viewer(lab: Lab, door: Door) -> None:
    plain = {"runAsUser": 1000, "runAsGroup": 1000, "runAsNonRoot": True}
    session = lab.session(
        "driven", "bash", "--norc", node=lab.away(), container={"securityContext": plain}
    )
    stream = f"{door.path(session)}/stream"
    async with door.agent(session, "agent") as agent:
        await reached(agent, session)
        ran = await call(agent, session, "run", command="echo hello; (exit 3)")
        assert (ran["status"], ran["exit_code"], ran["output"]) == ("finished", 3, "hello")
        async with viewing(
            stream, door.tokens["looker"], tls=door.tls, name=NAME, patience=200
        ) as viewer:
            await viewer.until(lambda: "snapshot" in viewer.kinds)
            await call(agent, session, "send_keys", text=COUNT, keys="Enter")
            await viewer.until(lambda: b"n10." in viewer.stream)
            with cordoned(lab, session.node):
                moved = asyncio.create_task(asyncio.to_thread(session.await_epoch, 2, MOVED_WITHIN))
                while not moved.done():
                    assert await viewer.next(), viewer.seen[-2:]
                await moved
                seen = len(viewer.stream)
                await viewer.until(lambda: len(viewer.stream) > seen + 100)
            told = await call(agent, session, "observe", graph=True)
            assert told["state"]["activity"] == "running"
            for _ in range(3):  # bash forgets one that comes while a command of its loop just ends
                await call(agent, session, "interrupt")
                met = (await call(agent, session, "wait_for", state="prompt", timeout=10))["met"]
                if met:
                    break
            assert met
            after = await call(agent, session, "run", command="echo still $i")
            await viewer.until(lambda: after["output"].encode() in viewer.stream)
    # The terminal echoes an interrupt where it is, also between a line and its end.
    numbers = [int(one) for one in re.findall(rb"n(\d+)\.(?:\^C)?\r", viewer.stream)]
    assert numbers == list(range(1, len(numbers) + 1)), "nothing lost, nothing twice"
    assert int(after["output"].split()[1]) - numbers[-1] in (0, 1)
    assert "moving" in viewer.kinds
    assert viewer.kinds.count("snapshot") == 1
    assert [body["session_id"] for kind, body in viewer.seen if kind == "attached"]


async def test_rbac_says_what_each_may(lab: Lab, door: Door) -> None:
    session = lab.session("guarded", "bash", "--norc")
    async with door.agent(session, "looker") as looker, door.agent(session, "stranger") as other:
        await reached(looker, session)
        typed = await call(looker, session, "send_keys", text="x")
        assert typed["error"]["code"] == "forbidden"
        told = await call(other, session, "observe")
        absent = await other.call_tool("observe", {"session": "default/absent"})
        assert told["error"]["code"] == absent.structured_content["error"]["code"] == "forbidden"
        assert (await other.call_tool("list_sessions", {})).structured_content == {"sessions": []}
    async with aiohttp.ClientSession(trust_env=False) as http:
        for who, below, status in (
            ("looker", "/state", 200),
            ("looker", "/graph", 200),
            ("stranger", "/state", 403),
            ("nobody", "/state", 401),
        ):
            headers = {"Authorization": f"Bearer {door.tokens.get(who, 'x')}"}
            url = door.path(session) + below
            async with http.get(url, headers=headers, ssl=door.tls, server_hostname=NAME) as answer:
                assert answer.status == status, (who, below)


@pytest.mark.timeout(120)
async def test_a_right_that_is_taken_back_cuts_the_events(lab: Lab, door: Door) -> None:
    session = lab.session("cut", "bash", "--norc")
    async with door.agent(session, "looker") as looker:
        await reached(looker, session)
    stream = f"{door.path(session)}/stream"
    async with viewing(stream, door.tokens["looker"], tls=door.tls, name=NAME) as viewer:
        await viewer.until(lambda: "snapshot" in viewer.kinds)
        await asyncio.to_thread(lab.kubectl, "delete", "rolebinding", "looker")
        try:
            async with asyncio.timeout(5):
                await viewer.until(lambda: "problem" in viewer.kinds)
            assert viewer.seen[-1][1]["error"]["code"] == "forbidden"
        finally:
            lab.kubectl(
                "create", "rolebinding", "looker", "--clusterrole=holdfast-observer",
                "--serviceaccount=default:looker",
            )  # fmt: skip
