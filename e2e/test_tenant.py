"""What a tenant can try from one namespace of a real cluster, with the role `admin` there and pods
of the restricted profile: the node's files, and other tenants' sessions. Numbers are those of
docs/security.md."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from e2e.cluster import build, faults
from e2e.cluster.running import running
from e2e.lab import OPERATOR_NAMESPACE, KubectlError, Lab, Session, until
from e2e.movers import check, longest_gap, move, other, walking
from e2e.tenants import CONTAINER, Tenant, tenant

OPERATOR_ACCOUNT: Final = f"system:serviceaccount:{OPERATOR_NAMESPACE}:holdfast"
ORDERED_WITHIN: Final = 30.0
# The most that a session which nothing happens to lets pass between two of its marks.
UNDISTURBED: Final = 2.0
STRANGER: Final = "passed the sidecar's door"  # what the impostor says of each request

# Takes itself for the sidecar, in a container of the tenant: it has its name, its socket and its
# folder, and says yes to everything. When it is asked to seal, its folder becomes a folder of the
# node; it says what it finds in its own.
IMPOSTOR: Final = """
import json, os, socketserver, threading, time
FOLDER, OWN = "/var/lib/holdfast", "/var/lib/own"

def point(to):
    os.symlink(to, FOLDER + ".new")
    os.replace(FOLDER + ".new", FOLDER)

class Door(socketserver.StreamRequestHandler):
    def handle(self):
        for line in self.rfile:
            print("passed the sidecar's door:", line, flush=True)
            if json.loads(line)["do"] == "seal":
                point("/proc/1/root" + os.environ["PLANT"])
                threading.Timer(3.0, point, ["own"]).start()
            said = {"ok": True, "files": ["marker"], "seq": 0, "serving": True}
            self.wfile.write(json.dumps(said).encode() + b"\\n")

os.mkdir(OWN)
point("own")
door = socketserver.ThreadingUnixStreamServer(OWN + "/agent.sock", Door)
threading.Thread(target=door.serve_forever, daemon=True).start()
print("ready", flush=True)
while True:
    for name in sorted(set(os.listdir(OWN)) - {"agent.sock"}):
        try:
            with open(f"{OWN}/{name}") as found:
                print("came:", name, found.read(), flush=True)
            os.unlink(f"{OWN}/{name}")
        except OSError as error:
            print("came:", name, error, flush=True)
    time.sleep(0.2)
"""
# In a container beside the session, and in its volume: a folder is a link to the node's now and
# then.
SWAPPER: Final = """
import os, stat, time
os.umask(0)
os.makedirs("/swap/real", exist_ok=True)
with open("/swap/real/marker", "w") as file:
    file.write("harmless")
os.symlink("/proc/1/root" + os.environ["PLANT"], "/swap/link")
while True:
    os.rename("/swap/real", "/swap/folder")
    time.sleep(0.001)
    os.rename("/swap/folder", "/swap/real")
    os.rename("/swap/link", "/swap/folder")
    time.sleep(0.001)
    os.rename("/swap/folder", "/swap/link")
"""


class Plant:
    """A folder on each node that root alone may see into: what a tenant must not read or change."""

    def __init__(self) -> None:
        self.secret = secrets.token_hex(16)
        self.path = f"/var/lib/plant-{secrets.token_hex(4)}"

    def sow(self) -> None:
        made = f"mkdir -m 700 {self.path}; umask 077; echo {self.secret} > {self.path}/marker"
        for node in running().nodes:
            faults.in_node(node, "sh", "-ec", made)

    def seen(self) -> dict[str, str]:
        look = f"cd {self.path}; stat -c '%n %a %u %g %s %Y' . *; cat *"
        return {node: faults.in_node(node, "sh", "-ec", look) for node in running().nodes}

    def clear(self) -> None:
        for node in running().nodes:
            faults.in_node(node, "rm", "-rf", self.path)


@pytest.fixture
def plant() -> Iterator[Plant]:
    made = Plant()
    made.sow()
    yield made
    made.clear()


@pytest.fixture
def mallory(lab: Lab, tmp_path: Path) -> Iterator[Tenant]:
    with tenant(lab, "tenant", tmp_path) as made:
        yield made


def beside(script: str, plant: Plant, program: str, **mounts: str) -> dict[str, Any]:
    """An init container that stays, and runs `script` under that name."""
    program = f"/var/lib/{program}"
    start = f'printf %s "$SCRIPT" > {program}; exec python3 {program}'
    return {
        "name": "own",
        "image": build.DEBIAN,
        "imagePullPolicy": "Never",
        "restartPolicy": "Always",
        "command": ["sh", "-c", start],
        "env": [{"name": "SCRIPT", "value": script}, {"name": "PLANT", "value": plant.path}],
        "volumeMounts": [
            {"name": "own", "mountPath": "/var/lib"},
            *({"name": volume, "mountPath": path} for volume, path in mounts.items()),
        ],
        "securityContext": CONTAINER,
    }


@pytest.mark.attacks(28, 29)
@pytest.mark.timeout(300)
def test_who_looks_like_the_sidecar_is_not_asked(lab: Lab, mallory: Tenant, plant: Plant) -> None:
    """28: an init container with the sidecar's name, folder and socket. 29: its folder is a link to
    a folder of the node, when a file is read there and when one is written."""
    before = plant.seen()
    pod = {"initContainers": [beside(IMPOSTOR, plant, "holdfast-sidecar")],
           "volumes": [{"name": "own", "emptyDir": {}}]}  # fmt: skip
    mallory.begin("build", ["bash", "--norc"], pod=pod)
    mallory.await_running("build")
    mallory.holdfast("send", "build", "unshare -Urpf --mount-proc sleep 1; echo by=$?", "--enter")
    until(lambda: "by=1" in mallory.holdfast("screen", "build"), "no namespaces of its own")
    mallory.begin("copy", ["bash", "--norc"], pod=pod, spec={"forkFrom": {"session": "build"}})

    until(lambda: mallory.phase("copy") == "Running" or "came:" in mallory.said("own"), "it came")
    said = mallory.said("own")
    assert "ready" in said
    assert (plant.secret in said, plant.seen()) == (False, before), said
    assert STRANGER not in said
    mallory.holdfast("send", "copy", "echo $((6 * 7)) lives", "--enter")
    until(lambda: "42 lives" in mallory.holdfast("screen", "copy"), "the copy is the session")


@pytest.mark.timeout(300)
def test_folders_that_are_renamed_while_they_are_stored(
    lab: Lab, mallory: Tenant, plant: Plant
) -> None:
    """A second container swaps a folder of the session's volume for a link to the node's, all the
    time. A copy of it has the tenant's own files at most."""
    before = plant.seen()
    mount = {"volumeMounts": [{"name": "work", "mountPath": "/swap"}]}
    volumes = [{"name": "own", "emptyDir": {}}, {"name": "work", "emptyDir": {}}]
    swapper = beside(SWAPPER, plant, "swapper", work="/swap")
    pod = {"initContainers": [swapper], "volumes": volumes}
    mallory.begin("build", ["bash", "--norc"], pod=pod, container=mount)
    mallory.await_running("build")
    for name in ("first", "second"):
        shown = copied(mallory, name, pod={"volumes": volumes}, container=mount)
        assert "harmless" in shown or "/proc/1/root" in shown
        assert plant.secret not in shown
    assert plant.seen() == before


def copied(mallory: Tenant, name: str, **options: Any) -> str:
    """What a new copy of the session shows of its volume."""
    mallory.begin(name, ["bash", "--norc"], spec={"forkFrom": {"session": "build"}}, **options)
    mallory.await_running(name)
    look = "find /swap -type f -exec cat {} +; find /swap -type l -printf '%l\\n'; echo all-$?"
    mallory.holdfast("send", name, look, "--enter")
    until(lambda: "all-0" in mallory.holdfast("screen", name), "it has looked")
    return mallory.holdfast("screen", name, "--scrollback")


# -- orders ---------------------------------------------------------------------------------------


@pytest.fixture
def victim(lab: Lab) -> Session:
    """In another namespace than the tenant's."""
    return walking(lab, "build", 0.02)


def foreign(victim: Session, name: str, mine: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A Checkpoint in the tenant's namespace, which names the victim's pod. It belongs to the
    victim, as admission wants it of the operator, and to the tenant's session too: what has no
    owner in its namespace is collected."""
    (own,) = mine["metadata"]["ownerReferences"]
    owners = [{**own, "uid": victim.body["metadata"]["uid"]}, {**own, "controller": False}]
    spec = {
        "sessionName": victim.name,
        "sessionUID": victim.body["metadata"]["uid"],
        "epoch": victim.epoch,
        "trigger": "Manual",
        "sourceNode": victim.node,
        "sourcePodUID": victim.lab.get("pod", victim.pod)["metadata"]["uid"],
    }
    labels = {"holdfast.dev/node": victim.node, "holdfast.dev/session": victim.name}
    return {
        "apiVersion": "holdfast.dev/v1alpha1",
        "kind": "Checkpoint",
        "metadata": {"name": name, "labels": labels, "ownerReferences": owners},
        "spec": spec | more,
    }


def orders(victim: Session, mine: dict[str, Any]) -> list[dict[str, Any]]:
    """To store it, to stop it, and to take it away alive, into a pod of the tenant."""
    elsewhere = other(victim.node)
    kept: dict[str, Any] = {"store": "Peer", "keepers": [elsewhere, victim.node]}
    arrives = {"targetNode": elsewhere, "targetPodUID": mine["metadata"]["uid"]}
    return [
        foreign(victim, f"{victim.name}-1-k1", mine, **kept),
        foreign(victim, f"{victim.name}-1-k2", mine, **kept, then="Stop"),
        foreign(victim, f"{victim.name}-1-m1", mine, **arrives),
    ]


def refused_by(mallory: Tenant, body: dict[str, Any]) -> str:
    """The words with which the API server refuses the tenant; none if it takes it."""
    try:
        mallory.create(body)
    except KubectlError as error:
        return error.complaint
    return ""


@pytest.mark.attacks(30)
@pytest.mark.timeout(300)
def test_an_order_for_another_namespace_is_refused(
    lab: Lab, mallory: Tenant, victim: Session
) -> None:
    """The tenant has a session of the same name, so that all but the UIDs fit. What the API server
    refuses the tenant is then written with the operator's own rights: the agent refuses it too."""
    mallory.begin("build", ["bash", "--norc"])
    own = mallory.await_running("build")["podName"]
    wanted = orders(victim, lab.get("pod", "-n", mallory.namespace, own))
    for body in wanted:
        if said := refused_by(mallory, body):
            assert "forbidden" in said, said
            assert mallory.user in said or "denied" in said, said
            lab.kubectl("create", "-n", mallory.namespace, f"--as={OPERATOR_ACCOUNT}", "-f", "-",
                        give=json.dumps(body))  # fmt: skip
    for body in wanted:
        refused(lab, mallory, victim, body["metadata"]["name"])
    assert not any(item["spec"].get("then") == "Stop" for item in lab.get("checkpoints")["items"])
    victim.writes_on()
    assert (victim.epoch, victim.status["phase"]) == (1, "Running")
    assert longest_gap(check(victim, 1)) < UNDISTURBED
    move(victim)
    victim.writes_on()
    check(victim, 2)


def refused(lab: Lab, mallory: Tenant, victim: Session, name: str) -> None:
    """With a reason, and an event of the tenant's namespace that names who refused it."""

    def over() -> dict[str, Any] | None:
        found: dict[str, Any] = lab.get("checkpoint", "-n", mallory.namespace, name)
        status: dict[str, Any] = found.get("status") or {}
        return status if status.get("phase") in ("Complete", "Failed") else None

    status = until(over, f"{name} is refused", ORDERED_WITHIN)
    assert status is not None
    assert status["phase"] == "Failed", status
    assert "location" not in status, status
    assert status["conditions"][0]["message"], status
    (event,) = until(lambda: mallory.refusals(name), f"an event says that {name} is refused")
    assert event["type"] == "Warning"
    assert f"refused by the agent of {victim.node}" in event["message"], event


# -- templates ------------------------------------------------------------------------------------

OTHERS: Final[dict[str, dict[str, Any]]] = {
    "the sidecar's name": {"initContainers": [{"name": "holdfast", "image": build.DEBIAN}]},
    "the state's volume": {"volumes": [{"name": "holdfast-state", "emptyDir": {}}]},
    "the token's volume": {
        "containers": [{"name": "session", "image": build.DEBIAN, "volumeMounts": [
            {"name": "holdfast-token", "mountPath": "/token"}]}]},
    "hold's folder": {
        "containers": [{"name": "session", "image": build.DEBIAN, "volumeMounts": [
            {"name": "own", "mountPath": "/run/holdfast-bin"}]}]},
    "the node's processes": {"hostPID": True},
}  # fmt: skip


@pytest.mark.attacks(28)
def test_a_template_with_what_is_not_the_tenants(mallory: Tenant) -> None:
    """Refused with the reason, by the API server itself."""
    for what, pod in OTHERS.items():
        with pytest.raises(KubectlError) as refused:
            mallory.begin("odd", ["bash"], pod={"volumes": [{"name": "own", "emptyDir": {}}]} | pod)
        assert "is invalid" in refused.value.complaint, what
        assert "holdfast" in refused.value.complaint or "remove" in refused.value.complaint, what


@pytest.mark.attacks(29)
def test_a_volume_of_the_nodes_files(mallory: Tenant, plant: Plant) -> None:
    """The namespace's profile refuses the pod, and the Session says so."""
    before = plant.seen()
    volumes = [{"name": "node", "hostPath": {"path": plant.path}}]
    mallory.begin("reader", ["bash"], pod={"volumes": volumes},
                  container={"volumeMounts": [{"name": "node", "mountPath": "/node"}]})  # fmt: skip

    def said() -> str:
        conditions = (mallory.session("reader").get("status") or {}).get("conditions") or ()
        return next((c["message"] for c in conditions if "PodSecurity" in c["message"]), "")

    assert "hostPath" in until(said, "the Session says why it has no pod")
    assert plant.seen() == before
