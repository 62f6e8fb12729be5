"""Every story of a session, with the operator killed after each of its writes, with each answer
lost, and with each write not sent: it ends the same, and never do two incarnations run."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from holdfast_kube.client import CHECKPOINTS, LEASES, PODS, SESSIONS
from holdfast_operator import metrics, names
from operator_kit import KEY, Mishap, World, session_object

Story = Callable[[World], Awaitable[None]]
CUT_TOTAL = "holdfast_connections_cut_total"


async def starts(world: World) -> None:
    world.api.put(session_object())
    await world.run(30)
    assert world.status["phase"] == "Running"


async def runs(world: World) -> None:
    """What leads up to most stories: a story of its own, interrupted at every write of its own, and
    it ends the same. To interrupt it again in each that follows would try nothing new."""
    await starts(world)
    world.api.begun = len(world.api.writes)


async def exits(world: World) -> None:
    await runs(world)
    world.current.end("exited", code=3, lines=["bye"])
    await world.run(30)
    assert world.status["exit"] == {"code": 3, "cause": "exited"}
    assert world.status["lastLines"] == ["bye"]
    # The pod stays, finished, for whoever wants its logs.
    assert [pod["metadata"]["name"] for pod in world.api.pods()] == ["build-1"]


async def exits_and_is_deleted(world: World) -> None:
    world.api.put(session_object(ttlSecondsAfterEnded=60))
    await world.run(30)
    world.current.end("exited", code=0)
    await world.run(120)
    assert world.api.one(SESSIONS) is None


async def host_dies(world: World) -> None:
    await runs(world)
    world.current.dead = True
    await world.run(90)
    assert world.status["epoch"] == 2
    assert world.status["phase"] == "Running"
    assert world.condition("Fresh")["reason"] == "HostLost"
    assert "StartedFresh" in world.api.said()


async def host_is_cut_off_and_comes_back(world: World) -> None:
    await runs(world)
    first = world.current
    first.cut_off = True
    await world.run(90)
    first.cut_off = False
    await world.run(30)
    assert world.status["epoch"] == 2


async def host_dies_and_session_fails(world: World) -> None:
    world.api.put(session_object(recovery={"onHostLoss": "Fail"}))
    await world.run(30)
    world.current.dead = True
    await world.run(120)
    assert world.status["phase"] == "Failed"
    # Fenced: whatever comes back on that host finds a later epoch and ends.
    assert (world.api.one(LEASES) or {})["metadata"]["annotations"] == {"holdfast.dev/epoch": "2"}
    assert [bool(pod["metadata"].get("deletionTimestamp")) for pod in world.api.pods()] == [True]


async def pod_is_deleted(world: World) -> None:
    await runs(world)
    pod = world.api.pods()[0]
    world.api.remove(("pods", KEY.namespace, pod["metadata"]["name"]))
    await world.run(90)
    assert world.status["epoch"] == 2


async def pod_is_deleted_by_force(world: World) -> None:
    await runs(world)
    world.current.cut_off = True
    world.api.vanish(PODS, "build-1")
    await world.run(90)
    assert world.status["epoch"] == 2


async def lease_is_deleted(world: World) -> None:
    await runs(world)
    world.api.vanish(LEASES, KEY.name)
    await world.run(90)
    assert world.status["epoch"] == 3  # 2 was nobody's


async def is_ended(world: World) -> None:
    await runs(world)
    world.session["spec"]["ended"] = True
    world.api.touch(world.session)
    await world.run(60)
    assert world.status["phase"] == "Ended"


async def cannot_start(world: World) -> None:
    world.api.put(session_object())
    world.start_pods = True
    await world.run(1)
    for _ in range(100):
        if world.incarnations:
            break
        await world.run(1)
    world.current.fail_to_start("bash: not found")
    await world.run(30)
    assert world.status["phase"] == "Failed"


async def is_deleted(world: World) -> None:
    await runs(world)
    world.api.remove(("sessions", KEY.namespace, KEY.name))
    await world.run(60)
    assert world.api.one(SESSIONS) is None


async def is_deleted_while_its_host_is_dead(world: World) -> None:
    await runs(world)
    world.current.dead = True
    world.api.remove(("sessions", KEY.namespace, KEY.name))
    await world.run(160)
    assert world.api.one(SESSIONS) is None


async def its_node_is_drained(world: World) -> None:
    await runs(world)
    first = world.current
    world.cordon(True)
    await until(world, lambda: world.api.all(CHECKPOINTS))
    first.offer()
    await world.run(30)
    assert (world.status["phase"], world.status["epoch"]) == ("Running", 2)
    assert world.status["nodeName"] == "node-2"
    assert world.condition("Fresh")["reason"] == "Moved"
    assert [pod["metadata"]["name"] for pod in world.api.pods()] == ["build-2"]


async def a_move_fails_and_is_tried_again(world: World) -> None:
    await runs(world)
    world.cordon(True)
    await until(world, lambda: world.api.all(CHECKPOINTS))
    (order,) = world.api.all(CHECKPOINTS)
    said = {"type": "Complete", "status": "False", "message": "a device is open"}
    order["status"] = {"phase": "Failed", "conditions": [said]}
    world.api.touch(order)
    await until(world, lambda: len(world.api.all(CHECKPOINTS)) == 2)
    await world.run(5)
    assert (world.status["phase"], world.status["epoch"]) == ("Moving", 1)
    assert "a device is open" in world.condition("Movable")["message"]
    assert "NotMoved" in world.api.said()
    next(iter(world.incarnations.values())).offer()
    await world.run(30)
    assert (world.status["phase"], world.status["epoch"]) == ("Running", 2)
    assert world.condition("Movable")["status"] == "True"


async def a_drain_is_called_off(world: World) -> None:
    await runs(world)
    world.cordon(True)
    await until(world, lambda: len(world.api.pods()) == 2)
    world.cordon(False)
    await world.run(30)
    assert (world.status["phase"], world.status["epoch"]) == ("Running", 1)
    assert [pod["metadata"]["name"] for pod in world.api.pods()] == ["build-1"]


async def a_drain_whose_move_failed_is_called_off(world: World) -> None:
    await runs(world)
    world.cordon(True)
    await until(world, lambda: world.api.all(CHECKPOINTS))
    (order,) = world.api.all(CHECKPOINTS)
    order["status"] = {"phase": "Failed"}
    world.api.touch(order)
    await until(world, lambda: world.condition("Movable")["reason"] == "MoveFailed")
    world.cordon(False)
    await world.run(30)
    assert (world.status["phase"], world.status["epoch"]) == ("Running", 1)
    assert world.condition("Movable")["reason"] == "AgentReady"
    assert [pod["metadata"]["name"] for pod in world.api.pods()] == ["build-1"]


async def its_host_dies_in_a_move(world: World) -> None:
    await runs(world)
    world.cordon(True)
    await until(world, lambda: world.api.all(CHECKPOINTS))
    first = next(iter(world.incarnations.values()))
    first.dead = True
    await world.run(120)
    assert (world.status["phase"], world.status["epoch"]) == ("Running", 2)
    assert world.condition("Fresh")["reason"] == "HostLost"


async def until(world: World, holds: Callable[[], object], seconds: int = 60) -> None:
    for _ in range(seconds):
        if holds():
            return
        await world.run(1)
    raise AssertionError("it did not come to that")


STORIES: list[Story] = [
    its_node_is_drained,
    a_move_fails_and_is_tried_again,
    a_drain_is_called_off,
    a_drain_whose_move_failed_is_called_off,
    its_host_dies_in_a_move,
    starts,
    exits,
    exits_and_is_deleted,
    host_dies,
    host_is_cut_off_and_comes_back,
    host_dies_and_session_fails,
    pod_is_deleted,
    pod_is_deleted_by_force,
    lease_is_deleted,
    is_ended,
    cannot_start,
    is_deleted,
    is_deleted_while_its_host_is_dead,
]


def settled(world: World) -> dict[str, Any]:
    """What there is at the end, without what is different every time."""
    seen: dict[str, Any] = {}
    for (plural, _, name), item in sorted(world.api.items.items()):
        if plural == "events":
            continue
        status = {k: _undated(v) for k, v in item.get("status", {}).items() if k not in DATES}
        if plural == "sessions":
            status["conditions"] = [
                {k: _timeless(v) for k, v in one.items() if k != "lastTransitionTime"}
                for one in status.get("conditions") or ()
            ]
            status["notice"] = _timeless(status.get("notice"))
        seen[re.sub(r"uid-\d+", "UID", f"{plural}/{name}")] = {
            "status": status,
            "finalizers": item["metadata"].get("finalizers"),
            "going": bool(item["metadata"].get("deletionTimestamp")),
            "epoch": (item["metadata"].get("annotations") or {}).get("holdfast.dev/epoch"),
        }
    return seen


DATES = ("startedAt", "endedAt", "completedAt", "takenAt", "at", "lastActiveTime")


def _undated(value: Any) -> Any:
    return {k: v for k, v in value.items() if k not in DATES} if isinstance(value, dict) else value


def _timeless(text: object) -> object:
    if not isinstance(text, str):
        return text
    text = re.sub(r"\d{4}-[-:\d ]+UTC", "THEN", re.sub(r"\(.*?UTC\)", "", text))
    return re.sub(r"THEN, .* later", "THEN, later", text)


async def ends_the_same(story: Story, mishap: Mishap, first: int = 1, step: int = 1) -> None:
    """As without a mishap, at whichever write it happens: from the `first` on, each `step`; those
    that only led up to it are not counted."""
    quiet = World()
    await story(quiet)
    assert not quiet.overlap
    expected = settled(quiet)
    for number in range(quiet.api.begun + first, len(quiet.api.writes) + 1, step):
        world = World()
        world.api.mishap = (number, mishap)
        await story(world)
        after = f"{mishap.value}: {quiet.api.writes[number - 1]} ({number})"
        assert not world.overlap, after
        assert settled(world) == expected, after


async def comes_to_rest(story: Story) -> None:
    """Neither a write nor a list of orders when nothing happens."""
    world = World()
    await story(world)
    if world.api.one(SESSIONS) is None:
        return
    await world.run(60)
    before = list(world.api.writes)
    listed = list(world.api.listed)
    await world.run(600)
    assert world.api.writes == before
    assert world.api.listed == listed


@pytest.mark.parametrize("mishap", list(Mishap))
@pytest.mark.parametrize("story", STORIES)
async def test_ends_the_same(story: Story, mishap: Mishap) -> None:
    await ends_the_same(story, mishap)


@pytest.mark.parametrize("story", STORIES)
async def test_an_idle_session_costs_no_write(story: Story) -> None:
    await comes_to_rest(story)


async def test_a_move_and_what_it_cut_are_counted() -> None:
    def counted(name: str, **labels: str) -> float:
        return metrics.REGISTRY.get_sample_value(name, labels) or 0.0

    moved, cut = counted("holdfast_events_total", reason="Moved"), counted(CUT_TOTAL)
    world = World()
    await its_node_is_drained(world)
    assert counted("holdfast_events_total", reason="Moved") == moved + 1
    assert counted(CUT_TOTAL) == cut
    lease = world.api.one(LEASES)
    assert lease is not None
    ends = [["10.1.0.2:5000", "10.9.9.9:443"], ["10.1.0.2:5001", "10.9.9.9:443"]]
    lease["metadata"]["annotations"][names.CUT] = json.dumps(ends)
    world.api.touch(lease)
    await world.run(60)
    assert counted(CUT_TOTAL) == cut + 2
