"""A session on its way out of this pod: parked, sealed, offered; or not after all.

Invariant: while its offer may stand, the session is sealed: it takes no input, reads and types
nothing, and its files do not change. Only an acknowledged withdrawal opens it again.

To be stored, it is parked and sealed in the same way (`keep`), but offered to nobody. Then it goes
on here, or is suspended: the Lease is given back with the name of the checkpoint that has it all.
What holds for an offer holds for that release too.

Its memory may follow it (`follows`): what is frozen here is then needed after another has the
Lease, and it is the agent that ends it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from holdfast_sidecar import sealed, sealing
from holdfast_sidecar.agent import AgentError, Body
from holdfast_sidecar.fence import Fence, Gone, Superseded
from holdfast_sidecar.runner import Sidecar, log
from holdfast_wire.errors import HoldfastError

_PARKED_SECONDS: Final = 120.0
_MAX_PARKED_SECONDS: Final = 3600.0
# Where the time is up but an offer may stand, it is looked at again after this.
_AGAIN_SECONDS: Final = 1.0
# For one answer; what was asked of the API is asked on, and the agent can ask again.
_API_SECONDS: Final = 10.0
_MAX_NAME: Final = 256


class Departure:
    def __init__(
        self, sidecar: Sidecar, fence: Fence, folder: Path, epoch: int, pod: str, settle: float
    ) -> None:
        self._sidecar, self._session, self._fence = sidecar, sidecar.session, fence
        self._folder, self._epoch, self._pod, self._settle = folder, epoch, pod, settle
        self._one = asyncio.Lock()
        self._to, self._name = "", ""
        self._keep = False  # to be stored: `_to` is nobody
        self._follows = False  # its memory stays here until it is asked for there
        self._checkpoint = ""  # and suspended, as that
        self._staying = False  # the agent asked for it, and got no answer
        self._shut = False  # its command was told to end
        self._timer: asyncio.TimerHandle | None = None
        if fence.offered:  # by the sidecar before this one
            self._to, self._name = fence.offer_found
            self._found(f"offered to pod {self._to}")
        elif sealed.kept(folder):
            self._keep = True
            self._found("to be stored")

    def _found(self, what: str) -> None:
        self._session.park(saving=self._keep)
        self._session.sealed = True
        log(f"the session is sealed, and {what}")

    @property
    def offered(self) -> bool:
        return self._fence.offered

    async def park(self, body: Body) -> Body:
        keep, seconds = _flag(body, "keep"), body.get("seconds", _PARKED_SECONDS)
        follows = _flag(body, "follows")
        to = "" if keep else _name(body.get("to"), "'to' is the UID of another pod")
        if to == self._pod:
            raise AgentError("bad_request", "'to' is the UID of another pod")
        number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
        if not number or not 0 < seconds <= _MAX_PARKED_SECONDS:
            raise AgentError("bad_request", f"'seconds' is at most {_MAX_PARKED_SECONDS:g}")
        async with self._one:
            if self._session.exit is not None or self._shut:
                raise AgentError("ended", "the session has ended, or was told to")
            if self._session.sealed and (keep, to) != (self._keep, self._to):
                what = "being stored" if self._keep else f"on its way to pod {self._to}"
                raise AgentError("busy", f"the session is {what}")
            self._keep, self._to, self._follows = keep, to, follows
            self._session.park(saving=keep)
            self._arm(seconds)
            log("parked, to be stored" if keep else f"parked, to be moved to pod {to}")
        return {"seq": self._session.ring.head}

    async def progress(self, body: Body) -> Body:
        """How far it has come; who is attached sees it. Nothing else is done."""
        sent, expected = body.get("sent"), body.get("expected")
        if not _count(sent) or not _count(expected):
            raise AgentError("bad_request", "'sent' and 'expected' are numbers of bytes")
        if not self._session.parked or self._keep:
            raise AgentError("not_parked", "the session is not being moved")
        self._session.tell({"kind": "progress", "sent": sent, "expected": expected})
        return {}

    def _arm(self, seconds: float) -> None:
        self._disarm()
        self._timer = asyncio.get_running_loop().call_later(seconds, self._too_long)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _too_long(self) -> None:
        closed = self._session.sealed and not self._staying
        if self._fence.in_doubt or closed or self._one.locked():
            self._arm(_AGAIN_SECONDS)
        else:
            log("parked for too long: the session stays here")
            self._open()

    def _open(self) -> None:
        self._disarm()
        self._staying, self._checkpoint = False, ""
        sealed.open_again(self._folder)
        self._sidecar.unpark()

    async def seal(self, body: Body) -> Body:
        keep, unoffered = _flag(body, "keep"), _flag(body, "unoffered")
        async with self._one:
            if self._session.exit is None:
                self._check_ours()
            if not self._session.parked or keep != self._keep:
                raise AgentError("not_parked", "park the session first, for the same purpose")
            if self._session.exit is not None:
                raise AgentError("ended", "the session has ended")
            if not self._session.sealed:
                await self._close()
            self._staying = False
        seq = self._session.ring.head
        if not keep and not unoffered:
            await self._agreed(self._fence.offer(self._to, self._name), "the offer")
            log(f"offered to pod {self._to}")
        else:
            log(f"sealed at seq {seq}" + (", to be stored" if keep else ""))
        return {"seq": seq, "files": sealed.files(self._folder)}

    async def _agreed(self, work: Coroutine[Any, Any, None], what: str) -> None:
        """With the API. What it has not answered yet is asked on, whatever the agent does."""
        try:
            async with asyncio.timeout(_API_SECONDS):
                await work
        except TimeoutError:
            raise AgentError("unavailable", f"the API has not taken {what} yet") from None
        except Gone as error:
            raise AgentError("withdrawn", str(error)) from None
        except Superseded as error:
            raise AgentError("superseded", str(error)) from None

    def _check_ours(self) -> None:
        if (over := self._fence.over) is not None:
            raise AgentError("superseded", str(over))

    async def suspend(self, body: Body) -> Body:
        """Everything is stored: the Lease is given back, and nothing goes on here any more."""
        name = _name(body.get("checkpoint"), "'checkpoint' is the name of one")
        async with self._one:
            if self._fence.over is None and name != self._checkpoint:
                await self._settled(name)
        await self._agreed(self._fence.suspend(name), "the Lease back")
        log(f"suspended at seq {self._session.ring.head}, as {name}")
        return {"seq": self._session.ring.head}

    async def lost(self, _body: Body) -> Body:
        """Memory of it never came: it cannot go on, and did not end. The agent has frozen it, and
        kills it when this is answered."""
        if self._session.exit is not None:
            raise AgentError("ended", "the session has ended")
        self._check_ours()
        await self._agreed(self._fence.lose(), "the Lease back")
        log(f"lost at seq {self._session.ring.head}")
        return {"seq": self._session.ring.head}

    async def _settled(self, name: str) -> None:
        """Whoever is next may begin at once: what is under way has arrived by then."""
        if not self._session.sealed or not self._keep:
            raise AgentError("not_parked", "park and seal the session first, to be stored")
        if self._checkpoint:
            raise AgentError("busy", f"the session is being suspended as {self._checkpoint}")
        await asyncio.sleep(self._settle)
        if self._session.exit is not None:
            raise AgentError("ended", "the session has ended")
        self._checkpoint, self._staying = name, False

    async def _close(self) -> None:
        """Everything into the folder. If that fails nothing was offered, and it is only parked."""
        session = self._session
        try:
            await sealing.close(session, self._folder, self._epoch)
            if self._keep:
                sealed.keep(self._folder)
            elif self._follows:
                sealed.follow(self._folder)
        except (HoldfastError, OSError) as error:
            session.unseal()
            raise AgentError("failed", str(error)) from error
        self._name = datetime.now(UTC).isoformat(timespec="microseconds")

    async def unpark(self, _body: Body) -> Body:
        async with self._one:
            self._check_ours()
            said = self._checkpoint or not self._keep  # in the Lease, or it may be
            if self._fence.in_doubt or (self._session.sealed and said):
                self._staying, self._checkpoint = True, ""
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

    def shut(self) -> None:
        """Its command is told to end: that must not move along."""
        self._shut = True

    def close(self) -> None:
        self._disarm()


def _flag(body: Body, name: str) -> bool:
    found = body.get(name, False)
    if not isinstance(found, bool):
        raise AgentError("bad_request", f"'{name}' is true or false")
    return found


def _count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _name(value: object, what: str) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= _MAX_NAME:
        raise AgentError("bad_request", what)
    return value
