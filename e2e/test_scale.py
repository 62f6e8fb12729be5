"""Two hundred Sessions at once: the operator comes to rest, small and quiet."""

from __future__ import annotations

import json
import re
import subprocess
import time

from e2e.cluster.faults import in_node
from e2e.cluster.places import KUBECONFIG
from e2e.lab import OPERATOR, OPERATOR_NAMESPACE, Lab, Session, manifest, until
from holdfast_operator.status import PASTIME_SECONDS
from holdfast_wire.lease import Timing

COUNT = 200
REAL = 4  # of them run; the others wait for a node that never comes
QUIET_SECONDS = 30.0
DURATION = 20


def operator_memory_mib(lab: Lab) -> float:
    """Resident, as the node's cgroup counts it without what the page cache can give back."""
    pod = lab.get("pods", "-n", OPERATOR_NAMESPACE, *OPERATOR)["items"][0]
    uid, node = pod["metadata"]["uid"], pod["spec"]["nodeName"]
    text = in_node(node, "sh", "-c", f"cat $(find /sys/fs/cgroup/memory -path '*{uid}*' "
                   "-name memory.stat -maxdepth 5 | head -1)")  # fmt: skip
    found = re.search(r"^total_rss (\d+)$", text, re.MULTILINE)
    assert found is not None, text
    return int(found[1]) / (1 << 20)


class Counted:
    """Changes of one kind of object in this namespace, each of which was a write."""

    def __init__(self, lab: Lab, kind: str) -> None:
        self._process = subprocess.Popen(
            [str(lab.programs / "kubectl"), f"--kubeconfig={KUBECONFIG}", "get", kind,
             "--watch-only", "-o", "name"],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def stop(self) -> list[str]:
        self._process.terminate()
        return self._process.communicate()[0].split()


def test_two_hundred_at_once(lab: Lab) -> None:
    errors = error_count(lab)
    nowhere = {"nodeSelector": {"no-such": "node"}}
    items = [
        manifest(f"s{n:03}", ["bash"], pod=None if n < REAL else nowhere,
                 spec={"lease": {"durationSeconds": DURATION}})
        for n in range(COUNT)
    ]  # fmt: skip
    started = time.monotonic()
    lab.kubectl("create", "-f", "-", give=json.dumps(
        {"apiVersion": "v1", "kind": "List", "items": items}))  # fmt: skip
    for n in range(REAL):
        Session(lab, f"s{n:03}").await_ready(120)

    def settled() -> bool:
        sessions = lab.get("sessions")["items"]
        pods = lab.get("pods", "-l", "holdfast.dev/session")["items"]
        phases = [s.get("status", {}).get("phase") for s in sessions]
        return len(pods) == COUNT and all(phase in ("Starting", "Running") for phase in phases)

    until(settled, "every session has its pod", 180, every=1)
    lab.report["operator_200_sessions_settled_seconds"] = round(time.monotonic() - started, 1)
    time.sleep(PASTIME_SECONDS + 10)  # what a session did last is written half a minute late
    begun = time.monotonic()
    watches = {kind: Counted(lab, kind) for kind in ("leases", "sessions", "pods", "pdb")}
    time.sleep(QUIET_SECONDS)
    changes = {kind: watch.stop() for kind, watch in watches.items()}
    span = time.monotonic() - begun
    lab.report["operator_200_sessions_mib"] = round(operator_memory_mib(lab), 1)
    total = sum(len(names) for names in changes.values())
    # Those that wait for a node have no sidecar, and cost nothing at all.
    rate = total / span / REAL
    lab.report["api_writes_per_session_per_second"] = round(rate, 4)
    renewals = 1 / Timing.of(DURATION).renew_every
    assert rate <= renewals * 1.1, f"{rate:.2f} writes a second and session while idle: {changes}"
    assert rate >= renewals / 2, "nothing was counted"
    assert lab.report["operator_200_sessions_mib"] <= 150
    assert error_count(lab) == errors, "no error loops"
    lab.kubectl("delete", "sessions", "--all", "--timeout=300s", timeout=310)


def error_count(lab: Lab) -> int:
    text = lab.kubectl("logs", "-n", OPERATOR_NAMESPACE, "deploy/holdfast", "--tail=-1")
    return sum(1 for line in text.splitlines() if '"level": "error"' in line)
