"""One cluster for each worker of the run, holdfast installed by its chart, a report of what was
measured."""

from __future__ import annotations

import fcntl
import gc
import json
import os
import platform
import subprocess
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import e2e.worker  # noqa: F401  # before all of the cluster
from client_kit import Screen
from e2e.cluster import __main__ as cluster
from e2e.cluster import build
from e2e.cluster.leftovers import leftovers
from e2e.cluster.places import KUBECONFIG, LOGS, NUMBER, REPOSITORY, STATE
from e2e.cluster.running import running
from e2e.guests import guests
from e2e.lab import OPERATOR_NAMESPACE, KubectlError, Lab

__all__ = ["guests"]  # for all

BUILD = REPOSITORY / "build" / "e2e"
# Marks with numbers: of the tables in docs/faults.md, and in docs/gateway.md and docs/security.md.
NUMBERED = ("attacks", "faults")
PASSED: set[tuple[str, int]] = set()
FAILED: set[tuple[str, int]] = set()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """First those that need a machine without a cluster. HOLDFAST_SHORT=1 leaves out what is marked
    `long`, and says how much that is."""
    items.sort(key=lambda item: item.path.name != "test_cluster.py")
    for item in items:
        for kind in NUMBERED:
            for mark in item.iter_markers(kind):
                item.user_properties += [(kind, number) for number in mark.args]
    if os.environ.get("HOLDFAST_SHORT") != "1":
        return
    left_out = [item for item in items if item.get_closest_marker("long")]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """A test's attacks and faults count when it has passed, and no other test with that number
    failed."""
    if report.when != "call" and report.passed:
        return
    for kind, number in report.user_properties:
        if kind in NUMBERED:
            (PASSED if report.passed else FAILED).add((kind, int(str(number))))


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workerinput") or not PASSED | FAILED:
        return  # its controller hears of all of them
    write_report({f"{kind}_passed": _numbers(kind) for kind in NUMBERED})


def _numbers(kind: str) -> list[int]:
    return sorted(number for found, number in PASSED - FAILED if found == kind)


def pytest_collection_finish(session: pytest.Session) -> None:
    """What only some need is built before any test's time runs."""
    if any("bucket" in getattr(item, "fixturenames", ()) for item in session.items):
        build.s3_server()


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    """HOLDFAST_KEEP=1 uses the cluster that is up, and leaves it up."""
    keep = os.environ.get("HOLDFAST_KEEP") == "1"
    if not (keep and STATE.exists()):
        cluster.up(None if keep else os.getpid())
    BUILD.mkdir(parents=True, exist_ok=True)
    made = Lab(running().programs)
    if made.find("namespace", OPERATOR_NAMESPACE) is None:
        made.install()
    made.report["cluster_up_seconds"] = float((STATE / "up_seconds").read_text())
    yield made
    made.close()
    write_report(made.report)
    if not keep:
        cluster.down()
        assert leftovers() == []


@pytest.fixture
def attach(lab: Lab) -> Iterator[Callable[[str], Screen]]:
    """`kubectl holdfast attach`, in a terminal."""
    opened: list[Screen] = []
    env = {"HOLDFAST_KUBECTL": str(lab.programs / "kubectl"), "PATH": "/usr/bin:/bin",
           "HOME": "/nonexistent", "TERM": "xterm-256color", "LANG": "C.UTF-8"}  # fmt: skip
    program = str(REPOSITORY / ".venv" / "bin" / "kubectl-holdfast")

    def open_screen(name: str) -> Screen:
        command = [program, f"--kubeconfig={KUBECONFIG}", "attach", name]
        opened.append(Screen(command, env))
        return opened[-1]

    yield open_screen
    for screen in opened:
        screen.close()


@pytest.fixture(autouse=True)
def tidy(lab: Lab, request: pytest.FixtureRequest) -> Iterator[None]:
    """No session outlives its test; of a failed one everything is kept that tells why."""
    failed = request.session.testsfailed
    yield
    if request.session.testsfailed > failed:
        collect(lab, BUILD / "failed" / f"{request.node.name}-{NUMBER}")
    if lab.tidy():
        return
    lab.kubectl("delete", "sessions", "--all", "--all-namespaces", "--timeout=90s", timeout=100)
    lab.await_nodes()


@pytest.fixture(autouse=True)
def left_to_the_collector() -> Iterator[None]:
    """MCP's client closes its connections by being forgotten, and not always at once: the next test
    would be told of it."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


def collect(lab: Lab, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    looks = {
        "sessions": ("get", "sessions,leases,pods,pdb", "-A", "-o", "yaml"),
        "events": ("get", "events", "-A", "--sort-by=.metadata.creationTimestamp"),
        "operator": ("logs", "-n", OPERATOR_NAMESPACE, "deploy/holdfast", "--tail=2000"),
        "pods": ("describe", "pods"),
    }
    for name, command in looks.items():
        try:
            text = lab.kubectl(*command)
        except (KubectlError, subprocess.TimeoutExpired) as error:
            text = str(error)
        (folder / name).write_text(text)
    for log in LOGS.glob("*.log"):
        with log.open("rb") as whole:
            whole.seek(max(0, log.stat().st_size - (1 << 20)))
            (folder / log.name).write_bytes(whole.read())


def write_report(measured: dict[str, Any]) -> None:
    commit = subprocess.run(
        ["git", "-C", str(REPOSITORY), "rev-parse", "--short", "HEAD"],
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    model = next(
        (line.partition(":")[2].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
         if line.startswith("model name")),
        platform.machine(),
    )  # fmt: skip
    machine = f"{model}, {os.cpu_count()} cores, Linux {platform.release()}"
    BUILD.mkdir(parents=True, exist_ok=True)
    with (BUILD / "report.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # until it is closed
        merge({**measured, "machine": machine, "commit": commit}, BUILD / "report.json")


def merge(measured: dict[str, Any], report: Path) -> None:
    """With what others measured at the same commit."""
    before = json.loads(report.read_text()) if report.exists() else {}
    if before.get("commit") != measured["commit"]:
        before = {}  # another's figures
    body = {**before, **measured}
    for kind in NUMBERED:
        found = {*before.get(f"{kind}_passed", ()), *measured.get(f"{kind}_passed", ())}
        if left := found - {number for marked, number in FAILED if marked == kind}:
            body[f"{kind}_passed"] = sorted(left)
        else:
            body.pop(f"{kind}_passed", None)
    report.write_text(json.dumps(body, indent=2, sort_keys=True) + "\n")
