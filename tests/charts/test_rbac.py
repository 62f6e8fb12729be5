"""Least privilege: every rule that the chart grants, compared as a whole. A right that is added
here has to be wanted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Render = Callable[..., list[dict[str, Any]]]
Rule = tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...], tuple[str, ...]]

READ = ("get", "list", "watch")

RULES: dict[str, list[Rule]] = {
    "holdfast": [
        (("holdfast.dev",), ("sessions",), (*READ, "patch", "update", "delete"), ()),
        (("holdfast.dev",), ("sessions/status",), ("get", "patch", "update"), ()),
        (("holdfast.dev",), ("sessions/finalizers",), ("update",), ()),
        (("holdfast.dev",), ("checkpoints",), READ, ()),
        (("",), ("pods",), (*READ, "create", "delete", "patch"), ()),
        (("coordination.k8s.io",), ("leases",), (*READ, "create", "update", "delete"), ()),
        (("",), ("serviceaccounts",), ("get", "list", "create", "delete", "patch"), ()),
        (
            ("rbac.authorization.k8s.io",),
            ("roles", "rolebindings"),
            ("get", "list", "create", "delete", "patch"),
            (),
        ),
        (
            ("policy",),
            ("poddisruptionbudgets",),
            ("get", "list", "create", "update", "delete", "patch"),
            (),
        ),
        (("", "events.k8s.io"), ("events",), ("create", "patch"), ()),
    ],
    "holdfast-cluster": [
        (("",), ("nodes",), READ, ()),
        (("",), ("namespaces",), ("list", "watch"), ()),
        (("apiextensions.k8s.io",), ("customresourcedefinitions",), READ, ()),
    ],
    "holdfast-leader": [
        (("coordination.k8s.io",), ("leases",), ("create",), ()),
        (("coordination.k8s.io",), ("leases",), ("get", "update"), ("holdfast-operator",)),
    ],
    "holdfast-observer": [
        (("holdfast.dev",), ("sessions", "checkpoints"), READ, ()),
    ],
    "holdfast-user": [
        (("holdfast.dev",), ("sessions",), (*READ, "create", "update", "patch", "delete"), ()),
        (("holdfast.dev",), ("checkpoints",), READ, ()),
    ],
    "holdfast-moderator": [
        (
            ("holdfast.dev",),
            ("sessions", "checkpoints"),
            (*READ, "create", "update", "patch", "delete", "deletecollection"),
            (),
        ),
    ],
}


def rules(role: dict[str, Any]) -> list[Rule]:
    for rule in role["rules"]:
        assert rule.keys() <= {"apiGroups", "resources", "verbs", "resourceNames"}
    return [
        (
            tuple(rule["apiGroups"]),
            tuple(rule["resources"]),
            tuple(rule["verbs"]),
            tuple(rule.get("resourceNames", ())),
        )
        for rule in role["rules"]
    ]


def roles(items: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {i["metadata"]["name"]: i for i in items if i["kind"] in ("Role", "ClusterRole")}


def bindings(items: list[dict[str, Any]]) -> list[tuple[str, str | None, str]]:
    """Kind, namespace and role of each; all are the operator's."""
    found = [item for item in items if item["kind"] in ("RoleBinding", "ClusterRoleBinding")]
    for item in found:
        (subject,) = item["subjects"]
        assert subject == {
            "kind": "ServiceAccount",
            "name": "holdfast",
            "namespace": "holdfast-system",
        }
    return sorted(
        (item["kind"], item["metadata"].get("namespace"), item["roleRef"]["name"])
        for item in found
    )  # fmt: skip


def test_the_whole_list(render: Render) -> None:
    assert {name: rules(role) for name, role in roles(render()).items()} == RULES


def test_what_nobody_gets(render: Render) -> None:
    for role in roles(render()).values():
        for groups, resources, verbs, _names in rules(role):
            assert "*" not in (*groups, *resources, *verbs)
            assert not {"escalate", "bind", "impersonate"} & set(verbs)
            assert not {"secrets", "pods/exec", "pods/attach", "pods/portforward"} & set(resources)


def test_the_operator_holds_what_it_grants(render: Render) -> None:
    """The sidecar's Role, Leases get and update, can only be made by who holds both himself."""
    held = [
        verbs
        for groups, resources, verbs, names in rules(roles(render())["holdfast"])
        if "coordination.k8s.io" in groups and "leases" in resources and not names
    ]
    assert any({"get", "update"} <= set(verbs) for verbs in held)


def test_bindings_for_all_namespaces(render: Render) -> None:
    assert bindings(render()) == [
        ("ClusterRoleBinding", None, "holdfast"),
        ("ClusterRoleBinding", None, "holdfast-cluster"),
        ("RoleBinding", "holdfast-system", "holdfast-leader"),
    ]


def test_bindings_for_some_namespaces(render: Render) -> None:
    assert bindings(render(operator={"watchNamespaces": ["one", "two"]})) == [
        ("ClusterRoleBinding", None, "holdfast-cluster"),
        ("RoleBinding", "holdfast-system", "holdfast-leader"),
        ("RoleBinding", "one", "holdfast"),
        ("RoleBinding", "two", "holdfast"),
    ]


@pytest.mark.parametrize(
    ("name", "builtin"),
    [("observer", "view"), ("user", "edit"), ("moderator", "admin")],
)
def test_people_get_them_with_the_clusters_own_roles(
    render: Render, name: str, builtin: str
) -> None:
    label = f"rbac.authorization.k8s.io/aggregate-to-{builtin}"
    on = roles(render())[f"holdfast-{name}"]["metadata"]["labels"]
    off = roles(render(rbac={"aggregate": False}))[f"holdfast-{name}"]["metadata"]["labels"]
    assert on[label] == "true"
    assert [key for key in on if "aggregate" in key] == [label]
    assert not [key for key in off if "aggregate" in key]


def test_roles_for_people_can_be_left_out(render: Render) -> None:
    left = roles(render(rbac={"userRoles": False}))
    assert left.keys() == {"holdfast", "holdfast-cluster", "holdfast-leader"}
