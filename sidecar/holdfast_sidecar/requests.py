"""Requests: a control frame with a `kind` in, an answer out. One function a kind.

Checked here, at the edge: everything in a request's body is some stranger's.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import signal as signals
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any, Final, NamedTuple

from holdfast_sidecar import execute, snapshot
from holdfast_sidecar.ghostty import Terminal
from holdfast_sidecar.hold import HoldError, HoldLink, Unstopped
from holdfast_sidecar.session import Session
from holdfast_sidecar.state import Activity, Observation, observe, ports
from holdfast_wire.errors import BadRequest, Busy, Ended, HoldfastError, TooLarge, Unavailable
from holdfast_wire.frames import MAX_KEY, MAX_PAYLOAD
from holdfast_wire.ids import Actor, ClientId, display

Body = dict[str, Any]
# Leaves room for the JSON around it in one frame.
_MAX_TEXT: Final = MAX_PAYLOAD - (64 << 10)
# Of the journal, as it lies in its files.
_PAGE_BYTES: Final = MAX_PAYLOAD // 2
# Of those who are here, in one frame, whatever they are called.
_MOST_CLIENTS: Final = 400
_MAX_GRACE: Final = 3600.0
_GOES_ON: Final = "hold goes on trying; thaw, or end them from where they were started"
FROZEN_IN_PART: Final = "The freeze is incomplete; these processes could not be stopped"
# Not while the session is being moved: what they did here might not have been done there.
_ACTING: Final = frozenset(
    ("send", "exec", "take", "ask", "release", "freeze", "thaw", "signal", "end", "job_start",
     "job_signal")
)  # fmt: skip


class Asker(NamedTuple):
    actor: Actor
    client: ClientId | None
    modality: str


Handler = Callable[[Asker, Body], Awaitable[Body]]


def text_of(body: Body, name: str, default: str | None = None) -> str:
    value = body.get(name, default)
    if not isinstance(value, str) or any("\ud800" <= c <= "\udfff" for c in value):
        raise BadRequest(f"{name!r} must be a text")
    return value


def number_of(body: Body, name: str, default: float, low: float, high: float) -> float:
    value = body.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise BadRequest(f"{name!r} must be a number from {low:g} to {high:g}")
    return value


def key_of(body: Body) -> bytes:
    key = text_of(body, "key", "").encode()
    if len(key) > MAX_KEY:
        raise TooLarge(f"a key is at most {MAX_KEY} bytes")
    return key


def signal_of(body: Body) -> int:
    name = str(body.get("signal", "")).upper()
    try:
        number = int(name) if name.isdigit() else signals.Signals["SIG" + name.removeprefix("SIG")]
        return signals.Signals(number).value
    except (KeyError, ValueError):
        raise BadRequest(f"{name[:20]!r} is not a signal", "for example INT or 2") from None


class Requests:
    def __init__(self, session: Session, hold: HoldLink, pid: int) -> None:
        self._session, self._hold, self._pid = session, hold, pid
        self.frozen, self.unstopped = False, Unstopped()
        self._state_seen: Body | None = None
        self._commands = execute.Commands(session, self.observe)
        self._kinds: dict[str, Handler] = {
            "info": self._info,
            "screen": self._screen,
            "state": self._state,
            "graph": self._graph,
            "send": self._send,
            "exec": self._exec,
            "journal": self._journal,
            "take": self._take,
            "ask": self._ask,
            "release": self._release,
            "freeze": self._freeze,
            "thaw": self._thaw,
            "signal": self._signal,
            "end": self._end,
            "ping": self._ping,
        }

    def add(self, kinds: dict[str, Handler]) -> None:
        """More that can be asked."""
        self._kinds |= kinds

    async def answer(self, asker: Asker, body: Body) -> Body:
        kind = body.get("kind")
        handler = self._kinds.get(kind) if isinstance(kind, str) else None
        if handler is None:
            known = ", ".join(self._kinds)
            raise BadRequest(f"{str(kind)[:40]!r} is not a request", f"there are: {known}")
        if kind in _ACTING and self._session.exit is None:
            await self._session.parking.passed()
        try:
            return await handler(asker, body)
        except HoldError as error:
            raise _translated(error) from error

    # -- looking ----------------------------------------------------------------------------------

    async def observe(self) -> Observation:
        ended = self._session.exit is not None
        if ended or self.frozen:
            return observe(execute.NOTHING, frozen=self.frozen, ended=ended)
        try:
            return observe(await self._hold.foreground())
        except HoldError as error:
            if error.code == "lost":
                return observe(execute.NOTHING, ended=True)
            if error.code == "no_foreground":
                return observe(execute.NOTHING)
            raise

    async def state(self) -> Body:
        self._state_seen = self._told(await self.observe())
        return self._state_seen

    def _told(self, seen: Observation) -> Body:
        how, sentence = self._session.exit, seen.sentence
        if seen.activity is Activity.FROZEN and self.unstopped:
            sentence = f"{FROZEN_IN_PART}: {self.unstopped}."
        return {
            "activity": seen.activity.value,
            "process": None if seen.pid is None else {"pid": seen.pid, "name": seen.name},
            "sentence": sentence,
            "exit": how.to_json() if how else None,
        }

    async def _state(self, _asker: Asker, _body: Body) -> Body:
        return await self.state()

    def facts(self) -> Body:
        """What is known without asking anybody; the state is the one last seen."""
        session = self._session
        columns, rows = session.size
        return {
            "session": session.spec.name,
            "session_id": session.spec.id,
            "epoch": session.spec.epoch,
            "command": list(session.spec.command),
            "created": session.spec.created,
            "idle_seconds": round(max(0.0, time.time() - session.last_active), 3),
            "pid": self._pid,
            "seq": session.ring.head,
            "oldest": session.ring.oldest,
            "columns": columns,
            "rows": rows,
            "title": session.title,
            "state": self._state_seen,
            **session.turn.who(most=_MOST_CLIENTS),
        }

    async def _info(self, _asker: Asker, _body: Body) -> Body:
        await self.state()
        return self.facts()

    async def _screen(self, _asker: Asker, body: Body) -> Body:
        form, scrollback = text_of(body, "format", "text"), bool(body.get("scrollback", False))
        if form not in ("text", "ansi"):
            raise BadRequest(f"{form!r} is not a format", "use 'text' or 'ansi'")
        render = snapshot.text if form == "text" else snapshot.ansi

        def ask(terminal: Terminal, seq: int) -> Body:
            column, row = terminal.cursor
            text = render(terminal, scrollback=scrollback)
            kept = _last(text, _MAX_TEXT)
            return {
                "seq": seq,
                "columns": terminal.columns,
                "rows": terminal.rows,
                "text": kept,
                "truncated": len(kept) < len(text),
                "cursor": {"column": column, "row": row, "visible": terminal.cursor_visible},
                "title": terminal.title.decode("utf-8", "replace"),
                "alternate": terminal.alternate,
            }

        return await self._session.emulator.call(ask, self._session.ring.head)

    async def _graph(self, _asker: Asker, _body: Body) -> Body:
        """With the state and the ports, all of one look: is the server still running, where does it
        listen, since when, and does anything wait for an answer?"""
        if self._session.exit is not None:
            seen = self._told(observe(execute.NOTHING, ended=True))
            return {"processes": [], "foreground_pgid": None, "ports": [], "state": seen}
        graph = await self._hold.graph()
        boot = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
        seen = self._told(observe(graph, frozen=self.frozen))
        told = {
            "ports": ports(graph, boot),
            "state": seen,
            "boot": round(boot, 2),
            "at": time.time(),
        }
        return {**asdict(graph), **told}

    async def _journal(self, _asker: Asker, body: Body) -> Body:
        """Without `after`, the newest; with it, those with a higher number, page by page."""
        limit = int(number_of(body, "limit", 1000, 1, 5000))
        journal = self._session.journal
        self._session.flush_journal()
        if body.get("after") is None:
            page = await asyncio.to_thread(journal.newest, limit, _PAGE_BYTES)
        else:
            after = int(number_of(body, "after", 0, 0, 2**53))
            page = await asyncio.to_thread(journal.page, after, limit, _PAGE_BYTES)
        head = {"count": page.head.count, "head": page.head.digest}
        # The records are as they are in the chain, so that whoever reads them can verify it.
        return {"records": page.records, "shown": _shown(page.records), "next": page.next, **head}

    async def _ping(self, _asker: Asker, _body: Body) -> Body:
        return {}

    # -- acting -----------------------------------------------------------------------------------

    async def _send(self, asker: Asker, body: Body) -> Body:
        if "base64" in body:
            try:
                data = base64.b64decode(text_of(body, "base64"), validate=True)
            except (binascii.Error, ValueError):
                raise BadRequest("'base64' is not base64") from None
        else:
            data = text_of(body, "text").encode()
        order, duplicate = await self.write(asker, key_of(body), data)
        return {"order": order, "duplicate": duplicate}

    async def write(self, asker: Asker, key: bytes, data: bytes) -> tuple[int, bool]:
        done: asyncio.Future[tuple[int, bool]] = asyncio.get_running_loop().create_future()

        def finish(order: int, duplicate: bool) -> None:
            if not done.done():
                done.set_result((order, duplicate))

        self._session.write(asker.actor, asker.client, asker.modality, key, data, finish)
        return await done

    async def _exec(self, asker: Asker, body: Body) -> Body:
        command = text_of(body, "command")
        timeout = number_of(body, "timeout", 600, 0.1, 86400)
        return await self._commands.run(asker.actor, asker.modality, command, timeout, key_of(body))

    async def _take(self, asker: Asker, _body: Body) -> Body:
        self._session.take(*asker)
        return self._turn()

    async def _ask(self, asker: Asker, _body: Body) -> Body:
        self._session.ask_turn(*asker)
        return self._turn()

    async def _release(self, asker: Asker, body: Body) -> Body:
        to = text_of(body, "to", "")
        uid = text_of(body, "to_uid") if "to_uid" in body else None
        self._session.release(*asker, self._session.turn.named(to, uid) if to else None)
        return self._turn()

    def _turn(self) -> Body:
        return self._session.turn.facts()

    async def _freeze(self, asker: Asker, _body: Body) -> Body:
        try:
            result = await self._hold.freeze()
        except HoldError as error:
            if error.code == "incomplete":  # it is on all the same
                self._session.journal.add("freeze", **asker.actor.to_json())
                raise Busy(f"{FROZEN_IN_PART}: {error.unstopped}", _GOES_ON) from error
            raise
        self._session.journal.add("freeze", **asker.actor.to_json())
        return {"frozen": True, "stopped": result.stopped, "refused": result.refused}

    async def _thaw(self, asker: Asker, _body: Body) -> Body:
        await self._hold.thaw()
        self._session.journal.add("thaw", **asker.actor.to_json())
        return {"frozen": False}

    async def _signal(self, asker: Asker, body: Body) -> Body:
        number = signal_of(body)
        await self._hold.signal(number)
        self._session.journal.add("signal", **asker.actor.to_json(), signal=number)
        return {}

    async def _end(self, asker: Asker, body: Body) -> Body:
        grace = number_of(body, "grace", 5.0, 0.0, _MAX_GRACE)
        if self._session.exit is not None:
            return {}
        self._session.journal.add("end", **asker.actor.to_json())
        await self._hold.end(grace)
        return {}


def _shown(records: list[Body]) -> dict[str, str]:
    """How the names among them are shown, if not as they are."""
    names = {name for record in records if isinstance(name := record.get("actor"), str)}
    return {name: shown for name in names if (shown := display(name)) != name}


def _last(text: str, limit: int) -> str:
    data = text.encode()
    return text if len(data) <= limit else data[-limit:].decode(errors="ignore")


def _translated(error: HoldError) -> HoldfastError:
    if error.code in ("lost", "absent", "ending"):
        return Ended("the session has ended")
    if error.code in ("busy", "running", "frozen", "expired", "incomplete"):
        return Busy(error.message)
    if error.code == "no_foreground":
        return Busy("no process is in the foreground of the terminal")
    return Unavailable(error.message)
