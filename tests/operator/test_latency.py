"""How many answers of the API server are waited for, one after the other, until a pod is made."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast_kube.client import LEASES
from operator_kit import Trips, World, session_object


async def test_a_new_session_gets_its_pod_soon() -> None:
    world = World(start_pods=False)
    trips = Trips(world.api)
    world.api.put(session_object())
    await trips.during(world.run(5))
    # Session; all else; finalizer; Lease and access; status.
    assert trips.before("create pods") == 5
    assert world.api.strict == {"pods"}


async def test_the_answer_to_a_write_is_what_the_next_is_decided_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ended by somebody while it begins: the status is written by compare-and-swap, so what is
    decided on is no older than that."""
    world = World(start_pods=False)
    create = world.api.create

    async def ended_meanwhile(kind: Any, *args: Any) -> Any:
        if kind is LEASES:
            world.session["spec"]["ended"] = True
            world.api.touch(world.session)
        return await create(kind, *args)

    monkeypatch.setattr(world.api, "create", ended_meanwhile)
    world.api.put(session_object())
    await world.run(30)
    assert "create pods" not in world.api.writes
    assert world.status["phase"] == "Ended"


async def test_a_pod_that_is_seen_had_a_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two operators: the other's Lease was not yet there when we asked, its pod was. Taken for a
    deleted Lease, it would be fenced."""
    world = World()
    world.api.put(session_object())
    await world.run(30)
    del world.session["status"]
    world.restart()
    get, missed = world.api.get, list[str]()

    async def too_early(kind: Any, *args: Any) -> Any:
        if kind is LEASES and not missed:
            missed.append("once")
            return None
        return await get(kind, *args)

    monkeypatch.setattr(world.api, "get", too_early)
    await world.run(60)
    assert missed
    assert world.status["epoch"] == 1
    assert world.status["phase"] == "Running"
    assert world.api.writes.count("create leases") == 1
