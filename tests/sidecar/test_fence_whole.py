"""A freeze that could not stop everything: who says so, and what is not done then (attack 33)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from holdfast_sidecar.fence import Superseded
from holdfast_sidecar.hold import EventKind, HoldError, HoldEvent, Unstopped
from holdfast_sidecar.requests import Asker, Requests
from holdfast_sidecar.runner import Sidecar
from holdfast_sidecar.spec import Spec
from holdfast_wire.errors import Busy
from holdfast_wire.ids import Actor, SessionName

from .test_fence import ME, World, acquired, nothing_new, world

__all__ = ["world"]


def test_a_lease_is_not_given_back_while_something_runs(world: World) -> None:
    """attack 33: memory of it is lost, and hold could not stop all of what runs here."""
    acquired(world).guard.left = 1

    async def lose_it() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(world.fence.lose())
            with pytest.raises(Superseded):
                await world.fence.keep(nothing_new)

    with pytest.raises(TimeoutError):
        world.run(lose_it(), 60)
    assert world.store.holder == ME
    assert world.guard.deadlines[-1] == 0
    assert any("the freeze is incomplete" in line for line in world.said)
    world.guard.left = 0
    world.run(lose_it(), 60)
    assert world.store.holder == ""


LEFT = Unstopped(18, (12, 34))


class Hold:
    async def freeze(self) -> None:
        raise HoldError("incomplete", "as the test has it", unstopped=LEFT)


async def test_nobody_says_frozen_and_no_more(tmp_path: Path) -> None:
    journal = SimpleNamespace(add=lambda *_, **__: None)
    session = cast("Any", SimpleNamespace(exit=None, journal=journal))
    requests = Requests(session, cast("Any", Hold()), 3)
    sidecar = Sidecar(tmp_path, Spec(SessionName("it"), "id", ("sh",), 80, 24, 100, 0.0))
    said: list[str] = []
    sidecar._notices = cast("Any", SimpleNamespace(add=lambda *words: said.append("".join(words))))
    sidecar.requests = requests
    try:
        sidecar.event(HoldEvent(EventKind.INCOMPLETE, unstopped=LEFT))
        sidecar.event(HoldEvent(EventKind.FROZEN, by="request"))
        assert sidecar.frozen()
        state = await requests.state()
        assert state["activity"] == "frozen"
        assert "incomplete" in state["sentence"]
        assert "12, 34 and 16 more" in state["sentence"]
        assert said == ["a freeze left processes running: 12, 34 and 16 more"]
        with pytest.raises(Busy, match="12, 34 and 16 more"):
            await requests._freeze(Asker(Actor("ana"), None, "cli"), {})
        sidecar.event(HoldEvent(EventKind.INCOMPLETE, unstopped=Unstopped()))
        assert (await requests.state())["sentence"] == "The session is frozen."
        sidecar.event(HoldEvent(EventKind.THAWED))
        assert not sidecar.frozen()
    finally:
        sidecar.session.journal.close()
        sidecar.session.ring.close()
