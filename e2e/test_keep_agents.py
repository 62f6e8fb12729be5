"""Whole agents, two of them, over real TLS: an order in the API and what becomes of it. The API is
a dictionary, the sidecars are stand-ins; the rest is as on a node."""

from __future__ import annotations

import asyncio
import base64
import copy
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, cast

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from e2e import engine_kit as kit
from e2e.engine_pods import POD_A, POD_B, Pods, typist
from e2e.engine_session import Session, bench, engine, eventually, node, tidy
from holdfast_kube import order_keys
from holdfast_kube.client import (
    CERTIFICATE_REQUESTS,
    CHECKPOINTS,
    EVENTS,
    NODES,
    Kube,
    Resource,
)
from holdfast_node import freezer
from holdfast_node.agent import Agent
from holdfast_node.engine import Engine
from holdfast_node.preflight import Preflight
from holdfast_node.settings import Settings
from holdfast_wire.errors import Unavailable
from node_keys import PEM, Authority

__all__ = ["bench", "engine", "node", "tidy"]  # fixtures; `tidy` stands in for the cluster's

pytestmark = [pytest.mark.long, pytest.mark.timeout(60)]

UID = "11111111-2222-3333-4444-555555555555"
Json = dict[str, Any]


class Api:
    """What an agent needs of it."""

    def __init__(self, authority: Authority) -> None:
        self.authority = authority
        self.certificates: dict[str, x509.Certificate] = {}
        self.objects: dict[tuple[str, str, str], Json] = {}
        self.conditions: dict[str, Json] = {}
        self._watching: list[asyncio.Queue[Json]] = []
        self.down = False
        self.events: list[Json] = []

    def put(self, name: str, node: str, spec: Json, namespace: str = "team", **status: Any) -> None:
        everything = {"sessionName": "build", "sessionUID": UID, "epoch": 2, "image": "i"}
        meta = {
            "namespace": namespace,
            "name": name,
            "uid": name,
            "labels": {"holdfast.dev/node": node},
        }
        item = self.ordered({"metadata": meta, "spec": everything | spec}) | {"status": status}
        self.objects["checkpoints", namespace, name] = item
        for end, epoch in (("source", 2), ("target", 3)):
            if f"{end}PodUID" in spec and namespace == "team":
                pod = _pod(f"build-{epoch}", spec[f"{end}Node"], spec[f"{end}PodUID"], epoch)
                self.objects["pods", "team", f"build-{epoch}"] = pod
        self._tell(item)

    def ordered(self, item: Json) -> Json:
        """As the operator makes it."""
        spec = item["spec"]
        named = [spec[end] for end in ("sourceNode", "targetNode") if end in spec]
        found = {node: one for node, one in self.certificates.items() if node in named}
        return self.authority.order(item, found)

    def status(self, name: str, namespace: str = "team") -> Json:
        found: Json = self.objects["checkpoints", namespace, name]["status"]
        return found

    async def over(self, name: str, namespace: str = "team") -> Json:
        def phase() -> Any:
            return self.status(name, namespace).get("phase")

        await eventually(lambda: phase() in ("Complete", "Failed"))
        return self.status(name, namespace)

    def ready(self, node: str) -> bool:
        """It says by which certificate it is known."""
        found = self.objects.get(("nodes", "", node), {}).get("metadata", {})
        return bool(found.get("annotations", {}).get(order_keys.CERTIFICATE))

    def note(self, node: str, name: str) -> str:
        found = self.objects["nodes", "", node]["metadata"]["annotations"]
        return str(found[f"holdfast.dev/{name}"])

    async def get(self, kind: Resource, namespace: str, name: str) -> Json | None:
        return copy.deepcopy(self.objects.get((kind.plural, namespace, name)))

    async def create(self, kind: Resource, namespace: str, body: Json) -> Json:
        if kind is CERTIFICATE_REQUESTS:
            return self._signed(body)
        assert kind is EVENTS
        self.events.append(body)
        return body

    def _signed(self, body: Json) -> Json:
        made = x509.load_pem_x509_csr(base64.b64decode(body["spec"]["request"]))
        names = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        (name,) = names.get_values_for_type(x509.DNSName)
        key = cast(ec.EllipticCurvePublicKey, made.public_key())
        signed = self.authority.issue([name], key)
        self.certificates[order_keys.node_of([name])] = signed
        status = {"certificate": base64.b64encode(signed.public_bytes(PEM)).decode()}
        self.objects["certificatesigningrequests", "", body["metadata"]["name"]] = {
            **body, "status": status
        }  # fmt: skip
        return body

    async def list_all(
        self, kind: Resource, _namespace: str | None, labels: str = ""
    ) -> tuple[Sequence[Json], str]:
        assert kind is CHECKPOINTS
        items = [item for (plural, _, _), item in self.objects.items() if plural == kind.plural]
        return [copy.deepcopy(item) for item in items if self._fits(item, labels)], "1"

    async def set_condition(self, kind: Resource, name: str, condition: Json) -> None:
        assert kind is NODES
        self.conditions[name] = condition

    async def patch(
        self, kind: Resource, namespace: str, name: str, body: Json, sub: str | None = None
    ) -> Json:
        if self.down:
            raise Unavailable("no answer")
        assert (sub == "status") == (kind is CHECKPOINTS)
        empty: Json = {"metadata": {"annotations": {}}}
        found = self.objects.setdefault((kind.plural, namespace, name), empty)
        if kind is NODES:
            found["metadata"]["annotations"] |= body["metadata"].get("annotations", {})
        else:
            found["status"] |= body["status"]
            self._tell(found)
        return found

    async def watch(
        self, kind: Resource, _ns: str | None, labels: str, _version: str, **_: Any
    ) -> AsyncIterator[Json]:
        assert kind is CHECKPOINTS
        queue: asyncio.Queue[Json] = asyncio.Queue()
        self._watching.append(queue)
        while True:
            item = await queue.get()
            if self._fits(item, labels):
                yield {"type": "MODIFIED", "object": item}

    def _tell(self, item: Json) -> None:
        for queue in self._watching:
            queue.put_nowait(copy.deepcopy(item))

    @staticmethod
    def _fits(item: Json, labels: str) -> bool:
        key, _, value = labels.partition("=")
        return not labels or item["metadata"]["labels"].get(key) == value


def _pod(name: str, node: str, uid: str, epoch: int) -> Json:
    """As the operator makes it, for the processes that Pods has."""
    owner = {"apiVersion": "holdfast.dev/v1alpha1", "kind": "Session", "name": "build",
             "uid": UID, "controller": True}  # fmt: skip
    return {
        "metadata": {"namespace": "team", "name": name, "uid": uid,
                     "labels": {"holdfast.dev/epoch": str(epoch)}, "ownerReferences": [owner]},
        "spec": {"nodeName": node},
        "status": {"containerStatuses": [{"name": "session", "imageID": "i"}]},
    }  # fmt: skip


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    (folder / "ca-bundle.crt").write_bytes(authority.pem)
    return folder


class Cluster:
    def __init__(
        self, folder: Path, keys: Path, authority: Authority, bench: kit.Lab, node: Preflight
    ) -> None:
        self.api = Api(authority)
        self._folder, self._keys, self._bench, self._node = folder, keys, bench, node
        self._ports = {name: _free_port() for name in ("a", "b")}
        self.agents: dict[str, Agent] = {}

    @asynccontextmanager
    async def agent(self, name: str, store_bytes: int = 1 << 30) -> AsyncIterator[Agent]:
        settings = Settings(
            node=name, address="127.0.0.1", port=self._ports[name], keys=self._keys,
            work=self._folder / name / "run", store=self._folder / name / "store",
            store_bytes=store_bytes, store_reserve=0, bundle=self._bench.bundle,
            cgroups=kit.CGROUPS,
        )  # fmt: skip
        self.agents[name] = agent = Agent(settings, cast(Kube, self.api), self._node)
        running = asyncio.create_task(agent.run())
        await eventually(lambda: self.api.ready(name) or running.done())
        try:
            yield agent
        finally:
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running

    def left_over(self) -> list[Path]:
        return [*self._folder.glob("?/run/*"), *self._folder.glob("?/store/spool/*")]


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


@pytest.fixture
async def pods(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Pods]:
    found = freezer.frozen_ones

    def ours(root: Path) -> list[freezer.Freezer]:
        """This machine may have sessions that are not the test's to settle."""
        return kit.ours(found(root))

    monkeypatch.setattr(freezer, "frozen_ones", ours)
    made = Pods(tmp_path, monkeypatch)
    async with made.served():
        yield made


@pytest.fixture
def cluster(
    tmp_path: Path, keys: Path, authority: Authority, bench: kit.Lab, node: Preflight, pods: Pods
) -> Cluster:
    return Cluster(tmp_path, keys, authority, bench, node)


def keep(*keepers: str, **more: Any) -> Json:
    return {"trigger": "Periodic", "sourceNode": "a", "sourcePodUID": POD_A, "store": "Peer",
            "keepers": list(keepers), **more}  # fmt: skip


MOVE = {
    "trigger": "Drain", "sourceNode": "a", "sourcePodUID": POD_A, "targetNode": "b",
    "targetPodUID": POD_B,
}  # fmt: skip


def bring(status: Json, **more: Any) -> Json:
    stored = {"checkpoint": "build-2-k1", "sessionName": "build", "sessionUID": UID,
              "digest": status["digest"], "location": status["location"],
              "takenAt": status["startedAt"], **more}  # fmt: skip
    return {"trigger": "Recover", "targetNode": "a", "targetPodUID": POD_B, "from": stored}


def session(bench: kit.Lab, pods: Pods) -> Session:
    pods.put(POD_A, container := bench.container(f"pod{POD_A}"))
    made = Session(container)
    made.typist.type("read -p 'na''me? ' x; echo got=$x\n")
    made.typist.until("name? ")
    return made


async def test_stored_on_another_node_and_brought_back(
    cluster: Cluster, bench: kit.Lab, pods: Pods
) -> None:
    first = session(bench, pods)
    api = cluster.api
    async with cluster.agent("a"), cluster.agent("b"):
        api.put("build-2-k1", "a", keep("b", "a"))
        kept = await api.over("build-2-k1")
        assert (kept["phase"], kept["location"], kept["seq"]) == ("Complete", "peer://b", 7)
        assert kept["node"] == "a"
        first.typist.type("on\n")
        first.typist.until("got=on")
        pods.put(POD_B, target := bench.container(f"pod{POD_B}"))
        api.put("build-3-from-1", "a", bring(kept))
        brought = await api.over("build-3-from-1")
        assert brought["phase"] == "Complete", brought
        with typist(target) as second:
            second.type("back\n")
            second.until("got=back")
        await eventually(lambda: cluster.left_over() == [])
        assert "of 1024 MiB" in api.note("b", "store")


@pytest.mark.parametrize("has_one_too", [False, True], ids=["no-pod", "a-pod-of-its-own"])
async def test_an_order_of_another_namespace_touches_nothing(
    cluster: Cluster, bench: kit.Lab, pods: Pods, has_one_too: bool
) -> None:
    """Attack 30: a tenant writes a Checkpoint that names another namespace's pod by its UID."""
    first = session(bench, pods)
    api = cluster.api
    api.objects["pods", "team", "build-2"] = _pod("build-2", "a", POD_A, 2)
    if has_one_too:
        api.objects["pods", "evil", "build-2"] = evil = _pod("build-2", "a", POD_B, 2)
        evil["metadata"]["namespace"] = "evil"
    async with cluster.agent("a"):
        api.put("build-2-k1", "a", keep("a", then="Stop"), "evil")
        refused = await api.over("build-2-k1", "evil")
    assert refused["phase"] == "Failed", refused
    assert "location" not in refused
    assert pods.here.words == []
    first.typist.type("on\n")
    first.typist.until("got=on")
    if has_one_too:
        (event,) = api.events
        assert event["reason"] == "ForeignOrder"
        assert event["regarding"]["namespace"] == "evil"


async def test_nobody_has_room(cluster: Cluster, bench: kit.Lab, pods: Pods) -> None:
    first = session(bench, pods)
    async with cluster.agent("a", store_bytes=1), cluster.agent("b", store_bytes=1):
        cluster.api.put("build-2-k1", "a", keep("b", "a"))
        kept = await cluster.api.over("build-2-k1")
        assert kept["phase"] == "Failed"
        message = kept["conditions"][0]["message"]
        assert "b: the checkpoint needs" in message
        assert "a: the checkpoint needs" in message
        assert cluster.api.note("b", "store").startswith("full: ")
    first.typist.type("on\n")
    first.typist.until("got=on")


async def test_another_than_the_one_that_was_meant(
    cluster: Cluster, bench: kit.Lab, pods: Pods
) -> None:
    session(bench, pods)
    api = cluster.api
    async with cluster.agent("a"):
        api.put("build-2-k1", "a", keep("a"))
        kept = await api.over("build-2-k1")
        pods.put(POD_B, target := bench.container(f"pod{POD_B}"))
        api.put("build-3-from-1", "a", bring(kept, digest="sha256:" + "0" * 64))
        failed = await api.over("build-3-from-1")
        assert failed["phase"] == "Failed"
        assert "another checkpoint than" in failed["conditions"][0]["message"]
        assert pods.there.words == []
        assert target.pids() == []


async def test_where_it_lies_must_be_known_before_it_stops(
    cluster: Cluster, bench: kit.Lab, pods: Pods, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast_node.agent.REPORT_TRIES", 2)
    first = session(bench, pods)
    api = cluster.api
    async with cluster.agent("a"):
        pods.here.seen = {"seal": lambda: setattr(api, "down", True),
                          "unpark": lambda: setattr(api, "down", False)}  # fmt: skip
        api.put("build-2-k1", "a", keep("a", then="Stop"))
        kept = await api.over("build-2-k1")
    assert kept["phase"] == "Failed"
    assert pods.here.words == ["park", "seal", "unpark"]
    first.typist.type("on\n")
    first.typist.until("got=on")


async def test_the_next_agent_settles_what_one_left(
    cluster: Cluster, bench: kit.Lab, pods: Pods, engine: Engine
) -> None:
    first = session(bench, pods)
    cage = await engine.freeze(first.container.hold)
    api = cluster.api
    api.put("build-2-k1", "a", keep("a"), phase="Dumping")
    pods.here.refusals = {"unpark": ["unavailable"]}
    async with cluster.agent("a"):
        failed = await api.over("build-2-k1")
        assert failed["phase"] == "Failed"
        assert "started anew" in failed["conditions"][0]["message"]
        assert not cage.wanted()  # it was settled before that was said
    first.typist.type("on\n")
    first.typist.until("got=on")


async def test_the_next_agent_finds_it_stopped(
    cluster: Cluster, bench: kit.Lab, pods: Pods, engine: Engine
) -> None:
    first = session(bench, pods)
    await engine.freeze(first.container.hold)
    api = cluster.api
    api.put("build-2-k1", "a", keep("a", then="Stop"), phase="Transferring", location="peer://a")
    pods.here.refusals = {"unpark": ["superseded"]}
    async with cluster.agent("a"):
        assert (await api.over("build-2-k1"))["phase"] == "Complete"
    assert pods.here.words == ["unpark", "suspend"]
    await eventually(lambda: freezer.children(first.container.hold) == [])


async def test_the_next_agent_finishes_a_bring(
    cluster: Cluster, bench: kit.Lab, pods: Pods, engine: Engine
) -> None:
    """Its tree is held, and the sidecar does not serve: until it is asked again it says nothing."""
    first = session(bench, pods)
    await engine.freeze(first.container.hold)
    api = cluster.api
    status = {"digest": "sha256:0", "location": "peer://b", "startedAt": "2026-01-02T03:04:05Z"}
    api.put("build-3-from-1", "a", bring(status) | {"targetPodUID": POD_A}, phase="Transferring")
    pods.here.refusals = {"unpark": ["not_serving"] * 1000}
    async with cluster.agent("a"):
        assert (await api.over("build-3-from-1"))["phase"] == "Complete"
        pods.here.refusals.clear()
    assert "commit" in pods.here.words
    first.typist.type("on\n")
    first.typist.until("got=on")


async def test_a_move_by_the_same_agents(cluster: Cluster, bench: kit.Lab, pods: Pods) -> None:
    """It shares its code with the others."""
    first = session(bench, pods)
    first.typist.type("ha")
    first.typist.until("name? ha")
    pods.put(POD_B, bench.container(f"pod{POD_B}"))
    pods.there.refusals = {"commit": ["refused"]}
    api = cluster.api
    async with cluster.agent("a"), cluster.agent("b"):
        api.put("build-2-1", "a", MOVE)
        assert (await api.over("build-2-1"))["phase"] == "Failed"
        assert pods.here.words == ["park", "seal", "seal", "unpark"]
        first.typist.type("lf\n")
        first.typist.until("got=half")
        first.typist.type("read -p 'ag''ain? ' x; echo got=$x\n")
        first.typist.until("again? ")
        first.typist.type("wh")
        first.typist.until("again? wh")
        pods.put(POD_B, target := bench.container("another"))  # the operator makes another
        api.put("build-2-2", "a", MOVE)
        moved = await api.over("build-2-2")
        assert moved["phase"] == "Complete", moved
        assert "location" not in moved
    assert pods.here.asked[-3:] == [
        {"do": "park", "to": POD_B},
        {"do": "seal", "unoffered": True},
        {"do": "seal"},
    ]
    assert pods.there.asked == [{"do": "prepare"}, {"do": "commit"}] * 2
    assert (pods.there.state / "ring").read_bytes() == b"what was shown"
    await eventually(lambda: freezer.children(first.container.hold) == [])
    with typist(target) as second:
        second.type("ole\n")
        second.until("got=whole")
    assert cluster.left_over() == []
