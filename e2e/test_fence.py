"""Attack 33: what runs in a session's container but is no child of hold's. The kubelet, or somebody
with `kubectl exec`, brings it in; it must stand still with the session, whatever it does."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import pytest

from e2e.cluster import faults
from e2e.cluster.places import KUBECONFIG, SHARED
from e2e.lab import Lab, Session, boottime, command_line, container_pids, process_state, until
from e2e.movers import await_agents
from holdfast_node.peers import Refused, ask_hold
from holdfast_wire.lease import Timing

USER: Final = 1000
LEASE: Final = 40
TIMING: Final = Timing.of(LEASE)
# Both leave the time of each write; the second continues everybody, the session too.
LOOP: Final = """
import os, signal, sys, time
out = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND)
tty = os.open("/dev/pts/0", os.O_WRONLY | os.O_NOCTTY)
while True:
    os.write(out, f"{time.clock_gettime(time.CLOCK_BOOTTIME):.4f}\\n".encode())
    if sys.argv[2] == "continue":
        os.kill(-1, signal.SIGCONT)
    else:
        os.write(tty, b".")
        time.sleep(0.01)
"""
SLEEP: Final = "import time\ntime.sleep(1000)"
CROWD: Final = """
import os, sys, time
for number in range(480):
    if os.fork() == 0:
        break
print("a crowd", flush=True)
while True:
    time.sleep(1000)
"""


@contextmanager
def brought_in(lab: Lab, session: Session, path: Path, what: str) -> Iterator[None]:
    """By `kubectl exec`, which stays: its process has no parent in the container."""
    command = [
        str(lab.programs / "kubectl"), f"--kubeconfig={KUBECONFIG}", "exec", session.pod,
        "-c", "session", "--", "python3", "-c", LOOP, f"/shared/{path.name}", what,
    ]  # fmt: skip
    _empty(path)
    with subprocess.Popen(command, stdin=subprocess.DEVNULL) as process:
        try:
            yield
        finally:
            process.terminate()


def _empty(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.touch()
    path.chmod(0o666)


def last(path: Path) -> float:
    lines = path.read_text().splitlines(keepends=True)
    return max((float(line) for line in lines if line.endswith("\n")), default=0.0)


def grows(path: Path) -> None:
    size = path.stat().st_size
    until(lambda: path.stat().st_size > size, f"{path.name} grows")


def writes(path: Path) -> bool:
    size = path.stat().st_size
    time.sleep(0.2)
    return path.stat().st_size > size


def options() -> dict[str, object]:
    user = {"runAsUser": USER, "runAsGroup": USER}
    return {"container": {"securityContext": user}, "spec": {"lease": {"durationSeconds": LEASE}}}


def hold_of(uid: str) -> int:
    def found() -> int:
        words = {pid: command_line(pid) for pid in container_pids(uid)}
        return min((p for p, w in words.items() if w and w[0].endswith("/hold")), default=0)

    return until(found, "hold")


@pytest.mark.attacks(33)
@pytest.mark.timeout(300)
def test_nothing_in_the_container_writes_past_the_fence(lab: Lab) -> None:
    session = lab.counting("leaky", node=lab.away(), **options())
    uid = str(lab.get("pod", session.pod)["metadata"]["uid"])
    writer, continuer = SHARED / "leaky-writer", SHARED / "leaky-continuer"
    with ExitStack() as stack:
        stack.enter_context(brought_in(lab, session, writer, "write"))
        stack.enter_context(brought_in(lab, session, continuer, "continue"))
        grows(writer)
        grows(continuer)
        with faults.cut_from_api(session.node):
            cut = boottime()
            time.sleep(TIMING.freeze_after + TIMING.freeze_takes)
            by = boottime()
            sizes = [path.stat().st_size for path in (writer, continuer)]
            count = len(session.marks())
            time.sleep(5)
            states = session.processes(uid)
            assert [path.stat().st_size for path in (writer, continuer)] == sizes
            assert len(session.marks()) == count
            assert set(states.values()) <= set("TtZX"), states
            late = max(last(writer), last(continuer), session.marks()[-1].at) - cut
            lab.report["fence_last_write_seconds"] = round(late, 2)
            assert cut + late <= by
        session.writes_on()
        grows(writer)
        grows(continuer)
    assert session.epoch == 1
    session.check()


@pytest.mark.attacks(33)
@pytest.mark.timeout(300)
def test_500_processes_20_of_them_brought_in_are_frozen(lab: Lab) -> None:
    session = lab.session("crowd", "python3", "-c", CROWD, **options())
    uid = str(lab.get("pod", session.pod)["metadata"]["uid"])
    hold = hold_of(uid)
    words = ["nsenter", "--target", str(hold), "--mount", "--pid", "setpriv", f"--reuid={USER}",
             f"--regid={USER}", "--clear-groups", "python3", "-c"]  # fmt: skip
    continuer = "import os\nwhile True:\n    os.kill(-1, 18)"
    with ExitStack() as stack:
        for number in range(20):
            code = continuer if number == 0 else "while True: pass" if number < 3 else SLEEP
            process = stack.enter_context(subprocess.Popen([*words, code]))
            stack.callback(process.kill)
        until(lambda: len(_inside(hold)) >= 500, "500 processes")
        answer = ask_hold(hold, "freeze")
        lab.report["freeze_500_processes_seconds"] = answer["milliseconds"] / 1000
        assert answer["milliseconds"] <= 2000, answer
        assert answer["stopped"] >= 500, answer
        time.sleep(5)
        running = {p: s for p in _inside(hold) if (s := process_state(p)) not in "TtZX"}
        assert running == {}
        status = ask_hold(hold, "status")
        assert (status["frozen"], status["incomplete"]) == (True, 0)
        ask_hold(hold, "thaw")


def _inside(hold: int) -> list[int]:
    own = os.stat(f"/proc/{hold}/ns/pid").st_ino  # noqa: PTH116
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and (entry / "ns/pid").stat().st_ino == own:
                found.append(int(entry.name))
        except OSError:
            continue
    return [pid for pid in found if pid != hold]


@pytest.mark.attacks(33)
@pytest.mark.timeout(300)
def test_what_hold_may_not_stop_is_said_and_stopped_by_the_agent(lab: Lab) -> None:
    """A process of another user, from the node. hold says that its freeze is incomplete, the
    Session says so too, and the node's agent stops what is left until hold thaws."""
    await_agents(lab)
    session = lab.counting("foreign", **options())
    uid = str(lab.get("pod", session.pod)["metadata"]["uid"])
    hold, path = hold_of(uid), SHARED / "foreign-writer"
    with brought_in_as_root(hold, path):
        grows(path)
        with pytest.raises(Refused, match="could not be stopped"):
            ask_hold(hold, "freeze")
        assert ask_hold(hold, "status")["incomplete"] == 1

        def said() -> bool:
            return session.condition("Ready").get("reason") == "FreezeIncomplete"

        until(said, "FreezeIncomplete")
        until(lambda: not writes(path), "the agent stops it")
        time.sleep(2)
        assert not writes(path)
        ask_hold(hold, "thaw")
        grows(path)
        until(lambda: session.condition("Ready").get("status") == "True", "ready again")
        session.writes_on()


@contextmanager
def brought_in_as_root(hold: int, path: Path) -> Iterator[None]:
    _empty(path)
    words = ["nsenter", "--target", str(hold), "--mount", "--pid", "python3", "-c", LOOP,
             f"/shared/{path.name}", "write"]  # fmt: skip
    with subprocess.Popen(words) as process:
        try:
            yield
        finally:
            for pid in _inside(hold):
                if path.name in " ".join(command_line(pid)):
                    os.kill(pid, 9)
            process.kill()
