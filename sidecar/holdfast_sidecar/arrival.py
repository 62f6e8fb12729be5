"""A pod in which a session from elsewhere is to go on: nothing is served, renewed or typed until
the agent says `commit`, and then only once the Lease is ours.

    the agent puts the files into our folder  →  prepare  →  they are opened, the Lease is read
    it has hold adopt the restored processes
    → commit  →  outbox loaded  →  offer taken  →  answered  →  served like any other

One that was stored (`stored.py`) is offered by nobody: the Lease is vacant, as for a first
incarnation, and taken as by one.

Invariant: everything that can fail is done before the Lease is taken, and can be done again; a
sidecar killed after that finds the Lease its own, and begins like any other that was killed. What
was prepared counts only for the files that lie there when it is asked to commit.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from holdfast_sidecar import sealed, sealing, stored, words
from holdfast_sidecar.agent import AgentError, Body
from holdfast_sidecar.came import Came
from holdfast_sidecar.emulator import rehearse
from holdfast_sidecar.fence import Fence, Gone
from holdfast_sidecar.hold import HoldError, HoldLink
from holdfast_sidecar.kube import ApiError
from holdfast_sidecar.runner import Sidecar, log
from holdfast_sidecar.sealed import Sealed
from holdfast_sidecar.session import Session
from holdfast_sidecar.stored import Stored, Why
from holdfast_wire.errors import BadRequest, HoldfastError
from holdfast_wire.ids import Actor
from holdfast_wire.lease import Standing, Taker

# Between looks whether a sidecar before this one took the session; asked to commit, one is taken
# at once.
_LOOK_SECONDS: Final = 5.0
_KINDS: Final = {Why.RECOVER: "restored", Why.WAKE: "woken", Why.FORK: "forked"}


@dataclass(frozen=True)
class _Opened:
    """`files`: which ones, as they were put there."""

    sidecar: Sidecar
    stored: Stored | None
    files: tuple[int, int]


class Arrival:
    def __init__(
        self,
        make: Callable[[], Sidecar],
        hold: HoldLink,
        fence: Fence,
        taker: Taker,
        came: Came,
    ) -> None:
        """`make` opens the session that lies in the folder."""
        self._make, self._hold, self._fence, self._taker = make, hold, fence, taker
        self._came, self._folder = came, came.folder
        self._stored: Stored | None = None
        self._asked: asyncio.Future[Body] | None = None
        self._preparing: asyncio.Future[Body] | None = None
        self._opened: _Opened | None = None
        self._foreseen = False  # the Lease was read, and is offered to us
        self._news = asyncio.Event()
        self._complaint = ""

    def check(self, body: Body) -> Stored | None:
        """What is asked for is what this pod is for."""
        if not self._came.stored:
            if "stored" in body:
                raise AgentError("refused", "this pod is for a session that moves")
            return None
        try:
            return stored.parse(body.get("stored"))
        except BadRequest as error:
            raise AgentError("bad_request", str(error)) from None

    async def prepare(self, body: Body) -> Body:
        """All files are there, and `commit` will follow: what can be done before it is done now."""
        wanted = self.check(body)
        if self._asked is not None or self._preparing is not None:
            raise AgentError("busy", "another one is on its way here")
        self._stored = wanted
        self._preparing = asyncio.get_running_loop().create_future()
        self._news.set()
        return await asyncio.shield(self._preparing)

    async def commit(self, body: Body) -> Body:
        """Answers when it is known whether the session is ours; who asks meanwhile hears the same.
        One that came before we waited is answered when we do."""
        wanted = self.check(body)
        if self._asked is not None and wanted != self._stored:
            raise AgentError("busy", "another one is on its way here")
        self._stored = wanted
        if self._asked is None:
            self._asked = asyncio.get_running_loop().create_future()
            self._news.set()
        return await asyncio.shield(self._asked)

    async def wait(self) -> Sidecar:
        """Returns when the Lease is ours, with the session as it was sealed."""
        log("waiting for a session from another pod")
        await asyncio.to_thread(rehearse)
        while True:
            await self._prepare()
            if (sidecar := await self._taken_before()) is not None:
                return sidecar
            if self._asked is not None:
                try:
                    return await self._arrive()
                except AgentError as error:
                    self._asked.set_exception(error)
                    self._asked = None
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_SECONDS):
                    await self._news.wait()
            self._news.clear()

    def answer(self, sidecar: Sidecar) -> None:
        """The session is ours, and all is ready for it to go on."""
        if self._asked is not None:
            self._asked.set_result({"seq": sidecar.session.ring.head})

    async def _prepare(self) -> None:
        if (asked := self._preparing) is None:
            return
        try:
            self._forget()
            self._open()
            if self._stored is None:
                self._foreseen = await self._fence.foresee(self._taker)
            asked.set_result({})
        except AgentError as error:
            asked.set_exception(error)
        finally:
            self._preparing = None

    def _forget(self) -> None:
        """What was prepared is not what comes."""
        self._foreseen = False
        if self._opened is not None:
            self._opened.sidecar.session.abandon()
            self._opened = None

    async def _taken_before(self) -> Sidecar | None:
        """The session, if a sidecar before this one took it and was killed then. If it was served
        here and superseded since, who begins to serve it again finds out and gives it up."""
        if self._foreseen:  # it was not
            return None
        try:
            standing = await self._fence.look()
            over = standing in (Standing.RELEASED, Standing.SUPERSEDED)
            ours = standing is Standing.HELD or (over and not self._came.awaited)
            if ours and (await self._hold.status()).started:
                return self._make()
            self._complaint = ""
        except (ApiError, TimeoutError, HoldfastError, OSError) as error:
            why = str(error) or "no answer in time"
            if why != self._complaint:
                self._complaint = why
                log(f"whether the session is here is not known: {why}")
        return None

    async def _arrive(self) -> Sidecar:
        status = await self._hold.status()
        if not status.started or status.exited:
            raise AgentError("refused", "hold has no session: it is to adopt it first")
        sidecar = self._open()
        try:
            await sealing.load_outbox(self._hold, self._folder)
            if self._stored is None:
                await self._fence.take(self._taker)
            else:
                await self._occupy(self._stored)
        except (Gone, HoldfastError, HoldError, OSError) as error:
            self._forget()
            if isinstance(error, HoldError) and error.code == "lost":
                raise  # whether it was taken, the next sidecar finds out
            raise AgentError("refused", str(error)) from error
        log(f"the session arrived, at seq {sidecar.session.ring.head}")
        return sidecar

    def _open(self) -> Sidecar:
        """As it lies there, and was sealed."""
        try:
            files = _identity(self._folder)
            if (found := self._opened) is not None:
                if (found.stored, found.files) == (self._stored, files):
                    return found.sidecar
                self._forget()
            _allocate(self._folder / "ring")
            if self._stored is not None:
                stored.save(self._folder, self._stored)
            sidecar = self._make()
        except (HoldfastError, OSError) as error:
            raise AgentError("refused", str(error)) from error
        self._opened = _Opened(sidecar, self._stored, files)
        try:
            self._check(sidecar)
        except BaseException as error:
            self._forget()
            if isinstance(error, HoldfastError | OSError):
                raise AgentError("refused", str(error)) from error
            raise
        return sidecar

    def _check(self, sidecar: Sidecar) -> None:
        told = sealed.load(self._folder)
        sealing.check(sidecar.session, told)
        if told.epoch != self._wanted_epoch():
            raise AgentError("refused", f"the files are of epoch {told.epoch}")

    def _wanted_epoch(self) -> int:
        """Between what was stored and this there may have been attempts to go on with it. For a
        fork this is another session's epoch."""
        if self._stored is None:
            return self._taker.epoch - 1
        if self._stored.why is not Why.FORK and self._stored.epoch >= self._taker.epoch:
            raise AgentError("refused", f"epoch {self._stored.epoch} is not before this one")
        return self._stored.epoch

    async def _occupy(self, what: Stored) -> None:
        await self._fence.occupy(
            started=str(self._taker.epoch),
            restored=str(what.epoch),
            restored_from=what.checkpoint,
            restored_taken=what.taken_at,
        )


def _identity(folder: Path) -> tuple[int, int]:
    """Whoever puts files there makes new ones, this one among them; we write it no more before the
    session is served."""
    found = (folder / sealed.NAME).lstat()
    return found.st_ino, found.st_ctime_ns


def _allocate(path: Path) -> None:
    """A file that was copied may have holes; a disk that fills up later would end us with a bus
    error (`ring.py`)."""
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        os.posix_fallocate(descriptor, 0, max(1, os.fstat(descriptor).st_size))
    finally:
        os.close(descriptor)


def settle_in(sidecar: Sidecar, came: Came) -> None:
    """Once, by whoever serves it here first: what people are told, a record of it, and the turn."""
    if not came.awaited:
        return
    session, told, what = sidecar.session, came.told(), came.what()
    if what is not None and session.ring.head == told.seq:  # else it was said before a kill
        session.say(words.gone_on(what, time.time()))
    _record(session, came, told, what)
    for local, remote in sealed.cut(came.folder):
        session.journal.add("cut", local=local, remote=remote)
    if what is None:  # to go on after a rest is news; who looks for idle sessions begins anew
        session.last_active = min(session.last_active, told.active)
    if told.holder is not None and not (what is not None and what.why is Why.FORK):
        session.reserve_turn(Actor(told.holder, told.holder_uid), told.holder_attached)
    sealed.save(came.folder, sealed.arrived(told))


def _record(session: Session, came: Came, told: Sealed, what: Stored | None) -> None:
    epochs = {"from": told.epoch, "to": came.epoch}
    if what is None:
        session.journal.add("moved", **epochs)
        return
    facts = {**epochs, "taken": what.taken, "checkpoint": what.checkpoint}
    if what.why is Why.FORK:
        facts["session"] = what.origin
    session.journal.add(_KINDS[what.why], **facts)
