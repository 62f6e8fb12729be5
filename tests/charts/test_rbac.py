"""Least privilege: every rule that the chart grants, compared as a whole. A right that is added
here has to be wanted."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from holdfast_kube.client import (
    ACCOUNTS,
    BINDINGS,
    BUDGETS,
    CHECKPOINTS,
    PODS,
    ROLES,
    SESSIONS,
    Resource,
)
from holdfast_operator import objects
from holdfast_operator.leader import NAME
from holdfast_operator.model import Session
from holdfast_wire.rights import Right
from operator_kit import KEY, Trips, World, session_object

Render = Callable[..., list[dict[str, Any]]]
Rule = tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...], tuple[str, ...]]

READ = ("get", "list", "watch")
CERTIFICATES = "certificates.k8s.io"

# Through the API server, which asks RBAC of the path itself.
GROUPS = ("subresources.holdfast.dev",)
OBSERVE = (GROUPS, (Right.OBSERVE.subresource,), ("get",), ())


def needing(*rights: Right) -> Rule:
    assert {right.verb for right in rights} == {"create"}
    return GROUPS, tuple(right.subresource for right in rights), ("create",), ()


RULES: dict[str, list[Rule]] = {
    "holdfast": [
        (("holdfast.dev",), ("sessions",), (*READ, "patch", "delete"), ()),
        (("holdfast.dev",), ("sessions/status",), ("patch",), ()),
        (("holdfast.dev",), ("checkpoints",), (*READ, "create", "delete"), ()),
        (("holdfast.dev",), ("checkpoints/status",), ("patch",), ()),
        (("",), ("pods",), (*READ, "create", "delete"), ()),
        (("coordination.k8s.io",), ("leases",), (*READ, "create", "update", "delete"), ()),
        (("",), ("serviceaccounts",), ("get", "create", "delete"), ()),
        (
            ("rbac.authorization.k8s.io",),
            ("roles", "rolebindings"),
            ("get", "create", "delete"),
            (),
        ),
        (("rbac.authorization.k8s.io",), ("roles",), ("update",), ()),
        (("policy",), ("poddisruptionbudgets",), ("get", "create", "update", "delete"), ()),
        (("events.k8s.io",), ("events",), ("create",), ()),
    ],
    "holdfast-nodes": [
        (("",), ("nodes",), READ, ()),
        ((CERTIFICATES,), ("certificatesigningrequests",), READ, ()),
        (
            (CERTIFICATES,),
            ("certificatesigningrequests/approval", "certificatesigningrequests/status"),
            ("update",),
            (),
        ),
        ((CERTIFICATES,), ("signers",), ("approve", "sign"), ("holdfast.dev/node",)),
    ],
    "holdfast-node": [
        (("holdfast.dev",), ("checkpoints",), READ, ()),
        (("holdfast.dev",), ("checkpoints/status",), ("patch",), ()),
        (("",), ("pods",), ("get",), ()),
        ((CERTIFICATES,), ("certificatesigningrequests",), ("create", "get"), ()),
        (("events.k8s.io",), ("events",), ("create",), ()),
        (("",), ("nodes",), ("get", "patch"), ()),
        (("",), ("nodes/status",), ("patch",), ()),
    ],
    "holdfast-gateway": [
        (("holdfast.dev",), ("sessions",), (*READ, "patch"), ()),
        (("coordination.k8s.io",), ("leases",), ("get",), ()),
    ],
    "holdfast-leader": [
        (("coordination.k8s.io",), ("leases",), ("create",), ()),
        (("coordination.k8s.io",), ("leases",), ("get", "update"), (NAME,)),
    ],
    "holdfast-observer": [
        (("holdfast.dev",), ("sessions", "checkpoints"), READ, ()),
        OBSERVE,
    ],
    "holdfast-user": [
        (("holdfast.dev",), ("sessions",), (*READ, "create", "update", "patch", "delete"), ()),
        (("holdfast.dev",), ("checkpoints",), READ, ()),
        OBSERVE,
        needing(Right.INTERRUPT, Right.RUN, Right.TYPE, Right.WAKE),
    ],
    "holdfast-moderator": [
        (
            ("holdfast.dev",),
            ("sessions",),
            (*READ, "create", "update", "patch", "delete", "deletecollection"),
            (),
        ),
        # A Checkpoint is an order to the agents: only the operator writes one (attack 37, 30).
        (("holdfast.dev",), ("checkpoints",), (*READ, "delete", "deletecollection"), ()),
        OBSERVE,
        needing(*(right for right in Right if right is not Right.OBSERVE)),
    ],
    # Attack 37: what Kubernetes' own `view` gets has no terminal in it.
    "holdfast-view": [
        (("holdfast.dev",), ("sessions", "checkpoints"), READ, ()),
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


_WHOSE = {
    "holdfast-node": "holdfast-node",
    "holdfast-gateway": "holdfast-gateway",
    "system:auth-delegator": "holdfast-gateway",
    "extension-apiserver-authentication-reader": "holdfast-gateway",
}


def bindings(items: list[dict[str, Any]]) -> list[tuple[str, str | None, str]]:
    """Kind, namespace and role of each; all are the operator's but the node agent's and the
    gateway's."""
    found = [item for item in items if item["kind"] in ("RoleBinding", "ClusterRoleBinding")]
    for item in found:
        (subject,) = item["subjects"]
        assert subject == {
            "kind": "ServiceAccount",
            "name": _WHOSE.get(item["roleRef"]["name"], "holdfast"),
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


async def a_whole_life(monkeypatch: pytest.MonkeyPatch) -> set[tuple[str, str]]:
    """Every right that the operator uses from a session's beginning to its end."""
    world = World()
    former = Session.of(world.api.put(session_object()))
    world.api.vanish(SESSIONS, KEY.name)
    made = (objects.account, objects.role, objects.binding)
    for kind, make in zip((ACCOUNTS, ROLES, BINDINGS), made, strict=True):
        await world.api.create(kind, KEY.namespace, make(former))
    await world.api.create(BUDGETS, KEY.namespace, objects.budget(former, 1))
    monkeypatch.setattr(world.api, "collect_garbage", lambda: None)
    create = world.api.create

    async def outrun(kind: Resource, *args: Any) -> Any:
        if kind in (PODS, CHECKPOINTS):  # another operator is faster
            await create(kind, *args)
        return await create(kind, *args)

    monkeypatch.setattr(world.api, "create", outrun)
    trips = Trips(world.api)
    often = {"everySeconds": 20, "keep": 1}
    world.api.put(session_object(ttlSecondsAfterEnded=60, checkpoints=often))
    await trips.during(world.run(60))
    (role,) = world.api.all(ROLES)
    role["rules"].pop()  # as an older version made it, before it was upgraded
    world.restart()
    world.cordon(True)
    await trips.during(world.run(10))
    world.cordon(False)
    await trips.during(world.run(10))
    world.current.dead = True
    await trips.during(world.run(90))
    world.current.end("exited", code=0)
    await trips.during(world.run(120))
    assert world.api.one(SESSIONS) is None
    verbs = {"list_all": "list", "replace": "update"}
    asked = [words.split() for words in itertools.chain(*trips.log)]
    return {(verbs.get(verb, verb), resource) for verb, resource in asked}


async def test_what_is_granted_is_used_and_nothing_is_missing(
    render: Render, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside the steps: kopf lists and watches Sessions, Checkpoints and pods (its scanning is off,
    so neither namespaces nor CRDs), and Leases are listed and watched by us; and stored keys are
    wrapped anew (rotation.py)."""
    kinds = ("sessions", "checkpoints", "pods", "leases")
    watched = {(verb, kind) for verb in ("list", "watch") for kind in kinds}
    granted = {
        (verb, resource)
        for _groups, resources, verbs, _names in rules(roles(render())["holdfast"])
        for resource in resources
        for verb in verbs
    }
    wrapped = {("patch", "checkpoints/status")}
    assert granted == await a_whole_life(monkeypatch) | watched | wrapped


def test_the_operator_holds_what_it_grants(render: Render) -> None:
    """The sidecar's Role can only be made by who holds all of it himself. It is for one name."""
    given = objects.role(Session.of(World().api.put(session_object())))
    held = rules(roles(render())["holdfast"])
    for groups, resources, verbs, names in rules(given):
        assert names == (KEY.name,)
        assert any(
            groups == own[0] and resources == own[1] and set(verbs) <= set(own[2]) and not own[3]
            for own in held
        )
    assert [rule[1:3] for rule in rules(given)] == [
        (("leases",), ("get", "update")),
        (("sessions",), ("get",)),
    ]


def test_bindings_for_all_namespaces(render: Render) -> None:
    assert bindings(render()) == [
        ("ClusterRoleBinding", None, "holdfast"),
        ("ClusterRoleBinding", None, "holdfast-gateway"),
        ("ClusterRoleBinding", None, "holdfast-node"),
        ("ClusterRoleBinding", None, "holdfast-nodes"),
        ("ClusterRoleBinding", None, "system:auth-delegator"),
        ("RoleBinding", "holdfast-system", "holdfast-leader"),
        ("RoleBinding", "kube-system", "extension-apiserver-authentication-reader"),
    ]


def test_bindings_for_some_namespaces(render: Render) -> None:
    assert bindings(render(operator={"watchNamespaces": ["one", "two"]})) == [
        ("ClusterRoleBinding", None, "holdfast-node"),
        ("ClusterRoleBinding", None, "holdfast-nodes"),
        ("ClusterRoleBinding", None, "system:auth-delegator"),
        ("RoleBinding", "holdfast-system", "holdfast-leader"),
        ("RoleBinding", "kube-system", "extension-apiserver-authentication-reader"),
        ("RoleBinding", "one", "holdfast"),
        ("RoleBinding", "one", "holdfast-gateway"),
        ("RoleBinding", "two", "holdfast"),
        ("RoleBinding", "two", "holdfast-gateway"),
    ]


@pytest.mark.parametrize(
    ("name", "builtin"),
    [("user", "edit"), ("moderator", "admin")],
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


def test_view_gets_no_terminal(render: Render) -> None:
    """Attack 37."""
    label = "rbac.authorization.k8s.io/aggregate-to-view"
    given = [role for role in roles(render()).values() if label in role["metadata"]["labels"]]
    assert [role["metadata"]["name"] for role in given] == ["holdfast-view"]
    assert "aggregate" not in str(roles(render())["holdfast-observer"]["metadata"]["labels"])
    assert "holdfast-view" not in roles(render(rbac={"aggregate": False}))


def test_roles_for_people_can_be_left_out(render: Render) -> None:
    left = roles(render(rbac={"userRoles": False}))
    names = ("", "-gateway", "-leader", "-node", "-nodes")
    assert left.keys() == {f"holdfast{name}" for name in names}


def test_without_the_node_agent_nothing_of_it_is_there(render: Render) -> None:
    items = render(nodeAgent={"enabled": False})
    assert "holdfast-node" not in roles(items)
    (container,) = [
        container
        for item in render(nodeAgent={"enabled": False}, hooks=True)
        if item["metadata"]["name"] == "holdfast-keys-make" and item["kind"] == "Job"
        for container in item["spec"]["template"]["spec"]["containers"]
    ]
    assert {"name": "HOLDFAST_MAKE_KEYS", "value": "false"} in container["env"]
    assert not {"DaemonSet"} & {item["kind"] for item in items}
