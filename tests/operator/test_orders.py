"""What is ordered, and the pod that waits for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from crd_kit import crds, problems, schema_of
from holdfast_kube.client import CHECKPOINTS
from holdfast_operator import names, objects, pods
from holdfast_operator.keeps import CreateKeep
from holdfast_operator.model import PodSeen
from holdfast_operator.nodes import KEEPERS, Nodes
from holdfast_operator.notes import Restore
from holdfast_operator.orders import CheckpointSeen, Kind, Trigger
from holdfast_operator.restores import CreateBring
from holdfast_operator.times import length
from operator_kit import KEY, SETTINGS, World, session_object

from .test_decide import pod, session
from .test_keeps import DIGEST, WOKEN, ago, order

UID = "0d3f7c1e-6a52-4b0e-9d0a-0f6f3c2b1a99"


def valid(made: dict[str, Any]) -> dict[str, Any]:
    assert list(problems(schema_of(crds()["Checkpoint"]), made)) == []
    spec: dict[str, Any] = made["spec"]
    return spec


def test_a_keep() -> None:
    source = pod(3, image="a@sha256:1", uid=UID)
    step = CreateKeep(4, Trigger.SUSPEND, stops=True)
    whose = session()
    made = objects.keep(whose, step, source, ("m", "n"), whose)
    assert made["metadata"]["name"] == "build-3-k4"
    assert made["metadata"]["labels"] == {names.SESSION_LABEL: "build", names.NODE: "n"}
    assert valid(made) == {
        "sessionName": "build", "sessionUID": "u", "epoch": 3, "trigger": "Suspend",
        "sourceNode": "n", "sourcePodUID": UID, "image": "a@sha256:1", "store": "Peer",
        "then": "Stop", "keepers": ["m", "n"], "volumes": [], "deadlineSeconds": 60,
    }  # fmt: skip
    whose = session(spec={"checkpoints": {"store": "S3"}})
    forks = session(metadata={"name": "copy", "uid": "u2"})
    made = objects.keep(whose, CreateKeep(1, Trigger.FORK), source, ("m", "n"), forks)
    assert made["metadata"]["labels"][names.FORK] == "copy"
    assert made["metadata"]["annotations"] == {names.FORK: "u2"}
    assert made["metadata"]["ownerReferences"][0]["name"] == "build"
    spec = valid(made)
    assert "keepers" not in spec
    assert (spec["store"], spec["then"]) == ("S3", "RunOn")
    seen_again = CheckpointSeen.of(made)
    assert (seen_again.kind, seen_again.fork, seen_again.number) == (Kind.KEEP, "u2", 1)


def test_a_bring() -> None:
    stored = order(4, epoch=3, image="a@sha256:1", session=("other", UID))
    target = pod(5, uid="12345678-9", node="m", image="a@sha256:2")
    made = objects.bring(session(), CreateBring(stored, target, Trigger.FORK))
    assert made["metadata"]["name"] == "build-5-from-12345678"
    assert made["metadata"]["labels"][names.NODE] == "m"
    assert valid(made) == {
        "sessionName": "build", "sessionUID": "u", "epoch": 3, "trigger": "Fork",
        "image": "a@sha256:2", "targetNode": "m", "targetPodUID": "12345678-9",
        "from": {
            "checkpoint": "build-1-k4", "sessionName": "other", "sessionUID": UID,
            "digest": DIGEST, "location": "peer://m", "takenAt": ago(100),
        },
        "volumes": [], "deadlineSeconds": 60,
    }  # fmt: skip
    assert CheckpointSeen.of(made).pod == "12345678-9"


def test_a_pod_that_waits_for_a_checkpoint() -> None:
    told = replace(WOKEN, avoid="n")
    made = pods.restoring(session(), 2, order(image="a@sha256:1"), told, SETTINGS, ("old",))
    noted = {names.RESTORE: "stored/build-1-k1", names.UNFIT: "old"}
    assert made["metadata"]["annotations"] == noted
    assert made["spec"]["containers"][0]["image"] == "a@sha256:1"
    sidecar = made["spec"]["initContainers"][-1]
    assert {"name": "HOLDFAST_RESTORE", "value": "stored"} in sidecar["env"]
    affinity = made["spec"]["affinity"]["nodeAffinity"]
    (term,) = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    able = {"key": names.AGENT, "operator": "In", "values": ["ready"]}
    unfit = {"key": "metadata.name", "operator": "NotIn", "values": ["old"]}
    assert term == {"matchExpressions": [able], "matchFields": [unfit]}
    wishes = affinity["preferredDuringSchedulingIgnoredDuringExecution"]
    asked = [
        (one["weight"], one["preference"]["matchFields"][0]["operator"],
         one["preference"]["matchFields"][0]["values"])
        for one in wishes
    ]  # fmt: skip
    assert asked == [(50, "In", ["m"]), (100, "NotIn", ["n"])]
    stored = PodSeen.of({**made, "metadata": {**made["metadata"], "uid": "x"}}, "u")
    assert (stored.stored, stored.restores) == ("build-1-k1", False)


def test_what_an_older_release_stored_finds_its_hold() -> None:
    settings = replace(SETTINGS, former_image="old:1")
    made = pods.restoring(session(), 2, order(), WOKEN, settings)
    former, sidecar = made["spec"]["initContainers"]
    assert former["image"] == "old:1"
    assert former["command"] == ["/usr/local/bin/hold", "--install", f"{pods.BIN}/hold-former"]
    assert former["volumeMounts"] == [{"name": "holdfast-bin", "mountPath": pods.BIN}]
    assert former["securityContext"] == sidecar["securityContext"]
    of_this_release = pods.restoring(session(), 2, order(keyed=True), WOKEN, settings)
    assert of_this_release["spec"]["initContainers"] == [sidecar]
    assert (
        len(pods.restoring(session(), 2, order(), WOKEN, SETTINGS)["spec"]["initContainers"]) == 1
    )


def test_a_note_can_be_read_again() -> None:
    told = Restore("c", Trigger.RECOVER, "HostLost", "m", "n", 3, "t", "s", "w")
    assert Restore.of(told.encode()) == told
    for broken in ("", "{}", "[]", "3", '{"checkpoint": "c", "why": "x"}'):
        assert Restore.of(broken) is None


def test_who_keeps_it() -> None:
    nodes = Nodes()
    for number in range(12):
        labels = {names.AGENT: "ready"} if number else {}
        meta = {"name": f"n{number}", "labels": labels}
        shut = {"unschedulable": True} if number == 1 else {}
        nodes.watched({"metadata": meta, "spec": shut}, gone=False)
    found = nodes.keepers("uid", "n2")
    assert len(found) == KEEPERS
    assert found[-1] == "n2"
    assert len(set(found)) == KEEPERS
    assert not {"n0", "n1"} & set(found), "no agent; drained, and there are others"
    assert found == nodes.keepers("uid", "n2"), "stable"
    assert len({nodes.keepers(f"uid{n}", "n2")[0] for n in range(20)}) > 3


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0, "0 s"), (-5, "0 s"), (59.6, "1 min"), (250, "4 min 10 s"), (90061, "1 d 1 h")],
)
def test_lengths(seconds: float, said: str) -> None:
    assert length(seconds) == said


async def test_an_idle_session_costs_no_read_of_its_orders() -> None:
    world = World()
    world.api.put(session_object())
    await world.run(30)
    listed = len(world.api.listed)
    for _ in range(50):
        await world.reconcile(KEY)
    assert len(world.api.listed) == listed == 1


async def test_an_order_that_is_shown_while_they_are_listed_is_not_missed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    world.api.put(session_object())
    await world.run(30)
    world.look.stirred(KEY)
    list_all = world.api.list_all

    async def meanwhile(kind: Any, *args: Any, **more: Any) -> Any:
        found = await list_all(kind, *args, **more)
        if kind is CHECKPOINTS:
            world.look.stirred(KEY)
            monkeypatch.setattr(world.api, "list_all", list_all)
        return found

    monkeypatch.setattr(world.api, "list_all", meanwhile)
    listed = len(world.api.listed)
    for _ in range(3):
        await world.reconcile(KEY)
    assert len(world.api.listed) == listed + 2
