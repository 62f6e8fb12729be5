"""Attacks from one node of a real cluster on the others, by somebody who is root there: with its
agent's token, and a certificate that he gets with it as the agent does."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
import yaml
from cryptography.hazmat.primitives.asymmetric import ec

from e2e.cluster.places import KUBECONFIG
from e2e.keys import BUNDLE, SECRET, put_keys
from e2e.lab import OPERATOR_NAMESPACE, Lab, Session, until
from e2e.movers import agent_pid, agent_pods, ask, await_agents, other, walking
from e2e.test_bad_images import Stored, suspended, wake
from holdfast_kube import order_keys
from holdfast_kube.client import Kube
from holdfast_kube.credentials import Credentials, from_kubeconfig
from holdfast_kube.order_keys import Of, Unopened
from holdfast_node.certificate import Identity
from holdfast_node.pair import Fault, Keys, Manifest, Unfit
from holdfast_wire.errors import Unauthenticated
from node_keys import Authority

TOKEN: Final = "run/secrets/kubernetes.io/serviceaccount/token"  # noqa: S105 - a path
IN_SECRET: Final = ("-n", OPERATOR_NAMESPACE, "secret", SECRET)
# In the network of node n1's agent, with its certificate, in the place of n2's agent.
LISTENS: Final = """
import socket, ssl, sys
context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=sys.argv[2])
context.verify_mode = ssl.CERT_REQUIRED
context.load_cert_chain(sys.argv[1])
with socket.create_server(("", 7444)) as listening:
    print("listens", flush=True)
    plain, _ = listening.accept()
    with context.wrap_socket(plain, server_side=True) as found:
        try:
            print("got", len(found.recv(1)), flush=True)
        except OSError:
            print("got 0", flush=True)
"""


class Thief:
    """Root on a node: has what its agent has."""

    def __init__(self, node: str, folder: Path, lab: Lab) -> None:
        self.node, self.folder = node, folder
        token = (Path(f"/proc/{agent_pid(lab, node)}/root") / TOKEN).read_text()
        whole = from_kubeconfig(yaml.safe_load(KUBECONFIG.read_text()), KUBECONFIG.parent)
        self.credentials = Credentials(whole.server, ca=whole.ca, token=token)
        found = lab.kubectl("get", "-n", OPERATOR_NAMESPACE, "configmap", BUNDLE, "-o", "json")
        (folder / "ca-bundle.crt").write_text(json.loads(found)["data"]["ca-bundle.crt"])

    async def certificate_for(self, node: str) -> Identity:
        async with Kube(self.credentials) as kube:
            identity = Identity(node, self.folder, kube)
            identity._pairs = [await identity._requested()]
            return identity


@pytest.mark.attacks(34)
@pytest.mark.timeout(300)
def test_one_node_is_not_all_nodes(lab: Lab, tmp_path: Path) -> None:
    session = walking(lab, "wanted", 0.05)
    mine = session.node
    theirs = other(mine)
    thief = Thief(mine, tmp_path, lab)
    with pytest.raises(Unauthenticated, match="its subject must be system:holdfast-node"):
        asyncio.run(thief.certificate_for(theirs))
    got = asyncio.run(thief.certificate_for(mine))
    (tmp_path / "pair.pem").write_bytes(got._pair.pem())
    took(lab, session, thief, theirs)
    opened(lab, thief, got._pair.key, suspended(session))
    wake(session)
    session.await_phase("Running", 120)


def took(lab: Lab, session: Session, thief: Thief, theirs: str) -> None:
    """A move that is meant for another node is sent to this one, as whoever holds the network can
    have it; it gets nothing."""
    note = "holdfast.dev/agent-address"
    before = lab.get("node", theirs)["metadata"]["annotations"][note]
    address = agent_pods(lab)[thief.node]["status"]["podIP"]
    words = ["nsenter", "-t", str(agent_pid(lab, thief.node)), "-n", sys.executable, "-c", LISTENS]
    files = [str(thief.folder / "pair.pem"), str(thief.folder / "ca-bundle.crt")]
    with subprocess.Popen([*words, *files], stdout=subprocess.PIPE, text=True) as listening:
        try:
            assert listening.stdout is not None
            assert listening.stdout.readline() == "listens\n"
            lab.kubectl("annotate", "--overwrite", "node", theirs, f"{note}={address}:7444")
            ask(session)
            assert listening.stdout.readline() == "got 0\n"
            until(lambda: failed(session), "the move is refused", 60)
        finally:
            lab.kubectl("annotate", "--overwrite", "node", theirs, f"{note}={before}")
            listening.kill()
    assert f"answers in the place of {theirs}'s" in failed(session)
    session.writes_on()
    session.await_epoch(2, 150)
    assert session.node == theirs


def failed(session: Session) -> str:
    items = session.lab.get("checkpoints")["items"]
    for item in items:
        status = item.get("status") or {}
        if item["spec"]["sessionName"] == session.name and status.get("phase") == "Failed":
            return str(status["conditions"][0]["message"])
    return ""


def opened(lab: Lab, thief: Thief, key: ec.EllipticCurvePrivateKey, stored: Stored) -> None:
    """Of a checkpoint that is not this node's: the sealed bytes, the Checkpoint, the token and the
    key of its own certificate. Whoever has the wrapping key, the operator, opens it."""
    item = lab.get("checkpoint", stored.name)
    meta, spec = item["metadata"], item["spec"]
    assert spec["sourceNode"] != thief.node
    of = Of(meta["namespace"], meta["name"], spec["sessionUID"])
    for one in spec["key"]["for"]:
        for node in (one["node"], thief.node):
            with pytest.raises(Unopened):
                order_keys.open_sealed(one["sealed"], key, node, of)
    signed = stored.manifest()
    for guess in (thief.credentials.token or "", of.name, spec["key"]["wrapped"]):
        with pytest.raises(Unfit) as raised:
            Manifest.read(signed, Keys(guess.encode().ljust(32, b"\0")))
        assert raised.value.fault is Fault.UNSIGNED
    wrapping = Held(lab).wrapping[spec["key"]["id"]]
    assert Manifest.read(signed, Keys(order_keys.unwrap(spec["key"]["wrapped"], wrapping, of)))


class Held:
    """What is in the operator's Secret."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        body = json.loads(lab.kubectl("get", *IN_SECRET, "-o", "json"))
        found = {name: base64.b64decode(text) for name, text in body["data"].items()}
        self.authorities = [Authority.read(found["ca.crt"], found["ca.key"])]
        self.wrapping = {
            name.removeprefix("kek-"): base64.b64decode(key)
            for name, key in found.items()
            if name.startswith("kek-")
        }

    def put(self, current: str) -> None:
        """And all have it: kubelet takes a minute by itself."""
        put_keys(self.lab, self.authorities, self.wrapping, current)
        for kind in ("deployment/holdfast", "daemonset/holdfast-node"):
            self.lab.kubectl("-n", OPERATOR_NAMESPACE, "rollout", "restart", kind)
            self.lab.kubectl("-n", OPERATOR_NAMESPACE, "rollout", "status", kind, "--timeout=100s")
        await_agents(self.lab)


def wrapped_with(lab: Lab, names: list[str]) -> set[str]:
    """The ids of the keys by which these checkpoints are opened."""
    items = {item["metadata"]["name"]: item for item in lab.get("checkpoints")["items"]}
    keys = [(items[name].get("status") or {}).get("key") or items[name]["spec"]["key"]
            for name in names]  # fmt: skip
    return {key["id"] for key in keys}


@pytest.mark.attacks(40)
@pytest.mark.long
@pytest.mark.timeout(600)
def test_keys_are_replaced_twice_and_all_that_sleep_wake(lab: Lab) -> None:
    held = Held(lab)
    sessions: list[Session] = []
    stored: list[str] = []
    for generation in range(3):
        session = walking(lab, f"sleeper-{generation}", 0.05)
        stored.append(suspended(session).name)
        sessions.append(session)
        if generation == 2:
            break
        name = f"r{generation}"
        held.wrapping[name] = os.urandom(32)
        held.authorities.insert(0, Authority(name))
        held.put(name)
        until(lambda: wrapped_with(lab, stored) == {name}, f"all is wrapped with {name}", 90)  # noqa: B023
    # Nothing needs the former ones any more.
    held.wrapping, held.authorities = {name: held.wrapping[name]}, held.authorities[:1]
    held.put(name)
    for session in sessions:
        wake(session)
    for session in sessions:
        session.await_phase("Running", 150)
        session.writes_on()
