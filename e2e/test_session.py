"""A session as a Kubernetes object: made, used, ended, and never ended by what leaves it."""

from __future__ import annotations

import json
import statistics
import subprocess
import time
from typing import Any

import pytest

from e2e.cluster import build
from e2e.cluster.places import KUBECONFIG, REPOSITORY
from e2e.lab import (
    LEASE,
    OPERATOR,
    OPERATOR_NAMESPACE,
    Lab,
    Session,
    container_pids,
    manifest,
    until,
)

# kubelet looks at its containers once a second: every round begins at another moment of that.
ROUNDS = 6


def seconds(lab: Lab, body: dict[str, Any], what: str) -> float:
    text = json.dumps(body)
    started = time.monotonic()
    lab.kubectl("apply", "-f", "-", give=text)
    lab.kubectl("wait", "--for=condition=Ready", what, "--timeout=60s")
    return time.monotonic() - started


def bare_pod(name: str) -> dict[str, Any]:
    container = {"name": "c", "image": build.DEBIAN, "imagePullPolicy": "Never",
                 "command": ["bash", "-c", "sleep 1000"]}  # fmt: skip
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
            "spec": {"containers": [container], "terminationGracePeriodSeconds": 0}}  # fmt: skip


@pytest.mark.timed
def test_a_cluster_is_there_within_a_minute(lab: Lab) -> None:
    assert lab.report["cluster_up_seconds"] < 60


@pytest.mark.timed
def test_a_session_is_ready_about_as_fast_as_a_pod(lab: Lab) -> None:
    bare, ours = [], []
    for n in range(ROUNDS):
        time.sleep(n / ROUNDS)
        bare.append(seconds(lab, bare_pod(f"bare-{n}"), f"pod/bare-{n}"))
        lab.kubectl("delete", "pod", f"bare-{n}", "--now")
        time.sleep(n / ROUNDS)
        ours.append(seconds(lab, manifest(f"fast-{n}", ["bash"]), f"session/fast-{n}"))
        lab.kubectl("delete", "session", f"fast-{n}")
    ratio = statistics.median(ours) / statistics.median(bare)
    lab.report["bare_pod_ready_seconds"] = round(statistics.median(bare), 3)
    lab.report["session_ready_seconds"] = round(statistics.median(ours), 3)
    lab.report["session_ready_ratio_to_bare_pod"] = round(ratio, 3)
    assert ratio <= 1.5, f"sessions {ours}, pods {bare}"


def test_the_example_is_a_shell_and_reads_well(lab: Lab) -> None:
    text = (REPOSITORY / "examples" / "session.yaml").read_text()
    # The one thing that cannot be had here is an image from a registry.
    text = text.replace(
        "image: python:3.13", f"image: {build.DEBIAN}\n        imagePullPolicy: Never"
    )
    lab.kubectl("apply", "-f", "-", give=text)
    session = Session(lab, "build")
    session.await_ready()
    session.type("echo $((6 * 7)) by $(id -u) on $HOSTNAME")
    session.await_text("42 by 1000 on build")
    table = lab.kubectl("get", "hf")
    assert table.split()[:7] == ["NAME", "PHASE", "NODE", "EPOCH", "TURN", "CLIENTS", "IDLE"]
    assert "Running" in table
    assert "build" in lab.holdfast("ls")
    assert "bash" in lab.holdfast("graph", "build")
    described = lab.holdfast("describe", "build")
    assert "Ready" in described


def test_deleting_it_leaves_nothing(lab: Lab) -> None:
    lab.session("gone", "bash")
    lab.kubectl("delete", "session", "gone", "--timeout=60s")

    def left() -> list[str]:
        kinds = "pods,leases,pdb,serviceaccounts,roles,rolebindings"
        listed = lab.get(kinds, "-l", "holdfast.dev/session=gone")["items"]
        return [f"{item['kind']}/{item['metadata']['name']}" for item in listed]

    until(lambda: not left(), "nothing is left")


def test_an_end_is_told_with_its_status_and_last_lines(lab: Lab) -> None:
    session = lab.begin("brief", "bash", "-c", "echo so long; exit 7")
    status = session.await_phase("Ended")
    assert status["exit"]["code"] == 7
    assert "so long" in "\n".join(status["lastLines"])
    assert "so long" in session.screen()
    killed = lab.begin("shot", "bash", "-c", "kill -9 $BASHPID")
    assert killed.await_phase("Ended")["exit"]["signal"] == 9


def test_an_ended_session_goes_when_its_time_is_up(lab: Lab) -> None:
    lab.begin("short", "bash", "-c", "exit 0", spec={"ttlSecondsAfterEnded": 3})
    until(lambda: lab.find("session", "short") is None, "gone after its time")


def test_end_ends_it_and_keeps_it_readable(lab: Lab) -> None:
    session = lab.session("done", "bash")
    lab.holdfast("end", "done")
    assert session.await_phase("Ended")["phase"] == "Ended"
    with pytest.raises(AssertionError, match="cannot come back"):
        lab.kubectl("patch", "session", "done", "--type=merge", "-p", '{"spec": {"ended": false}}')


def test_a_command_that_does_not_exist_is_said(lab: Lab) -> None:
    status = lab.begin("typo", "bsah").await_phase("Failed")
    assert "bsah" in json.dumps(status["conditions"])


def test_nobody_owns_it(lab: Lab) -> None:
    """The operator and every client leave; then the operator comes back, newer."""
    session = lab.counting("free")
    uid = lab.get("pod", session.pod)["metadata"]["uid"]
    pids = set(container_pids(uid))
    version = lab.get("lease", "free")["metadata"]["resourceVersion"]
    lab.kubectl("scale", "-n", OPERATOR_NAMESPACE, "deploy/holdfast", "--replicas=0")
    lab.kubectl("wait", "-n", OPERATOR_NAMESPACE, "--for=delete", "pod", *OPERATOR, "--timeout=60s")
    time.sleep(1.5 * LEASE)
    session.writes_on()
    assert lab.get("lease", "free")["metadata"]["resourceVersion"] != version, "renewed by itself"
    lab.install(
        "upgrade", "--set=operator.podAnnotations.upgraded=yes", "--set=operator.replicas=1"
    )
    time.sleep(1.5 * LEASE)
    session.writes_on()
    assert session.epoch == 1
    assert pids <= set(container_pids(uid)), "adopted, not restarted"
    lab.helm("uninstall", "holdfast", "-n", OPERATOR_NAMESPACE, "--wait")
    time.sleep(3)
    session.writes_on()
    lab.install()
    session.await_ready()
    assert session.epoch == 1
    session.check()


@pytest.mark.parametrize(
    ("image", "command", "expected", "container"),
    [
        (build.DEBIAN, ["bash"], None, {}),
        (build.BUSYBOX, ["sh"], None, {}),
        (build.MUSL, ["/program"], "echo ready, uid 0", {}),
        (build.STATIC, ["/program"], "echo ready, uid 0", {}),
        (build.ENTRYPOINT, ["sh", "-c", "id -u; exec sh"], "1234", {}),
        (build.DEBIAN, ["bash", "-c", "id -u; exec bash"], "1000",
         {"securityContext": {"runAsUser": 1000, "runAsNonRoot": True}}),
        (build.STATIC, ["/program"], "echo ready, uid 1000",
         {"securityContext": {"runAsUser": 1000, "readOnlyRootFilesystem": True,
                              "allowPrivilegeEscalation": False,
                              "capabilities": {"drop": ["ALL"]}}}),
    ],
    ids=["debian", "busybox", "musl", "static", "own-entrypoint-and-user", "uid-1000",
         "restricted"],
)  # fmt: skip
def test_any_image(
    lab: Lab, image: str, command: list[str], expected: str | None, container: dict[str, Any]
) -> None:
    session = lab.session("any", *command, image=image, container=container)
    if expected is not None:
        session.await_text(expected)
    session.type("echo $((40 + 2))")
    session.await_text("1: echo $((40 + 2))" if command == ["/program"] else "42")


def test_the_restricted_profile_admits_it(lab: Lab) -> None:
    lab.kubectl("create", "namespace", "strict")
    try:
        lab.kubectl("label", "namespace", "strict", "pod-security.kubernetes.io/enforce=restricted")
        security = {"runAsNonRoot": True, "runAsUser": 1000,
                    "seccompProfile": {"type": "RuntimeDefault"}}  # fmt: skip
        own = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
        body = manifest("strict", ["bash"], pod={"securityContext": security},
                        container={"securityContext": own})  # fmt: skip
        body["metadata"]["namespace"] = "strict"
        lab.apply(body)
        lab.kubectl("wait", "-n", "strict", "--for=condition=Ready", "session/strict",
                    "--timeout=60s")  # fmt: skip
    finally:
        lab.kubectl("delete", "namespace", "strict", "--timeout=90s")


@pytest.mark.attacks(23)
def test_the_user_gets_no_token_and_the_sidecar_only_its_own(lab: Lab) -> None:
    session = lab.session("poor", "bash")
    session.type("ls /var/run/secrets; echo looked")
    session.await_text("looked")
    assert "kubernetes.io" not in session.screen().replace("/var/run/secrets", "")
    account = "system:serviceaccount:default:holdfast-poor"

    def may(*what: str) -> bool:
        return subprocess.run(
            [str(lab.programs / "kubectl"), f"--kubeconfig={KUBECONFIG}", "auth", "can-i", *what,
             f"--as={account}"],
            capture_output=True, check=False,
        ).returncode == 0  # fmt: skip

    assert may("update", "lease/poor")
    assert not may("update", "lease/other")
    assert not may("delete", "lease/poor")
    assert may("get", "session/poor")
    assert not may("get", "session/other")
    assert not may("list", "sessions")
    assert not any(may(verb, "session/poor") for verb in ("update", "patch", "delete", "watch"))
    assert not may("get", "secrets")
    assert not may("get", "pods")
