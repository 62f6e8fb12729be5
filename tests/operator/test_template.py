from __future__ import annotations

from typing import Any

import pytest

from holdfast_operator.conditions import Reason
from holdfast_operator.template import command_of, refusal, reserved_keys


def spec(pod: dict[str, Any] | None = None, **session: Any) -> dict[str, Any]:
    containers = [{"name": "session", "image": "i", **session}]
    return {"command": ["sh"], "template": {"spec": {"containers": containers, **(pod or {})}}}


def test_a_plain_one_is_accepted() -> None:
    fine = spec(
        {"terminationGracePeriodSeconds": 5, "restartPolicy": "Never", "hostPID": False},
        readinessProbe={"httpGet": {"port": 80}},
        ports=[{"containerPort": 80}],
        lifecycle={"stopSignal": "SIGTERM"},
        tty=True,
        volumeMounts=[
            {"name": "w", "mountPath": "/run/holdfaster"},
            {"name": "w", "mountPath": "/run/holdfast/../x"},
            {"name": "my-holdfast", "mountPath": "/var/running"},
        ],
    )
    assert refusal(fine) is None


TOKEN = {"name": "t", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}


def mounted(path: str, kind: str = "", volume: str = "w") -> dict[str, Any]:
    """In the session's container, or in another one of that kind."""
    mounts = [{"name": volume, "mountPath": path}]
    if not kind:
        return spec(volumeMounts=mounts)
    found = spec()
    pod = found["template"]["spec"]
    pod[kind] = [*pod.get(kind, ()), {"name": "other", "volumeMounts": mounts}]
    return found


@pytest.mark.parametrize(
    ("given", "reason", "says"),
    [
        ({**spec(), "lease": {"durationSeconds": 12}}, "UnsafeLease", "13"),
        ({"command": ["sh"], "template": {}}, "NoSessionContainer", '"session"'),
        ({**spec(), "command": None}, "NoCommand", "spec.command"),
        (spec(livenessProbe={"exec": {}}), "ProbeWouldKill", "frozen session"),
        (spec(startupProbe={"exec": {}}), "ProbeWouldKill", "startupProbe"),
        # attack 33: what the kubelet runs in the container is no child of hold's
        (spec(readinessProbe={"exec": {"command": ["x"]}}), "RunsBesideHold", "readinessProbe"),
        (spec(lifecycle={"postStart": {"exec": {}}}), "RunsBesideHold", "lifecycle"),
        (spec(lifecycle={"preStop": {"sleep": {"seconds": 1}}}), "RunsBesideHold", "lifecycle"),
        (spec(restartPolicy="Always"), "RestartPolicy", "ended"),
        (spec({"hostPID": True}), "SharedNamespace", "hostPID"),
        (spec({"hostNetwork": True}), "SharedNamespace", "hostNetwork"),
        (spec({"shareProcessNamespace": True}), "SharedNamespace", "shareProcessNamespace"),
        (spec({"restartPolicy": "OnFailure"}), "RestartPolicy", "onHostLoss"),
        (spec({"volumes": [{"name": "holdfast-x", "emptyDir": {}}]}), "ReservedName", "volume"),
        (spec({"volumes": [TOKEN]}), "TokenInSession", "serviceAccountToken"),
        (spec({"initContainers": [{"name": "holdfast"}]}), "ReservedName", "container"),
        (mounted("/.holdfast"), "ReservedPath", "/.holdfast"),
        (mounted("/run/holdfast/"), "ReservedPath", "/run/holdfast"),
        (mounted("/run/./x/../holdfast-bin//y"), "ReservedPath", "/run/holdfast-bin/y"),
        (mounted("//.holdfast"), "ReservedPath", "/.holdfast"),
        (mounted("///run//holdfast"), "ReservedPath", "/run/holdfast"),
        (mounted("run/holdfast"), "ReservedPath", "/run/holdfast"),
        (mounted("/../.holdfast/."), "ReservedPath", "/.holdfast"),
        (mounted("/var/run/holdfast"), "ReservedPath", "/run/holdfast"),
        (mounted("/var/./run/holdfast-bin"), "ReservedPath", "/run/holdfast-bin"),
        (mounted("//.holdfast", "initContainers"), "ReservedPath", '"other"'),
        (mounted("/run/x/../holdfast", "containers"), "ReservedPath", '"other"'),
        (mounted("/x", "", "holdfast-token"), "ReservedName", '"session"'),
        (mounted("/x", "initContainers", "holdfast-token"), "ReservedName", "the token"),
        (mounted("/x", "containers", "holdfast-hold"), "ReservedName", '"holdfast-hold"'),
        (mounted("/x", "ephemeralContainers", "holdfast-run"), "ReservedName", '"other"'),
    ],
)
def test_refused(given: dict[str, Any], reason: str, says: str) -> None:
    found = refusal(given)
    assert found is not None
    assert found.reason == reason
    assert says in found.message
    assert Reason(found.reason)  # is a documented one


def test_the_command() -> None:
    assert command_of(spec()) == ["sh"]
    own = {**spec(command=["a"], args=["b"]), "command": None}
    assert command_of(own) == ["a", "b"]
    # args alone belong to an ENTRYPOINT that nobody here can see.
    assert command_of({**spec(args=["b"]), "command": None}) == []


def test_reserved_keys_are_named_once() -> None:
    given = spec()
    given["template"]["metadata"] = {
        "labels": {"holdfast.dev/epoch": "1", "app": "x"},
        "annotations": {"holdfast.dev/epoch": "1", "holdfast.dev/a": "2"},
    }
    assert reserved_keys(given) == ("holdfast.dev/a", "holdfast.dev/epoch")
