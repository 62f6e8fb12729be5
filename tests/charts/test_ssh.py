"""SSH in the chart: nothing unless asked for; then a port, keys, and a host key that stays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast_gateway.cluster_settings import Settings

Render = Callable[..., list[dict[str, Any]]]


def found(items: list[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    (item,) = [one for one in items if one["kind"] == kind and one["metadata"]["name"] == name]
    return item


def with_ssh(render: Render, **more: Any) -> list[dict[str, Any]]:
    return render(gateway={"ssh": {"enabled": True, **more}}, networkPolicy={"enabled": True})


def pod(items: list[dict[str, Any]]) -> dict[str, Any]:
    spec: dict[str, Any] = found(items, "Deployment", "holdfast-gateway")["spec"]["template"][
        "spec"
    ]
    return spec


def test_it_is_off_by_default(render: Render) -> None:
    items = render(networkPolicy={"enabled": True})
    assert not [one for one in items if "ssh" in one["metadata"]["name"]]
    (container,) = pod(items)["containers"]
    assert "ssh" not in str([container["ports"], container["volumeMounts"], pod(items)["volumes"]])
    assert "2222" not in str(items)
    env = {one["name"]: one.get("value", "") for one in container["env"]}
    assert Settings.from_env(env).ssh is False


def test_a_port_from_the_service_to_the_gateway(render: Render) -> None:
    items = with_ssh(render)
    (container,) = pod(items)["containers"]
    env = {one["name"]: one.get("value", "") for one in container["env"]}
    settings = Settings.from_env(env)
    assert settings.ssh
    ports = {one["name"]: one["containerPort"] for one in container["ports"]}
    assert ports["ssh"] == settings.ssh_port
    service = found(items, "Service", "holdfast-gateway")
    assert {"name": "ssh", "port": 22, "targetPort": "ssh", "protocol": "TCP"} in (
        service["spec"]["ports"]
    )
    policy = found(items, "NetworkPolicy", "holdfast-gateway")
    assert {"port": "ssh", "protocol": "TCP"} in policy["spec"]["ingress"][0]["ports"]


def test_its_files_are_where_the_gateway_looks(render: Render) -> None:
    items = with_ssh(render)
    (container,) = pod(items)["containers"]
    folder = Settings.from_env({}).ssh_folder
    mounts = {one["mountPath"]: one["name"] for one in container["volumeMounts"]}
    volumes = {one["name"]: one for one in pod(items)["volumes"]}
    host = volumes[mounts[str(folder / "host")]]["secret"]
    assert host["secretName"] == "holdfast-gateway-ssh-host"
    assert host["items"] == [{"key": "ssh_host_key", "path": "ssh_host_key"}]
    assert volumes[mounts[str(folder / "secret")]]["secret"] == {
        "secretName": "holdfast-gateway-ssh-keys",
        "defaultMode": 0o440,
        "optional": True,
    }
    assert volumes[mounts[str(folder / "configmap")]]["configMap"] == {
        "name": "holdfast-gateway-ssh-keys",
        "optional": True,
    }


def test_ones_own_names(render: Render) -> None:
    items = with_ssh(render, keysSecret="a", keysConfigMap="b", hostKeySecret="c")
    assert not [
        one for one in items if one["kind"] == "Secret" and "ssh" in one["metadata"]["name"]
    ]
    volumes = {one["name"]: one for one in pod(items)["volumes"]}
    assert volumes["ssh-host"]["secret"]["secretName"] == "c"
    assert volumes["ssh-secret"]["secret"]["secretName"] == "a"
    assert volumes["ssh-configmap"]["configMap"]["name"] == "b"
