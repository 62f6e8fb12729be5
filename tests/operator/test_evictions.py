"""The table in `evictions`' docstring, and what the operator makes of a mark."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast_operator import names
from holdfast_operator.decide import decide
from holdfast_operator.evictions import YES, Verdict, judge
from holdfast_operator.model import LeaseSeen, NodeSeen, Phase, PodSeen, Session
from holdfast_operator.moves import CancelMove, CreateTarget, Reason
from holdfast_operator.orders import Trigger
from holdfast_operator.steps import Step, Wait

from .test_decide import lease, pod, session
from .test_moves import CORDONED, OPEN, RUNS, TARGET, moving

HELD = lease(started="1")
GONE = "2026-01-01T00:00:00Z"


def on_drain(policy: str) -> Session:
    return session(spec={"move": {"onDrain": policy}})


def asked(
    pod: PodSeen = pod(),  # noqa: B008 - frozen
    session: Session = session(),  # noqa: B008
    lease: LeaseSeen | None = HELD,
    node: NodeSeen | None = OPEN,
) -> Verdict:
    return judge(pod, session, lease, node)


@pytest.mark.parametrize(("node", "mark"), [(OPEN, 1), (CORDONED, None)])
@pytest.mark.parametrize(("policy", "doing"), [("Live", "moved"), ("Hibernate", "stored")])
def test_what_can_leave_is_held_up_and_marked_unless_it_leaves_anyway(
    node: NodeSeen, mark: int | None, policy: str, doing: str
) -> None:
    found = asked(session=on_drain(policy), node=node)
    assert not found.allowed
    assert found.mark == mark
    for part in ("session build", doing, "try again", "describe session build --namespace team"):
        assert part in found.why


def test_it_is_so_by_default() -> None:
    assert asked().mark == 1


def test_a_session_that_is_about_to_arrive_is_waited_for_and_not_sent_on() -> None:
    found = asked(pod=TARGET)
    assert (found.allowed, found.mark) == (False, None)
    assert "arriving" in found.why


MAY_GO: dict[str, dict[str, Any]] = {
    "not its own": {"pod": pod(owned=False)},
    "another name": {"pod": pod(name="other-1")},
    "it ended": {"pod": pod(finished=True)},
    "being deleted": {"pod": pod(deleting=True)},
    "session being deleted": {"session": session(metadata={"deletionTimestamp": GONE})},
    "session is to be ended": {"session": session(spec={"ended": True})},
    "session ended": {"session": session(status={"phase": Phase.ENDED.value})},
    "session failed": {"session": session(status={"phase": Phase.FAILED.value})},
    "no Lease": {"lease": None},
    "another's Lease": {"lease": lease(started="1", owned=False)},
    "released": {"lease": lease(started="1", released=True)},
    "moved away": {"lease": lease(2, "q/1", started="2", moved="1")},
    "a target that is not up": {"pod": pod(2, restores=True)},
    "an epoch that nobody has": {"pod": pod(2, up=True)},
    "vacant": {"lease": lease(holder="")},
    "not begun": {"lease": lease()},
    "no agent": {"node": NodeSeen("n", cordoned=True, agent=False)},
    "node not known": {"node": None},
    "Wait": {"session": on_drain("Wait")},
}


@pytest.mark.parametrize("row", MAY_GO)
def test_everything_else_is_the_budgets_affair(row: str) -> None:
    assert asked(**MAY_GO[row]) == YES


@pytest.mark.parametrize("node", [OPEN, CORDONED, None])
def test_one_that_a_drain_ends_goes_and_is_marked(node: NodeSeen | None) -> None:
    assert asked(session=on_drain("End"), node=node) == Verdict(mark=1)
    assert asked(session=on_drain("End"), node=node).allowed
    assert asked(session=on_drain("End"), lease=lease()) == YES


def marked(epoch: str, **spec: Any) -> Session:
    return session(metadata={"annotations": {names.EVICTED: epoch}}, spec=spec, **RUNS)


STAYS = {"move": {"onDrain": "Wait"}}


@pytest.mark.parametrize(
    ("found", "step"),
    [
        (marked("1"), CreateTarget(2, Reason(Trigger.DRAIN))),
        (marked("1", **STAYS), Wait()),
        (marked("0"), Wait()),
        (marked("2"), Wait()),
        (marked(""), Wait()),
        (marked("one"), Wait()),
    ],
)
def test_a_marked_session_leaves_a_node_that_is_not_cordoned(found: Session, step: Step) -> None:
    assert decide(moving(session=found, node=OPEN, pods=(pod(),))) == step


def test_a_mark_that_is_taken_away_calls_the_move_off() -> None:
    assert decide(moving(session=marked("1"), node=OPEN)) != CancelMove(TARGET)
    assert decide(moving(node=OPEN)) == CancelMove(TARGET)
