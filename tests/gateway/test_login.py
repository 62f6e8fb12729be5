"""How people come in: whom a header is believed of, and which ID tokens are meant for us."""

from __future__ import annotations

import base64
import json
from typing import Any
from unittest.mock import Mock

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request
from multidict import CIMultiDict

from gateway_kit import Place
from holdfast_gateway.assets import security_headers
from holdfast_gateway.auth import Caller, Modality
from holdfast_gateway.cluster_http import TokenReviewDoor
from holdfast_gateway.cluster_settings import Settings
from holdfast_gateway.login import Link, Login, Oidc, Peer, Token, TrustedProxy, networks
from holdfast_gateway.reviews import Reviews
from holdfast_wire.errors import BadRequest, Forbidden, Unauthenticated
from holdfast_wire.ids import Actor

INSIDE, OUTSIDE = Peer("10.1.2.3"), Peer("192.0.2.7")
BY_ADDRESS = TrustedProxy(networks=networks("10.0.0.0/8, fd00::/8"))
BY_NAME = TrustedProxy(networks=networks("10.0.0.0/8"), names=frozenset({"auth-proxy"}))
ANA = {"X-Forwarded-User": "ana@example.com", "X-Forwarded-Groups": "dev, ops"}


def certificate(name: str, *, dns: bool = False) -> dict[str, Any]:
    if dns:
        return {"subject": (), "subjectAltName": (("DNS", name),)}
    return {"subject": ((("organizationName", "x"),), (("commonName", name),))}


def asked(proxy: TrustedProxy, peer: Peer, *headers: tuple[str, str]) -> Caller | None:
    return proxy.caller(peer, CIMultiDict(headers), Modality.BROWSER)


def test_a_trusted_proxys_word_is_taken() -> None:
    ana = Actor("ana@example.com")
    groups = ("dev", "ops", "system:authenticated")
    assert asked(BY_ADDRESS, INSIDE, *ANA.items()) == Caller(ana, Modality.BROWSER, groups=groups)


@pytest.mark.parametrize("address", ["fd00::1", "::ffff:10.0.0.1", "10.255.255.255"])
def test_addresses_of_the_proxy(address: str) -> None:
    assert asked(BY_ADDRESS, Peer(address), *ANA.items()) is not None


@pytest.mark.parametrize(
    "peer",
    [OUTSIDE, Peer("11.0.0.1"), Peer(""), Peer("10.1.2.3.evil"), Peer("::ffff:192.0.2.7"),
     Peer("192.0.2.7", certificate("auth-proxy"))],
)  # fmt: skip
def test_a_forged_header_from_elsewhere_is_refused(peer: Peer) -> None:
    with pytest.raises(Forbidden, match="trusted proxy"):
        asked(BY_ADDRESS, peer, *ANA.items())
    with pytest.raises(Forbidden):
        asked(BY_ADDRESS, peer, ("x-forwarded-groups", "ops"))


def test_where_the_proxy_has_a_certificate_its_address_is_nothing() -> None:
    for shown in (certificate("auth-proxy"), certificate("auth-proxy", dns=True)):
        assert asked(BY_NAME, Peer("192.0.2.7", shown), *ANA.items()) is not None
    for peer in (INSIDE, Peer("10.1.2.3", certificate("somebody")), Peer("10.1.2.3", {})):
        with pytest.raises(Forbidden):
            asked(BY_NAME, peer, *ANA.items())


def test_without_the_header_nothing_was_said() -> None:
    assert asked(BY_ADDRESS, INSIDE) is None
    assert asked(BY_ADDRESS, OUTSIDE, ("X-Forwarded-For", "10.1.2.3")) is None


def test_a_header_said_twice_is_believed_of_nobody() -> None:
    with pytest.raises(Unauthenticated, match="2 times"):
        asked(BY_ADDRESS, INSIDE, ("X-Forwarded-User", "mallory"), ("X-Forwarded-User", "ana"))
    with pytest.raises(Unauthenticated):
        asked(BY_ADDRESS, INSIDE, ("X-Forwarded-Groups", "ops"))


@pytest.mark.parametrize(
    "named",
    [("", "dev"), (" ", "dev"), ("system:admin", "dev"), ("ana", "dev,system:masters"),
     ("ana", "SYSTEM:masters"), ("a\x1b[31mna", "dev"), ("a" * 300, "dev")],
)  # fmt: skip
def test_names_that_no_proxy_gives(named: tuple[str, str]) -> None:
    user, groups = named
    with pytest.raises(Forbidden):
        asked(BY_ADDRESS, INSIDE, ("X-Forwarded-User", user), ("X-Forwarded-Groups", groups))


def test_a_prefix_makes_names_the_proxys_own() -> None:
    proxy = TrustedProxy(networks=networks("10.0.0.0/8"), prefix="sso:")
    caller = asked(proxy, INSIDE, ("X-Forwarded-User", "system:admin"))
    assert caller is not None
    assert caller.actor.name == "sso:system:admin"


def test_a_proxy_that_anybody_could_be_is_no_setting() -> None:
    with pytest.raises(BadRequest):
        TrustedProxy()
    with pytest.raises(BadRequest):
        TrustedProxy(networks=networks("0.0.0.0/0"))
    with pytest.raises(BadRequest):
        networks("10.0.0.1/8")


def jwt(**claims: Any) -> str:
    body = base64.urlsafe_b64encode(json.dumps(claims).encode()).rstrip(b"=").decode()
    return f"e30.{body}.c2ln"


OIDC = Oidc("https://login.example/realm", "holdfast-page")


@pytest.mark.parametrize("aud", ["holdfast-page", ["other", "holdfast-page"]])
def test_an_id_token_for_this_page(aud: Any) -> None:
    assert OIDC.meant(jwt(iss=OIDC.issuer, aud=aud))


@pytest.mark.parametrize(
    "token",
    ["", "opaque", "a.b.c", "e30.e30.e30", "x.W10.y", jwt(iss=OIDC.issuer),
     jwt(iss=OIDC.issuer, aud="other"), jwt(iss="https://evil.example", aud="holdfast-page"),
     jwt(iss=OIDC.issuer, aud=["https://kubernetes.default.svc"])],
)  # fmt: skip
def test_other_tokens_are_not_for_this_page(token: str) -> None:
    assert not OIDC.meant(token)


@pytest.mark.parametrize(
    "issuer",
    ["", "login.example", "http://login.example", "https://", "https://a@login.example",
     "https://login.example/?x", "https://login.example;script-src *", "https://a b",
     "javascript:x", "http://127.0.0.1.evil.example:80"],
)  # fmt: skip
def test_what_is_no_issuer(issuer: str) -> None:
    with pytest.raises(BadRequest):
        Oidc(issuer, "page")


# In a cluster's gateway


class Reviewed:
    """An API server that knows one token, for one audience."""

    def __init__(self, token: str, audiences: list[str]) -> None:
        self._token, self._audiences = token, audiences
        self.asked: list[dict[str, Any]] = []

    async def create(self, _what: Any, _namespace: str, body: dict[str, Any]) -> dict[str, Any]:
        spec = body["spec"]
        self.asked.append(spec)
        wanted = spec.get("audiences", self._audiences)
        found = [one for one in wanted if one in self._audiences]
        known = spec["token"] == self._token and found
        user = {"user": {"username": "ana"}, "audiences": found}
        return {"status": {"authenticated": True, **user} if known else {"authenticated": False}}


SERVER = "https://kubernetes.default.svc"


async def test_an_id_token_for_the_page_is_asked_about_without_our_audience() -> None:
    """The API server takes an ID token to be for itself: it does not know of any audience in it."""
    token = jwt(iss=OIDC.issuer, aud="holdfast-page")
    api: Any = Reviewed(token, [SERVER])
    caller = await Reviews(api, OIDC).caller(token, Modality.BROWSER)
    assert caller.actor.name == "ana"
    assert "audiences" not in api.asked[0]
    with pytest.raises(Unauthenticated):
        await Reviews(api).caller(token, Modality.BROWSER)
    with pytest.raises(Unauthenticated):  # nobody else's door opens to it
        await Reviews(api, OIDC).user(token, "holdfast-gateway")


@pytest.mark.parametrize("claims", [{"iss": SERVER, "aud": [SERVER]}, {"iss": OIDC.issuer}])
async def test_a_token_for_another_audience_is_refused_with_an_issuer_too(claims: Any) -> None:
    token = jwt(**claims)
    api: Any = Reviewed(token, [SERVER])
    with pytest.raises(Unauthenticated):
        await Reviews(api, OIDC).caller(token, Modality.BROWSER)
    assert api.asked[0]["audiences"] == ["holdfast"]


def from_(address: str, headers: dict[str, str], peercert: Any = None) -> web.Request:
    told = {"peername": (address, 4711), "peercert": peercert}
    transport = Mock()
    transport.get_extra_info.side_effect = lambda name, default=None: told.get(name, default)
    return make_mocked_request("GET", "/api/v1/sessions", headers=headers, transport=transport)


async def test_the_door_believes_the_connection_and_no_header_of_where_it_is_from() -> None:
    api: Any = Reviewed("", [])
    door = TokenReviewDoor(Reviews(api), frozenset(), BY_ADDRESS)
    assert (await door.caller(from_("10.1.2.3", ANA))).actor.name == "ana@example.com"
    forged = {**ANA, "X-Forwarded-For": "10.1.2.3", "Forwarded": "for=10.1.2.3"}
    with pytest.raises(Forbidden):
        await door.caller(from_("192.0.2.7", forged))
    with pytest.raises(Unauthenticated):
        await door.caller(from_("10.1.2.3", {}))
    with pytest.raises(Forbidden, match="Origin"):
        await door.stream_caller(from_("10.1.2.3", ANA))
    none = TokenReviewDoor(Reviews(api), frozenset())
    with pytest.raises(Unauthenticated):
        await none.caller(from_("10.1.2.3", ANA))


def test_settings() -> None:
    assert Settings.from_env({}).login == Login((Token(),))
    told = Settings.from_env(
        {
            "HOLDFAST_OIDC_ISSUER": OIDC.issuer,
            "HOLDFAST_OIDC_CLIENT_ID": OIDC.client_id,
            "HOLDFAST_PROXY_NETWORKS": "10.0.0.0/8,fd00::/8",
        }
    )
    assert told.login == Login((OIDC, Token(), BY_ADDRESS))
    with pytest.raises(BadRequest, match="CA"):
        Settings.from_env({"HOLDFAST_PROXY_NAMES": "auth-proxy"})
    with pytest.raises(BadRequest):
        Settings.from_env({"HOLDFAST_OIDC_ISSUER": OIDC.issuer})


def test_the_page_may_connect_to_exactly_the_issuer() -> None:
    login = Login((Token(), OIDC, BY_ADDRESS))
    assert [way["kind"] for way in login.to_json()["ways"]] == ["token", "oidc", "proxy"]
    policy = security_headers("gateway.example", login.origins)["Content-Security-Policy"]
    connect = next(part for part in policy.split("; ") if part.startswith("connect-src"))
    assert connect == (
        "connect-src 'self' ws://gateway.example wss://gateway.example https://login.example"
    )
    assert "login.example" not in policy.replace(connect, "")


def test_the_ways_are_told_to_anybody(served: Place) -> None:
    answer = served.get("/api/v1/login", token=None)
    assert answer.status == 200
    assert answer.json == {"ways": [Link().to_json()]}
