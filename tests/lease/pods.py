"""A session's pod on a node: the sidecar around the production `Holder`, and hold under it."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from functools import partial
from typing import Final

from holdfast_wire.lease import Epoch, Holder, Record, Renewal, Standing

from .model import Clock, Kind
from .oracle import Life
from .world import Actor, Link, Reply, World

NO_OFFER: Final = ("", "")


class State(Enum):
    STOPPED = auto()  # not yet started, or frozen
    RUNNING = auto()
    FREEZING = auto()  # some processes still run
    DEAD = auto()


class Hold(Actor):
    """PID 1 of the session. It has one thread: while it freezes, what it is told waits."""

    def __init__(self, world: World, clock: Clock, pod: Pod) -> None:
        super().__init__(world, clock, f"hold {pod.number}")
        self.life = Life(pod.epoch, pod.identity)
        self.state = State.STOPPED
        self.started = self.ending = self.to_stop = self.to_die = False
        self.parked = False  # the agent stopped everything
        self.deadline: float | None = None
        self.attempt = 0  # to freeze: a pause of the node begins another

    def overdue(self, now: float) -> bool:
        return self.deadline is None or now >= self.deadline

    def set_deadline(self, deadline: float, sidecar: Sidecar) -> None:
        self.deadline = deadline
        keeper: Actor = self if self.world.rules.switch else sidecar
        keeper.at(deadline, self.check, deadline)
        self.check()

    def start(self) -> None:
        self.started = True
        self.check()

    def freeze(self) -> None:
        self.to_stop = True
        self.check()

    def kill(self) -> None:
        """Frozen first: a tree that dies process by process runs on in part."""
        self.to_stop = self.to_die = True
        self.check()

    def check(self, due: float = 0.0) -> None:
        """`due` is the time a timer was set for, which rounding may put just after now."""
        now = max(due, self.now())
        stop = (
            self.to_stop
            or self.parked
            or (self.overdue(now) and (self.world.rules.switch or due > 0))
        )
        if self.state is State.RUNNING and stop:
            self.state = State.FREEZING
            self.say("freezes")
            self.stop_them(self.world.one_of(self.world.plan.freezes))
        elif self.state is State.STOPPED and self.to_die:
            self.state = State.DEAD
        elif self.state is State.STOPPED and self.started and not stop and not self.overdue(now):
            self.state = State.RUNNING
            self.say(f"epoch {self.life.epoch} runs")
            self.world.oracle.runs(self.life, self.world.now)

    def stop_them(self, share: float) -> None:
        self.attempt += 1
        takes = share * self.world.rules.timing.freeze_takes
        self.world.at(self.world.now + takes, self, self.frozen, self.attempt)

    def frozen(self, attempt: int) -> None:
        if attempt != self.attempt:
            return
        self.state = State.STOPPED
        self.say(f"epoch {self.life.epoch} is frozen")
        self.world.oracle.stops(self.life, self.world.now)
        self.world.oracle.freezes += 1
        self.check()

    @property
    def alive(self) -> bool:
        return self.state in (State.RUNNING, State.FREEZING)

    def pause(self) -> None:
        self.stopped += 1
        if self.alive and self.stopped == 1:
            self.world.oracle.stops(self.life, self.world.now)

    def go_on(self) -> None:
        """Processes run again before hold can look at its clock."""
        if self.stopped > 1:
            self.stopped -= 1
            return
        if self.alive:
            late = self.overdue(self.now())
            self.say(f"epoch {self.life.epoch} goes on{', overdue' if late else ''}")
            self.world.oracle.runs(self.life, self.world.now, woken=late)
        if self.state is State.FREEZING:  # what was left to stop takes its time again
            self.stop_them(1.0)
        super().go_on()
        self.check()

    def die(self) -> None:
        if self.alive and not self.stopped:
            self.world.oracle.stops(self.life, self.world.now)
        self.state, self.gone = State.DEAD, True


class Sidecar(Actor):
    """Renews every `renew_every`, one request at a time. Its clock is its node's."""

    def __init__(self, world: World, clock: Clock, pod: Pod) -> None:
        super().__init__(world, clock, f"sidecar {pod.number}")
        self.pod, self.hold = pod, pod.hold
        self.holder = Holder(world.rules.timing, pod.identity, Epoch(pod.epoch))
        self.record: Record | None = None
        self.releasing = self.settled = False
        self.wanted: tuple[str, str] | None = None  # the offer; None: as it is found
        self.agreed = False  # acknowledged since it was wanted
        self.suspending = False  # to be given back, unless it is called off before that has landed

    def want(self, offer: tuple[str, str]) -> None:
        """Goes with the next renewal."""
        self.wanted, self.agreed = offer, False

    def call(self, act: Callable[[], Reply], answer: Callable[[Reply | None], None]) -> None:
        self.world.call(self, self.pod.link, act, answer)

    def read(self) -> None:
        self.call(self.world.store.get, self.on_read)

    def later(self) -> None:
        self.after(self.world.rules.timing.renew_every, self.read)

    def on_read(self, reply: Reply | None) -> None:
        if reply is None:
            self.later()
        else:
            self.judge(reply.record)

    def judge(self, record: Record | None) -> None:
        self.record = record
        standing = self.holder.standing(record)
        if standing is Standing.HELD and self.settled:
            self.give_back()
        elif standing is Standing.HELD and self.hold.ending and not self.releasing:
            self.release()  # which the sidecar before this one had begun
        elif standing is Standing.HELD or (standing is Standing.VACANT and not self.hold.started):
            self.write()
        elif standing in (Standing.SUPERSEDED, Standing.RELEASED):
            self.say(standing.value)
            self.hold.kill()
            self.gone = True
        else:  # missing, rolled back, or vacant though it was held: for somebody else to settle
            self.say(standing.value)
            self.hold.freeze()
            self.later()

    def write(self) -> None:
        """Acquires or renews: a swap on the version last read."""
        if self.record is None:
            self.read()
            return
        if self.releasing:
            return
        if self.suspending:
            put = partial(self.world.store.put, self.record.version, self.pod.epoch, "", True)
            self.call(put, self.on_released)
            return
        renewal = self.holder.send(self.now())
        offer = self.wanted or (self.record.offer, self.record.offered)
        version, pod = self.record.version, self.pod
        put = partial(self.world.store.put, version, pod.epoch, pod.identity, False, offer)
        self.call(put, partial(self.on_written, renewal))

    def on_written(self, renewal: Renewal, reply: Reply | None) -> None:
        if reply is None:
            self.say(f"no answer to its renewal of {self.ago(renewal)}")
            self.read()
        elif not reply.done:
            self.judge(reply.record)
        else:
            self.record = reply.record
            if self.wanted is not None and reply.record is not None:
                self.agreed = (reply.record.offer, reply.record.offered) == self.wanted
            self.say(f"renewal of {self.ago(renewal)} acknowledged")
            basis = renewal if self.world.rules.from_send else Renewal(self.now())
            self.hold.set_deadline(self.holder.acknowledge(basis), self)
            if not self.holder.expired(self.now()):
                self.hold.start()
            if not self.releasing:
                next_at = renewal.sent_at + self.world.rules.timing.renew_every
                self.at(max(next_at, self.now()), self.write)

    def ago(self, renewal: Renewal) -> str:
        return f"{self.now() - renewal.sent_at:.2f} s ago"

    def release(self) -> None:
        """Freeze, let settle, give back."""
        if not self.releasing and self.record is not None and self.hold.started:
            self.releasing = self.hold.ending = True
            self.hold.freeze()
            self.await_frozen()

    def await_frozen(self) -> None:
        timing = self.world.rules.timing
        if self.hold.state is State.STOPPED:
            self.after(timing.settle if self.world.rules.settle else 0.0, self.give_back)
        else:
            self.after(timing.freeze_takes / 4, self.await_frozen)

    def give_back(self) -> None:
        self.settled = True
        if self.record is None:
            self.read()
            return
        put = partial(self.world.store.put, self.record.version, self.pod.epoch, "", True)
        self.call(put, self.on_released)

    def on_released(self, reply: Reply | None) -> None:
        if reply is None or not reply.done:
            self.read()
        else:
            self.say("released")
            self.world.moved += self.suspending
            self.hold.kill()
            self.gone = True


class Pod:
    def __init__(
        self, world: World, clock: Clock, number: int, epoch: int, restoring: bool = False
    ) -> None:
        self.world, self.clock, self.number, self.epoch = world, clock, number, epoch
        self.uid, self.restoring = f"uid{number}", restoring
        # The nonce is of the boot: it is the same for a sidecar that comes back.
        self.identity = f"{self.uid}/boot"
        self.link = Link(world.plan.requests, world.plan.answers)
        self.hold = Hold(world, clock, self)
        self.sidecar = self.new_sidecar()

    def new_sidecar(self) -> Sidecar:
        from .moves import Arriving

        new = Arriving(self.world, self) if self.restoring else None
        return new or Sidecar(self.world, self.clock, self)

    def boot(self) -> None:
        if not self.sidecar.gone:
            self.sidecar.read()

    def struck(self, kind: Kind, end: float) -> None:
        world, sidecar = self.world, self.sidecar
        if kind is Kind.CUT:
            self.link.cut_until = max(end, self.link.cut_until)
        elif kind is Kind.MUTE:
            self.link.mute_until = max(end, self.link.mute_until)
        elif kind is Kind.STOP:
            sidecar.stopped += 1
            world.at(end, None, sidecar.go_on)
        elif kind is Kind.KILL:
            if not sidecar.gone:
                sidecar.gone = True
                world.at(end, None, self.restart)
        elif kind is Kind.PAUSE:
            self.hold.pause()
            sidecar.stopped += 1
            world.at(end, None, self.resume, sidecar)
        elif kind is Kind.CRASH:
            sidecar.gone = True
            self.hold.die()
        elif kind is Kind.RELEASE:
            if not sidecar.gone and not sidecar.stopped:
                sidecar.release()
        elif kind is Kind.FORGET:
            world.store.pods.discard(self.epoch)
        elif kind is Kind.MOVE:
            self.move(end)

    def move(self, end: float) -> None:
        from .moves import Move, Suspension

        if not self.hold.gone:
            (Suspension if self.world.rules.suspends else Move)(self.world, self, end)

    def resume(self, sidecar: Sidecar) -> None:
        if not self.hold.gone:
            self.hold.go_on()
        sidecar.go_on()

    def restart(self) -> None:
        """The kubelet starts a killed sidecar again; hold has kept the deadline."""
        if self.hold.gone or self.hold.to_die:
            return
        self.sidecar = self.new_sidecar()
        self.sidecar.stopped = self.hold.stopped
        self.world.at(self.world.now, self.sidecar, self.sidecar.read)
