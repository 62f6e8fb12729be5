"""What a cluster's gateway asks of the API server: whose a token is, what he may do, who holds a
Lease, which Sessions there are. The answers are the test's."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

from holdfast_gateway.cluster import ClusterSessions, Verifier
from holdfast_gateway.reviews import ACCESS, TOKENS, Reviews
from holdfast_gateway.uplinks import Uplinks
from holdfast_gateway.watched import Watched
from holdfast_kube.client import LEASES, SESSIONS, Object, Resource
from holdfast_wire.errors import Unavailable
from holdfast_wire.frames import Control, Decoder, Error, encode
from holdfast_wire.rights import Right
from uplink_kit import Serve

POD = "authentication.kubernetes.io/pod-name"
POD_UID = "authentication.kubernetes.io/pod-uid"


def session(namespace: str, name: str, phase: str = "Running", **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"namespace": namespace, "name": name, "uid": f"uid-{name}"},
        "spec": {"command": ["bash"], **spec},
        "status": {"phase": phase, "epoch": 1},
    }


def lease(name: str, holder: str, epoch: int) -> dict[str, Any]:
    return {
        "metadata": {
            "name": name,
            "annotations": {"holdfast.dev/epoch": str(epoch)},
            "ownerReferences": [{"uid": f"uid-{name}"}],
        },
        "spec": {"holderIdentity": holder},
    }


class FakeApi:
    def __init__(self) -> None:
        self.tokens: dict[tuple[str, str], dict[str, Any]] = {}  # by token and audience
        self.allowed: set[tuple[str, str, str, str]] = set()  # user, act, namespace, name or *
        self.sessions: list[dict[str, Any]] = []
        self.leases: dict[tuple[str, str], dict[str, Any]] = {}
        self.asked: list[tuple[str, Any]] = []
        self.patched: list[tuple[str, str, Object]] = []
        self.away = False
        self.events: asyncio.Queue[Object] = asyncio.Queue()

    def know(self, token: str, user: str, audience: str = "holdfast", **extra: str) -> None:
        self.tokens[token, audience] = {
            "username": user,
            "groups": ["system:authenticated"],
            "extra": {key: [value] for key, value in extra.items()},
        }

    def allow(self, user: str, *acts: Right, namespace: str = "ns", name: str = "*") -> None:
        self.allowed |= {(user, act.value, namespace, name) for act in acts}

    # -- what Api has

    def _there(self) -> None:
        if self.away:
            raise Unavailable("the API server does not answer")

    async def get(self, kind: Resource, namespace: str, name: str) -> Object | None:
        self._there()
        assert kind == LEASES
        return self.leases.get((namespace, name))

    async def list_all(
        self, kind: Resource, namespace: str | None, labels: str = "", metadata_only: bool = False
    ) -> tuple[Sequence[Object], str]:
        self._there()
        assert kind == SESSIONS
        return list(self.sessions), "1"

    async def watch(self, *_: object, **__: object) -> AsyncIterator[Object]:
        while True:
            yield await self.events.get()

    async def create(
        self, kind: Resource, namespace: str, body: Object, strict: bool = False
    ) -> Object:
        self._there()
        spec = body["spec"]
        self.asked.append((kind.plural, spec))
        if kind == TOKENS:
            (audience,) = spec["audiences"]
            user = self.tokens.get((spec["token"], audience))
            if user is None:
                return {"status": {"authenticated": False, "error": "unknown"}}
            return {"status": {"authenticated": True, "audiences": [audience], "user": user}}
        assert kind == ACCESS
        what = spec["resourceAttributes"]
        named = [what.get("name", ""), "*"]
        found = any(
            (spec["user"], what["subresource"], what["namespace"], name) in self.allowed
            for name in named
        )
        return {"status": {"allowed": found}}

    async def patch(
        self, kind: Resource, namespace: str, name: str, body: Object, sub: str | None = None
    ) -> Object:
        self._there()
        self.patched.append((namespace, name, body))
        return {}


@contextlib.asynccontextmanager
async def sessions_of(api: FakeApi) -> AsyncIterator[tuple[ClusterSessions, Uplinks, Reviews]]:
    """The backend, with its watch running and nothing dialled in."""
    reviews = Reviews(api)  # type: ignore[arg-type]
    uplinks = Uplinks(Verifier(api, reviews))  # type: ignore[arg-type]
    watched = Watched(api, (), lambda _: None)  # type: ignore[arg-type]
    running = asyncio.create_task(watched.run())
    await watched.ready.wait()
    try:
        made = ClusterSessions(api, reviews, uplinks, watched, "ns")  # type: ignore[arg-type]
        yield made, uplinks, reviews
    finally:
        running.cancel()
        await asyncio.wait([running])


def answering(results: dict[str, Any], heard: list[dict[str, Any]]) -> Serve:
    """A sidecar that answers requests by their kind, and says whom it was told they are of."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        decoder = Decoder()
        while data := await reader.read(1 << 16):
            for frame in decoder.feed(data):
                assert isinstance(frame, Control)
                heard.append(frame.body)
                result = results.get(frame.body["kind"])
                if result is None:
                    error = Unavailable("not answered here")
                    writer.write(encode(Error.of(error, frame.body["id"])))
                    continue
                body = {"kind": "answer", "id": frame.body["id"], "result": result}
                writer.write(encode(Control(body)))

    return serve
