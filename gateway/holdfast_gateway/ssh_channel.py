"""What somebody who is let in by SSH can ask for, and what he hears.

    ssh -t NAME@gateway           a shell, with a terminal: attached to the session
    ssh NAME@gateway -- COMMAND   the session's shell runs it: its output, its status
    ssh -s NAME@gateway state     what is known of the session, as JSON
    ssh -s NAME@gateway wake      lets it go on, if it is suspended

Invariant: of what a client says only two things reach a session: the bytes he types, and the one
COMMAND string, as a request's field. Names are checked to be DNS labels; the terminal's type, the
environment and everything else is not read at all. There is no shell on this side.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Awaitable, Callable
from typing import Any, Final

import asyncssh

from holdfast_gateway import log, ssh_attach
from holdfast_gateway.auth import Caller
from holdfast_gateway.backend import READ_AHEAD, Backend
from holdfast_gateway.ssh_attach import Attachment
from holdfast_wire import sequences
from holdfast_wire.attach_core import Leave, Settings
from holdfast_wire.errors import (
    BadName,
    BadRequest,
    Ended,
    HoldfastError,
    Internal,
    Unavailable,
)
from holdfast_wire.exits import describe_exit
from holdfast_wire.ids import MAX_COLUMNS, MAX_ROWS, MIN_COLUMNS, MIN_ROWS, session_name
from holdfast_wire.keys import parse_detach_keys
from holdfast_wire.plain import plain

DETACH_KEYS: Final = parse_detach_keys("ctrl-\\,d")
# What a sidecar allows at most. Somebody who goes does not wait any longer either.
EXEC_SECONDS: Final = 86400.0
_EXEC_MARGIN_SECONDS: Final = 5.0
# What may be asked for by 'ssh -s'. Only `wake` acts.
OBSERVED: Final = ("info", "state", "screen", "graph", "journal")
WAKE: Final = "wake"
# Each way to ask, with what it asks of the session.
COMMANDS: Final = {
    **{kind: kind for kind in OBSERVED},
    WAKE: WAKE,
    "shell": "stream",
    "exec": "exec",
}
# Longer, and somebody may think that nothing happens.
_QUIET_SECONDS: Final = 1.5
_NO_WINDOW: Final = (80, 24)


def session_of_user(user: str) -> str:
    """`build` or, with its namespace as in a DNS name, `build.team`: the backend's `team/build`."""
    name, dot, namespace = user.partition(".")
    try:
        checked = str(session_name(name))
        return f"{session_name(namespace)}/{checked}" if dot else checked
    except BadName:
        raise BadName(
            f"{plain(user)[:80]!r} names no session",
            "log in as SESSION or SESSION.NAMESPACE, for example: ssh build.team@GATEWAY",
        ) from None


def window(columns: int, rows: int) -> tuple[int, int]:
    """The client's window, within what a terminal can be; clients without one say 0."""
    if not columns or not rows:
        return _NO_WINDOW
    return min(max(columns, MIN_COLUMNS), MAX_COLUMNS), min(max(rows, MIN_ROWS), MAX_ROWS)


def _refuse(packet: object) -> bool:
    return False


class Channel(asyncssh.SSHServerSession[bytes]):
    """One channel of a connection. It does one thing, in one task, and ends with its status."""

    def __init__(
        self, backend: Backend, user: str, caller: Caller, gone: Callable[[Channel], None]
    ) -> None:
        self._backend, self._user, self._caller = backend, user, caller
        self._gone = gone
        self._chan: asyncssh.SSHServerChannel[bytes] | None = None
        self._size: tuple[int, int] | None = None
        self._task: asyncio.Task[None] | None = None
        self._attached: Attachment | None = None
        self._asked: tuple[str, str] = ("shell", "")
        self._ahead = b""
        self._eof = False

    # -- what the client asks for

    def connection_made(self, chan: asyncssh.SSHServerChannel[bytes]) -> None:
        self._chan = chan
        # asyncssh would keep what a client sends, without a bound; there is no other way to say no.
        chan._process_env_request = _refuse  # type: ignore[method-assign]
        chan.set_write_buffer_limits(high=READ_AHEAD)

    def pty_requested(
        self, term_type: str, term_size: tuple[int, int, int, int], term_modes: Any
    ) -> bool:
        self._size = window(*term_size[:2])
        return True

    def shell_requested(self) -> bool:
        return True

    def exec_requested(self, command: str) -> bool:
        self._asked = "exec", command
        return True

    def subsystem_requested(self, subsystem: str) -> bool:
        self._asked = "observe", subsystem
        return subsystem in (*OBSERVED, WAKE)

    def session_started(self) -> None:
        self._task = asyncio.create_task(self._run())

    # -- what happens on the channel

    def data_received(self, data: bytes, datatype: object) -> None:
        if self._attached is not None:
            self._attached.typed(data)
        elif self._asked[0] == "shell":
            self._ahead += data  # for the session, once we are there; the window bounds it
            self.listen(False)

    def eof_received(self) -> bool:
        self._eof = True
        if self._attached is not None:
            self._attached.finished()
        return True  # our own half stays open: there is something to say yet

    def terminal_size_changed(self, width: int, height: int, pixwidth: int, pixheight: int) -> None:
        if self._size is not None:
            self._size = window(width, height)
            if self._attached is not None:
                self._attached.resized(*self._size)

    def break_received(self, msec: int) -> bool:
        return False

    def pause_writing(self) -> None:
        if self._attached is not None:
            self._attached.writable(False)

    def resume_writing(self) -> None:
        if self._attached is not None:
            self._attached.writable(True)

    def connection_lost(self, exc: Exception | None) -> None:
        self._gone(self)
        if self._task is not None:
            self._task.cancel()

    def stop(self, error: HoldfastError) -> None:
        """The client hears why, and the channel ends. The session goes on."""
        if self._attached is not None:
            self._attached.ended_by(error)
        elif self._task is not None:
            self._task.cancel()
            self._end(self._refused(error))

    # -- doing it

    async def _run(self) -> None:
        try:
            code = await self._done()
        except HoldfastError as error:
            code = self._refused(error)
        except Exception as error:
            log.fault("ssh_failed", error, **self._caller.actor.to_json())
            code = self._refused(Internal("the gateway failed", "its log has the reason"))
        self._end(code)

    async def _done(self) -> int:
        name = session_of_user(self._user)
        match self._asked:
            case "exec", command:
                return await self._exec(name, command)
            case "observe", kind:
                return await self._observe(name, kind)
        if self._size is None:
            raise BadRequest(
                "to attach needs a terminal, and there is none",
                f"ask for one: ssh -t {self._user}@GATEWAY; or give a command to run in the"
                f" session: ssh {self._user}@GATEWAY -- COMMAND",
            )
        return await self._attach(name, self._size)

    async def _observe(self, name: str, kind: str) -> int:
        if kind == WAKE:
            told = await self._backend.wake(name, self._caller)
        elif kind == "info":
            told = await self._backend.describe(name, self._caller)
        else:
            told = await self._backend.request(name, {"kind": kind}, self._caller)
        self._say(json.dumps(told, indent=2))
        return 0

    async def _exec(self, name: str, command: str) -> int:
        body = {
            "kind": "exec",
            "command": command,
            "timeout": EXEC_SECONDS,
            "key": os.urandom(12).hex(),
        }
        result = await self._backend.request(
            name, body, self._caller, seconds=EXEC_SECONDS + _EXEC_MARGIN_SECONDS
        )
        if result.get("duplicate"):
            raise Unavailable(
                "the command was begun, and its result was lost with the session's sidecar",
                f"it is not run again; look with: ssh -s {self._user}@GATEWAY screen",
            )
        text, code = str(result.get("output", "")), result.get("exit_code")
        if text:
            self._say(text.removesuffix("\n"))
        if result.get("truncated"):
            self._complain("the output was longer than is kept; this is its end")
        if not isinstance(code, int):
            self._complain("its exit status is not known: it was interrupted, or is no command")
            return 1
        return code

    async def _attach(self, name: str, size: tuple[int, int]) -> int:
        try:
            writes = await self._first(ssh_attach.may_type(self._backend, name, self._caller))
        except Ended as error:
            return await self._over(name, error)
        if not writes:
            self._say(f"[read-only: {self._caller.actor} may observe {name}, not type into it]")
        settings = Settings(
            name,
            not writes,
            DETACH_KEYS,
            os.urandom(8).hex(),
            f"ssh {self._user}@GATEWAY",
            self._caller.modality.value,
            self._caller.actor,
        )
        self._attached = Attachment(
            self._backend, name, self._caller, settings, self._size or size, self
        )
        self._attached.typed(self._ahead)
        self.listen(True)
        if self._eof:
            self._attached.finished()
        left = await self._attached.run()
        return self._farewell(left)

    async def _first(self, asking: Awaitable[bool]) -> bool:
        """A session that is woken or on its way takes its time: say so."""
        task = asyncio.ensure_future(asking)
        try:
            done, _ = await asyncio.wait({task}, timeout=_QUIET_SECONDS)
            if not done:
                self._say(f"[waiting for {self._user}]")
            return await task
        finally:
            task.cancel()

    async def _over(self, name: str, error: Ended) -> int:
        ended = (await self._backend.describe(name, self._caller)).get("exit")
        if not isinstance(ended, dict):
            raise error
        words, code = describe_exit(ended)
        self._say(f"[session {name} ended: {words}]")
        return code

    def _farewell(self, left: Leave) -> int:
        rows = self._size[1] if self._size else _NO_WINDOW[1]
        self.show(sequences.farewell(rows))
        if left.error is not None:
            return self._refused(left.error)
        self._say(left.message)
        return left.code

    # -- the client's side; `ssh_attach.Terminal`

    def show(self, data: bytes) -> None:
        if self._chan is not None and not self._chan.is_closing():
            self._chan.write(data)

    def listen(self, yes: bool) -> None:
        if self._chan is not None and not self._chan.is_closing():
            (self._chan.resume_reading if yes else self._chan.pause_reading)()

    def _say(self, text: str) -> None:
        self.show(self._lines(text))

    def _complain(self, text: str) -> None:
        if self._chan is not None and not self._chan.is_closing():
            self._chan.write_stderr(self._lines(f"holdfast: {plain(text)}"))

    def _lines(self, text: str) -> bytes:
        """With a terminal the client's own is raw, and a line feed alone does not return."""
        ending = "\r\n" if self._size is not None else "\n"
        return (text.replace("\n", ending) + ending).encode(errors="replace")

    def _refused(self, error: HoldfastError) -> int:
        self._complain(str(error))
        return error.exit_code

    def _end(self, code: int) -> None:
        if self._chan is not None:
            with contextlib.suppress(OSError):
                self._chan.exit(code)
