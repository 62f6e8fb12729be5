"""A move whose memory follows: when it is ordered so, what waits for it, and what if it is lost."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from holdfast_kube.client import BUDGETS, CHECKPOINTS, LEASES
from holdfast_operator import names, objects, restores
from holdfast_operator.decide import decide
from holdfast_operator.model import Cause, NodeSeen, Observed
from holdfast_operator.moves import CreateCheckpoint, following
from holdfast_operator.orders import FOLLOWING_SECONDS, CheckpointSeen, Kind, Trigger
from holdfast_operator.steps import DeletePods, SetBudget, Step, TakeOver, Wait
from operator_kit import World, session_object

from .test_decide import NOW, lease, pod, seen, session
from .test_interrupted import until
from .test_moves import TARGET, moving
from .test_stored_stories import EVERY, change, runs

WANTS: dict[str, Any] = {"spec": {"move": {"memory": "PostCopy"}}}
STATUS = {"status": {"phase": "Running", "epoch": 2}}
CAN = NodeSeen("n", cordoned=True, agent=True, post_copy=True)
THERE = NodeSeen("m", cordoned=False, agent=True, post_copy=True)
ORDER = CheckpointSeen(
    "build-1-p2", "Transferring", "", Kind.MOVE, epoch=1, post_copy=True, pod="p1", target="p2",
    created="2026-01-01T23:59:50Z", node="n",
)  # fmt: skip
ARRIVED = pod(2, node="m", restores=True, up=True)


def arrived(**changes: Any) -> Observed:
    """It runs in the second pod, and its memory is on its way there from the first."""
    given: dict[str, Any] = {
        "session": session(**STATUS, **WANTS),
        "lease": lease(2, "q/1", started="2", moved="1"),
        "pods": (pod(), ARRIVED),
        "high_water": 2,
        "budget": 1,
        "node": THERE,
        "orders": (ORDER,),
    }
    return seen(**(given | changes))


@pytest.mark.parametrize(
    ("asked", "here", "there", "follows"),
    [
        (WANTS, CAN, THERE, True),
        ({}, CAN, THERE, False),
        ({"spec": {"move": {"memory": "Copy"}}}, CAN, THERE, False),
        (WANTS, CAN, replace(THERE, post_copy=False), False),
        (WANTS, replace(CAN, post_copy=False), THERE, False),
        (WANTS, CAN, None, False),
    ],
)
def test_it_is_ordered_if_it_is_wanted_and_both_can(
    asked: dict[str, Any], here: NodeSeen, there: NodeSeen | None, follows: bool
) -> None:
    picture = moving(session=session(**STATUS, **asked), node=here, target_node=there)
    step = decide(picture)
    assert step == CreateCheckpoint(1, TARGET, Trigger.DRAIN, follows)
    assert isinstance(step, CreateCheckpoint)
    made = objects.checkpoint(picture.session, step, pod())
    assert made["spec"].get("memory") == ("PostCopy" if follows else None)
    found = CheckpointSeen.of(made)
    assert (found.post_copy, found.pod, found.target) == (follows, "p1", "p2")


ENDS = NOW + 60 + FOLLOWING_SECONDS - 10
GONE = DeletePods((("build-1", "p1"),))
RELEASED = lease(2, "", released=True, moved="1")

ROWS: list[tuple[Observed, Step]] = [
    # Both stay, and nothing else is ordered.
    (arrived(), Wait(ENDS)),
    (arrived(node=replace(THERE, cordoned=True)), Wait(ENDS)),
    (arrived(orders=(replace(ORDER, phase="Dumping"),)), Wait(ENDS)),  # its last word was lost
    (arrived(budget=2), SetBudget(1)),
    (arrived(budget=None), SetBudget(1)),
    (arrived(pods=(ARRIVED,)), Wait(ENDS)),
    # All came, or nobody will ever say.
    (arrived(orders=(replace(ORDER, phase="Complete"),)), GONE),
    (arrived(orders=(replace(ORDER, phase="Failed"),)), GONE),
    (arrived(orders=(replace(ORDER, phase="Complete"),), pods=(ARRIVED,)), SetBudget(2)),
    (arrived(wall=arrived().wall + timedelta(seconds=FOLLOWING_SECONDS + 60)), GONE),
    # Another's, or not of this kind.
    (arrived(orders=(replace(ORDER, target="p9"),)), GONE),
    (arrived(orders=(replace(ORDER, post_copy=False),)), GONE),
    # A third, older pod waits for nothing.
    (arrived(pods=(pod(0), pod(), ARRIVED)), DeletePods((("build-0", "p0"),))),
    # It is not needed any more.
    (arrived(session=session(spec={"ended": True}, **STATUS)), GONE),
    (arrived(lease=RELEASED, may_take=True), GONE),
    # Lost on the way: as after the loss of a host.
    (arrived(lease=RELEASED, may_take=True, pods=(ARRIVED,)), TakeOver(3, Cause.MEMORY_LOST)),
    (
        arrived(lease=RELEASED, may_take=True, pods=(ARRIVED,),
                orders=(replace(ORDER, phase="Failed"),)),
        TakeOver(3, Cause.MEMORY_LOST),
    ),
    (
        arrived(lease=RELEASED, may_take=True, pods=(ARRIVED,),
                orders=(replace(ORDER, phase="Complete"),)),
        TakeOver(3, Cause.RELEASED),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("picture", "step"), ROWS)
def test_rows(picture: Observed, step: Step) -> None:
    assert decide(picture) == step


def test_the_node_that_it_came_from_is_avoided() -> None:
    lost = arrived(lease=RELEASED, may_take=True, pods=(ARRIVED,))
    loss = restores.Loss.of(lost, Cause.MEMORY_LOST)
    assert (loss.node, loss.epoch) == ("n", 2)


def test_what_a_node_says() -> None:
    meta = {"name": "n", "labels": {names.AGENT: "ready"}}
    for text, can in (("PostCopy", True), ("Copy", False), ("", False)):
        item = {"metadata": {**meta, "annotations": {names.AGENT_MEMORY: text}}}
        assert NodeSeen.of(item).post_copy is can


# -- the whole of it ------------------------------------------------------------------------------


async def moves(world: World) -> dict[str, Any]:
    """Up to where it runs elsewhere; its order."""
    await runs(world, checkpoints=EVERY, move={"memory": "PostCopy", "onDrain": "Live"})
    await until(world, lambda: world.status.get("lastCheckpoint"), 120)
    change(world, checkpoints={**EVERY, "everySeconds": 0})
    world.cordon(True)
    await until(world, lambda: "memory" in world.api.all(CHECKPOINTS)[-1]["spec"])
    order: dict[str, Any] = world.api.all(CHECKPOINTS)[-1]
    world.current.offer(order)
    await until(world, lambda: world.status["epoch"] == 2)
    await world.run(60)
    assert [one["metadata"]["name"] for one in world.api.pods()] == ["build-1", "build-2"]
    assert covered(world) == "1"
    return order


def covered(world: World) -> str:
    found = world.api.one(BUDGETS, names.access_name("build"))
    assert found is not None
    return str(found["spec"]["selector"]["matchLabels"][names.EPOCH])


async def test_the_former_pod_stays_until_all_has_come() -> None:
    world = World()
    order = await moves(world)
    world.restart()
    await world.run(30)
    assert len(world.api.pods()) == 2
    world.finish(order)
    await until(world, lambda: len(world.api.pods()) == 1)
    await world.run(5)
    assert covered(world) == "2"
    assert (world.status["phase"], world.status["epoch"]) == ("Running", 2)
    assert world.overlap == []


async def test_lost_on_the_way_it_goes_on_from_its_last_checkpoint() -> None:
    world = World()
    order = await moves(world)
    world.finish(order, "memory of the session will never come")
    there = next(one for one in world.incarnations.values() if one.holder.epoch == 2)
    there.write({names.RELEASED: "2"}, holder="")
    there.over = True
    there.pod["status"]["phase"] = "Succeeded"
    await until(world, lambda: world.status["epoch"] == 3 and world.status["phase"] == "Running")
    await world.run(5)
    restored = world.condition("Restored")
    assert (restored["status"], restored["reason"]) == ("True", "MemoryLost")
    assert "build-1-k1" in restored["message"]
    found = world.api.one(LEASES)
    assert found is not None
    told = json.loads(found["metadata"]["annotations"][names.RESTORE])
    assert told["avoid"] == "node-1"
    assert [one["metadata"]["name"] for one in world.api.pods()] == ["build-3"]
    assert world.overlap == []


def test_it_is_a_choice() -> None:
    assert not session(spec=session_object()["spec"]).post_copy
    assert following(arrived(orders=None)) is None
