"""Who gets in: the pure checks, and the same attacks against a running gateway."""

from __future__ import annotations

import aiohttp
import pytest

from gateway_kit import Place
from holdfast_gateway import auth
from holdfast_gateway.auth import Modality
from holdfast_wire.errors import BadRequest, Forbidden, HoldfastError, Unauthenticated
from holdfast_wire.ids import Actor

TOKEN = "T" * 43
ANA = Actor("ana")
STREAM = "/api/v1/sessions/build/stream"


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.1:80", "LOCALHOST:7", "[::1]:65535"])
def test_loopback_hosts(host: str) -> None:
    assert auth.check_host(host) == host.lower()


@pytest.mark.parametrize(
    "host",
    [None, "", "evil.example", "127.0.0.1.evil.example", "localhost.", "127.0.0.1:x", "::1",
     "127.0.0.1:80@evil", "127.0.0.2", "localhost:80\r\nX: y", "127.0.0.1;script-src *"],
)  # fmt: skip
def test_other_hosts_are_refused(host: str | None) -> None:
    with pytest.raises(Forbidden):
        auth.check_host(host)


@pytest.mark.parametrize("query", [("token", "x"), ("Access_Token", ""), ("innocent", TOKEN)])
def test_a_token_in_the_query_is_refused(query: tuple[str, str]) -> None:
    with pytest.raises(BadRequest, match="Authorization"):
        auth.check_query([("format", "text"), query], TOKEN)


@pytest.mark.parametrize(
    "origin",
    ["null", "", "https://127.0.0.1:80", "http://127.0.0.1", "http://127.0.0.1:81",
     "http://evil.example", "http://127.0.0.1:80.evil.example", "http://localhost:80"],
)  # fmt: skip
def test_a_foreign_origin_is_refused(origin: str) -> None:
    with pytest.raises(Forbidden):
        auth.check_origin(origin, "127.0.0.1:80")


def test_the_own_origin_or_none_passes() -> None:
    auth.check_origin("http://127.0.0.1:80", "127.0.0.1:80")
    auth.check_origin(None, "127.0.0.1:80")


@pytest.mark.parametrize(
    "value",
    [None, "", TOKEN, "Bearer", "Bearer ", f"Basic {TOKEN}", f"Bearer {TOKEN}x", "Bearer é",
     f"Bearer {TOKEN[:-1]}"],
)  # fmt: skip
def test_a_wrong_header_is_nobody(value: str | None) -> None:
    headers = {} if value is None else {"Authorization": value}
    with pytest.raises(Unauthenticated):
        auth.authenticate(headers, ANA, TOKEN)
    with pytest.raises(Unauthenticated):
        auth.authenticate_stream(headers, ANA, TOKEN)


def test_a_program_needs_no_origin_and_is_no_browser() -> None:
    headers = {"Authorization": f"bearer {TOKEN}"}
    assert auth.authenticate(headers, ANA, TOKEN).modality is Modality.HTTP
    assert auth.authenticate_stream(headers, ANA, TOKEN).modality is Modality.HTTP


def test_a_page_offers_the_token_as_a_subprotocol() -> None:
    headers = {
        "Sec-WebSocket-Protocol": f"holdfast.v1, bearer.{TOKEN}",
        "Origin": "http://127.0.0.1:80",
    }
    caller = auth.authenticate_stream(headers, ANA, TOKEN)
    assert caller.to_json() == {"actor": "ana", "uid": "", "modality": "browser"}


@pytest.mark.parametrize(
    ("offered", "error"),
    [
        (f"holdfast.v1, bearer.{TOKEN}", Forbidden),  # right, but no Origin
        ("holdfast.v1, bearer.wrong", Unauthenticated),
        ("holdfast.v1", Unauthenticated),
        (f"bearer.{TOKEN}", Unauthenticated),
        (f"holdfast.v1, bearer.{TOKEN}, bearer.{TOKEN}", Unauthenticated),
        ("", Unauthenticated),
    ],
)
def test_a_page_without_origin_or_token(offered: str, error: type[HoldfastError]) -> None:
    with pytest.raises(error):
        auth.authenticate_stream({"Sec-WebSocket-Protocol": offered}, ANA, TOKEN)


# The same, from outside


async def _upgrade(place: Place, headers: dict[str, str], protocols: tuple[str, ...] = ()) -> int:
    """The status an upgrade is answered with; 101 if it was made."""
    async with aiohttp.ClientSession(trust_env=False) as session:
        try:
            async with session.ws_connect(
                place.url.rstrip("/") + STREAM, headers=headers, protocols=protocols
            ):
                return 101
        except aiohttp.WSServerHandshakeError as error:
            return error.status


async def test_upgrade_without_credentials_is_401(served: Place) -> None:
    assert await _upgrade(served, {}) == 401
    own = served.url.rstrip("/")
    assert await _upgrade(served, {"Origin": own}, ("holdfast.v1", "bearer." + "x" * 43)) == 401


async def test_cross_site_websocket_is_403_even_with_the_token(served: Place) -> None:
    protocols = ("holdfast.v1", f"bearer.{served.token}")
    for origin in ("http://evil.example", "null", f"https://127.0.0.1:{served.port}"):
        assert await _upgrade(served, {"Origin": origin}, protocols) == 403
    assert await _upgrade(served, {}, protocols) == 403
    bearer = {"Authorization": f"Bearer {served.token}", "Origin": "http://evil.example"}
    assert await _upgrade(served, bearer) == 403


async def test_the_page_and_a_program_get_in(served: Place) -> None:
    own = served.url.rstrip("/")
    protocols = ("holdfast.v1", f"bearer.{served.token}")
    assert await _upgrade(served, {"Origin": own}, protocols) == 101
    assert await _upgrade(served, {"Authorization": f"Bearer {served.token}"}) == 101


def test_every_route_but_health_and_the_page_wants_the_token(served: Place) -> None:
    for path in ("", "/build", "/build/screen", "/build/state", "/build/graph", "/build/journal",
                 "/absent", "/absent/state", "/UPPER", "/build/stream"):  # fmt: skip
        answer = served.get(f"/api/v1/sessions{path}", token=None)
        assert (answer.status, answer.code) == (401, "unauthenticated"), path
        assert answer.headers["WWW-Authenticate"].startswith("Bearer")
    for path in ("/sessions/build/input", "/sessions/build/exec", "/sessions/build/end", "/rescan"):
        assert served.post(f"/api/v1{path}", {}, token="x" * 43).status == 401
    assert served.get("/healthz", token=None).status == 200
    assert served.get("/", token=None).status == 200


def test_a_stranger_cannot_tell_absent_names_from_present_ones(served: Place) -> None:
    present = served.get("/api/v1/sessions/build", token="wrong")
    absent = served.get("/api/v1/sessions/absent", token="wrong")
    assert (present.status, present.body) == (absent.status, absent.body)


def test_a_token_in_a_url_is_refused_and_never_logged(served: Place) -> None:
    for path in ("/", "/healthz", "/api/v1/sessions", STREAM):
        answer = served.get(f"{path}?token={served.token}")
        assert (answer.status, answer.code) == (400, "bad_request")
        assert "Authorization" in answer.json["error"]["advice"]
    assert served.token not in served.log()


def test_a_rebound_name_gets_nothing(served: Place) -> None:
    for path in ("/", "/healthz", "/api/v1/sessions"):
        assert served.get(path, Host=f"evil.example:{served.port}").status == 403


def test_a_foreign_page_may_not_post(served: Place) -> None:
    body = {"text": "echo owned\n"}
    path = "/api/v1/sessions/build/input"
    assert served.post(path, body, Origin="http://evil.example").status == 403
    assert served.post(path, body, Origin=served.url.rstrip("/")).status == 200
