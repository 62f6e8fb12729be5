"""An API server as a client sees it, over real TLS: Session objects from a table, tokens and rights
from another, and behind its aggregation layer the real gateway's routes and relay, before the real
sidecars of this machine."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

from aiohttp import web

from api_kit import Authority, status
from holdfast_gateway.assets import Assets
from holdfast_gateway.auth import Caller, Modality
from holdfast_gateway.backend import Link
from holdfast_gateway.cluster_http import AGGREGATED, ONE_AGGREGATED, as_status
from holdfast_gateway.http import Http
from holdfast_gateway.sessions import Sessions
from holdfast_wire.errors import Forbidden, HoldfastError, NotFound, Unauthenticated
from holdfast_wire.ids import Actor
from holdfast_wire.rights import Right

OBJECTS = "/apis/holdfast.dev/v1alpha1"
EVERYTHING = frozenset(("get", "list", "patch", "create", *Right))


class Behind(Sessions):
    """As in a cluster: names have a namespace, and every act is asked about."""

    def __init__(self, front: Front, state: Path) -> None:
        super().__init__(state, lambda: None)
        self._front = front

    @contextlib.asynccontextmanager
    async def connect(
        self,
        name: str,
        caller: Caller,
        patience: float = 5.0,
        right: Right = Right.OBSERVE,
    ) -> AsyncIterator[Link]:
        async def allow(act: Right) -> None:
            if act not in self._front.rights[caller.actor.name]:
                raise Forbidden(f"{caller.actor} may not {act}", "ask for the right")

        await allow(right)
        if self._front.waiting is not None:
            await asyncio.to_thread(self._front.waiting.wait, 30)
        if self._front.failing is not None:
            raise self._front.failing
        own = name.partition("/")[2]
        if own not in self._front.objects:
            raise NotFound(f"there is no session {name}")
        async with super().connect(own, caller, patience) as link:
            cut: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._front.cuts.append(cut)
            yield Link(link.reader, link.writer, allow, cut)
            cut.cancel()


class Front:
    """`tokens`: whose they are. `rights`: verbs on Session objects, and acts."""

    def __init__(self, folder: Path, state: Path) -> None:
        self.authority = Authority(folder / "authority")
        self.folder = folder
        self.tokens = {"ana-token": "ana"}
        self.rights: dict[str, frozenset[str]] = {"ana": EVERYTHING}
        self.objects: dict[str, dict[str, Any]] = {}
        self.patches: list[tuple[str, Any]] = []
        self.asked: list[tuple[str, str]] = []
        self.installed = True
        self.page: dict[str, Any] = {"hosts": [], "service": "holdfast-system/holdfast-gateway"}
        self.service: dict[str, Any] | None = None
        self.waiting: threading.Event | None = None
        self.failing: HoldfastError | None = None
        self.cuts: list[asyncio.Future[None]] = []
        self._streams: list[asyncio.Transport] = []
        self._loop = asyncio.new_event_loop()
        self._state = state
        self.port = 0
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._ready.wait(20)

    # -- what tests do

    def session(self, name: str, **status: Any) -> None:
        meta = {"name": name, "namespace": "team", "creationTimestamp": "2026-01-01T00:00:00Z"}
        self.objects[name] = {"metadata": meta, "spec": {"command": ["bash"]}, "status": status}

    def kubeconfig(
        self, user: dict[str, Any] | None = None, cluster: dict[str, Any] | None = None
    ) -> Path:
        """Of a user of this server's; by default Ana, with her token."""
        path = self.folder / f"kubeconfig-{len(list(self.folder.iterdir()))}"
        server = {
            "server": f"https://127.0.0.1:{self.port}",
            "certificate-authority": str(self.authority.certificate),
        }
        body = {
            "current-context": "c",
            "contexts": [
                {"name": "c", "context": {"cluster": "k", "user": "u", "namespace": "team"}}
            ],
            "clusters": [{"name": "k", "cluster": {**server, **(cluster or {})}}],
            "users": [{"name": "u", "user": user or {"token": "ana-token"}}],
        }
        path.write_text(json.dumps(body))
        return path

    def call(self, function: Callable[[], Coroutine[Any, Any, None]]) -> None:
        asyncio.run_coroutine_threadsafe(function(), self._loop).result(20)

    def stop_gateway(self) -> None:
        """As a replica that is told to go: its clients are told to come back."""
        self.call(self._app.shutdown)

    def kill_gateway(self) -> None:
        """As one that is killed: connections break without a word."""

        async def abort() -> None:
            for transport in self._streams:
                transport.abort()
            self._streams.clear()

        self.call(abort)

    def revoke(self) -> None:
        self._cut(Forbidden("ana may not stream any more", "ask for it"))

    def expire(self) -> None:
        self._cut(Unauthenticated("the token has run out"))

    def _cut(self, error: HoldfastError) -> None:
        async def cut() -> None:
            for one in self.cuts:
                if not one.done():
                    one.set_exception(error)

        self.call(cut)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(20)

    # -- the server

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        self._stop = asyncio.Event()
        one = f"{OBJECTS}/namespaces/{{namespace}}/sessions"
        more = [
            web.get(AGGREGATED, self._resources),
            web.get(one, self._list),
            web.post(one, self._create),
            web.get(f"{one}/{{name}}", self._get),
            web.patch(f"{one}/{{name}}", self._patch),
            web.get("/apis/subresources.holdfast.dev", self._resources),
            web.get("/api/v1/namespaces/{namespace}/services/{name}", self._service),
            web.post("/apis/authentication.k8s.io/v1/selfsubjectreviews", self._whoami),
        ]
        http = Http(
            self, Behind(self, self._state), Assets(self.folder), lambda: None,
            one=ONE_AGGREGATED, more=more, outer=(self._before, as_status), by_right=True,
        )  # fmt: skip
        self._app = http.application()
        runner = web.AppRunner(self._app, access_log=None, shutdown_timeout=0.2)
        await runner.setup()
        listening = socket.create_server(("127.0.0.1", 0))
        self.port = listening.getsockname()[1]
        await web.SockSite(runner, listening, ssl_context=self.authority.context).start()
        self._ready.set()
        await self._stop.wait()
        await runner.cleanup()

    @web.middleware
    async def _before(self, request: web.Request, handler: Any) -> web.StreamResponse:
        """What the API server does itself: who is it, may he, and is there anybody behind it."""
        self.asked.append((request.method, request.path))
        user = self._user(request)
        if user is None:
            return web.json_response(status(401, "Unauthorized"), status=401)
        if "subresources" in request.path:
            named = request.path.partition("/sessions/")[2].split("/")
            if named[1:] and named[1] not in self.rights.get(user, frozenset()):
                return web.json_response(status(403, "Forbidden", f"{user} may not"), status=403)
            if not self.installed:
                return web.Response(text="404 page not found\n", status=404)
        elif request.path.startswith(OBJECTS):
            verb = {"GET": "get", "POST": "create", "PATCH": "patch"}[request.method]
            if verb not in self.rights.get(user, frozenset()):
                return web.json_response(status(403, "Forbidden", f"{user} may not"), status=403)
        if request.path.endswith("/stream") and isinstance(request.transport, asyncio.Transport):
            self._streams.append(request.transport)
        answer: web.StreamResponse = await handler(request)
        return answer

    def _user(self, request: web.Request) -> str | None:
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        user = self.tokens.get(token)
        return request.headers.get("Impersonate-User", user) if user is not None else None

    # -- the gateway's door

    def check(self, request: web.Request) -> None:
        """Everything has been checked before."""

    async def caller(self, request: web.Request) -> Caller:
        user = self._user(request)
        assert user is not None
        return Caller(Actor(user), Modality.KUBECTL)

    async def stream_caller(self, request: web.Request) -> Caller:
        return await self.caller(request)

    # -- objects

    async def _resources(self, _: web.Request) -> web.Response:
        return web.json_response({"page": self.page})

    async def _service(self, request: web.Request) -> web.Response:
        if self.service is None:
            return web.json_response(status(403, "Forbidden", "you may not"), status=403)
        assert request.path.endswith("/holdfast-system/services/holdfast-gateway")
        return web.json_response(self.service)

    async def _list(self, _: web.Request) -> web.Response:
        return web.json_response({"items": list(self.objects.values())})

    async def _get(self, request: web.Request) -> web.Response:
        found = self.objects.get(request.match_info["name"])
        if found is None:
            return web.json_response(status(404, "NotFound"), status=404)
        return web.json_response(found)

    async def _create(self, request: web.Request) -> web.Response:
        made = await request.json()
        made["metadata"]["namespace"] = request.match_info["namespace"]
        self.objects[made["metadata"]["name"]] = made
        return web.json_response(made, status=201)

    async def _patch(self, request: web.Request) -> web.Response:
        assert request.content_type == "application/merge-patch+json"
        name = request.match_info["name"]
        self.patches.append((name, await request.json()))
        return web.json_response(self.objects[name])

    async def _whoami(self, request: web.Request) -> web.Response:
        return web.json_response({"status": {"userInfo": {"username": self._user(request)}}})
