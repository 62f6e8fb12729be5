"""When a session is stored and what stays: the tables in the docstrings of `keeps`, `suspension`,
`restores` and `forks`."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast_operator import keeps, names, restores, stored, suspension
from holdfast_operator.decide import decide
from holdfast_operator.keeps import CreateKeep, DeleteCheckpoints
from holdfast_operator.model import Cause, NodeSeen, Observed, Phase, PodSeen
from holdfast_operator.moves import CreateCheckpoint
from holdfast_operator.notes import Restore
from holdfast_operator.orders import CheckpointSeen, Kind, Trigger, retry_at
from holdfast_operator.perform import freshness
from holdfast_operator.restores import CreateBring
from holdfast_operator.status import phase_of
from holdfast_operator.steps import (
    CreatePod,
    DeleteBudget,
    DeletePods,
    End,
    Grant,
    RaiseEpoch,
    SetEnded,
    Step,
    TakeOver,
    Wait,
)
from holdfast_operator.times import stamp
from holdfast_wire.lease import NOBODY

from .test_decide import NOW, lease, pod, seen, session

WALL = datetime(2026, 1, 2, tzinfo=UTC)
AGENT = NodeSeen("n", cordoned=False, agent=True)
DIGEST = f"sha256:{'0' * 64}"


def ago(seconds: float) -> str:
    return stamp(WALL - timedelta(seconds=seconds))


def order(
    number: int = 1, phase: str = "Complete", age: float = 100, **more: Any
) -> CheckpointSeen:
    made = CheckpointSeen(
        name=f"build-1-k{number}", phase=phase, message="", kind=Kind.KEEP, uid=f"c{number}",
        epoch=1, trigger="Periodic", pod="p1", session=("build", "u"), digest=DIGEST,
        location="peer://m", taken=ago(age), completed=ago(age), created=ago(age),
    )  # fmt: skip
    return replace(made, **more)


def bring(origin: str, phase: str = "Failed", **more: Any) -> CheckpointSeen:
    made = CheckpointSeen(
        f"build-2-from-{origin}", phase, "it is spoiled", Kind.BRING, origin=origin, pod="p2",
        created=ago(50),
    )  # fmt: skip
    return replace(made, **more)


def running(*orders: CheckpointSeen, started: float = 1000, **changes: Any) -> Observed:
    status = {"phase": "Running", "epoch": 1, "startedAt": ago(started)}
    spec = {"checkpoints": {"everySeconds": 600, "keep": 2}, **changes.pop("spec", {})}
    given: dict[str, Any] = {
        "session": session(spec=spec, status=status),
        "lease": lease(started="1", **changes.pop("notes", {})),
        "node": AGENT,
        "orders": orders,
    }
    return seen(**(given | changes))


SUSPENDED = {"suspended": True}
MOVED = lease(started="1", moved="0")
DRAINED = {"move": {"onDrain": "Hibernate"}}
IDLE = {"idle": {"afterSeconds": 60, "then": "Hibernate"}, "checkpoints": {"everySeconds": 0}}
ENDS = {"idle": {"afterSeconds": 60, "then": "End"}, "checkpoints": {"everySeconds": 0}}
STAYS = {"idle": {"afterSeconds": 60, "then": "Keep"}, "checkpoints": {"everySeconds": 0}}
CORDONED = NodeSeen("n", cordoned=True, agent=True)
UP = pod(2, node="m", restores=True, up=True)


def evicted(spec: dict[str, Any]) -> Observed:
    status = {"phase": "Running", "epoch": 1, "startedAt": ago(10)}
    marked = {"annotations": {names.EVICTED: "1"}}
    return running(session=session(spec=spec, status=status, metadata=marked))


AGED = {"checkpoints": {"everySeconds": 600, "keep": 2, "maxAgeSeconds": 300}}
ANY_AGE = {"everySeconds": 600, "keep": 2, "maxAgeSeconds": 0}
NOBODY_THERE = {"clients": "0", "active": ago(100)}

ROWS: list[tuple[Observed, Step]] = [
    # Periodic.
    (running(), CreateKeep(1, Trigger.PERIODIC)),
    (running(started=500), Wait(NOW + 100)),
    (running(order(4, age=590)), Wait(NOW + 10)),
    (running(order(4, age=600)), CreateKeep(5, Trigger.PERIODIC)),
    (running(order(4, "Failed", age=590)), Wait(NOW + 10)),
    (running(order(4, age=900), started=500), Wait(NOW + 100)),
    (running(order(4, age=900), started=5, lease=MOVED), CreateKeep(5, Trigger.PERIODIC)),
    (running(started=500, lease=MOVED), Wait(NOW + 100)),
    (running(spec={"checkpoints": {"everySeconds": 0}}), Wait()),
    (running(node=NodeSeen("n", False, False)), Wait()),
    (running(node=None), Wait()),
    (running(pods=(pod(deleting=True),)), Wait()),
    # What it runs in is not known yet.
    (running(pods=(pod(image=""),)), Wait()),
    (running(pods=(pod(image=""),), spec=SUSPENDED), Wait()),
    # One at a time, unless nobody will ever come to its end, or it was another pod's.
    (running(order(1, "Dumping", age=10)), Wait(NOW + 950)),
    (running(order(1, "Pending", age=10), spec=SUSPENDED), Wait(NOW + 950)),
    (running(order(1, "Pending", age=960)), DeleteCheckpoints((("build-1-k1", "c1"),))),
    (running(order(1, "Pending", age=10, pod="p0")), CreateKeep(2, Trigger.PERIODIC)),
    # A move waits for it, and it for a move.
    (running(order(1, "Dumping", age=10), node=CORDONED, pods=(pod(), UP)), Wait()),
    (running(node=CORDONED, pods=(pod(), UP)), CreateCheckpoint(1, UP, Trigger.DRAIN)),
    (running(node=CORDONED, move_retry_at=NOW + 5), CreateKeep(1, Trigger.PERIODIC)),
    (running(order(), node=CORDONED, move_retry_at=NOW + 5), Wait(NOW + 5)),
    # To be suspended.
    (running(spec=SUSPENDED), CreateKeep(1, Trigger.SUSPEND, stops=True)),
    (running(spec=SUSPENDED, node=CORDONED), CreateKeep(1, Trigger.SUSPEND, stops=True)),
    (running(order(1, "Failed", 10, stops=True), spec=SUSPENDED), Wait(NOW + 20)),
    (running(order(1, age=10, stops=True), spec=SUSPENDED), Wait(NOW + 50)),
    (
        running(order(1, age=70, stops=True), spec=SUSPENDED),
        CreateKeep(2, Trigger.SUSPEND, stops=True),
    ),
    (
        running(order(1, age=10, stops=True, pod="p0"), spec=SUSPENDED),
        CreateKeep(2, Trigger.SUSPEND, stops=True),
    ),
    (running(spec=DRAINED, started=10, node=CORDONED), CreateKeep(1, Trigger.DRAIN, stops=True)),
    (running(spec=DRAINED, started=10), Wait(NOW + 590)),
    (evicted(DRAINED), CreateKeep(1, Trigger.DRAIN, stops=True)),
    (running(spec=IDLE, notes=NOBODY_THERE), CreateKeep(1, Trigger.IDLE, stops=True)),
    (running(spec=IDLE, notes=NOBODY_THERE, started=20), Wait(NOW + 40)),
    (running(spec=IDLE, notes={**NOBODY_THERE, "clients": "1"}), Wait()),
    (running(spec=IDLE, notes={"clients": "0"}), Wait()),
    (running(spec=ENDS, notes=NOBODY_THERE), SetEnded()),
    (running(spec=ENDS, notes=NOBODY_THERE, started=20, node=None), Wait(NOW + 40)),
    (running(spec=STAYS, notes=NOBODY_THERE), Wait()),
    # What does not stay.
    (
        running(order(1, age=300), order(2, age=200), order(3, age=100)),
        DeleteCheckpoints((("build-1-k1", "c1"),)),
    ),
    (running(order(1, age=300, trigger="Fork"), order(2), order(3)), Wait(NOW + 500)),
    (
        running(order(1, age=301), order(2, age=290), spec=AGED),
        DeleteCheckpoints((("build-1-k1", "c1"),)),
    ),
    (running(order(1, age=300), order(2, age=290), spec=AGED), Wait(NOW + 310)),
    (running(order(1, age=301), spec=AGED), Wait(NOW + 299)),
    (running(order(1, age=9e6), order(2, age=290), spec={"checkpoints": ANY_AGE}), Wait(NOW + 310)),
]


@pytest.mark.parametrize(("picture", "step"), ROWS)
def test_rows(picture: Observed, step: Step) -> None:
    assert decide(picture) == step


def test_three_of_each_that_is_done_with_stay() -> None:
    failed = [order(n, "Failed", age=1000 - n) for n in range(1, 6)]
    moved = [
        CheckpointSeen(f"m{n}", "Complete", "", uid=f"m{n}", created=ago(1000 - n))
        for n in range(1, 5)
    ]
    brought = [bring(f"k{n}", created=ago(1000 - n)) for n in range(1, 5)]
    found = [one.name for one in keeps.surplus(running(*failed, *moved, *brought))]
    assert found == ["m1", "build-1-k2", "build-1-k1", "build-2-from-k1"]


def test_what_it_is_stored_in_stays() -> None:
    status = {"phase": "Suspended", "epoch": 1, "suspended": {"checkpoint": "build-1-k1"}}
    asleep = running(
        order(1), order(2), order(3), lease=lease(2, ""), session=session(status=status)
    )
    assert suspension.asleep(asleep) is not None
    many = replace(asleep, orders=tuple(order(n) for n in range(1, 6)))
    assert "build-1-k1" not in [one.name for one in keeps.surplus(many)]
    assert [one.name for one in keeps.surplus(many)] == ["build-1-k2"]


def test_when_it_is_tried_again() -> None:
    failed = [order(n, "Failed", age=100) for n in range(9)]
    waits = [
        ((retry_at(failed[:n]) or WALL) - WALL).total_seconds() + 100 for n in (1, 2, 3, 4, 5, 9)
    ]
    assert waits == [30, 60, 120, 300, 600, 600]
    assert retry_at([order(), *failed]) is None


# -- asleep ---------------------------------------------------------------------------------------

SLEPT = {"phase": "Suspended", "epoch": 1, "suspended": {"checkpoint": "build-1-k1", "why": "x"}}


def asleep(*orders: CheckpointSeen, **changes: Any) -> Observed:
    status = changes.pop("status", SLEPT)
    notes = changes.pop("metadata", {})
    given: dict[str, Any] = {
        "session": session(spec=changes.pop("spec", SUSPENDED), status=status, metadata=notes),
        "lease": lease(1, "", released=True, started="1", suspended="build-1-k1"),
        "orders": orders or (order(trigger="Suspend", stops=True),),
        "pods": (),
        "budget": None,
        "may_take": True,
    }
    return seen(**(given | changes))


WOKEN = restores.woken(suspension.Sleep("build-1-k1", "", 1), 2, order())
IDLED = order(trigger="Idle", stops=True)


def wake(epoch: int) -> dict[str, Any]:
    return {"annotations": {names.WAKE: str(epoch)}}


ASLEEP: list[tuple[Observed, Step]] = [
    (asleep(), Wait()),
    (asleep(status={"phase": "Running", "epoch": 1}), RaiseEpoch()),
    (asleep(pods=(pod(),)), DeletePods((("build-1", "p1"),))),
    (asleep(order(phase="Transferring", stops=True), pods=(pod(),)), Wait()),
    (
        asleep(order(phase="Transferring", stops=True), pods=(pod(finished=True),)),
        DeletePods((("build-1", "p1"),)),
    ),
    (asleep(budget=1), DeleteBudget()),
    (asleep(spec={}), TakeOver(2, Cause.SUSPENDED, WOKEN)),
    (asleep(spec={}, retry_at=NOW + 5), Wait(NOW + 5)),
    (asleep(order(2), spec={}), Wait()),
    (asleep(order(phase="Transferring"), spec={}), Wait()),
    (asleep(IDLED, spec={}), Wait()),
    (asleep(IDLED, spec={}, metadata=wake(0)), Wait()),
    (asleep(IDLED, spec={}, metadata=wake(1)), TakeOver(2, Cause.SUSPENDED, WOKEN)),
    (asleep(IDLED, metadata=wake(1)), Wait()),
    (asleep(order(trigger="Drain"), spec={}), TakeOver(2, Cause.SUSPENDED, WOKEN)),
    (
        asleep(spec={"ended": True}),
        End(Phase.ENDED, "Ended", "it was ended while it was suspended"),
    ),
    # Its Lease was deleted: the status still knows.
    (asleep(lease=lease(2, NOBODY), high_water=2), Wait()),
    # The cluster's storage went back in time, and a person accepted it.
    (asleep(high_water=4, spec={}), Wait()),
    (
        asleep(high_water=4, spec={}, metadata={"annotations": {names.ACCEPT_EPOCH: "4"}}),
        TakeOver(5, Cause.ROLLED_BACK, replace(WOKEN, message=WOKEN.message.replace("2", "5", 1))),
    ),
    (
        asleep(order(2), high_water=4, metadata={"annotations": {names.ACCEPT_EPOCH: "4"}}),
        Wait(),
    ),
    (asleep(lease=lease(2, NOBODY), high_water=2, spec={}, may_take=False), Wait(NOW + 20)),
]


@pytest.mark.parametrize(("picture", "step"), ASLEEP)
def test_asleep(picture: Observed, step: Step) -> None:
    assert decide(picture) == step


@pytest.mark.parametrize(
    ("orders", "reason"),
    [
        ((order(),), "Suspended"),
        # The Lease says it a moment before the order does.
        ((order(phase="Transferring", stops=True),), "Suspended"),
        ((order(phase="Transferring", stops=True, age=100_000),), "CheckpointGone"),
        ((order(phase="Failed"),), "CheckpointGone"),
        ((order(2),), "CheckpointGone"),
        (None, "Suspended"),
    ],
)
def test_what_is_said_of_one_that_is_asleep(
    orders: tuple[CheckpointSeen, ...] | None, reason: str
) -> None:
    assert stored.sleeping(replace(asleep(), orders=orders)).reason == reason


@pytest.mark.parametrize("may_take", [False, True])
@pytest.mark.parametrize("spec", [{}, SUSPENDED, {"recovery": {"onHostLoss": "Restart"}}])
@pytest.mark.parametrize(
    "pods", [(), (pod(2),), (pod(2, finished=True),), (pod(2, deleting=True),)]
)
@pytest.mark.parametrize("holder", ["", NOBODY, "p/2"])
@pytest.mark.parametrize("orders", [(order(),), (), (order(phase="Failed"),)])
@pytest.mark.parametrize("told", [WOKEN, None])
def test_one_that_is_asleep_never_begins_anew(
    may_take: bool,
    spec: dict[str, Any],
    pods: tuple[PodSeen, ...],
    holder: str,
    orders: tuple[CheckpointSeen, ...],
    told: Restore | None,
) -> None:
    notes: dict[str, Any] = {"restore": told.encode()} if told is not None else {}
    picture = replace(
        asleep(spec=spec, lease=lease(2, holder, **notes), may_take=may_take, high_water=2),
        orders=orders,
        pods=pods,
        session=session(spec=spec, status=SLEPT | {"epoch": 2}),
    )
    step = decide(picture)
    if isinstance(step, TakeOver):
        assert may_take
        assert step.restore is not None
        assert step.restore.checkpoint == "build-1-k1"
    if isinstance(step, CreatePod):
        assert step.restore is not None
    assert not isinstance(step, End)


# -- lost -----------------------------------------------------------------------------------------


def lost(*orders: CheckpointSeen, **changes: Any) -> Observed:
    given: dict[str, Any] = {"may_take": True, "orders": orders, "lease": lease(started="1")}
    return running(*orders, **(given | changes))


def chosen(picture: Observed) -> str | None:
    step = decide(picture)
    assert isinstance(step, TakeOver)
    return step.restore.checkpoint if step.restore is not None else None


def test_what_a_lost_one_goes_on_from() -> None:
    one, two = order(1), order(2)
    assert chosen(lost()) is None
    assert chosen(lost(one)) == "build-1-k1"
    assert chosen(lost(one, two)) == "build-1-k2"
    assert chosen(lost(one, replace(two, phase="Failed"))) == "build-1-k1"
    assert chosen(lost(one, replace(two, digest=""))) == "build-1-k1"
    assert chosen(lost(one, replace(two, epoch=2))) == "build-1-k1"
    # Kept by the node that was lost.
    assert chosen(lost(one, replace(two, location="peer://n"))) == "build-1-k1"
    assert chosen(lost(replace(two, location="peer://n"))) == "build-1-k2"
    # Tried in vain.
    assert chosen(lost(one, two, bring("build-1-k2"))) == "build-1-k2"
    assert chosen(lost(one, two, bring("build-1-k2"), bring("build-1-k2"))) == "build-1-k1"
    assert chosen(lost(one, two, *[bring("build-1-k2", "Complete")] * 2)) == "build-1-k2"
    restart = {"recovery": {"onHostLoss": "Restart"}}
    assert chosen(lost(one, spec=restart)) is None


def test_how_much_is_lost_is_said() -> None:
    silent = replace(lease(started="1"), body={"spec": {"renewTime": ago(30)}})
    step = decide(lost(order(age=280), lease=silent))
    assert isinstance(step, TakeOver)
    told = step.restore
    assert told is not None
    assert told.message == (
        "Incarnation 1 of this session was lost: its host stopped renewing the Lease. Incarnation"
        " 2 goes on from checkpoint build-1-k1, taken 2026-01-01 23:55:20 UTC; what happened after"
        " that is gone. It was last heard of at 2026-01-01 23:59:30 UTC, 4 min 10 s later."
    )
    assert (told.avoid, told.lost, told.until) == ("n", 1, ago(30))
    # Another try says the same loss, however long after.
    again = lost(
        order(age=280),
        lease=lease(2, "", restore=told.encode()),
        pods=(pod(2, deleting=True),),
        high_water=2,
    )
    step = decide(again)
    assert isinstance(step, TakeOver)
    assert step.restore is not None
    assert "Incarnation 1 of this session was lost: its host" in step.restore.message
    assert "4 min 10 s" in step.restore.message
    assert step.restore.avoid == "n"
    spent = replace(again, orders=(order(age=280), *[bring("build-1-k1")] * 2))
    assert decide(spent) == TakeOver(3, Cause.POD_DELETED)
    fresh = freshness(spent, 3, Cause.POD_DELETED)
    assert (fresh.reason, fresh.avoid) == ("HostLost", "n")
    assert "the last one because: it is spoiled" in fresh.message


def test_a_status_that_lags_is_written_first() -> None:
    """It was woken, ran, and was lost before anybody wrote that it is not asleep any more: else it
    would be taken for one that nothing of is lost."""
    ran = lost(order(), session=session(status={**SLEPT, "epoch": 1}))
    assert decide(ran) == RaiseEpoch()


# -- brought back ---------------------------------------------------------------------------------

GOES_ON = {"phase": "Restoring", "epoch": 2, "suspended": SLEPT["suspended"]}
READY = pod(2, node="m", stored="build-1-k1", up=True)
WAITS = replace(READY, node="", up=False, shuns=("m",), trouble=("Unschedulable", "0/2 nodes"))


def restoring(*orders: CheckpointSeen, **changes: Any) -> Observed:
    given: dict[str, Any] = {
        "session": session(spec=changes.pop("spec", {}), status=GOES_ON),
        "lease": lease(2, "", restore=WOKEN.encode()),
        "orders": (order(), *orders),
        "pods": (READY,),
        "budget": 2,
        "high_water": 2,
    }
    return seen(**(given | changes))


RESTORING: list[tuple[Observed, Step]] = [
    (restoring(), CreateBring(order(), READY, Trigger.WAKE)),
    (restoring(pods=()), CreatePod(2, order())),
    (restoring(pods=(), retry_at=NOW + 3), Wait(NOW + 3)),
    (restoring(pods=(), spec=SUSPENDED), Wait()),
    (restoring(spec=SUSPENDED), DeletePods((("build-2", "p2"),))),
    (restoring(pods=(replace(READY, up=False),)), Wait()),
    (restoring(pods=(WAITS,), unfit=("m",)), Wait()),
    (restoring(pods=(WAITS,)), DeletePods((("build-2", "p2"),))),
    (restoring(bring("build-1-k1", "Pending")), Wait(NOW + 910)),
    (restoring(bring("build-1-k1", "Pending"), spec=SUSPENDED), Wait(NOW + 910)),
    (restoring(bring("build-1-k1", "Failed")), DeletePods((("build-2", "p2"),))),
    (restoring(bring("build-1-k1", "Pending", created=ago(970))),
     DeletePods((("build-2", "p2"),))),
    (restoring(pods=(replace(READY, deleting=True),)), Wait(NOW + 20)),
    (restoring(pods=(replace(READY, deleting=True),), may_take=True),
     TakeOver(3, Cause.SUSPENDED, replace(WOKEN, message=WOKEN.message.replace("2", "3", 1)))),
    (restoring(orders=(), pods=(), may_take=True), Wait()),
]  # fmt: skip


@pytest.mark.parametrize(("picture", "step"), RESTORING)
def test_restoring(picture: Observed, step: Step) -> None:
    assert decide(picture) == step


def test_phases() -> None:
    assert phase_of(restoring(), Wait()) is Phase.RESTORING
    assert phase_of(restoring(pods=(), spec=SUSPENDED), Wait()) is Phase.SUSPENDED
    assert phase_of(asleep(), Wait()) is Phase.SUSPENDED
    frozen = running(order(1, "Dumping", age=10), notes={"activity": "frozen"})
    assert phase_of(frozen, Wait()) is Phase.RUNNING, "a checkpoint is a blink"


# -- forks ----------------------------------------------------------------------------------------

NEW: dict[str, Any] = {"lease": None, "pods": (), "budget": None, "high_water": 0}
MINE = order(7, fork="u")


def fork(origin: Observed | None = None, *origins: CheckpointSeen, **asked: str) -> Step:
    of = asked or {"session": "base"}
    picture = seen(session=session(spec={"forkFrom": of}), origin=origin, origins=origins, **NEW)
    return decide(picture)


def test_forks() -> None:
    base = running()
    assert fork(base) == CreateKeep(1, Trigger.FORK, origin=base)
    assert fork(base, order(6)) == CreateKeep(7, Trigger.FORK, origin=base)
    assert fork(base, MINE) == Grant(1, restores.forked(1, MINE))
    assert fork(None, MINE) == Grant(1, restores.forked(1, MINE))
    failed = replace(MINE, phase="Failed", completed=ago(25))
    assert fork(base, failed) == Wait(NOW + 5)
    busy = running(order(6, "Dumping", age=5))
    assert fork(busy, *(busy.orders or ())) == Wait(NOW + 10)
    sleeping = asleep()
    assert fork(sleeping, order()) == Grant(1, restores.forked(1, order()))
    assert fork(None, MINE, checkpoint=MINE.name) == Grant(1, restores.forked(1, MINE))
    pending = replace(MINE, phase="Dumping")
    assert fork(None, pending, checkpoint=MINE.name) == Wait(NOW + 10)


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (fork(None), "there is no session base"),
        (fork(running(node=NodeSeen("n", False, False))), "no node agent is ready on n"),
        (fork(running(lease=lease())), "does not run"),
        (fork(running(session=session(status={"phase": "Ended"}))), "is over"),
        (fork(None, checkpoint="x"), "there is no checkpoint x"),
        (fork(None, replace(MINE, phase="Failed"), checkpoint=MINE.name), "stored no session"),
        (fork(None, bring("k1", "Complete", name="x"), checkpoint="x"), "stored no session"),
    ],
)
def test_what_cannot_be_forked(step: Step, said: str) -> None:
    assert isinstance(step, Wait)
    assert step.blocked is not None
    assert said in step.blocked[1]
