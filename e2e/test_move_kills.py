"""Every part of a move is killed in the middle of it, at every point that can be seen from outside:
afterwards exactly one incarnation runs on, nothing it did is lost or done twice, and the move comes
to its end by itself.
"""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from e2e.cluster import faults
from e2e.lab import OPERATOR, OPERATOR_NAMESPACE, Lab, Session, sidecar_pid, until
from e2e.movers import (
    Moments,
    agent_pid,
    agent_pods,
    ask,
    await_agents,
    check,
    checkpoint,
    kill,
    longest_gap,
    operator_pid,
    other,
    pod_uid,
    processes,
    walking,
)

# A part that was killed is started anew by the kubelet, and what it left is settled; then the move
# is tried again, a little later each time.
SETTLED_WITHIN = 120.0
SLOW_MBIT = 100


pytestmark = [pytest.mark.long, pytest.mark.faults(18)]


def settled(session: Session) -> None:
    """The one move that was asked for has been made, and one tree runs, in one pod."""
    session.await_epoch(2, SETTLED_WITHIN)
    session.writes_on()
    check(session, 2)
    here = pod_uid(session.lab, session.pod)
    until(lambda: not elsewhere(session, here), f"nothing of {session.name} is elsewhere")
    assert processes(here)


def elsewhere(session: Session, here: str) -> list[int]:
    pods = session.lab.get("pods", "-l", f"holdfast.dev/session={session.name}")["items"]
    uids = {pod["metadata"]["uid"] for pod in pods} - {here}
    return [pid for uid in uids for pid in processes(uid)]


def fresh_agents(lab: Lab, *nodes: str) -> None:
    """The kubelet waits longer each time before it starts a container of a pod again."""
    names = []
    for node, pod in agent_pods(lab).items():
        restarts = [one["restartCount"] for one in pod["status"]["containerStatuses"]]
        if any(restarts) and (not nodes or node in nodes):
            names.append(pod["metadata"]["name"])
    if names:
        lab.kubectl("delete", "pod", "-n", OPERATOR_NAMESPACE, *names, "--wait=true")
    await_agents(lab)


def fresh_operator(lab: Lab) -> None:
    """Likewise."""
    pods = lab.get("pods", "-n", OPERATOR_NAMESPACE, *OPERATOR)["items"]
    for pod in pods:
        if any(one["restartCount"] for one in pod["status"]["containerStatuses"]):
            name = pod["metadata"]["name"]
            lab.kubectl("delete", "pod", "-n", OPERATOR_NAMESPACE, name, "--wait=true")
    lab.kubectl("rollout", "status", "-n", OPERATOR_NAMESPACE, "deployment/holdfast")


def target_uid(session: Session) -> str:
    return str(checkpoint(session)["spec"]["targetPodUID"])


@pytest.mark.timeout(240)
@pytest.mark.parametrize("step", Moments.STEPS)
@pytest.mark.parametrize("side", ["source", "target"])
def test_an_agent_is_killed(lab: Lab, side: str, step: str) -> None:
    session = walking(lab, f"agent-{side}-{step}")
    node = session.node if side == "source" else other(session.node)
    fresh_agents(lab, node)
    pid = agent_pid(lab, node)
    with Moments(session) as moments:
        ask(session)
        moments.wait(step)
        kill(pid)
    settled(session)
    await_agents(lab)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("side", ["source", "target"])
def test_an_agent_is_killed_while_memory_goes_ahead(lab: Lab, side: str) -> None:
    """The session runs all the while, and never stood still for that."""
    session = walking(lab, f"ahead-{side}", ballast=96)
    nodes = {"source": session.node, "target": other(session.node)}
    fresh_agents(lab, nodes[side])
    pid = agent_pid(lab, nodes[side])

    def under_way() -> bool:
        told = checkpoint(session).get("status") or {}
        return told.get("phase") == "Pending" and told.get("sentBytes", 0) > 4 << 20

    with faults.slow(session.node, SLOW_MBIT):
        ask(session)
        until(under_way, "its memory goes ahead")
        kill(pid)
        # Longer than any tick, and shorter than what a freeze of that size would take here.
        marks = session.marks()
        until(lambda: len(session.marks()) > len(marks) + 40, "it runs on")
        assert longest_gap(session.marks()) < 1
    settled(session)
    await_agents(lab)


@pytest.mark.timeout(240)
def test_sidecars_are_killed(lab: Lab) -> None:
    """Each of a session of its own, all at the same time."""
    cases = [(side, step) for side in ("source", "target") for step in Moments.STEPS]
    sessions = [walking(lab, f"sidecar-{side}-{step}") for side, step in cases]

    def run(number: int) -> None:
        session, (side, step) = sessions[number], cases[number]
        uid = pod_uid(lab, session.pod)
        with Moments(session) as moments:
            ask(session)
            moments.wait("ordered")
            if side == "target":
                uid = target_uid(session)
            victim = sidecar_pid(uid)
            moments.wait(step)
            kill(victim)

    with ThreadPoolExecutor(len(cases)) as threads:
        list(threads.map(run, range(len(cases))))
    for session in sessions:
        settled(session)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("step", Moments.STEPS)
def test_the_operator_is_killed(lab: Lab, step: str) -> None:
    fresh_operator(lab)
    session = walking(lab, f"operator-{step}")
    pid = operator_pid(lab)
    with Moments(session) as moments:
        ask(session)
        moments.wait(step)
        kill(pid)
    settled(session)
    until(lambda: operator_pid(lab), "the operator is back")


@pytest.mark.timeout(240)
def test_anything_is_killed_at_any_time(lab: Lab) -> None:
    """A fixed seed chooses what, and how long after the move was asked for."""
    fresh_agents(lab)
    chosen = random.Random(18)
    for number, victim in enumerate(("source agent", "target agent", "source sidecar")):
        session = walking(lab, f"any-{number}")
        if victim == "source agent":
            pid = agent_pid(lab, session.node)
        elif victim == "target agent":
            pid = agent_pid(lab, other(session.node))
        else:
            pid = sidecar_pid(pod_uid(lab, session.pod))
        ask(session)
        time.sleep(chosen.uniform(0.5, 4.0))
        kill(pid)
        settled(session)
        fresh_agents(lab)
