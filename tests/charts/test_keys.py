"""No template makes a key (attack 40): Jobs do, with rights to named objects alone."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast_operator import key_maker
from holdfast_operator.key_maker import Wanted

CHART = Path(__file__).parents[2] / "charts" / "holdfast"
Render = Callable[..., list[dict[str, Any]]]
Run = Callable[..., "subprocess.CompletedProcess[str]"]
RANDOM = re.compile(
    r"\b(lookup|gen[A-Z]\w*|rand[A-Z]\w*|uuidv4|now|date\w*|buildCustomCert|derivePassword|htpasswd)\b"
)


def test_it_renders_the_same_twice(helm: Run) -> None:
    first, second = (
        helm("template", "holdfast", str(CHART), "--set", "gateway.ssh.enabled=true")
        for _ in range(2)
    )
    assert first.returncode == 0, first.stderr
    assert first.stdout == second.stdout
    assert "kind: Secret" not in first.stdout


def test_no_template_asks_chance_the_clock_or_the_cluster() -> None:
    for file in (CHART / "templates").glob("*.*"):
        for action in re.findall(r"{{(.*?)}}", file.read_text(), re.DOTALL):
            code = re.sub(r"/\*.*?\*/|\"[^\"]*\"", "", action, flags=re.DOTALL)
            assert not RANDOM.search(code), (file.name, action)


def of(items: list[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    (found,) = [i for i in items if (i["kind"], i["metadata"]["name"]) == (kind, name)]
    return found


def test_keys_are_made_before_and_published_after(render: Render) -> None:
    hooks = render(hooks=True)
    for name, when in (
        ("make", "pre-install,pre-upgrade"),
        ("publish", "post-install,post-upgrade"),
    ):
        mine = [i for i in hooks if i["metadata"]["name"] == f"holdfast-keys-{name}"]
        assert {i["metadata"]["annotations"]["helm.sh/hook"] for i in mine} == {when}
        job = of(mine, "Job", f"holdfast-keys-{name}")
        weights = {
            i["kind"]: int(i["metadata"]["annotations"]["helm.sh/hook-weight"]) for i in mine
        }
        assert all(weights["Job"] > weight for kind, weight in weights.items() if kind != "Job")
        pod = job["spec"]["template"]["spec"]
        assert pod["serviceAccountName"] == f"holdfast-keys-{name}"
        assert pod["containers"][0]["command"] == ["holdfast-keys", name]
        for item in mine:
            kept = item["metadata"]["annotations"]["helm.sh/hook-delete-policy"]
            assert kept == "before-hook-creation,hook-succeeded"


def test_the_jobs_touch_named_objects_alone(render: Render) -> None:
    hooks = render(hooks=True)
    secrets = set(key_maker.names_of(Wanted("holdfast-system", "holdfast")))
    for name in ("make", "publish"):
        for rule in of(hooks, "Role", f"holdfast-keys-{name}")["rules"]:
            if rule["verbs"] == ["create"]:
                assert name == "make"
                continue
            assert set(rule["resourceNames"]) in (secrets, {"holdfast-node-ca"})
            assert "list" not in rule["verbs"]
    rules = of(hooks, "ClusterRole", "holdfast-keys-publish")["rules"]
    assert [rule["resourceNames"] for rule in rules] == [
        ["holdfast-webhook"], [key_maker.API_SERVICE],
    ]  # fmt: skip


def test_only_the_operator_has_the_keys(render: Render) -> None:
    users = [
        item["metadata"]["name"]
        for item in render()
        for volume in item.get("spec", {}).get("template", {}).get("spec", {}).get("volumes", ())
        if item["kind"] in ("Deployment", "DaemonSet")
        and volume.get("secret", {}).get("secretName") == "holdfast-keys"
    ]
    assert users == ["holdfast"]


def test_ones_own_secret(render: Render, helm: Run) -> None:
    items = render(keys={"existingSecret": "mine", "caBundle": "PEM"})
    assert of(items, "ConfigMap", "holdfast-node-ca")["data"] == {"ca-bundle.crt": "PEM"}
    volumes = of(items, "Deployment", "holdfast")["spec"]["template"]["spec"]["volumes"]
    (keys,) = [volume for volume in volumes if volume["name"] == "keys"]
    assert keys["secret"]["secretName"] == "mine"
    done = helm("template", "holdfast", str(CHART), "--set", "keys.existingSecret=mine")
    assert "keys.existingSecret needs keys.caBundle" in done.stderr


def test_only_agents_reach_agents(render: Render) -> None:
    """Attack 41."""
    items = render()
    policy = of(items, "NetworkPolicy", "holdfast-node")["spec"]
    agents = of(items, "DaemonSet", "holdfast-node")["spec"]["selector"]
    assert policy["podSelector"] == agents
    assert policy["ingress"] == [
        {"ports": [{"port": "moves", "protocol": "TCP"}], "from": [{"podSelector": agents}]}
    ]
