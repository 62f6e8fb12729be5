"""A live incarnation changes places: the agents of two nodes, and the sidecar that waits at the
second around the production `Taker`. Or it is suspended, by one agent. The agents go on where a
sidecar was killed; they are paused and crash with the source's node."""

from __future__ import annotations

from functools import partial
from typing import Final

from holdfast_wire.lease import Record, Taker, Taking

from .pods import NO_OFFER, Pod, Sidecar, State
from .world import Actor, Reply, World

LOOK: Final = 0.5


class Arriving(Sidecar):
    """Looks until it may take; from then on it is a sidecar like any other."""

    def __init__(self, world: World, pod: Pod) -> None:
        super().__init__(world, pod.clock, pod)
        self.taker = Taker(pod.uid, pod.identity, self.holder.epoch)
        self.arrived = False

    def judge(self, record: Record | None) -> None:
        taking = self.taker.saw(record)
        self.arrived = self.arrived or taking is Taking.TAKEN
        if self.arrived:
            super().judge(record)
        elif taking is Taking.TAKE and record is not None:
            self.take(record)
        else:
            self.after(LOOK, self.read)

    def take(self, record: Record) -> None:
        self.record = record
        renewal = self.holder.send(self.now())
        version = record.version if self.world.rules.offer_swaps else None
        put = partial(self.world.store.put, version, self.pod.epoch, self.pod.identity)

        def answered(reply: Reply | None) -> None:
            if reply is not None and reply.done:
                self.arrived = True
                self.world.moved += 1
                self.say("takes the offer")
            self.on_written(renewal, reply)

        self.call(put, answered)


class Move(Actor):
    """Freezes the source, has it offered, and at `end`, if it was not taken, has it stay."""

    def __init__(self, world: World, source: Pod, end: float) -> None:
        super().__init__(world, source.clock, f"agent {source.number}")
        self.source, self.end = source, end
        self.name = f"agent {source.number}"
        self.offer = NO_OFFER
        self.step()

    def step(self) -> None:
        hold, sidecar = self.source.hold, self.source.sidecar
        if hold.gone or hold.to_die:
            return
        self.after(LOOK / 2, self.step)
        if hold.stopped or sidecar.gone or sidecar.stopped:
            return
        if self.world.now >= self.end:
            self.stay(sidecar)
        elif self.offer == NO_OFFER:
            self.begin(sidecar)

    def begin(self, sidecar: Sidecar) -> None:
        hold = self.source.hold
        known = self.world.store.high_water >= self.source.epoch
        if not known and self.world.rules.status_first:
            return
        if sidecar.releasing or hold.ending or not hold.started:
            return
        hold.parked = True
        hold.check()
        if hold.state is State.STOPPED:
            target = self.world.restoring_pod(self.source.epoch + 1)
            hold.life.handed_over = True
            self.offer = (target.uid, f"{self.world.now}")
            self.say(f"frozen; to be offered to {target.uid}")
            sidecar.want(self.offer)

    def stay(self, sidecar: Sidecar) -> None:
        """Thawed only when a renewal without the offer is acknowledged."""
        asked = sidecar.wanted == NO_OFFER
        if not asked:
            self.say("to stay after all")
            sidecar.want(NO_OFFER)
        if (asked and sidecar.agreed) or not self.world.rules.thaw_waits:
            self.source.hold.parked = False
            self.source.hold.check()
            self.gone = True


class Suspension(Move):
    """Freezes it, waits, and has the Lease given back; at `end`, if it was not, has it stay."""

    since: float | None = None  # frozen

    def begin(self, sidecar: Sidecar) -> None:
        hold, timing = self.source.hold, self.world.rules.timing
        if sidecar.releasing or hold.ending or not hold.started:
            return
        hold.parked = True
        hold.check()
        if hold.state is not State.STOPPED:
            return
        self.since = self.now() if self.since is None else self.since
        if self.now() - self.since >= timing.settle and not sidecar.suspending:
            self.say("frozen; to be suspended")
            sidecar.suspending = True

    def stay(self, sidecar: Sidecar) -> None:
        sidecar.suspending = False
        super().stay(sidecar)
