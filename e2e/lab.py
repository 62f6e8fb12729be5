"""What an end-to-end test does to a cluster: apply, wait, look, type, break.

Sessions of the tests have the shortest Lease there is, so that a fault plays out in seconds.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from e2e.cluster import build
from e2e.cluster.places import HERE, KUBECONFIG, REPOSITORY, SHARED
from e2e.cluster.running import running
from e2e.look import Look, Refused
from holdfast_wire.lease import SHORTEST, Timing

T = TypeVar("T")
LEASE: Final = SHORTEST
TIMING: Final = Timing.of(LEASE)
# Beside SHARED, what a test's session may mount of its node.
NODE_PATH: Final = f"/tmp/holdfast-{os.getpid()}"
# By then everything of a session whose renewals stop is frozen, on this machine's one clock.
FROZEN_BY: Final = TIMING.freeze_after + TIMING.freeze_takes
PATIENCE: Final = 60.0
OPERATOR_NAMESPACE: Final = "holdfast-system"
CHART: Final = REPOSITORY / "charts" / "holdfast"
OPERATOR: Final = ("-l", "app.kubernetes.io/component=operator")

# The oracle's one half: counts, with its epoch, into storage outside the pod and to the terminal.
COUNTER: Final = """
import os, sys, time
epoch = open(os.environ["HOLDFAST_EPOCH_FILE"]).read().strip()
store = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
n = 0
while True:
    n += 1
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    os.write(store, f"{epoch} {n} {now:.4f}\\n".encode())
    print(f"<{epoch}:{n}>", flush=True)
    time.sleep(0.05)
"""


def boottime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def until(look: Callable[[], T], what: str, patience: float = PATIENCE, every: float = 0.25) -> T:
    """The first true thing seen; what was seen last, in the complaint."""
    give_up = time.monotonic() + patience
    while True:
        seen = look()
        if seen:
            return seen
        if time.monotonic() > give_up:
            raise AssertionError(f"not within {patience:g} s: {what}; last seen: {seen!r}")
        time.sleep(every)


class KubectlError(AssertionError):
    def __init__(self, command: tuple[str, ...], complaint: str) -> None:
        super().__init__(f"kubectl {' '.join(command)}: {complaint}")
        self.complaint = complaint


@dataclass(frozen=True, slots=True)
class Mark:
    """One write of the counter."""

    epoch: int
    number: int
    at: float  # CLOCK_BOOTTIME, which all nodes here have in common


class Lab:
    def __init__(self, programs: Path) -> None:
        self.programs = programs
        self.report: dict[str, Any] = {}
        self._look = Look()

    def close(self) -> None:
        self._look.close()

    # -- kubectl ----------------------------------------------------------------------------------

    def kubectl(self, *arguments: str, give: str | None = None, timeout: float = 120.0) -> str:
        command = [str(self.programs / "kubectl"), f"--kubeconfig={KUBECONFIG}", *arguments]
        done = subprocess.run(
            command, input=give, capture_output=True, text=True, timeout=timeout, check=False
        )
        if done.returncode != 0:
            raise KubectlError(arguments, (done.stderr or done.stdout).strip())
        return done.stdout

    def get(self, *arguments: str) -> dict[str, Any]:
        try:
            return self._look.get(*arguments)
        except Refused as error:
            raise KubectlError(("get", *arguments), str(error)) from error

    def find(self, *arguments: str) -> dict[str, Any] | None:
        """None if there is none."""
        try:
            return self._look.get(*arguments)
        except Refused as error:
            if error.missing:
                return None
            raise KubectlError(("get", *arguments), str(error)) from error

    def apply(self, manifest: dict[str, Any]) -> None:
        self.kubectl("apply", "-f", "-", give=json.dumps(manifest))

    # -- sessions ---------------------------------------------------------------------------------

    def session(self, name: str, *command: str, **options: Any) -> Session:
        """Applied and ready. `options` go to `manifest`."""
        session = self.begin(name, *command, **options)
        session.await_ready()
        return session

    def begin(self, name: str, *command: str, **options: Any) -> Session:
        """Applied."""
        self.apply(manifest(name, list(command), **options))
        return Session(self, name)

    def counting(self, name: str, **options: Any) -> Session:
        """One that runs the oracle's counter."""
        store = SHARED / name
        store.unlink(missing_ok=True)
        volume = {"name": "shared", "hostPath": {"path": str(SHARED)}}
        mount = {"name": "shared", "mountPath": "/shared"}
        options.setdefault("container", {}).setdefault("volumeMounts", []).append(mount)
        options.setdefault("pod", {}).setdefault("volumes", []).append(volume)
        session = self.session(name, "python3", "-c", COUNTER, f"/shared/{name}", **options)
        until(lambda: len(session.marks()) > 3, f"{name} counts")
        return session

    def holdfast(self, *arguments: str, timeout: float = 60.0) -> str:
        """The product's own client, as `kubectl holdfast`."""
        command = [str(REPOSITORY / ".venv/bin/kubectl-holdfast"), f"--kubeconfig={KUBECONFIG}"]
        env = {"HOLDFAST_KUBECTL": str(self.programs / "kubectl"), "PATH": "/usr/bin:/bin",
               "HOME": "/nonexistent"}  # fmt: skip
        done = subprocess.run(
            [*command, *arguments], capture_output=True, text=True, timeout=timeout, env=env,
            check=False,
        )  # fmt: skip
        if done.returncode != 0:
            raise KubectlError(("holdfast", *arguments), done.stderr.strip())
        return done.stdout

    def tidy(self) -> bool:
        """No session is there, and every node takes pods: in one look, for most tests leave
        nothing."""
        found = self.get("sessions,nodes", "--all-namespaces")["items"]
        nodes = [item for item in found if item["kind"] == "Node"]
        return len(nodes) == len(found) and all(_takes_pods(node) for node in nodes)

    def await_nodes(self) -> None:
        self.kubectl("wait", "--for=condition=Ready", "node", "--all", "--timeout=90s")

        def untainted() -> bool:
            # kind's control plane is a node too, and always has one.
            workers = self.get("nodes", *running().nodes)["items"]
            return not any(node["spec"].get("taints") for node in workers)

        until(untainted, "every node takes pods")

    def away(self) -> str:
        """A node that can be broken without breaking the operator."""
        pods = self.get("pods", "-n", OPERATOR_NAMESPACE, *OPERATOR)["items"]
        taken = {pod["spec"].get("nodeName") for pod in pods}
        return next(node for node in running().nodes if node not in taken)

    def helm(self, *arguments: str, timeout: float = 180.0) -> str:
        command = [str(REPOSITORY / ".venv/bin/helm"), f"--kubeconfig={KUBECONFIG}", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def install(self, verb: str = "install", *more: str, chart: Path = CHART) -> None:
        # The oracle writes into a folder of the node: admission refuses that, but for these paths.
        paths = f"holdfast.dev/host-paths={SHARED} {NODE_PATH}"
        self.kubectl("annotate", "namespace", "default", paths, "--overwrite")
        self.helm(
            verb, "holdfast", str(chart),
            "--namespace", OPERATOR_NAMESPACE, "--create-namespace", "--wait", "--timeout=120s",
            "--values", str(HERE / "values.yaml"), *more,
        )  # fmt: skip


def manifest(
    name: str,
    command: list[str],
    image: str = build.DEBIAN,
    node: str | None = None,
    container: dict[str, Any] | None = None,
    pod: dict[str, Any] | None = None,
    spec: dict[str, Any] | None = None,
) -> dict[str, Any]:
    body: dict[str, Any] = {
        "containers": [
            {"name": "session", "image": image, "imagePullPolicy": "Never", **(container or {})}
        ],
        "terminationGracePeriodSeconds": 10,
        **(pod or {}),
    }
    if node is not None:
        body["affinity"] = _prefers(node)
    return {
        "apiVersion": "holdfast.dev/v1alpha1",
        "kind": "Session",
        "metadata": {"name": name},
        "spec": {
            "command": command,
            "lease": {"durationSeconds": LEASE},
            "template": {"spec": body},
            **(spec or {}),
        },
    }


def _takes_pods(node: dict[str, Any]) -> bool:
    conditions = {one["type"]: one["status"] for one in node["status"]["conditions"]}
    return conditions.get("Ready") == "True" and not node["spec"].get("taints")


def _prefers(node: str) -> dict[str, Any]:
    """There if it can be, elsewhere if not: a session must be able to leave."""
    term = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In",
                                  "values": [node]}]}  # fmt: skip
    rule = {"weight": 1, "preference": term}
    return {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [rule]}}


class Session:
    def __init__(self, lab: Lab, name: str) -> None:
        self.lab, self.name = lab, name

    @property
    def body(self) -> dict[str, Any]:
        return self.lab.get("session", self.name)

    @property
    def status(self) -> dict[str, Any]:
        return dict(self.body.get("status") or {})

    @property
    def pod(self) -> str:
        return str(self.status["podName"])

    @property
    def node(self) -> str:
        return str(self.status["nodeName"])

    @property
    def epoch(self) -> int:
        return int(self.status["epoch"])

    def condition(self, kind: str) -> dict[str, Any]:
        conditions = self.status.get("conditions", [])
        return next((dict(c) for c in conditions if c["type"] == kind), {})

    def await_ready(self, patience: float = PATIENCE) -> None:
        self.lab.kubectl("wait", "--for=condition=Ready", f"session/{self.name}",
                         f"--timeout={patience:.0f}s")  # fmt: skip

    def await_epoch(self, epoch: int, patience: float = PATIENCE) -> None:
        """That incarnation runs."""

        def there() -> bool:
            status = self.status
            return status.get("epoch") == epoch and status.get("phase") == "Running"

        until(there, f"{self.name} runs as incarnation {epoch}", patience)

    def await_phase(self, phase: str, patience: float = PATIENCE) -> dict[str, Any]:
        def there() -> dict[str, Any] | None:
            status = self.status
            return status if status.get("phase") == phase else None

        seen = until(there, f"{self.name} is {phase}", patience)
        assert seen is not None
        return seen

    def events(self) -> list[str]:
        """Reason and message, oldest first."""
        listed = self.lab.get("events", "--field-selector", f"involvedObject.name={self.name}")
        return [f"{e['reason']}: {e['message']}" for e in listed["items"]]

    def delete(self) -> None:
        self.lab.kubectl("delete", "session", self.name, "--wait=true", "--ignore-not-found")

    # -- what its terminal shows -----------------------------------------------------------------

    def type(self, line: str) -> None:
        self.lab.holdfast("send", self.name, line, "--enter")

    def screen(self) -> str:
        return self.lab.holdfast("screen", self.name, "--scrollback")

    def await_text(self, text: str, patience: float = PATIENCE) -> None:
        until(lambda: text in self.screen(), f"{text!r} on the screen of {self.name}", patience)

    # -- what its oracle says --------------------------------------------------------------------

    def marks(self) -> list[Mark]:
        try:
            lines = (SHARED / self.name).read_text().splitlines(keepends=True)
        except FileNotFoundError:
            return []
        return [_mark(line) for line in lines if line.endswith("\n")]

    def check(self) -> list[Mark]:
        """No two incarnations at once, none that comes back, no number twice or left out."""
        marks = self.marks()
        for before, after in itertools.pairwise(marks):
            assert before.at <= after.at, f"time runs back: {before} {after}"
            if after.epoch == before.epoch:
                assert after.number == before.number + 1, f"a gap or a double: {before} {after}"
            else:
                assert after.epoch > before.epoch, f"an old epoch wrote again: {before} {after}"
                assert after.number == 1, f"a new incarnation in mid-count: {before} {after}"
        return marks

    def writes_on(self, patience: float = PATIENCE) -> None:
        count = len(self.marks())
        until(lambda: len(self.marks()) > count + 3, f"{self.name} writes on", patience)

    # -- its processes, seen from the machine -----------------------------------------------------

    def processes(self, pod_uid: str | None = None) -> dict[int, str]:
        """Every process of the session's container (hold left out): pid and state."""
        uid = pod_uid or self.lab.get("pod", self.pod)["metadata"]["uid"]
        return {pid: process_state(pid) for pid in container_pids(uid) if not is_ours(pid)}

    def frozen(self, pod_uid: str | None = None) -> bool:
        found = self.processes(pod_uid)
        return bool(found) and all(state in "TtZX" for state in found.values())


def _mark(line: str) -> Mark:
    epoch, number, at = line.split()
    return Mark(int(epoch), int(number), float(at))


def container_pids(pod_uid: str) -> Iterator[int]:
    """All processes of a pod, by its cgroup."""
    marks = (pod_uid, pod_uid.replace("-", "_"))
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            groups = (entry / "cgroup").read_text()
        except OSError:
            continue
        if any(mark in groups for mark in marks):
            yield int(entry.name)


def command_line(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().rstrip("\0").split("\0")
    except OSError:
        return []


def is_ours(pid: int) -> bool:
    """hold and its keeper, the sidecar, the pod's pause: what is not the session's own."""
    words = command_line(pid)
    first = words[0] if words else ""
    return (
        not first
        or first.endswith(("/hold", "/pause"))
        or (first.endswith("runc") and words[1:] == ["init"])  # on its way to run a probe
        or any(word.endswith(("holdfast-sidecar", "holdfast-relay")) for word in words)
    )


def sidecar_pid(pod_uid: str) -> int:
    for pid in container_pids(pod_uid):
        if any(word.endswith("holdfast-sidecar") for word in command_line(pid)):
            return pid
    raise AssertionError(f"no sidecar runs in pod {pod_uid}")


def process_state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"
