"""Offers in the Lease, in virtual time: whoever ends one, the other knows that it lost."""

from __future__ import annotations

import asyncio
import contextlib
import copy
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from api_kit import LEASE_PATH, OWNER, PREFIX, lease, owned
from holdfast_sidecar.fence import Fence, Gone, Superseded
from holdfast_sidecar.hold import HoldError
from holdfast_sidecar.kube import Answer, ApiError
from holdfast_wire.lease import Epoch, Holder, Record, Standing, Taker, Taking

from .test_fence import LOST, ME, NS, TIMING, Guard, Store, World, nothing_new, refused, unreachable

OTHER = "other-uid/nonce"


class Slow(Store):
    """Each request and each answer takes its time, and some are lost."""

    def __init__(self, body: dict[str, Any], random: Random) -> None:
        super().__init__(body)
        self.random = random

    async def _ask(self, method: str, body: dict[str, Any] | None) -> Answer:
        await asyncio.sleep(self.random.choice((0, 0.01, 0.5, 1.9, 2.5)))
        if self.random.random() < 0.2:
            raise ApiError("lost on its way there")
        result = copy.deepcopy(self.act(body))
        await asyncio.sleep(self.random.choice((0, 0.01, 0.5, 1.9)))
        if self.random.random() < 0.2:
            raise ApiError("lost on its way back")
        return result


class Two(World):
    """A pod with the Lease, and the pod that it is to go to."""

    def __init__(self, random: Random | None = None) -> None:
        body = owned(lease(3, ME, started="3", activity="prompt", fresh="x"))
        body["metadata"]["annotations"]["else/where"] = "kept"
        super().__init__(body)
        if random is not None:
            self.store = Slow(body, random)
            self.fence = self.another()
        self.other_guard = Guard()
        holder = Holder(TIMING, OTHER, Epoch(4))
        say, clock = self.said.append, self.loop.time
        self.other = Fence(self.store, LEASE_PATH, OWNER, holder, self.other_guard, say, clock)
        self.taker = Taker("other-uid", OTHER, Epoch(4))

    @property
    def offer(self) -> list[str | None]:
        return [self.store.note("offer"), self.store.note("offered")]


@pytest.fixture
def two() -> Iterator[Two]:
    made = Two()
    yield made
    made.loop.close()


async def while_kept(fence: Fence, work: Any) -> Any:
    await fence.acquire()
    keeping = asyncio.ensure_future(fence.keep(nothing_new))
    try:
        return await work
    finally:
        keeping.cancel()
        with contextlib.suppress(asyncio.CancelledError, Superseded):
            await keeping


def offered(two: Two) -> Two:
    two.run(while_kept(two.fence, two.fence.offer("other-uid", "first")))
    assert two.offer == ["other-uid", "first"]
    two.store.log.clear()
    return two


# -- the holder's side ----------------------------------------------------------------------------


@pytest.mark.parametrize("script", [[], [LOST], [unreachable], [refused(429)], [refused(500)]])
def test_offered_and_withdrawn_whatever_is_lost(two: Two, script: list[Any]) -> None:
    async def both() -> None:
        two.store.script.extend(script)
        await two.fence.offer("other-uid", "first")
        assert two.offer == ["other-uid", "first"]
        assert two.fence.offered
        two.store.script.extend(script)
        await two.fence.withdraw()
        assert two.offer == [None, None]
        assert not two.fence.offered

    two.run(while_kept(two.fence, both()))


def test_an_offer_may_stand_from_before_it_is_sent_until_a_renewal_without_it_is_known(
    two: Two,
) -> None:
    async def both() -> None:
        two.store.always = unreachable
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(9):
                await two.fence.offer("other-uid", "first")
        assert two.fence.offered, "who knows?"
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(9):
                await two.fence.withdraw()
        assert two.fence.offered
        two.store.always = None
        await two.fence.withdraw()
        assert not two.fence.offered

    two.run(while_kept(two.fence, both()))


def test_an_offer_outlives_the_sidecar_and_its_renewals(two: Two) -> None:
    again = offered(two).another()
    two.run(again.acquire())
    assert again.offered
    assert [*again.offer_found] == two.offer == ["other-uid", "first"]
    two.run(while_kept(again, asyncio.sleep(30)))
    assert two.offer == ["other-uid", "first"]
    two.run(while_kept(again, again.withdraw()))
    assert two.offer == [None, None]
    assert not again.offered


def test_taken_meanwhile_a_withdrawal_is_none(two: Two) -> None:
    """What a read shows has no offer either, and is not ours."""

    async def withdraw() -> None:
        two.store.write(owned(lease(4, OTHER)))
        with pytest.raises(Superseded):
            await two.fence.withdraw()
        with pytest.raises(Superseded):
            await two.fence.offer("other-uid", "second")

    two.run(while_kept(offered(two).fence, withdraw()))
    assert two.store.holder == OTHER


def test_a_release_leaves_no_offer(two: Two) -> None:
    two.run(offered(two).fence.release(exit="x"))
    assert two.offer == [None, None]
    assert two.store.note("released") == "3"


def test_an_offer_and_its_withdrawal_at_once_end_without_it(two: Two) -> None:
    async def both() -> None:
        offering = asyncio.ensure_future(two.fence.offer("other-uid", "first"))
        await asyncio.sleep(0)
        await two.fence.withdraw()
        with pytest.raises(Gone):
            await offering

    two.run(while_kept(two.fence, both()))
    assert two.offer == [None, None]


# -- the side of whom it is offered to ------------------------------------------------------------


@pytest.mark.parametrize(
    "script", [[], [None, LOST], [LOST], [None, unreachable], [None, refused(500)]]
)
def test_taken_it_is_ours_and_nothing_of_the_former_s_is_left(two: Two, script: list[Any]) -> None:
    offered(two).store.script.extend(script)
    two.run(two.other.take(two.taker))
    body = two.store.body or {}
    notes = body["metadata"]["annotations"]
    own = {"epoch": "4", "started": "4", "moved": "3"}
    assert notes == {"else/where": "kept", **{PREFIX + k: v for k, v in own.items()}}
    assert (two.store.holder, body["spec"]["leaseDurationSeconds"]) == (OTHER, 20)
    assert two.other.standing is Standing.HELD
    assert not two.other.offered
    sent = two.sends()[-1]
    assert two.other_guard.deadlines == [int((sent + TIMING.freeze_after) * NS)]


def test_a_hold_that_was_not_told_is_told_again(two: Two) -> None:
    offered(two).other_guard.refuse.append(HoldError("busy", "as the test has it"))
    two.run(two.other.take(two.taker))
    assert len(two.other_guard.told) == 1
    assert two.other.standing is Standing.HELD


@pytest.mark.parametrize(
    "wrong",
    [
        {"offer": "another"},
        {"offer": ""},
        {"offered": ""},
        {"epoch": "2"},
        {"epoch": "4"},
        {"epoch": "5"},
        {"released": "3"},
    ],
)
def test_what_is_not_offered_to_it_is_not_taken(two: Two, wrong: dict[str, str]) -> None:
    offered(two).store.edit(**wrong)
    with pytest.raises(Gone):
        two.run(two.other.take(two.taker))
    assert two.sends() == []
    assert two.store.holder == ME


@pytest.mark.parametrize("owner", [None, "another-session"])
def test_what_is_not_the_session_s_is_not_taken(two: Two, owner: str | None) -> None:
    body = copy.deepcopy(offered(two).store.body or {})
    body["metadata"].pop("ownerReferences")
    two.store.write(body if owner is None else owned(body, owner))
    with pytest.raises(Gone, match="another Session"):
        two.run(two.other.take(two.taker))
    assert two.sends() == []


@pytest.mark.parametrize("seed", range(300))
def test_of_a_withdrawal_and_a_taking_exactly_one_succeeds(seed: int) -> None:
    random = Random(seed)
    two = Two(random)
    won: list[str] = []

    async def source() -> None:
        await asyncio.sleep(random.uniform(0, 4))
        try:
            await two.fence.withdraw()
        except Superseded:
            return
        won.append("source")
        assert two.store.holder == ME, "and at this moment"

    async def target() -> None:
        try:
            await two.other.take(two.taker)
        except Gone:
            return
        won.append("target")

    async def race() -> None:
        await two.fence.offer("other-uid", "first")
        await asyncio.gather(source(), target())

    two.run(while_kept(two.fence, race()), 600)
    assert len(won) == 1
    assert (two.store.holder == OTHER) is (won == ["target"])
    two.loop.close()


# -- the rule itself ------------------------------------------------------------------------------


def test_whom_an_offer_is_for() -> None:
    taker = Taker("pod", "pod/x", Epoch(8))
    assert taker.saw(Record("1", Epoch(7), "a/b", offer="pod", offered="one")) is Taking.TAKE
    assert taker.saw(None) is Taking.GONE
    assert taker.saw(Record("1", Epoch(7), "a/b")) is Taking.GONE
    assert taker.saw(Record("1", Epoch(7), "a/b", offer="else", offered="one")) is Taking.GONE
    assert taker.saw(Record("1", Epoch(6), "a/b", offer="pod", offered="one")) is Taking.GONE
    assert taker.saw(Record("10", Epoch(8), "pod/x")) is Taking.TAKEN
    assert taker.saw(Record("10", Epoch(8), "else/x")) is Taking.GONE
    for nobody in ("", "nobody"):
        vacant = Record("11", Epoch(7), nobody, offer="pod", offered="one")
        assert taker.saw(vacant) is Taking.GONE


# -- suspended, in the same way -------------------------------------------------------------------


@pytest.mark.parametrize("script", [[], [LOST], [unreachable], [refused(429)], [refused(500)]])
def test_suspended_whatever_is_lost(two: Two, script: list[Any]) -> None:
    async def suspend() -> None:
        two.store.script.extend(script)
        await two.fence.suspend("it-3-k1")
        await two.fence.suspend("it-3-k1")
        with pytest.raises(Superseded):
            await two.fence.withdraw()
        with pytest.raises(Superseded):
            await two.fence.suspend("it-3-k2")

    two.run(while_kept(two.fence, suspend()))
    notes = (two.store.body or {})["metadata"]["annotations"]
    assert (two.store.holder, two.store.note("released")) == ("", "3")
    assert (two.store.note("suspended"), PREFIX + "exit" in notes) == ("it-3-k1", False)
    assert two.fence.suspended == "it-3-k1"


@pytest.mark.parametrize("landed", [False, True])
def test_a_release_in_doubt_keeps_it_closed_until_it_is_known(two: Two, landed: bool) -> None:
    async def both() -> None:
        two.store.script.append(LOST if landed else unreachable)
        suspending = asyncio.ensure_future(two.fence.suspend("it-3-k1"))
        await asyncio.sleep(0.1)
        two.store.always = unreachable
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(9):
                await two.fence.withdraw()
        assert two.fence.in_doubt
        assert not suspending.done()
        two.store.always = None
        if landed:
            with pytest.raises(Superseded):
                await two.fence.withdraw()
            await suspending
        else:
            await two.fence.withdraw()
            assert not two.fence.in_doubt
            with pytest.raises(Gone):
                await suspending

    two.run(while_kept(two.fence, both()))
    assert two.store.note("suspended") == ("it-3-k1" if landed else None)
    assert (two.store.holder == ME) is not landed


def test_a_missing_lease_is_not_given_back(two: Two) -> None:
    async def suspend() -> None:
        two.store.body = None
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(9):
                await two.fence.suspend("it-3-k1")

    two.run(while_kept(two.fence, suspend()))
    assert two.fence.suspended == ""


def test_one_that_ends_while_it_is_suspended_is_suspended(two: Two) -> None:
    async def both() -> None:
        two.store.always = unreachable
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(9):
                await two.fence.suspend("it-3-k1")
        two.store.always = None

    two.run(while_kept(two.fence, both()))
    two.run(two.fence.release(exit="killed"))
    assert (two.store.note("suspended"), two.store.note("exit")) == ("it-3-k1", None)
    two.run(two.fence.suspend("it-3-k1"))


def test_what_was_said_of_an_earlier_suspension_goes_with_the_next_holder(two: Two) -> None:
    two.store.edit(suspended="it-2-k1")
    two.run(two.fence.acquire())
    assert two.store.note("suspended") is None
    two.run(two.fence.release(exit="x"))
    assert (two.store.note("suspended"), two.store.note("exit")) == (None, "x")


@pytest.mark.parametrize("seed", range(100))
def test_of_a_suspension_and_its_withdrawal_exactly_one_succeeds(seed: int) -> None:
    random = Random(seed)
    two = Two(random)
    won: list[str] = []

    async def back() -> None:
        await asyncio.sleep(random.uniform(0, 4))
        try:
            await two.fence.withdraw()
        except Superseded:
            return
        won.append("withdrawn")
        assert two.store.holder == ME, "and at this moment"

    async def suspend() -> None:
        with contextlib.suppress(Gone):
            await two.fence.suspend("it-3-k1")
            won.append("suspended")

    async def race() -> None:
        await asyncio.gather(suspend(), back())

    two.run(while_kept(two.fence, race()), 600)
    now = two.store.note("suspended")
    assert won == (["withdrawn"] if now is None else ["suspended"])
    two.loop.close()
