"""Sessions of a cluster: who is let in, who may do what, and who may not any more."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from cluster_kit import POD, POD_UID, FakeApi, answering, lease, session, sessions_of
from holdfast_gateway import cluster, reviews
from holdfast_gateway.auth import Caller, Modality
from holdfast_gateway.cluster import ClusterSessions, Verifier
from holdfast_gateway.reviews import Reviews
from holdfast_gateway.uplinks import Uplinks
from holdfast_gateway.watched import Watched
from holdfast_wire.errors import (
    BadRequest,
    Ended,
    Forbidden,
    HoldfastError,
    NotFound,
    Suspended,
    Unauthenticated,
    Unavailable,
    Unsupported,
)
from holdfast_wire.ids import Actor
from holdfast_wire.rights import Right
from uplink_kit import authority, dialling, until

SIDECAR = "system:serviceaccount:ns:holdfast-it"
HELLO = {"version": 1, "namespace": "ns", "session": "it", "epoch": 1, "token": "token"}
ADA = Caller(Actor("ada"), Modality.HTTP)
BEA = Caller(Actor("bea"), Modality.BROWSER)


@pytest.fixture
def api() -> FakeApi:
    made = FakeApi()
    made.know("token", SIDECAR, "holdfast-gateway", **{POD: "it-1", POD_UID: "pod"})
    made.leases["ns", "it"] = lease("it", "pod/nonce", 1)
    made.sessions = [session("ns", "it")]
    return made


# -- who has dialled in (attack 22) --------------------------------------------------------------


async def hello(api: FakeApi, **other: Any) -> Any:
    return await Verifier(api, Reviews(api))({**HELLO, **other})  # type: ignore[arg-type]


async def test_the_pod_that_holds_the_lease(api: FakeApi) -> None:
    found = await hello(api)
    assert (found.key, found.uid, found.epoch, found.pod) == (("ns", "it"), "uid-it", 1, "it-1")


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ({"version": 2}, Unsupported),
        ({"session": "../x"}, HoldfastError),
        ({"epoch": "x"}, BadRequest),
        ({"token": ""}, Unauthenticated),
        ({"token": "for another audience"}, Unauthenticated),
        ({"token": "x" * 20_000}, Unauthenticated),
        ({"namespace": "other"}, Forbidden),
        ({"session": "other"}, Forbidden),
        ({"epoch": 2}, Forbidden),
        ({"epoch": 0}, Forbidden),
        ({"token": "another pod's"}, Forbidden),
        ({"token": "a person's"}, Forbidden),
        ({"token": "no pod's"}, Forbidden),
    ],
)
async def test_nobody_else(api: FakeApi, said: dict[str, Any], kind: type[Exception]) -> None:
    api.know("for another audience", SIDECAR, "api", **{POD_UID: "pod"})
    api.know("another pod's", SIDECAR, "holdfast-gateway", **{POD: "it-2", POD_UID: "pod2"})
    api.know("a person's", "ada", "holdfast-gateway", **{POD_UID: "pod"})
    api.know("no pod's", SIDECAR, "holdfast-gateway")
    with pytest.raises(kind):
        await hello(api, **said)


# -- people ---------------------------------------------------------------------------------------


class Reached:
    def __init__(self, backend: ClusterSessions, uplinks: Uplinks, access: Reviews) -> None:
        self.backend, self.uplinks, self.access = backend, uplinks, access
        self.heard: list[dict[str, Any]] = []


@pytest.fixture
async def reached(api: FakeApi, tmp_path: Path) -> AsyncIterator[Reached]:
    """One session whose sidecar has dialled in."""
    ca = authority()
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(*ca.sign(tmp_path, "gateway", "localhost"))
    answers = {"screen": {"text": "hello"}, "send": {"order": 1}, "info": {"seq": 7}}
    async with sessions_of(api) as (backend, uplinks, access):
        found = Reached(backend, uplinks, access)
        async with (
            uplinks.listening(tls, 0, "127.0.0.1") as port,
            dialling(ca, port, tmp_path, 1, answering(answers, found.heard)),
        ):
            await until(lambda: uplinks.get(("ns", "it")))
            yield found


async def test_asked_as_who_he_is(reached: Reached, api: FakeApi) -> None:
    api.allow("ada", Right.OBSERVE, Right.TYPE)
    assert await reached.backend.request("it", {"kind": "screen"}, ADA) == {"text": "hello"}
    assert await reached.backend.request("ns/it", {"kind": "send"}, ADA) == {"order": 1}
    assert [one["as"] for one in reached.heard] == [
        {"actor": "ada", "uid": "", "modality": "http"}
    ] * 2
    asked = [spec for kind, spec in api.asked if kind == "subjectaccessreviews"]
    assert [one["resourceAttributes"] for one in asked] == [
        {
            "group": "subresources.holdfast.dev",
            "version": "v1alpha1",
            "resource": "sessions",
            "subresource": act,
            "namespace": "ns",
            "verb": verb,
            "name": "it",
        }
        for act, verb in (("observe", "get"), ("type", "create"))
    ]


async def test_who_may_look_may_not_type(reached: Reached, api: FakeApi) -> None:
    api.allow("bea", Right.OBSERVE, name="it")
    await reached.backend.request("it", {"kind": "screen"}, BEA)
    for kind in ("send", "exec", "take", "end", "signal", "job_start", "freeze"):
        with pytest.raises(Forbidden):
            await reached.backend.request("it", {"kind": kind}, BEA)
    assert [one["kind"] for one in reached.heard] == ["screen"]


async def test_absent_and_forbidden_sound_the_same(reached: Reached, api: FakeApi) -> None:
    """Attack 9: a stranger learns no names."""
    said = set()
    for name in ("it", "nothing"):
        for ask in (
            reached.backend.request(name, {"kind": "screen"}, ADA),
            reached.backend.describe(name, ADA),
        ):
            with pytest.raises(Forbidden) as caught:
                await ask
            said.add(str(caught.value).replace(name, "NAME"))
    assert len(said) == 1
    api.allow("ada", Right.OBSERVE)
    await asyncio.sleep(0)
    with pytest.raises(NotFound):
        await reached.backend.describe("nowhere", ADA)


async def test_before_it_has_seen_them_it_denies_no_session(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gateway that was killed and is back is asked before it has listed them: `NotFound` would
    end a client for good."""
    api.allow("ada", Right.OBSERVE)
    asks = Reviews(api)  # type: ignore[arg-type]
    uplinks = Uplinks(Verifier(api, asks))  # type: ignore[arg-type]
    watched = Watched(api, (), lambda _: None)  # type: ignore[arg-type]
    early = ClusterSessions(api, asks, uplinks, watched, "ns")  # type: ignore[arg-type]
    asked = asyncio.create_task(early.describe("it", ADA))
    for _ in range(5):  # and it waits
        await asyncio.sleep(0)
    monkeypatch.setattr(cluster, "CONNECT_SECONDS", 0.0)
    for ask in (early.describe("it", ADA), early.request("it", {"kind": "state"}, ADA)):
        with pytest.raises(Unavailable):
            await ask
    with pytest.raises(Unavailable):
        await early.list(ADA)
    running = asyncio.create_task(watched.run())
    assert (await asked)["session"] == "it"
    running.cancel()
    await asyncio.wait([running])


async def test_only_what_one_may_see_is_listed(reached: Reached, api: FakeApi) -> None:
    for namespace, name in (("ns", "b"), ("other", "c"), ("other", "d")):
        api.events.put_nowait({"type": "ADDED", "object": session(namespace, name, "Pending")})
    await until(api.events.empty)
    api.allow("ada", Right.OBSERVE)
    api.allow("ada", Right.OBSERVE, namespace="other", name="d")
    listed = await reached.backend.list(ADA)
    names = {f"{one['namespace']}/{one['session']}": one for one in listed}
    assert names.keys() == {"ns/it", "ns/b", "other/d"}
    assert names["ns/it"]["seq"] == 7  # its sidecar said so
    assert names["ns/b"]["phase"] == "Pending"
    assert await reached.backend.list(BEA) == []


async def test_without_the_api_server_nobody_is_let_in(reached: Reached, api: FakeApi) -> None:
    api.allow("ada", Right.OBSERVE)
    api.away = True
    with pytest.raises(Unavailable):
        await reached.backend.request("it", {"kind": "screen"}, ADA)
    api.away = False
    await reached.backend.request("it", {"kind": "screen"}, ADA)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (cluster, reviews):
        monkeypatch.setattr(module, "FRESH_SECONDS", 0.05)
    monkeypatch.setattr(cluster, "GRACE_SECONDS", 0.3)


async def test_a_right_that_is_taken_away_cuts_what_goes_on(
    reached: Reached, api: FakeApi, quick: None
) -> None:
    """Fault 40: two seconds in production, and five are promised."""
    api.allow("ada", Right.OBSERVE, Right.TYPE)
    async with reached.backend.connect("it", ADA) as link:
        await link.allow(Right.TYPE)
        await asyncio.sleep(0.2)
        assert not link.cut.done()
        api.allowed.discard(("ada", "type", "ns", "*"))
        with pytest.raises(Forbidden, match="may not create sessions/type"):
            await asyncio.wait_for(link.cut, 5)


async def test_a_token_that_is_revoked_cuts_what_goes_on(
    reached: Reached, api: FakeApi, quick: None
) -> None:
    """Attack 10."""
    api.allow("ada", Right.OBSERVE)
    api.know("hers", "ada")
    caller = await reached.access.caller("hers", Modality.HTTP)
    async with reached.backend.connect("it", caller) as link:
        del api.tokens["hers", "holdfast"]
        with pytest.raises(Unauthenticated):
            await asyncio.wait_for(link.cut, 5)


async def test_an_api_server_that_is_away_is_waited_out_for_a_while(
    reached: Reached, api: FakeApi, quick: None
) -> None:
    api.allow("ada", Right.OBSERVE)
    async with reached.backend.connect("it", ADA) as link:
        api.away = True
        await asyncio.sleep(0.15)
        assert not link.cut.done()
        with pytest.raises(Unavailable):
            await asyncio.wait_for(link.cut, 5)


ASKED: dict[str, Any] = {"metadata": {"annotations": {"holdfast.dev/wake": "1"}}}


def asleep(why: str, **spec: Any) -> dict[str, Any]:
    made = session("ns", "it", "Suspended", **spec)
    made["status"]["suspended"] = {"why": why, "at": "2026-11-18T20:00:00Z"}
    return made


async def test_one_that_was_idle_goes_on_for_who_may_wake_it(api: FakeApi) -> None:
    api.sessions = [asleep("Idle")]
    api.allow("ada", Right.OBSERVE, Right.WAKE)
    async with sessions_of(api) as (backend, _uplinks, _):
        with pytest.raises(Unavailable, match="Suspended"):
            await backend.request("it", {"kind": "screen"}, ADA, patience=0.0)
    assert api.patched == [("ns", "it", ASKED)]


async def test_to_look_wakes_nothing(api: FakeApi) -> None:
    """Attack 37: an observer of a suspended session used the gateway's own rights to wake it."""
    api.allow("ada", Right.OBSERVE)
    for item in (asleep("Idle"), asleep("Suspend", suspended=True)):
        api.sessions = [item]
        async with sessions_of(api) as (backend, _uplinks, _):
            for ask in (
                backend.request("it", {"kind": "screen"}, ADA, patience=0.0),
                _connected(backend),
            ):
                with pytest.raises(Suspended, match="ada may not create sessions/wake") as caught:
                    await ask
                assert "2026-11-18T20:00:00Z" in caught.value.message
            told = await backend.describe("it", ADA)
            assert told["suspended"]["may"] is False
            with pytest.raises(Forbidden):
                await backend.wake("it", ADA)
    assert api.patched == []


async def _connected(backend: ClusterSessions) -> None:
    async with backend.connect("it", ADA, patience=0.0):
        raise AssertionError("it was reached")


async def test_what_a_person_suspended_stays_so_until_one_says_otherwise(api: FakeApi) -> None:
    """Attack 37."""
    api.sessions = [asleep("Suspend", suspended=True)]
    api.allow("ada", Right.OBSERVE, Right.TYPE, Right.WAKE)
    async with sessions_of(api) as (backend, _uplinks, _):
        with pytest.raises(Suspended, match="somebody suspended it") as caught:
            await backend.request("it", {"kind": "screen"}, ADA, patience=0.0)
        assert "wake" in caught.value.advice
        with pytest.raises(Suspended):
            await _connected(backend)
        assert api.patched == []
        told = (await backend.describe("it", ADA))["suspended"]
        assert told == {"wakes": "asked", "since": "2026-11-18T20:00:00Z", "may": True}
        await backend.wake("it", ADA)
    assert api.patched == [("ns", "it", {**ASKED, "spec": {"suspended": False}})]


@pytest.mark.parametrize("why", ["Idle", "Suspend", "Drain"])
async def test_one_that_is_being_woken_is_waited_for(api: FakeApi, why: str) -> None:
    """By whoever may look: it takes nobody's right again."""
    item = asleep(why)
    if why == "Idle":
        item["metadata"]["annotations"] = {"holdfast.dev/wake": "1"}
    api.sessions = [item]
    api.allow("ada", Right.OBSERVE)
    async with sessions_of(api) as (backend, _uplinks, _):
        with pytest.raises(Unavailable):
            await backend.request("it", {"kind": "screen"}, ADA, patience=0.0)
    assert api.patched == []


async def test_one_that_has_ended_says_so(api: FakeApi) -> None:
    api.sessions = [session("ns", "it", "Ended")]
    api.allow("ada", Right.OBSERVE)
    async with sessions_of(api) as (backend, _uplinks, _):
        with pytest.raises(Ended):
            await backend.request("it", {"kind": "screen"}, ADA)


# -- how the answers are kept ---------------------------------------------------------------------


async def test_many_questions_at_once_are_one(api: FakeApi) -> None:
    access = Reviews(api)  # type: ignore[arg-type]
    api.allow("ada", Right.OBSERVE)
    await asyncio.gather(*(access.allow(ADA, Right.OBSERVE, "ns", "it") for _ in range(50)))
    assert len(api.asked) == 1


async def test_an_answer_is_not_kept_long(api: FakeApi, quick: None) -> None:
    access = Reviews(api)  # type: ignore[arg-type]
    api.allow("ada", Right.OBSERVE)
    await access.allow(ADA, Right.OBSERVE, "ns", "it")
    api.allowed.clear()
    await asyncio.sleep(0.1)
    with pytest.raises(Forbidden):
        await access.allow(ADA, Right.OBSERVE, "ns", "it")


async def test_one_persons_answer_is_not_anothers(api: FakeApi) -> None:
    access = Reviews(api)  # type: ignore[arg-type]
    api.allow("ada", Right.OBSERVE)
    await access.allow(ADA, Right.OBSERVE, "ns", "it")
    grouped = Caller(Actor("bea"), Modality.HTTP, groups=("admins",))
    for caller in (BEA, grouped):
        with pytest.raises(Forbidden):
            await access.allow(caller, Right.OBSERVE, "ns", "it")


async def test_no_token_is_kept_in_memory(api: FakeApi) -> None:
    access = Reviews(api)  # type: ignore[arg-type]
    api.know("a-secret-token", "ada")
    await access.caller("a-secret-token", Modality.HTTP)
    assert "a-secret-token" not in repr(access._tokens._known)


async def test_a_refused_token_is_asked_about_once_in_a_while(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attack 41: each request with a wrong token was a TokenReview after two seconds."""
    monkeypatch.setattr(reviews, "FRESH_SECONDS", 0.0)
    access = Reviews(api)  # type: ignore[arg-type]
    for _ in range(20):
        with pytest.raises(Unauthenticated):
            await access.caller("wrong", Modality.HTTP, "10.0.0.9")
    assert len(api.asked) == 1


async def test_an_address_tries_so_many_wrong_tokens_and_the_known_are_let_in(api: FakeApi) -> None:
    """Attack 41: a TokenReview for each made-up token, as many as somebody likes."""
    access = Reviews(api)  # type: ignore[arg-type]
    api.know("right", "ada")
    await access.caller("right", Modality.HTTP, "10.0.0.9")
    most, refused = reviews.REFUSALS[0] + 10, []
    for number in range(300):
        with pytest.raises((Unauthenticated, Unavailable)) as caught:
            await access.caller(f"wrong-{number}", Modality.HTTP, "10.0.0.9")
        refused.append(caught.value)
    assert len(api.asked) <= most
    assert isinstance(refused[-1], Unavailable)
    assert (await access.caller("right", Modality.HTTP, "10.0.0.9")).actor.name == "ada"
    with pytest.raises(Unauthenticated):
        await access.caller("wrong-300", Modality.HTTP, "10.0.0.8")


async def test_what_is_kept_of_tokens_is_bounded(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attack 41: answers that are fresh were kept however many there were."""
    monkeypatch.setattr(reviews, "_MOST", 100)
    access = Reviews(api)  # type: ignore[arg-type]
    for number in range(300):
        with pytest.raises(Unauthenticated):
            await access.user(f"wrong-{number}")
    assert len(access._tokens._known) <= 100
    assert len(access._refused._until) <= 100


async def test_an_api_server_that_is_away_costs_nobody_a_try(api: FakeApi) -> None:
    access = Reviews(api)  # type: ignore[arg-type]
    api.know("right", "ada")
    api.away = True
    for _ in range(300):
        with pytest.raises(Unavailable):
            await access.caller("right", Modality.HTTP, "10.0.0.9")
    api.away = False
    assert (await access.caller("right", Modality.HTTP, "10.0.0.9")).actor.name == "ada"
