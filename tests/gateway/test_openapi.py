"""The document and the routes are one, and what is served is as it says: tried with what it allows
and with what it does not (schemathesis)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode

import gateway_kit
from gateway_kit import Place, until
from holdfast_gateway import api_page, cluster_http
from holdfast_gateway.assets import Assets
from holdfast_gateway.door import TokenDoor
from holdfast_gateway.fields import Given
from holdfast_gateway.http import ROUTES, Http
from holdfast_gateway.openapi import PATH, document
from holdfast_gateway.routes import API, ONE, Route
from holdfast_gateway.sessions import Sessions
from holdfast_wire.ids import Actor

SESSION = f"{API}/sessions/build"


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    """`still` runs no shell: whatever is typed there or asked to be run does nothing, not even
    what would be the interrupt key elsewhere."""
    with gateway_kit.place() as here:
        here.session("still", "sh", "-c", "stty raw -echo; exec cat > /dev/null")
        here.session("build")
        here.start()
        here.sidecar("still")
        here.sidecar("build")
        yield here


@pytest.fixture(scope="module")
def schema(place: Place) -> Any:
    told = place.get(PATH, token=None)
    assert told.headers["Content-Type"].startswith("application/json")
    loaded = schemathesis.openapi.from_dict(told.json)
    loaded.config.update(base_url=place.url)
    loaded.validate()
    return loaded


@pytest.fixture(scope="module")
def session(place: Place) -> Iterator[requests.Session]:
    with requests.Session() as made:
        made.trust_env = False
        made.headers["Authorization"] = f"Bearer {place.token}"
        yield made


@pytest.mark.parametrize("one", [ONE, cluster_http.ONE, cluster_http.ONE_AGGREGATED])
def test_what_is_served_is_described(one: str, place: Place) -> None:
    door = TokenDoor(Actor("ana"), "x" * 43)
    http = Http(door, Sessions(place.state, lambda: None), Assets(), lambda: None, one=one)
    served = {
        (route.method.lower(), route.resource.canonical)
        for route in http.application().router.routes()
        if route.resource is not None and route.resource.canonical.startswith("/api")
    }
    told = {
        (method, path)
        for path, methods in document(ROUTES, one)["paths"].items()
        for method in methods
    }
    beside = {path for _, path in served - told}
    assert beside == {PATH, api_page.PATH, f"{API}/login"}
    assert told <= served


def test_the_page_tells_of_all_of_it(place: Place) -> None:
    page = place.get(api_page.PATH, token=None)
    assert page.headers["Content-Type"] == "text/html; charset=utf-8"
    text = page.body.decode()
    assert all(f"{route.method} {route.at(ONE)}</code>" in text for route in ROUTES)
    named = re.findall(r"href='#(\w+)'", text)
    assert set(named) <= set(re.findall(r"id='(\w+)'", text))


def _operations() -> list[tuple[Route, GenerationMode]]:
    """The stream never ends, so it is not asked for here; some have nothing to get wrong."""
    return [
        (route, mode)
        for route in ROUTES
        for mode in GenerationMode
        if not route.upgrades and (mode.is_positive or route.query or route.body)
    ]


@pytest.mark.parametrize(
    ("route", "mode"), _operations(), ids=lambda one: getattr(one, "name", str(one))
)
def test_it_holds_for_what_is_allowed_and_for_what_is_not(
    route: Route, mode: GenerationMode, schema: Any, session: requests.Session
) -> None:
    path = route.at(ONE)
    operation = schema[path][route.method]
    # Nothing that was made up is run, and the session is not ended.
    fixed: Given = {"name": "absent" if route.name in ("endSession", "startJob") else "still"}
    named = {"path_parameters": fixed} if "{name}" in path else {}

    @settings(
        max_examples=5,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(mode, **named))
    def ask(case: Any) -> None:
        case.call_and_validate(session=session, timeout=10)

    ask()


@pytest.mark.parametrize(
    ("method", "below", "query", "body"),
    [
        ("GET", "", {}, None),
        ("GET", "/screen", {"format": "json", "scrollback": "true"}, None),
        ("GET", "/state", {}, None),
        ("GET", "/graph", {}, None),
        ("GET", "/journal", {"limit": "5"}, None),
        ("POST", "/exec", {}, {"command": "echo hello; (exit 3)", "key": "one"}),
        ("POST", "/input", {}, {"text": "echo typed\r", "key": "two"}),
    ],
)
def test_a_live_shell_answers_as_described(
    method: str, below: str, query: Given, body: Any, schema: Any, session: requests.Session
) -> None:
    sent = {} if body is None else {"body": body, "media_type": "application/json"}
    case = schema[ONE + below][method].Case(path_parameters={"name": "build"}, query=query, **sent)
    response = case.call_and_validate(session=session, timeout=20)
    assert response.status_code == 200
    if below == "/exec":
        assert (response.json()["exit_code"], response.json()["output"]) == (3, "hello")


def test_one_call_says_what_listens_since_when_and_who_waits(place: Place) -> None:
    code = "import socket,time; s=socket.create_server(('127.0.0.1',0)); time.sleep(600)"
    place.post(f"{SESSION}/input", {"text": f'python3 -c "{code}" & sleep 0.1; read answer\r'})
    seen = until(lambda: _listening(place), "the server to listen and the shell to wait")
    (port,) = seen["ports"]
    info = place.get(SESSION).json
    assert (port["name"], port["protocol"], port["address"]) == ("python3", "tcp", "127.0.0.1")
    assert port["port"] > 1023
    assert info["created"] - 1 <= port["since"] <= info["created"] + 120
    assert seen["state"]["activity"] == "reading"
    assert seen["state"]["process"]["name"] == "bash"
    place.post(f"{SESSION}/input", {"text": "\rkill %1\r"})


def _listening(place: Place) -> dict[str, Any] | None:
    seen: dict[str, Any] = place.get(f"{SESSION}/graph").json
    return seen if seen["ports"] and seen["state"]["activity"] == "reading" else None
