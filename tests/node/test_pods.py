"""An order is about its own session's pod, or about nothing (attacks 28, 30)."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from tests.node.test_order import KEEP, MOVE, NOW, item

from holdfast_kube.client import PODS, Resource
from holdfast_node import containers, pods
from holdfast_node.order import event, read
from holdfast_node.pods import Foreign, Known, Register
from holdfast_wire.errors import NotFound

HOLD, SIDECAR, IMPOSTOR = "a" * 64, "b" * 64, "c" * 64


def running(name: str, container: str) -> dict[str, Any]:
    return {"name": name, "containerID": f"containerd://{container}", "state": {"running": {}}}


def pod() -> dict[str, Any]:
    owner = {"apiVersion": "holdfast.dev/v1alpha1", "kind": "Session", "name": "build",
             "uid": "u", "controller": True}  # fmt: skip
    mounts = [
        {"name": "data", "mountPath": "/data"},
        {"name": "part", "mountPath": "/part", "subPath": "x"},
        {"name": "node", "mountPath": "/node"},
        {"name": "holdfast-hold", "mountPath": "/.holdfast"},
    ]
    return {
        "metadata": {"namespace": "team", "name": "build-3", "uid": "p",
                     "labels": {"holdfast.dev/epoch": "3"}, "ownerReferences": [owner]},
        "spec": {
            "nodeName": "n",
            "containers": [{"name": "session", "volumeMounts": mounts}],
            "volumes": [{"name": "data", "emptyDir": {}}, {"name": "part", "emptyDir": {}},
                        {"name": "node", "hostPath": {}},
                        {"name": "holdfast-hold", "emptyDir": {}}],
        },
        "status": {
            "containerStatuses": [running("session", HOLD) | {"imageID": "i@sha256:9"}],
            "initContainerStatuses": [running("evil", IMPOSTOR), running("holdfast", SIDECAR)],
        },
    }  # fmt: skip


class Api:
    def __init__(self, found: dict[str, Any] | None) -> None:
        self.found = found
        self.asked: list[tuple[str, str]] = []

    async def get(self, kind: Resource, namespace: str, name: str) -> dict[str, Any] | None:
        assert kind is PODS
        self.asked.append((namespace, name))
        return self.found


def register(found: dict[str, Any] | None) -> tuple[Register, Api]:
    made, api = Register(), Api(found)
    made.connect(api)  # type: ignore[arg-type]
    return made, api


async def test_what_is_signed_comes_from_the_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attack 30: the order's image and volumes are not used. Attack 28: nor an impostor."""
    known: list[tuple[str, ...]] = []
    monkeypatch.setattr(containers, "know", lambda *ids: known.append(ids))
    made, api = register(pod())
    lies = {"image": "other", "volumes": ["/etc", "/proc"]}
    order = await made.bind(read(item(KEEP | lies)), "n")
    assert (order.image, order.volumes) == ("i@sha256:9", ("/data",))
    assert api.asked == [("team", "build-3")]
    assert known == [("p", HOLD, SIDECAR)]
    assert made.address("p") == {"session": "u", "namespace": "team", "epoch": 3}


@pytest.mark.parametrize(
    ("where", "value"),
    [
        (("metadata", "uid"), "another"),
        (("metadata", "namespace"), "victim"),
        (("metadata", "name"), "build-4"),
        (("metadata", "ownerReferences"), []),
        (("metadata", "ownerReferences", 0, "uid"), "another"),
        (("metadata", "ownerReferences", 0, "name"), "another"),
        (("metadata", "ownerReferences", 0, "controller"), False),
        (("metadata", "ownerReferences", 0, "apiVersion"), "v1"),
        (("metadata", "labels"), {}),
        (("spec", "nodeName"), "m"),
    ],
)
async def test_an_order_for_another_pod_is_refused(where: tuple[Any, ...], value: object) -> None:
    """Attack 30: nothing is remembered of such a pod, so nothing of it can be found."""
    found = copy.deepcopy(pod())
    at: Any = found
    for key in where[:-1]:
        at = at[key]
    at[where[-1]] = value
    made, _ = register(found)
    for spec in (KEEP, MOVE):
        with pytest.raises(Foreign) as refused:
            await made.bind(read(item(spec)), "n")
        assert "the order is not for pod" in str(refused.value)
    assert made.address("p") == {}


async def test_an_order_without_a_pod_is_refused_and_told() -> None:
    """Attack 30: the victim's pod is not in the attacker's namespace."""
    made, _ = register(None)
    order = read(item(KEEP))
    with pytest.raises(NotFound) as refused:
        await made.bind(order, "n")
    said = event(order, "n", str(refused.value), NOW)
    assert (said["reason"], said["regarding"]["name"]) == ("ForeignOrder", order.name)
    assert "there is no pod team/build-3" in said["note"]


def test_a_container_that_does_not_run_has_no_id() -> None:
    found = pod()
    found["status"]["initContainerStatuses"][1]["state"] = {"waiting": {}}
    assert Known.of(found).ids.get(pods.SIDECAR) is None
