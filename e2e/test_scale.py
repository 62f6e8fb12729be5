"""Two hundred Sessions at once: the operator comes to rest, small and quiet."""

from __future__ import annotations

import json
import re
import time

from e2e.cluster.faults import in_node
from e2e.lab import OPERATOR_NAMESPACE, Lab, Session, manifest, until

COUNT = 200
REAL = 4  # of them run; the others wait for a node that never comes
QUIET_SECONDS = 30.0


def operator_memory_mib(lab: Lab) -> float:
    """Resident, as the node's cgroup counts it without what the page cache can give back."""
    pod = lab.get("pods", "-n", OPERATOR_NAMESPACE)["items"][0]
    uid, node = pod["metadata"]["uid"], pod["spec"]["nodeName"]
    text = in_node(node, "sh", "-c", f"cat $(find /sys/fs/cgroup/memory -path '*{uid}*' "
                   "-name memory.stat -maxdepth 5 | head -1)")  # fmt: skip
    found = re.search(r"^total_rss (\d+)$", text, re.MULTILINE)
    assert found is not None, text
    return int(found[1]) / (1 << 20)


def writes(lab: Lab) -> float:
    """How many writes the API server has served in all."""
    text = lab.kubectl("get", "--raw", "/metrics")
    verbs = r'verb="(POST|PUT|PATCH|DELETE|APPLY)"'
    kinds = (
        r'resource="(sessions|leases|pods|poddisruptionbudgets|events|serviceaccounts|roles|'
        r'rolebindings)"'
    )
    return sum(
        float(line.rsplit(" ", 1)[1])
        for line in text.splitlines()
        if line.startswith("apiserver_request_total{")
        and re.search(verbs, line)
        and re.search(kinds, line)
    )


def test_two_hundred_at_once(lab: Lab) -> None:
    errors = error_count(lab)
    nowhere = {"nodeSelector": {"no-such": "node"}}
    items = [
        manifest(f"s{n:03}", ["bash"], pod=None if n < REAL else nowhere,
                 spec={"lease": {"durationSeconds": 20}})
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
    time.sleep(10)
    before, at = writes(lab), time.monotonic()
    time.sleep(QUIET_SECONDS)
    span = time.monotonic() - at
    rate = (writes(lab) - before) / span
    lab.report["operator_200_sessions_mib"] = round(operator_memory_mib(lab), 1)
    lab.report["api_writes_200_sessions_per_second"] = round(rate, 3)
    # Only those that run renew; nodes and the leader have Leases of their own.
    renewals = REAL / 3.0
    others = len(lab.get("leases", "-A")["items"]) - COUNT
    lab.report["api_writes_per_session_per_second"] = round(max(0.0, rate - others / 2.0) / REAL, 4)
    assert rate <= renewals * 1.1 + others / 2.0, f"{rate:.2f} writes a second while idle"
    assert lab.report["operator_200_sessions_mib"] <= 150
    assert error_count(lab) == errors, "no error loops"
    lab.kubectl("delete", "sessions", "--all", "--timeout=300s", timeout=310)


def error_count(lab: Lab) -> int:
    text = lab.kubectl("logs", "-n", OPERATOR_NAMESPACE, "deploy/holdfast", "--tail=-1")
    return sum(1 for line in text.splitlines() if '"level": "error"' in line)
