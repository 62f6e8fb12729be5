"""A session on one machine that sleeps and wakes: what `holdfast suspend` asks of its sidecar.

    park ─ seal ─ (stored, and all of it ended)  or  unpark

Asked at `agent.sock`, by root. There is no Lease: whether the session sleeps is whether it lies
whole in its store, whose place `suspending` in the folder names. So no word about it is needed that
could be lost, and a command that is killed once it is stored has not ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from holdfast_sidecar import agent, sealed, sealing
from holdfast_sidecar.agent import AgentError, Body
from holdfast_sidecar.hold import HoldLink
from holdfast_sidecar.runner import Sidecar, log
from holdfast_wire.errors import BadRequest, HoldfastError
from holdfast_wire.ids import Actor

SUSPENDING: Final = "suspending"  # in the folder; its text is the path of the store
_EPOCH: Final = 0  # of a session that has none


class Hibernation:
    def __init__(self, sidecar: Sidecar, folder: Path) -> None:
        self._sidecar, self._session, self._folder = sidecar, sidecar.session, folder
        self._one = asyncio.Lock()
        sidecar.asleep = self._asleep

    def _asleep(self) -> bool:
        try:
            return Path((self._folder / SUSPENDING).read_text()).exists()
        except OSError:
            return False

    @contextlib.asynccontextmanager
    async def served(self, hold: HoldLink) -> AsyncIterator[None]:
        """Before the session is served: it may have just been woken, or be sealed."""
        if sealed.kept(self._folder):
            self._session.park(saving=True)
            self._session.sealed = True
        elif await self._woken(hold):
            self._settle_in()
        server = await agent.serve(self._folder / "agent.sock", self._answer)
        try:
            yield
        finally:
            server.close()

    async def _woken(self, hold: HoldLink) -> bool:
        """By a hold that has not typed yet, which the outbox's offset says: a sidecar that was
        killed over this does it again, and none does it twice."""
        try:
            told = sealed.load(self._folder)
        except BadRequest:
            return False
        descriptor = await hold.outbox()
        try:
            begun = os.lseek(descriptor, 0, os.SEEK_CUR) > 0
        finally:
            os.close(descriptor)
        if begun or told.arrived:
            return False
        sealing.check(self._session, told)
        await sealing.load_outbox(hold, self._folder)
        return True

    def _settle_in(self) -> None:
        told = sealed.load(self._folder)
        self._session.journal.add("woken")
        for local, remote in sealed.cut(self._folder):
            self._session.journal.add("cut", local=local, remote=remote)
        if told.holder is not None:
            self._session.reserve_turn(Actor(told.holder, told.holder_uid), told.holder_attached)
        sealed.save(self._folder, sealed.arrived(told))
        log(f"woken at seq {told.seq}")

    async def _answer(self, body: Body) -> Body:
        acts = {"park": self._park, "seal": self._seal, "unpark": self._unpark}
        act = acts.get(str(body.get("do")))
        if act is None:
            raise AgentError("bad_request", f"ask: {', '.join(acts)}")
        async with self._one:
            if self._session.exit is not None:
                raise AgentError("ended", "the session has ended")
            await act()
        return {"seq": self._session.ring.head, "files": sealed.files(self._folder)}

    async def _park(self) -> None:
        self._session.park(saving=True)

    async def _seal(self) -> None:
        if not self._session.parked:
            raise AgentError("not_parked", "park the session first")
        if self._session.sealed:
            return
        try:
            await sealing.close(self._session, self._folder, _EPOCH)
            sealed.keep(self._folder)
        except (HoldfastError, OSError) as error:
            self._session.unseal()
            raise AgentError("failed", str(error)) from error

    async def _unpark(self) -> None:
        sealed.open_again(self._folder)
        if self._session.parked:
            self._sidecar.unpark()
