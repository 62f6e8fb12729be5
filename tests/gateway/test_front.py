"""What comes through the API server, and what only says so."""

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
from multidict import CIMultiDict

from cluster_kit import FakeApi, session, sessions_of
from holdfast_gateway import cluster_http, front
from holdfast_gateway.assets import Assets
from holdfast_gateway.auth import Modality
from holdfast_gateway.certificates import Certificate
from holdfast_gateway.cluster_http import ONE, ONE_AGGREGATED, Discovery, FrontDoor, TokenReviewDoor
from holdfast_gateway.http import Http
from holdfast_gateway.login import TrustedProxy
from holdfast_gateway.reviews import Reviews
from holdfast_wire.errors import Forbidden, Unauthenticated
from holdfast_wire.rights import Right
from uplink_kit import Authority, authority


def pem(*bodies: str) -> str:
    return "".join(
        f"-----BEGIN CERTIFICATE-----\n{one}\n-----END CERTIFICATE-----\n" for one in bodies
    )


PUBLISHED = {
    "client-ca-file": pem("CLIENTS"),
    "requestheader-client-ca-file": pem("FRONT"),
    "requestheader-allowed-names": '["front-proxy-client"]',
    "requestheader-username-headers": '["X-Remote-User"]',
    "requestheader-group-headers": '["X-Remote-Group"]',
    "requestheader-extra-headers-prefix": '["X-Remote-Extra-"]',
}
PROXY = TrustedProxy(names=frozenset({"auth-proxy"}))
PEER = {"subject": ((("commonName", "front-proxy-client"),),)}
ROOT = "/apis/subresources.holdfast.dev/v1alpha1"


def test_who_it_asks_for() -> None:
    headers = CIMultiDict(
        [
            ("X-Remote-User", "ada"),
            ("X-Remote-Group", "dev"),
            ("X-Remote-Group", "ops"),
            ("X-Remote-Extra-Scopes.example.com%2Fa", "one"),
        ]
    )
    caller = front.parsed(PUBLISHED).caller(PEER, headers)
    assert (caller.actor.name, caller.modality) == ("ada", Modality.KUBECTL)
    assert caller.groups == ("dev", "ops")
    assert caller.extra == (("scopes.example.com/a", ("one",)),)


@pytest.mark.parametrize(
    "peer",
    [None, {}, {"subject": ()}, {"subject": ((("commonName", "somebody"),),)}],
)
def test_a_forged_header_is_not_even_read(peer: dict[str, Any] | None) -> None:
    """Attack 6: the requestheader CA and an allowed name, both."""
    with pytest.raises(Unauthenticated):
        front.parsed(PUBLISHED).caller(peer, CIMultiDict({"X-Remote-User": "system:masters"}))


def test_the_api_server_must_say_for_whom() -> None:
    with pytest.raises(Forbidden):
        front.parsed(PUBLISHED).caller(PEER, CIMultiDict())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"client-ca-file": pem("FRONT")}, "same CA"),  # attack 7
        ({"client-ca-file": pem("CLIENTS", "FR\nONT", "MORE")}, "same CA"),
        ({"requestheader-client-ca-file": pem("NEXT", "CLIENTS")}, "same CA"),
        ({"requestheader-allowed-names": "[]"}, "any name"),
        ({"requestheader-allowed-names": ""}, "any name"),
        ({"requestheader-client-ca-file": ""}, "no aggregation layer"),
        ({"requestheader-username-headers": "nonsense"}, "no aggregation layer"),
    ],
)
def test_a_cluster_that_cannot_tell_is_refused(change: dict[str, str], said: str) -> None:
    with pytest.raises(front.Misconfigured, match=said):
        front.parsed({**PUBLISHED, **change})


# -- over real TLS --------------------------------------------------------------------------------


def nothing() -> None: ...


class Served:
    def __init__(self, folder: Path, front_ca: Authority, own: Authority) -> None:
        self.folder, self.front_ca, self.own = folder, front_ca, own
        self.ports: dict[str, int] = {}

    async def get(
        self, door: str, path: str, by: Authority | None = None, name: str = "front-proxy-client",
        **headers: str,
    ) -> tuple[int, Any]:  # fmt: skip
        trust = ssl.create_default_context(cadata=self.own.pem)
        trust.verify_flags &= ~ssl.VERIFY_X509_STRICT
        if by is not None:
            trust.load_cert_chain(*by.sign(self.folder / "peer", name))
        sent = {key.replace("_", "-"): value for key, value in headers.items()}
        url = f"https://localhost:{self.ports[door]}{path}"
        async with (
            aiohttp.ClientSession() as http,
            http.get(url, ssl=trust, headers=sent, allow_redirects=False) as answer,
        ):
            return answer.status, json.loads(await answer.text() or "null")


@pytest.fixture(scope="module")
def own() -> Authority:
    return authority("gateway-ca")


@pytest.fixture(scope="module")
def front_ca() -> Authority:
    return authority("front-ca")


@pytest.fixture
def api() -> FakeApi:
    made = FakeApi()
    made.sessions = [session("ns", "it", "Ended")]
    made.allow("ada", Right.OBSERVE)
    made.know("hers", "ada")
    made.know("another's", "ada", "api")
    return made


@pytest.fixture
async def served(
    api: FakeApi, own: Authority, front_ca: Authority, tmp_path: Path
) -> AsyncIterator[Served]:
    own.sign(tmp_path, "gateway", "localhost")
    certificate = Certificate(tmp_path)
    known = front.parsed({**PUBLISHED, "requestheader-client-ca-file": front_ca.pem})
    door = FrontDoor(lambda: known)
    runners = []
    made = Served(tmp_path, front_ca, own)
    async with sessions_of(api) as (backend, _uplinks, _):
        public = TokenReviewDoor(Reviews(api), frozenset({"localhost"}))  # type: ignore[arg-type]
        proxied = TokenReviewDoor(Reviews(api), frozenset(), PROXY)  # type: ignore[arg-type]
        more = Discovery(door).routes()
        outer = (cluster_http.as_status,)
        apps = {
            "front": (
                Http(door, backend, Assets(), nothing, ONE_AGGREGATED, more, outer),
                certificate.context(known.authority),
            ),
            "public": (Http(public, backend, Assets(), nothing, ONE), certificate.context()),
            "proxied": (
                Http(proxied, backend, Assets(), nothing, ONE),
                certificate.context(front_ca.pem, optional=True),
            ),
        }
        for name, (http, tls) in apps.items():
            runner = web.AppRunner(http.application(), access_log=None)
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
            made.ports[name] = runner.addresses[0][1]
            runners.append(runner)
        yield made
        for runner in runners:
            await runner.cleanup()


async def test_the_handshake_itself_refuses_strangers(
    served: Served, front_ca: Authority, own: Authority
) -> None:
    """Attack 6, on the wire: no certificate, one of another authority, another name."""
    for by in (None, own):
        with pytest.raises(aiohttp.ClientError):
            await served.get("front", ROOT, by, X_Remote_User="ada")
    status, body = await served.get("front", ROOT, front_ca, "somebody", X_Remote_User="ada")
    assert (status, body["reason"]) == (401, "Unauthorized")


async def test_what_kubectl_finds(served: Served, front_ca: Authority) -> None:
    status, body = await served.get("front", ROOT, front_ca, X_Remote_User="system:kube-aggregator")
    assert status == 200
    verbs = {one["name"]: one["verbs"] for one in body["resources"]}
    assert verbs["sessions/observe"] == ["get"]
    assert verbs["sessions/type"] == ["create"]
    assert verbs.keys() == {f"sessions/{right}" for right in Right}
    for path in ("/apis", "/apis/subresources.holdfast.dev"):
        assert (await served.get("front", path, front_ca, X_Remote_User="x"))[0] == 200


async def test_the_user_whom_the_api_server_names(served: Served, front_ca: Authority) -> None:
    one = f"{ROOT}/namespaces/ns/sessions/it"
    status, body = await served.get("front", f"{one}/state", front_ca, X_Remote_User="ada")
    assert (status, body["activity"]) == (200, "ended")
    status, body = await served.get("front", f"{one}/state", front_ca, X_Remote_User="bea")
    assert status == 403
    assert (body["kind"], body["reason"], body["code"]) == ("Status", "Forbidden", 403)
    assert body["error"]["code"] == "forbidden"
    assert "holdfast-observer" in body["message"]  # what to do about it
    # The other door does not know these headers (attack 6 again).
    status, body = await served.get(
        "public", "/api/v1/namespaces/ns/sessions/it/state", front_ca, X_Remote_User="ada"
    )
    assert (status, body["error"]["code"]) == (401, "unauthenticated")


async def test_never_a_redirect(served: Served, front_ca: Authority) -> None:
    """Attack 8."""
    for path in (
        ROOT + "/",
        "//evil.example/",
        "/apis/../apis",
        ROOT + "/namespaces/ns/sessions/it/",
    ):
        status, _ = await served.get("front", path, front_ca, X_Remote_User="ada")
        assert not 300 <= status < 400


async def test_tokens_at_the_public_door(served: Served) -> None:
    path = "/api/v1/namespaces/ns/sessions/it/state"
    assert (await served.get("public", path))[0] == 401
    hers, anothers = "Bearer hers", "Bearer another's"
    assert (await served.get("public", path, Authorization=hers))[0] == 200
    # Attack 4: of another audience.
    assert (await served.get("public", path, Authorization=anothers))[0] == 401
    assert (await served.get("public", f"{path}?token=hers"))[0] == 400  # attack 3
    for name in ("Origin", "Host"):  # attack 1
        foreign = "https://evil.example" if name == "Origin" else "evil.example"
        status, _ = await served.get(
            "public", path, None, "", Authorization=hers, **{name: foreign}
        )
        assert status == 403
    stream = path.replace("state", "stream")
    assert (await served.get("public", stream, Upgrade="websocket"))[0] == 401  # attack 2


async def test_an_auth_proxy_is_known_by_its_certificate(
    served: Served, front_ca: Authority, own: Authority
) -> None:
    path = "/api/v1/namespaces/ns/sessions/it/state"
    status, body = await served.get("proxied", path, front_ca, "auth-proxy", X_Forwarded_User="ada")
    assert (status, body["activity"]) == (200, "ended")
    # Who shows none, or one with another name, is nobody; one of another authority ends it.
    for by, name in ((None, ""), (front_ca, "somebody")):
        status, body = await served.get("proxied", path, by, name, X_Forwarded_User="ada")
        assert (status, body["error"]["code"]) == (403, "forbidden")
    with pytest.raises(aiohttp.ClientError):
        await served.get("proxied", path, own, "auth-proxy", X_Forwarded_User="ada")
    assert (await served.get("proxied", path, Authorization="Bearer hers"))[0] == 200
    # Where no proxy is set, the header is nothing.
    status, _ = await served.get("public", path, None, "", X_Forwarded_User="ada")
    assert status == 401


async def test_the_list_is_the_callers(served: Served) -> None:
    status, body = await served.get("public", "/api/v1/sessions", Authorization="Bearer hers")
    assert status == 200
    assert [one["session"] for one in body["sessions"]] == ["it"]


async def test_a_new_certificate_is_taken_without_a_restart(tmp_path: Path, own: Authority) -> None:
    own.sign(tmp_path, "gateway", "localhost")
    made = Certificate(tmp_path)
    tls = made.context()
    other = authority("next")

    async def issuer() -> str:
        """Of whoever connects now."""
        trust = ssl.create_default_context(cadata=other.pem)
        trust.load_verify_locations(cadata=own.pem)
        trust.verify_flags &= ~ssl.VERIFY_X509_STRICT
        server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", ssl=tls)
        port = server.sockets[0].getsockname()[1]
        _, writer = await asyncio.open_connection("localhost", port, ssl=trust)
        peer = writer.get_extra_info("peercert")
        writer.close()
        server.close()
        return str(dict(part[0] for part in peer["issuer"])["commonName"])

    assert await issuer() == "gateway-ca"
    (tmp_path / "tls.crt").write_text("half of one")
    made.look()
    assert await issuer() == "gateway-ca"
    other.sign(tmp_path, "gateway", "localhost")
    made.look()
    assert await issuer() == "next"
