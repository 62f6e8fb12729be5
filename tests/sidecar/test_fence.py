"""The Lease's keeper in virtual time, against a store and a hold that fail as they are told to."""

from __future__ import annotations

import asyncio
import copy
import itertools
import selectors
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from api_kit import LEASE_PATH, OWNER, PREFIX, lease, status
from holdfast_sidecar.fence import Fence, Superseded
from holdfast_sidecar.hold import HoldError, HoldStatus
from holdfast_sidecar.kube import Answer, ApiError
from holdfast_sidecar.lease_object import record_of
from holdfast_wire.lease import Epoch, Holder, Standing, Timing

ME = "pod-uid/nonce"
TIMING = Timing.of(20)
NS = 1_000_000_000


class VirtualLoop(asyncio.SelectorEventLoop):
    """Nobody waits: when nothing is left to do, it is later."""

    def __init__(self) -> None:
        self.now = 1000.0
        outer = self

        class Selector(selectors.SelectSelector):
            def select(self, timeout: float | None = None) -> Any:
                assert timeout is not None, "everybody waits for ever"
                outer.now += max(0.0, timeout)
                return super().select(0)

        super().__init__(Selector())

    def time(self) -> float:
        return self.now


class Store:
    """The API, in memory: each request is told to `script` first, which may raise or answer."""

    def __init__(self, body: dict[str, Any] | None) -> None:
        self.version = 1
        self.body = body
        if body is not None:
            body["metadata"]["resourceVersion"] = "1"
        self.script: deque[Callable[[], Answer | None] | None] = deque()
        self.always: Callable[[], Answer | None] | None = None
        self.latency = 0.0
        self.log: list[tuple[float, str]] = []

    async def get(self, path: str) -> Answer:
        return await self._ask("GET", None)

    async def put(self, path: str, body: dict[str, Any]) -> Answer:
        return await self._ask("PUT", copy.deepcopy(body))

    async def _ask(self, method: str, body: dict[str, Any] | None) -> Answer:
        self.log.append((asyncio.get_running_loop().time(), method))
        await asyncio.sleep(self.latency)
        step = self.script.popleft() if self.script else self.always
        answer = step() if step is not None else None
        if answer is not None:
            return answer
        result = self.act(body)
        if step is LOST:
            raise ApiError("the connection was reset")
        return result

    def act(self, body: dict[str, Any] | None) -> Answer:
        if self.body is None:
            return Answer(404, status(404, "NotFound"))
        if body is not None:
            if body["metadata"]["resourceVersion"] != self.body["metadata"]["resourceVersion"]:
                return Answer(409, status(409, "Conflict"))
            self.write(body)
        return Answer(200, copy.deepcopy(self.body))

    def write(self, body: dict[str, Any]) -> None:
        self.version += 1
        self.body = copy.deepcopy(body)
        self.body["metadata"]["resourceVersion"] = str(self.version)

    def edit(self, **notes: str) -> None:
        assert self.body is not None
        changed = copy.deepcopy(self.body)
        changed["metadata"]["annotations"] |= {PREFIX + name: text for name, text in notes.items()}
        self.write(changed)

    @property
    def holder(self) -> str:
        return str((self.body or {}).get("spec", {}).get("holderIdentity"))

    def note(self, name: str) -> str | None:
        found: dict[str, str] = (self.body or {})["metadata"]["annotations"]
        return found.get(PREFIX + name)


def LOST() -> None:  # noqa: N802 - named in scripts, beside what they answer
    """Done, and the answer never comes."""


def refused(code: int) -> Callable[[], Answer]:
    return lambda: Answer(code, status(code, "Refused"))


def answered(body: dict[str, Any]) -> Callable[[], Answer]:
    return lambda: Answer(200, copy.deepcopy(body))


def unreachable() -> Answer:
    raise ApiError("no route to host")


class Guard:
    def __init__(self) -> None:
        self.told: list[tuple[float, int]] = []
        self.refuse: deque[HoldError] = deque()
        self.takes = 0.0
        self.left = 0

    async def status(self) -> HoldStatus:
        said: dict[str, Any] = dict.fromkeys(HoldStatus.__slots__, False)
        return HoldStatus(**said | {"frozen": True, "incomplete": self.left})

    async def deadline(self, boottime_ns: int) -> None:
        await asyncio.sleep(self.takes)
        if self.refuse:
            raise self.refuse.popleft()
        self.told.append((asyncio.get_running_loop().time(), boottime_ns))

    @property
    def deadlines(self) -> list[int]:
        return [deadline for _, deadline in self.told]


class World:
    def __init__(self, body: dict[str, Any] | None) -> None:
        self.loop = VirtualLoop()
        self.store, self.guard = Store(body), Guard()
        self.said: list[str] = []
        self.fence = self.another()

    def another(self) -> Fence:
        """As a sidecar that was started again has it."""
        holder = Holder(TIMING, ME, Epoch(3))
        say, clock = self.said.append, self.loop.time
        return Fence(self.store, LEASE_PATH, OWNER, holder, self.guard, say, clock)

    def run(self, work: Coroutine[Any, Any, Any], seconds: float = 1e6) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(seconds):
                await work

        self.loop.run_until_complete(bounded())

    def keep(self, seconds: float) -> None:
        with pytest.raises(TimeoutError):
            self.run(self.fence.keep(nothing_new), seconds)

    def sends(self, method: str = "PUT") -> list[float]:
        return [at for at, what in self.store.log if what == method]


async def nothing_new() -> dict[str, str]:
    return {}


@pytest.fixture
def world(request: pytest.FixtureRequest) -> Any:
    made = World(getattr(request, "param", lease(3)))
    yield made
    made.loop.close()


def acquired(world: World) -> World:
    world.run(world.fence.acquire())
    world.store.log.clear()
    world.guard.told.clear()
    return world


# -- taking it ------------------------------------------------------------------------------------


def test_acquired_it_is_ours_until_so_long_after_it_was_sent(world: World) -> None:
    world.store.latency = 0.5
    world.run(world.fence.acquire())
    assert world.store.holder == ME
    assert world.fence.standing is Standing.HELD
    sent = world.sends()[0]
    assert world.guard.told == [(sent + 0.5, int((sent + TIMING.freeze_after) * NS))]


@pytest.mark.parametrize("world", [lease(3, ME)], indirect=True)
def test_a_sidecar_that_comes_again_goes_on_with_what_it_has(world: World) -> None:
    world.run(world.fence.acquire())
    assert world.store.holder == ME
    assert "acquireTime" not in (world.store.body or {})["spec"]


@pytest.mark.parametrize(
    "world",
    [lease(4), lease(3, "other/nonce"), lease(3, "nobody"), lease(3, "", released="3")],
    indirect=True,
)
def test_what_was_not_granted_is_not_taken(world: World) -> None:
    with pytest.raises(Superseded):
        world.run(world.fence.acquire())
    assert world.sends() == []
    assert world.guard.deadlines == [0]


@pytest.mark.parametrize("world", [None, lease(2), lease(2, "", released="2")], indirect=True)
def test_what_is_missing_or_rolled_back_is_waited_for(world: World) -> None:
    with pytest.raises(TimeoutError):
        world.run(world.fence.acquire(), 60)
    assert world.sends() == []
    assert world.guard.deadlines == [0]
    reads = world.sends("GET")
    assert {round(b - a, 3) for a, b in itertools.pairwise(reads)} == {3.0}
    world.store.write(lease(3))
    world.run(world.fence.acquire())
    assert world.guard.deadlines[1] > 0


@pytest.mark.parametrize(
    "change",
    [
        {"metadata": {"name": "it", "resourceVersion": "1", "annotations": ["epoch"]}},
        {"metadata": {"name": "it", "resourceVersion": "1"}, "spec": "none"},
        {"metadata": {"name": "it", "annotations": {PREFIX + "epoch": 3}}, "spec": None},
        {"metadata": {"name": "it", "annotations": {PREFIX + "epoch": "9" * 5000}}},
        {"metadata": {"name": "it", "annotations": {PREFIX + "epoch": "\u0663"}}},
        {"metadata": {"name": "it", "annotations": {PREFIX + "epoch": "+3"}}},
    ],
)
def test_a_lease_that_cannot_be_read_is_nobody_s_promise(
    world: World, change: dict[str, Any]
) -> None:
    assert record_of(change).epoch == 0
    world.store.always = lambda: Answer(200, copy.deepcopy(change))
    with pytest.raises(TimeoutError):
        world.run(world.fence.acquire(), 10)
    assert world.fence.standing is Standing.ROLLED_BACK
    assert world.sends() == []


def test_odd_fields_of_others_do_no_harm(world: World) -> None:
    assert world.store.body is not None
    world.store.body["spec"] = {"leaseTransitions": "many"}
    world.run(world.fence.acquire())
    assert (world.store.body or {})["spec"]["leaseTransitions"] == 1


def test_hold_must_know_before_the_command_may_start(world: World) -> None:
    world.guard.refuse.append(HoldError("busy", "try again"))
    world.run(world.fence.acquire())
    assert len(world.guard.told) == 1
    assert len(world.sends()) == 2
    world.guard.refuse.append(HoldError("lost", "gone"))
    with pytest.raises(HoldError):
        world.run(world.another().acquire())


# -- keeping it -----------------------------------------------------------------------------------


def test_renewed_every_so_often_and_not_read(world: World) -> None:
    acquired(world).keep(31)
    assert len(world.sends()) == 10
    assert world.sends("GET") == []
    assert world.guard.deadlines == [
        pytest.approx((at + TIMING.freeze_after) * NS) for at in world.sends()
    ]


def test_facts_go_out_with_a_renewal_and_cost_none(world: World) -> None:
    acquired(world)
    world.fence.note(started="3", start_error="none")
    world.fence.renew_now()

    async def slow() -> dict[str, str]:
        if len(world.sends()) == 1:
            raise HoldError("busy", "not now")
        if len(world.sends()) == 2:
            await asyncio.sleep(3600)
        return {"clients": str(len(world.sends()))}

    with pytest.raises(TimeoutError):
        world.run(world.fence.keep(slow), 10)
    assert world.store.note("started") == "3"
    assert world.store.note("start-error") == "none"
    assert world.store.note("clients") == "3"
    sends = world.sends()
    assert sends[0] == 1000
    assert max(b - a for a, b in itertools.pairwise(sends)) <= TIMING.renew_every + 0.6


def test_a_lost_answer_is_decided_by_a_read(world: World) -> None:
    acquired(world).store.script += [LOST]
    world.keep(4)
    assert [what for _, what in world.store.log] == ["PUT", "GET", "PUT"]
    # Of the one in doubt hold was told nothing, although it was done.
    assert world.guard.deadlines == [int((world.sends()[1] + TIMING.freeze_after) * NS)]
    assert world.store.version == 4


def test_somebody_else_s_annotation_is_kept(world: World) -> None:
    acquired(world).store.edit(theirs="x")
    world.keep(4)
    assert [what for _, what in world.store.log] == ["PUT", "GET", "PUT"]
    assert world.store.note("theirs") == "x"
    assert world.fence.standing is Standing.HELD


def test_an_answer_that_shows_no_renewal_is_none(world: World) -> None:
    acquired(world)
    unchanged = copy.deepcopy(world.store.body)
    theirs = lease(3, "other/nonce")
    theirs["metadata"]["resourceVersion"] = "77"
    for odd in (unchanged, theirs, {}, {"metadata": {"name": "other"}}):
        world.store.script += [answered(odd or {}), None, None]
    world.store.always = unreachable
    world.keep(14)
    taken = [at for at in world.guard.deadlines if at > 0]
    assert len(world.sends()) == 8
    assert len(taken) == 4


@pytest.mark.parametrize("body", [lease(4, "next/nonce"), lease(4), lease(3, "other/nonce")])
def test_superseded_freezes_before_anybody_hears_of_it(world: World, body: dict[str, Any]) -> None:
    acquired(world).store.write(body)
    world.guard.takes = 1.0
    with pytest.raises(Superseded):
        world.run(world.fence.keep(nothing_new), 20)
    assert world.guard.deadlines == [0]
    assert world.store.holder == body["spec"]["holderIdentity"]


def test_a_slow_hold_is_not_a_slow_api(world: World) -> None:
    acquired(world).store.write(lease(4))
    world.guard.takes = 3.0  # the longest a freeze takes; more than a request may
    with pytest.raises(Superseded):
        world.run(world.fence.keep(nothing_new), 20)
    assert world.guard.deadlines == [0]
    assert not any("in time" in line for line in world.said)


def test_a_hold_that_was_busy_is_told_again(world: World) -> None:
    acquired(world).store.body = None
    world.guard.refuse += [HoldError("busy", "not now")] * 2
    world.keep(20)
    assert world.guard.deadlines == [0]


def test_missing_is_frozen_until_a_renewal_is_acknowledged(world: World) -> None:
    acquired(world)
    before = copy.deepcopy(world.store.body)
    world.store.body = None
    world.keep(60)
    assert world.fence.standing is Standing.MISSING
    assert world.guard.deadlines == [0]
    assert before is not None
    world.store.write(before)
    world.store.script += [None, refused(500)]  # seen again, but not yet renewed
    world.keep(TIMING.renew_every + 0.1)
    assert world.guard.deadlines == [0]
    world.keep(4)
    assert world.guard.deadlines[1] == int((world.sends()[-1] + TIMING.freeze_after) * NS)


def test_rolled_back_is_frozen_and_stays(world: World) -> None:
    acquired(world).store.write(lease(2, "older/nonce"))
    world.keep(60)
    assert world.fence.standing is Standing.ROLLED_BACK
    assert world.guard.deadlines == [0]
    assert len(world.sends()) == 1


def test_a_proxy_s_404_is_not_the_lease_s(world: World) -> None:
    acquired(world).store.always = lambda: Answer(404, {"message": "no such backend"})
    world.keep(60)
    assert world.guard.deadlines == []
    assert world.fence.standing is Standing.HELD


@pytest.mark.parametrize("code", [401, 403, 429, 500, 503])
def test_refusals_freeze_nobody_by_themselves_and_are_survived(world: World, code: int) -> None:
    acquired(world).store.always = refused(code)
    world.keep(60)
    assert world.guard.deadlines == []
    pauses = [b[0] - a[0] for a, b in itertools.pairwise(world.store.log)]
    assert pauses[:4] == pytest.approx([0.25, 0.5, 1.0, 1.5], abs=0.01)
    assert {round(pause, 2) for pause in pauses[4:]} == {1.5}
    world.store.always = None
    world.keep(TIMING.renew_every + 0.1)
    assert len(world.guard.deadlines) == 1
    assert len([line for line in world.said if str(code) in line]) == 1


def test_a_storm_of_429_leaves_no_gap_longer_than_the_deadline(world: World) -> None:
    acquired(world)
    for _ in range(60):  # five of six are refused
        world.store.script += [refused(429)] * 5 + [None]
    world.keep(200)
    at = [when for when, _ in world.guard.told]
    assert max(b - a for a, b in itertools.pairwise(at)) < TIMING.freeze_after


def test_an_api_that_does_not_answer_is_asked_again_in_time(world: World) -> None:
    acquired(world).store.latency = 3600
    world.keep(11)
    sent = [at for at, _ in world.store.log]
    assert [b - a for a, b in itertools.pairwise(sent)] == pytest.approx(
        [TIMING.request_timeout] * (len(sent) - 1), abs=0.6
    )
    assert world.guard.deadlines == []
    assert len(world.said) == 1


# -- giving it back -------------------------------------------------------------------------------


def test_released_for_good(world: World) -> None:
    acquired(world)
    world.run(world.fence.release(exit="{}"))
    assert (world.store.holder, world.store.note("released")) == ("", "3")
    assert world.store.note("exit") == "{}"
    assert world.guard.told == []
    with pytest.raises(Superseded):
        world.run(world.another().acquire())


@pytest.mark.parametrize("code", [0, 409, 500])
def test_a_release_whose_answer_was_lost_is_not_done_twice(world: World, code: int) -> None:
    acquired(world).store.script += [refused(code) if code else LOST]
    world.run(world.fence.release(exit="{}"))
    assert world.store.note("released") == "3"
    assert len(world.sends()) == (2 if code else 1)
    version = world.store.version
    world.run(world.another().release(exit="another"))
    assert (world.store.version, world.store.note("exit")) == (version, "{}")


def test_a_release_goes_on_until_the_api_is_back(world: World) -> None:
    acquired(world).store.always = unreachable
    with pytest.raises(TimeoutError):
        world.run(world.fence.release(exit="{}"), 3600)
    world.store.always = None
    world.run(world.fence.release(exit="{}"), 10)
    assert world.store.note("released") == "3"


def test_nobody_is_left_to_release_to(world: World) -> None:
    acquired(world).store.body = None
    world.run(world.fence.release(exit="{}"), 10)
    world.store.write(lease(4))
    with pytest.raises(Superseded):
        world.run(world.another().release(exit="{}"), 10)


@pytest.mark.parametrize(
    ("uid", "anothers"), [(OWNER, False), ("another", True)], ids=["ours", "another's"]
)
def test_the_lease_of_another_session_of_the_same_name(
    world: World, uid: str, anothers: bool
) -> None:
    owners = [{"kind": "Session", "name": "it", "uid": uid}]
    assert world.store.body is not None
    world.store.body["metadata"]["ownerReferences"] = owners
    if anothers:
        with pytest.raises(Superseded):
            world.run(world.fence.acquire(), 10)
        assert world.guard.deadlines == [0]
    else:
        world.run(world.fence.acquire(), 10)
        assert world.fence.standing is Standing.HELD
