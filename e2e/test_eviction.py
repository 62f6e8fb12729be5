"""Somebody evicts a session's pod, on a node that is not cordoned: it is told to try again, the
session moves, and then the old pod may go. Nothing else's eviction is touched."""

from __future__ import annotations

import json
from typing import Any

import pytest

from e2e.cluster import build
from e2e.lab import OPERATOR, OPERATOR_NAMESPACE, KubectlError, Lab, Session, until
from e2e.movers import MOVED_WITHIN, check, draining, gone, walking

MARK = "holdfast.dev/evicted"


def evict(lab: Lab, pod: str, query: str = "", **options: Any) -> str:
    """What the API server complains of; "" if the pod goes."""
    body: dict[str, Any] = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": pod, "namespace": "default"},
    }
    if options:
        body["deleteOptions"] = options
    url = f"/api/v1/namespaces/default/pods/{pod}/eviction{query}"
    try:
        lab.kubectl("create", "--raw", url, "-f", "-", give=json.dumps(body))
    except KubectlError as error:
        return error.complaint
    return ""


def held_up(complaint: str, name: str) -> bool:
    """By the webhook, not by the budget."""
    return (
        "(TooManyRequests)" in complaint
        and 'webhook "evictions.holdfast.dev" denied the request' in complaint
        and f"session {name} is being moved" in complaint
        and "try again" in complaint
    )


def mark(session: Session) -> str | None:
    found: str | None = session.body["metadata"].get("annotations", {}).get(MARK)
    return found


def guarded(session: Session) -> None:
    """Its budget is there and counts its pod: it holds an eviction up by itself."""

    def counted() -> bool:
        found = session.lab.find("pdb", f"holdfast-{session.name}") or {}
        status = found.get("status") or {}
        return status.get("currentHealthy") == 1 and status.get("disruptionsAllowed") == 0

    until(counted, f"the budget of {session.name} counts its pod")


def may_go(lab: Lab, pod: str) -> bool:
    """Evicted now, or gone already: the operator deletes it too."""
    complaint = evict(lab, pod)
    return not complaint or "(NotFound)" in complaint


def bystander(lab: Lab, name: str, **labels: str) -> None:
    """A pod of nobody's, named like a session's, so that the webhook is asked about it."""
    container = {"name": "main", "image": build.DEBIAN, "imagePullPolicy": "Never",
                 "command": ["sleep", "1000"]}  # fmt: skip
    lab.apply(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "labels": labels},
            "spec": {"containers": [container], "terminationGracePeriodSeconds": 0},
        }
    )
    lab.kubectl("wait", "--for=condition=Ready", f"pod/{name}", "--timeout=60s")


def remove(lab: Lab, pod: str) -> None:
    lab.kubectl("delete", "pod", pod, "--ignore-not-found", "--grace-period=0", "--force")


@pytest.mark.timeout(180)
def test_an_evicted_session_moves(lab: Lab) -> None:
    session = walking(lab, "evicted")
    node, pod = session.node, session.pod
    assert not lab.get("node", node)["spec"].get("unschedulable")
    complaint = evict(lab, pod)
    assert held_up(complaint, "evicted"), complaint
    assert mark(session) == "1"
    session.await_epoch(2, MOVED_WITHIN)
    assert session.node != node
    until(lambda: may_go(lab, pod), "the old pod may go")
    gone(lab, pod)
    session.writes_on()
    check(session, 2)
    assert session.condition("Fresh")["reason"] == "Moved"
    assert (session.epoch, mark(session)) == (2, "1"), "an old mark moves nothing"


@pytest.mark.timeout(180)
def test_and_again(lab: Lab) -> None:
    """The mark of the first is no mark of the second."""
    session = walking(lab, "again")
    for epoch in (1, 2):
        complaint = evict(lab, session.pod)
        assert held_up(complaint, "again"), complaint
        session.await_epoch(epoch + 1, MOVED_WITHIN)
    session.writes_on()
    check(session, 3)


def test_a_dry_run_leaves_no_mark(lab: Lab) -> None:
    """Neither in the query nor, as `kubectl drain` has it, in the Eviction."""
    session = walking(lab, "rehearsed")
    for complaint in (
        evict(lab, session.pod, "?dryRun=All"),
        evict(lab, session.pod, dryRun=["All"]),
    ):
        assert held_up(complaint, "rehearsed"), complaint
        assert mark(session) is None
    session.writes_on()
    check(session, 1)
    assert lab.find("pod", "rehearsed-2") is None


@pytest.mark.timeout(180)
def test_a_drain_is_held_up_without_a_mark(lab: Lab) -> None:
    """The cordon is reason enough; uncordoning must be able to call it off."""
    session = walking(lab, "drained", node=lab.away())
    with draining(lab, session.node) as drain:
        session.await_epoch(2, MOVED_WITHIN)
        drain.succeeds()
    assert mark(session) is None
    session.writes_on()
    check(session, 2)


def test_a_session_that_waits_is_its_budgets_affair(lab: Lab) -> None:
    session = walking(lab, "waits", spec={"move": {"onDrain": "Wait"}})
    guarded(session)
    complaint = evict(lab, session.pod)
    assert "disruption budget" in complaint
    assert "holdfast.dev" not in complaint
    assert mark(session) is None
    session.writes_on()
    check(session, 1)


def test_other_pods_go_at_once(lab: Lab) -> None:
    """Also one that claims to be a session's."""
    session = walking(lab, "beside")
    try:
        bystander(lab, "bystander-1")
        bystander(lab, "pretender-7", **{"holdfast.dev/session": "beside"})
        for pod in ("bystander-1", "pretender-7"):
            assert evict(lab, pod) == ""
            gone(lab, pod)
    finally:
        for pod in ("bystander-1", "pretender-7"):
            remove(lab, pod)
    assert mark(session) is None
    session.writes_on()
    check(session, 1)


@pytest.mark.timeout(180)
def test_without_the_operator_others_go_and_sessions_stay(lab: Lab) -> None:
    session = walking(lab, "alone")
    guarded(session)
    bystander(lab, "bystander-2")
    lab.kubectl("scale", "deployment/holdfast", "-n", OPERATOR_NAMESPACE, "--replicas=0")
    try:
        until(
            lambda: not lab.get("pods", "-n", OPERATOR_NAMESPACE, *OPERATOR)["items"],
            "no operator runs",
        )
        assert evict(lab, "bystander-2") == ""
        complaint = evict(lab, session.pod)
        assert "disruption budget" in complaint, complaint
        session.writes_on()
    finally:
        remove(lab, "bystander-2")
        lab.kubectl("scale", "deployment/holdfast", "-n", OPERATOR_NAMESPACE, "--replicas=1")
        lab.kubectl("rollout", "status", "deployment/holdfast", "-n", OPERATOR_NAMESPACE,
                    "--timeout=90s")  # fmt: skip
    check(session, 1)
