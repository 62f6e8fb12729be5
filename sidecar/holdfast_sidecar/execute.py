"""`exec`: a command for the shell that is live in the session, its exit status and its output.

Runs only when the shell is seen at its prompt: typing into a program that is not one would be
answering its questions.
"""

from __future__ import annotations

import asyncio
import os
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any, Final

from holdfast_sidecar import shell, snapshot
from holdfast_sidecar.ghostty import Terminal
from holdfast_sidecar.session import Session
from holdfast_sidecar.state import Activity, Graph, Observation
from holdfast_wire.errors import BadRequest, Busy, StillRunning, TooLarge
from holdfast_wire.ids import Actor

NOTHING: Final = Graph((), 0, echo=True, canonical=True, icrnl=True, command_pid=0, tty="")
MAX_COMMAND: Final = 256 << 10
MAX_OUTPUT: Final = 512 << 10
_REMEMBERED: Final = 256
# How long a shell may take from its last output to its prompt before we look whether it is there.
_LOOK_SECONDS: Final = 0.25

Result = dict[str, Any]


class Commands:
    def __init__(self, session: Session, observe: Callable[[], Awaitable[Observation]]) -> None:
        self._session, self._observe = session, observe
        self._results: OrderedDict[tuple[Actor, bytes], asyncio.Future[Result]] = OrderedDict()
        self._turn = asyncio.Lock()

    async def run(
        self, actor: Actor, modality: str, command: str, seconds: float, key: bytes
    ) -> Result:
        if not command.strip():
            raise BadRequest("there is no command to run")
        if len(command.encode()) > MAX_COMMAND:
            raise TooLarge(f"a command is at most {MAX_COMMAND} bytes", "put it in a file")
        if key and (earlier := self._results.get((actor, key))) is not None:
            return {**await asyncio.shield(earlier), "duplicate": True}
        if key and (order := self._session.inputs.seen(actor, key)) is not None:
            # Ran under an earlier sidecar, which took its result along.
            return {"duplicate": True, "order": order, "exit_code": None, "output": ""}
        work = asyncio.ensure_future(self._run(actor, modality, command, key))
        if key:
            self._results[actor, key] = work
            work.add_done_callback(lambda done: self._forget_refused(actor, key, done))
            while len(self._results) > _REMEMBERED:
                self._results.popitem(last=False)
        try:
            return await asyncio.wait_for(asyncio.shield(work), seconds)
        except TimeoutError:
            raise StillRunning(
                f"the command is still running after {seconds:g} seconds",
                "it goes on; look with `holdfast screen`, or interrupt it",
            ) from None

    def _forget_refused(self, actor: Actor, key: bytes, done: asyncio.Future[Result]) -> None:
        """What was not begun may be asked for again."""
        if (done.cancelled() or done.exception()) and self._results.get((actor, key)) is done:
            del self._results[actor, key]

    async def _run(self, actor: Actor, modality: str, command: str, key: bytes) -> Result:
        if self._turn.locked():
            raise Busy("another command is being run in this session", "try again when it is done")
        async with self._turn:
            seen = await self._observe()
            if seen.activity is not Activity.PROMPT:
                raise Busy(f"the shell is not at its prompt. {seen.sentence}", "wait for it")
            job = os.urandom(6).hex()
            text = shell.script(job, command, f"{actor} ({modality})", seen.name or "")
            by = actor.to_json()
            self._session.journal.add("exec", **by, modality=modality, command=command)
            with self._session.exec_folder.script(job, text) as path:
                start = self._session.ring.head
                order = await self._type(actor, modality, key, shell.typed(str(path)))
                return {"order": order, "duplicate": False, **await self._follow(job, start)}

    async def _type(self, actor: Actor, modality: str, key: bytes, data: bytes) -> int:
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def finish(order: int, _duplicate: bool) -> None:
            if not done.done():
                done.set_result(order)

        self._session.write(actor, None, modality, key, data, finish)
        return await done

    async def _follow(self, job: str, start: int) -> Result:
        """Waits for the mark after the command, or for the prompt to come back without it: seen at
        one look, and nothing more came until the next. The mark may come while we look."""
        quiet = at_prompt = False
        while True:
            ring = self._session.ring
            begin = max(start, ring.oldest)
            found = shell.find(job, b"".join(ring.slices(begin, ring.head)))
            if found is not None:
                first, end = begin + found.start, begin + found.end
                return await self._result(first, end, found.exit_code, lost=begin > start)
            if self._session.exit is not None:
                code = self._session.exit.code
                return await self._result(begin, ring.head, code, lost=begin > start)
            if quiet and at_prompt:
                # Interrupted, or a syntax error that made the shell drop the rest.
                return await self._result(begin, ring.head, None, lost=begin > start)
            at_prompt = quiet and (await self._observe()).activity is Activity.PROMPT
            try:
                async with asyncio.timeout(_LOOK_SECONDS):
                    await self._session.more_output()
                quiet = False
            except TimeoutError:
                quiet = not self._session.parked  # who stands still does not print

    async def _result(self, start: int, end: int, code: int | None, *, lost: bool) -> Result:
        kept = max(start, end - MAX_OUTPUT)
        data = b"".join(self._session.ring.slices(kept, end))
        columns, rows = self._session.size
        text = await asyncio.to_thread(_plain, data, columns, rows)
        return {
            "exit_code": code,
            "output": text,
            "seq_start": start,
            "seq_end": end,
            "truncated": lost or kept > start,
        }


def _plain(data: bytes, columns: int, rows: int) -> str:
    """Output as it would read on a screen: colours gone, progress bars overwritten by the last."""
    terminal = Terminal(columns, rows, MAX_OUTPUT // 2)
    terminal.feed(data)
    return snapshot.text(terminal, scrollback=True, unwrap=True)
