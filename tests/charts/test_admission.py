"""The admission policies are whole, name the right accounts, and concern nobody else. What their
expressions refuse, a real API server says in e2e/test_admission.py (attacks 30, 34, 38 and 39)."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast_operator import names
from holdfast_operator.leader import NAME

CHART = Path(__file__).parents[2] / "charts" / "holdfast"
Run = Callable[..., "subprocess.CompletedProcess[str]"]
Render = Callable[..., list[dict[str, Any]]]
POLICY = "ValidatingAdmissionPolicy"
ACCOUNTS = {
    "agents": "system:serviceaccount:holdfast-system:holdfast-node",
    "gateway": "system:serviceaccount:holdfast-system:holdfast-gateway",
    "operator": "system:serviceaccount:holdfast-system:holdfast",
    "pods": "system:serviceaccount:holdfast-system:holdfast",
}


def policies(items: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {
        item["metadata"]["name"].removeprefix("holdfast-"): item["spec"]
        for item in items
        if item["kind"] == POLICY
    }


def expressions(spec: dict[str, Any]) -> str:
    return "\n".join(
        one["expression"] for part in ("matchConditions", "variables", "validations")
        for one in spec.get(part, ())
    )  # fmt: skip


def test_each_policy_is_bound_and_denies(render: Render) -> None:
    items = render()
    bound = {i["spec"]["policyName"]: i["spec"] for i in items if i["kind"] == f"{POLICY}Binding"}
    assert bound.keys() == {f"holdfast-{name}" for name in policies(items)}
    assert all(spec["validationActions"] == ["Deny"] for spec in bound.values())


def test_each_policy_fails_closed_and_says_why(render: Render) -> None:
    for spec in policies(render()).values():
        assert spec["failurePolicy"] == "Fail"
        for rule in spec["validations"]:
            assert rule.get("message") or rule.get("messageExpression")


@pytest.mark.parametrize("name", ACCOUNTS)
def test_a_policy_for_one_account_concerns_nobody_else(render: Render, name: str) -> None:
    condition = policies(render())[name]["matchConditions"][0]["expression"]
    assert condition == f"request.userInfo.username == '{ACCOUNTS[name]}'"


def test_the_accounts_are_those_of_this_release(render: Render) -> None:
    found = policies(render(serviceAccount={"name": "other"}, fullnameOverride="hf"))
    text = "\n".join(expressions(spec) for spec in found.values())
    for account in ("other", "hf-node", "hf-gateway"):
        assert f"'system:serviceaccount:holdfast-system:{account}'" in text


def test_policies_without_an_account_are_about_our_own_kinds_alone(render: Render) -> None:
    for name, spec in policies(render()).items():
        if name in ACCOUNTS:
            continue
        for rule in spec["matchConstraints"]["resourceRules"]:
            assert rule["apiGroups"] == [names.GROUP]


def test_they_know_the_operators_names(render: Render) -> None:
    text = expressions(policies(render())["operator"])
    for name in (names.SESSION_LABEL, names.FINALIZER, NAME, names.PREFIX):
        assert f"'{name}'" in text
    assert "'holdfast-' + variables.session" in text
    assert names.access_name("x") == "holdfast-x"


@pytest.mark.parametrize(
    ("operator", "words"),
    [
        ({}, "'kube-system', 'kube-public', 'kube-node-lease', 'holdfast-system'])"),
        ({"watchNamespaces": ["one", "two"]}, "request.namespace in ['one', 'two']"),
        ({"namespaceLabels": {"a/b": "c"}},
         "namespaceObject.metadata.?labels[?'a/b'].orValue('') == 'c'"),
    ],
)  # fmt: skip
def test_what_is_served(render: Render, operator: dict[str, Any], words: str) -> None:
    found = policies(render(operator=operator))
    for name in ("operator", "sessions"):
        assert words in expressions(found[name])


def test_they_can_be_left_out(render: Render) -> None:
    items = render(admission={"policies": False})
    assert not [item for item in items if item["kind"].startswith(POLICY)]
    (deployment,) = [
        item for item in items
        if (item["kind"], item["metadata"]["name"]) == ("Deployment", "holdfast")
    ]  # fmt: skip
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert {"name": "HOLDFAST_ADMISSION_POLICIES", "value": "false"} in container["env"]


def test_an_api_server_without_them_gets_none(helm: Run) -> None:
    old = helm("template", "holdfast", str(CHART), "--kube-version", "1.29.4")
    assert old.returncode == 0, old.stderr
    assert POLICY not in old.stdout
    new = helm("template", "holdfast", str(CHART), "--kube-version", "1.30.0")
    assert POLICY in new.stdout
