"""What goes wrong while a session moves: it stays, runs on, and says why; or it has moved. Numbers
are those of docs/faults.md. The oracle is a counter that goes through all moves.
"""

from __future__ import annotations

import contextlib
import hashlib
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster import faults
from e2e.cluster.places import KUBECONFIG, REPOSITORY, SHARED
from e2e.cluster.running import running
from e2e.lab import LEASE, NODE_PATH, Lab, Session, command_line, container_pids, until
from e2e.movers import (
    MOVED_WITHIN,
    WALKER,
    Moments,
    agent_pid,
    ask,
    await_agents,
    check,
    checkpoint,
    cordoned,
    draining,
    longest_gap,
    other,
    phase,
    pod_uid,
    processes,
    shared,
    walking,
)
from e2e.viewer import Viewer, again, marks_in
from holdfast_node import cpu
from holdfast_node.target import CPU

pytestmark = pytest.mark.long

AGENT_PORT = 7318
# The agents give a silent link up after some seconds; the next attempt follows the first at once.
GIVEN_UP_WITHIN = 60.0


def not_moved(session: Session, epoch: int = 1) -> str:
    """The reason, once the condition says one; meanwhile it is where it was."""

    def said() -> str:
        found = session.condition("Movable")
        return found["message"] if found.get("reason") in ("MoveFailed", "NoTarget") else ""

    message = until(said, f"{session.name} says why it does not move", GIVEN_UP_WITHIN)
    assert session.epoch == epoch
    return message


def runs_on(session: Session) -> None:
    session.writes_on()
    check(session)


# -- what cannot be dumped ------------------------------------------------------------------------

TRACED = """
import ctypes, os, signal, sys, time
child = os.fork()
if child == 0:
    os.execvp("sleep", ["sleep", "1000"])
time.sleep(0.5)
libc = ctypes.CDLL(None, use_errno=True)
seize = 0x4206
if libc.ptrace(seize, child, None, None) != 0:
    sys.exit(os.strerror(ctypes.get_errno()))
"""


@pytest.mark.faults(19)
@pytest.mark.timeout(180)
def test_a_traced_tree_stays_and_says_so(lab: Lab) -> None:
    """`kubectl drain` waits for as long as it is so; uncordon ends the matter."""
    name = "traced"
    (SHARED / name).unlink(missing_ok=True)
    session = lab.session(
        name, "python3", "-c", TRACED + WALKER, f"/shared/{name}", "0.05", node=lab.away(),
        **shared(),
    )  # fmt: skip
    until(lambda: len(session.marks()) > 3, "it counts")
    node = session.node
    with draining(lab, node) as drain:
        message = not_moved(session)
        assert "(sleep) is being traced by python3" in message
        assert "end the debugger or tracer" in message
        told = lab.kubectl("describe", "session", name)
        assert "is being traced by python3" in told
        assert "end the debugger or tracer" in told
        assert drain.waits
        runs_on(session)
        assert session.node == node
        drain.end()  # else it would go on evicting, and that alone makes a session leave
        lab.kubectl("uncordon", node)
        until(lambda: lab.find("pod", f"{name}-2") is None, "no target waits")
        orders = len(lab.get("checkpoints")["items"])
        time.sleep(6)
        assert len(lab.get("checkpoints")["items"]) <= orders, "it is tried on"
    assert session.epoch == 1
    runs_on(session)


@pytest.mark.faults(20)
def test_a_shell_by_kubectl_exec_is_no_obstacle(lab: Lab) -> None:
    """It is no part of the session: it ends with the pod it was in."""
    session = walking(lab, "visited", node=lab.away())
    visitor = subprocess.Popen(
        [str(lab.programs / "kubectl"), f"--kubeconfig={KUBECONFIG}", "exec", "-i", session.pod,
         "-c", "session", "--", "bash", "-c", "sleep 1000 & echo in; read x"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert visitor.stdout is not None
        assert visitor.stdout.readline() == "in\n"
        ask(session)
        session.await_epoch(2, MOVED_WITHIN)
        runs_on(session)
        names = {one.command[0] for one in processes(pod_uid(lab, session.pod)).values()}
        assert names == {"python3"}
        visitor.wait(60)
    finally:
        visitor.kill()
        visitor.communicate()


# -- what is in the terminal ----------------------------------------------------------------------

# Reads nothing until it may, and meanwhile prints bursts of 64 KiB: at any moment some of that is
# on its way. Then all that was typed ahead.
BUSY_TERMINAL = """
import hashlib, os, sys, time, tty
tty.setraw(0)
go, size, n = sys.argv[1], int(sys.argv[2]), 0
while not os.path.exists(go):
    lines = b"".join(b"<1:%d>\\r\\n" % (n + i) for i in range(1, 5001))
    n += 5000
    while lines:
        lines = lines[os.write(1, lines):]
    time.sleep(0.1)
read = b""
while len(read) < size:
    read += os.read(0, 65536)
time.sleep(0.5)
os.set_blocking(0, False)
try:
    read += os.read(0, 65536)
except BlockingIOError:
    pass
print("read", len(read), hashlib.sha256(read).hexdigest(), end="\\r\\n", flush=True)
time.sleep(1000)
"""


@pytest.mark.faults(21)
@pytest.mark.timeout(180)
def test_what_is_typed_ahead_and_printed_is_neither_lost_nor_doubled(lab: Lab) -> None:
    go = SHARED / "go"
    go.unlink(missing_ok=True)
    typed = b"".join(b"%07d\n" % n for n in range(8192))
    session = lab.session("full", "python3", "-c", BUSY_TERMINAL, "/shared/go", str(len(typed)),
                          node=lab.away(), **shared())  # fmt: skip
    session.await_text("<1:")
    with Viewer(lab, session.pod) as first:
        type_ahead(lab, "full", typed)
        ask(session)
        until(lambda: first.ended, "the client's connection ends", MOVED_WITHIN)
    session.await_epoch(2)
    with again(lab, session, first) as second:
        go.touch()
        until(lambda: b"read " in second.text(), "all that was typed is read")
        until(lambda: second.text().rstrip().endswith(hashlib.sha256(typed).hexdigest().encode()),
              "it is what was typed", 20)  # fmt: skip
    assert b"read %d " % len(typed) in second.text()
    assert not first.gaps + second.gaps
    numbers = marks_in(first.text() + second.text(), 1)
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers))), "a gap or a double"
    assert len(numbers) > 10_000


def type_ahead(lab: Lab, name: str, typed: bytes) -> None:
    """All of it is taken in one frame; for want of a reader it is not all typed, and so nobody is
    told that it was."""
    program = str(REPOSITORY / ".venv/bin/kubectl-holdfast")
    env = {"HOLDFAST_KUBECTL": str(lab.programs / "kubectl"), "PATH": "/usr/bin:/bin",
           "HOME": "/nonexistent"}  # fmt: skip
    command = [program, f"--kubeconfig={KUBECONFIG}", "send", name, "-"]
    done = subprocess.run(command, input=typed, env=env, check=False, timeout=60)
    assert done.returncode == RETRY


RETRY = 75  # the client's word for: not known to be done


# -- room, link, nodes ----------------------------------------------------------------------------

OWN = "import os\nheap = os.urandom(int(64e6))\n"
# Memory that processes share is dumped into files.
TOGETHER = OWN + "import mmap\nheld = mmap.mmap(-1, len(heap))\nheld.write(heap)\n"


def heavy(lab: Lab, name: str, heap: str = OWN, **options: Any) -> Session:
    """Its memory takes a while to go over, and does not compress."""
    (SHARED / name).unlink(missing_ok=True)
    session = lab.session(
        name, "python3", "-c", heap + WALKER, f"/shared/{name}", "0.05", node=lab.away(),
        **shared(), **options,
    )  # fmt: skip
    until(lambda: len(session.marks()) > 3, f"{name} counts")
    return session


@contextlib.contextmanager
def little_room(lab: Lab, node: str) -> Iterator[int]:
    """The agent's memory for images holds 16 MiB; its PID."""
    pid = agent_pid(lab, node)
    resize(pid, "16m")
    try:
        yield pid
    finally:
        resize(pid, "4g")


def resize(agent: int, size: str) -> None:
    subprocess.run(["nsenter", "-t", str(agent), "-m", "mount", "-o", f"remount,size={size}",
                    "/run/holdfast-node"], check=True)  # fmt: skip


@pytest.mark.faults(22)
@pytest.mark.timeout(180)
@pytest.mark.parametrize("side", ["source", "target"])
def test_no_room_for_the_image(lab: Lab, side: str) -> None:
    session = heavy(lab, f"large-{side}", TOGETHER)
    node = session.node if side == "source" else other(session.node)
    with little_room(lab, node) as agent:
        ask(session)
        message = not_moved(session)
        assert "memory" in message or "No space" in message or "room" in message, message
        runs_on(session)
        work = Path(f"/proc/{agent}/root/run/holdfast-node")
        until(lambda: not list(work.rglob("*.img")), "nothing of the image is left")
    session.await_epoch(2, MOVED_WITHIN)
    runs_on(session)


SLOW = "limit rate over 20 mbytes/second drop"
CHANGED = "meta length > 1000 @th,4000,32 set 0x686f6c64"


@contextlib.contextmanager
def mangled(node: str, name: str, rule: str) -> Iterator[None]:
    """`rule` for what the node's agent sends to another."""
    cluster = running()
    hook = "type filter hook prerouting priority -300"
    chain = f"chain sent {{ {hook}; tcp dport {AGENT_PORT} {rule}; }}"
    cluster.nft(node, f"table inet {name} {{\n{chain}\n}}")
    try:
        yield
    finally:
        cluster.nft(node, f"table inet {name}\ndelete table inet {name}")


@pytest.mark.faults(23, 30)
@pytest.mark.timeout(240)
@pytest.mark.parametrize("rule", ["drop", CHANGED], ids=["lost", "changed"])
def test_a_link_that_loses_or_changes_what_goes_over_it(lab: Lab, rule: str) -> None:
    session = heavy(lab, "crossing", spec={"move": {"deadlineSeconds": 10}})
    node = session.node
    with Moments(session) as moments, mangled(node, "holdfast_slow", SLOW):
        ask(session)
        moments.wait("offered")
        with mangled(node, "holdfast_mangle", rule):
            until(lambda: phase(session) == "Failed", "the move is given up", GIVEN_UP_WITHIN)
            assert session.epoch == 1
            runs_on(session)
    session.await_epoch(2, MOVED_WITHIN)
    runs_on(session)
    check(session, 2)


@pytest.mark.faults(24)
@pytest.mark.timeout(180)
def test_nowhere_to_go(lab: Lab) -> None:
    session = walking(lab, "stuck", 0.01)
    node = session.node
    with cordoned(lab, other(node)):
        ask(session)
        message = not_moved(session)
        assert "no node takes it" in message
        assert not checkpoint(session)
        assert longest_gap(check(session)) < 2.0, "it was frozen"
    session.await_epoch(2, MOVED_WITHIN)
    runs_on(session)


@contextlib.contextmanager
def lesser_processor(lab: Lab, node: str) -> Iterator[str]:
    """By its agent's word, which is all that others know of it; what it lacks."""
    before = str(lab.get("node", node)["metadata"]["annotations"][CPU])
    told = cpu.heard(before)
    assert told is not None
    architecture, (*features, lacks) = told
    less = cpu.told(tuple(features), architecture)
    lab.kubectl("annotate", "node", node, "--overwrite", f"{CPU}={less}")
    try:
        yield lacks
    finally:
        lab.kubectl("annotate", "node", node, "--overwrite", f"{CPU}={before}")


@pytest.mark.faults(27)
@pytest.mark.timeout(180)
def test_a_processor_that_lacks_something(lab: Lab) -> None:
    session = walking(lab, "picky", 0.01)
    with lesser_processor(lab, other(session.node)):
        ask(session)
        assert "no node takes it" in not_moved(session)
        assert not checkpoint(session)
        assert longest_gap(check(session)) < 2.0, "it was frozen"
    session.await_epoch(2, 2 * MOVED_WITHIN)
    runs_on(session)


NODE_LOCAL = 'held = open("/local/here", "a+")\n' + WALKER


@pytest.mark.faults(25)
@pytest.mark.timeout(180)
def test_a_restore_that_fails(lab: Lab) -> None:
    """It has a file open that only its own node has."""
    name = "rooted"
    (SHARED / name).unlink(missing_ok=True)
    options = shared()
    options["container"]["volumeMounts"].append({"name": "local", "mountPath": "/local"})
    local = {"path": NODE_PATH, "type": "DirectoryOrCreate"}
    options["pod"]["volumes"].append({"name": "local", "hostPath": local})
    session = lab.session(
        name, "python3", "-c", NODE_LOCAL, f"/shared/{name}", "0.05", node=lab.away(), **options
    )
    until(lambda: len(session.marks()) > 3, "it counts")
    ask(session)
    message = not_moved(session)
    assert "local/here" in message, message
    runs_on(session)
    assert session.epoch == 1


@pytest.mark.faults(26)
@pytest.mark.timeout(180)
def test_a_number_that_is_taken(lab: Lab) -> None:
    """Nothing but hold runs in a target; somebody with the node's root can still get in the way."""
    session = walking(lab, "numbered", node=lab.away())
    numbers = sorted(processes(pod_uid(lab, session.pod)))
    with faults.stopped(agent_pid(lab, session.node)):
        ask(session)
        until(lambda: checkpoint(session), "the agent is told")
        target = checkpoint(session)["spec"]["targetPodUID"]
        squatter = squat(target, numbers[-1])
    try:
        message = not_moved(session)
        assert "number" in message, message
        runs_on(session)
    finally:
        squatter.kill()
        squatter.wait()
    session.await_epoch(2, MOVED_WITHIN)
    runs_on(session)


def squat(uid: str, number: int) -> subprocess.Popen[bytes]:
    """A process with that PID in the pod's session container."""
    hold = next(pid for pid in container_pids(uid) if command_line(pid)[0].endswith("/hold"))
    script = f"echo {number - 1} > /proc/sys/kernel/ns_last_pid; sleep 1000 & wait"
    made = subprocess.Popen(["nsenter", "-t", str(hold), "-p", "sh", "-c", script],
                            start_new_session=True)  # fmt: skip
    time.sleep(0.5)
    return made


@pytest.mark.timeout(120)
def test_uncordon_takes_a_move_back(lab: Lab) -> None:
    session = heavy(lab, "undecided")
    node = session.node
    with Moments(session) as moments:
        lab.kubectl("cordon", node)
        try:
            moments.wait("ordered")
        finally:
            lab.kubectl("uncordon", node)
    until(lambda: not targets(lab, session), "no target waits", MOVED_WITHIN)
    runs_on(session)
    assert session.epoch in (1, 2), "taken back, or it was committed already"
    lab.report["uncordon_took_back"] = session.epoch == 1


def targets(lab: Lab, session: Session) -> list[str]:
    ahead = f"{session.name}-{session.epoch + 1}"
    return [p["metadata"]["name"] for p in lab.get("pods")["items"]
            if p["metadata"]["name"] == ahead]  # fmt: skip


@pytest.mark.faults(29)
@pytest.mark.timeout(240)
def test_the_source_dies_after_the_commit(lab: Lab) -> None:
    session = walking(lab, "bereaved", node=lab.away())
    node = session.node
    with Moments(session) as moments:
        ask(session)
        moments.wait("committed")
        with faults.node_down(node):
            session.await_epoch(2, MOVED_WITHIN)
            assert session.node == other(node)
            time.sleep(LEASE)
            runs_on(session)
            assert session.epoch == 2
    lab.await_nodes()
    await_agents(lab)
    check(session, 2)
