"""Attack 43: every way in asks for the same right, by one table."""

from __future__ import annotations

import contextlib
import inspect
import json
import re
from collections.abc import AsyncIterator
from typing import Any, Final

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from holdfast_gateway import cluster_http, ssh_channel
from holdfast_gateway.assets import Assets
from holdfast_gateway.auth import Caller, Modality
from holdfast_gateway.backend import Link
from holdfast_gateway.http import ROUTES, Http
from holdfast_gateway.mcp_server import TOOLS
from holdfast_gateway.routes import Route
from holdfast_gateway.waiting import Session
from holdfast_sidecar import job_requests, requests
from holdfast_wire import frames
from holdfast_wire.errors import HoldfastError, Unavailable, Unsupported
from holdfast_wire.ids import Actor
from holdfast_wire.rights import (
    ATTACH,
    REQUESTS,
    Right,
    path_of,
    right_of_frame,
    right_of_request,
)

ANA: Final = Caller(Actor("ana"), Modality.HTTP)
# What a route needs to get as far as its session.
BODIES: Final[dict[str, dict[str, Any]]] = {
    "sendInput": {"text": "x"},
    "runCommand": {"command": "true"},
    "startJob": {"command": "true"},
    "signalJob": {"signal": "TERM"},
}
GIVEN: Final[dict[str, Any]] = {
    "session": "team/it", "command": "true", "text": "x", "job": "j1", "signal": "TERM",
    "timeout": 0.0, "prompt_timeout": 0.0,
}  # fmt: skip
ABOUT_NONE: Final = {"rescan"}


class Recorder:
    """A backend that notes which right is needed, and does nothing."""

    def __init__(self) -> None:
        self.rights: list[Right] = []
        self.kinds: list[str] = []

    async def _asked(self, kind: str) -> Any:
        self.kinds.append(kind)
        self.rights.append(right_of_request(kind))
        raise Unavailable("nothing is done here")

    async def list(self, caller: Caller) -> list[dict[str, Any]]:
        self.kinds.append("list")
        self.rights.append(Right.OBSERVE)
        return []

    async def describe(self, name: str, caller: Caller) -> dict[str, Any]:
        found: dict[str, Any] = await self._asked("info")
        return found

    async def request(
        self, name: str, body: dict[str, Any], caller: Caller, **_: Any
    ) -> dict[str, Any]:
        found: dict[str, Any] = await self._asked(body["kind"])
        return found

    async def wake(self, name: str, caller: Caller) -> dict[str, Any]:
        found: dict[str, Any] = await self._asked("wake")
        return found

    @contextlib.asynccontextmanager
    async def connect(
        self,
        name: str,
        caller: Caller,
        patience: float = 0.0,
        right: Right = Right.OBSERVE,
    ) -> AsyncIterator[Link]:
        self.rights.append(right)
        await self._asked("stream")
        yield  # type: ignore[misc]


class Anybody:
    def check(self, _: web.Request) -> None: ...

    async def caller(self, _: web.Request) -> Caller:
        return ANA

    async def stream_caller(self, _: web.Request) -> Caller:
        return ANA


def as_the_api_server_asks(method: str, path: str) -> tuple[str, str]:
    """The subresource and the verb that RBAC is asked about: what Kubernetes makes of a path."""
    below = path.partition("/sessions/")[2].split("/")
    verb = {"GET": "get", "POST": "create"}[method]
    return (below[1] if below[1:] else ""), verb


def of_a_session(route: Route) -> bool:
    return not route.path.startswith("/")


@pytest.mark.parametrize(
    "route", [one for one in ROUTES if of_a_session(one)], ids=lambda one: one.name
)
async def test_the_api_server_and_the_gateway_ask_the_same(route: Route) -> None:
    backend = Recorder()
    one = cluster_http.ONE_AGGREGATED
    http = Http(Anybody(), backend, Assets(), lambda: None, one=one, by_right=True)
    path = route.at(one, by_right=True).format(namespace="team", name="it", id="j1")
    async with TestClient(TestServer(http.application())) as client:
        body = BODIES.get(route.name, {}) if route.body is not None else None
        sent = {"Content-Type": "application/json", "Accept": "text/event-stream, */*"}
        data = None if body is None else json.dumps(body)
        answer = await client.request(route.method, path, data=data, headers=sent)
        assert answer.status == 503, await answer.text()
    (right, *_) = backend.rights
    assert as_the_api_server_asks(route.method, path) == (right.value, right.verb)
    assert route.right is right


def test_every_route_has_its_right() -> None:
    assert {route.name for route in ROUTES if route.right is None} == ABOUT_NONE
    assert all(route.method == ("GET" if route.right is Right.OBSERVE else "POST")
               for route in ROUTES if route.right is not None)  # fmt: skip


@pytest.mark.parametrize("tool", TOOLS, ids=lambda one: one.name)
async def test_every_tool_asks_for_what_it_says(tool: Any) -> None:
    variants = [GIVEN]
    for field in tool.takes:
        variants += [{**GIVEN, field.name: value} for value in field.choices]
        variants += [{**GIVEN, field.name: True}] if field.kind.value == "boolean" else []
    names = {field.name for field in tool.takes}
    for variant in variants:
        backend = Recorder()
        given = tool.checked({k: v for k, v in variant.items() if k in names})
        with contextlib.suppress(HoldfastError):
            await tool.act(Session(backend, ANA, "team/it"), given)
        assert backend.kinds
        asked = {kind for kind in backend.kinds if kind != "stream"}
        assert asked <= set(tool.asks), tool.name
    rights = {right_of_request(kind) for kind in tool.asks}
    assert tool.reads_only == (rights == {Right.OBSERVE})


def test_every_ssh_command_is_in_the_table() -> None:
    assert set(ssh_channel.COMMANDS.values()) <= REQUESTS.keys()
    acting = {one for one, kind in ssh_channel.COMMANDS.items() if REQUESTS[kind] != Right.OBSERVE}
    assert acting == {"exec", "wake"}
    assert set(ssh_channel.OBSERVED) == {
        one for one, kind in ssh_channel.COMMANDS.items() if one == kind and one not in acting
    }


def test_every_request_that_a_sidecar_answers_is_in_the_table() -> None:
    source = inspect.getsource(requests.Requests.__init__) + inspect.getsource(job_requests)
    kinds = set(re.findall(r'^ +"(\w+)": self\._\w+,$', source, re.MULTILINE))
    assert len(kinds) > 15
    assert kinds <= REQUESTS.keys()
    assert REQUESTS.keys() - kinds == {"list", "stream", "wake"}


def test_every_frame_of_a_client_has_its_right() -> None:
    assert {mode: right_of_frame(frames.Attach({"mode": mode})) for mode in ATTACH} == ATTACH
    for body in ({}, {"mode": "anything"}):
        assert right_of_frame(frames.Attach(body)) is Right.TYPE
    for kind, right in REQUESTS.items():
        assert right_of_frame(frames.Control({"kind": kind})) is right
    for covered in (frames.Input(1, b"", b""), frames.Resize(0, 80, 24)):
        assert right_of_frame(covered) is None
    for strange in ({}, {"kind": 7}, {"kind": "frobnicate"}):
        with pytest.raises(Unsupported):
            right_of_frame(frames.Control(strange))
    with pytest.raises(Unsupported):
        right_of_frame(frames.Gap(0, 1))


def test_a_path_has_its_right_once() -> None:
    assert path_of(Right.OBSERVE, "stream") == "observe/stream"
    assert path_of(Right.OBSERVE) == "observe"
    assert path_of(Right.WAKE, "wake") == "wake"
