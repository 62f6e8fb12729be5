"""Real dumps in one container and real restores in another, by the engine alone: no cluster."""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import time
from pathlib import Path

import pytest

from e2e import engine_kit as kit
from e2e.engine_session import (
    Outside,
    Refusal,
    Session,
    Target,
    bench,
    dumped,
    engine,
    eventually,
    move,
    node,
    tidy,
)
from holdfast_node import containers, freezer, terminal
from holdfast_node.engine import Engine
from holdfast_node.failure import DumpFailed
from holdfast_node.peers import keeper_of
from holdfast_node.preflight import Preflight
from holdfast_wire.errors import NotFound, Unavailable

__all__ = ["bench", "engine", "node", "tidy"]  # fixtures; `tidy` stands in for the cluster's

pytestmark = pytest.mark.timeout(60)


@pytest.mark.attacks(44)
async def test_who_calls_itself_keeper_is_not_taken_for_it(bench: kit.Lab, engine: Engine) -> None:
    """Attack 44: an orphan of `kubectl exec` is hold's child, and names itself as it likes. It was
    frozen in the session's place, which ran on."""
    container = bench.container("a")
    container.leave_orphan("cp /usr/bin/sleep /home/user/keeper; setsid /home/user/keeper 1000")

    def called_keeper() -> list[int]:
        children = freezer.children(container.hold)
        return [pid for pid in children if containers.name(pid) == "keeper"]

    kit.until(called_keeper, "the orphan is hold's child")
    [impostor] = called_keeper()
    with pytest.raises(NotFound):
        keeper_of(container.hold)
    session = Session(container)
    assert called_keeper() == [impostor, session.keeper]
    cage = await engine.freeze(container.hold)
    assert cage.members() == freezer.descendants(session.keeper)
    cage.thaw()
    with container.replaced_socket(), pytest.raises(Unavailable, match="in the place of hold"):
        keeper_of(container.hold)


async def test_bash_in_a_read_moves_with_its_job(bench: kit.Lab, engine: Engine) -> None:
    session = Session(bench.container("a"))
    session.typist.type("sleep 1000 & read -p 'na''me? ' x; echo got=$x\n")
    session.typist.until("name? ")
    kit.until(lambda: "sleep" in session.pids().values(), "the job runs")
    was = session.pids()
    assert sorted(was.values()) == ["bash", "keeper", "sleep"]
    target = Target(bench.container("b"))
    target.container.count_pids_from(300)  # CRIU's own must not take what the tree had
    target.waited = 0.2
    await move(engine, session, target, bench.images())
    assert target.container.ask("status")["command_pid"] == 302
    keeper = keeper_of(target.container.hold)
    assert {containers.inner_pid(p): containers.name(p) for p in freezer.descendants(keeper)} == was
    target.typist.type("moved\n")
    target.typist.until("got=moved")
    target.typist.type("jobs; kill %1; wait; echo en''d=$?; sleep 2000 & echo n''ext=$!\n")
    assert "Running" in target.typist.until("end=")
    seen = target.typist.until("next=")
    # PIDs go on from where they were: CRIU's own left no gap.
    assert max(was) < int(seen.rpartition("next=")[2].split()[0]) < max(was) + 20


async def test_a_session_of_another_user_moves(bench: kit.Lab, engine: Engine) -> None:
    session = Session(bench.container("a", uid=1000))
    session.typist.type("id -u; read -p 'na''me? ' x; echo got=$x:$UID\n")
    session.typist.until("name? ")
    target = Target(bench.container("b", uid=1000))
    await move(engine, session, target, bench.images())
    target.typist.type("moved\n")
    target.typist.until("got=moved:1000")


async def test_a_half_typed_line_moves_half_typed(bench: kit.Lab, engine: Engine) -> None:
    session = Session(bench.container("a", "bash", "-c", "read -p 'name? ' x; echo got=$x; cat"))
    session.typist.until("name? ")
    session.typist.type("half")
    session.typist.until("half")
    target = Target(bench.container("b"))
    await move(engine, session, target, bench.images(), take=True)
    assert target.typed == terminal.Taken(True, b"half", 0, b"")
    await asyncio.sleep(0.1)
    assert target.typist.read() == b""  # neither echoed again, nor read as a line
    target.typist.type("\x7fway\n")
    target.typist.until("got=halway")


async def test_typed_ahead_lines_move_unread(bench: kit.Lab, engine: Engine) -> None:
    session = Session(bench.container("a", "bash", "-c", "stty -echo; sleep 100; cat | md5sum"))
    kit.until(lambda: "sleep" in session.pids().values(), "sleep runs")
    lines = "".join(f"line {number}\n" for number in range(600))
    session.typist.type(lines)
    target = Target(bench.container("b"))
    await move(engine, session, target, bench.images(), take=True)
    sleeper = next(
        pid
        for pid in freezer.descendants(keeper_of(target.container.hold))
        if containers.name(pid) == "sleep"
    )
    os.kill(sleeper, signal.SIGTERM)
    target.typist.type("\x04")
    target.typist.until(hashlib.md5(lines.encode()).hexdigest())  # noqa: S324


LOOPBACK = """
import socket
server = socket.create_server(("127.0.0.1", 7000))
one = socket.create_connection(("127.0.0.1", 7000))
other, _ = server.accept()
one.sendall(b"before")
input("ready? ")
one.sendall(b" after")
got = b""
while len(got) < 12:
    got += other.recv(20)
print("got=" + got.decode(), other.send(b"x"), one.recv(1))
"""


async def test_connections_inside_move(bench: kit.Lab, engine: Engine) -> None:
    session = Session(bench.container("a", "python3", "-c", LOOPBACK))
    session.typist.until("ready? ")
    target = Target(bench.container("b", address="10.9.9.3"))
    await move(engine, session, target, bench.images())
    assert target.cut == ()
    target.typist.type("\n")
    target.typist.until("got=before after 1 b'x'")


OUTSIDE = """
import socket
sock = socket.create_connection(("10.9.9.2", 8000), source_address=("10.9.9.1", 0))
input("ready? ")
try:
    print("got=", sock.recv(10))
except OSError as error:
    print("error=", error.errno)
sock = socket.socket()
print("again=", sock.connect_ex(("127.0.0.1", 1)))
"""


async def test_connections_to_the_outside_are_cut_with_an_error(
    bench: kit.Lab, engine: Engine
) -> None:
    container = bench.container("a", "python3", "-c", OUTSIDE)
    with Outside(container):
        session = Session(container)
        session.typist.until("ready? ")
        target = Target(bench.container("b", address="10.9.9.3"))
        await move(engine, session, target, bench.images())
    [(local, remote)] = target.cut
    assert local.startswith("10.9.9.1:")
    assert remote == "10.9.9.2:8000"
    target.typist.type("\n")
    assert "error= 103" in target.typist.until("again= ")
    listed = target.container.enter_network(
        lambda: Path("/proc/thread-self/net/fib_trie").read_text()
    )
    assert "10.9.9.1" not in listed  # the address it had was only lent


async def test_an_abandoned_move_is_not_noticed(bench: kit.Lab, engine: Engine) -> None:
    """Dumped, then thawed: jobs run on, connections too, and the half-typed line is there."""
    container = bench.container("a")
    with Outside(container) as outside:
        session = Session(container)
        session.typist.type("exec 5<>/dev/tcp/10.9.9.2/8000; sleep 1000 & read -p 'na''me? ' x\n")
        session.typist.until("name? ")
        session.typist.type("ha")
        session.typist.until("name? ha")
        async with dumped(engine, session, bench.images()) as cage:
            taken = terminal.take(session.typist.master)
            assert terminal.put(session.typist.master, taken) == b""
            cage.thaw()
        session.typist.type("lf\n")
        session.typist.type("echo got=$x; echo hello >&5; jobs; echo al''l\n")
        seen = session.typist.until("all")
        assert "got=half" in seen
        assert "Stopped" not in seen
        assert seen.count("Running") == 1
        outside.peer.settimeout(5)
        assert outside.peer.recv(10) == b"hello\n"


async def test_a_traced_session_is_refused_and_runs_on(bench: kit.Lab, engine: Engine) -> None:
    traced = """
import ctypes, os, time
child = os.fork()
if child == 0:
    ctypes.CDLL(None).ptrace(0, 0, 0, 0)
    print("traced", flush=True)
    time.sleep(1000)
print("got=" + input())
"""
    session = Session(bench.container("a", "python3", "-c", traced))
    session.typist.until("traced")
    began = time.monotonic()
    with pytest.raises(DumpFailed, match=r"process 303 \(python3\) is being traced by python3"):
        async with dumped(engine, session, bench.images()):
            pass
    assert time.monotonic() - began < 3
    cage = engine.freezer(session.container.hold)
    assert cage.frozen()
    assert [one.path for one in kit.ours(freezer.frozen_ones())] == [cage.path]
    cage.thaw()
    assert kit.ours(freezer.frozen_ones()) == []
    session.typist.type("alive\n")
    session.typist.until("got=alive")


async def test_what_cannot_be_dumped_is_named(bench: kit.Lab, engine: Engine) -> None:
    program = (
        "import ctypes; ctypes.CDLL(None).syscall(323, 1); print('up'); print('got=' + input())"
    )
    session = Session(bench.container("a", "python3", "-c", program))
    session.typist.until("up")
    with pytest.raises(DumpFailed) as failed:
        async with dumped(engine, session, bench.images()):
            pass
    assert failed.value.reason.pid == 302
    assert failed.value.reason.process == "python3"
    assert "userfaultfd" in failed.value.message
    engine.freezer(session.container.hold).thaw()
    session.typist.type("alive\n")
    session.typist.until("got=alive")


async def test_a_refused_restore_leaves_nothing(bench: kit.Lab, engine: Engine) -> None:
    session = Session(bench.container("a"))
    session.typist.type("echo x > /dev/shm/ran; sleep 1000 & read -p 'na''me? ' x; echo got=$x\n")
    session.typist.until("name? ")
    target = Target(bench.container("b"), refuse=True)
    images = bench.images()
    async with dumped(engine, session, images) as cage:
        async with engine.restoring(target.container.hold, images) as restoring:
            with pytest.raises(Refusal):
                await restoring.restore(target.held)
        await eventually(lambda: target.container.pids() == [])
        await eventually(lambda: freezer.children(target.container.hold) == [])
        assert cage.frozen()
        cage.thaw()
    session.typist.type("home\n")
    session.typist.until("got=home")
    # It may be tried again in the same container.
    target.refuse = False
    target.typist.close()
    async with dumped(engine, session, images := bench.images()) as cage:
        async with engine.restoring(target.container.hold, images) as restoring:
            await restoring.restore(target.held)
        cage.kill()
    target.typist.type("echo fi''ne\n")
    target.typist.until("fine")


async def test_a_session_is_found_by_its_pod(bench: kit.Lab, engine: Engine) -> None:
    uid = "0f6b1c34-5e2d-4b6f-9a8e-1234567890ab"
    session = Session(bench.container(f"pod{uid}"))
    session.typist.type("set +m; (sleep 1000 &) ; exec -a keeper bash --norc\n")
    kit.until(lambda: "sleep" in session.pids().values(), "an orphan")
    with pytest.raises(NotFound):
        containers.find(uid)  # its Pod was not read yet
    containers.know(uid, session.container.cgroup, "")
    assert containers.find(uid) == containers.Pod(uid, session.container.hold, None)
    inside = containers.inner_pid(containers.command_of(session.keeper))
    assert session.container.ask("status")["command_pid"] == inside
    cage = await engine.freeze(session.container.hold)
    assert cage.pod_uid == uid
    cage.thaw()


def test_this_node_is_fit(node: Preflight) -> None:
    assert node.problems == ()
    assert node.criu.startswith("4.")
    assert node.freezer in ("v1", "v2")
    assert node.notes
