"""What a Session object says, also one that says little or nonsense."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.facts import Phase, facts, manifest, moment

FULL: dict[str, Any] = {
    "metadata": {"name": "b", "namespace": "team", "creationTimestamp": "2026-01-01T00:00:00Z"},
    "spec": {"command": ["bash", "-l"]},
    "status": {
        "phase": "Running", "activity": "prompt", "nodeName": "n1", "podName": "b-2", "epoch": 2,
        "turn": "ana", "clients": 1, "move": {"progress": "copying 1/2 MiB"},
        "lastActiveTime": "2026-01-01T00:00:10.5Z",
        "conditions": [{"type": "Ready", "status": "True", "reason": "Up", "message": "m"}],
    },
}  # fmt: skip


def test_all_of_it() -> None:
    found = facts(FULL)
    assert (found.name, found.namespace, found.phase, found.pod) == ("b", "team", "Running", "b-2")
    assert (found.epoch, found.clients, found.turn, found.node) == (2, 1, "ana", "n1")
    assert found.move == "copying 1/2 MiB"
    assert found.active is not None
    assert found.created is not None
    assert found.active - found.created == 10.5
    assert found.reachable
    assert not found.over
    assert found.trouble() == ""
    assert found.to_json()["conditions"] == [
        {"type": "Ready", "status": "True", "reason": "Up", "message": "m"}
    ]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"metadata": None, "spec": 3, "status": []},
        {"metadata": {"name": 1}, "status": {"exit": 1, "lastLines": "x", "conditions": [1]}},
    ],
)
def test_little_or_nonsense(body: dict[str, Any]) -> None:
    found = facts(body)
    assert found.phase == Phase.PENDING
    assert not found.reachable
    assert found.exit is None
    assert found.conditions == []


def test_trouble_is_the_condition_that_tells_most() -> None:
    conditions = [
        {"type": "Movable", "status": "False", "reason": "NoNodeAgent", "message": "no"},
        {"type": "Ready", "status": "False", "reason": "Unschedulable", "message": ""},
        {"type": "Quarantined", "status": "False", "reason": "No", "message": "not"},
    ]
    assert facts({"status": {"conditions": conditions}}).trouble() == "Unschedulable"
    conditions[2]["status"] = "True"
    assert facts({"status": {"conditions": conditions}}).trouble() == "not"


@pytest.mark.parametrize(
    ("status", "said"),
    [
        ({"phase": "Ended", "exit": {"code": 3}}, "exit code 3"),
        ({"phase": "Ended", "exit": {"code": None, "signal": 9}}, "killed by SIGKILL"),
        ({"phase": "Ended"}, "its exit code is not known"),
        (
            {
                "phase": "Failed",
                "conditions": [{"type": "Accepted", "status": "False", "message": "no command"}],
            },
            "no command",
        ),
    ],
)
def test_endings(status: dict[str, Any], said: str) -> None:
    found = facts({"status": status})
    assert found.over
    assert found.ending() == said


def test_moments() -> None:
    assert moment("1970-01-01T00:01:00Z") == 60.0
    assert moment("1970-01-01T01:01:00+01:00") == 60.0
    for nothing in (None, "", "soon", 5, "1970-01-01T00:00:00"):
        assert moment(nothing) is None


def test_the_manifest_fits_the_restricted_profile() -> None:
    assert manifest("b", "debian", ["bash"], (120, 40), 10_000) == {
        "apiVersion": "holdfast.dev/v1alpha1",
        "kind": "Session",
        "metadata": {"name": "b"},
        "spec": {
            "command": ["bash"],
            "terminal": {"columns": 120, "rows": 40, "scrollbackLines": 10_000},
            "template": {
                "spec": {
                    "securityContext": {
                        "runAsNonRoot": True,
                        "runAsUser": 1000,
                        "runAsGroup": 1000,
                        "seccompProfile": {"type": "RuntimeDefault"},
                    },
                    "containers": [
                        {
                            "name": "session",
                            "image": "debian",
                            "env": [{"name": "HOME", "value": "/tmp"}],  # noqa: S108
                            "securityContext": {
                                "allowPrivilegeEscalation": False,
                                "capabilities": {"drop": ["ALL"]},
                            },
                        }
                    ],
                }
            },
        },
    }
