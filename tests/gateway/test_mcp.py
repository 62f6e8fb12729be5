"""MCP, driven by the SDK's own client against real sessions; and who gets in."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import httpx2
import pytest
from aiohttp import web
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from gateway_kit import OWN, PATIENCE_SECONDS, Answer, Place
from holdfast_gateway import asgi, mcp_server
from holdfast_gateway.assets import Assets
from holdfast_gateway.auth import Caller, Modality
from holdfast_gateway.http import Http
from holdfast_gateway.mcp_server import TOOLS
from holdfast_wire.errors import Unauthenticated
from holdfast_wire.ids import Actor
from sidecar_kit import Client as Frames

PATH = "/mcp"


@asynccontextmanager
async def agent(place: Place, mode: Any = "auto") -> AsyncIterator[Client]:
    headers = {"Authorization": f"Bearer {place.token}"}
    async with httpx2.AsyncClient(headers=headers, trust_env=False, timeout=40) as http:
        transport = streamable_http_client(f"{place.url.rstrip('/')}{PATH}", http_client=http)
        async with Client(transport, mode=mode) as client:
            yield client


async def call(client: Client, name: str, **arguments: Any) -> dict[str, Any]:
    result = await client.call_tool(name, {"session": "build", **arguments})
    assert not result.is_error, result
    body: dict[str, Any] = result.structured_content
    assert json.loads(result.content[0].text) == body  # type: ignore[union-attr]
    return body


async def until(
    client: Client, wanted: Callable[[dict[str, Any]], Any], name: str, **arguments: Any
) -> dict[str, Any]:
    async with asyncio.timeout(PATIENCE_SECONDS):
        told = await call(client, name, **arguments)
        while not wanted(told):
            await asyncio.sleep(0.05)
            told = await call(client, name, **arguments)
    return told


async def refused(client: Client, name: str, arguments: dict[str, Any]) -> dict[str, str]:
    result = await client.call_tool(name, arguments)
    assert result.is_error
    error: dict[str, str] = result.structured_content["error"]
    assert result.content[0].text.startswith(f"{error['code']}: ")  # type: ignore[union-attr]
    return error


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_an_agent_finds_its_way(served: Place, mode: str) -> None:
    async with agent(served, mode) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert list(tools) == [tool.name for tool in TOOLS]
        assert "take_turn" in (client.instructions or "")
        listed = await client.call_tool("list_sessions", {})
        assert [one["session"] for one in listed.structured_content["sessions"]] == ["build"]
        ran = await call(client, "run", command="echo hello from $((40+2)); (exit 3)")
        assert (ran["status"], ran["exit_code"]) == ("finished", 3)
        assert ran["output"] == "hello from 42"
        seen = await call(client, "observe")
        assert seen["state"]["activity"] == "prompt"
        assert "hello from 42" in seen["screen"]
    (record,) = [
        one
        for one in served.get("/api/v1/sessions/build/journal").json["records"][-8:]
        if one["kind"] == "exec"
    ][-1:]
    assert record["modality"] == "mcp"


async def test_hints_say_what_only_looks(served: Place) -> None:
    async with agent(served) as client:
        for tool in (await client.list_tools()).tools:
            looks = ("list_sessions", "observe", "wait_for", "get_job", "list_jobs")
            reads = tool.name in looks
            assert tool.annotations is not None
            assert tool.annotations.read_only_hint is reads
            assert tool.output_schema is not None


async def test_a_question_is_told_of_and_answered(served: Place) -> None:
    async with agent(served) as client:
        asked = await call(client, "run", command="read -p 'go on? ' answer; echo got $answer")
        assert asked["status"] == "waiting_for_input"
        assert asked["state"]["activity"] == "reading"
        assert asked["screen"].rstrip().endswith("go on?")
        busy = await call(client, "run", command="echo no", prompt_timeout=0)
        assert busy["status"] == "not_started"
        assert "waiting for input" in busy["state"]["sentence"]
        await call(client, "send_keys", text="yes", keys="Enter")
        assert (await call(client, "wait_for", state="prompt", text="got yes"))["met"]
        command = "read -p 'go on? ' answer; echo got $answer"
        again = await call(client, "run", command=command, key=asked["key"])
        assert (again["status"], again["duplicate"]) == ("finished", True)
        assert again["output"].endswith("got yes")


async def test_a_password_is_known_from_the_terminal(served: Place) -> None:
    async with agent(served) as client:
        asked = await call(client, "run", command="python3 -c 'import getpass; getpass.getpass()'")
        assert asked["state"]["activity"] == "password"
        assert (await call(client, "interrupt"))["state"]["activity"] != "password"
        assert (await call(client, "wait_for", state="prompt"))["met"]


async def test_what_goes_on_is_interrupted(served: Place) -> None:
    async with agent(served) as client:
        ran = await call(client, "run", command="sleep 100", timeout=0.5)
        assert ran["status"] == "still_running"
        await until(client, lambda told: told["state"]["process"]["name"] == "sleep", "observe")
        assert not (await call(client, "wait_for", state="prompt", timeout=0))["met"]
        await call(client, "interrupt", how="INT")
        assert (await call(client, "wait_for", state="prompt"))["met"]


async def test_ports_and_processes_in_one_call(served: Place) -> None:
    code = "import socket,time; s=socket.create_server(('127.0.0.1',0)); time.sleep(600)"
    async with agent(served) as client:
        await call(client, "run", command=f'python3 -c "{code}" &')
        told = await until(client, lambda told: told["ports"], "observe", graph=True)
        (port,) = told["ports"]
        assert port["pid"] in [one["pid"] for one in told["processes"]]
        assert told["state"]["activity"] == "prompt"
        await call(client, "run", command="kill %1; wait")


async def test_a_job_disturbs_nobody_and_is_followed(served: Place, tmp_path: Path) -> None:
    async with agent(served) as client:
        await call(client, "send_keys", text="half typ")
        command = f"echo begun; until test -e {tmp_path}/go; do sleep 0.05; done; echo done; exit 4"
        started = await call(client, "start_job", command=command, key="job-1")
        again = await call(client, "start_job", command=command, key="job-1")
        assert (started["duplicate"], again["duplicate"]) == (False, True)
        name = started["job"]["id"]
        early = await call(client, "get_job", job=name, timeout=0.1)
        assert not early["complete"]
        (tmp_path / "go").touch()
        told = await call(client, "get_job", job=name, after=early["next"])
        assert early["output"] + told["output"] == "begun\ndone\n"
        assert (told["complete"], told["job"]["exit"]["code"]) == (True, 4)
        assert name in [one["id"] for one in (await call(client, "list_jobs"))["jobs"]]
        shown = await call(client, "wait_for", state="any", text="ended with 4", timeout=30)
        assert shown["met"]
        line = shown["screen"].splitlines()[shown["cursor"]["row"]]
        assert line == "$ half typ", "the line that is being typed is whole, and the last"
        await call(client, "interrupt")


async def test_a_job_is_ended_by_a_signal(served: Place) -> None:
    async with agent(served) as client:
        name = (await call(client, "start_job", command="sleep 600"))["job"]["id"]
        runs = {"job": name, "timeout": 0}
        await until(client, lambda told: told["job"]["state"] == "running", "get_job", **runs)
        await call(client, "signal_job", job=name)
        told = await call(client, "get_job", job=name)
        assert told["job"]["exit"] == {"code": None, "signal": 15}
        missing = await refused(client, "get_job", {"session": "build", "job": "none"})
        assert missing["code"] == "not_found"


async def test_errors_say_what_to_do(served: Place) -> None:
    async with agent(served) as client:
        gone = await refused(client, "observe", {"session": "absent"})
        assert (gone["code"], gone["disposition"]) == ("not_found", "permanent")
        for tool, arguments in (
            ("observe", {}),
            ("observe", {"session": "build", "colour": "red"}),
            ("run", {"session": "build", "command": " "}),
            ("run", {"session": "build", "command": "true", "timeout": 1e9}),
            ("send_keys", {"session": "build"}),
            ("send_keys", {"session": "build", "keys": "Any"}),
            ("interrupt", {"session": "build", "how": "STOP"}),
            ("dance", {}),
        ):
            assert (await refused(client, tool, arguments))["code"] == "bad_request", tool


async def test_the_turn_is_another_s_until_it_is_taken(served: Place) -> None:
    async with agent(served) as client:
        with Frames(served.folder("build") / "sidecar.sock") as other:
            other.attach(actor="bea")
            error = await refused(client, "send_keys", {"session": "build", "text": "x"})
            assert error["code"] == "no_turn"
            await call(client, "take_turn")
            assert (await call(client, "run", command="echo mine"))["output"] == "mine"


# Who gets in

LIST = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
HEADERS = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}


def post(place: Place, body: Any = LIST, token: str | None = OWN, **headers: str) -> Answer:
    sent = {name.replace("-", "_"): value for name, value in HEADERS.items()}
    return place.post(PATH, body, token=token, **{**sent, **headers})


def test_the_door_is_that_of_http(served: Place) -> None:
    for token in (None, "x" * 43):
        answer = post(served, token=token)
        assert (answer.status, answer.code) == (401, "unauthenticated")
        assert answer.headers["WWW-Authenticate"].startswith("Bearer")
    assert post(served, Origin="http://evil.example").code == "forbidden"
    assert post(served, Host="evil.example").code == "forbidden"
    assert served.post(f"{PATH}?token={served.token}", LIST, token=None).code == "bad_request"
    assert post(served, b"x" * (1 << 20) + b"x").code == "too_large"
    assert served.get(PATH).status == 405, "there is no stream to open, and no session to end"
    assert served.token not in served.log()


def test_there_is_no_session_to_steal(served: Place) -> None:
    answer = post(served, Mcp_Session_Id="0123456789abcdef0123456789abcdef")
    assert answer.status == 200
    assert "Mcp-Session-Id" not in answer.headers


class Doors:
    """Two callers, each with a token."""

    def check(self, _: web.Request) -> None:
        """Nothing: it is not what is tried here."""

    async def caller(self, request: web.Request) -> Caller:
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if token not in ("secret-of-ana", "secret-of-bea"):
            raise Unauthenticated("no token")
        return Caller(Actor(token.removeprefix("secret-of-")), Modality.HTTP)

    stream_caller = caller


class Backend:
    """What of a call reaches the sessions."""

    def __init__(self) -> None:
        self.callers: list[Caller] = []
        self.arrived = asyncio.Semaphore(0)
        self.cancelled = asyncio.Event()
        self.held: asyncio.Event | None = None

    async def list(self, caller: Caller) -> list[dict[str, Any]]:
        self.callers.append(caller)
        self.arrived.release()
        if self.held is not None:
            try:
                await self.held.wait()
            except asyncio.CancelledError:
                self.cancelled.set()
                raise
        return []


@asynccontextmanager
async def gateway(backend: Backend) -> AsyncIterator[aiohttp.ClientSession]:
    """Served as in production: a test server of aiohttp's would cancel what nobody waits for."""
    made = Http(Doors(), backend, Assets(), lambda: None, mcp=True)  # type: ignore[arg-type]
    runner = web.AppRunner(made.application(), access_log=None, shutdown_timeout=1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        base = f"http://127.0.0.1:{runner.addresses[0][1]}"
        async with aiohttp.ClientSession(base, trust_env=False) as client:
            yield client
    finally:
        await runner.cleanup()


CALL = {**LIST, "method": "tools/call", "params": {"name": "list_sessions", "arguments": {}}}


async def test_every_request_is_its_own_caller_s_and_no_token_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[Any] = []
    respond = asgi.respond

    async def recorded(application: Any, request: web.Request, state: dict[str, Any]) -> Any:
        async def app(scope: Any, receive: Any, send: Any) -> None:
            seen.append(scope)
            await application(scope, receive, send)

        return await respond(app, request, state)

    monkeypatch.setattr(asgi, "respond", recorded)
    backend = Backend()
    async with gateway(backend) as client:
        for who in ("ana", "bea", "ana"):
            headers = {**HEADERS, "Authorization": f"Bearer secret-of-{who}", "Mcp-Session-Id": "1"}
            async with client.post(PATH, json=CALL, headers=headers) as answer:
                assert answer.status == 200
                assert '"sessions"' in await answer.text()
    assert [(one.actor.name, one.modality.value) for one in backend.callers] == [
        ("ana", "mcp"),
        ("bea", "mcp"),
        ("ana", "mcp"),
    ]
    assert len(seen) == 3
    assert "secret-of" not in repr(seen)
    assert "secret-of" not in repr(backend.callers)


async def test_requests_at_once_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_server, "MOST_OF_ONE", 2)
    backend = Backend()
    backend.held = asyncio.Event()
    async with gateway(backend) as client:

        async def ask(who: str) -> int:
            headers = {**HEADERS, "Authorization": f"Bearer secret-of-{who}"}
            async with client.post(PATH, json=CALL, headers=headers) as answer:
                await answer.read()
                return answer.status

        waiting = [asyncio.create_task(ask("ana")) for _ in range(2)]
        for _ in waiting:
            await backend.arrived.acquire()
        assert await ask("ana") == 503
        other = asyncio.create_task(ask("bea"))
        await backend.arrived.acquire()
        backend.held.set()
        assert [await one for one in (*waiting, other)] == [200, 200, 200]
        assert await ask("ana") == 200


MODERN = "2026-07-28"
META = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientCapabilities": {},
}


@pytest.mark.parametrize("modern", [True, False], ids=["modern", "legacy"])
async def test_who_hangs_up_waits_for_nothing_any_more(modern: bool) -> None:
    backend = Backend()
    backend.held = asyncio.Event()
    headers = {**HEADERS, "Authorization": "Bearer secret-of-ana"}
    body: dict[str, Any] = CALL
    if modern:
        names = {"Mcp-Method": "tools/call", "Mcp-Name": "list_sessions"}
        headers |= {"MCP-Protocol-Version": MODERN, **names}
        body = {**CALL, "params": {"name": "list_sessions", "arguments": {}, "_meta": META}}
    async with gateway(backend) as client:
        asking = asyncio.create_task(client.post(PATH, json=body, headers=headers))
        await backend.arrived.acquire()
        await asyncio.sleep(0)
        if asking.done():  # the older revision begins its answer at once
            asking.result().close()
        asking.cancel()
        async with asyncio.timeout(10):
            await backend.cancelled.wait()
