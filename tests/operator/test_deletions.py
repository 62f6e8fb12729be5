"""A session's pod is deleted by somebody who asks nobody; and what a drain is to end. The stories
with the operator killed after each of its writes, with each answer lost, each write not sent."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from holdfast_kube.client import BUDGETS, CHECKPOINTS, SESSIONS
from holdfast_operator import leaving, names, objects, pods, status
from holdfast_operator.decide import DRAINED, decide
from holdfast_operator.model import Cause, Observed, Phase, PodSeen
from holdfast_operator.moves import CancelMove, CreateCheckpoint, CreateTarget, Reason
from holdfast_operator.notes import Exit
from holdfast_operator.orders import Trigger
from holdfast_operator.steps import DeleteBudget, End, Step, TakeOver, Wait
from operator_kit import KEY, SETTINGS, Mishap, World, session_object

from .test_decide import NOW, TERMINATED, lease, pod, seen, session
from .test_interrupted import Story, comes_to_rest, ends_the_same, runs, until
from .test_moves import CORDONED, OPEN, RUNS, TARGET, TOLD, moving, order

# -- the table ------------------------------------------------------------------------------------

WALL = seen().wall


def going(left: float = 30.0, **changes: Any) -> PodSeen:
    """Being deleted, with so many seconds left."""
    goes_at = WALL + timedelta(seconds=left)
    return pod(deleting=True, lingers=True, goes_at=goes_at, **changes)


def deleted(left: float = 30.0, *others: PodSeen, **changes: Any) -> Observed:
    return moving(**({"node": OPEN, "pods": (going(left), *others)} | changes))


LATE = leaving.END + leaving.CLOCKS + leaving.GIVING_UP + leaving.LEAST
NEEDED = LATE.total_seconds()
MANUAL = session(metadata={"annotations": {names.MOVE: "1/m"}}, **RUNS)
STAYS = session(spec={"move": {"onDrain": "Wait"}}, **RUNS)
FOLLOWS = session(spec={"move": {"memory": "PostCopy"}}, **RUNS)
BY = WALL + timedelta(seconds=30) - leaving.END - leaving.CLOCKS - leaving.GIVING_UP

ROWS: list[tuple[Observed, Step]] = [
    (deleted(), CreateTarget(2, Reason(Trigger.DRAIN))),
    (deleted(NEEDED + 1), CreateTarget(2, Reason(Trigger.DRAIN))),
    (deleted(session=MANUAL), CreateTarget(2, Reason(Trigger.MANUAL, "m"))),
    (deleted(30, replace(TARGET, up=False)), Wait(NOW + 30 - NEEDED)),
    (deleted(30, TARGET), CreateCheckpoint(1, TARGET, Trigger.DRAIN, until=BY)),
    (deleted(30, TARGET, checkpoint=order("Dumping")), Wait(NOW + 30 - NEEDED)),
    (deleted(move_retry_at=NOW + 2), Wait(NOW + 2)),
    (deleted(move_retry_at=NOW + 60), Wait(NOW + 30 - NEEDED)),
    # Not, or not any more.
    (deleted(NEEDED), Wait()),
    (deleted(-60), Wait()),
    (deleted(NEEDED, TARGET), CancelMove(TARGET)),
    (deleted(NEEDED, TARGET, checkpoint=order("Dumping")), Wait()),
    (deleted(NEEDED, node=CORDONED), Wait()),
    (deleted(pods=(replace(going(), lingers=False),)), Wait()),
    (deleted(pods=(replace(going(), goes_at=None),)), Wait()),
    (deleted(node=None), Wait()),
    (deleted(node=replace(OPEN, agent=False)), Wait()),
    (deleted(session=STAYS), Wait()),
    (deleted(session=session()), Wait()),
    (deleted(lease=lease(started="1", blockers=TOLD)), Wait()),
    (deleted(lease=lease()), Wait()),
]


@pytest.mark.parametrize(("picture", "step"), ROWS)
def test_rows(picture: Observed, step: Step) -> None:
    assert decide(picture) == step


def said(picture: Observed) -> dict[str, Any] | None:
    found: dict[str, Any] | None = status.status_of(picture, decide(picture)).get("leaving")
    return found


def test_the_sidecar_is_told_for_as_long_as_there_is_a_reason() -> None:
    until_ = leaving.until(WALL + timedelta(seconds=30)).strftime("%Y-%m-%dT%H:%M:%SZ")
    told = {"epoch": 1, "until": until_}
    for picture in (deleted(), deleted(30, TARGET), deleted(session=MANUAL)):
        assert said(picture) == told
    silent = (
        moving(),
        moving(node=CORDONED),
        deleted(NEEDED),
        deleted(NEEDED, TARGET, checkpoint=order("Dumping")),
        deleted(session=STAYS),
        deleted(session=session(spec={"ended": True}, **RUNS)),
        deleted(session=session(metadata={"deletionTimestamp": "x"}, **RUNS)),
        deleted(session=session(status={"phase": "Ended", "epoch": 1})),
        deleted(lease=lease(started="1", released=True)),
        deleted(may_take=True),
        deleted(lease=lease()),
        deleted(lease=lease(2, "q/1", started="2", moved="1"), high_water=2),
    )
    assert [said(picture) for picture in silent] == [None] * len(silent)


def test_there_is_time_for_all_that_follows() -> None:
    """By `until` nothing is frozen any more; hold by itself is later, and before the kill."""
    goes_at = WALL + timedelta(seconds=leaving.SHORTEST_GRACE)
    (_, linger) = leaving.linger({"containers": [{}]}, leaving.SHORTEST_GRACE)
    own = WALL + timedelta(milliseconds=int(linger))
    assert WALL < leaving.too_late_at(goes_at) < leaving.order_until(goes_at)
    assert leaving.order_until(goes_at) < leaving.until(goes_at) < own < goes_at


def test_memory_does_not_follow_out_of_a_pod_that_goes() -> None:
    able = replace(OPEN, post_copy=True)
    there = {"node": able, "target_node": able, "session": FOLLOWS}
    stays = moving(**{**there, "node": replace(able, cordoned=True)})
    assert decide(stays) == CreateCheckpoint(1, TARGET, Trigger.DRAIN, post_copy=True)
    found = decide(deleted(30, TARGET, **there))
    assert found == CreateCheckpoint(1, TARGET, Trigger.DRAIN, until=BY)


def test_the_order_says_until_when() -> None:
    made = objects.checkpoint(
        session(), CreateCheckpoint(1, TARGET, Trigger.DRAIN, until=BY), pod()
    )
    assert made["spec"]["until"] == BY.strftime("%Y-%m-%dT%H:%M:%SZ")


# -- which pods linger ----------------------------------------------------------------------------


def built(agents: bool = True, **spec: Any) -> list[str]:
    made = pods.build(session(spec=spec), 1, None, SETTINGS, agents=agents)
    command: list[str] = made["spec"]["containers"][0]["command"]
    seen_ = PodSeen.of({"metadata": {**made["metadata"], "uid": "p"}, "spec": made["spec"]}, "u")
    assert seen_.lingers == ("--linger" in command[: command.index("--")])
    return command[: command.index("--")]


def template(grace: int | None = None, *others: str, **more: Any) -> dict[str, Any]:
    containers = [{"name": name, "image": "x"} for name in ("session", *others)]
    given = {} if grace is None else {"terminationGracePeriodSeconds": grace}
    return {"template": {"spec": {"containers": containers, **given, **more}}}


def test_a_pod_lingers_where_that_can_serve() -> None:
    assert built()[-2:] == ["--linger", "21000"]
    assert built(**template(300))[-2:] == ["--linger", "291000"]
    helper = {"name": "proxy", "image": "x", "restartPolicy": "Always"}
    assert "--linger" in built(**template(initContainers=[helper])), "it is stopped after hold"
    target = pods.target(session(), 2, pod(), "", SETTINGS)
    assert "--linger" in target["spec"]["containers"][0]["command"]


@pytest.mark.parametrize(
    "given",
    [
        {"agents": False},
        template(24),
        template(None, "proxy"),
        {"move": {"onDrain": "Wait"}},
        {"move": {"onDrain": "End"}},
        {"move": {"onDrain": "Hibernate"}},
        {"command": ["x", "--linger", "1"], "agents": False},
    ],
)
def test_and_else_it_does_not(given: dict[str, Any]) -> None:
    assert "--linger" not in built(**given)


# -- what a drain is to end -----------------------------------------------------------------------

ENDS = {"move": {"onDrain": "End"}}
MARK = {"annotations": {names.EVICTED: "1"}}
MARKED = session(spec=ENDS, metadata=MARK, **RUNS)
TOLD_TO_GO = lease(started="1", released=True, exit=TERMINATED)
HOW = Exit.of(TERMINATED)
GONE_ON = {"lease": TOLD_TO_GO, "may_take": True, "take_at": None}


@pytest.mark.parametrize(
    ("picture", "step"),
    [
        (seen(session=session(spec=ENDS, **RUNS)), DeleteBudget()),
        (seen(session=session(spec=ENDS, **RUNS), budget=None, node=CORDONED), Wait()),
        (
            seen(session=MARKED, **GONE_ON),
            End(Phase.ENDED, "Drained", f"{DRAINED}: the command was ended by signal 15", HOW),
        ),
        (
            seen(session=session(spec=ENDS, **RUNS), node=CORDONED, **GONE_ON),
            End(Phase.ENDED, "Drained", f"{DRAINED}: the command was ended by signal 15", HOW),
        ),
        (
            seen(session=MARKED, may_take=True, budget=None),
            End(Phase.ENDED, "Drained", f"{DRAINED}; its command's exit was not seen"),
        ),
        # Deleted by somebody, and lost, without a drain.
        (
            seen(session=session(spec=ENDS, **RUNS), node=OPEN, **GONE_ON),
            TakeOver(2, Cause.POD_DELETED),
        ),
        (
            seen(session=session(spec=ENDS, **RUNS), may_take=True),
            TakeOver(2, Cause.HOST_LOST),
        ),
        # Drained, and not to end.
        (
            seen(session=session(metadata=MARK, **RUNS), **GONE_ON),
            TakeOver(2, Cause.POD_DELETED),
        ),
        # The mark of another incarnation.
        (
            seen(
                session=session(spec=ENDS, metadata={"annotations": {names.EVICTED: "7"}}, **RUNS),
                **GONE_ON,
            ),
            TakeOver(2, Cause.POD_DELETED),
        ),
    ],
)
def test_what_a_drain_ends(picture: Observed, step: Step) -> None:
    assert decide(picture) == step


# -- stories --------------------------------------------------------------------------------------


async def its_pod_is_deleted(world: World) -> None:
    await runs(world)
    first = world.current
    world.delete_pod("build-1")
    await until(world, lambda: world.api.all(CHECKPOINTS), 10)
    assert world.status["leaving"]["epoch"] == 1
    first.offer()
    await world.run(40)
    assert (world.status["phase"], world.status["epoch"]) == ("Running", 2)
    assert world.status["nodeName"] == "node-2"
    assert world.condition("Fresh")["reason"] == "Moved"
    assert "leaving" not in world.status
    assert [pod["metadata"]["name"] for pod in world.api.pods()] == ["build-2"]


async def its_move_fails_and_is_tried_again(world: World) -> None:
    world.api.put(session_object(**template(60)))
    await world.run(30)
    first = world.current
    world.delete_pod("build-1", 60)
    await until(world, lambda: world.api.all(CHECKPOINTS), 10)
    (failed,) = world.api.all(CHECKPOINTS)
    world.finish(failed, "a link broke")
    await until(world, lambda: len(world.api.all(CHECKPOINTS)) == 2, 20)
    assert first.runs
    first.offer(next(one for one in world.api.all(CHECKPOINTS) if one is not failed))
    await world.run(60)
    assert (world.status["phase"], world.status["epoch"]) == ("Running", 2)
    assert world.condition("Fresh")["reason"] == "Moved"


async def nothing_comes_up_for_it(world: World) -> None:
    await runs(world)
    first, began = world.current, world.now
    world.start_pods = False
    world.delete_pod("build-1")
    await until(world, lambda: first.over, 30)
    assert 8 <= world.now - began <= 19, "it was to be waited for, and then there was time left"
    world.start_pods = True
    await world.run(60)
    assert (world.status["phase"], world.status["epoch"]) == ("Running", 2)
    assert world.condition("Fresh")["reason"] == "PodDeleted"
    assert "leaving" not in world.status


async def there_is_too_little_time(world: World) -> None:
    await runs(world)
    first, began = world.current, world.now
    world.delete_pod("build-1", 12)
    await until(world, lambda: first.over, 30)
    assert world.now - began <= 5
    await world.run(60)
    assert (world.status["phase"], world.status["epoch"]) == ("Running", 2)
    assert not world.api.all(CHECKPOINTS)


async def the_move_stays_frozen_beyond_its_time(world: World) -> None:
    """The source stands still, and whoever was to come for it does not. Then it is taken back."""
    await runs(world)
    first = world.current
    world.delete_pod("build-1")
    await until(world, lambda: world.api.all(CHECKPOINTS), 10)
    target = next(one for one in world.incarnations.values() if one.waits)
    target.cut_off = True
    first.offer()
    await world.run(20)
    assert not first.over
    (given,) = world.api.all(CHECKPOINTS)
    first.write({names.OFFER: ""}, first.holder.identity)
    first.offered = False
    world.finish(given, "its time was up")
    await world.run(3)
    assert first.over
    target.cut_off = False
    await world.run(60)
    assert (world.status["phase"], world.status["epoch"]) == ("Running", 2)
    assert world.condition("Fresh")["reason"] == "PodDeleted"


async def it_is_ended_meanwhile(world: World) -> None:
    await runs(world)
    first = world.current
    world.delete_pod("build-1")
    await until(world, lambda: world.api.all(CHECKPOINTS), 10)
    world.session["spec"]["ended"] = True
    world.api.touch(world.session)
    await world.run(2)
    assert first.over
    await world.run(60)
    assert world.status["phase"] == "Ended"
    assert not [pod for pod in world.api.pods() if pod["metadata"]["name"] != "build-1"]


async def it_is_deleted_meanwhile(world: World) -> None:
    await runs(world)
    first = world.current
    world.delete_pod("build-1")
    await until(world, lambda: world.api.all(CHECKPOINTS), 10)
    world.api.remove((SESSIONS.plural, KEY.namespace, KEY.name))
    await world.run(2)
    assert first.over
    await world.run(60)
    assert world.api.one(SESSIONS) is None
    assert not world.api.pods()


async def its_host_dies_meanwhile(world: World) -> None:
    await runs(world)
    world.delete_pod("build-1")
    await until(world, lambda: world.api.all(CHECKPOINTS), 10)
    next(iter(world.incarnations.values())).dead = True
    await world.run(120)
    assert (world.status["phase"], world.status["epoch"]) == ("Running", 2)
    assert world.condition("Fresh")["reason"] == "HostLost"


async def a_drain_ends_it(world: World) -> None:
    world.api.put(session_object(move={"onDrain": "End"}))
    await world.run(30)
    assert world.api.one(BUDGETS, names.access_name(KEY.name)) is None
    world.session["metadata"].setdefault("annotations", {})[names.EVICTED] = "1"
    world.api.touch(world.session)
    world.delete_pod("build-1")
    await world.run(60)
    assert (world.status["phase"], world.status["epoch"]) == ("Ended", 1)
    assert world.condition("Ready")["reason"] == "Drained"
    assert world.status["exit"]["cause"] == "terminated"


async def a_drain_that_nobody_marked_ends_it(world: World) -> None:
    """The webhook was away. Its pod is gone when the operator is back."""
    world.api.put(session_object(move={"onDrain": "End"}))
    await world.run(30)
    world.cordon(True)
    world.delete_pod("build-1")
    for _ in range(5):
        world.pass_time(1.0)
    assert not world.api.pods()
    await world.run(60)
    assert (world.status["phase"], world.status["epoch"]) == ("Ended", 1)
    assert world.condition("Ready")["reason"] == "Drained"


STORIES: list[Story] = [
    its_pod_is_deleted,
    its_move_fails_and_is_tried_again,
    nothing_comes_up_for_it,
    there_is_too_little_time,
    the_move_stays_frozen_beyond_its_time,
    it_is_ended_meanwhile,
    it_is_deleted_meanwhile,
    its_host_dies_meanwhile,
    a_drain_ends_it,
    a_drain_that_nobody_marked_ends_it,
]


@pytest.mark.parametrize("mishap", list(Mishap))
@pytest.mark.parametrize("story", STORIES)
async def test_ends_the_same(story: Story, mishap: Mishap) -> None:
    await ends_the_same(story, mishap)


@pytest.mark.parametrize("story", STORIES)
async def test_it_comes_to_rest(story: Story) -> None:
    await comes_to_rest(story)


async def test_without_an_operator_it_is_told_soon() -> None:
    world = World()
    await runs(world)
    first = world.current
    world.delete_pod("build-1")
    for _ in range(5):
        world.pass_time(1.0)
    assert first.over


async def test_a_role_of_an_older_version_is_brought_up_to_date() -> None:
    world = World()
    await runs(world)
    (role,) = (item for where, item in world.api.items.items() if where[0] == "roles")
    wanted = list(role["rules"])
    role["rules"].pop()
    world.restart()
    await world.run(5)
    (role,) = (item for where, item in world.api.items.items() if where[0] == "roles")
    assert role["rules"] == wanted
