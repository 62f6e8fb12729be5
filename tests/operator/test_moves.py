"""When a session leaves its node: the table in `moves`' docstring, and what is made for it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from holdfast_operator import events, names, objects, pods, status
from holdfast_operator.decide import decide
from holdfast_operator.events import Said
from holdfast_operator.model import Cause, NodeSeen, Observed, Phase, PodSeen
from holdfast_operator.moves import (
    AbandonMove,
    CancelMove,
    CreateCheckpoint,
    CreateTarget,
    Reason,
)
from holdfast_operator.nodes import Nodes
from holdfast_operator.orders import CheckpointSeen, Trigger
from holdfast_operator.steps import DeletePods, Step, TakeOver, Wait
from operator_kit import SETTINGS

from .test_decide import NOW, lease, pod, seen, session

RUNS: dict[str, Any] = {"status": {"phase": "Running", "epoch": 2}}
CORDONED = NodeSeen("n", cordoned=True, agent=True)
OPEN = NodeSeen("n", cordoned=False, agent=True)
TARGET = pod(2, node="m", restores=True, up=True)
WAITS = replace(TARGET, node="", up=False, shuns=("m",), trouble=("Unschedulable", "0/2 nodes"))


def moving(**changes: Any) -> Observed:
    """It runs, its node is drained, and a pod is up for it on another."""
    given: dict[str, Any] = {
        "session": session(**RUNS),
        "lease": lease(started="1"),
        "node": CORDONED,
        "pods": (pod(), TARGET),
    }
    return seen(**(given | changes))


def order(phase: str, message: str = "") -> CheckpointSeen:
    return CheckpointSeen("build-1-p2", phase, message)


ASKED = session(metadata={"annotations": {names.MOVE: "1"}}, **RUNS)
ASKED_TO = session(metadata={"annotations": {names.MOVE: "1/m"}}, **RUNS)
ASKED_BEFORE = session(metadata={"annotations": {names.MOVE: "7"}}, **RUNS)
STAYS = session(spec={"move": {"onDrain": "Wait"}}, **RUNS)

ROWS: list[tuple[Observed, Step]] = [
    # No reason to.
    (moving(node=OPEN, pods=(pod(),)), Wait()),
    (moving(node=OPEN), CancelMove(TARGET)),
    (moving(node=OPEN, pods=(pod(), replace(TARGET, deleting=True))), Wait()),
    (moving(node=OPEN, checkpoint=order("Pending")), Wait()),
    (moving(node=OPEN, checkpoint=order("Transferring")), Wait()),
    (moving(node=OPEN, checkpoint=order("Failed")), CancelMove(TARGET)),
    (moving(session=STAYS, pods=(pod(),)), Wait()),
    (moving(session=ASKED_BEFORE, node=OPEN, pods=(pod(),)), Wait()),
    # It cannot, or must not yet.
    (moving(session=session(), pods=(pod(),)), Wait()),
    (moving(node=NodeSeen("n", cordoned=True, agent=False), pods=(pod(),)), Wait()),
    (moving(node=None, pods=(pod(),)), Wait()),
    (moving(lease=lease(), pods=(pod(),)), Wait()),
    # A reason.
    (moving(pods=(pod(),)), CreateTarget(2, Reason(Trigger.DRAIN))),
    (moving(session=ASKED, node=OPEN, pods=(pod(),)), CreateTarget(2, Reason(Trigger.MANUAL))),
    (
        moving(session=ASKED_TO, node=OPEN, pods=(pod(),)),
        CreateTarget(2, Reason(Trigger.MANUAL, "m")),
    ),
    (
        moving(session=ASKED_TO, node=NodeSeen("m", cordoned=False, agent=True), pods=(pod(),)),
        Wait(),
    ),
    (moving(pods=(pod(),), move_retry_at=NOW + 5), Wait(NOW + 5)),
    # A target.
    (moving(pods=(pod(), WAITS), unfit=("m",)), Wait()),
    (moving(pods=(pod(), WAITS), unfit=("m", "o")), Wait()),
    (moving(pods=(pod(), WAITS), unfit=("o",)), CancelMove(WAITS)),
    (moving(pods=(pod(), replace(WAITS, node="o"))), Wait()),
    (moving(pods=(pod(), replace(WAITS, trouble=None))), Wait()),
    (moving(pods=(pod(), replace(TARGET, up=False))), Wait()),
    (moving(pods=(pod(), replace(TARGET, deleting=True))), Wait()),
    (
        moving(pods=(pod(), replace(TARGET, finished=True))),
        AbandonMove(
            replace(TARGET, finished=True), "pod build-2 ended before the session arrived in it"
        ),
    ),
    (moving(), CreateCheckpoint(1, TARGET, Trigger.DRAIN)),
    (moving(checkpoint=order("Pending")), Wait()),
    (moving(checkpoint=order("Transferring")), Wait()),
    (moving(checkpoint=order("Failed", "strace is attached")),
     AbandonMove(TARGET, "strace is attached")),
    (
        moving(pods=(pod(image="a@sha256:1"), replace(TARGET, image="a@sha256:2"))),
        AbandonMove(
            replace(TARGET, image="a@sha256:2"),
            "m has another image by that name: a@sha256:2 instead of a@sha256:1. Name the image by"
            " its digest",
        ),
    ),
    # It arrived: the former pod goes, by the rows for older epochs.
    (
        moving(lease=lease(2, "q/1", started="2", moved="1"), high_water=2),
        DeletePods((("build-1", "p1"),)),
    ),
    # Its host was lost on the way: another incarnation begins, and the pod that waits goes first.
    (moving(may_take=True), TakeOver(2, Cause.HOST_LOST)),
    (moving(lease=lease(2, ""), pods=(TARGET,), high_water=2), DeletePods((("build-2", "p2"),))),
    (
        moving(lease=lease(2, ""), pods=(replace(TARGET, deleting=True),), high_water=2),
        Wait(),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("picture", "step"), ROWS)
def test_rows(picture: Observed, step: Step) -> None:
    assert decide(picture) == step


def test_a_session_that_is_over_leaves_no_target() -> None:
    over = session(status={"phase": "Ended", "endedAt": "2026-01-01T23:59:00Z", "epoch": 1})
    found = decide(moving(session=over, lease=lease(released=True), budget=None))
    assert found == DeletePods((("build-2", "p2"),))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("3", (3, "")),
        ("3/n1", (3, "n1")),
        ("", None),
        ("x/n1", None),
        ("-1", None),
        ("3/", (3, "")),
    ],
)
def test_what_was_asked(text: str, found: tuple[int, str] | None) -> None:
    assert session(metadata={"annotations": {names.MOVE: text}}).asked_to_move == found


def test_the_phase_while_it_moves_and_after() -> None:
    assert status.phase_of(moving(checkpoint=order("Dumping")), Wait()) is Phase.MOVING
    assert status.phase_of(moving(checkpoint=order("Failed")), Wait()) is Phase.RUNNING
    arrived = moving(lease=lease(2, "q/1", started="2", moved="1"), high_water=2)
    made = status.status_of(arrived, Wait())
    fresh = next(c for c in made["conditions"] if c["type"] == "Fresh")
    assert (fresh["status"], fresh["reason"]) == ("False", "Moved")


def test_connections_that_did_not_come_along_are_said() -> None:
    cut = json.dumps([["10.1.0.2:5000", "10.9.9.9:443"], ["\x1b[2J", "x"]])
    arrived = moving(lease=lease(2, "q/1", started="2", moved="1", cut=cut), high_water=2)
    made = status.status_of(arrived, Wait())
    assert made["cutConnections"][0] == {"local": "10.1.0.2:5000", "remote": "10.9.9.9:443"}
    assert "\x1b" not in made["cutConnections"][1]["local"]
    (said,) = [one for one in events.between({}, made) if one.reason is Said.CONNECTIONS_CUT]
    assert "10.1.0.2:5000 to 10.9.9.9:443" in said.message
    assert not [one for one in events.between(made, made) if one.reason is Said.CONNECTIONS_CUT]
    for broken in ("", "{}", "[1]", '[["a"]]', "nonsense"):
        odd = moving(lease=lease(2, "q/1", started="2", moved="1", cut=broken), high_water=2)
        assert "cutConnections" not in status.status_of(odd, Wait())


KVM = {"pid": 41, "command": "qemu", "what": "has /dev/kvm open", "advice": "quit it"}
TOLD = json.dumps([KVM])
STUCK = lease(started="1", blockers=TOLD)


@pytest.mark.parametrize(
    ("picture", "reason"),
    [
        (moving(), "AgentReady"),
        (moving(node=None), "NoNodeAgent"),
        (moving(move_problem="a device is open"), "MoveFailed"),
        (moving(lease=STUCK, node=OPEN, pods=(pod(),)), "Blocked"),
        (moving(lease=STUCK, node=None), "NoNodeAgent"),
        (moving(lease=STUCK, move_problem="a device is open"), "MoveFailed"),
        (moving(lease=lease(started="", blockers=TOLD)), "AgentReady"),
        (
            moving(pods=(pod(), replace(TARGET, up=False, trouble=("Unschedulable", "0/2 nodes")))),
            "NoTarget",
        ),
    ],
)
def test_movable(picture: Observed, reason: str) -> None:
    made = status.status_of(picture, Wait())
    movable = next(c for c in made["conditions"] if c["type"] == "Movable")
    assert movable["reason"] == reason
    assert movable["status"] == ("True" if reason == "AgentReady" else "False")


def movable_of(picture: Observed) -> dict[str, Any]:
    made = status.status_of(picture, Wait())
    return next(c for c in made["conditions"] if c["type"] == "Movable")


def test_how_much_was_sent_is_shown() -> None:
    def shown(phase: str, sent: int = 0, expected: int = 0) -> dict[str, Any]:
        under_way = replace(order(phase), sent=sent, expected=expected)
        made: dict[str, Any] = status.status_of(moving(checkpoint=under_way), Wait())["move"]
        return made

    assert shown("Pending") == {"to": "m", "step": "Preparing", "progress": "preparing"}
    ahead = shown("Pending", sent=5 << 20)
    assert (ahead["step"], ahead["progress"]) == ("Copying", "copying 5 MiB")
    assert shown("Dumping", sent=412 << 20, expected=1024 << 20) == {
        "to": "m", "step": "Frozen", "progress": "copying 412/1024 MiB",
        "sentBytes": 412 << 20, "expectedBytes": 1024 << 20,
    }  # fmt: skip
    more = shown("Dumping", sent=9 << 20, expected=8 << 20)
    assert more["progress"] == "copying 9/9 MiB"
    assert "move" not in status.status_of(moving(node=OPEN, pods=(pod(),)), Wait())


def test_the_steps_of_a_move_are_events_and_its_figures_too() -> None:
    here, there = moving(node=OPEN, pods=(pod(),)), pod(2, node="m", restores=True, up=True)
    came = lease(2, started="2", moved="1")
    over = replace(
        order("Complete"), target=there.uid, node="n", epoch=1, size=412_000_000, freeze=1.93
    )
    stories = [
        here,
        moving(checkpoint=order("Pending")),
        moving(checkpoint=replace(order("Dumping"), sent=1, expected=412_000_000)),
        moving(checkpoint=replace(order("Dumping"), sent=2, expected=412_000_000)),
        moving(lease=came, node=OPEN, pods=(there,)),
        moving(lease=came, node=OPEN, pods=(there,), orders=(over,)),
    ]
    said: list[tuple[str, str]] = []
    before: dict[str, Any] = {}
    for picture in stories:
        told = replace(picture.session, status={**picture.session.status, **before})
        after = status.status_of(replace(picture, session=told), Wait())
        found = events.between(before, after) if before else []
        said += [(one.reason.value, one.message) for one in found]
        before = after
    assert said == [
        ("Moving", "it is moving to m"),
        ("MoveFrozen", "it stands still while 412 MB are copied"),
        ("Moved", "it goes on, alive, on node m"),
        ("MoveComplete", "412 MB came along from node n, and it stood still for 1.93 s"),
    ]
    assert before["lastMove"]["freezeSeconds"] == 1.93
    assert "move" not in before


def test_without_the_filter_it_says_what_it_loses() -> None:
    without = moving(session=session(spec={"move": {"syscallFilter": False}}))
    assert "io_uring" in movable_of(without)["message"]
    assert "io_uring" not in movable_of(moving())["message"]


def test_what_blocks_a_move_is_said_with_what_to_do() -> None:
    message = movable_of(moving(lease=STUCK, node=OPEN))["message"]
    assert "process 41 (qemu) has /dev/kvm open; quit it" in message
    odd = [{"pid": 7, "command": "\x1b]0;x\x07vi", "what": "\x1b[2Jy" * 999, "advice": "\u202e"}]
    hostile = moving(lease=lease(started="1", blockers=json.dumps(odd * 50)), node=OPEN)
    message = movable_of(hostile)["message"]
    assert message.isprintable()
    assert len(message) < 2000
    assert message.count("process 7 (vi)") == 3
    endless = TOLD.replace("41", "1e999")
    for broken in ("", "{}", "[1]", "[{}]", "nonsense", "7", '[{"pid": "x"}]', "null", endless):
        seen_ = moving(lease=lease(started="1", blockers=broken), node=OPEN)
        assert movable_of(seen_)["reason"] == "AgentReady"


def test_what_blocks_a_move_is_news_once_and_so_is_its_end() -> None:
    free, stuck = moving(node=OPEN, pods=(pod(),)), moving(lease=STUCK, node=OPEN, pods=(pod(),))
    before, after = status.status_of(free, Wait()), status.status_of(stuck, Wait())
    (said,) = [one for one in events.between(before, after) if "MOV" in one.reason.name]
    assert (said.reason, said.warning) == (Said.NOT_MOVABLE, False)
    assert "process 41 (qemu)" in said.message
    assert not [one for one in events.between(after, after) if "MOV" in one.reason.name]
    (said,) = [one for one in events.between(after, before) if "MOV" in one.reason.name]
    assert said.reason is Said.MOVABLE


def test_a_node_that_takes_none_says_whose_processor_lacks_something() -> None:
    stuck = replace(TARGET, up=False, trouble=("Unschedulable", "0/2 nodes"))
    found = movable_of(moving(pods=(pod(), stuck), unfit=("m",)))
    assert found["reason"] == "NoTarget"
    assert "0/2 nodes. The processors of m lack" in found["message"]


def made_target(to: str = "", source: PodSeen | None = None, **spec: Any) -> dict[str, Any]:
    asked = session(spec=spec)
    return pods.target(asked, 2, source or pod(), to, SETTINGS)


def terms(made: dict[str, Any]) -> list[dict[str, Any]]:
    affinity = made["spec"]["affinity"]["nodeAffinity"]
    found = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert isinstance(found, list)
    return found


ABLE = {"key": names.AGENT, "operator": "In", "values": ["ready"]}


def test_the_target_is_elsewhere_and_waits() -> None:
    made = made_target()
    assert made["metadata"]["annotations"] == {names.RESTORE: "1"}
    assert terms(made) == [
        {
            "matchExpressions": [ABLE],
            "matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["n"]}],
        }
    ]
    sidecar = made["spec"]["initContainers"][-1]
    assert {"name": "HOLDFAST_RESTORE", "value": "1"} in sidecar["env"]


def test_the_target_can_be_chosen() -> None:
    assert terms(made_target("m"))[0]["matchFields"] == [
        {"key": "metadata.name", "operator": "In", "values": ["m"]}
    ]


def test_the_target_is_where_the_processor_has_what_the_session_may_use() -> None:
    made = pods.target(session(), 2, pod(), "", SETTINGS, ("a", "b"))
    fields = terms(made)[0]["matchFields"]
    assert [field["values"] for field in fields] == [["n"], ["a"], ["b"]]
    assert {field["operator"] for field in fields} == {"NotIn"}
    asked = pods.target(session(), 2, pod(), "a", SETTINGS, ("a", "b"))
    assert [field["values"] for field in terms(asked)[0]["matchFields"]] == [["a"]]


def test_what_the_template_asks_of_nodes_is_kept() -> None:
    zone = {"key": "zone", "operator": "In", "values": ["a"]}
    given = {"nodeSelectorTerms": [{"matchExpressions": [zone]}, {}]}
    rule = "requiredDuringSchedulingIgnoredDuringExecution"
    template = {
        "spec": {
            "containers": [{"name": "session", "image": "x"}],
            "affinity": {"nodeAffinity": {rule: given}},
        }
    }
    found = [term["matchExpressions"] for term in terms(made_target(template=template))]
    assert found == [[zone, ABLE], [ABLE]]


def test_the_target_runs_the_very_image_that_the_source_runs() -> None:
    made = made_target(source=pod(image="reg/app@sha256:00ff"))
    assert [c["image"] for c in made["spec"]["containers"]] == ["reg/app@sha256:00ff"]


def test_the_order_to_the_agent() -> None:
    made = objects.checkpoint(session(), CreateCheckpoint(1, TARGET, Trigger.DRAIN), pod())
    assert made["metadata"]["name"] == "build-1-p2"
    assert made["metadata"]["labels"][names.NODE] == "n"
    assert made["spec"] == {
        "sessionName": "build", "sessionUID": "u", "epoch": 1, "trigger": "Drain",
        "sourceNode": "n", "sourcePodUID": "p1", "image": "app@1",
        "targetNode": "m", "targetPodUID": "p2",
        "volumes": [], "deadlineSeconds": 60,
    }  # fmt: skip


def test_what_goes_along() -> None:
    mounts = [
        {"name": "scratch", "mountPath": "/scratch"},
        {"name": "scratch", "mountPath": "/part", "subPath": "x"},
        {"name": "config", "mountPath": "/config"},
    ]
    template = {
        "spec": {
            "volumes": [{"name": "scratch", "emptyDir": {}}, {"name": "config", "configMap": {}}],
            "containers": [{"name": "session", "image": "x", "volumeMounts": mounts}],
        }
    }
    given = session(spec={"template": template})
    made = objects.checkpoint(given, CreateCheckpoint(1, TARGET, Trigger.DRAIN), pod())
    assert made["spec"]["volumes"] == ["/scratch"]


def test_nodes_are_known_from_their_watch() -> None:
    nodes = Nodes()
    item = {"metadata": {"name": "n", "labels": {names.AGENT: "ready"}}, "spec": {}}
    cordoned = {**item, "spec": {"unschedulable": True}}
    assert nodes.watched(item, gone=False)
    assert not nodes.watched(item, gone=False), "nothing new"
    assert nodes.watched(cordoned, gone=False)
    assert nodes.get("n") == CORDONED
    assert nodes.watched(cordoned, gone=True)
    assert nodes.get("n") is None


def node_item(name: str, cpu: str = "", agent: str = "ready") -> dict[str, Any]:
    meta = {"name": name, "labels": {names.AGENT: agent}, "annotations": {names.AGENT_CPU: cpu}}
    return {"metadata": meta, "spec": {}}


def test_whose_processor_lacks_something() -> None:
    nodes = Nodes()
    said = {
        "own": "x86_64 d1 avx sse",
        "same": "x86_64 d1 avx sse",
        "more": "x86_64 d2 avx avx512 sse",
        "less": "x86_64 d3 sse",
        "other": "aarch64 d4 avx sse",
        "silent": "",
    }
    for name, cpu in said.items():
        nodes.watched(node_item(name, cpu), gone=False)
    nodes.watched(node_item("not ready", "x86_64 d3 sse", "problem"), gone=False)
    assert nodes.unfit("own") == ("less", "other")
    assert nodes.unfit("less") == ("other",)
    assert nodes.unfit("silent") == nodes.unfit("unknown") == ()
    assert nodes.watched(node_item("less", "x86_64 d1 avx sse"), gone=False), "it was upgraded"
    assert nodes.unfit("own") == ("other",)
