"""The chart renders, refuses wrong values, and installs what it should and nothing else."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from holdfast_operator.settings import Settings

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "holdfast"

Run = Callable[..., "subprocess.CompletedProcess[str]"]
Render = Callable[..., list[dict[str, Any]]]
Named = dict[tuple[str, str], dict[str, Any]]

VALUES: dict[str, dict[str, Any]] = {
    "default": {},
    "no CRDs": {"crds": {"install": False}},
    "two namespaces": {"operator": {"watchNamespaces": ["one", "two"]}},
    "no roles for people": {"rbac": {"userRoles": False}},
    "everything": {
        "image": {"repository": "mirror/holdfast", "digest": "sha256:" + "0" * 64},
        "imagePullSecrets": [{"name": "pull"}],
        "operator": {
            "replicas": 2,
            "logLevel": "debug",
            "extraEnv": [{"name": "LD_PRELOAD", "value": "/x.so"}, {"name": "ODD", "value": ""}],
            "podLabels": {"team": "infra"},
            "podAnnotations": {"note": "yes"},
            "nodeSelector": {"disk": "fast"},
            "tolerations": [{"operator": "Exists"}],
            "affinity": {"nodeAffinity": {}},
            "topologySpreadConstraints": [{"maxSkew": 1}],
            "priorityClassName": "system-cluster-critical",
        },
        "sidecar": {
            "image": "mirror/sidecar:1",
            "tokenAudience": "holdfast",
            "extraEnv": [{"name": "NO_PROXY", "value": '$(HOST),"<x>"'}],
        },
        "serviceAccount": {"name": "other", "annotations": {"a": "b"}},
        "metrics": {"podMonitor": {"enabled": True, "labels": {"release": "prometheus"}}},
        "networkPolicy": {"enabled": True, "from": [{"namespaceSelector": {}}]},
        "fullnameOverride": "hf",
    },
}


POLICIES = ("agents", "gateway", "operator", "orders", "pods", "sessions")


def by_name(items: list[dict[str, Any]]) -> Named:
    found = {(item["kind"], item["metadata"]["name"]): item for item in items}
    kinds = [item["kind"] for item in items]
    assert len(found) == len(items) or kinds.count("RoleBinding") > 2
    return found


def operator(items: list[dict[str, Any]]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The operator's pod and its container."""
    return deployed(items, "operator")


def deployed(items: list[dict[str, Any]], part: str) -> tuple[dict[str, Any], dict[str, Any]]:
    label = "app.kubernetes.io/component"
    (deployment,) = [
        item
        for item in items
        if item["kind"] == "Deployment" and item["metadata"]["labels"][label] == part
    ]
    pod: dict[str, Any] = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    return pod, container


def environment(container: dict[str, Any]) -> dict[str, Any]:
    return {
        item["name"]: item.get("value", next(iter(item.get("valueFrom", {}).values()), None))
        for item in container["env"]
    }


def test_lint(helm: Run) -> None:
    done = helm("lint", "--strict", str(CHART))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", VALUES)
def test_every_manifest_is_whole(render: Render, name: str) -> None:
    for item in render(**VALUES[name]):
        assert item["apiVersion"]
        assert item["kind"]
        assert item["metadata"]["labels"]["app.kubernetes.io/part-of"] == "holdfast"
        assert item["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "Helm"


def test_what_is_installed(render: Render) -> None:
    assert sorted(by_name(render())) == [
        ("APIService", "v1alpha1.subresources.holdfast.dev"),
        ("ClusterRole", "holdfast"),
        ("ClusterRole", "holdfast-gateway"),
        ("ClusterRole", "holdfast-moderator"),
        ("ClusterRole", "holdfast-node"),
        ("ClusterRole", "holdfast-nodes"),
        ("ClusterRole", "holdfast-observer"),
        ("ClusterRole", "holdfast-user"),
        ("ClusterRole", "holdfast-view"),
        ("ClusterRoleBinding", "holdfast"),
        ("ClusterRoleBinding", "holdfast-gateway"),
        ("ClusterRoleBinding", "holdfast-gateway-reviews"),
        ("ClusterRoleBinding", "holdfast-node"),
        ("ClusterRoleBinding", "holdfast-nodes"),
        ("CustomResourceDefinition", "checkpoints.holdfast.dev"),
        ("CustomResourceDefinition", "sessions.holdfast.dev"),
        ("DaemonSet", "holdfast-node"),
        ("Deployment", "holdfast"),
        ("Deployment", "holdfast-gateway"),
        ("NetworkPolicy", "holdfast"),
        ("NetworkPolicy", "holdfast-gateway"),
        ("NetworkPolicy", "holdfast-node"),
        ("PodDisruptionBudget", "holdfast-gateway"),
        ("Role", "holdfast-leader"),
        ("RoleBinding", "holdfast-gateway-front"),
        ("RoleBinding", "holdfast-leader"),
        ("Service", "holdfast-gateway"),
        ("Service", "holdfast-gateway-front"),
        ("Service", "holdfast-gateway-uplink"),
        ("Service", "holdfast-webhook"),
        ("ServiceAccount", "holdfast"),
        ("ServiceAccount", "holdfast-gateway"),
        ("ServiceAccount", "holdfast-node"),
        *(("ValidatingAdmissionPolicy", f"holdfast-{name}") for name in POLICIES),
        *(("ValidatingAdmissionPolicyBinding", f"holdfast-{name}") for name in POLICIES),
        ("ValidatingWebhookConfiguration", "holdfast-webhook"),
    ]


def test_optional_kinds(render: Render) -> None:
    items = by_name(render(**VALUES["everything"]))
    monitor = items["PodMonitor", "hf"]["spec"]
    policy = items["NetworkPolicy", "hf"]["spec"]
    selector = items["Deployment", "hf"]["spec"]["selector"]
    assert monitor["selector"] == policy["podSelector"] == selector
    assert monitor["podMetricsEndpoints"] == [
        {"port": "http", "path": "/metrics", "interval": "30s"}
    ]
    assert policy["ingress"] == [
        {"ports": [{"port": "http", "protocol": "TCP"}], "from": [{"namespaceSelector": {}}]},
        {"ports": [{"port": "webhook", "protocol": "TCP"}]},
    ]


def test_crds_are_upgraded_and_kept(render: Render) -> None:
    """Those of crds/, as templates, so that an upgrade changes and an uninstall keeps them."""
    assert not (CHART / "crds").exists()
    made = {i["metadata"]["name"]: i for i in render() if i["kind"] == "CustomResourceDefinition"}
    for path in (ROOT / "crds").glob("*.yaml"):
        source = yaml.safe_load(path.read_text())
        copy = made.pop(source["metadata"]["name"])
        assert copy["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
        assert copy["spec"] == source["spec"]
    assert not made


def test_crds_can_be_left_out(render: Render) -> None:
    kinds = {item["kind"] for item in render(**VALUES["no CRDs"])}
    assert "CustomResourceDefinition" not in kinds


def test_no_session_is_part_of_the_release(render: Render) -> None:
    for values in VALUES.values():
        for item in render(**values):
            assert not item["apiVersion"].startswith("holdfast.dev/")
            assert "ownerReferences" not in item["metadata"]
            assert "helm.sh/hook" not in item["metadata"].get("annotations", {})


def test_the_operators_environment(render: Render) -> None:
    pod, container = operator(render())
    assert container["command"] == ["holdfast-operator"]
    assert pod["serviceAccountName"] == "holdfast"
    found = environment(container)
    resources = json.loads(found.pop("HOLDFAST_SIDECAR_RESOURCES"))
    assert resources == {
        "requests": {"cpu": "10m", "memory": "48Mi"},
        "limits": {"memory": "256Mi"},
    }
    assert found == {
        "HOLDFAST_CHECKPOINTS_PER_NAMESPACE": "0",
        "HOLDFAST_CHECKPOINT_BYTES_PER_NAMESPACE": "0",
        "HOLDFAST_JOURNAL_FILES": "4",
        "HOLDFAST_JOURNAL_FILE_BYTES": "4194304",
        "HOLDFAST_IMAGE": container["image"],
        "HOLDFAST_IMAGE_PULL_POLICY": "IfNotPresent",
        "HOLDFAST_SIDECAR_ENV": "[]",
        "HOLDFAST_TOKEN_AUDIENCE": "",
        "HOLDFAST_WATCH_NAMESPACES": "",
        "HOLDFAST_LOG_LEVEL": "info",
        "HOLDFAST_NAMESPACE": {"fieldPath": "metadata.namespace"},
        "HOLDFAST_POD_NAME": {"fieldPath": "metadata.name"},
        "HOLDFAST_GATEWAY": "holdfast-gateway-uplink.holdfast-system.svc:7070",
        "HOLDFAST_GATEWAY_CA": {"name": "holdfast-gateway", "key": "ca.crt"},
        "HOLDFAST_ADMISSION_POLICIES": "true",
        "HOLDFAST_AGENT_ACCOUNT": "holdfast-system:holdfast-node",
        "HOLDFAST_WEBHOOK_KEYS": "/etc/holdfast-webhook",
    }


@pytest.mark.parametrize("part", ["operator", "gateway"])
def test_a_lost_node_is_left_at_once(render: Render, part: str) -> None:
    pod, _container = deployed(render(), part)
    for key in ("unreachable", "not-ready"):
        waits = [
            one["tolerationSeconds"]
            for one in pod["tolerations"]
            if (one["key"], one["effect"]) == (f"node.kubernetes.io/{key}", "NoExecute")
        ]
        assert waits
        assert max(waits) <= 10


def test_the_operators_environment_by_values(render: Render) -> None:
    _pod, container = operator(render(**VALUES["everything"]))
    found = environment(container)
    assert container["image"] == "mirror/holdfast@sha256:" + "0" * 64
    assert found["HOLDFAST_IMAGE"] == "mirror/sidecar:1"
    assert found["HOLDFAST_TOKEN_AUDIENCE"] == "holdfast"
    assert found["HOLDFAST_LOG_LEVEL"] == "debug"
    # After kubelet has made $ of $$, as the operator reads it.
    settings = Settings.from_env(
        {name: value.replace("$$", "$") for name, value in found.items() if isinstance(value, str)}
        | {"HOLDFAST_GATEWAY_CA": "-----BEGIN CERTIFICATE-----"}
    )
    assert settings.sidecar_env == (("NO_PROXY", '$(HOST),"<x>"'),)
    assert "$$(HOST)" in found["HOLDFAST_SIDECAR_ENV"]
    assert container["env"][-2:] == [
        {"name": "LD_PRELOAD", "value": "/x.so"},
        {"name": "ODD", "value": ""},
    ]
    _pod, container = operator(render(**VALUES["two namespaces"]))
    assert environment(container)["HOLDFAST_WATCH_NAMESPACES"] == "one,two"


def test_the_node_agents_store(render: Render) -> None:
    values = {"nodeAgent": {"store": {"path": "/data/holdfast", "sizeLimit": "5Gi"}}}
    pod = by_name(render(**values))["DaemonSet", "holdfast-node"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert environment(container)["HOLDFAST_STORE_BYTES"] == "5Gi"
    assert {"name": "store", "mountPath": "/var/lib/holdfast-node"} in container["volumeMounts"]
    assert {
        "name": "store",
        "hostPath": {"path": "/data/holdfast", "type": "DirectoryOrCreate"},
    } in pod["volumes"]


def test_the_node_agents_bucket(render: Render) -> None:
    def agent(**s3: str) -> dict[str, Any]:
        items = by_name(render(nodeAgent={"s3": s3}))
        (container,) = items["DaemonSet", "holdfast-node"]["spec"]["template"]["spec"]["containers"]
        return {item["name"]: item.get("value", item.get("valueFrom")) for item in container["env"]}

    assert not [name for name in agent() if "S3" in name or "AWS" in name]
    found = agent(bucket="kept", endpoint="https://s3.example:9000", prefix="a/b", region="eu-1")
    assert [found[f"HOLDFAST_S3_{key}"] for key in ("BUCKET", "PREFIX", "ENDPOINT", "REGION")] == [
        "kept",
        "a/b",
        "https://s3.example:9000",
        "eu-1",
    ]
    assert not [name for name in found if "AWS" in name]
    found = agent(bucket="kept", secretName="bucket")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        assert found[name] == {"secretKeyRef": {"name": "bucket", "key": name}}


def test_probes(render: Render) -> None:
    _pod, container = operator(render())
    assert container["ports"] == [
        {"name": "http", "containerPort": 8080, "protocol": "TCP"},
        {"name": "webhook", "containerPort": 8443, "protocol": "TCP"},
    ]
    assert container["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "http"}
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "http"}


@pytest.mark.parametrize("name", VALUES)
def test_restricted_profile(render: Render, name: str) -> None:
    pod, container = operator(render(**VALUES[name]))
    assert pod["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": 65532,
        "runAsGroup": 65532,
        "fsGroup": 65532,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert not {"hostNetwork", "hostPID", "hostIPC", "initContainers"} & pod.keys()
    kinds = {volume["name"]: set(volume) - {"name"} for volume in pod["volumes"]}
    assert kinds == {"tmp": {"emptyDir"}, "webhook": {"secret"}, "keys": {"secret"}}
    assert not any("hostPort" in port for port in container["ports"])
    assert {"requests", "limits"} <= container["resources"].keys()


def test_versions_are_the_packages() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert chart["version"] == chart["appVersion"] == project["version"]


WRONG_VALUES = [
    ("operator.replicas=-1", "replicas"),
    ("operator.replicas=two", "replicas"),
    ("operator.logLevel=loud", "logLevel"),
    ("operator.watchNamespaces={Not_One}", "watchNamespaces"),
    ("operator.resource.limits.memory=1Gi", "resource"),
    ("operator.resources.limits.memory=lots", "memory"),
    ("image.repository=", "repository"),
    ("image.tag=a b", "tag"),
    ("image.digest=latest", "digest"),
    ("image.pullPolicy=Sometimes", "pullPolicy"),
    ("sidecar.resources=256Mi", "resources"),
    ("sidecar.pullPolicy=", "pullPolicy"),
    ("sidecar.extraEnv[0].name=HOLDFAST_EPOCH,sidecar.extraEnv[0].value=9", "extraEnv"),
    ("sidecar.extraEnv[0].name=A B,sidecar.extraEnv[0].value=x", "extraEnv"),
    ("sidecar.extraEnv[0].name=TZ", "extraEnv"),
    ("sidecar.extraEnv[0].name=TZ,sidecar.extraEnv[0].value=3", "extraEnv"),
    ("sidecar.extraEnv.TZ=UTC", "extraEnv"),
    ("operator.extraEnv[0].name=HOLDFAST_IMAGE,operator.extraEnv[0].value=x", "extraEnv"),
    ("operator.extraEnv[0].name=TZ,operator.extraEnv[0].valueFrom.x=y", "extraEnv"),
    ("nodeAgent.store.sizeLimit=20G", "sizeLimit"),
    ("nodeAgent.store.path=var/lib", "path"),
    ("nodeAgent.s3.bucket=A", "bucket"),
    ("nodeAgent.s3.endpoint=minio:9000", "endpoint"),
    ("serviceAccount.name=Upper", "name"),
    ("crds.install=maybe", "install"),
    ("crds.keep=true", "keep"),
    ("rbac.aggregate=1", "aggregate"),
    ("metrics.podMonitor.interval=often", "interval"),
    ("networkPolicy.from=all", "from"),
    ("webhook.enabled=yes", "enabled"),
    ("webhook.clientCA=ca.crt", "clientCA"),
    ("webhook.failurePolicy=Fail", "failurePolicy"),
    ("imagePullSecrets={pull}", "imagePullSecrets"),
    ("replicaCount=2", "replicaCount"),
]


@pytest.mark.parametrize(("setting", "name"), WRONG_VALUES, ids=[w[0] for w in WRONG_VALUES])
def test_wrong_values_are_refused(helm: Run, setting: str, name: str) -> None:
    done = helm("template", "holdfast", str(CHART), "--set", setting)
    assert done.returncode != 0
    assert "values don't meet the specifications of the schema" in done.stderr
    assert name in done.stderr


def test_names_without_an_authority_are_refused(helm: Run) -> None:
    done = helm("template", "holdfast", str(CHART), "--set", "webhook.clientNames={a}")
    assert done.returncode != 0
    assert "webhook.clientNames needs webhook.clientCA" in done.stderr


def test_the_schema_knows_every_value() -> None:
    """And refuses all others, at every level whose fields are ours."""

    def compare(schema: dict[str, Any], values: Any, path: str) -> None:
        if "properties" not in schema:
            return
        assert schema["additionalProperties"] is False, path
        assert isinstance(values, dict), path
        assert values.keys() <= schema["properties"].keys(), path
        for name, value in values.items():
            compare(schema["properties"][name], value, f"{path}.{name}")

    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    compare(schema, values, "values")
    assert schema["properties"].keys() - values.keys() == {"global"}


@pytest.fixture
def notes(helm: Run, tmp_path: Path) -> Callable[..., str]:
    """helm shows them only to who has a cluster; so here they are a manifest of a copy."""
    copy = shutil.copytree(CHART, tmp_path / "chart")
    file = copy / "templates" / "NOTES.txt"
    text = f'{{{{ define "notes" }}}}{file.read_text()}{{{{ end }}}}'
    (copy / "templates" / "notes.yaml").write_text(
        text + 'kind: Notes\ntext: {{ include "notes" . | toJson }}\n'
    )

    def rendered(*settings: str) -> str:
        only = ("--show-only", "templates/notes.yaml")
        done = helm("template", "holdfast", str(copy), *only, *settings)
        assert done.returncode == 0, done.stderr
        found: str = yaml.safe_load(done.stdout)["text"]
        return found

    return rendered


def test_the_notes_can_be_pasted(notes: Callable[..., str]) -> None:
    text = notes()
    (manifest,) = re.findall(r"<<'END'\n(.*?)\nEND\n", text, flags=re.DOTALL)
    assert yaml.safe_load(manifest)["kind"] == "Session"
    words = [line.split() for line in text.splitlines() if line.startswith("kubectl")]
    assert ["kubectl", "delete", "--namespace", "default", "session/hello"] in words


def test_the_notes_name_a_namespace_that_is_watched(notes: Callable[..., str]) -> None:
    text = notes("--set", "operator.watchNamespaces={one,two}", "--set", "crds.install=false")
    assert "kubectl apply --namespace one" in text
    assert "It looks after sessions in: one, two" in text
    assert "apply them yourself" in text


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("webhook.enabled=true", "and so does the eviction of a session's pod"),
        ("webhook.enabled=false", "webhook.enabled is false"),
        ("nodeAgent.enabled=false", "nodeAgent.enabled is false"),
    ],
)
def test_the_notes_say_what_a_drain_does(
    notes: Callable[..., str], setting: str, said: str
) -> None:
    assert said in notes("--set", setting)
