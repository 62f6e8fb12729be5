"""Somebody deletes a session's pod, who asks nobody: with time left in its grace the session moves,
and else its command is told to end, as ever. What is ended by its user ends at once."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

from e2e.lab import Lab, Mark, Session, boottime, sidecar_pid, until
from e2e.movers import (
    MOVED_WITHIN,
    Moments,
    agent_pid,
    await_agents,
    check,
    checkpoint,
    cordoned,
    draining,
    gone,
    kill,
    longest_gap,
    operator_pid,
    other,
    pod_uid,
    processes,
    walking,
)
from e2e.test_eviction import evict
from e2e.test_move_kills import SETTLED_WITHIN, elsewhere, fresh_agents

GRACE = 30


def delete(lab: Lab, pod: str, *more: str) -> float:
    lab.kubectl("delete", "pod", pod, "--wait=false", *more)
    return time.monotonic()


def lines(session: Session) -> dict[int, tuple[str, ...]]:
    found = processes(pod_uid(session.lab, session.pod))
    return {pid: one.command for pid, one in found.items()}


def ends_anew(session: Session, since: float, after: float, before: float) -> None:
    """Its command was told to end, so many seconds after; the next incarnation began anew."""
    until(lambda: session.epoch == 2, "the next incarnation")
    last = max(mark.at for mark in session.marks() if mark.epoch == 1)
    assert after <= last - since < before, f"it was told {last - since:.1f} s after the deletion"
    session.await_epoch(2)
    assert session.condition("Fresh")["reason"] == "PodDeleted"
    session.writes_on()


@contextlib.contextmanager
def no_agent(lab: Lab, node: str) -> Iterator[None]:
    """As far as the operator knows."""
    label = "holdfast.dev/agent"
    was = lab.get("node", node)["metadata"]["labels"][label]
    lab.kubectl("label", "node", node, f"{label}=problem", "--overwrite")
    try:
        yield
    finally:
        lab.kubectl("label", "node", node, f"{label}={was}", "--overwrite")


@pytest.mark.timeout(180)
def test_a_session_whose_pod_is_deleted_moves(lab: Lab) -> None:
    session = walking(lab, "deleted", grace=GRACE)
    node, pod, before = session.node, session.pod, lines(session)
    began = delete(lab, pod)
    session.await_epoch(2, MOVED_WITHIN)
    took = time.monotonic() - began
    assert took < GRACE
    assert session.node == other(node)
    gone(lab, pod)
    assert lines(session) == before
    session.writes_on()
    marks = check(session, 2)
    assert session.condition("Fresh")["reason"] == "Moved"
    assert "leaving" not in session.status
    assert "until" in checkpoint(session)["spec"]
    lab.report["deleted_pod_moved_seconds"] = round(took, 1)
    lab.report["deleted_pod_freeze_seconds"] = round(longest_gap(marks), 3)


@pytest.mark.long
@pytest.mark.timeout(180)
def test_and_again(lab: Lab) -> None:
    session = walking(lab, "deleted-twice", grace=GRACE)
    for epoch in (1, 2):
        delete(lab, session.pod)
        session.await_epoch(epoch + 1, MOVED_WITHIN)
    session.writes_on()
    check(session, 3)


@contextlib.contextmanager
def tainted(lab: Lab, node: str) -> Iterator[None]:
    lab.kubectl("taint", "node", node, "e2e=gone:NoExecute")
    try:
        yield
    finally:
        lab.kubectl("taint", "node", node, "e2e=gone:NoExecute-")


@pytest.mark.long
@pytest.mark.timeout(180)
def test_a_taint_moves_it_too(lab: Lab) -> None:
    session = walking(lab, "tainted", grace=GRACE, node=lab.away())
    node = session.node
    with tainted(lab, node):
        session.await_epoch(2, MOVED_WITHIN)
        assert session.node == other(node)
        session.writes_on()
    check(session, 2)


@pytest.mark.timeout(180)
def test_with_a_grace_too_short_it_is_told_at_once(lab: Lab) -> None:
    """Shortened by who deletes it: the pod was made to linger, and there is no time for it."""
    session = walking(lab, "hurried", grace=GRACE)
    since = boottime()
    delete(lab, session.pod, "--grace-period=10")
    ends_anew(session, since, after=2.5, before=6)
    assert not checkpoint(session)


@pytest.mark.long
@pytest.mark.timeout(180)
def test_one_that_was_not_made_to_linger_is_told_at_once(lab: Lab) -> None:
    session = walking(lab, "short", grace=10)
    since = boottime()
    delete(lab, session.pod)
    ends_anew(session, since, after=0, before=2.5)


@pytest.mark.long
@pytest.mark.timeout(180)
def test_without_an_agent_it_is_told_soon(lab: Lab) -> None:
    session = walking(lab, "unmoved", grace=GRACE)
    with no_agent(lab, session.node):
        since = boottime()
        delete(lab, session.pod)
        ends_anew(session, since, after=2.5, before=6)


@pytest.mark.long
@pytest.mark.timeout(180)
def test_with_no_other_node_it_is_told_while_there_is_time(lab: Lab) -> None:
    """It may be waited for, but not for so long that the command is killed unheard."""
    session = walking(lab, "nowhere", grace=GRACE)
    with cordoned(lab, other(session.node)):
        since = boottime()
        delete(lab, session.pod)
        until(lambda: session.status.get("leaving"), "it is to be moved")
        ends_anew(session, since, after=8, before=GRACE - 8)


@pytest.mark.timeout(180)
def test_one_that_is_deleted_ends_at_once(lab: Lab) -> None:
    session = walking(lab, "unwanted", grace=GRACE)
    pod, began = session.pod, boottime()
    lab.kubectl("delete", "session", session.name, "--wait=false")
    until(lambda: lab.find("session", session.name) is None, "it is gone")
    assert boottime() - began < 15
    gone(lab, pod)
    assert max(mark.at for mark in session.marks()) - began < 2.5
    check(session, 1)


@pytest.mark.timeout(180)
def test_one_that_is_ended_ends_at_once(lab: Lab) -> None:
    session = walking(lab, "finished", grace=GRACE)
    began = boottime()
    lab.kubectl("patch", "session", session.name, "--type=merge", "-p", '{"spec":{"ended":true}}')
    status = session.await_phase("Ended")
    assert max(mark.at for mark in session.marks()) - began < 2.5
    assert status["exit"]["cause"] == "terminated"
    check(session, 1)


ENDS: dict[str, Any] = {"move": {"onDrain": "End"}}


@pytest.mark.long
@pytest.mark.timeout(180)
def test_a_drain_ends_a_session_that_says_so(lab: Lab) -> None:
    session = walking(lab, "drained-end", node=lab.away(), spec=ENDS)
    with draining(lab, session.node) as drain:
        status = session.await_phase("Ended")
        drain.succeeds()
    assert session.condition("Ready")["reason"] == "Drained"
    assert status["exit"]["cause"] == "terminated"
    assert lab.find("pod", "drained-end-2") is None
    check(session, 1)


@pytest.mark.long
@pytest.mark.timeout(180)
def test_and_so_does_an_eviction_but_not_a_deletion(lab: Lab) -> None:
    session = walking(lab, "evicted-end", spec=ENDS)
    until(lambda: lab.find("pdb", f"holdfast-{session.name}") is None, "it has no budget")
    assert evict(lab, session.pod) == ""
    session.await_phase("Ended")
    assert session.condition("Ready")["reason"] == "Drained"
    kept = walking(lab, "deleted-end", spec=ENDS)
    delete(lab, kept.pod)
    kept.await_epoch(2)
    assert kept.condition("Fresh")["reason"] == "PodDeleted"


# -- parts of it are killed in the middle --------------------------------------------------------


def one_goes_on(session: Session) -> list[Mark]:
    """Moved, or begun anew: never two at once, none that comes back, nothing twice or left out."""
    until(lambda: session.epoch >= 2, f"{session.name} is elsewhere", SETTLED_WITHIN)
    session.await_epoch(session.epoch, SETTLED_WITHIN)
    session.writes_on()
    marks = session.marks()
    for before, after in itertools.pairwise(marks):
        assert after.at >= before.at, f"time runs back: {before} {after}"
        assert after.epoch >= before.epoch, f"an old epoch wrote again: {before} {after}"
        anew = after.epoch > before.epoch and after.number == 1
        assert anew or after.number == before.number + 1, f"a gap or a double: {before} {after}"
    here = pod_uid(session.lab, session.pod)
    until(lambda: not elsewhere(session, here), f"nothing of {session.name} is elsewhere")
    return marks


@pytest.mark.long
@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("victim", "step"),
    [("source", "dumping"), ("target", "sending"), ("sidecar", "ordered"), ("sidecar", "offered"),
     ("operator", "ordered")],
)  # fmt: skip
def test_one_goes_on_whatever_is_killed(lab: Lab, victim: str, step: str) -> None:
    session = walking(lab, f"deleted-{victim}-{step}", grace=GRACE)
    fresh_agents(lab)
    pid = {
        "source": lambda: agent_pid(lab, session.node),
        "target": lambda: agent_pid(lab, other(session.node)),
        "sidecar": lambda: sidecar_pid(pod_uid(lab, session.pod)),
        "operator": lambda: operator_pid(lab),
    }[victim]()
    with Moments(session) as moments:
        delete(lab, session.pod)
        moments.wait(step)
        kill(pid)
    one_goes_on(session)
    await_agents(lab)


@pytest.mark.long
@pytest.mark.timeout(240)
def test_an_agent_that_comes_to_no_end_holds_up_nobody(lab: Lab) -> None:
    """The tree is frozen, and who froze it is stopped: hold knows when it has to go."""
    session = walking(lab, "stuck", grace=GRACE)
    pid = agent_pid(lab, session.node)
    began = boottime()
    try:
        with Moments(session) as moments:
            delete(lab, session.pod)
            moments.wait("dumping")
            os.kill(pid, signal.SIGSTOP)
        one_goes_on(session)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert boottime() - began < 90
    await_agents(lab)
    one_goes_on(session)


@pytest.mark.long
@pytest.mark.timeout(240)
def test_a_move_that_hangs_is_given_up_while_the_command_can_hear_of_it(lab: Lab) -> None:
    """The other agent is stopped in the middle: the session goes on where it is, and is told."""
    session = walking(lab, "hung", grace=GRACE)
    pid = agent_pid(lab, other(session.node))
    began = boottime()
    try:
        with Moments(session) as moments:
            delete(lab, session.pod)
            moments.wait("offered")  # it stands still since a moment ago
            os.kill(pid, signal.SIGSTOP)
        until(lambda: session.epoch == 2, "the next incarnation")
    finally:
        os.kill(pid, signal.SIGCONT)
    marks = [mark for mark in one_goes_on(session) if mark.epoch == 1]
    assert longest_gap(marks) > 2, "it was never frozen"
    assert 12 < marks[-1].at - began < 22, f"told {marks[-1].at - began:.1f} s after the deletion"
    await_agents(lab)
