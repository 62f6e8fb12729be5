"""The operator around the production `Observer`. It decides from its watch, however stale."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from holdfast_wire.lease import Epoch, Observer, Record, grant

from .model import Clock, Kind
from .world import Actor, Link, Reply, World

RETRY = 1.0


class Operator:
    """One replica: a process that may be killed, and the one started in its place."""

    def __init__(self, world: World, clock: Clock, number: int) -> None:
        self.world, self.clock, self.number = world, clock, number
        self.link = Link(world.plan.operator_delays, world.plan.operator_delays)
        self.stale_until = -1.0
        self.process = Process(self)

    def watch(self) -> None:
        """The Lease changed: the news comes in order, late, or after the watch is back."""
        self.process.expect_news()

    def struck(self, kind: Kind, end: float) -> None:
        if kind is Kind.OPERATOR_CUT:
            self.link.cut_until = max(end, self.link.cut_until)
        elif kind is Kind.OPERATOR_STALE:
            self.stale_until = max(end, self.stale_until)
        elif not self.process.gone:
            self.process.gone = True
            self.world.at(end, None, self.restart)

    def restart(self) -> None:
        self.process = Process(self)


class Process(Actor):
    def __init__(self, replica: Operator) -> None:
        world = replica.world
        super().__init__(world, replica.clock, f"operator {replica.number}")
        self.replica = replica
        self.observer = Observer(world.rules.timing)
        self.view: Record | None = None
        self.busy = self.waiting = False
        self.podded = 0  # the epoch whose pod it knows to be made
        self.raises = world.rules.moves and world.rules.status_first
        self.raised = 0  # the epoch that it knows the status to have, of one that arrived alive
        self.news_at = 0.0
        world.at(world.now, self, self.read)

    # -- seeing --

    def expect_news(self) -> None:
        world, link = self.world, self.replica.link
        late = max(self.replica.stale_until, link.cut_until, world.now)
        self.news_at = max(self.news_at, late + world.one_of(world.plan.operator_delays))
        world.at(self.news_at, self, self.news, world.store.lease)

    def news(self, record: Record | None) -> None:
        late = max(self.replica.stale_until, self.replica.link.cut_until)
        if self.world.now < late:  # the watch went stale while this was on its way
            self.news_at = max(self.news_at, late)
            self.world.at(self.news_at, self, self.news, record)
            return
        self.see(record)

    def see(self, record: Record | None) -> None:
        self.view = record
        self.observer.saw(record, self.now())
        self.wait()
        self.reconcile()

    def wait(self) -> None:
        due = self.observer.expires_at()
        if due is not None and not self.waiting:
            self.waiting = True
            self.at(due, self.waited, due)

    def waited(self, due: float) -> None:
        self.waiting = False
        later = self.observer.expires_at()
        if later is not None and later > due:
            self.wait()
        else:
            self.reconcile(due)

    def call(self, act: Callable[[], Reply], answer: Callable[[Reply | None], None]) -> None:
        self.busy = True
        self.world.call(self, self.replica.link, act, answer)

    def read(self) -> None:
        self.call(self.world.store.get, self.on_read)

    def on_read(self, reply: Reply | None) -> None:
        self.busy = False
        if reply is None:
            self.failed()
        else:
            self.see(reply.record)

    def reread(self) -> None:
        if not self.busy:
            self.read()

    # -- deciding --

    def reconcile(self, due: float = -1e9) -> None:
        """`due` is the time a timer was set for, which rounding may put just after now."""
        if self.busy:
            return
        record, now = self.view, max(due, self.now())
        taken = self.observer.may_take(record, now)
        if record is None or taken:
            # The Session afresh: a high-water mark out of a cache could be an old one.
            self.call(self.world.store.get, partial(self.on_session, record, taken))
        elif not record.holder and not record.released and record.epoch != self.podded:
            self.make_pod(record.epoch)
        elif record.holder and record.epoch > self.raised and self.raises:
            self.call(
                partial(self.world.store.raise_high_water, record.epoch),
                partial(self.on_known, record.epoch),
            )

    def on_known(self, epoch: int, reply: Reply | None) -> None:
        if reply is None:
            self.failed()
        else:
            self.busy, self.raised = False, epoch
            self.reconcile()

    def on_session(self, record: Record | None, taken: bool, reply: Reply | None) -> None:
        if reply is None:
            self.failed()
        elif record is None:
            self.make_lease(reply.high_water, taken)
        elif record.epoch < reply.high_water:
            self.quarantine(record, reply)
        else:
            next_ = grant(record, Epoch(reply.high_water))
            version = record.version if self.world.rules.compare_and_swap else None
            self.say(f"takes over: epoch {next_.epoch}, by version {record.version}")
            put = partial(self.world.store.put, version, next_.epoch, next_.holder)
            self.call(put, self.on_written)

    def make_lease(self, high_water: int, waited: bool) -> None:
        create = self.world.store.create
        if high_water == 0:
            self.call(self.world.store.claim_first, self.on_claimed)
        elif self.world.rules.missing_is_nobodys:
            next_ = grant(None, Epoch(high_water))
            self.say(f"makes the missing Lease: epoch {next_.epoch}, nobody's")
            self.call(partial(create, next_.epoch, next_.holder), self.on_written)
        elif waited:
            self.say(f"makes the missing Lease: epoch {high_water + 1}, vacant")
            self.call(partial(create, high_water + 1, ""), self.on_written)
        else:
            self.busy = False

    def on_claimed(self, reply: Reply | None) -> None:
        if reply is None or not reply.done:
            self.failed()
        else:
            self.say("makes the first Lease")
            self.call(partial(self.world.store.create, 1, ""), self.on_written)

    def on_written(self, reply: Reply | None) -> None:
        if reply is None:
            self.say("no answer to its write")
            self.failed()
        elif not reply.done:
            self.say("conflict")
            self.observer.restart(self.now())
            self.read()
        else:
            self.busy = False
            self.see(reply.record)

    def quarantine(self, record: Record, reply: Reply) -> None:
        """Unless it is only the watch that is old, a person must look."""
        self.busy = False
        if reply.record == record:
            self.say(f"quarantine: epoch {record.epoch} is below {reply.high_water}")
        else:
            self.after(RETRY, self.reread)

    def make_pod(self, epoch: int) -> None:
        raised = partial(self.on_raised, epoch)
        self.call(partial(self.world.store.raise_high_water, epoch), raised)

    def on_raised(self, epoch: int, reply: Reply | None) -> None:
        if reply is None:
            self.failed()
        elif not reply.done:
            self.busy = False  # a later epoch was granted: this one never gets a pod
        else:
            self.say(f"makes the pod of epoch {epoch}")
            make = partial(self.world.store.create_pod, epoch)
            self.call(make, partial(self.on_pod, epoch))

    def on_pod(self, epoch: int, reply: Reply | None) -> None:
        self.busy = False
        if reply is None:
            self.after(RETRY, self.reread)
        else:
            self.podded = epoch
            self.reconcile()

    def failed(self) -> None:
        """What was asked may have happened: read before anything else. And perhaps nobody else
        could reach the API either, so silence until now says nothing of the holder."""
        self.observer.restart(self.now())
        self.busy = True
        self.after(RETRY, self.read)
