"""How a command that is waited for comes out, with a session that does what the test says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from holdfast_gateway.auth import Caller, Modality
from holdfast_gateway.backend import Link
from holdfast_gateway.waiting import Session
from holdfast_wire.errors import Busy, StillRunning, Unavailable
from holdfast_wire.ids import Actor
from holdfast_wire.rights import Right

DONE = {"exit_code": 0, "output": "", "duplicate": False, "order": 1}


class Backend:
    def __init__(self, **answers: Callable[[], Any]) -> None:
        self._answers = answers
        self.asked: list[str] = []

    @asynccontextmanager
    async def connect(self, *_: Any) -> AsyncIterator[Link]:
        async def allow(_: Right) -> None:
            """Anything."""

        yield Link(None, None, allow, asyncio.get_running_loop().create_future())  # type: ignore[arg-type]

    async def request(
        self, _name: str, body: dict[str, Any], _caller: Caller, **_: Any
    ) -> dict[str, Any]:
        self.asked.append(body["kind"])
        told = self._answers[body["kind"]]()
        if isinstance(told, Exception):
            raise told
        return dict(await told) if asyncio.iscoroutine(told) else told


def session(backend: Backend) -> Session:
    return Session(backend, Caller(Actor("ana"), Modality.MCP), "build")  # type: ignore[arg-type]


def state(activity: str) -> dict[str, Any]:
    return {"activity": activity, "process": None, "sentence": "", "exit": None}


async def test_a_prompt_that_is_never_ours_is_given_up() -> None:
    backend = Backend(exec=lambda: Busy("another command"), state=lambda: state("prompt"))
    async with asyncio.timeout(10):
        outcome = await session(backend).run("true", 60, 0.3, "k")
    assert outcome["status"] == "not_started"
    assert backend.asked.count("exec") > 1


async def test_it_is_begun_once_the_prompt_is_there() -> None:
    tries = iter([Busy("not at its prompt"), DONE])
    states = iter(["running", "prompt", "prompt"])
    backend = Backend(exec=lambda: next(tries), state=lambda: state(next(states)))
    assert (await session(backend).run("true", 60, 5, "k"))["status"] == "finished"


async def test_it_goes_on_after_its_time() -> None:
    backend = Backend(exec=lambda: StillRunning("still running"), state=lambda: state("running"))
    assert (await session(backend).run("make", 1, 0, "k"))["status"] == "still_running"


async def test_a_session_that_moves_is_no_failure() -> None:
    async def slow() -> dict[str, Any]:
        await asyncio.sleep(0.6)
        return DONE

    states = iter([Unavailable("it moves"), state("running")])
    backend = Backend(exec=slow, state=lambda: next(states, state("prompt")))
    assert (await session(backend).run("true", 60, 0, "k"))["status"] == "finished"
