"""The gateway as the chart installs it."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from holdfast_gateway.cluster_settings import Settings
from holdfast_wire import uplink

from .test_chart import Run, deployed, environment, operator

Render = Callable[..., list[dict[str, Any]]]
CHART = "charts/holdfast"


def one(items: list[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    (found,) = [i for i in items if (i["kind"], i["metadata"]["name"]) == (kind, name)]
    return found


def test_the_restricted_profile_and_no_key_that_signs(render: Render) -> None:
    pod, container = deployed(render(), "gateway")
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    (keys,) = [volume for volume in pod["volumes"] if volume["name"] == "keys"]
    assert [item["key"] for item in keys["secret"]["items"]] == ["tls.crt", "tls.key"]


def test_a_certificate_for_the_names_it_is_reached_by(render: Render) -> None:
    items = render(gateway={"hosts": ["holdfast.example.com"]})
    data = one(items, "Secret", "holdfast-gateway")["data"]
    pem = {key: base64.b64decode(value) for key, value in data.items()}
    authority, leaf = (x509.load_pem_x509_certificate(pem[f"{name}.crt"]) for name in ("ca", "tls"))
    leaf.verify_directly_issued_by(authority)
    assert isinstance(leaf.public_key(), ec.EllipticCurvePublicKey)
    named = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    names = named.get_values_for_type(x509.DNSName)
    aggregated = one(items, "APIService", "v1alpha1.subresources.holdfast.dev")["spec"]
    service = aggregated["service"]
    assert base64.b64decode(aggregated["caBundle"]) == pem["ca.crt"]
    host = f"{service['name']}.{service['namespace']}.svc"
    dialled = environment(operator(items)[1])["HOLDFAST_GATEWAY"]
    assert {host, dialled.rpartition(":")[0], "holdfast.example.com"} <= set(names)
    assert dialled.endswith(f":{uplink.PORT}")


def test_how_people_sign_in(render: Render) -> None:
    told = environment(deployed(render(), "gateway")[1])
    assert not [name for name in told if name.startswith(("HOLDFAST_OIDC", "HOLDFAST_PROXY"))]
    ways = {
        "oidc": {"issuer": "https://login.example/realm", "clientId": "page"},
        "proxy": {"names": ["auth-proxy"], "caBundle": "PEM", "networks": ["10.0.0.0/8"]},
    }
    settings = Settings.from_env(environment(deployed(render(gateway=ways), "gateway")[1]))
    assert [way["kind"] for way in settings.login.to_json()["ways"]] == ["oidc", "token", "proxy"]
    assert settings.proxy_authority == "PEM"


def test_each_port_has_a_service_of_its_own(render: Render) -> None:
    """What the one for people is opened for never reaches the API server's port."""
    items = render()
    ports = {
        name: [port["targetPort"] for port in one(items, "Service", name)["spec"]["ports"]]
        for name in ("holdfast-gateway", "holdfast-gateway-front", "holdfast-gateway-uplink")
    }
    assert list(ports.values()) == [["https"], ["front"], ["uplink"]]
    assert one(items, "Service", "holdfast-gateway-uplink")["spec"]["clusterIP"] == "None"


def test_what_nothing_could_be_opened_without_stays_when_the_chart_goes(render: Render) -> None:
    """Sidecars know the gateway by its authority, people by its host key."""
    items = render(gateway={"ssh": {"enabled": True}})
    kept = {
        i["metadata"]["name"]
        for i in items
        if i["metadata"].get("annotations", {}).get("helm.sh/resource-policy") == "keep"
        and i["kind"] == "Secret"
    }
    assert kept == {"holdfast-gateway", "holdfast-gateway-ssh-host"}


def test_without_it(render: Render) -> None:
    items = render(gateway={"enabled": False})
    left = [i for i in items if "gateway" in i["metadata"]["name"] or i["kind"] == "APIService"]
    assert left == []
    assert "HOLDFAST_GATEWAY" not in environment(operator(items)[1])


def test_without_the_aggregation_layer(render: Render) -> None:
    items = render(gateway={"aggregated": False})
    assert [i["kind"] for i in items if i["kind"] == "APIService"] == []
    assert [i for i in items if i["metadata"]["name"].endswith("-front")] == []
    _pod, container = deployed(items, "gateway")
    assert environment(container)["HOLDFAST_AGGREGATED"] == "false"
    assert "front" not in [port["name"] for port in container["ports"]]


def test_a_secret_of_ones_own_needs_its_authority_told(render: Render, helm: Run) -> None:
    done = helm("template", CHART, "--set", "gateway.tls.existingSecret=mine")
    assert done.returncode != 0
    assert "gateway.tls.caBundle" in done.stderr
    items = render(gateway={"tls": {"existingSecret": "mine", "caBundle": "PEM"}})
    assert not [i for i in items if i["metadata"]["name"] == "holdfast-gateway" and
                i["kind"] == "Secret"]  # fmt: skip
    (ca,) = [e for e in operator(items)[1]["env"] if e["name"] == "HOLDFAST_GATEWAY_CA"]
    assert ca["valueFrom"] == {"secretKeyRef": {"name": "mine", "key": "ca.crt"}}


def test_nothing_reaches_the_pods_of_sessions(render: Render) -> None:
    for values in (
        {"operator": {"watchNamespaces": ["a", "b"]}},
        {"networkPolicy": {"sessionNamespaces": ["a", "b"]}},
    ):
        policies = [i for i in render(**values) if i["kind"] == "NetworkPolicy"]
        assert [p["metadata"]["namespace"] for p in policies] == ["a", "b"]
        for policy in policies:
            assert policy["spec"] == {
                "podSelector": {
                    "matchExpressions": [{"key": "holdfast.dev/session", "operator": "Exists"}]
                },
                "policyTypes": ["Ingress"],
                "ingress": [],
            }
