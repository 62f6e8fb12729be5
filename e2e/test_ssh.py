"""SSH to sessions on the real cluster, with the real client: who is let in, what RBAC says, and
what somebody attached sees of a move."""

from __future__ import annotations

import base64
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncssh
import pytest

from client_kit import Screen
from e2e.followers import without_a_gap
from e2e.lab import OPERATOR_NAMESPACE, Lab, until
from e2e.movers import MOVED_WITHIN, await_agents
from ssh_kit import Ssh, new_key, public, sign

NAMESPACE = "default"
GATEWAY = ("-l", "app.kubernetes.io/component=gateway")
DETACH = b"\x1cd"
PROMPT = rb"bash-[0-9.]+[#$] "
PATIENCE = 60.0


def binding(name: str, role: str, kind: str, subject: str) -> dict[str, Any]:
    api = "rbac.authorization.k8s.io"
    return {
        "apiVersion": f"{api}/v1",
        "kind": "RoleBinding",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "roleRef": {"apiGroup": api, "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": api, "kind": kind, "name": subject}],
    }


@pytest.fixture(scope="module")
def ssh(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ssh]:
    """ana writes; cy, by a certificate, is in a group that looks; eve is known, and may nothing."""
    folder: Path = tmp_path_factory.mktemp("ssh")
    ana, eve, authority = (new_key(folder / name) for name in ("ana", "eve", "authority"))
    new_key(folder / "cy")
    sign(authority, folder / "cy", ["cy@example.com"])
    lines = [
        f'user="ana" {public(ana)}',
        f'user="eve" {public(eve)}',
        f'cert-authority,principals="*@example.com",user="%p",groups="lookers" {public(authority)}',
    ]
    lab.apply({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "holdfast-gateway-ssh-keys", "namespace": OPERATOR_NAMESPACE},
        "data": {"people": "\n".join(lines) + "\n"},
    })  # fmt: skip
    lab.apply(binding("ana-uses", "holdfast-user", "User", "ana"))
    lab.apply(binding("lookers-look", "holdfast-observer", "Group", "lookers"))
    # New pods have the keys at once; to those that run the kubelet takes a minute to bring them.
    for verb in ("restart", "status"):
        lab.kubectl("rollout", verb, "deployment/holdfast-gateway", "-n", OPERATOR_NAMESPACE)
    found = lab.get("pods", "-n", OPERATOR_NAMESPACE, *GATEWAY)["items"]
    pod = next(pod for pod in found if "deletionTimestamp" not in pod["metadata"])
    own = asyncssh.import_private_key(base64.b64decode(host_key(lab)))
    made = Ssh(folder, 2222, public(own), pod["status"]["podIP"])
    until(
        lambda: made.run("eve", made.at("none"), "true").returncode != 255,
        "the keys are there",
        150,
        1.0,
    )
    yield made
    lab.kubectl("delete", "configmap", "holdfast-gateway-ssh-keys", "-n", OPERATOR_NAMESPACE)
    lab.kubectl("delete", "rolebinding", "ana-uses", "lookers-look", "--ignore-not-found")


def host_key(lab: Lab) -> str:
    look = ("secret", "holdfast-gateway-ssh-host", "-n", OPERATOR_NAMESPACE)
    return lab.kubectl("get", *look, "-o", "jsonpath={.data.ssh_host_key}")


@pytest.fixture
def screens() -> Iterator[list[Screen]]:
    opened: list[Screen] = []
    yield opened
    for screen in opened:
        screen.close()


def test_writer_observer_and_stranger(lab: Lab, ssh: Ssh, screens: list[Screen]) -> None:
    lab.session("build", "bash", "--norc")
    until(
        lambda: ssh.run("ana", ssh.at("build.default"), "echo ready").stdout == b"ready\n",
        "its sidecar has dialled in",
    )
    done = ssh.run("ana", ssh.at("build.default"), "--", "hostname; (exit 3)")
    assert (done.returncode, done.stdout.strip()) == (3, b"build")

    writer = ssh.terminal("ana", "build.default")
    screens.append(writer)
    writer.expect(PROMPT, PATIENCE)
    writer.type(b"echo typed-$((6*7))\r")
    writer.expect(rb"typed-42\r\n", PATIENCE)
    observer = ssh.terminal("cy", "build.default")
    screens.append(observer)
    observer.expect(rb"\[read-only: cy@example.com may observe default/build", PATIENCE)
    observer.expect(rb"typed-42", PATIENCE)
    observer.type(b"echo never-$((1+1))\r")
    writer.type(b"echo again-$((7*7))\r")
    observer.expect(rb"again-49\r\n", PATIENCE)
    assert b"never" not in observer.seen + writer.seen
    refused = ssh.run("cy", ssh.at("build.default"), "true")
    assert refused.returncode == 77
    assert b"may not create sessions/run" in refused.stderr

    said = {
        name: ssh.run("eve", ssh.at(f"{name}.default"), "true") for name in ("build", "nothing")
    }
    assert {one.returncode for one in said.values()} == {77}
    words = {one.stderr.replace(name.encode(), b"NAME") for name, one in said.items()}
    assert len(words) == 1, "who may not look learns no names"

    began = time.monotonic()
    lab.kubectl("delete", "rolebinding", "ana-uses")
    writer.expect(rb"holdfast: ana may not ", PATIENCE)
    assert writer.wait() == 77
    lab.report["ssh_cut_seconds"] = round(time.monotonic() - began, 1)
    assert time.monotonic() - began < 5 + 1  # and what kubectl takes to start
    lab.apply(binding("ana-uses", "holdfast-user", "User", "ana"))
    observer.type(DETACH)
    assert observer.wait() == 0


def numbers(screen: Screen) -> list[int]:
    return [int(found) for found in re.findall(rb"<(\d{5})>", screen.seen)]


@pytest.mark.timeout(240)
def test_attached_through_a_move(lab: Lab, ssh: Ssh, screens: list[Screen]) -> None:
    await_agents(lab)
    session = lab.session("walker", "bash", "--norc")
    screen = ssh.terminal("ana", "walker.default")
    screens.append(screen)
    screen.expect(PROMPT, PATIENCE)
    screen.type(b'for ((i=10000; i<99999; i++)); do echo "<$i>"; sleep .01; done\r')
    screen.expect(rb"<10050>", PATIENCE)
    lab.holdfast("move", "walker", timeout=MOVED_WITHIN)
    session.await_epoch(2)
    screen.pump(0.1)
    before = max(numbers(screen))
    screen.expect(rb"<%d>" % (before + 300), PATIENCE)
    told = b"is moving to another node" in screen.seen  # of one that takes longer than a moment
    assert numbers(screen)[0] == 10000
    without_a_gap("ssh", numbers(screen), painted_anew=told)
    screen.type(DETACH)
    assert screen.wait() == 0


def test_an_upgrade_keeps_the_host_key(lab: Lab, ssh: Ssh) -> None:
    before = host_key(lab)
    lab.install("upgrade")
    assert host_key(lab) == before
