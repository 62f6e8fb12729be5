"""A session on its way out of this pod: parked, sealed, offered; or not after all.

Invariant: while its offer may stand, the session is sealed: it takes no input, reads and types
nothing, and its files do not change. Only an acknowledged withdrawal opens it again.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from holdfast_sidecar import sealed
from holdfast_sidecar.agent import AgentError, Body
from holdfast_sidecar.fence import Fence, Gone, Superseded
from holdfast_sidecar.runner import Sidecar, log
from holdfast_sidecar.sealed import Sealed
from holdfast_wire.errors import HoldfastError

_PARKED_SECONDS: Final = 120.0
_MAX_PARKED_SECONDS: Final = 3600.0
# Where the time is up but an offer may stand, it is looked at again after this.
_AGAIN_SECONDS: Final = 1.0
# For one answer; what was asked of the API is asked on, and the agent can ask again.
_API_SECONDS: Final = 10.0
_MAX_NAME: Final = 256


class Departure:
    def __init__(self, sidecar: Sidecar, fence: Fence, folder: Path, epoch: int, pod: str) -> None:
        self._sidecar, self._session, self._fence = sidecar, sidecar.session, fence
        self._folder, self._epoch, self._pod = folder, epoch, pod
        self._one = asyncio.Lock()
        self._to, self._name = "", ""
        self._staying = False  # the agent asked for it, and got no answer
        self._timer: asyncio.TimerHandle | None = None
        if fence.offered:  # by the sidecar before this one
            self._session.parked = self._session.sealed = True
            self._to, self._name = fence.offer_found
            log(f"the session is sealed, and offered to pod {self._to}")

    @property
    def offered(self) -> bool:
        return self._fence.offered

    async def park(self, body: Body) -> Body:
        to, seconds = body.get("to"), body.get("seconds", _PARKED_SECONDS)
        if not isinstance(to, str) or not 0 < len(to) <= _MAX_NAME or to == self._pod:
            raise AgentError("bad_request", "'to' is the UID of another pod")
        number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
        if not number or not 0 < seconds <= _MAX_PARKED_SECONDS:
            raise AgentError("bad_request", f"'seconds' is at most {_MAX_PARKED_SECONDS:g}")
        async with self._one:
            if self._session.exit is not None:
                raise AgentError("ended", "the session has ended")
            if self._session.sealed and to != self._to:
                raise AgentError("busy", f"the session is on its way to pod {self._to}")
            self._to = to
            self._session.park()
            self._arm(seconds)
            log(f"parked, to be moved to pod {to}")
        return {"seq": self._session.ring.head}

    def _arm(self, seconds: float) -> None:
        self._disarm()
        self._timer = asyncio.get_running_loop().call_later(seconds, self._too_long)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _too_long(self) -> None:
        closed = self._session.sealed and not self._staying
        if self._fence.offered or closed or self._one.locked():
            self._arm(_AGAIN_SECONDS)
        else:
            log("parked for too long: the session stays here")
            self._open()

    def _open(self) -> None:
        self._disarm()
        self._staying = False
        self._sidecar.unpark()

    async def seal(self, _body: Body) -> Body:
        async with self._one:
            if not self._session.parked:
                raise AgentError("not_parked", "park the session first")
            if self._session.exit is not None:
                raise AgentError("ended", "the session has ended")
            if not self._session.sealed:
                await self._close()
            self._staying = False
        try:
            async with asyncio.timeout(_API_SECONDS):
                await self._fence.offer(self._to, self._name)
        except TimeoutError:
            raise AgentError("unavailable", "the API has not taken the offer yet") from None
        except Gone as error:
            raise AgentError("withdrawn", str(error)) from None
        except Superseded as error:
            raise AgentError("superseded", str(error)) from None
        seq = self._session.ring.head
        log(f"sealed at seq {seq}, and offered to pod {self._to}")
        return {"seq": seq, "files": sealed.files(self._folder)}

    async def _close(self) -> None:
        """Everything into the folder. If that fails nothing was offered, and it is only parked."""
        session = self._session
        try:
            await session.seal()
            (self._folder / sealed.OUTBOX).write_bytes(session.pty.outbox.saved())
            turn = session.turn
            state = Sealed(
                session_id=session.spec.id,
                epoch=self._epoch,
                seq=session.ring.head,
                order=session.inputs.last,
                created=session.spec.created,
                active=session.last_active,
                holder=turn.holder,
                holder_attached=turn.lead is not None,
            )
            sealed.save(self._folder, state)
        except (HoldfastError, OSError) as error:
            session.unseal()
            raise AgentError("failed", str(error)) from error
        self._name = datetime.now(UTC).isoformat(timespec="microseconds")

    async def unpark(self, _body: Body) -> Body:
        async with self._one:
            if self._fence.offered or self._session.sealed:
                self._staying = True
                self._arm(_AGAIN_SECONDS)
                try:
                    async with asyncio.timeout(_API_SECONDS):
                        await self._fence.withdraw()
                except TimeoutError:
                    raise AgentError("unavailable", "the API has not said so yet") from None
                except (Superseded, Gone) as error:
                    raise AgentError("superseded", str(error)) from None
            if self._session.parked:
                self._open()
                log("the session stays here")
        return {"seq": self._session.ring.head}

    def close(self) -> None:
        self._disarm()
