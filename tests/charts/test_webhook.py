"""The eviction webhook's objects fit together, and can never be in the way of other pods."""

from __future__ import annotations

import re
import ssl
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from holdfast_operator import key_maker, names, webhook
from holdfast_operator.key_maker import Wanted, decide
from holdfast_operator.webhook import Keys

Render = Callable[..., list[dict[str, Any]]]


def of(items: list[dict[str, Any]], kind: str, name: str = "holdfast-webhook") -> dict[str, Any]:
    (found,) = [i for i in items if (i["kind"], i["metadata"]["name"]) == (kind, name)]
    return found


def hook(items: list[dict[str, Any]]) -> dict[str, Any]:
    (found,) = of(items, "ValidatingWebhookConfiguration")["webhooks"]
    assert isinstance(found, dict)
    return found


def env(items: list[dict[str, Any]]) -> dict[str, str]:
    (container,) = of(items, "Deployment", "holdfast")["spec"]["template"]["spec"]["containers"]
    return {one["name"]: one.get("value", "") for one in container["env"]}


def test_only_the_api_servers_certificate_is_let_in(render: Render) -> None:
    """Attack 44."""
    authority = "-----BEGIN CERTIFICATE-----"
    told = env(render(webhook={"clientCA": authority, "clientNames": ["a", "b.c"]}))
    assert told["HOLDFAST_WEBHOOK_CLIENT_CA"] == authority
    assert told["HOLDFAST_WEBHOOK_CLIENT_NAMES"] == "a,b.c"
    assert not env(render()).keys() & {
        "HOLDFAST_WEBHOOK_CLIENT_CA", "HOLDFAST_WEBHOOK_CLIENT_NAMES", "HOLDFAST_FORMER_IMAGE"
    }  # fmt: skip


def test_the_former_image(render: Render) -> None:
    assert env(render(sidecar={"formerImage": "r/h:1"}))["HOLDFAST_FORMER_IMAGE"] == "r/h:1"


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    """The Secret as kubelet shows it to the operator, as holdfast-keys makes it."""
    wanted = Wanted("holdfast-system", "holdfast")
    every = decide(wanted, dict.fromkeys(key_maker.names_of(wanted)), datetime.now(UTC))
    (data,) = [put.data for put in every if put.name == "holdfast-webhook"]
    for name, value in data.items():
        (tmp_path / name).write_bytes(value)
    return tmp_path


def test_the_operator_can_use_the_keys_and_the_api_server_trusts_them(
    render: Render, keys: Path
) -> None:
    client = hook(render())["clientConfig"]
    # What a template cannot know, holdfast-keys adds.
    assert client.keys() == {"service"}
    assert "path" not in client["service"]
    assert re.fullmatch("[0-9a-f]{40}", Keys(str(keys)).secret)
    name = f"{client['service']['name']}.{client['service']['namespace']}.svc"
    done = subprocess.run(
        ["openssl", "verify", "-CAfile", keys / "ca.crt", "-purpose", "sslserver",
         "-verify_hostname", name, keys / "tls.crt"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_the_service_leads_to_the_operator(render: Render) -> None:
    items = render()
    service = of(items, "Service")["spec"]
    deployment = of(items, "Deployment", "holdfast")["spec"]
    assert service["selector"] == deployment["selector"]["matchLabels"]
    (port,) = service["ports"]
    assert port["port"] == hook(items)["clientConfig"]["service"]["port"]
    ports = deployment["template"]["spec"]["containers"][0]["ports"]
    assert {"name": port["targetPort"], "containerPort": webhook.PORT, "protocol": "TCP"} in ports
    assert "type" not in service


def test_it_is_asked_about_evictions_alone(render: Render) -> None:
    (rule,) = hook(render())["rules"]
    assert rule == {
        "apiGroups": [""],
        "apiVersions": ["v1"],
        "operations": ["CREATE"],
        "resources": ["pods/eviction"],
        "scope": "Namespaced",
    }


def test_it_can_be_away(render: Render) -> None:
    found = hook(render())
    assert found["failurePolicy"] == "Ignore"
    assert found["sideEffects"] == "NoneOnDryRun"
    assert webhook.ANSWER_SECONDS < found["timeoutSeconds"] <= 5
    assert found["admissionReviewVersions"] == [webhook.VERSION.rpartition("/")[2]]


def test_labels_select_nothing(render: Render) -> None:
    """They would be the Eviction's own, and it has none."""
    assert "objectSelector" not in hook(render())


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        (names.pod_name("build", 1), True),
        (names.pod_name("a", 12), True),
        (names.pod_name("0-b--c", 10), True),
        ("database-3", True),  # a StatefulSet's: the operator sees that it is not ours
        ("database-0", False),
        ("web-7d4b9c6f5-x2x9k", False),
        ("build", False),
        ("build-01", False),
        ("build-1x", False),
        ("my.build-1", False),
    ],
)
def test_names_narrow_it_down(render: Render, name: str, asked: bool) -> None:
    (condition,) = hook(render())["matchConditions"]
    expression = re.fullmatch(r"request\.name\.matches\('(.*)'\)", condition["expression"])
    assert expression is not None
    assert bool(re.search(expression[1], name)) is asked


def test_only_where_the_operator_looks(render: Render) -> None:
    assert "namespaceSelector" not in hook(render())
    (only,) = hook(render(operator={"watchNamespaces": ["one", "two"]}))["namespaceSelector"][
        "matchExpressions"
    ]
    assert only == {
        "key": "kubernetes.io/metadata.name",
        "operator": "In",
        "values": ["one", "two"],
    }


@pytest.mark.parametrize("off", ["webhook", "nodeAgent"])
def test_it_can_be_left_out(render: Render, off: str) -> None:
    items = render(**{off: {"enabled": False}}, networkPolicy={"enabled": True})
    assert not any(item["metadata"]["name"] == "holdfast-webhook" for item in items)
    pod = of(items, "Deployment", "holdfast")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    own = ["tmp"] if off == "nodeAgent" else ["tmp", "keys"]
    assert [volume["name"] for volume in pod["volumes"]] == own
    assert [port["name"] for port in container["ports"]] == ["http"]
    assert not [one for one in container["env"] if "WEBHOOK" in one["name"]]
    assert len(of(items, "NetworkPolicy", "holdfast")["spec"]["ingress"]) == 1
    rule, *_certificates = of(items, "ClusterRole", "holdfast-nodes")["rules"]
    assert rule["verbs"] == ["list", "watch"]


def test_the_longest_name_fits(render: Render) -> None:
    items = render(fullnameOverride="h" * 63)
    services = [item["metadata"]["name"] for item in items if item["kind"] == "Service"]
    assert len(services) == 4
    assert max(map(len, services)) <= 63


def test_tls_is_not_older_than_it_should_be(keys: Path) -> None:
    assert Keys(str(keys)).tls.minimum_version >= ssl.TLSVersion.TLSv1_2
