"""A world with virtual time around the production `Holder` and `Observer`.

The store is the API server: one Lease and one Session, writes by compare-and-swap. Everything
between it and an actor is a message that takes time, each way, and may be lost: a request may land
after its sender gave up on it, and one that was answered may seem lost. An actor that is stopped
finds what came for it when it goes on, timers and answers alike.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from random import Random
from typing import TYPE_CHECKING

from holdfast_wire.lease import Epoch, Record, Timing

from .model import CLOCKS_BEGIN_APART, Clock, Fault, Kind, Plan
from .oracle import Gate, Oracle

if TYPE_CHECKING:
    from .operators import Operator
    from .pods import Pod


@dataclass(frozen=True, slots=True)
class Rules:
    """The shipped rules; each variant breaks one."""

    timing: Timing
    from_send: bool = True  # the deadline
    compare_and_swap: bool = True  # the takeover
    switch: bool = True  # in hold; without it, the sidecar has to freeze
    missing_is_nobodys: bool = True  # else made anew, vacant, after a wait
    settle: bool = True  # before a release
    gate: bool = True  # epochs are checked where bytes are accepted
    moves: bool = False  # incarnations change places alive, too
    suspends: bool = False  # instead of that they are suspended
    offer_swaps: bool = True  # an offer is taken by compare-and-swap
    thaw_waits: bool = True  # for the withdrawal to be acknowledged
    status_first: bool = True  # a pod for the next epoch is made when the status has this one


class Actor:
    """Something that runs, can be stopped, and can be gone."""

    def __init__(self, world: World, clock: Clock, name: str) -> None:
        self.world, self.clock, self.name = world, clock, name
        self.stopped = 0
        self.gone = False
        self.backlog: list[tuple[Callable[..., None], tuple[object, ...]]] = []

    def now(self) -> float:
        return self.clock.local(self.world.now)

    def after(self, local: float, act: Callable[..., None], *args: object) -> None:
        self.at(self.now() + local, act, *args)

    def at(self, local: float, act: Callable[..., None], *args: object) -> None:
        world = self.world
        world.at(max(world.now, self.clock.true(local)), self, act, *args)

    def go_on(self) -> None:
        self.stopped -= 1
        while self.backlog and not self.stopped and not self.gone:
            act, args = self.backlog.pop(0)
            act(*args)

    def say(self, text: str) -> None:
        if self.world.trace is not None:
            self.world.trace.append((self.world.now, self.name, text))


@dataclass(slots=True)
class Link:
    """An actor's way to the API."""

    requests: tuple[float, ...]
    answers: tuple[float, ...]
    cut_until: float = -1.0
    mute_until: float = -1.0


@dataclass(slots=True)
class Reply:
    """`done` is false for a conflict; `record` is what is there now."""

    done: bool
    record: Record | None
    high_water: int = 0


@dataclass(slots=True)
class Call:
    actor: Actor
    link: Link
    act: Callable[[], Reply]
    answer: Callable[[Reply | None], None]
    over: bool = False


@dataclass(slots=True)
class Store:
    world: World
    lease: Record | None = None
    writes: int = 0
    high_water: int = 0  # the Session's status.epoch
    pods: set[int] = field(default_factory=set)  # objects, by the epoch in their name

    def get(self) -> Reply:
        return Reply(True, self.lease, self.high_water)

    def put(
        self,
        version: str | None,
        epoch: int,
        holder: str,
        released: bool = False,
        offer: tuple[str, str] = ("", ""),
    ) -> Reply:
        """A version of None is a write that compares nothing."""
        if self.lease is None or version not in (None, self.lease.version):
            return Reply(False, self.lease, self.high_water)
        return self._write(epoch, holder, released, offer)

    def create(self, epoch: int, holder: str) -> Reply:
        if self.lease is not None:
            return Reply(False, self.lease, self.high_water)
        return self._write(epoch, holder, False)

    def _write(
        self, epoch: int, holder: str, released: bool, offer: tuple[str, str] = ("", "")
    ) -> Reply:
        self.writes += 1
        self.lease = Record(str(self.writes), Epoch(epoch), holder, released, *offer)
        self.world.changed()
        return Reply(True, self.lease, self.high_water)

    def delete(self) -> None:
        if self.lease is not None:
            self.writes += 1
            self.lease = None
            self.world.changed()

    def claim_first(self) -> Reply:
        """By compare-and-swap on the Session: of all operators ever, one succeeds."""
        won, self.high_water = self.high_water == 0, max(1, self.high_water)
        return Reply(won, self.lease, self.high_water)

    def raise_high_water(self, epoch: int) -> Reply:
        self.high_water = max(epoch, self.high_water)
        return Reply(self.high_water == epoch, self.lease, self.high_water)

    def create_pod(self, epoch: int) -> Reply:
        new = epoch not in self.pods
        if new:
            self.pods.add(epoch)
            self.world.new_pod(epoch)
        return Reply(new, self.lease, self.high_water)


class World:
    def __init__(self, plan: Plan, rules: Rules, tracing: bool = False) -> None:
        self.plan, self.rules = plan, rules
        self.now = 0.0
        self.random = Random(plan.seed)
        self.trace: list[tuple[float, str, str]] | None = [] if tracing else None
        self.oracle = Oracle(rules.timing.in_flight, Gate(rules.gate))
        self.store = Store(self)
        self.pods: list[Pod] = []
        self.operators: list[Operator] = []
        self._queue: list[tuple[float, int, Actor | None, Callable[..., None], tuple[object, ...]]]
        self._queue, self._count = [], 0
        self.moved = 0

    # -- time --

    def at(self, when: float, actor: Actor | None, act: Callable[..., None], *args: object) -> None:
        self._count += 1
        heappush(self._queue, (when, self._count, actor, act, args))

    def run(self) -> Oracle:
        from .operators import Operator

        for number, rates in enumerate(self.plan.operators):
            clock = Clock(-CLOCKS_BEGIN_APART * (number + 1), rates)
            self.operators.append(Operator(self, clock, number))
        for fault in self.plan.faults:
            self.at(fault.at, None, self._strike, fault)
        queue, horizon, oracle = self._queue, self.plan.horizon, self.oracle
        while queue and not oracle.violation:
            when, _, actor, act, args = heappop(queue)
            if when > horizon:
                break
            self.now = when
            if actor is not None:
                if actor.gone:
                    continue
                if actor.stopped:
                    actor.backlog.append((act, args))
                    continue
            act(*args)
        return oracle

    # -- messages --

    def one_of(self, delays: tuple[float, ...]) -> float:
        return delays[0] if len(delays) == 1 else delays[int(self.random.random() * len(delays))]

    def lost(self, until: float) -> bool:
        return self.now < until or (self.plan.loss > 0 and self.random.random() < self.plan.loss)

    def call(
        self,
        actor: Actor,
        link: Link,
        act: Callable[[], Reply],
        answer: Callable[[Reply | None], None],
    ) -> None:
        """`answer` gets None when the time for an answer is over."""
        call = Call(actor, link, act, answer)
        if not self.lost(link.cut_until):
            delay = self.one_of(link.requests)
            if delay:
                self.at(self.now + delay, None, self._arrive, call)
            else:
                self._arrive(call)
        if not call.over:
            actor.after(self.rules.timing.request_timeout, self._end, call, None)

    def _arrive(self, call: Call) -> None:
        reply = call.act()
        if not self.lost(max(call.link.cut_until, call.link.mute_until)):
            # What takes no time is done at once, for speed, if there is somebody to do it.
            delay = self.one_of(call.link.answers)
            if delay or call.actor.stopped or call.actor.gone:
                self.at(self.now + delay, call.actor, self._end, call, reply)
            else:
                self._end(call, reply)

    def _end(self, call: Call, reply: Reply | None) -> None:
        if not call.over:
            call.over = True
            call.answer(reply)

    def changed(self) -> None:
        for operator in self.operators:
            operator.watch()

    # -- what happens to them --

    def new_pod(self, epoch: int, restoring: bool = False) -> Pod:
        from .pods import Pod

        number = len(self.pods)
        rates = self.plan.pods[number % len(self.plan.pods)]
        clock = Clock(CLOCKS_BEGIN_APART * (number + 1), rates)
        pod = Pod(self, clock, number, epoch, restoring)
        self.pods.append(pod)
        self.at(self.now + self.one_of(self.plan.operator_delays), None, pod.boot)
        return pod

    def restoring_pod(self, epoch: int) -> Pod:
        """Made ahead for a move. Should the operator grant this epoch, it makes another pod."""
        return self.new_pod(epoch, restoring=True)

    def _strike(self, fault: Fault) -> None:
        kind, end = fault.kind, self.now + fault.lasts
        if kind is Kind.DELETE:
            self._say(kind.value)
            self.store.delete()
        elif kind in (Kind.OPERATOR_CUT, Kind.OPERATOR_STALE, Kind.OPERATOR_KILL):
            number = fault.who % len(self.operators)
            self._say(f"operator {number}: {kind.value}{fault.span}")
            self.operators[number].struck(kind, end)
        elif fault.who < len(self.pods):
            self._say(f"pod {fault.who}: {kind.value}{fault.span}")
            self.pods[fault.who].struck(kind, end)

    def _say(self, text: str) -> None:
        if self.trace is not None:
            self.trace.append((self.now, "fault", text))
