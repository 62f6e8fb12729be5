"""The checker finds nothing against the shipped rules, and refutes every broken variant."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast_wire.lease import Timing

from .explore import explore, refutes, shrink, tell
from .model import FOREVER, Clock, Fault, Kind, Plan, Rates, bound, imagine, tight
from .oracle import Gate, Life, Oracle
from .variants import ALL, BROKEN, MOVES, SHIPPED, SUSPENDS, USUAL, Variant
from .world import Rules, World

SLOW: Rates = ((0.0, 0.9),)
FAST: Rates = ((0.0, 1.1),)
WORST = Plan(0, pods=(SLOW,), operators=(FAST,), freezes=(1.0,))


def by_name(variant: Variant) -> str:
    return variant.name


# -- the search --


@pytest.mark.parametrize("variant", SHIPPED, ids=by_name)
def test_the_shipped_rules_are_not_refuted(variant: Variant) -> None:
    result = explore(variant.rules, round(1500 * max(0.7, variant.share)))
    told = tell(result.finding, variant.rules) if result.finding else []
    assert not told, "\n".join(told)
    # It has looked where it matters.
    assert result.takeovers > 300
    if variant.rules.moves:
        assert result.moved > 200
    else:
        assert result.refused > 20
        assert result.live > 50


@pytest.mark.parametrize("variant", BROKEN, ids=by_name)
def test_a_broken_variant_is_refuted(variant: Variant) -> None:
    # Where there is much to happen at once, begin near it: `make check-lease` begins at zero.
    first = 4500 if variant.name == "wait-for-none" else 0
    assert explore(variant.rules, 3000, first).finding is not None


def test_at_the_bound_incarnations_touch_and_do_not_overlap() -> None:
    result = explore(ALL["tight"].rules, 300)
    assert result.finding is None
    assert abs(result.closest) < 1e-6


@pytest.mark.parametrize("variant", SHIPPED, ids=by_name)
def test_at_worst_they_are_as_far_apart_as_the_inequality_leaves(variant: Variant) -> None:
    world = World(STORIES["short"], variant.rules)
    timing = variant.rules.timing
    left = (timing.duration - bound(timing)) / (1 + timing.drift)
    assert world.run().closest == pytest.approx(left, abs=1e-6)


def test_a_counterexample_replays_and_is_made_small() -> None:
    rules = ALL["no-swap"].rules
    found = explore(rules, 3000).finding
    assert found is not None
    small = shrink(found, rules)
    assert refutes(small.plan, rules) == small.violation == found.violation
    assert len(small.plan.faults) <= len(found.plan.faults)
    assert not refutes(small.plan, USUAL)
    told = tell(small, rules)
    assert told == tell(small, rules)
    assert told[-1].endswith(f"VIOLATION   {small.violation}")


def test_a_seed_says_everything() -> None:
    assert imagine(7, USUAL.timing) == imagine(7, USUAL.timing)
    runs = [World(imagine(7, USUAL.timing), USUAL, tracing=True) for _ in range(2)]
    for world in runs:
        world.run()
    assert runs[0].trace == runs[1].trace


# -- the four that must be found, each as the shortest story there is --

STORIES = {
    "short": replace(WORST, faults=(Fault(5, Kind.CUT),)),
    "from-reply": replace(
        WORST,
        answers=(0.5,),  # so its second renewal, sent at 3.8 s, is answered while it is stopped
        faults=(Fault(4, Kind.STOP, 0, 8), Fault(12, Kind.CUT)),
    ),
    "no-swap": replace(
        WORST, faults=(Fault(5, Kind.CUT, 0, 14), Fault(15, Kind.OPERATOR_STALE, 0, 8))
    ),
    "no-switch": replace(WORST, faults=(Fault(5, Kind.STOP, 0, 60),)),
    "wait-for-none": replace(
        WORST,
        operators=(FAST, ((0.0, 1.0),)),
        faults=(
            Fault(5, Kind.DELETE),
            Fault(20, Kind.OPERATOR_STALE, 1, 20),
            Fault(24, Kind.DELETE),
        ),
    ),
    "no-settle": replace(WORST, faults=(Fault(5, Kind.RELEASE),)),
    "no-gate": replace(WORST, faults=(Fault(5, Kind.PAUSE, 0, 60),), horizon=100),
    # Given up while the taking is on its way: too close a race to be told by hand.
    "take-no-swap": imagine(715, USUAL.timing, moves=True),
    "thaw-early": replace(WORST, faults=(Fault(1, Kind.MOVE, 0, 3),)),
    # Its release is on its way when it is called off.
    "resume-early": replace(
        WORST, requests=(1.0,), faults=(Fault(1, Kind.MOVE, 0, 7),), horizon=40
    ),
    "status-behind": replace(
        WORST,
        faults=(Fault(1, Kind.MOVE), Fault(20, Kind.MOVE, 1), Fault(35, Kind.DELETE)),
        horizon=100,
    ),
}


@pytest.mark.parametrize("variant", BROKEN, ids=by_name)
def test_the_story_that_refutes_it_does_not_refute_the_shipped_rules(variant: Variant) -> None:
    plan = STORIES[variant.name]
    assert refutes(plan, variant.rules)
    assert not any(refutes(plan, shipped.rules) for shipped in SHIPPED)


def test_a_clock_that_stops_with_its_node_is_beyond_any_lease() -> None:
    """The residual risk that docs/lease.md states. Should this fail, it has become smaller."""
    stops: Rates = ((0.0, 0.9), (5.0, 1e-9), (35.0, 0.9))
    plan = replace(WORST, pods=(stops, SLOW), faults=(Fault(5, Kind.PAUSE, 0, 30),))
    assert refutes(plan, USUAL) == "epoch 1 runs while epoch 2 runs"


# -- Hypothesis looks too, and makes what it finds small --

RATES = st.sampled_from([0.9, 1.0, 1.1]).map(lambda rate: ((0.0, rate),)) | st.tuples(
    st.tuples(st.just(0.0), st.floats(0.9, 1.1)),
    st.tuples(st.floats(0.1, 60), st.floats(0.9, 1.1)),
)
DELAYS = st.lists(st.sampled_from([0.0, 0.5, 1.9, 3.0, 25.0]), min_size=1, max_size=3).map(tuple)
FAULTS = st.builds(
    Fault,
    st.floats(0, 50),
    st.sampled_from(Kind),
    st.integers(0, 2),
    st.sampled_from([0.5, 2.0, 8.0, 13.0, 21.0, 60.0, FOREVER]),
)
PLANS = st.builds(
    Plan,
    st.integers(0, 1000),
    st.lists(FAULTS, max_size=6).map(lambda faults: tuple(sorted(faults, key=lambda f: f.at))),
    st.lists(RATES, min_size=1, max_size=3).map(tuple),
    st.lists(RATES, min_size=1, max_size=2).map(tuple),
    DELAYS,
    DELAYS,
    DELAYS,
    st.sampled_from([0.0, 0.0, 0.1]),
    st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=1, max_size=2).map(tuple),
    st.just(90.0),
)


@given(PLANS)
@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_no_plan_of_hypothesis_refutes_the_rules_at_their_bound(plan: Plan) -> None:
    assert not refutes(plan, replace(ALL["tight"].rules, moves=True))


# -- liveness, and that the judge can see it missing --


@pytest.mark.parametrize("rates", [SLOW, FAST])
def test_in_a_quiet_network_nobody_is_frozen(rates: Rates) -> None:
    plan = Plan(0, pods=(rates,), requests=(0.0, 0.9), answers=(0.9,), horizon=600, settles=True)
    assert plan.quiet(USUAL.timing)
    assert not refutes(plan, USUAL)
    renews_too_seldom = Rules(replace(USUAL.timing, renew_every=13))
    assert refutes(plan, renews_too_seldom) == "frozen or replaced though nothing was wrong"


@pytest.mark.parametrize("kind", [Kind.CRASH, Kind.CUT, Kind.DELETE, Kind.RELEASE, Kind.STOP])
def test_what_is_lost_is_replaced(kind: Kind) -> None:
    plan = replace(WORST, faults=(Fault(30, kind),), horizon=120, settles=True)
    world = World(plan, USUAL)
    world.run()
    assert not refutes(plan, USUAL)
    assert len(world.oracle.lives) == 2
    no_operator = replace(plan, faults=(Fault(1, Kind.OPERATOR_CUT), *plan.faults))
    assert refutes(no_operator, USUAL) == "nothing runs long after the last fault"


def test_an_outage_ends_nothing() -> None:
    """The API is away from everybody for ten durations: frozen meanwhile, thawed after."""
    away = (Fault(30, Kind.CUT, 0, 200), Fault(30, Kind.OPERATOR_CUT, 0, 200))
    world = World(replace(WORST, faults=away, horizon=260), USUAL, tracing=True)
    world.run()
    assert world.trace is not None
    told = [what for _, who, what in world.trace if who == "hold 0"]
    assert told == ["epoch 1 runs", "freezes", "epoch 1 is frozen", "epoch 1 runs"]
    assert len(world.pods) == 1


def test_a_killed_sidecar_comes_back_to_the_same_incarnation() -> None:
    plan = replace(WORST, faults=(Fault(30, Kind.KILL, 0, 5),), horizon=90, settles=True)
    world = World(plan, USUAL)
    world.run()
    assert (len(world.pods), world.oracle.freezes) == (1, 0)


def test_what_is_suspended_is_replaced_and_what_is_called_off_goes_on() -> None:
    suspended = World(replace(WORST, faults=(Fault(5, Kind.MOVE),)), SUSPENDS)
    suspended.run()
    assert [life.epoch for life in suspended.oracle.lives if life.running] == [2]
    assert suspended.moved == 1
    # No answer comes, and nothing lands, until it is called off.
    faults = (Fault(5, Kind.MOVE, 0, 5), Fault(8, Kind.CUT, 0, 4))
    stayed = World(replace(WORST, faults=faults), SUSPENDS)
    stayed.run()
    assert [life.epoch for life in stayed.oracle.lives if life.running] == [1]
    assert (stayed.moved, stayed.oracle.freezes) == (0, 1)


def test_what_is_moved_goes_on_there_and_what_is_not_goes_on_here() -> None:
    moved = World(replace(WORST, faults=(Fault(5, Kind.MOVE),)), MOVES)
    moved.run()
    assert [life.epoch for life in moved.oracle.lives if life.running] == [2]
    assert moved.moved == 1
    # What it is offered to loses the API before it can take it.
    faults = (Fault(5, Kind.MOVE, 0, 9), Fault(7.5, Kind.CUT, 1))
    stayed = World(replace(WORST, faults=faults), MOVES, tracing=True)
    stayed.run()
    assert stayed.trace is not None
    told = [what for _, who, what in stayed.trace if who == "hold 0"]
    assert told == ["epoch 1 runs", "freezes", "epoch 1 is frozen", "epoch 1 runs"]
    assert (stayed.moved, len(stayed.pods)) == (0, 2)


# -- the parts of the checker itself --


def test_the_bound_is_the_inequality() -> None:
    assert bound(USUAL.timing) == pytest.approx(17.9667, abs=1e-4)
    assert tight().safe
    assert not tight(0.999).safe
    assert Timing.of(13).safe


@given(RATES, st.floats(0, 200))
def test_a_clock_reads_back_what_it_says(rates: Rates, true: float) -> None:
    clock = Clock(1000, rates)
    assert clock.true(clock.local(true)) == pytest.approx(true, abs=1e-6)
    assert 0.9 * true - 1e-6 <= clock.local(true) - 1000 <= 1.1 * true + 1e-6


def lives(*epochs: int) -> list[Life]:
    return [Life(epoch, f"uid{number}") for number, epoch in enumerate(epochs)]


def test_the_oracle_sees_overlap_effects_in_flight_regression_and_reuse() -> None:
    def verdict(second: int, stopped: float | None, start: float) -> str:
        oracle, (one, two) = Oracle(1.0), lives(2, second)
        oracle.runs(one, 0)
        if stopped is not None:
            oracle.stops(one, stopped)
        oracle.runs(two, start)
        return oracle.violation

    assert verdict(3, None, 10) == "epoch 3 runs while epoch 2 runs"
    assert verdict(3, 9.5, 10) == "epoch 3 runs while epoch 2 is in effect"
    assert verdict(3, 9, 10) == ""
    assert verdict(1, 5, 10) == "epoch 1 runs again after epoch 2"
    assert verdict(2, 5, 10) == "epoch 2 is run by uid0 and by uid1"


@pytest.mark.parametrize("checks", [True, False])
def test_the_oracle_excuses_only_a_woken_older_one_whose_bytes_are_refused(checks: bool) -> None:
    oracle, (old, new) = Oracle(1.0, Gate(checks)), lives(1, 2)
    oracle.runs(old, 0)
    oracle.stops(old, 1)
    oracle.runs(new, 30)
    oracle.runs(old, 40, woken=True)
    assert bool(oracle.violation) is not checks
    assert oracle.refused == 1


def test_the_oracle_does_not_excuse_a_woken_newer_one() -> None:
    oracle, (old, new) = Oracle(1.0), lives(1, 2)
    oracle.runs(old, 0)
    oracle.runs(new, 40, woken=True)
    assert oracle.violation
