"""A gateway as a cluster has it, for the page's tests: tokens, rights, namespaces, phases. The
routes and the session's sidecar are the real ones; what is made up is who may do what, and what a
session is said to be on its way to."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import json
import threading
import time
from collections.abc import AsyncIterator, Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar
from urllib.parse import urlencode

from aiohttp import web

from gateway_kit import Place
from holdfast_gateway import auth
from holdfast_gateway.assets import Assets
from holdfast_gateway.auth import Caller, Modality
from holdfast_gateway.backend import Link, Reader
from holdfast_gateway.http import Http
from holdfast_gateway.login import Login, Oidc, Peer, Token, TrustedProxy, networks
from holdfast_gateway.sessions import Sessions
from holdfast_wire.errors import Forbidden, NotFound, Suspended, Unauthenticated, Unsupported
from holdfast_wire.frames import Control, FrameCutter, encode
from holdfast_wire.ids import Actor
from holdfast_wire.rights import Right, right_of_request

ONE: Final = "/api/v1/namespaces/{namespace}/sessions/{name}"
ALL: Final = frozenset(Right)
LOOK: Final = frozenset({Right.OBSERVE})
CLIENT_ID: Final = "holdfast-page"
PROXY: Final = TrustedProxy(networks=networks("127.0.0.0/8"))
T = TypeVar("T")


def jwt(**claims: Any) -> str:
    """Of the shape of a token; nobody here checks its signature."""
    parts = [json.dumps(part).encode() for part in ({"alg": "none"}, claims)]
    return ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts) + ".x"


def token_of(name: str, seconds: float = 3600) -> str:
    return jwt(sub=f"system:serviceaccount:team:{name}", exp=int(time.time() + seconds))


@dataclass
class Door:
    """Whoever has one of the tokens."""

    actors: dict[str, str]

    def check(self, request: web.Request) -> None:
        auth.check_origin(request.headers.get("Origin"), str(request.headers.get("Host")))

    async def caller(self, request: web.Request) -> Caller:
        peer = Peer(str(request.remote))
        if (by_proxy := PROXY.caller(peer, request.headers, Modality.BROWSER)) is not None:
            return by_proxy
        return self._caller(request.headers.get("Authorization", "").removeprefix("Bearer "))

    async def stream_caller(self, request: web.Request) -> Caller:
        offered = request.headers.get("Sec-WebSocket-Protocol", "").split(", ")
        return self._caller(next((o[7:] for o in offered if o.startswith("bearer.")), ""))

    def _caller(self, token: str) -> Caller:
        if token not in self.actors:
            raise Unauthenticated("no token, or one that is not valid here", "make a new one")
        return Caller(Actor(self.actors[token]), Modality.BROWSER)


class Spoken:
    """A sidecar's frames, and between them what it would say of a move."""

    def __init__(self, reader: Reader) -> None:
        self.queue: asyncio.Queue[bytes] = asyncio.Queue()
        self._reader = reader

    async def pump(self) -> None:
        cutter = FrameCutter()
        while chunk := await self._reader.read(1 << 16):
            if whole := cutter.feed(chunk):
                self.queue.put_nowait(whole)
        self.queue.put_nowait(b"")

    async def read(self, _n: int = -1) -> bytes:
        return await self.queue.get()


@dataclass
class Team:
    """The backend: `team/build` is a real session, others are only told of."""

    real: Sessions
    rights: dict[str, frozenset[Right]]
    others: list[dict[str, Any]] = field(default_factory=list)
    phase: str = "Running"
    suspended: dict[str, Any] | None = None
    woken: list[str] = field(default_factory=list)
    speaks: bool = True
    cuts: set[asyncio.Future[None]] = field(default_factory=set)
    spoken: set[Spoken] = field(default_factory=set)

    def _allow(self, caller: Caller, act: Right, name: str) -> None:
        if act not in self.rights.get(caller.actor.name, frozenset()):
            raise Forbidden(f"{caller.actor} may not do sessions/{act} of {name}", "ask for it")

    async def list(self, caller: Caller) -> list[dict[str, Any]]:
        if Right.OBSERVE not in self.rights.get(caller.actor.name, frozenset()):
            return []
        return [await self.describe("team/build", caller), *self.others]

    async def describe(self, name: str, caller: Caller) -> dict[str, Any]:
        if not self.speaks:
            raise Unsupported("this gateway speaks version 3 and later", "upgrade the client")
        self._allow(caller, Right.OBSERVE, name)
        if name != "team/build":
            raise NotFound(f"there is no session {name}")
        told = await self.real.describe("build", caller)
        known = {"namespace": "team", "phase": self.phase, "epoch": 3, "node": "node-b"}
        if self.phase != "Running":
            state = {"activity": self.phase.lower(), "sentence": f"is {self.phase}", "exit": None}
            told = {**told, "state": state, "clients": []}
        asleep = {"suspended": self.suspended} if self.suspended else {}
        return {**told, **known, **asleep}

    async def request(
        self,
        name: str,
        body: dict[str, Any],
        caller: Caller,
        *,
        seconds: float = 10.0,
        patience: float = 3.0,
    ) -> dict[str, Any]:
        self._allow(caller, right_of_request(body["kind"]), name)
        return await self.real.request("build", body, caller, seconds=seconds, patience=patience)

    async def wake(self, name: str, caller: Caller) -> dict[str, Any]:
        self._allow(caller, Right.WAKE, name)
        self.woken.append(caller.actor.name)
        self.suspended = None
        return await self.describe(name, caller)

    @contextlib.asynccontextmanager
    async def connect(
        self,
        name: str,
        caller: Caller,
        patience: float = 3.0,
        right: Right = Right.OBSERVE,
    ) -> AsyncIterator[Link]:
        await self.describe(name, caller)
        if self.suspended is not None:
            raise Suspended("session team/build is suspended")
        while self.phase != "Running":  # noqa: ASYNC110 - set by another thread
            await asyncio.sleep(0.02)
        cut: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.cuts.add(cut)

        async def allow(act: Right) -> None:
            self._allow(caller, act, name)

        try:
            async with self.real.connect("build", caller, patience) as link:
                spoken = Spoken(link.reader)
                self.spoken.add(spoken)
                pump = asyncio.create_task(spoken.pump())
                try:
                    yield Link(spoken, link.writer, allow, cut)
                finally:
                    pump.cancel()
                    self.spoken.discard(spoken)
        finally:
            self.cuts.discard(cut)
            cut.cancel()

    def revoke(self, actor: str, rights: frozenset[Right], error: Exception) -> None:
        self.rights[actor] = rights
        for cut in list(self.cuts):
            cut.set_exception(error)


class Issuer:
    """OpenID Connect for one person, who always says yes."""

    def __init__(self, actors: dict[str, str]) -> None:
        self.address = ""
        self.spoil: dict[str, Any] = {}
        self._actors = actors
        self._codes: dict[str, Any] = {}

    def application(self) -> web.Application:
        app = web.Application()
        app.add_routes(
            [
                web.get("/realm/.well-known/openid-configuration", self._configuration),
                web.get("/realm/authorize", self._authorize),
                web.post("/realm/token", self._token),
            ]
        )
        return app

    @property
    def issuer(self) -> str:
        return f"{self.address}/realm"

    async def _configuration(self, _: web.Request) -> web.Response:
        ends = {name: f"{self.issuer}/{name.split('_')[0]}" for name in ("token_endpoint",)}
        body = {
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.issuer}/authorize",
            **ends,
        }
        return web.json_response(body, headers={"Access-Control-Allow-Origin": "*"})

    async def _authorize(self, request: web.Request) -> web.Response:
        asked = dict(request.query)
        assert asked["code_challenge_method"] == "S256"
        self._codes["code-1"] = asked
        back = {"code": "code-1", "state": asked["state"]}
        raise web.HTTPFound(f"{asked['redirect_uri']}?{urlencode(back)}")

    async def _token(self, request: web.Request) -> web.Response:
        given = await request.post()
        asked = self._codes.pop(str(given["code"]))
        digest = hashlib.sha256(str(given["code_verifier"]).encode()).digest()
        proof = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        headers = {"Access-Control-Allow-Origin": "*"}
        if proof != asked["code_challenge"] or given["client_id"] != asked["client_id"]:
            return web.json_response({"error": "invalid_grant"}, status=400, headers=headers)
        said = {
            "iss": self.issuer,
            "aud": asked["client_id"],
            "nonce": asked["nonce"],
            "sub": "ana@example.com",
            "exp": int(time.time()) + 600,
        }
        token = jwt(**{**said, **self.spoil})
        self._actors[token] = "ana@example.com"
        return web.json_response({"id_token": token}, headers=headers)


class Cluster:
    """All of it, on a thread of its own."""

    def __init__(self, here: Place) -> None:
        self.tokens = {
            token_of(name): f"system:serviceaccount:team:{name}" for name in ("ana", "bo")
        }
        self.ana, self.bo = self.tokens
        self.door = Door(dict(self.tokens))
        self.issuer = Issuer(self.door.actors)
        self.team = Team(Sessions(here.state, lambda: None), {})
        self.url = ""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._runners: list[web.AppRunner] = []

    def run(self, act: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(act, self._loop).result(20)

    def reset(self) -> None:
        """As it was: ana may do all, bo may look."""
        actors = list(self.tokens.values())
        self.door.actors.clear()
        self.door.actors.update(self.tokens)
        self.team.rights = {actors[0]: ALL, actors[1]: LOOK, "ana@example.com": ALL}
        self.team.others, self.team.phase, self.team.speaks = [], "Running", True
        self.team.suspended = None
        self.team.woken.clear()
        self.issuer.spoil = {}

    def start(self) -> None:
        self._thread.start()
        self.issuer.address = self.run(self._listen(self.issuer.application()))
        login = Login((Oidc(self.issuer.issuer, CLIENT_ID), Token(), PROXY))
        self._http = Http(self.door, self.team, Assets(), lambda: None, one=ONE, login=login)
        self._app = self._http.application()
        self.url = self.run(self._listen(self._app))
        self.reset()

    async def _listen(self, app: web.Application) -> str:
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
        await runner.setup()
        self._runners.append(runner)
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return f"http://127.0.0.1:{runner.addresses[0][1]}"

    def stop_streams(self) -> None:
        """What a gateway does when it stops; this one goes on in the place of another replica."""

        async def stop() -> None:
            for act in self._app.on_shutdown:
                await act(self._app)

        self.run(stop())

    def say(self, kind: str) -> None:
        """News, to all who are attached."""

        async def act() -> None:
            for one in self.team.spoken:
                one.queue.put_nowait(encode(Control({"kind": kind})))

        self.run(act())

    def cut(self, actor: str, rights: frozenset[Right], error: Exception) -> None:
        async def act() -> None:
            self.team.revoke(actor, rights, error)

        self.run(act())

    def expire(self, token: str) -> None:
        """A token that is not valid any more, as a gateway finds out."""
        self.door.actors.pop(token)
        error = Unauthenticated("this token is not valid any more", "make a new one")

        async def act() -> None:
            self.team.revoke("", frozenset(), error)

        self.run(act())

    def close(self) -> None:
        for runner in self._runners:
            self.run(runner.cleanup())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()


@contextlib.contextmanager
def cluster(here: Place) -> Iterator[Cluster]:
    made = Cluster(here)
    made.start()
    try:
        yield made
    finally:
        made.close()


def told_of(count: int) -> list[dict[str, Any]]:
    """Sessions as a list has them, of every kind."""
    states = [
        ("running", "make (pid 812) is running.", "Running"),
        ("prompt", "bash (pid 44) is at its prompt.", "Running"),
        ("reading", "python3 (pid 91) is waiting for input from the terminal.", "Running"),
        ("suspended", "is Suspended", "Suspended"),
        ("moving", "is Moving", "Moving"),
        ("password", "sudo (pid 7) is waiting for input that is not shown.", "Running"),
        ("ended", "has ended", "Ended"),
    ]
    people = [["ana", "bo"], [], ["ci"], [], ["ana"], ["bo", "ci", "dana", "eve", "finn"], []]
    made = []
    for number in range(count):
        activity, sentence, phase = states[number % len(states)]
        made.append(
            {
                "session": f"job-{number:03}",
                "namespace": ("data", "infra", "team")[number % 3],
                "phase": phase,
                "epoch": number % 5 + 1,
                "node": f"node-{'abc'[number % 3]}",
                "command": ["bash", "-l"],
                "created": time.time() - 977 * number,
                "clients": [{"actor": name} for name in people[number % len(people)]],
                "state": {
                    "activity": activity,
                    "sentence": sentence,
                    "exit": {"code": 1} if activity == "ended" else None,
                },
            }
        )
    return made
