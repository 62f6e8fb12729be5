"""Waits for what a session does, and commands whose end is waited for: for callers who can only
ask (MCP)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from holdfast_gateway.auth import Caller
from holdfast_gateway.backend import REQUEST_SECONDS, Backend
from holdfast_gateway.guard import while_allowed
from holdfast_wire.errors import Busy, Ended, Retry, StillRunning
from holdfast_wire.rights import Right

_LOOK_SECONDS: Final = 0.25
# The sidecar keeps the command's own time limit; we only outwait it.
_MARGIN_SECONDS: Final = 5.0
# A program is waiting for input if it is seen so at two looks: some just look whether there is any.
_WAITING: Final = frozenset({"reading", "password"})

State = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Session:
    """One session, as one caller sees it."""

    sessions: Backend
    caller: Caller
    name: str

    async def ask(
        self, kind: str, body: dict[str, Any] | None = None, seconds: float = REQUEST_SECONDS
    ) -> dict[str, Any]:
        asked = {"kind": kind, **(body or {})}
        return await self.sessions.request(self.name, asked, self.caller, seconds=seconds)

    async def state(self) -> State:
        try:
            return await self.ask("state")
        except Ended:
            found: State = (await self.sessions.describe(self.name, self.caller))["state"]
            return found

    async def wait(
        self, done: Callable[[State], bool], seconds: float, text: str
    ) -> tuple[bool, State]:
        """As `until`, for long: while the caller may, and is who he was."""
        met, state = await self.until(done, 0.0, text)
        if met or state["activity"] == "ended" or seconds == 0:
            return met, state

        async def work() -> tuple[bool, State]:
            return await self.until(done, seconds, text)

        return await while_allowed(self.sessions, self.name, self.caller, Right.OBSERVE, work)

    async def until(
        self, done: Callable[[State], bool], seconds: float, text: str = ""
    ) -> tuple[bool, State]:
        """Whether it came to that, with `text` on the screen, in time; and its last state. One
        that has ended does nothing more."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while True:
            state = await self.state()
            if done(state) and (not text or await self._shows(text)):
                return True, state
            if state["activity"] == "ended" or loop.time() >= deadline:
                return False, state
            await asyncio.sleep(min(_LOOK_SECONDS, max(0.0, deadline - loop.time())))

    async def _shows(self, text: str) -> bool:
        return text in str((await self.ask("screen"))["text"])

    async def run(self, command: str, seconds: float, prompt_seconds: float, key: str) -> State:
        """Once the shell is at its prompt. With a `status`: how far it came."""

        async def work() -> State:
            return await self._run(command, seconds, prompt_seconds, key)

        return await while_allowed(self.sessions, self.name, self.caller, Right.RUN, work)

    async def _run(self, command: str, seconds: float, prompt_seconds: float, key: str) -> State:
        loop = asyncio.get_running_loop()
        deadline, prompt_by = loop.time() + seconds, loop.time() + prompt_seconds
        while True:
            body = {"command": command, "key": key}
            try:
                return await self._exec(body, max(0.1, deadline - loop.time()))
            except StillRunning:
                return {"status": "still_running", "state": await self.state()}
            except Busy:  # not begun
                left = min(prompt_by, deadline) - loop.time()
                ready, state = await self.until(_at_prompt, max(0.0, left))
                if not ready or left <= 0:
                    return {"status": "not_started", "state": state}
                await asyncio.sleep(_LOOK_SECONDS)  # at its prompt, but another's command ends

    async def _exec(self, body: dict[str, Any], seconds: float) -> State:
        asked = {**body, "timeout": seconds}
        task = asyncio.ensure_future(self.ask("exec", asked, seconds + _MARGIN_SECONDS))
        try:
            seen = 0
            while not (await asyncio.wait({task}, timeout=_LOOK_SECONDS))[0]:
                with contextlib.suppress(Retry):  # a session that moves; its command goes along
                    state = await self.state()
                    seen = seen + 1 if state["activity"] in _WAITING else 0
                    if seen > 1:
                        return {"status": "waiting_for_input", "state": state}
            result = task.result()
            return {"status": "finished", "state": await self.state(), **result}
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task})


def _at_prompt(state: State) -> bool:
    return bool(state["activity"] == "prompt")
