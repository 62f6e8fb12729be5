"""Runs many plans against rules; a plan that refutes them is made small and told."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from .model import Plan, Rates, imagine
from .pods import State
from .world import Rules, World


@dataclass(frozen=True, slots=True)
class Finding:
    plan: Plan
    violation: str


@dataclass(frozen=True, slots=True)
class Result:
    runs: int
    simulated: float  # seconds of virtual time
    took: float  # seconds
    closest: float  # seconds between two incarnations
    takeovers: int  # runs in which a second incarnation ran
    refused: int  # times that the gate kept a woken incarnation's bytes out
    live: int  # runs that were judged for liveness too
    moved: int  # runs in which an offer was taken, or one was suspended
    finding: Finding | None


def judge(world: World) -> str:
    """What the oracle cannot see as it happens: that nothing happens."""
    oracle, plan, store = world.oracle, world.plan, world.store
    if oracle.violation:
        return oracle.violation
    if plan.quiet(world.rules.timing) and (oracle.freezes or len(world.pods) > 1):
        return "frozen or replaced though nothing was wrong"
    quarantined = store.lease is not None and store.lease.epoch < store.high_water
    running = any(pod.hold.state is State.RUNNING for pod in world.pods)
    if plan.settles and not quarantined and not running:
        return "nothing runs long after the last fault"
    return ""


def refutes(plan: Plan, rules: Rules) -> str:
    world = World(plan, rules)
    world.run()
    return judge(world)


def explore(rules: Rules, runs: int, first_seed: int = 0) -> Result:
    """Stops at the first plan that refutes the rules."""
    started, simulated, closest = time.perf_counter(), 0.0, 1e9
    done = takeovers = refused = live = moved = 0
    finding = None
    for seed in range(first_seed, first_seed + runs):
        plan = imagine(seed, rules.timing, rules.moves)
        world = World(plan, rules)
        oracle = world.run()
        done += 1
        simulated += min(world.now, plan.horizon)
        closest = min(closest, oracle.closest)
        takeovers += len(oracle.lives) > 1
        refused += oracle.refused
        moved += world.moved > 0
        live += plan.settles or plan.quiet(rules.timing)
        violation = judge(world)
        if violation:
            finding = Finding(plan, violation)
            break
    took = time.perf_counter() - started
    return Result(done, simulated, took, closest, takeovers, refused, live, moved, finding)


def shrink(finding: Finding, rules: Rules) -> Finding:
    """Leaves out what is not needed: faults, delays, loss, odd clocks, the second operator."""
    plan = finding.plan
    smaller = True
    while smaller:
        smaller = False
        for candidate in _simpler(plan):
            if candidate != plan and refutes(candidate, rules) == finding.violation:
                plan, smaller = candidate, True
                break
    return Finding(plan, finding.violation)


def _simpler(plan: Plan) -> list[Plan]:
    without = [plan.faults[:n] + plan.faults[n + 1 :] for n in range(len(plan.faults))]
    return [
        *(replace(plan, faults=faults) for faults in without),
        replace(plan, loss=0.0),
        replace(plan, requests=(0.0,)),
        replace(plan, answers=(0.0,)),
        replace(plan, operator_delays=(0.0,)),
        replace(plan, operators=plan.operators[:1]),
        replace(plan, operators=tuple(rates[:1] for rates in plan.operators)),
        replace(plan, pods=tuple(rates[:1] for rates in plan.pods)),
        replace(plan, freezes=(1.0,)),
    ]


def tell(finding: Finding, rules: Rules) -> list[str]:
    """The run once more, in lines for a person; of what repeats itself, the first and the last."""
    world = World(finding.plan, rules, tracing=True)
    world.run()
    told: list[str] = []
    events = world.trace or []
    for number, (when, who, what) in enumerate(events):
        near = [(w, t) for _, w, t in events[max(0, number - 1) : number + 2]]
        if near.count((who, what)) < 3:
            told.append(f"{when:8.2f}  {who:<10}  {what}")
        elif told[-1] != "     ...":
            told.append("     ...")
    told.append(f"{world.now:8.2f}  VIOLATION   {judge(world)}")
    return [_clocks(finding.plan), *told]


def _clocks(plan: Plan) -> str:
    def rates(clocks: tuple[Rates, ...]) -> str:
        return ", ".join("/".join(f"{rate:.2f}" for _, rate in clock) for clock in clocks)

    nodes, operators = rates(plan.pods), rates(plan.operators)
    return f"seed {plan.seed}; clock rates: nodes {nodes}; operators {operators}"
