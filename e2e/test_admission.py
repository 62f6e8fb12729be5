"""What admission refuses on a real API server, whatever RBAC allows: the tokens of the operator, an
agent and the gateway, stolen, and people who go past their rights. Numbers are those of the table
of attacks in docs/security.md."""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import pytest
import yaml

from e2e.cluster import build
from e2e.cluster.places import KUBECONFIG
from e2e.lab import OPERATOR_NAMESPACE, KubectlError, Lab, Session, container_pids, manifest, until
from holdfast_kube.credentials import from_kubeconfig
from holdfast_operator import names

Json = dict[str, Any]
RBAC: Final = "rbac.authorization.k8s.io"
# Not below var/run, which is an absolute link in the image.
TOKEN_FILE: Final = "run/secrets/kubernetes.io/serviceaccount/token"  # noqa: S105 - a path
AGENTS: Final = ("-l", "app.kubernetes.io/component=node")
REFUSED: Final = "ValidatingAdmissionPolicy 'holdfast-{}'"


class Thief:
    """Somebody with a token, and kubectl."""

    def __init__(self, lab: Lab, folder: Path, token: str) -> None:
        self._lab, self._token = lab, token.strip()
        config = yaml.safe_load(KUBECONFIG.read_text())
        config["users"] = [{"name": "thief", "user": {"token": self._token}}]
        for one in config["contexts"]:
            one["context"]["user"] = "thief"
        self._config = folder / f"{len(list(folder.iterdir()))}.kubeconfig"
        self._config.write_text(yaml.safe_dump(config))

    def kubectl(self, *words: str, give: Json | None = None) -> str:
        text = None if give is None else json.dumps(give)
        return self._lab.kubectl(f"--kubeconfig={self._config}", *words, give=text)

    def make(self, item: Json, *more: str) -> str:
        return self.kubectl("create", "-f", "-", *more, give=item)

    def patch(self, kind: str, name: str, change: Json, *more: str) -> str:
        return self.kubectl("patch", kind, name, "--type=merge", "-p", json.dumps(change), *more)

    def patch_status(self, path: str, change: Json, *, dry: bool = False) -> str:
        """kubectl would read it first, which not everybody may who writes it."""
        found = from_kubeconfig(yaml.safe_load(KUBECONFIG.read_text()), KUBECONFIG.parent)
        at = urlsplit(found.server)
        trust = ssl.create_default_context(cadata=found.ca)
        with closing(
            http.client.HTTPSConnection(str(at.hostname), at.port, context=trust)
        ) as connection:
            query = "?dryRun=All" if dry else ""
            connection.request(
                "PATCH", f"/{path}/status{query}", json.dumps({"status": change}),
                {"Authorization": f"Bearer {self._token}",
                 "Content-Type": "application/merge-patch+json"},
            )  # fmt: skip
            answer = connection.getresponse()
            text = answer.read().decode()
        if answer.status >= 400:
            raise KubectlError(("patch", path), json.loads(text)["message"])
        return text


def refused(policy: str, words: str, act: Callable[..., str], *given: Any, **more: Any) -> None:
    with pytest.raises(KubectlError) as caught:
        act(*given, **more)
    assert REFUSED.format(policy) in caught.value.complaint, caught.value.complaint
    assert words in caught.value.complaint, caught.value.complaint


Steal = Callable[[str], Thief]


@pytest.fixture
def steal(lab: Lab, tmp_path: Path) -> Steal:
    """With the token of an account of holdfast's own, by the account's name."""

    def stolen(account: str) -> Thief:
        token = lab.kubectl("create", "token", account, "-n", OPERATOR_NAMESPACE)
        return Thief(lab, tmp_path, token)

    return stolen


@pytest.fixture
def person(lab: Lab, tmp_path: Path) -> Iterator[Callable[..., Thief]]:
    """With a Role of these rules, or a ClusterRole by its name, in the namespace default."""
    made: list[str] = []

    def invite(name: str, *rules: Json, role: str = "") -> Thief:
        made.append(name)
        lab.kubectl("create", "serviceaccount", name)
        if rules:
            lab.apply({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
                       "metadata": {"name": name}, "rules": list(rules)})  # fmt: skip
        which = f"--clusterrole={role}" if role else f"--role={name}"
        lab.kubectl("create", "rolebinding", name, which, f"--serviceaccount=default:{name}")
        return Thief(lab, tmp_path, lab.kubectl("create", "token", name))

    yield invite
    for name in made:
        lab.kubectl("delete", "serviceaccount,role,rolebinding", name, "--ignore-not-found")


def jsons(*all_of_them: Json) -> tuple[Json, ...]:
    return all_of_them


def rule(group: str, resource: str, *verbs: str, only: str = "") -> Json:
    found: Json = {"apiGroups": [group], "resources": [resource], "verbs": list(verbs)}
    return found | ({"resourceNames": [only]} if only else {})


def stored(lab: Lab, name: str) -> tuple[Session, Json]:
    """A session that is suspended, and the order that stored it."""
    session = lab.session(name, "bash", "--norc")
    lab.kubectl("patch", "session", name, "--type=merge", "-p", '{"spec":{"suspended":true}}')
    session.await_phase("Suspended")
    (order,) = lab.get("checkpoints", "-l", f"{names.SESSION_LABEL}={name}")["items"]
    return session, order


def agent_token(lab: Lab, node: str) -> str:
    """As somebody who is root on that node takes it: from the agent's own pod."""
    pods = lab.get("pods", "-n", OPERATOR_NAMESPACE, *AGENTS)["items"]
    (pod,) = [one for one in pods if one["spec"]["nodeName"] == node]
    for pid in container_pids(pod["metadata"]["uid"]):
        try:
            return Path(f"/proc/{pid}/root/{TOKEN_FILE}").read_text()
        except OSError:
            continue  # the pause container has none
    raise AssertionError(f"no token in the agent's pod on {node}")


@pytest.mark.attacks(34)
@pytest.mark.timeout(180)
def test_an_agents_token_is_bound_to_its_node(lab: Lab, tmp_path: Path, steal: Steal) -> None:
    session, order = stored(lab, "elsewhere")
    there = order["spec"]["sourceNode"]
    nodes = [one["metadata"]["name"] for one in lab.get("nodes")["items"]]
    here = next(node for node in nodes if node != there and _has_agent(lab, node))
    thief = Thief(lab, tmp_path, agent_token(lab, here))
    mark: Json = {"metadata": {"labels": {"holdfast.dev/test": "1"}}}
    # Its own Node, as the agent writes it itself.
    thief.patch("node", here, mark, "--dry-run=server")
    refused("agents", "its own Node only", thief.patch, "node", there, mark)
    for change in jsons(
        {"metadata": {"labels": {"zone": "1"}}},
        {"metadata": {"annotations": {"zone": "1"}}},
        {"metadata": {"finalizers": ["holdfast.dev/stay"]}},
        {"spec": {"unschedulable": True}},
        {"spec": {"taints": [{"key": "a", "effect": "NoExecute"}]}},
    ):
        refused("agents", "taints and all else", thief.patch, "node", here, change)
    conditions = lab.get("node", here)["status"]["conditions"]
    own_node, other_node = f"api/v1/nodes/{here}", f"api/v1/nodes/{there}"
    thief.patch_status(own_node, {"conditions": conditions}, dry=True)
    for state in jsons({"capacity": {"cpu": "64"}}, {"conditions": []}):
        refused(
            "agents", "only the condition HoldfastReady",
            thief.patch_status, own_node, state,
        )  # fmt: skip
    refused(
        "agents", "its own Node only",
        thief.patch_status, other_node, {"conditions": conditions},
    )  # fmt: skip
    # What another node was ordered.
    path = f"apis/{names.API_VERSION}/namespaces/default/checkpoints/{order['metadata']['name']}"
    failed: Json = {"phase": "Failed"}
    refused(
        "agents", "this order is not for the node agent of " + here,
        thief.patch_status, path, failed,
    )  # fmt: skip
    own = Thief(lab, tmp_path, agent_token(lab, there))
    own.patch_status(path, failed, dry=True)
    refused("agents", "name of its own node", own.patch_status, path, {"node": here})
    refused("agents", "about Checkpoints and Sessions only", thief.make, _event(here))
    with pytest.raises(KubectlError, match="cannot create resource"):
        thief.make(_order(session, order))
    # A token that no kubelet asked for names no node.
    loose = steal("holdfast-node")
    refused("agents", "bound to no node", loose.patch, "node", here, mark)


def _has_agent(lab: Lab, node: str) -> bool:
    labels = lab.get("node", node)["metadata"]["labels"]
    return bool(labels.get(names.AGENT) == "ready")


def _event(node: str) -> Json:
    return {
        "apiVersion": "events.k8s.io/v1", "kind": "Event",
        "metadata": {"name": "forged", "namespace": "kube-system"},
        "eventTime": "2026-01-01T00:00:00.000000Z", "type": "Warning", "reason": "Forged",
        "action": "Forge", "note": "x", "reportingController": "holdfast.dev/node-agent",
        "reportingInstance": node,
        "regarding": {"kind": "Pod", "apiVersion": "v1", "name": "x", "namespace": "kube-system"},
    }  # fmt: skip


def _order(session: Session, like: Json) -> Json:
    """Written by hand, by the looks of a true one."""
    spec = {**like["spec"], "sessionUID": session.body["metadata"]["uid"]}
    meta = {"name": "by-hand", "namespace": "default", "labels": like["metadata"]["labels"],
            "ownerReferences": like["metadata"]["ownerReferences"]}  # fmt: skip
    return {"apiVersion": names.API_VERSION, "kind": "Checkpoint", "metadata": meta, "spec": spec}


@pytest.mark.attacks(30)
@pytest.mark.timeout(180)
def test_a_namespaces_admin_gives_no_orders(
    lab: Lab, person: Callable[..., Thief], steal: Steal
) -> None:
    session, order = stored(lab, "victim")
    name = order["metadata"]["name"]
    write = ("create", "update", "patch", "get", "delete")
    for who in (
        person("landlord", role="admin"),
        person("writer", rule(names.GROUP, "checkpoints", *write)),
    ):
        with pytest.raises(KubectlError, match=r"only holdfast's operator|cannot create resource"):
            who.make(_order(session, order))
    # RBAC allows it to the last, and admission says no.
    refused("orders", "only holdfast's operator writes", who.make, _order(session, order))
    for change in jsons({"labels": {names.NODE: "n9"}}, {"annotations": {names.FORK: "x"}},
                   {"ownerReferences": []}):  # fmt: skip
        refused(
            "orders", "labels, annotations and owners",
            who.patch, "checkpoint", name, {"metadata": change},
        )  # fmt: skip
    # Nor does an order come from the operator's token for a session that it does not belong to.
    foreign = _order(session, order)
    foreign["spec"]["sessionUID"] = "00000000-0000-4000-8000-000000000000"
    refused("operator", "the Session that it names", steal("holdfast").make, foreign)
    who.kubectl("delete", "checkpoint", name, "--dry-run=server")


def owner(session: Session) -> Json:
    return {
        "apiVersion": names.API_VERSION, "kind": "Session", "name": session.name,
        "uid": session.body["metadata"]["uid"], "controller": True,
    }  # fmt: skip


def _pod(session: Session, owned_by: Json | None = None, **spec: Any) -> Json:
    """As the operator makes it, but for what is given."""
    container = {"name": "session", "image": build.DEBIAN, **spec.pop("container", {})}
    return {
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": f"{session.name}-9", "namespace": "default",
            "labels": {names.SESSION_LABEL: session.name, names.EPOCH: "9"},
            "ownerReferences": [owned_by or owner(session)],
        },
        "spec": {
            "containers": [container], "serviceAccountName": names.access_name(session.name),
            "automountServiceAccountToken": False, **spec,
        },
    }  # fmt: skip


def within(**security: Any) -> Json:
    return {"container": {"securityContext": security}}


def _token_volume() -> Json:
    token = {"serviceAccountToken": {"path": "token"}}
    return {"volumes": [{"name": "mine", "projected": {"sources": [token]}}]}


PODS: Final[list[tuple[str, Json]]] = [
    ("no host namespaces", {"hostPID": True}),
    ("no host namespaces", {"hostNetwork": True}),
    ("no host namespaces", {"hostIPC": True}),
    ("nothing of its node", {"volumes": [{"name": "x", "hostPath": {"path": "/"}}]}),
    ("privileged", within(privileged=True)),
    ("privileged", {"initContainers": [{"name": "i", "image": build.DEBIAN,
                                        "securityContext": {"privileged": True}}]}),
    ("no capability", within(capabilities={"add": ["SYS_ADMIN"]})),
    ("no capability", within(capabilities={"add": ["SYS_PTRACE"]})),
    ("stay confined", within(seccompProfile={"type": "Unconfined"})),
    ("stay confined", {"securityContext": {"seccompProfile": {"type": "Unconfined"}}}),
    ("hostPort", {"container": {"ports": [{"containerPort": 80, "hostPort": 80}]}}),
    ("sysctls", {"securityContext": {"sysctls": [{"name": "kernel.msgmax", "value": "1"}]}}),
    ("cannot run as the service account default", {"serviceAccountName": "default"}),
    ("cannot run as the service account default", {"serviceAccountName": ""}),
    ("goes to the sidecar alone", {"automountServiceAccountToken": True}),
    ("goes to the sidecar alone", _token_volume()),
]  # fmt: skip


@pytest.mark.attacks(39)
@pytest.mark.timeout(180)
def test_the_operators_token_makes_no_pod_with_power(lab: Lab, steal: Steal) -> None:
    session, thief = lab.session("owner", "bash", "--norc"), steal("holdfast")
    thief.make(_pod(session), "--dry-run=server")
    for words, spec in PODS:
        refused("pods", words, thief.make, _pod(session, **spec))
    strange = {**owner(session), "kind": "Deployment", "apiVersion": "apps/v1"}
    refused("operator", "belongs to a Session", thief.make, _pod(session, strange))
    other = {**owner(session), "name": "other"}
    refused("operator", "belongs to a Session", thief.make, _pod(session, other))
    for place in ("kube-system", OPERATOR_NAMESPACE):
        made = _pod(session, serviceAccountName=names.access_name(session.name))
        made["metadata"]["namespace"] = place
        # Else the API server complains of the account before it asks the policies.
        account = (names.access_name(session.name), "-n", place)
        lab.kubectl("create", "serviceaccount", *account)
        try:
            refused("operator", "does not serve", thief.make, made)
        finally:
            lab.kubectl("delete", "serviceaccount", *account)
    # With an account of the namespace that an administrator named for it.
    allowed = f"{names.PREFIX}service-accounts"
    lab.kubectl("annotate", "namespace", "default", f"{allowed}=other builder")
    try:
        made = _pod(session, serviceAccountName="builder")
        # The account does not exist, which is said by who comes after the policies.
        until(lambda: "builder" in _complaint(thief.make, made), "it is allowed", every=1)
        until(lambda: "policy" not in _complaint(thief.make, made).lower(), "it is allowed")
    finally:
        lab.kubectl("annotate", "namespace", "default", f"{allowed}-")


def _complaint(act: Callable[..., str], *given: Any) -> str:
    try:
        return act(*given)
    except KubectlError as error:
        return error.complaint


@pytest.mark.attacks(39)
@pytest.mark.timeout(180)
def test_the_operators_token_writes_only_what_a_session_needs(lab: Lab, steal: Steal) -> None:
    session, thief = lab.session("needs", "bash", "--norc"), steal("holdfast")
    meta: Json = {
        "labels": {names.SESSION_LABEL: session.name}, "namespace": "default",
        "ownerReferences": [owner(session)], "name": names.access_name(session.name),
    }  # fmt: skip
    lease: Json = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "spec": {}}
    system = {**lease, "metadata": {"name": "kube-scheduler", "namespace": "kube-system"}}
    refused("operator", "does not serve", thief.make, system)
    lab.kubectl("apply", "-f", "-", give=json.dumps(system))
    taken: Json = {**lab.get("lease", "kube-scheduler", "-n", "kube-system")}
    taken["spec"] = {"holderIdentity": "thief"}
    refused("operator", "does not serve", thief.kubectl, "replace", "-f", "-", give=taken)
    refused(
        "operator", "does not serve",
        thief.kubectl, "delete", "lease", "kube-scheduler", "-n", "kube-system",
    )  # fmt: skip
    lab.kubectl("delete", "lease", "kube-scheduler", "-n", "kube-system")
    elsewhere = {**lease, "metadata": {**meta, "name": "another"}}
    refused("operator", "which has its name", thief.make, elsewhere)
    bare = {**lease, "metadata": {"name": "another", "namespace": "default"}}
    refused("operator", "belongs to a Session", thief.make, bare)
    rbac: Json = {"apiVersion": f"{RBAC}/v1"}
    wide = {**rbac, "kind": "Role", "metadata": {**meta},
            "rules": [rule("", "pods", "create")]}  # fmt: skip
    lab.kubectl("delete", "role", meta["name"], "--wait")
    refused("operator", "a session's Role lets it", thief.make, wide)
    binding = {
        **rbac, "kind": "RoleBinding", "metadata": {**meta},
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": "holdfast"},
        "subjects": [{"kind": "ServiceAccount", "name": meta["name"], "namespace": "default"}],
    }  # fmt: skip
    lab.kubectl("delete", "rolebinding", meta["name"], "--wait", "--ignore-not-found")
    refused("operator", "its own Role to its own", thief.make, binding)
    victim = lab.get("pods", "-n", OPERATOR_NAMESPACE, *AGENTS)["items"][0]["metadata"]["name"]
    refused(
        "operator", "does not serve",
        thief.kubectl, "delete", "pod", victim, "-n", OPERATOR_NAMESPACE,
    )  # fmt: skip
    asleep: Json = {"spec": {"suspended": True}}
    refused("operator", "only ended", thief.patch, "session", session.name, asleep)
    label: Json = {"metadata": {"labels": {"a": "b"}}}
    refused("operator", "its own finalizer", thief.patch, "session", session.name, label)


@pytest.mark.attacks(39)
@pytest.mark.timeout(120)
def test_the_gateways_token_wakes_and_changes_nothing_else(
    lab: Lab, steal: Steal, person: Callable[..., Thief]
) -> None:
    session, thief = lab.session("gated", "bash", "--norc"), steal("holdfast-gateway")
    wake: Json = {"metadata": {"annotations": {names.WAKE: "7"}}}
    thief.patch("session", session.name, wake, "--dry-run=server")
    for spec in jsons({"ended": True}, {"suspended": True}, {"move": {"onDrain": "End"}}):
        refused(
            "gateway", "only spec.suspended",
            thief.patch, "session", session.name, {"spec": spec},
        )  # fmt: skip
    for meta in jsons(
        {"annotations": {names.MOVE: "1"}}, {"labels": {"a": "b"}}, {"finalizers": []}
    ):
        refused(
            "gateway", "only the annotation holdfast.dev/wake",
            thief.patch, "session", session.name, {"metadata": meta},
        )  # fmt: skip
    # The whole template, for everybody.
    everything = person("owner", rule(names.GROUP, "sessions", "get", "patch"))
    for change in jsons({"dnsPolicy": "None"}, {"nodeSelector": {"a": "b"}}, {"priority": 1}):
        with pytest.raises(KubectlError, match=r"spec\.template cannot be changed"):
            everything.patch("session", session.name, {"spec": {"template": {"spec": change}}})


@pytest.mark.attacks(39)
@pytest.mark.timeout(120)
def test_fields_that_no_schema_names_are_immutable_too(
    lab: Lab, person: Callable[..., Thief]
) -> None:
    """CEL in a CRD does not see one such field exchanged for another."""
    lab.session("unnamed", "bash", "--norc", pod={"schedulerName": "default-scheduler"})
    someone = person("swapper", rule(names.GROUP, "sessions", "get", "patch"))
    swap: Json = {"schedulerName": None, "priorityClassName": "system-node-critical"}
    refused(
        "sessions", "spec.template cannot be changed",
        someone.patch, "session", "unnamed", {"spec": {"template": {"spec": swap}}},
    )  # fmt: skip


@pytest.mark.attacks(38)
@pytest.mark.timeout(180)
def test_forking_and_waking_are_rights_of_their_own(lab: Lab, person: Callable[..., Thief]) -> None:
    session, order = stored(lab, "origin")
    write = rule(names.GROUP, "sessions", "get", "create", "patch")
    group = "subresources.holdfast.dev"
    maker = person("maker", write)
    forker = person("forker", write, rule(group, "sessions/fork", "create", only="origin"))
    waker = person("waker", write, rule(group, "sessions/wake", "create", only="origin"))
    for fork in ({"session": "origin"}, {"checkpoint": order["metadata"]["name"]}):
        made = manifest("copy", ["bash", "--norc"], spec={"forkFrom": fork})
        for who in (maker, waker):
            refused("sessions", "the right to fork it", who.make, made)
        forker.make(made, "--dry-run=server")
    other = manifest("copy", ["bash", "--norc"], spec={"forkFrom": {"session": "other"}})
    unknown = manifest("copy", ["bash", "--norc"], spec={"forkFrom": {"checkpoint": "by-hand"}})
    refused("sessions", "session other", forker.make, other)
    refused("sessions", "for all sessions", forker.make, unknown)
    for change in jsons({"spec": {"suspended": False}}, {"spec": {"suspended": None}},
                   {"metadata": {"annotations": {names.WAKE: "1"}}}):  # fmt: skip
        for who in (maker, forker):
            refused(
                "sessions", "a right of its own",
                who.patch, "session", "origin", change,
            )  # fmt: skip
        waker.patch("session", "origin", change, "--dry-run=server")
    assert session.status["phase"] == "Suspended"
    unserved = manifest("hello", ["bash"])
    with pytest.raises(KubectlError, match="does not serve the namespace kube-system"):
        lab.kubectl("create", "-n", "kube-system", "-f", "-", give=json.dumps(unserved))
