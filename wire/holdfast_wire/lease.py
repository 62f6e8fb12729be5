"""The rules by which a session has at most one live incarnation. Pure: no clock, no I/O.

The sidecar of an incarnation is a `Holder`: it renews the session's Lease and runs on until its
deadline. The operator is an `Observer`: it may give the Lease to the next incarnation only after
the holder has released it, or after it has seen no renewal for a whole duration.

Safety. Every clock runs at a rate within 1 ± drift. The holder's deadline runs from the *send*
time of its last acknowledged renewal; by then the renewal was not yet in the store. The observer's
wait runs from its own first sight of the Lease's version; by then it was. So the observer's wait
began after the holder's, and with

    duration >= (1 + drift) * (freeze_after / (1 - drift) + freeze_takes + in_flight)

it ends after everything of the old incarnation is frozen and nothing it did is still under way.
How long the API takes to answer does not enter. Wall clocks are never read. `make check-lease`
tries to refute all of this.

A live incarnation changes places without that wait: its sidecar, once everything is frozen, writes
an offer into the Lease, which names one pod. That pod is a `Taker`. An offer ends by one
compare-and-swap, the holder's or the taker's, and the loser of the two sees that it lost.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final, NewType, Self

from holdfast_wire.errors import BadRequest

Epoch = NewType("Epoch", int)
"""Numbers a session's incarnations. It only grows; it is the fencing token."""

DRIFT: Final = 0.1  # no clock in use is as bad; NTP itself slews by at most 0.0005
FREEZE_TAKES: Final = 2.0  # stopping every process of a large tree on a busy node
IN_FLIGHT: Final = 1.0  # what a stopped process had already handed to the kernel
# Shares of the duration: with the usual 20 s, 3 s, 2 s and 12 s.
_RENEW_EVERY: Final = 0.15
_REQUEST_TIMEOUT: Final = 0.1
_FREEZE_AFTER: Final = 0.6
SHORTEST: Final = 13  # seconds; the shortest whole duration that keeps the inequality
LONGEST: Final = 600


@dataclass(frozen=True, slots=True)
class Timing:
    """All in seconds."""

    duration: float  # the observer's wait
    renew_every: float
    request_timeout: float
    freeze_after: float  # the holder's deadline, from the send time
    freeze_takes: float = FREEZE_TAKES
    in_flight: float = IN_FLIGHT
    drift: float = DRIFT

    @classmethod
    def of(cls, duration: float) -> Self:
        """The one setting there is, `lease.durationSeconds`; refused if it is not safe."""
        timing = cls(
            duration,
            _RENEW_EVERY * duration,
            _REQUEST_TIMEOUT * duration,
            _FREEZE_AFTER * duration,
        )
        if not timing.safe or not timing.live:
            raise BadRequest(
                f"a lease of {duration:g} s is too short to be safe",
                f"set lease.durationSeconds to {SHORTEST} or more",
            )
        return timing

    @property
    def safe(self) -> bool:
        longest = self.freeze_after / (1 - self.drift) + self.freeze_takes + self.in_flight
        return self.duration >= (1 + self.drift) * longest

    @property
    def settle(self) -> float:
        """How long a holder waits between having frozen or ended everything and its release, on
        its own clock: a released Lease may be taken at once, so nothing may be in flight."""
        return self.in_flight * (1 + self.drift)

    @property
    def live(self) -> bool:
        """One lost renewal freezes nobody."""
        return self.freeze_after >= 2 * (self.renew_every + self.request_timeout)


@dataclass(frozen=True, slots=True)
class Record:
    """What a read of the Lease showed."""

    version: str  # resourceVersion: compared for equality, never for order
    epoch: Epoch
    holder: str  # "" if vacant
    released: bool = False  # by the holder of this epoch, for good
    offer: str = ""  # the UID of the pod that may take it over, alive
    offered: str = ""  # names this offer among all: compared for equality, never for order


NOBODY: Final = "nobody"
"""Holds a Lease that was made anew because somebody had deleted it. No incarnation is granted it;
like that of any holder not heard of, it is taken over after a whole duration."""


@dataclass(frozen=True, slots=True)
class Grant:
    """What the operator writes into the Lease."""

    epoch: Epoch
    holder: str


def grant(record: Record | None, high_water: Epoch) -> Grant:
    """The next write. `high_water` is the highest epoch that the Session's status ever had, from a
    fresh read; it is raised before the pod of an epoch is made.

    A Lease that exists goes to the next epoch, once `Observer.may_take` says so. The first one is
    made vacant. One that is missing otherwise is made at once, but for nobody: absence has no
    version to compare and swap on, so a wait for it proves nothing. Another operator may have made
    a Lease meanwhile, and somebody may have deleted that one too, under a holder that runs.
    """
    if record is not None:
        return Grant(Epoch(max(record.epoch, high_water) + 1), "")
    return Grant(Epoch(high_water + 1), NOBODY if high_water else "")


class Standing(Enum):
    """How a holder stands, by its last read of the Lease."""

    HELD = "held"
    VACANT = "vacant"  # granted to this epoch and not yet taken
    RELEASED = "released"  # given back by this epoch: it never runs again
    SUPERSEDED = "superseded"  # freeze at once and die
    MISSING = "missing"  # freeze at once and wait: nobody has taken over yet
    ROLLED_BACK = "rolled back"  # an older epoch than ours: freeze at once, a person must look


@dataclass(frozen=True, slots=True)
class Renewal:
    """One attempt, named by when it was sent."""

    sent_at: float


class Holder:
    """One incarnation's side. Times are seconds on one monotonic clock of the caller's.

    Invariant: `deadline` is the send time of an acknowledged renewal plus `freeze_after`, or None
    before the first; it never comes from an answer's arrival, nor from an attempt in doubt.
    """

    def __init__(self, timing: Timing, identity: str, epoch: Epoch) -> None:
        self.timing, self.identity, self.epoch = timing, identity, epoch
        self.deadline: float | None = None

    def standing(self, record: Record | None) -> Standing:
        if record is None:
            return Standing.MISSING
        if record.epoch > self.epoch:
            return Standing.SUPERSEDED
        if record.epoch < self.epoch:
            return Standing.ROLLED_BACK
        if record.released:
            return Standing.RELEASED
        if record.holder == self.identity:
            return Standing.HELD
        return Standing.SUPERSEDED if record.holder else Standing.VACANT

    def send(self, now: float) -> Renewal:
        """`now` is read before the request leaves."""
        return Renewal(now)

    def acknowledge(self, renewal: Renewal) -> float:
        """The store said that it took this renewal. Answers may come late and out of order."""
        deadline = renewal.sent_at + self.timing.freeze_after
        self.deadline = deadline if self.deadline is None else max(self.deadline, deadline)
        return self.deadline

    def expired(self, now: float) -> bool:
        """Whether nothing may run now; true before the first acknowledged renewal."""
        return self.deadline is None or now >= self.deadline


class Taking(Enum):
    """How an offer stands for the pod it names, by its last read of the Lease."""

    TAKE = "take"  # by compare-and-swap on the version that was read
    TAKEN = "taken"  # by this very pod: an earlier write landed, and its answer was lost
    GONE = "gone"  # it was taken back, or never made, or the Lease went on: never take it


class Taker:
    """The side of the pod to which a live incarnation is offered.

    Invariant: it takes only a version in which the offer names its pod and the epoch is the one
    before its own. The holder froze everything before it offered. What it did before that may be
    still under way, but it is the past of the very processes that go on here.
    """

    def __init__(self, pod: str, identity: str, epoch: Epoch) -> None:
        self.pod, self.identity, self.epoch = pod, identity, epoch

    def saw(self, record: Record | None) -> Taking:
        if record is not None and (record.epoch, record.holder) == (self.epoch, self.identity):
            return Taking.TAKEN
        offered = record is not None and self._is_offered(record)
        return Taking.TAKE if offered else Taking.GONE

    def _is_offered(self, record: Record) -> bool:
        held = record.holder not in ("", NOBODY) and not record.released
        named = bool(record.offered) and record.offer == self.pod
        return held and named and record.epoch == self.epoch - 1


class Observer:
    """The operator's side, for one Lease. Begins anew with each operator process.

    Invariant: `expired` is true only of a version first seen at least `duration` ago on the
    caller's own clock.
    """

    def __init__(self, timing: Timing) -> None:
        self.timing = timing
        self._version: str | None = None
        self._since = 0.0
        self._seen = False

    def saw(self, record: Record | None, now: float) -> None:
        """`now` is read after the answer came. `None`: the Lease is missing."""
        version = None if record is None else record.version
        if not self._seen or version != self._version:
            self._seen, self._version, self._since = True, version, now

    def restart(self, now: float) -> None:
        """After a conflict: somebody wrote, so what was waited for is void. After the API could not
        be reached, too: then nobody could renew, and an outage must not end sessions."""
        self._seen, self._since = False, now

    def expires_at(self) -> float | None:
        """When the wait ends if nothing changes."""
        return self._since + self.timing.duration if self._seen else None

    def expired(self, now: float) -> bool:
        return self._seen and now - self._since >= self.timing.duration

    def may_take(self, record: Record | None, now: float) -> bool:
        """Whether the Lease may go to the next epoch, by compare-and-swap on `record.version`. Of
        a missing one this says only how long it was not seen; see `grant`."""
        self.saw(record, now)
        return (record is not None and record.released) or self.expired(now)
