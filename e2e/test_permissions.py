"""Who may do what is the same by every way in; and a right that is taken away is gone everywhere
within five seconds, also from what is open."""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, closing
from typing import Any, Final

import aiohttp
import pytest

import holdfast
from browser_kit import Tab, browser
from client_kit import Screen
from e2e.guests import ENV, NAMESPACE, Guests
from e2e.lab import Lab
from e2e.pages import signed_in
from events_kit import viewing
from holdfast_wire.errors import BY_CODE
from holdfast_wire.frames import Attach, Decoder, Error, encode

CUT_SECONDS: Final = 5.0
PATIENCE: Final = 40.0
PROMPT: Final = rb"bash-[0-9.]+[#$] "
YES: Final = "yes"
CLEAR: Final = "\x15"  # what is typed: whatever stands on the line is gone
LOOK, GRAPH, JOURNAL, TYPE = "look", "graph", "journal", "type"
ALL: Final = (LOOK, GRAPH, JOURNAL, TYPE)
MAY: Final = {"wanda": set(ALL), "otto": {LOOK, GRAPH, JOURNAL}, "sven": set[str]()}

Ask = Callable[[Guests, str, str, str], Awaitable[str]]
"""guests, who, session, act: `yes`, or the error's code."""


def by_exit(done: subprocess.CompletedProcess[Any]) -> str:
    codes = {0: YES, 66: "not_found", 77: "forbidden"}
    return codes.get(done.returncode, f"exit {done.returncode}: {done.stderr!r}")


async def kubectl(guests: Guests, who: str, session: str, act: str) -> str:
    words = {LOOK: ("screen", session), GRAPH: ("graph", session), JOURNAL: ("logs", session),
             TYPE: ("send", session, CLEAR)}[act]  # fmt: skip
    return by_exit(
        await asyncio.to_thread(
            subprocess.run,
            guests.plugin(who, *words),
            env=ENV,
            capture_output=True,
            timeout=60,
            check=False,
        )
    )


async def ssh(guests: Guests, who: str, session: str, act: str) -> str:
    at = guests.ssh.at(f"{session}.{NAMESPACE}")
    words = (at, "true") if act == TYPE else ("-s", at, "screen" if act == LOOK else act)
    return by_exit(await asyncio.to_thread(guests.ssh.run, who, *words))


async def answer_of(response: aiohttp.ClientResponse) -> str:
    if response.status in (101, 200):
        return YES
    return str(json.loads(await response.text())["error"]["code"])


async def http(guests: Guests, who: str, session: str, act: str) -> str:
    below = "screen" if act == LOOK else "input" if act == TYPE else act
    body: dict[str, Any] = {"json": {"text": CLEAR}} if act == TYPE else {}
    async with (
        aiohttp.ClientSession(headers=bearer(guests, who)) as client,
        client.request(
            "POST" if body else "GET", f"{guests.base(session)}/{below}", ssl=guests.tls, **body
        ) as response,
    ):
        return await answer_of(response)


async def events(guests: Guests, who: str, session: str, act: str) -> str:
    headers = bearer(guests, who) | {"Accept": "text/event-stream"}
    async with (
        aiohttp.ClientSession(headers=headers) as client,
        client.get(f"{guests.base(session)}/stream", ssl=guests.tls) as response,
    ):
        return await answer_of(response)


async def websocket(guests: Guests, who: str, session: str, act: str) -> str:
    async with aiohttp.ClientSession() as client:
        try:
            async with upgraded(guests, client, who, session) as socket:
                return await attached(socket, "write" if act == TYPE else "view")
        except aiohttp.WSServerHandshakeError as error:
            return {403: "forbidden", 404: "not_found", 401: "unauthenticated"}[error.status]


def upgraded(guests: Guests, client: aiohttp.ClientSession, who: str, session: str) -> Any:
    """As a page does it: it can set no headers."""
    return client.ws_connect(
        f"{guests.base(session)}/stream", ssl=guests.tls, origin=guests.url,
        protocols=("holdfast.v1", f"bearer.{guests[who].token}"),
    )  # fmt: skip


async def attached(socket: aiohttp.ClientWebSocketResponse, mode: str) -> str:
    await socket.send_bytes(encode(Attach({"mode": mode, "columns": 80, "rows": 24})))
    return await refusal(socket, until_attached=True)


async def refusal(socket: aiohttp.ClientWebSocketResponse, *, until_attached: bool = False) -> str:
    """The code of the error with which it ends."""
    decoder = Decoder()
    async for message in socket:
        for frame in decoder.feed(message.data):
            match frame:
                case Attach() if until_attached:
                    return YES
                case Error():
                    return frame.exception().code
    return f"closed with {socket.close_code}"


async def mcp(guests: Guests, who: str, session: str, act: str) -> str:
    tools: dict[str, tuple[str, dict[str, Any]]] = {
        LOOK: ("observe", {}),
        GRAPH: ("observe", {"graph": True}),
        TYPE: ("send_keys", {"keys": "C-u"}),
    }
    tool, given = tools[act]
    async with guests.agent(who) as agent:
        result = await agent.call_tool(tool, {"session": f"{NAMESPACE}/{session}", **given})
        return str((result.structured_content or {}).get("error", {}).get("code", YES))


async def sdk(guests: Guests, who: str, session: str, act: str) -> str:
    try:
        async with guests.sdk(who, session) as found:
            acts: dict[str, Callable[[], Awaitable[object]]] = {
                LOOK: found.screen,
                GRAPH: found.graph,
                JOURNAL: found.journal,
                TYPE: lambda: found.send(CLEAR),
            }
            await acts[act]()
    except holdfast.HoldfastError as error:
        return error.code
    return YES


WAYS: Final[dict[str, tuple[Ask, tuple[str, ...]]]] = {
    "kubectl": (kubectl, ALL),
    "ssh": (ssh, ALL),
    "http": (http, ALL),
    "events": (events, (LOOK,)),
    "websocket": (websocket, (LOOK, TYPE)),
    "mcp": (mcp, (LOOK, GRAPH, TYPE)),
    "sdk": (sdk, ALL),
}


def bearer(guests: Guests, who: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {guests[who].token}"}


@pytest.mark.timeout(180)
@pytest.mark.attacks(9, 11)
async def test_every_way_in_gives_the_same_answers(lab: Lab, guests: Guests) -> None:
    session = guests.reached(lab.session("asked", "bash", "--norc"))
    async with guests.sdk("wanda", session.name) as own:
        await own.wait("prompt", timeout=PATIENCE)
    wrong = []
    for way, (ask, acts) in WAYS.items():
        for who, allowed in MAY.items():
            for act in acts:
                expected = YES if act in allowed else "forbidden"
                if (found := await ask(guests, who, session.name, act)) != expected:
                    wrong.append((way, who, act, found))
        # Who may not look hears of what is not there what he hears of what is.
        if (found := await ask(guests, "sven", "absent", LOOK)) != "forbidden":
            wrong.append((way, "sven", "absent", found))
        if (found := await ask(guests, "wanda", "absent", LOOK)) != "not_found":
            wrong.append((way, "wanda", "absent", found))
    assert wrong == []
    assert {"forbidden", "not_found"} <= set(BY_CODE)


# -- taken away ------------------------------------------------------------------------------------


class Cut:
    """Things that are open, each with when it was cut and by which error."""

    def __init__(self) -> None:
        self.at: dict[str, float] = {}
        self.by: dict[str, str] = {}

    async def note(self, way: str, open_until: Awaitable[str]) -> None:
        self.by[way] = await open_until
        self.at[way] = time.monotonic()


async def screen_cut(screen: Screen) -> str:
    code = await asyncio.to_thread(screen.wait, PATIENCE)
    return {77: "forbidden"}.get(code, f"exit {code}: {screen.seen[-300:]!r}")


async def events_cut(guests: Guests, session: str, ready: asyncio.Barrier) -> str:
    stream = f"{guests.base(session)}/stream"
    async with viewing(stream, guests["wanda"].token, tls=guests.tls, patience=90) as viewer:
        await viewer.until(lambda: "snapshot" in viewer.kinds)
        await ready.wait()
        await viewer.until(lambda: "problem" in viewer.kinds)
        return str(viewer.seen[-1][1]["error"]["code"])


async def websocket_cut(guests: Guests, session: str, ready: asyncio.Barrier) -> str:
    async with (
        aiohttp.ClientSession() as client,
        upgraded(guests, client, "wanda", session) as socket,
    ):
        assert await attached(socket, "write") == YES
        await ready.wait()
        return await refusal(socket)


async def sdk_cut(guests: Guests, session: str, ready: asyncio.Barrier) -> str:
    async with guests.sdk("wanda", session) as found:
        waiting = True
        try:
            async for _ in found.stream():
                if waiting:
                    waiting = False
                    await ready.wait()
        except holdfast.HoldfastError as error:
            return error.code
    return "ended"


async def mcp_cut(guests: Guests, session: str, ready: asyncio.Barrier) -> str:
    async with guests.agent("wanda") as agent:
        named = {"session": f"{NAMESPACE}/{session}"}
        await agent.call_tool("observe", named)
        await ready.wait()
        waits = {**named, "state": "any", "text": "never to be seen", "timeout": 60}
        result = await agent.call_tool("wait_for", waits)
        return str((result.structured_content or {}).get("error", {}).get("code", "answered"))


def page_cut(guests: Guests, session: str, ready: Callable[[], None]) -> str:
    with browser(guests.resolver) as chromium:
        tab = Tab(chromium.new_context(ignore_https_errors=True))
        signed_in(tab, guests, "wanda", session).live()
        ready()
        tab.says("h1", "Not for you to see", PATIENCE)
        return "forbidden" if "may not" in tab.page.locator(".message").inner_text() else "?"


@pytest.mark.faults(40)
@pytest.mark.attacks(10)
@pytest.mark.timeout(180)
async def test_a_right_that_is_taken_away_is_gone_everywhere(lab: Lab, guests: Guests) -> None:
    name = guests.reached(lab.session("cut", "bash", "--norc")).name
    cut, loop = Cut(), asyncio.get_running_loop()
    ready = asyncio.Barrier(6)  # of those below, and us

    def page_ready() -> None:
        asyncio.run_coroutine_threadsafe(ready.wait(), loop).result(PATIENCE)

    with ExitStack() as open_here:
        screens = {
            "kubectl": open_here.enter_context(closing(guests.attach("wanda", name))),
            "ssh": open_here.enter_context(
                closing(guests.ssh.terminal("wanda", f"{name}.{NAMESPACE}"))
            ),
        }
        for screen in screens.values():
            await asyncio.to_thread(screen.expect, PROMPT, PATIENCE)
        ways = {
            "events": events_cut(guests, name, ready),
            "websocket": websocket_cut(guests, name, ready),
            "sdk": sdk_cut(guests, name, ready),
            "mcp": mcp_cut(guests, name, ready),
            "browser": asyncio.to_thread(page_cut, guests, name, page_ready),
        }
        tasks = [asyncio.create_task(cut.note(way, end)) for way, end in ways.items()]
        async with asyncio.timeout(PATIENCE):
            await ready.wait()
        tasks += [asyncio.create_task(cut.note(w, screen_cut(s))) for w, s in screens.items()]
        await asyncio.sleep(1.0)  # and MCP's call waits
        assert cut.by == {}
        await asyncio.to_thread(guests.revoke, "wanda")
        began = time.monotonic()
        try:
            async with asyncio.timeout(PATIENCE):
                await asyncio.gather(*tasks)
        finally:
            guests.grant("wanda")
    assert cut.by == dict.fromkeys([*ways, *screens], "forbidden")
    seconds = {way: round(at - began, 2) for way, at in cut.at.items()}
    lab.report["permission_cut_seconds"] = max(seconds.values())
    assert max(seconds.values()) < CUT_SECONDS, seconds
