"""The session's Lease: taken before the command runs, renewed while it does, given back after.

Acts on what `holdfast_wire.lease` decides. Invariants: hold gets a deadline only from a renewal
that the API acknowledged, counted from when it was sent; the command starts only after the first;
whatever says that the Lease is not ours freezes the session at once, and only a later acknowledged
renewal thaws it. An offer may stand from before it is first sent until a renewal without it is
acknowledged: every write is a compare-and-swap, so none that was sent before can land after that.
The same goes for a session that is to be suspended, and its release.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any, Final, Protocol

from holdfast_sidecar.hold import HoldError, HoldStatus
from holdfast_sidecar.kube import Answer, ApiError, same_object
from holdfast_sidecar.lease_object import (
    OFFER,
    PREFIX,
    kept,
    mapping,
    offer_in,
    owners,
    record_of,
)
from holdfast_wire.lease import Holder, Renewal, Standing, Taker, Taking

_OK, _NOT_FOUND = 200, 404
# Refused before anything was looked at. In a storm of these, one request that gets through must be
# a renewal and not a read.
_NOT_DONE: Final = (401, 403, 429)
_NS: Final = 1_000_000_000
# After a request that failed: soon, then less so, but always often enough for the deadline.
_RETRY_SECONDS: Final = 0.25
# While an offer is taken everything stands still; a conflict is only the holder's own renewal.
_TAKE_SECONDS: Final = 0.02
# What the session does is asked of hold, which may be busy; a renewal does not wait longer for it.
_FACTS_SECONDS: Final = 0.5
NO_OFFER: Final = ("", "")
_SUSPENDED: Final = PREFIX + "suspended"
_LOST: Final = "what it needs to go on is lost, and the Lease was given back"
# What is said of one moment, and gone with the next write that does not say it.
_FLEETING: Final = frozenset((*OFFER, _SUSPENDED))

Facts = Callable[[], Awaitable[dict[str, str]]]


class Superseded(Exception):
    """Another incarnation has the Lease, or will: this one must never run again."""


class Gone(Exception):
    """There is no such offer or vacancy, or no longer."""


class Guard(Protocol):
    """The part of hold that the fence needs."""

    async def deadline(self, boottime_ns: int) -> None: ...
    async def status(self) -> HoldStatus: ...


class LeaseApi(Protocol):
    async def get(self, path: str) -> Answer: ...
    async def put(self, path: str, body: dict[str, Any]) -> Answer: ...


def boottime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Fence:
    def __init__(
        self,
        api: LeaseApi,
        path: str,
        owner: str,
        holder: Holder,
        guard: Guard,
        say: Callable[[str], None],
        clock: Callable[[], float] = boottime,
    ) -> None:
        """`owner` is the UID of the Session: another of the same name has another Lease."""
        self._api, self._path, self._holder, self._guard = api, path, holder, guard
        self._owner = owner
        self._say, self._clock = say, clock
        self._lease: dict[str, Any] | None = None  # as last read or written; None: read it first
        self._notes: dict[str, str] = {}
        self._standing = Standing.VACANT
        self._fenced = False
        self._last_complaint = ""
        self._failures = 0
        self._soon = asyncio.Event()
        self._wanted: tuple[str, str] | None = None  # the offer; None: as it is found
        self._offered = False
        self._checkpoint = ""  # it is to be suspended, as that
        self._parting = ""  # the same, of the write under way: a change of mind comes too late
        self._released = False
        self._lost = False  # it cannot go on, and did not end
        self._waiting: list[asyncio.Future[tuple[str, str] | None]] = []
        self._superseded: Superseded | None = None

    @property
    def offered(self) -> bool:
        """Whether an offer may stand: until it does not, nothing may go on here."""
        return self._offered

    @property
    def offer_found(self) -> tuple[str, str]:
        """The offer in the Lease last seen: the pod, and the offer's name."""
        return NO_OFFER if self._lease is None else offer_in(self._lease)

    @property
    def in_doubt(self) -> bool:
        """Whether an offer, or the release of a suspended session, may stand."""
        return self._offered or self._released

    @property
    def suspended(self) -> str:
        """The checkpoint that this incarnation was released with, by the Lease last seen."""
        lease = self._lease or {}
        if self._holder.standing(record_of(lease)) is not Standing.RELEASED:
            return ""
        return str(mapping(lease["metadata"].get("annotations")).get(_SUSPENDED) or "")

    @property
    def over(self) -> Superseded | None:
        """Why this incarnation never runs again, once that is known."""
        return self._superseded

    @property
    def standing(self) -> Standing:
        return self._standing

    def note(self, **notes: str) -> None:
        """Goes out with the next renewal."""
        self._notes |= {PREFIX + name.replace("_", "-"): text for name, text in notes.items()}

    def renew_now(self) -> None:
        self._soon.set()

    async def acquire(self) -> None:
        """Returns when the Lease is ours and hold knows until when; HoldError if it is lost."""
        await self._until_done(release=False)

    async def keep(self, facts: Facts) -> None:
        """Renews for ever. Ends only by `Superseded`."""
        try:
            await self._keep(facts)
        except Superseded as error:
            self._superseded = error
            self._heard(None)
            raise

    async def _keep(self, facts: Facts) -> None:
        timing = self._holder.timing
        due = self._clock() + timing.renew_every
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, due - self._clock())):
                    await self._soon.wait()
            self._soon.clear()
            with contextlib.suppress(HoldError, TimeoutError):
                async with asyncio.timeout(_FACTS_SECONDS):
                    self.note(**await facts())
            self._parting = self._checkpoint
            if self._lost:  # nothing runs from here on, and then nothing is under way
                await self._fence()
                if not await self._still():
                    due = self._clock() + timing.renew_every
                    continue
                await asyncio.sleep(timing.settle)
            sent, renewed, release = self._clock(), False, bool(self._parting) or self._lost
            with contextlib.suppress(HoldError):  # who serves the session hears of that too
                renewed = await self._step(release)
            if release and renewed:
                name = self.suspended
                raise Superseded(f"the session is suspended, as {name}" if name else _LOST)
            due = sent + (timing.renew_every if renewed else self._pause())

    async def offer(self, pod: str, name: str) -> None:
        """Returns when the API has the offer. While `keep` runs, as are the next two."""
        await self._agreed((pod, name))

    async def withdraw(self) -> None:
        """Returns when the Lease is ours and has no offer; `Superseded` if it was taken, or given
        back by an earlier `suspend`."""
        self._checkpoint = ""
        await self._agreed(NO_OFFER)

    async def suspend(self, checkpoint: str) -> None:
        """Returns when the API has the release, which ends `keep` too. Everything is frozen, and
        nothing that it did is under way any more."""
        self._checkpoint = checkpoint
        while self._superseded is None:
            if self._checkpoint != checkpoint:
                raise Gone("it is to go on here after all")
            await self._next()
        if self.suspended != checkpoint:
            raise Superseded(str(self._superseded))

    async def lose(self) -> None:
        """Returns when the API has the release, as of `suspend`, but nothing was stored: to the
        operator it is as if the host were lost."""
        self._lost = True
        while self._superseded is None:
            await self._next()

    async def _agreed(self, wanted: tuple[str, str]) -> None:
        """Only what a renewal was acknowledged with counts, never what a read showed."""
        self._wanted = wanted
        while self._wanted == wanted:
            if self._superseded is not None:
                raise Superseded(str(self._superseded))
            if await self._next() == wanted:
                return
        raise Gone("it is to be otherwise meanwhile")

    async def _next(self) -> tuple[str, str] | None:
        """The offer that the next renewal is acknowledged with; None if there is none any more."""
        heard: asyncio.Future[tuple[str, str] | None]
        heard = asyncio.get_running_loop().create_future()
        self._waiting.append(heard)
        self._soon.set()
        return await heard

    def _heard(self, acknowledged: tuple[str, str] | None) -> None:
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(acknowledged)
        self._waiting.clear()

    async def release(self, **notes: str) -> None:
        """Everything has ended: say how, and give the Lease back for good. Of one that is being
        suspended, all is in its checkpoint: it is suspended."""
        self._parting = self._checkpoint
        self.note(**({} if self._parting or self._lost else notes))
        await self._until_done(release=True)
        self._superseded = Superseded("the Lease was given back")
        self._heard(None)

    async def _until_done(self, *, release: bool) -> None:
        while True:
            if await self._step(release):
                return
            await asyncio.sleep(self._pause())

    def _pause(self) -> float:
        """Until the next attempt, after one that did not renew."""
        self._failures += 1
        timing = self._holder.timing
        if self._standing in (Standing.MISSING, Standing.ROLLED_BACK):
            return timing.renew_every  # frozen already: nothing to hurry for
        later = _RETRY_SECONDS * (1 << min(self._failures - 1, 8))
        return min(later, timing.renew_every / 2)

    async def occupy(self, **notes: str) -> None:
        """As `acquire`, but only what is there to be had: `Gone` if the Lease is not vacant, nor
        ours by an earlier attempt. The notes are in it from the first moment."""
        self.note(**notes)
        try:
            while not await self._step():
                if self._standing in (Standing.MISSING, Standing.ROLLED_BACK):
                    raise Gone(f"the Lease is {self._standing.value}")
                await asyncio.sleep(self._pause())
        except Superseded as error:
            raise Gone(str(error)) from error

    # -- an offer, for whom it is made ------------------------------------------------------------

    async def look(self) -> Standing:
        """Reads, and does nothing else: whether this is ours already. ApiError, TimeoutError."""
        async with asyncio.timeout(self._holder.timing.request_timeout):
            await self._read()
        record = None if self._lease is None else record_of(self._lease)
        return self._holder.standing(record)

    async def foresee(self, taker: Taker) -> bool:
        """Reads ahead of `take`. False: not offered yet, or not known; `take` will read again."""
        with contextlib.suppress(ApiError, TimeoutError):
            await self.look()
            if self._lease is not None and taker.saw(record_of(self._lease)) is Taking.TAKE:
                return True
        self._lease = None
        return False

    async def take(self, taker: Taker) -> None:
        """Returns when the Lease is ours and hold knows until when, `Gone` when it never will be.
        As long as neither is known, it goes on asking."""
        attempts = 0
        while await self._taken(taker) is not Taking.TAKEN:
            pause = min(_TAKE_SECONDS * (1 << min(attempts, 8)), self._holder.timing.renew_every)
            attempts += 1
            await asyncio.sleep(pause)
        self._wanted = NO_OFFER
        if self._standing is not Standing.HELD:  # it landed, but its answer did not
            await self.acquire()

    async def _taken(self, taker: Taker) -> Taking:
        """One attempt. TAKE: it may or may not have been taken, and a read will tell."""
        until = asyncio.get_running_loop().time() + self._holder.timing.request_timeout
        try:
            async with asyncio.timeout_at(until):
                if self._lease is None:
                    await self._read()
            record = None if self._lease is None else record_of(self._lease)
            taking = taker.saw(record)
            if taking is Taking.GONE or self._lease is None:
                raise Gone("the Lease is not, or no longer, offered to this pod")
            if self._owner not in owners(self._lease):
                raise Gone("the Lease is another Session's")
            taken = taking is Taking.TAKE and await self._write(
                self._lease, self._won(self._lease), until
            )
            return Taking.TAKEN if taken else taking
        except TimeoutError:
            self._doubt("the API does not answer in time")
        except ApiError as error:
            self._doubt(str(error))
        except HoldError as error:
            self._doubt(f"hold was not told its deadline: {error.message}")
            if error.code == "lost":
                raise
        return Taking.TAKE

    def _won(self, lease: dict[str, Any]) -> dict[str, Any]:
        """The Lease for this epoch: of the former incarnation's notes nothing is kept."""
        epoch = self._holder.epoch
        found = mapping(lease["metadata"].get("annotations"))
        notes = {key: text for key, text in found.items() if not key.startswith(PREFIX)}
        own = {"epoch": epoch, "started": epoch, "moved": epoch - 1}
        notes |= {PREFIX + name: str(number) for name, number in own.items()}
        new = {**lease, "metadata": {**lease["metadata"], "annotations": notes}}
        self._wanted = NO_OFFER
        return self._renewed(new, release=False)

    # -- one attempt ------------------------------------------------------------------------------

    async def _step(self, release: bool = False) -> bool:
        """One renewal, after a read if the Lease is not known. False: not now; ask again."""
        until = asyncio.get_running_loop().time() + self._holder.timing.request_timeout
        try:
            return await self._renew(release, until)
        except TimeoutError:
            self._doubt("the API does not answer in time")
        except ApiError as error:
            self._doubt(str(error))
        except HoldError as error:
            self._doubt(f"hold was not told its deadline: {error.message}")
            if error.code == "lost":
                raise
        return False

    async def _renew(self, release: bool, until: float) -> bool:
        """`until` bounds what the API is asked, not what hold is told: it may be busy freezing."""
        if self._lease is None:
            async with asyncio.timeout_at(until):
                await self._read()
        standing = await self._judge()
        if release and standing is Standing.RELEASED:
            return True  # by an earlier attempt, whose answer was lost
        if release and standing is Standing.MISSING and not self._parting:
            return True  # there is nobody to tell
        if standing in (Standing.SUPERSEDED, Standing.RELEASED):
            raise Superseded(f"the Lease says: {standing.value}")
        if standing not in (Standing.HELD, Standing.VACANT) or self._lease is None:
            self._lease = None  # look again the next time
            return False
        return await self._write(self._lease, self._renewed(self._lease, release), until, release)

    async def _write(
        self, before: dict[str, Any], after: dict[str, Any], until: float, release: bool = False
    ) -> bool:
        self._offered = self._offered or bool(record_of(after).offer)
        self._released = self._released or release
        renewal = self._holder.send(self._clock())
        async with asyncio.timeout_at(until):
            answer = await self._api.put(self._path, after)
        if not self._took(answer, before, after, release):
            self._doubt(_reason(answer), done=answer.status not in _NOT_DONE)
            return False
        self._lease = kept(answer.body)
        self._offered, self._released = bool(record_of(self._lease).offer), release
        if not release:
            await self._acknowledged(renewal)
        return True

    def _took(
        self, answer: Answer, before: dict[str, Any], after: dict[str, Any], release: bool
    ) -> bool:
        """Whether the store took what was sent: a version that did not change is no renewal, since
        that is all the operator goes by."""
        if answer.status != _OK or not same_object(self._path, answer.body):
            return False
        record = record_of(answer.body)
        wanted = Standing.RELEASED if release else Standing.HELD
        return (
            self._holder.standing(record) is wanted
            and record.version not in ("", record_of(before).version)
            and offer_in(answer.body) == offer_in(after)
        )

    async def _read(self) -> None:
        answer = await self._api.get(self._path)
        if answer.status == _OK and same_object(self._path, answer.body):
            self._lease = kept(answer.body)
            self._offered = self._offered or bool(record_of(self._lease).offer)
        elif answer.status == _NOT_FOUND and answer.body.get("reason") == "NotFound":
            self._lease = None
        else:
            raise ApiError(_reason(answer))

    async def _judge(self) -> Standing:
        record = None if self._lease is None else record_of(self._lease)
        standing = self._holder.standing(record)
        if self._lease is not None and self._is_anothers(self._lease):
            standing = Standing.SUPERSEDED
        if standing is not self._standing:
            self._say(f"the Lease is {standing.value}")
            self._standing = standing
        if standing not in (Standing.HELD, Standing.VACANT):
            await self._fence()
        return standing

    def _is_anothers(self, lease: dict[str, Any]) -> bool:
        """Of a Session made again under the same name, whose epochs count from one again."""
        uids = owners(lease)
        return bool(uids) and self._owner not in uids

    async def _fence(self) -> None:
        """Now, and until a later deadline: hold is told that the deadline has passed."""
        if not self._fenced:
            with contextlib.suppress(HoldError):
                await self._guard.deadline(0)
                self._fenced = True

    async def _still(self) -> bool:
        """Whether hold says that nothing runs. What could not be stopped is not given back: whoever
        comes next waits until the Lease has expired."""
        with contextlib.suppress(HoldError):
            status = await self._guard.status()
            if status.exited or (status.frozen and not status.incomplete):
                return True
            self._say(f"the Lease is kept: the freeze is incomplete ({status.incomplete})")
        return False

    async def _acknowledged(self, renewal: Renewal) -> None:
        """Not renewed until hold knows: it must never start the command without a deadline."""
        deadline = self._holder.acknowledge(renewal)
        await self._guard.deadline(int(deadline * _NS))
        self._last_complaint, self._failures = "", 0
        self._standing, self._fenced = Standing.HELD, False
        self._heard(self.offer_found)

    def _doubt(self, why: str, done: bool = True) -> None:
        """The last attempt may have been done, and only a read can tell; or it was not."""
        if done:
            self._lease = None
        if why != self._last_complaint:
            self._last_complaint = why
            self._say(f"the Lease was not renewed: {why}")

    def _renewed(self, lease: dict[str, Any], release: bool) -> dict[str, Any]:
        now = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        metadata, spec = dict(lease["metadata"]), dict(mapping(lease.get("spec")))
        notes = {**mapping(metadata.get("annotations")), **self._notes}
        wanted = NO_OFFER if release else self._wanted
        if wanted is not None:
            notes |= dict(zip(OFFER, wanted, strict=True))
        notes[_SUSPENDED] = self._parting if release else ""
        if release:
            notes[PREFIX + "released"] = str(self._holder.epoch)
        metadata["annotations"] = {k: v for k, v in notes.items() if v or k not in _FLEETING}
        if spec.get("holderIdentity") != self._holder.identity:
            spec["acquireTime"] = now
            transitions = spec.get("leaseTransitions")
            spec["leaseTransitions"] = transitions + 1 if isinstance(transitions, int) else 1
        spec["holderIdentity"] = "" if release else self._holder.identity
        spec["renewTime"] = now
        return {**lease, "metadata": metadata, "spec": spec}


def _reason(answer: Answer) -> str:
    return f"{answer.status} {str(answer.body.get('message', ''))[:200]}".strip()
