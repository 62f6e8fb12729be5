"""What the tests of moves have in common: the ways to ask for one, to see one, and the oracle of a
session that goes on as it was through all of them.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from e2e.cluster.places import KUBECONFIG, SHARED
from e2e.cluster.running import running
from e2e.lab import (
    OPERATOR_NAMESPACE,
    Lab,
    Mark,
    Session,
    command_line,
    container_pids,
    is_ours,
    until,
)

# One move takes a second or two on a machine with nothing else to do.
MOVED_WITHIN: Final = 60.0
AGENT: Final = ("-l", "app.kubernetes.io/component=node")

# The counter of `lab.COUNTER`, which lives through moves: its epoch is that of the moment. The
# longest time between two of its ticks is how long it was frozen. By the wall clock: to a restored
# process CRIU gives a time namespace in which the others stood still from the dump to the restore.
WALKER: Final = """
import os, sys, time
path, every = os.environ["HOLDFAST_EPOCH_FILE"], float(sys.argv[2])
store = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
n, since = 0, time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
while True:
    n += 1
    with open(path) as now:
        epoch = now.read().strip()
    at = time.time() - since
    os.write(store, f"{epoch} {n} {at:.4f}\\n".encode())
    print(f"<{epoch}:{n}>", flush=True)
    time.sleep(every)
"""


def shared(*, at: str = "/shared") -> dict[str, Any]:
    """Options of a session that writes outside its pod and its node."""
    volume = {"name": "shared", "hostPath": {"path": str(SHARED)}}
    return {
        "container": {"volumeMounts": [{"name": "shared", "mountPath": at}]},
        "pod": {"volumes": [volume]},
    }


def walking(
    lab: Lab,
    name: str,
    every: float = 0.05,
    grace: int = 10,
    ballast: int = 0,
    **options: Any,
) -> Session:
    """A session that counts through its moves; `check` is its oracle. `ballast`: MiB of memory that
    it has and does nothing with."""
    (SHARED / name).unlink(missing_ok=True)
    given = shared()
    given["pod"]["terminationGracePeriodSeconds"] = grace
    session = lab.session(
        name, "python3", "-c", f"import os; ballast = os.urandom({ballast} << 20)\n{WALKER}",
        f"/shared/{name}", str(every), **given, **options,
    )  # fmt: skip
    until(lambda: len(session.marks()) > 3, f"{name} counts")
    return session


def check(session: Session, epoch: int | None = None) -> list[Mark]:
    """Each number once and in its turn, whoever wrote it: nothing lost, nothing done twice. Epochs
    only grow, and end at `epoch`."""
    marks = session.marks()
    assert marks, "it never counted"
    assert marks[0].number == 1
    for before, after in itertools.pairwise(marks):
        assert after.number == before.number + 1, f"a gap or a double: {before} {after}"
        assert after.epoch >= before.epoch, f"an old epoch wrote again: {before} {after}"
        assert after.at >= before.at, f"time runs back: {before} {after}"
    if epoch is not None:
        assert marks[-1].epoch == epoch
    return marks


def longest_gap(marks: list[Mark]) -> float:
    return max(after.at - before.at for before, after in itertools.pairwise(marks))


def other(node: str) -> str:
    return next(name for name in running().nodes if name != node)


# -- asking for a move ----------------------------------------------------------------------------


def ask(session: Session, to: str = "") -> int:
    """By hand, away from the incarnation of the moment; its epoch."""
    epoch = session.epoch
    wish = f"holdfast.dev/move={epoch}" + (f"/{to}" if to else "")
    session.lab.kubectl("annotate", "session", session.name, wish, "--overwrite")
    return epoch


def move(session: Session, patience: float = MOVED_WITHIN) -> None:
    """Moved, and seen to run elsewhere."""
    node = session.node
    epoch = ask(session)
    session.await_epoch(epoch + 1, patience)
    assert session.node != node


class Drain:
    """`kubectl drain` as somebody runs it, in the background."""

    def __init__(self, lab: Lab, node: str, seconds: int) -> None:
        self._lab = lab
        self._process = subprocess.Popen(
            [str(lab.programs / "kubectl"), f"--kubeconfig={KUBECONFIG}", "drain", node,
             "--ignore-daemonsets", "--delete-emptydir-data", f"--timeout={seconds}s"],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    @property
    def waits(self) -> bool:
        return self._process.poll() is None

    def succeeds(self, patience: float = 150.0) -> None:
        said, _ = self._process.communicate(timeout=patience)
        assert self._process.returncode == 0, said

    def end(self) -> None:
        if self.waits:
            self._process.kill()
        if self._process.stdout is not None and not self._process.stdout.closed:
            self._process.communicate()


@contextlib.contextmanager
def draining(lab: Lab, node: str, seconds: int = 150) -> Iterator[Drain]:
    """Open again afterwards."""
    drain = Drain(lab, node, seconds)
    try:
        yield drain
    finally:
        drain.end()
        lab.kubectl("uncordon", node)


@contextlib.contextmanager
def cordoned(lab: Lab, node: str) -> Iterator[None]:
    """Enough to make every session leave; what else runs there stays."""
    try:
        lab.kubectl("cordon", node)
        yield
    finally:
        lab.kubectl("uncordon", node)


# -- seeing one -----------------------------------------------------------------------------------


def checkpoint(session: Session) -> dict[str, Any]:
    """The newest order to move it; empty if there is none."""
    items = session.lab.get("checkpoints")["items"]
    ours = [item for item in items if item["spec"]["sessionName"] == session.name]
    return max(ours, key=lambda item: item["metadata"]["creationTimestamp"], default={})


def phase(session: Session) -> str:
    return str((checkpoint(session).get("status") or {}).get("phase", ""))


def pod_uid(lab: Lab, name: str) -> str:
    return str(lab.get("pod", name)["metadata"]["uid"])


@dataclass(frozen=True, slots=True)
class Process:
    command: tuple[str, ...]
    environment: bytes
    host: int


def processes(uid: str) -> dict[int, Process]:
    """Of the session alone, by the PID it has in its container."""
    found = {}
    for pid in container_pids(uid):
        if is_ours(pid):
            continue
        with contextlib.suppress(OSError):
            status = Path(f"/proc/{pid}/status").read_text()
            inner = next(line for line in status.splitlines() if line.startswith("NSpid:"))
            environment = Path(f"/proc/{pid}/environ").read_bytes()
            words = tuple(command_line(pid))
            found[int(inner.split()[-1])] = Process(words, environment, pid)
    return found


def gone(lab: Lab, name: str) -> None:
    until(lambda: lab.find("pod", name) is None, f"pod {name} is gone")


# -- breaking it ----------------------------------------------------------------------------------


def agent_pods(lab: Lab) -> dict[str, dict[str, Any]]:
    """By node."""
    items = lab.get("pods", "-n", OPERATOR_NAMESPACE, *AGENT)["items"]
    return {item["spec"]["nodeName"]: item for item in items}


def agent_pid(lab: Lab, node: str) -> int:
    uid = agent_pods(lab)[node]["metadata"]["uid"]
    return _of(uid, "holdfast-node")


def operator_pid(lab: Lab) -> int:
    selector = "app.kubernetes.io/component=operator"
    items = lab.get("pods", "-n", OPERATOR_NAMESPACE, "-l", selector)["items"]
    for item in items:
        with contextlib.suppress(AssertionError):
            return _of(item["metadata"]["uid"], "holdfast-operator")
    raise AssertionError("no operator runs")


def _of(uid: str, program: str) -> int:
    for pid in sorted(container_pids(uid)):
        if any(word.endswith(program) for word in command_line(pid)):
            return pid
    raise AssertionError(f"no {program} runs in pod {uid}")


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def await_agents(lab: Lab) -> None:
    """All of them are ready: what a test broke is whole again."""

    def ready() -> bool:
        pods = agent_pods(lab)
        return set(pods) == set(running().nodes) and all(
            status["ready"] for pod in pods.values()
            for status in pod["status"].get("containerStatuses", [{"ready": False}])
        )  # fmt: skip

    until(ready, "every node's agent is ready")


# -- moments --------------------------------------------------------------------------------------

_LEASE: Final = (
    r"jsonpath={.metadata.annotations.holdfast\.dev/epoch}"
    r'{" "}{.metadata.annotations.holdfast\.dev/offer}{"\n"}'
)
_ORDER: Final = r'jsonpath={.spec.sessionName}{" "}{.status.phase}{"\n"}'


class Moments:
    """Tells when a move of a session comes to a point, within some milliseconds.

    `ordered`, `dumping`, `sending` are its Checkpoint's phases, `offered` and `committed` its
    Lease's. A point that is over when it is first seen counts as reached.
    """

    STEPS = ("ordered", "dumping", "offered", "sending", "committed")

    def __init__(self, session: Session) -> None:
        self._session, self._epoch = session, session.epoch
        self._reached: set[str] = set()
        self._news = threading.Condition()
        self._watches = [
            self._watch(("checkpoints",), _ORDER, self._order),
            self._watch(("lease", session.name), _LEASE, self._lease),
        ]

    def _watch(
        self, what: tuple[str, ...], output: str, take: Callable[[str], None]
    ) -> tuple[subprocess.Popen[str], threading.Thread]:
        lab = self._session.lab
        process = subprocess.Popen(
            [str(lab.programs / "kubectl"), f"--kubeconfig={KUBECONFIG}", "get", *what, "--watch",
             "-o", output],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip

        def read() -> None:
            assert process.stdout is not None
            with process.stdout:
                for line in process.stdout:
                    with self._news:
                        take(line.rstrip("\n"))
                        self._news.notify_all()

        thread = threading.Thread(target=read, daemon=True)
        thread.start()
        return process, thread

    def _order(self, line: str) -> None:
        name, _, phase = line.partition(" ")
        if name == self._session.name:
            self._reached.add("ordered")
            found = {"Dumping": "dumping", "Transferring": "sending"}.get(phase)
            if found:
                self._reached.add(found)

    def _lease(self, line: str) -> None:
        epoch, _, offer = line.partition(" ")
        if epoch.isdigit() and int(epoch) > self._epoch:
            self._reached |= set(self.STEPS)
        elif offer:
            self._reached |= {"ordered", "dumping", "offered"}

    def wait(self, step: str, patience: float = MOVED_WITHIN) -> None:
        with self._news:
            there = self._news.wait_for(lambda: step in self._reached, patience)
        assert there, f"{self._session.name} never was {step}; it was {sorted(self._reached)}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process, thread in self._watches:
            process.kill()
            process.wait()
            thread.join()
