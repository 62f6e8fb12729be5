"""A pod in which a session from elsewhere is to go on: nothing is served, renewed or typed until
the agent says `commit`, and then only once the Lease is ours.

    the agent puts the files into our folder, and has hold adopt the restored processes
    → commit  →  state and outbox loaded  →  offer taken  →  answered  →  served like any other

Invariant: everything that can fail is done before the offer is taken, and can be done again; a
sidecar killed after that finds the Lease its own, and begins like any other that was killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from holdfast_sidecar import outbox, sealed
from holdfast_sidecar.agent import AgentError, Body
from holdfast_sidecar.emulator import rehearse
from holdfast_sidecar.fence import Fence, Gone
from holdfast_sidecar.hold import HoldError, HoldLink
from holdfast_sidecar.kube import ApiError
from holdfast_sidecar.runner import Sidecar, log
from holdfast_wire.errors import HoldfastError
from holdfast_wire.ids import Actor
from holdfast_wire.lease import Standing, Taker

# Between looks whether a sidecar before this one took the session; asked to commit, one is taken
# at once.
_LOOK_SECONDS: Final = 5.0


class Arrival:
    def __init__(
        self,
        make: Callable[[], Sidecar],
        hold: HoldLink,
        fence: Fence,
        taker: Taker,
        folder: Path,
    ) -> None:
        """`make` opens the session that lies in `folder`."""
        self._make, self._hold, self._fence, self._taker = make, hold, fence, taker
        self._folder = folder
        self._asked: asyncio.Future[Body] | None = None
        self._news = asyncio.Event()
        self._complaint = ""

    async def commit(self, _body: Body) -> Body:
        """Answers when it is known whether the session is ours; who asks meanwhile hears the same.
        One that came before we waited is answered when we do."""
        if self._asked is None:
            self._asked = asyncio.get_running_loop().create_future()
            self._news.set()
        return await asyncio.shield(self._asked)

    async def wait(self) -> Sidecar:
        """Returns when the Lease is ours, with the session as it was sealed."""
        log("waiting for a session from another pod")
        await asyncio.to_thread(rehearse)
        while True:
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

    async def _taken_before(self) -> Sidecar | None:
        """The session, if a sidecar before this one took it and was killed then. If it was served
        here and superseded since, who begins to serve it again finds out and gives it up."""
        try:
            standing = await self._fence.look()
            over = standing in (Standing.RELEASED, Standing.SUPERSEDED)
            ours = standing is Standing.HELD or (over and sealed.load(self._folder).arrived)
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
        try:
            _allocate(self._folder / "ring")
            sidecar = self._make()
        except (HoldfastError, OSError) as error:
            raise AgentError("refused", str(error)) from error
        try:
            await self._load(sidecar)
            await self._fence.take(self._taker)
        except (Gone, HoldfastError, HoldError, OSError) as error:
            sidecar.session.abandon()
            if isinstance(error, HoldError) and error.code == "lost":
                raise  # whether it was taken, the next sidecar finds out
            raise AgentError("refused", str(error)) from error
        log(f"the session arrived, at seq {sidecar.session.ring.head}")
        return sidecar

    async def _load(self, sidecar: Sidecar) -> None:
        session, told = sidecar.session, sealed.load(self._folder)
        found = (session.ring.head, session.emulator.seq, session.inputs.last)
        if found != (told.seq, told.seq, told.order):
            raise AgentError("refused", f"the files are not whole: {found}, and {told} was sealed")
        if told.epoch != self._taker.epoch - 1:
            raise AgentError("refused", f"the files are of epoch {told.epoch}")
        saved = (self._folder / sealed.OUTBOX).read_bytes()
        descriptor = await self._hold.outbox()
        try:
            outbox.load(descriptor, saved)
        finally:
            os.close(descriptor)


def _allocate(path: Path) -> None:
    """A file that was copied may have holes; a disk that fills up later would end us with a bus
    error (`ring.py`)."""
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        os.posix_fallocate(descriptor, 0, max(1, os.fstat(descriptor).st_size))
    finally:
        os.close(descriptor)


def settle_in(sidecar: Sidecar, folder: Path, epoch: int) -> None:
    """Once, by whoever serves it here first: the turn as it was, and a record of the move."""
    session, told = sidecar.session, sealed.load(folder)
    if told.arrived or told.epoch != epoch - 1:
        return
    session.journal.add("moved", **{"from": told.epoch, "to": epoch})
    for local, remote in sealed.cut(folder):
        session.journal.add("cut", local=local, remote=remote)
    session.last_active = min(session.last_active, told.active)
    if told.holder is not None:
        session.reserve_turn(Actor(told.holder), told.holder_attached)
    sealed.save(folder, sealed.arrived(told))
