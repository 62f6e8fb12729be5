"""The lease's rules, one by one. `tests/lease` tries to refute all of them together."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast_wire.errors import BadRequest
from holdfast_wire.lease import (
    LONGEST,
    NOBODY,
    SHORTEST,
    Epoch,
    Grant,
    Holder,
    Observer,
    Record,
    Renewal,
    Standing,
    Timing,
    grant,
)

USUAL = Timing.of(20)
ME = "uid/nonce"


def record(version: str = "1", epoch: int = 3, holder: str = ME, released: bool = False) -> Record:
    return Record(version, Epoch(epoch), holder, released)


def holder() -> Holder:
    return Holder(USUAL, ME, Epoch(3))


# -- timing --


def test_the_usual_times() -> None:
    assert Timing(20, 3, 2, 12, freeze_takes=2, in_flight=1, drift=0.1) == USUAL
    assert USUAL.settle == pytest.approx(1.1)


@given(st.floats(SHORTEST, LONGEST))
def test_every_duration_allowed_is_safe_and_live(duration: float) -> None:
    timing = Timing.of(duration)
    assert timing.safe
    assert timing.live


@pytest.mark.parametrize("duration", [SHORTEST - 1, 12.3, 1, 0, -20, float("nan")])
def test_a_duration_too_short_is_refused_with_the_shortest_one(duration: float) -> None:
    with pytest.raises(BadRequest, match=f"{SHORTEST} or more"):
        Timing.of(duration)


def test_the_shortest_is_the_shortest_whole_one() -> None:
    assert Timing.of(SHORTEST).safe
    with pytest.raises(BadRequest):
        Timing.of(SHORTEST - 1)


def test_the_inequality_counts_drift_on_both_sides() -> None:
    # A slow holder's 9 s are 10 s, 2 s and 1 s more; a fast observer counts 13 s as 14.3 s.
    assert Timing(14.301, 1, 1, 9).safe
    assert not Timing(14.299, 1, 1, 9).safe


def test_live_means_that_one_lost_renewal_freezes_nobody() -> None:
    assert Timing(100, 3, 2, 10).live
    assert not Timing(100, 3, 2, 9.9).live


# -- holder --


@pytest.mark.parametrize(
    ("seen", "standing"),
    [
        (None, Standing.MISSING),
        (record(), Standing.HELD),
        (record(holder=""), Standing.VACANT),
        (record(holder="uid/other"), Standing.SUPERSEDED),
        (record(holder=NOBODY), Standing.SUPERSEDED),
        (record(epoch=4, holder=""), Standing.SUPERSEDED),
        (record(epoch=4, holder=ME), Standing.SUPERSEDED),
        (record(epoch=4, released=True), Standing.SUPERSEDED),
        (record(holder="", released=True), Standing.RELEASED),
        (record(released=True), Standing.RELEASED),
        (record(epoch=2), Standing.ROLLED_BACK),
        (record(epoch=2, holder="", released=True), Standing.ROLLED_BACK),
    ],
)
def test_standing(seen: Record | None, standing: Standing) -> None:
    assert holder().standing(seen) is standing


def test_nothing_may_run_before_the_first_acknowledged_renewal() -> None:
    mine = holder()
    mine.send(5)
    assert mine.deadline is None
    assert mine.expired(-1e9)


def test_the_deadline_runs_from_the_send_time_of_what_was_acknowledged() -> None:
    mine = holder()
    first = mine.send(100)
    mine.send(103)
    assert mine.acknowledge(first) == 112
    assert not mine.expired(111.999)
    assert mine.expired(112)


@given(st.lists(st.floats(0, 1e6), min_size=1), st.randoms(use_true_random=False))
def test_answers_out_of_order_never_move_the_deadline_back(
    sent: list[float], random: Random
) -> None:
    mine = holder()
    renewals = [mine.send(at) for at in sent]
    random.shuffle(renewals)
    last = float("-inf")
    for renewal in renewals:
        deadline = mine.acknowledge(renewal)
        assert deadline >= last
        last = deadline
    assert mine.deadline == max(sent) + USUAL.freeze_after


def test_an_answer_that_comes_too_late_lets_nothing_run() -> None:
    mine = holder()
    mine.acknowledge(Renewal(0))
    assert mine.expired(60)


# -- observer --


def test_a_wait_begins_at_the_first_sight_and_not_before() -> None:
    observer = Observer(USUAL)
    assert not observer.expired(1e9)
    assert observer.expires_at() is None
    assert not observer.may_take(record(), 1000)
    assert observer.expires_at() == 1020
    assert not observer.may_take(record(), 1019.999)
    assert observer.may_take(record(), 1020)


def test_every_change_begins_the_wait_anew() -> None:
    observer = Observer(USUAL)
    observer.saw(record("1"), 0)
    assert not observer.may_take(record("2"), 20)
    assert not observer.may_take(None, 40)
    assert not observer.may_take(record("2"), 60)
    assert observer.may_take(record("2"), 80)


def test_a_conflict_begins_the_wait_anew_also_for_the_same_version() -> None:
    observer = Observer(USUAL)
    observer.saw(record(), 0)
    observer.restart(25)
    assert observer.expires_at() is None
    assert not observer.expired(1e9)
    assert not observer.may_take(record(), 26)
    assert observer.may_take(record(), 46)


def test_what_was_released_may_be_taken_at_once() -> None:
    assert Observer(USUAL).may_take(record(holder="", released=True), 0)


@given(st.lists(st.tuples(st.floats(0, 30), st.sampled_from(["1", "2", None])), max_size=30))
def test_it_may_be_taken_only_after_a_whole_duration_without_change(
    sights: list[tuple[float, str | None]],
) -> None:
    observer = Observer(USUAL)
    now, since = 0.0, 0.0
    before: str | None = "not yet seen"
    for pause, version in sights:
        now += pause
        if version != before:
            since, before = now, version
        seen = None if version is None else record(version)
        assert observer.may_take(seen, now) == (now - since >= USUAL.duration)


# -- grant --


@pytest.mark.parametrize(
    ("seen", "high_water", "written"),
    [
        (None, 0, Grant(Epoch(1), "")),
        (None, 3, Grant(Epoch(4), NOBODY)),
        (record(epoch=3), 3, Grant(Epoch(4), "")),
        (record(epoch=3), 2, Grant(Epoch(4), "")),  # granted, and not yet in the status
        (record(epoch=3, holder=NOBODY), 2, Grant(Epoch(4), "")),
        (record(epoch=2), 5, Grant(Epoch(6), "")),
    ],
)
def test_grant(seen: Record | None, high_water: int, written: Grant) -> None:
    assert grant(seen, Epoch(high_water)) == written


@given(st.none() | st.integers(1, 9), st.integers(0, 9))
def test_an_epoch_only_grows(epoch: int | None, high_water: int) -> None:
    seen = None if epoch is None else record(epoch=epoch)
    assert grant(seen, Epoch(high_water)).epoch > max(high_water, epoch or 0)


def test_nobody_is_no_holder_there_can_be() -> None:
    assert "/" not in NOBODY  # a pod's UID and a nonce have one between them
