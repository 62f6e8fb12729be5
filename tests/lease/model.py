"""What a run of the checker is made of: timings, clocks, and the plan of what goes wrong when.

A plan says everything that is decided before a run; with its seed, which decides the rest (each
delay, each loss), the run is the same every time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from random import Random
from typing import Final, NamedTuple

from holdfast_wire.lease import Timing

FOREVER: Final = 1e6
_MOVES: Final = 0x6D6F7665  # so that a plan with moves is another than the one without
CLOCKS_BEGIN_APART: Final = 1000.0  # a time read on one clock and used on another must show


def bound(timing: Timing) -> float:
    """The shortest safe duration for the other times of `timing`, written out once more."""
    longest = timing.freeze_after / (1 - timing.drift) + timing.freeze_takes + timing.in_flight
    return (1 + timing.drift) * longest


def tight(share: float = 1.0) -> Timing:
    """The usual times, with a duration that is `share` of the shortest safe one: no slack hides
    a mistake."""
    usual = Timing.of(20)
    return replace(usual, duration=share * bound(usual))


class Clock:
    """Runs at given rates from given true times on."""

    __slots__ = ("_pieces",)

    def __init__(self, start: float, rates: tuple[tuple[float, float], ...]) -> None:
        self._pieces: list[tuple[float, float, float]] = []
        local, before, pace = start, 0.0, 1.0
        for since, rate in rates:
            local += (since - before) * pace
            self._pieces.append((since, local, rate))
            before, pace = since, rate

    def local(self, true: float) -> float:
        since, local, rate = self._pieces[0]
        if len(self._pieces) > 1:
            for piece in self._pieces:
                if piece[0] > true:
                    break
                since, local, rate = piece
        return local + (true - since) * rate

    def true(self, at: float) -> float:
        since, local, rate = self._pieces[0]
        if len(self._pieces) > 1:
            for piece in self._pieces:
                if piece[1] > at:
                    break
                since, local, rate = piece
        return since + (at - local) / rate


class Kind(Enum):
    """`who` is the number of a pod in order of creation, or of an operator."""

    CUT = "pod loses the API"
    MUTE = "answers to the pod are lost"
    STOP = "sidecar stopped"
    KILL = "sidecar killed"
    PAUSE = "node paused"
    CRASH = "node crashes"
    RELEASE = "sidecar told to give the Lease back"
    FORGET = "pod object deleted by force; its processes live on"
    DELETE = "Lease deleted by hand"
    OPERATOR_CUT = "operator loses the API"
    OPERATOR_STALE = "operator's watch stale"
    OPERATOR_KILL = "operator killed"
    MOVE = "to be moved"  # for as long: then it is to stay, if it is not gone


class Fault(NamedTuple):
    at: float
    kind: Kind
    who: int = 0
    lasts: float = FOREVER

    @property
    def span(self) -> str:
        return f", {self.lasts:.1f} s" if self.lasts < FOREVER else ""


Rates = tuple[tuple[float, float], ...]
STEADY: Final[Rates] = ((0.0, 1.0),)


@dataclass(frozen=True, slots=True)
class Plan:
    seed: int
    faults: tuple[Fault, ...] = ()
    pods: tuple[Rates, ...] = (STEADY,)  # the clock of each pod's node, in turn
    operators: tuple[Rates, ...] = (STEADY,)
    requests: tuple[float, ...] = (0.0,)  # each request of a pod takes one of these
    answers: tuple[float, ...] = (0.0,)  # and each answer to it one of these
    operator_delays: tuple[float, ...] = (0.0,)  # each message from or to an operator
    loss: float = 0.0
    freezes: tuple[float, ...] = (0.0,)  # each freeze takes one of these shares of the longest
    horizon: float = 60.0
    settles: bool = False  # the horizon leaves time to recover: somebody must run at the end

    def quiet(self, timing: Timing) -> bool:
        """Nothing is wrong: nobody may be frozen or replaced."""
        return not self.faults and self.loss == 0 and self.prompt(timing)

    def prompt(self, timing: Timing) -> bool:
        slowest = max(*self.requests, *self.answers, *self.operator_delays)
        return 2 * slowest < timing.request_timeout


def _rates(random: Random, drift: float, favoured: float) -> Rates:
    way = random.random()
    if way < 0.6:
        return ((0.0, favoured),)
    if way < 0.7:
        return STEADY
    if way < 0.8:
        return ((0.0, random.uniform(1 - drift, 1 + drift)),)
    slow, fast = 1 - drift, 1 + drift
    first, second = (slow, fast) if random.random() < 0.5 else (fast, slow)
    return ((0.0, first), (random.uniform(1, 40), second))


def _story(random: Random, timing: Timing) -> list[Fault]:
    """Faults that belong together; a random heap of faults would seldom hit them."""
    d, r, p = timing.duration, timing.freeze_after, timing.renew_every
    sent = p / (1 - timing.drift)  # by a slow clock, which is the usual one
    start = random.choice((0.1, sent + 0.01, p * random.uniform(0.5, 3)))
    chance = random.random()
    if chance < 0.15:  # lost for good
        return [Fault(start, random.choice((Kind.CUT, Kind.MUTE, Kind.CRASH)))]
    if chance < 0.30:  # back near the end of the wait, seen late
        gap = random.uniform(r * 0.8, d * 1.1)
        stale = Fault(start + random.uniform(0.3, 0.9) * d, Kind.OPERATOR_STALE, 0, 8.0)
        return [Fault(start, random.choice((Kind.CUT, Kind.MUTE)), 0, gap), stale]
    if chance < 0.35:  # an answer is read late, and is the last one
        lasts = random.uniform(0.1, 1) * r
        return [Fault(start, Kind.STOP, 0, lasts), Fault(start + lasts, Kind.CUT)]
    if chance < 0.45:
        lasts = random.choice((60.0, random.uniform(0.1, 2) * d))
        return [Fault(start, Kind.STOP, 0, lasts)]
    if chance < 0.57:
        lasts = random.choice((60.0, random.uniform(0.5, 1.5) * d))
        return [Fault(start, Kind.PAUSE, 0, lasts)]
    if chance < 0.67:
        return [Fault(start, Kind.RELEASE)]
    if chance < 0.87:  # and deleted again, soon after the next incarnation runs
        again = start + d * random.choice((random.uniform(0.85, 1.25), random.uniform(0.9, 2.6)))
        since, who = start + random.uniform(0.1, 1) * d, random.randrange(2)
        stale = Fault(since, Kind.OPERATOR_STALE, who, random.uniform(0, 2) * d)
        return [Fault(start, Kind.DELETE), Fault(again, Kind.DELETE), stale]
    return [Fault(start, Kind.KILL, 0, random.choice((0.0, random.uniform(0, d))))]


def _stray(random: Random, timing: Timing) -> Fault:
    kind = random.choice([kind for kind in Kind if kind is not Kind.MOVE])
    lasts = random.choice((timing.request_timeout, timing.freeze_after, timing.duration, 8.0))
    at = random.uniform(0, 1.5 * timing.duration)
    return Fault(at, kind, random.randrange(2), lasts * random.uniform(0.2, 1.5))


def _delays(random: Random, timing: Timing) -> tuple[float, ...]:
    late = timing.request_timeout
    if random.random() < 0.5:
        return (0.0,)
    if random.random() < 0.4:
        return (0.0, 0.4 * late)
    delays = (0.0, 0.0, random.uniform(0, late), 0.95 * late, 1.5 * late)
    return delays if random.random() < 0.7 else (*delays, random.uniform(1, 2) * timing.duration)


def _moving(seed: int, timing: Timing) -> Plan:
    """Moves, mostly given up at an unlucky moment, and what else may happen just then."""
    random = Random(seed ^ _MOVES)
    plan = imagine(seed, timing)
    start = random.uniform(0.1, 3 * timing.renew_every)
    gives_up = random.choice((FOREVER, random.uniform(0, 3 * timing.renew_every)))
    faults = [Fault(start, Kind.MOVE, 0, gives_up)]
    if random.random() < 0.3:
        faults.append(Fault(start + random.uniform(0, timing.duration), Kind.MOVE, 1))
    if random.random() < 0.6:
        kinds = (Kind.CUT, Kind.MUTE, Kind.STOP, Kind.KILL, Kind.PAUSE, Kind.CRASH, Kind.RELEASE)
        at = start + random.uniform(0, 2 * timing.renew_every)
        lasts = random.uniform(0, 1) * random.choice((timing.request_timeout, timing.duration))
        faults.append(Fault(at, random.choice(kinds), random.randrange(2), lasts))
    if random.random() < 0.3:
        faults += plan.faults
    faults.sort(key=lambda fault: fault.at)
    last = max(fault.at for fault in faults)
    return replace(plan, faults=tuple(faults), horizon=last + 1.5 * timing.duration, settles=False)


def imagine(seed: int, timing: Timing, moves: bool = False) -> Plan:
    """An adversary that favours extremes: slow holders and fast operators, messages that take no
    time, the longest freeze. Half of what it does is one story and nothing else."""
    if moves:
        return _moving(seed, timing)
    random = Random(seed)
    slow, fast = 1 - timing.drift, 1 + timing.drift
    faults = _story(random, timing) if random.random() < 0.9 else []
    if random.random() < 0.4:
        faults += [_stray(random, timing) for _ in range(random.randrange(1, 4))]
    plan = Plan(
        seed,
        tuple(sorted(faults, key=lambda fault: fault.at)),
        tuple(_rates(random, timing.drift, slow) for _ in range(3)),
        tuple(_rates(random, timing.drift, fast) for _ in range(random.choice((1, 2)))),
        requests=_delays(random, timing),
        answers=_delays(random, timing),
        operator_delays=_delays(random, timing),
        loss=random.choice((0.05, 0.3)) if random.random() < 0.1 else 0.0,
        freezes=(1.0,) if random.random() < 0.6 else (0.0, random.random(), 1.0),
    )
    settles = random.random() < 0.15 and not plan.loss and plan.prompt(timing)
    begun = max((fault.at for fault in faults), default=0.0)
    over = max((fault.at + fault.lasts for fault in faults if fault.lasts < FOREVER), default=0.0)
    d = timing.duration
    horizon = max(begun, over) + 6 * d if settles else max(begun + 1.5 * d, over + 0.5 * d)
    return replace(plan, horizon=horizon, settles=settles)
