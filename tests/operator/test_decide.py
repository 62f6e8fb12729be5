"""The table in `decide`'s docstring, row by row."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from holdfast_operator import names
from holdfast_operator.decide import decide
from holdfast_operator.model import Cause, LeaseSeen, Observed, Phase, PodSeen, Session
from holdfast_operator.steps import (
    AddFinalizer,
    Bar,
    CreatePod,
    DeleteBudget,
    DeleteLease,
    DeletePods,
    DeleteSession,
    End,
    EnsureAccess,
    Fence,
    Grant,
    RaiseEpoch,
    RemoveFinalizer,
    SetBudget,
    TakeOver,
    Wait,
)
from holdfast_operator.template import Refusal
from holdfast_wire.lease import NOBODY, Epoch, Record
from operator_kit import session_object

NOW = 500.0


def session(**changes: Any) -> Session:
    item = session_object(**changes.pop("spec", {}))
    item["metadata"] |= {"uid": "u", "resourceVersion": "7", "finalizers": [names.FINALIZER]}
    item["metadata"] |= changes.pop("metadata", {})
    item["status"] = changes.pop("status", {})
    assert not changes
    return Session.of(item)


def lease(
    epoch: int = 1, holder: str = "p/1", released: bool = False, owned: bool = True, **notes: str
) -> LeaseSeen:
    found = {names.PREFIX + key.replace("_", "-"): value for key, value in notes.items()}
    return LeaseSeen(Record("9", Epoch(epoch), holder, released), owned, found, {})


def pod(epoch: int = 1, **changes: Any) -> PodSeen:
    made = PodSeen(f"build-{epoch}", f"p{epoch}", True, epoch, "n", False, False, image="app@1")
    return replace(made, **changes)


def seen(**changes: Any) -> Observed:
    """A session that runs, in order."""
    made = Observed(
        session=session(),
        refusal=None,
        lease=lease(),
        pods=(pod(),),
        access=True,
        budget=1,
        may_take=False,
        take_at=NOW + 20,
        high_water=1,
        now=NOW,
        wall=datetime(2026, 1, 2, tzinfo=UTC),
    )
    return replace(made, **changes)


EXITED = json.dumps({"code": 0, "signal": None, "cause": "exited", "at": "", "lines": []})
TERMINATED = json.dumps({"code": None, "signal": 15, "cause": "terminated", "lines": []})
NEW = {"lease": None, "pods": (), "budget": None, "high_water": 0}
DELETING = session(metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"})
ENDED = session(status={"phase": "Ended", "endedAt": "2026-01-01T23:59:00Z", "epoch": 1})
MARKED = session(status={"phase": "Starting", "epoch": 1})
TO_END = session(spec={"ended": True})
FAIL = session(spec={"recovery": {"onHostLoss": "Fail"}})


def test_in_order() -> None:
    assert decide(seen()) == Wait()


BEGINNING = [
    (seen(session=session(metadata={"finalizers": []}), **NEW), AddFinalizer()),
    (seen(access=False, **NEW), Grant(1)),
    (seen(**NEW), Grant(1)),
    (seen(refusal=Refusal("NoCommand", "m"), **NEW), Wait()),
    (seen(lease=lease(holder=""), pods=(), budget=None), RaiseEpoch()),
    (seen(lease=lease(holder=""), pods=(), budget=None, session=MARKED), CreatePod(1)),
    (
        seen(lease=lease(holder=""), pods=(), budget=None, session=MARKED, retry_at=NOW + 5),
        Wait(NOW + 5),
    ),
    (seen(lease=lease(holder=""), budget=None), SetBudget(1)),
    (seen(lease=lease(holder="")), Wait()),
    # An image that takes long to pull is not a lost host.
    (seen(lease=lease(holder=""), may_take=True), Wait()),
    (seen(access=False), EnsureAccess()),
    (seen(access=False, lease=lease(holder=""), pods=(), budget=None), EnsureAccess()),
]

LOSING = [
    (seen(may_take=True), TakeOver(2, Cause.HOST_LOST)),
    (seen(may_take=True, high_water=1, retry_at=NOW + 9), Wait(NOW + 9)),
    (seen(pods=()), Wait(NOW + 20)),
    (seen(pods=(), may_take=True), TakeOver(2, Cause.HOST_LOST)),
    (seen(pods=(pod(finished=True),)), Wait(NOW + 20)),
    (seen(pods=(pod(deleting=True),)), Wait()),
    (seen(lease=lease(holder=""), pods=(pod(finished=True),)), Wait(NOW + 20)),
    (
        seen(lease=lease(holder=""), pods=(pod(finished=True),), may_take=True),
        TakeOver(2, Cause.POD_FAILED),
    ),
    (
        seen(lease=lease(holder=""), pods=(pod(deleting=True),), may_take=True),
        TakeOver(2, Cause.POD_DELETED),
    ),
    (
        seen(lease=lease(holder="", released=True), may_take=True, pods=()),
        TakeOver(2, Cause.RELEASED),
    ),
    (
        seen(lease=lease(holder="", released=True, exit=TERMINATED), may_take=True),
        TakeOver(2, Cause.POD_DELETED),
    ),
    # A deleted Lease is made again at once, for nobody, and then waited for like any other.
    (seen(lease=None), Bar(2)),
    (seen(lease=None, may_take=True), Bar(2)),
    (seen(lease=lease(epoch=2, holder=NOBODY), high_water=2, pods=()), Wait(NOW + 20)),
    (
        seen(lease=lease(epoch=2, holder=NOBODY), high_water=2, pods=(), may_take=True),
        TakeOver(3, Cause.LEASE_MISSING),
    ),
    # Fail is written only when nothing of the old one runs any more.
    (seen(session=FAIL, pods=()), Wait(NOW + 20)),
]

ENDING = [
    (seen(session=TO_END), DeletePods((("build-1", "p1"),))),
    (seen(session=TO_END, pods=(pod(deleting=True),)), Wait(NOW + 20)),
    (seen(session=TO_END, pods=()), Wait(NOW + 20)),
    # Released or not: a start-up error is final, whatever the recovery says.
    (
        seen(lease=lease(holder="", released=True, start_error="no \x1b[1mbash"), may_take=True),
        End(Phase.FAILED, "StartError", "no bash"),
    ),
]

OVER = [
    (seen(session=ENDED, lease=lease(holder="", released=True)), DeleteBudget()),
    (
        seen(session=ENDED, lease=lease(holder="", released=True), budget=None),
        DeletePods((("build-1", "p1"),)),  # a minute later: another container goes on
    ),
    (
        seen(session=ENDED, lease=lease(holder="", released=True), budget=None,
             pods=(pod(finished=True),)),
        Wait(NOW + 86400 - 60),
    ),
    (seen(session=ENDED, may_take=True), Fence(2)),
    (seen(session=ENDED, lease=lease(2, ""), may_take=True), DeletePods((("build-1", "p1"),))),
    (
        seen(session=ENDED, lease=lease(holder="", released=True), budget=None, pods=(),
             wall=datetime(2026, 1, 3, tzinfo=UTC)),
        DeleteSession(),
    ),
]  # fmt: skip

DELETION = [
    (seen(session=DELETING), DeletePods((("build-1", "p1"),))),
    (seen(session=DELETING, pods=(pod(deleting=True),), deleting_since=NOW), Wait(NOW + 50)),
    (
        seen(session=DELETING, pods=(pod(deleting=True),), deleting_since=NOW - 50),
        DeleteLease(),
    ),
    (
        seen(session=DELETING, pods=(pod(deleting=True),), deleting_since=NOW - 50, lease=None),
        RemoveFinalizer(),
    ),
    (seen(session=DELETING, pods=()), DeleteLease()),
    (seen(session=DELETING, pods=(), lease=None), RemoveFinalizer()),
    (seen(session=DELETING, pods=(), lease=lease(owned=False)), RemoveFinalizer()),
    (
        seen(session=replace(DELETING, finalizers=("other",)), pods=(), lease=None),
        Wait(),
    ),
]

ROLLBACK = [
    (seen(high_water=4, may_take=True), Wait()),
    (seen(high_water=4, session=session(metadata={"annotations": {names.ACCEPT_EPOCH: "3"}}),
          may_take=True), Wait()),
    (seen(high_water=4, session=session(metadata={"annotations": {names.ACCEPT_EPOCH: "4"}})),
     Wait(NOW + 20)),
    (seen(high_water=4, session=session(metadata={"annotations": {names.ACCEPT_EPOCH: "4"}}),
          may_take=True), TakeOver(5, Cause.ROLLED_BACK)),
    (seen(high_water=4, session=session(metadata={"annotations": {names.ACCEPT_EPOCH: "x"}}),
          may_take=True), Wait()),
]  # fmt: skip


@pytest.mark.parametrize(
    ("observed", "step"), BEGINNING + LOSING + ENDING + OVER + DELETION + ROLLBACK
)
def test_rows(observed: Observed, step: object) -> None:
    assert decide(observed) == step


def test_an_exit_ends_it() -> None:
    step = decide(seen(lease=lease(holder="", released=True, exit=EXITED), may_take=True))
    assert isinstance(step, End)
    assert (step.phase, step.reason) == (Phase.ENDED, "Ended")
    assert step.exit is not None
    assert step.exit.code == 0


def test_an_exit_before_the_release_waits() -> None:
    assert decide(seen(lease=lease(exit=EXITED))) == Wait()


def test_terminated_as_asked_is_an_end() -> None:
    step = decide(seen(session=TO_END, lease=lease(holder="", released=True, exit=TERMINATED),
                       may_take=True))  # fmt: skip
    assert isinstance(step, End)
    assert step.phase is Phase.ENDED


def test_fail_ends_a_lost_session() -> None:
    step = decide(seen(session=FAIL, may_take=True))
    assert isinstance(step, End)
    assert (step.phase, step.reason) == (Phase.FAILED, "HostLost")


def test_only_older_pods_are_deleted() -> None:
    """Two pods that claim one epoch are not chosen between."""
    twin = pod(2, name="build-two", uid="x")
    step = decide(seen(lease=lease(2), high_water=2, pods=(pod(1), pod(2), twin), budget=2))
    assert step == DeletePods((("build-1", "p1"),))


@pytest.mark.parametrize(
    "taken",
    [
        seen(lease=lease(owned=False), pods=(), high_water=0),
        seen(lease=None, pods=(pod(owned=False),), high_water=0),
    ],
)
def test_names_taken(taken: Observed) -> None:
    step = decide(taken)
    assert isinstance(step, Wait)
    assert step.blocked is not None
    assert step.blocked[0] == "NameTaken"
    assert step.until is not None


def test_ended_before_it_began() -> None:
    step = decide(seen(session=TO_END, **NEW))
    assert isinstance(step, End)


@pytest.mark.parametrize("may_take", [False, True])
@pytest.mark.parametrize("holder", ["", "p/1"])
@pytest.mark.parametrize("pods", [(), (pod(),), (pod(finished=True),), (pod(deleting=True),)])
@pytest.mark.parametrize("which", [session(), TO_END, FAIL, ENDED, DELETING])
@pytest.mark.parametrize("high_water", [1, 3])
@pytest.mark.parametrize("missing", [False, True])
def test_nothing_is_taken_before_its_time(
    may_take: bool,
    holder: str,
    pods: tuple[PodSeen, ...],
    which: Session,
    high_water: int,
    missing: bool,
) -> None:
    observed = seen(
        session=which,
        lease=None if missing else lease(holder=holder),
        pods=pods,
        may_take=may_take,
        high_water=high_water,
    )
    step = decide(observed)
    if isinstance(step, TakeOver | Grant | Fence):
        assert may_take
        assert step.epoch > max(observed.epoch, high_water)
    if isinstance(step, CreatePod):
        assert step.epoch == observed.epoch
        assert not missing
