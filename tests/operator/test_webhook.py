"""The webhook as the API server calls it: over TLS, with whole AdmissionReviews."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import socket
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from api_kit import Authority
from holdfast_kube.client import LEASES, NODES, PODS, SESSIONS, Resource
from holdfast_kube.credentials import Credentials
from holdfast_operator import app as app_module
from holdfast_operator import metrics, names, webhook
from holdfast_operator.app import App
from holdfast_operator.settings import Settings
from holdfast_operator.webhook import Keys, Webhook
from holdfast_wire.errors import BadRequest, Forbidden, HoldfastError, Unavailable
from operator_api import merge
from operator_kit import KEY, World, session_object

SECRET = "nobody-else-knows"
FOREIGN = {"kind": "Pod", "metadata": {"name": "web-7"}, "spec": {"nodeName": "node-1"}}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("webhook") / "keys"
    Authority(folder)
    (folder / "path").write_text(SECRET + "\n")
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made, tmp_path / "keys")


def review(pod: str, **changes: Any) -> dict[str, Any]:
    """As the API server of 1.34 sends it."""
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction",
                "metadata": {"name": pod, "namespace": KEY.namespace}}  # fmt: skip
    request = {
        "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
        "kind": {"group": "policy", "version": "v1", "kind": "Eviction"},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "subResource": "eviction",
        "name": pod,
        "namespace": KEY.namespace,
        "operation": "CREATE",
        "userInfo": {"username": "admin"},
        "object": eviction,
        "oldObject": None,
        "dryRun": False,
        **changes,
    }
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}


@dataclass
class Asking:
    world: World
    url: str
    http: aiohttp.ClientSession
    keys: Keys

    async def post(self, body: Any, path: str = f"/evictions/{SECRET}") -> tuple[int, str]:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with self.http.post(self.url + path, data=data) as answer:
            return answer.status, await answer.text()

    async def ask(self, pod: str, **changes: Any) -> dict[str, Any]:
        status, text = await self.post(review(pod, **changes))
        assert status == 200, text
        found = json.loads(text)
        assert (found["apiVersion"], found["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
        response: dict[str, Any] = found["response"]
        assert response.pop("uid") == "705ab4f5-6393-11e8-b7cc-42010a800002"
        return response

    @property
    def mark(self) -> str | None:
        found: str | None = self.world.session["metadata"].get("annotations", {}).get(names.EVICTED)
        return found


def show_node(world: World, agent: bool = True, cordoned: bool = False) -> None:
    """node-1, as the API has it."""
    labels = {names.AGENT: "ready"} if agent else {}
    spec = {"unschedulable": True} if cordoned else {}
    meta = {"name": "node-1", "uid": "n1", "labels": labels}
    world.api.items["nodes", "", "node-1"] = {"metadata": meta, "spec": spec}


@contextlib.asynccontextmanager
async def serving(
    world: World,
    folder: Path,
    client: Path | None = None,
    *,
    authority: str = "",
    client_names: tuple[str, ...] = (),
) -> AsyncIterator[Asking]:
    """`client`: a folder with the certificate that is shown."""
    keys = Keys(str(folder), authority)
    application = Webhook(world.api, keys, client_names, lambda: world.now).application()
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=keys.tls)
    await site.start()
    port = runner.addresses[0][1]
    trust = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    if client is not None:
        trust.load_cert_chain(client / "tls.crt", client / "tls.key")
    connector = aiohttp.TCPConnector(ssl=trust, force_close=True)
    try:
        async with aiohttp.ClientSession(connector=connector) as http:
            yield Asking(world, f"https://127.0.0.1:{port}", http, keys)
    finally:
        await runner.cleanup()


@pytest.fixture
async def asking(folder: Path) -> AsyncIterator[Asking]:
    """About a session that runs as build-1 on node-1, which is not cordoned."""
    world = World()
    show_node(world)
    world.api.put(session_object())
    await world.run(10)
    async with serving(world, folder) as found:
        yield found


async def test_the_pod_of_a_session_is_held_up_and_the_session_leaves(asking: Asking) -> None:
    world = asking.world
    answer = await asking.ask("build-1")
    assert answer["allowed"] is False
    assert answer["status"].keys() == {"code", "reason", "message"}, "no Retry-After"
    assert (answer["status"]["code"], answer["status"]["reason"]) == (429, "TooManyRequests")
    assert "session build is being moved to another node" in answer["status"]["message"]
    assert asking.mark == "1"

    first = world.current
    await world.run(10)
    assert [pod["metadata"]["name"] for pod in world.api.pods()] == ["build-1", "build-2"]
    assert (await asking.ask("build-1"))["allowed"] is False
    assert (await asking.ask("build-2"))["allowed"] is False, "it is about to arrive there"
    first.offer()
    world.pass_time(1)
    assert (await asking.ask("build-1")) == {"allowed": True}, "it has moved away"
    await world.run(10)
    assert [pod["metadata"]["name"] for pod in world.api.pods()] == ["build-2"]
    assert not world.overlap
    assert asking.mark == "1"
    await world.run(60)
    assert world.status["epoch"] == 2, "an old mark moves nothing"

    world.api.items["nodes", "", "node-2"] = world.api.items["nodes", "", "node-1"]
    assert (await asking.ask("build-2"))["allowed"] is False
    assert asking.mark == "2"


async def test_it_is_marked_once(asking: Asking) -> None:
    before = len(asking.world.api.writes)
    for _ in range(3):
        assert (await asking.ask("build-1"))["allowed"] is False
    assert asking.world.api.writes[before:] == ["patch sessions"]


@pytest.mark.parametrize(
    "dry",
    [
        {"dryRun": True},
        {"object": {"kind": "Eviction", "deleteOptions": {"dryRun": ["All"]}}},  # kubectl drain's
    ],
)
async def test_a_dry_run_is_answered_alike_and_leaves_no_mark(
    asking: Asking, dry: dict[str, Any]
) -> None:
    before = len(asking.world.api.writes)
    tried = await asking.ask("build-1", **dry)
    assert asking.mark is None
    assert asking.world.api.writes[before:] == []
    assert tried == await asking.ask("build-1")
    assert asking.mark == "1"


async def test_other_pods_are_let_go(asking: Asking) -> None:
    world = asking.world
    world.api.put(FOREIGN)
    impostor = {**FOREIGN, "metadata": {"name": "build-7", "labels": {
        names.SESSION_LABEL: KEY.name, names.EPOCH: "1"}}}  # fmt: skip
    world.api.put(impostor)
    orphan = {**FOREIGN, "metadata": {"name": "late-1", "labels": {names.SESSION_LABEL: "late"}}}
    world.api.put(orphan)
    before = len(world.api.writes)
    for name in ("web-7", "build-7", "late-1", "not-there"):
        assert await asking.ask(name) == {"allowed": True}, name
    assert await asking.ask("build-1", namespace="another") == {"allowed": True}
    assert world.api.writes[before:] == []


@pytest.mark.parametrize(
    "changes",
    [
        {"subResource": "status"},
        {"operation": "DELETE"},
        {"resource": {"resource": "nodes"}},
        {"resource": None},
        {"name": None},
        {"namespace": 7},
    ],
)
async def test_what_is_no_eviction_of_a_pod_is_let_go(
    asking: Asking, changes: dict[str, Any]
) -> None:
    assert await asking.ask("build-1", **changes) == {"allowed": True}
    assert asking.mark is None


async def test_without_an_agent_it_is_the_budgets_affair(asking: Asking) -> None:
    show_node(asking.world, agent=False)
    assert await asking.ask("build-1") == {"allowed": True}
    del asking.world.api.items["nodes", "", "node-1"]
    assert await asking.ask("build-1") == {"allowed": True}
    assert asking.mark is None


async def test_a_pod_without_a_node_is_let_go(asking: Asking) -> None:
    del asking.world.api.pods()[0]["spec"]["nodeName"]
    assert await asking.ask("build-1") == {"allowed": True}


async def test_a_drain_can_be_called_off_by_uncordoning(asking: Asking) -> None:
    """So it is not marked; whether the node is cordoned is asked anew each time."""
    show_node(asking.world, cordoned=True)
    answer = await asking.ask("build-1")
    assert answer["status"]["code"] == 429
    assert asking.mark is None
    show_node(asking.world)
    assert await asking.ask("build-1") == answer
    assert asking.mark == "1"


async def test_an_ended_session_is_let_go(asking: Asking) -> None:
    asking.world.session["spec"]["ended"] = True
    assert await asking.ask("build-1") == {"allowed": True}


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"null", b"\xff", b"[" * 100_000, {}, {"request": []}, {"request": {}},
     {"request": {"uid": 1}}],
    ids=str,
)  # fmt: skip
async def test_what_is_no_review_is_refused(asking: Asking, body: Any) -> None:
    status, text = await asking.post(body)
    assert status == 400
    assert "send one of admission.k8s.io/v1" in text
    assert (await asking.ask("build-1"))["allowed"] is False, "and the next is answered"


async def test_nobody_asks_who_does_not_know_the_path(asking: Asking) -> None:
    for path in ("/", "/evictions", "/evictions/", "/evictions/x", f"/evictions/{SECRET}/x", "/é"):
        assert (await asking.post(review("build-1"), path))[0] == 404
    assert asking.mark is None


async def test_it_is_served_over_tls_alone(asking: Asking) -> None:
    async with aiohttp.ClientSession() as plain:
        with pytest.raises(aiohttp.ClientError):
            await plain.post(asking.url.replace("https", "http"), data=b"{}")
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await plain.post(asking.url, data=b"{}")


@pytest.mark.parametrize("kind", [PODS, SESSIONS, LEASES, NODES], ids=lambda kind: kind.plural)
@pytest.mark.parametrize("error", [Unavailable("no answer"), Forbidden("not yours")])
async def test_without_the_api_there_is_no_answer(
    asking: Asking, monkeypatch: pytest.MonkeyPatch, kind: Resource, error: HoldfastError
) -> None:
    """Which the API server ignores, as the chart tells it to."""
    get = asking.world.api.get

    async def failing(wanted: Resource, *where: str) -> Any:
        if wanted == kind:
            raise error
        return await get(wanted, *where)

    monkeypatch.setattr(asking.world.api, "get", failing)
    assert (await asking.post(review("build-1")))[0] == 500


async def test_a_slow_api_is_not_waited_for(
    asking: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(*_: Any) -> None:
        await asyncio.sleep(60)

    monkeypatch.setattr(asking.world.api, "get", never)
    monkeypatch.setattr(webhook, "ANSWER_SECONDS", 0.05)
    assert (await asking.post(review("build-1")))[0] == 500


async def test_it_is_held_up_though_the_mark_could_not_be_made(
    asking: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(*_: Any) -> Any:
        raise Unavailable("no answer")

    with monkeypatch.context() as broken:
        broken.setattr(asking.world.api, "patch", refused)
        assert (await asking.ask("build-1"))["allowed"] is False
        assert asking.mark is None
    assert (await asking.ask("build-1"))["allowed"] is False
    assert asking.mark == "1"


async def test_answers_are_counted(asking: Asking) -> None:
    def counted() -> list[float]:
        return [
            metrics.REGISTRY.get_sample_value("holdfast_evictions_total", {"answer": answer}) or 0.0
            for answer in ("allowed", "held")
        ]

    before = counted()
    await asking.ask("build-1")
    await asking.ask("web-7")
    assert counted() == [before[0] + 1, before[1] + 1]


async def test_new_keys_are_used_as_they_come(
    asking: Asking, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhook, "KEYS_EVERY_SECONDS", 0.01)
    following = asyncio.create_task(asking.keys.follow())
    other = tmp_path / "other"
    Authority(other)
    (folder / "path").write_text("another")
    (folder / "tls.crt").write_text("half a file")
    await asyncio.sleep(0.05)
    shutil.copy(other / "tls.key", folder)
    shutil.copy(other / "tls.crt", folder)
    try:
        async with asyncio.timeout(10):
            while asking.keys.secret != "another":  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await asking.post(review("build-1"))
        trust = ssl.create_default_context(cafile=str(other / "ca.crt"))
        async with asking.http.post(
            asking.url + "/evictions/another", json=review("web-7"), ssl=trust
        ) as answer:
            assert (await answer.json())["response"]["allowed"] is True
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two authorities, with a certificate named `api` of each."""
    found = {name: tmp_path_factory.mktemp("clients") / name for name in ("own", "other")}
    for folder in found.values():
        Authority(folder)
    return found


@pytest.mark.parametrize("shown", [None, "other"])
async def test_who_has_no_certificate_by_the_authority_is_not_let_in(
    folder: Path, clients: dict[str, Path], shown: str | None
) -> None:
    """Attack 44: the path alone, which many may read, is not enough."""
    world, authority = World(), (clients["own"] / "ca.crt").read_text()
    client = clients[shown] if shown else None
    async with serving(world, folder, client, authority=authority) as asking:
        with pytest.raises(aiohttp.ClientConnectionError):
            await asking.post(review("web-7"))


@pytest.mark.parametrize(("names", "status"), [((), 200), (("a", "api"), 200), (("a",), 403)])
async def test_who_has_one_is_let_in_by_his_name(
    folder: Path, clients: dict[str, Path], names: tuple[str, ...], status: int
) -> None:
    """Attack 44."""
    world, authority = World(), (clients["own"] / "ca.crt").read_text()
    client = clients["own"]
    async with serving(world, folder, client, authority=authority, client_names=names) as asking:
        assert (await asking.post(review("web-7")))[0] == status


async def test_forged_evictions_do_not_keep_a_session_on_the_move(asking: Asking) -> None:
    """Attack 44: without an authority whoever knows the path is believed, a few times."""
    session = asking.world.session
    marked = 0
    for epoch in range(1, 6):
        session["metadata"].setdefault("annotations", {}).pop(names.EVICTED, None)
        assert (await asking.ask("build-1"))["status"]["code"] == 429, epoch
        marked += asking.mark is not None
    assert marked == 3
    asking.world.now += 60
    await asking.ask("build-1")
    assert asking.mark == "1"


@pytest.mark.parametrize("missing", ["tls.crt", "tls.key", "path"])
def test_keys_that_are_not_whole_are_said(folder: Path, missing: str) -> None:
    (folder / missing).unlink()
    with pytest.raises(BadRequest, match="as the chart's Secret has them"):
        Keys(str(folder))


def test_an_empty_path_would_let_everybody_in(folder: Path) -> None:
    (folder / "path").write_text("\n")
    with pytest.raises(BadRequest, match="long random word"):
        Keys(str(folder))


def served(world: World) -> web.Application:
    """What of an API server the webhook needs, over HTTP: paths and bodies are the client's own."""

    async def one(request: web.Request) -> web.Response:
        parts = request.path.strip("/").split("/")
        if request.path == SESSIONS.base:
            return web.json_response({"resources": [{"name": SESSIONS.plural}]})
        within = parts.index("namespaces") if "namespaces" in parts else None
        namespace = parts[within + 1] if within is not None else ""
        found = world.api.items.get((parts[-2], namespace, parts[-1]))
        if found is None:
            return web.json_response({"message": "not found"}, status=404)
        if request.method == "PATCH":
            given = await request.json()
            assert request.content_type == "application/merge-patch+json"
            assert given["metadata"].pop("uid") == found["metadata"]["uid"], "only this Session"
            merge(found, given)
        return web.json_response(found)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", one)
    return app


async def test_the_operator_serves_it_leader_or_not(
    asking: Asking, folder: Path, monkeypatch: pytest.MonkeyPatch, unused_ports: tuple[int, int]
) -> None:
    """All its parts as they are wired, and its own client. No Lease can be had here to lead by."""
    world, (port, secure) = asking.world, unused_ports
    monkeypatch.setattr(app_module, "PORT", secure)
    settings = Settings(image="i", port=port, webhook_keys=str(folder))
    async with TestServer(served(world)) as server:
        app = App(settings, Credentials(str(server.make_url("")).rstrip("/")))
        await app.start()
        try:
            there = Asking(world, f"https://127.0.0.1:{secure}", asking.http, asking.keys)
            assert await there.ask("web-7") == {"allowed": True}
            answer = await there.ask("build-1", dryRun=True)
            assert (answer["status"]["code"], there.mark) == (429, None)
            assert await there.ask("build-1") == answer
            assert there.mark == "1"
            async with asking.http.get(f"http://127.0.0.1:{port}/readyz") as ready:
                assert ready.status == 200
        finally:
            await app.stop()


async def test_without_keys_there_is_none(
    monkeypatch: pytest.MonkeyPatch, unused_ports: tuple[int, int]
) -> None:
    port, secure = unused_ports
    monkeypatch.setattr(app_module, "PORT", secure)
    async with TestServer(served(World())) as server:
        app = App(Settings(image="i", port=port), Credentials(str(server.make_url("")).rstrip("/")))
        await app.start()
        try:
            with pytest.raises(OSError, match="Connect call failed"):
                await asyncio.open_connection("127.0.0.1", secure)
        finally:
            await app.stop()


@pytest.fixture
def unused_ports() -> tuple[int, int]:
    with (
        socket.create_server(("127.0.0.1", 0)) as one,
        socket.create_server(("127.0.0.1", 0)) as two,
    ):
        return int(one.getsockname()[1]), int(two.getsockname()[1])
