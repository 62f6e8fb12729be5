"""Whole manifests: what is not here is not in the pod."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest

from holdfast_operator import objects, pods
from holdfast_operator.model import Session
from holdfast_operator.notes import Fresh
from operator_kit import SETTINGS, session_object

OWNER = {
    "apiVersion": "holdfast.dev/v1alpha1",
    "kind": "Session",
    "name": "build",
    "uid": "u-1",
    "controller": True,
    "blockOwnerDeletion": False,
}
SIDECAR = {
    "name": "holdfast",
    "image": "example/holdfast:1",
    "command": ["holdfast-sidecar"],
    "restartPolicy": "Always",
    "env": [
        {"name": "HOLDFAST_SESSION", "value": "build"},
        {"name": "HOLDFAST_NAMESPACE", "value": "team"},
        {"name": "HOLDFAST_SESSION_UID", "value": "u-1"},
        {"name": "HOLDFAST_EPOCH", "value": "3"},
        {"name": "HOLDFAST_LEASE_SECONDS", "value": "20"},
        {"name": "HOLDFAST_COLUMNS", "value": "120"},
        {"name": "HOLDFAST_ROWS", "value": "40"},
        {"name": "HOLDFAST_SCROLLBACK", "value": "10000"},
        {"name": "HOLDFAST_COMMAND", "value": '["bash", "-l"]'},
        {"name": "HOLDFAST_NOTICE", "value": ""},
        {
            "name": "HOLDFAST_POD_UID",
            "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}},
        },
        {"name": "HOLDFAST_POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "HOLDFAST_NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
    ],
    "lifecycle": {
        "postStart": {
            "exec": {
                "command": [
                    "/usr/local/bin/hold",
                    "--nonce-fifo",
                    "/run/holdfast/nonce",
                    "--install",
                    "/run/holdfast-bin/hold",
                ]
            }
        }
    },
    "livenessProbe": {
        "exec": {"command": ["/usr/local/bin/hold", "--probe", "/var/lib/holdfast/probe.sock"]},
        "periodSeconds": 30,
        "timeoutSeconds": 5,
        "failureThreshold": 3,
    },
    "readinessProbe": {
        "exec": {
            "command": ["/usr/local/bin/hold", "--probe-ready", "/var/lib/holdfast/probe.sock"]
        },
        "periodSeconds": 10,
        "timeoutSeconds": 5,
        "failureThreshold": 3,
    },
    "resources": {
        "requests": {"cpu": "10m", "memory": "48Mi"},
        "limits": {"memory": "256Mi"},
    },
    "securityContext": {
        "runAsNonRoot": True,
        "runAsUser": 65532,
        "runAsGroup": 65532,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    },
    "volumeMounts": [
        {"name": "holdfast-bin", "mountPath": "/run/holdfast-bin"},
        {"name": "holdfast-hold", "mountPath": "/.holdfast"},
        {"name": "holdfast-run", "mountPath": "/run/holdfast"},
        {"name": "holdfast-state", "mountPath": "/var/lib/holdfast"},
        {"name": "holdfast-token", "mountPath": "/var/run/secrets/holdfast", "readOnly": True},
    ],
}
HOLD = [
    "/run/holdfast-bin/hold",
    "--socket",
    "/.holdfast/hold.sock",
    "--shared",
    "--wait",
    "--nonce-from",
    "/run/holdfast/nonce",
    "--reserve",
    "300",
    "--movable",
    "--",
]
MOUNTS = [
    {"name": "holdfast-bin", "mountPath": "/run/holdfast-bin", "readOnly": True},
    {"name": "holdfast-hold", "mountPath": "/.holdfast"},
    {"name": "holdfast-run", "mountPath": "/run/holdfast", "readOnly": True},
]
SESSION = {
    "name": "session",
    "image": "python:3.13",
    "command": [*HOLD, "bash", "-l"],
    "volumeMounts": MOUNTS,
    "env": [
        {"name": "HOLDFAST_EPOCH_FILE", "value": "/run/holdfast/epoch"},
        {"name": "HOLDFAST_FORK_FILE", "value": "/run/holdfast/fork"},
        {"name": "HOLDFAST_SESSION", "value": "build"},
        {"name": "TERM", "value": "xterm-256color"},
    ],
}
VOLUMES = [
    {"name": "holdfast-bin", "emptyDir": {}},
    {"name": "holdfast-hold", "emptyDir": {}},
    {"name": "holdfast-run", "emptyDir": {}},
    {"name": "holdfast-state", "emptyDir": {}},
    {
        "name": "holdfast-token",
        "projected": {
            "sources": [
                {"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}},
                {
                    "configMap": {
                        "name": "kube-root-ca.crt",
                        "items": [{"key": "ca.crt", "path": "ca.crt"}],
                    }
                },
                {
                    "downwardAPI": {
                        "items": [
                            {"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}
                        ]
                    }
                },
            ]
        },
    },
]


def session(**spec: Any) -> Session:
    item = session_object(**spec)
    item["metadata"] |= {"uid": "u-1", "resourceVersion": "1"}
    return Session.of(item)


CONFINED = {"securityContext": {"allowPrivilegeEscalation": False}}


def test_the_plainest() -> None:
    assert pods.build(session(), 3, None, SETTINGS) == {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "build-3",
            "namespace": "team",
            "labels": {"holdfast.dev/session": "build", "holdfast.dev/epoch": "3"},
            "ownerReferences": [OWNER],
        },
        "spec": {
            "restartPolicy": "Never",
            "hostname": "build",
            "automountServiceAccountToken": False,
            "serviceAccountName": "holdfast-build",
            "terminationGracePeriodSeconds": 30,
            "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
            "volumes": VOLUMES,
            "initContainers": [SIDECAR],
            "containers": [SESSION | CONFINED],
        },
    }


def confined(pod: dict[str, Any], container: dict[str, Any]) -> tuple[Any, Any]:
    """What a pod and its session's container get, with these securityContexts in the template."""
    template = {
        "spec": {
            "securityContext": pod,
            "containers": [{"name": "session", "image": "i", "securityContext": container}],
        }
    }
    spec = pods.build(session(template=template), 3, None, SETTINGS)["spec"]
    return spec["securityContext"], spec["containers"][0]["securityContext"]


def test_what_a_template_says_of_confinement_stays() -> None:
    localhost = {"seccompProfile": {"type": "Localhost", "localhostProfile": "x"}, "runAsUser": 7}
    assert confined(localhost, {"runAsUser": 8}) == (
        localhost, {"runAsUser": 8, "allowPrivilegeEscalation": False},
    )  # fmt: skip
    assert confined({"runAsUser": 7}, {"allowPrivilegeEscalation": True}) == (
        {"runAsUser": 7, "seccompProfile": {"type": "RuntimeDefault"}},
        {"allowPrivilegeEscalation": True},
    )


@pytest.mark.parametrize("powers", [{"privileged": True}, {"capabilities": {"add": ["SYS_ADMIN"]}}])
def test_the_api_server_is_not_given_a_contradiction(powers: dict[str, Any]) -> None:
    assert confined({}, powers)[1] == powers


RICH = {
    "metadata": {
        "labels": {"app": "x", "holdfast.dev/epoch": "99"},
        "annotations": {"note": "y", "holdfast.dev/anything": "z"},
    },
    "spec": {
        "serviceAccountName": "own",
        "serviceAccount": "own",
        "nodeSelector": {"disk": "fast"},
        "terminationGracePeriodSeconds": 0,
        "volumes": [{"name": "work", "emptyDir": {}}],
        "initContainers": [{"name": "clone", "image": "git"}],
        "containers": [
            {
                "name": "session",
                "image": "i",
                "command": ["sh"],
                "args": ["-c", "x"],
                "tty": True,
                "stdin": True,
                "stdinOnce": True,
                "env": [
                    {"name": "TERM", "value": "vt100"},
                    {"name": "HOLDFAST_SESSION", "value": "forged"},
                ],
                "volumeMounts": [{"name": "work", "mountPath": "/data"}],
            },
            {"name": "db", "image": "postgres"},
        ],
    },
}


def test_a_rich_template() -> None:
    given = session(template=RICH, command=None)
    before = copy.deepcopy(given.spec)
    made = pods.build(given, 3, None, SETTINGS)
    assert given.spec == before
    assert made["metadata"]["labels"] == {
        "app": "x",
        "holdfast.dev/session": "build",
        "holdfast.dev/epoch": "3",
    }
    assert made["metadata"]["annotations"] == {"note": "y"}
    sidecar = copy.deepcopy(SIDECAR)
    sidecar["env"][8]["value"] = '["sh", "-c", "x"]'  # type: ignore[index]
    assert made["spec"] == {
        "restartPolicy": "Never",
        "hostname": "build",
        "automountServiceAccountToken": False,
        "serviceAccountName": "own",
        "nodeSelector": {"disk": "fast"},
        "terminationGracePeriodSeconds": 0,
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        "volumes": [{"name": "work", "emptyDir": {}}, *VOLUMES],
        "initContainers": [{"name": "clone", "image": "git"} | CONFINED, sidecar],
        "containers": [
            {
                **CONFINED,
                "name": "session",
                "image": "i",
                "command": [*HOLD, "sh", "-c", "x"],
                "env": [
                    {"name": "TERM", "value": "vt100"},
                    {"name": "HOLDFAST_EPOCH_FILE", "value": "/run/holdfast/epoch"},
                    {"name": "HOLDFAST_FORK_FILE", "value": "/run/holdfast/fork"},
                    {"name": "HOLDFAST_SESSION", "value": "build"},
                ],
                "volumeMounts": [{"name": "work", "mountPath": "/data"}, *MOUNTS],
            },
            {"name": "db", "image": "postgres"} | CONFINED,
        ],
    }


def test_settings_reach_the_sidecar() -> None:
    settings = replace(
        SETTINGS,
        image_pull_policy="Always",
        token_audience="hf",
        sidecar_resources={"limits": {}},
        sidecar_env=(("HELLO", "$(POD) you"), ("TZ", "UTC")),
    )
    made = pods.build(
        session(command=["echo", "$(HOME) $$"]), 1, Fresh("HostLost", "It costs $(5)."), settings
    )
    sidecar = made["spec"]["initContainers"][-1]
    env = {one["name"]: one.get("value") for one in sidecar["env"]}
    assert sidecar["imagePullPolicy"] == "Always"
    assert sidecar["resources"] == {"limits": {}}
    assert sidecar["env"][-2:] == [
        {"name": "HELLO", "value": "$(POD) you"},
        {"name": "TZ", "value": "UTC"},
    ]
    (user,) = [one for one in made["spec"]["containers"] if one["name"] == "session"]
    assert "HELLO" not in {one["name"] for one in user["env"]}  # the user's own to set
    assert env["HOLDFAST_NOTICE"] == "It costs $$(5)."  # kubelet makes $ of $$
    assert env["HOLDFAST_COMMAND"] == '["echo", "$$(HOME) $$$$"]'
    token = made["spec"]["volumes"][-1]["projected"]["sources"][0]["serviceAccountToken"]
    assert token == {"path": "token", "expirationSeconds": 3607, "audience": "hf"}


def test_more_variables_are_the_sidecars_alone() -> None:
    more = replace(SETTINGS, sidecar_env=(("LD_PRELOAD", "/x.so"),))
    expected = pods.build(session(), 3, None, SETTINGS)
    expected["spec"]["initContainers"][-1]["env"].append({"name": "LD_PRELOAD", "value": "/x.so"})
    assert pods.build(session(), 3, None, more) == expected


def test_access() -> None:
    meta = {
        "name": "holdfast-build",
        "namespace": "team",
        "labels": {"holdfast.dev/session": "build"},
        "ownerReferences": [OWNER],
    }
    given = session()
    assert objects.account(given) == {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": meta,
        "automountServiceAccountToken": False,
    }
    assert objects.role(given) == {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": meta,
        "rules": [
            {
                "apiGroups": ["coordination.k8s.io"],
                "resources": ["leases"],
                "resourceNames": ["build"],
                "verbs": ["get", "update"],
            },
            {
                "apiGroups": ["holdfast.dev"],
                "resources": ["sessions"],
                "resourceNames": ["build"],
                "verbs": ["get"],
            },
        ],
    }
    assert objects.binding(given)["subjects"] == [
        {"kind": "ServiceAccount", "name": "holdfast-build", "namespace": "team"}
    ]
    own = objects.binding(session(template=RICH))
    assert own["subjects"] == [{"kind": "ServiceAccount", "name": "own", "namespace": "team"}]


def test_lease_and_budget() -> None:
    assert objects.lease(session(), 1) == {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {
            "name": "build",
            "namespace": "team",
            "labels": {"holdfast.dev/session": "build"},
            "annotations": {"holdfast.dev/epoch": "1"},
            "ownerReferences": [OWNER],
        },
        "spec": {"holderIdentity": "", "leaseDurationSeconds": 20},
    }
    assert objects.budget(session(), 4)["spec"] == {
        "minAvailable": 1,
        "selector": {"matchLabels": {"holdfast.dev/session": "build", "holdfast.dev/epoch": "4"}},
    }


def test_a_lost_node_is_avoided_where_another_will_do() -> None:
    theirs = {"weight": 1, "preference": {"matchExpressions": []}}
    preferred = "preferredDuringSchedulingIgnoredDuringExecution"
    given = session()
    given.spec["template"]["spec"]["affinity"] = {"nodeAffinity": {preferred: [theirs]}}
    made = pods.build(given, 2, Fresh("HostLost", "gone", avoid="n1"), SETTINGS)
    rules = made["spec"]["affinity"]["nodeAffinity"][preferred]
    assert rules[0] == theirs
    assert rules[1]["preference"]["matchFields"][0]["values"] == ["n1"]
    unchanged = given.spec["template"]["spec"]["affinity"]["nodeAffinity"][preferred]
    assert unchanged == [theirs]
