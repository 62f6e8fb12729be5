"""A freeze is total: everything in hold's PID namespace stands still, whoever brought it in, and
is kept so (attack 33)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast_node import freezer
from holdfast_sidecar.hold import EventKind, HoldError, HoldEvent, Unstopped

from .holding import Container, Waiting, appears, eventually, needs_root, process_state

NEW_NAMESPACE = ("--user", "--map-root-user", "--mount", "--pid")


def _namespaces_possible() -> bool:
    if not shutil.which("unshare") or not shutil.which("nsenter"):
        return False
    tried = ("unshare", *NEW_NAMESPACE, "--fork", "--mount-proc", "true")
    return subprocess.run(tried, capture_output=True, check=False).returncode == 0


pytestmark = pytest.mark.skipif(
    not _namespaces_possible(), reason="needs user namespaces, or root to make others"
)

ROOM_FOR = 500
ENTERED = 20
FREEZE_SECONDS = 2.0
LATER_SECONDS = 5.0

# Many that sleep, some that compute, and children of children.
CROWD = """
import os, sys, time
for number in range(int(sys.argv[1]) // 2):
    if os.fork() == 0:
        if os.fork() == 0 and number % 20 == 0:
            while True:
                pass
        while True:
            time.sleep(1000)
print("a crowd", flush=True)
while True:
    time.sleep(1000)
"""
WRITER = """
import sys, time
out = open(sys.argv[1], "ab", 0)
while True:
    out.write(b".")
    time.sleep(0.001)
"""
# It is in a group of its own, and ignores what can be ignored.
CONTINUER = """
import os, signal, sys
for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGTSTP):
    signal.signal(number, signal.SIG_IGN)
out = open(sys.argv[1], "ab", 0)
while True:
    out.write(b".")
    try:
        os.kill(-1, signal.SIGCONT)
    except OSError:
        pass
"""


def inside(hold: int) -> dict[int, str]:
    """Every process of hold's PID namespace but hold itself, and its state."""
    own = Path(f"/proc/{hold}/ns/pid").stat().st_ino
    found = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and (entry / "ns/pid").stat().st_ino == own:
                found[int(entry.name)] = process_state(int(entry.name))
    found.pop(hold)
    return {pid: state for pid, state in found.items() if state != "X"}


def runs(hold: int) -> dict[int, str]:
    """D: in vfork(), until its child goes on."""
    return {pid: state for pid, state in inside(hold).items() if state not in "TD"}


Enter = Callable[..., subprocess.Popen[bytes]]
Begin = Callable[..., Awaitable[Waiting]]


@pytest.fixture
async def begin(
    binaries: dict[str, str], environment: dict[str, str], socket_path: str
) -> AsyncIterator[Begin]:
    """hold as PID 1 of a namespace that needs no root to be made."""
    running: list[Waiting] = []

    async def run(*command: str) -> Waiting:
        process = await asyncio.create_subprocess_exec(
            "unshare", *NEW_NAMESPACE, "--fork", "--kill-child", "--mount-proc",
            binaries["release"], "--socket", socket_path, "--wait", "--", *command,
            env=environment,
        )  # fmt: skip
        events: list[HoldEvent] = []
        pod = Waiting(socket_path, process, await appears(socket_path, events.append), events)
        running.append(pod)
        await pod.link.start(80, 24)
        return pod

    yield run
    for one in running:
        one.process.kill()
        await one.process.wait()
        one.link.close()


@pytest.fixture
def enter() -> Iterator[Enter]:
    """As `kubectl exec` does it: a process whose parent is not in the namespace."""
    made: list[subprocess.Popen[bytes]] = []

    def run(pod: Waiting, *command: str) -> subprocess.Popen[bytes]:
        made.append(
            subprocess.Popen(
                ["nsenter", "--target", str(pod.link.hold_pid), "--user", "--preserve-credentials",
                 "--mount", "--pid", *command],
                start_new_session=True,
            )
        )  # fmt: skip
        return made[-1]

    yield run
    for one in made:
        one.kill()
        one.wait()


def sizes(*paths: Path) -> list[int]:
    return [path.stat().st_size if path.exists() else 0 for path in paths]


async def grow(*paths: Path) -> None:
    before = sizes(*paths)

    async def look() -> bool:
        return all(now > was for now, was in zip(sizes(*paths), before, strict=True))

    await eventually(look, bool, f"growth of {len(paths)} files")


async def test_what_entered_from_outside_stands_still_and_goes_on(
    begin: Begin, enter: Enter, tmp_path: Path
) -> None:
    """attack 33"""
    pod = await begin("cat")
    out = tmp_path / "out"
    enter(pod, sys.executable, "-c", WRITER, str(out))
    await grow(out)
    await pod.link.deadline(0)
    assert (await pod.event(EventKind.FROZEN)).by == "deadline"
    assert runs(pod.link.hold_pid) == {}
    before = sizes(out)
    await asyncio.sleep(0.3)
    assert sizes(out) == before
    status = await pod.link.status()
    assert (status.frozen, status.incomplete, status.unstopped) == (True, 0, ())
    await pod.link.deadline(time.clock_gettime_ns(time.CLOCK_BOOTTIME) + 60 * 10**9)
    await grow(out)


@pytest.mark.parametrize("by", ["deadline", "freeze"])
async def test_nobody_continues_what_is_frozen(
    begin: Begin, enter: Enter, tmp_path: Path, by: str
) -> None:
    """attack 33: two that continue everybody, each other too, one of them of the session."""
    ours, theirs, other = (tmp_path / name for name in ("ours", "theirs", "other"))
    pod = await begin(sys.executable, "-c", CONTINUER, str(ours))
    enter(pod, sys.executable, "-c", CONTINUER, str(theirs))
    enter(pod, sys.executable, "-c", WRITER, str(other))
    await grow(ours, theirs, other)
    await (pod.link.deadline(0) if by == "deadline" else pod.link.freeze())
    before = sizes(ours, theirs, other)
    await asyncio.sleep(1)
    assert sizes(ours, theirs, other) == before
    assert runs(pod.link.hold_pid) == {}


async def test_what_is_brought_in_later_is_stopped_too(
    begin: Begin, enter: Enter, tmp_path: Path
) -> None:
    """attack 33: kubectl exec into a frozen session, and a signal from outside the namespace."""
    pod = await begin("cat")
    await pod.link.freeze()
    for number in range(5):
        out = tmp_path / f"out{number}"
        enter(pod, sys.executable, "-c", WRITER, str(out))
    for pid in list(inside(pod.link.hold_pid)):
        os.kill(pid, signal.SIGCONT)

    async def running() -> dict[int, str]:
        return runs(pod.link.hold_pid)

    await eventually(running, lambda found: not found, "that all are stopped")
    outs = [tmp_path / f"out{number}" for number in range(5)]
    before = sizes(*outs)
    await asyncio.sleep(0.5)
    assert sizes(*outs) == before
    await pod.link.thaw()
    await grow(*outs)


async def test_thaw_continues_only_what_hold_stopped(
    begin: Begin, enter: Enter, tmp_path: Path
) -> None:
    pod = await begin("cat")
    out = tmp_path / "out"
    enter(pod, sys.executable, "-c", WRITER, str(out))
    await grow(out)
    (pid,) = (pid for pid in inside(pod.link.hold_pid) if "out" in _words(pid))
    os.kill(pid, signal.SIGSTOP)

    async def state() -> str:
        return process_state(pid)

    await eventually(state, lambda found: found == "T", "the stop")
    await pod.link.freeze()
    await pod.link.thaw()
    assert process_state(pid) == "T"


def _words(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text()


async def test_what_is_in_a_namespace_below_stands_still(begin: Begin, tmp_path: Path) -> None:
    """attack 33: PID namespaces that the session makes itself."""
    out = tmp_path / "out"
    pod = await begin(
        "unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", WRITER, str(out)
    )
    await grow(out)
    await pod.link.freeze()
    before = sizes(out)
    await asyncio.sleep(0.3)
    assert sizes(out) == before


async def test_nothing_that_entered_outlives_the_session(
    begin: Begin, enter: Enter, tmp_path: Path
) -> None:
    """The Lease is given back when hold says that nothing runs any more."""
    pod = await begin("cat")
    out = tmp_path / "out"
    enter(pod, sys.executable, "-c", WRITER, str(out))
    await grow(out)
    await pod.link.end(0)
    await pod.event(EventKind.EXITED)
    graph = await eventually(pod.link.graph, lambda g: not g.processes, "that nothing is left")
    assert graph.processes == ()
    assert inside(pod.link.hold_pid) == {}
    late = enter(pod, sys.executable, "-c", WRITER, str(out))
    assert await asyncio.to_thread(late.wait, 10) != 0


@pytest.mark.timed
async def test_500_processes_stand_still_in_two_seconds(
    begin: Begin, enter: Enter, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """attack 33: 20 of them brought in from outside, one of which continues all others."""
    pod = await begin(sys.executable, "-c", CROWD, str(ROOM_FOR - ENTERED))
    await (await pod.terminal()).expect(b"a crowd")
    outs = [tmp_path / f"out{number}" for number in range(ENTERED)]
    for number, out in enumerate(outs):
        enter(pod, sys.executable, "-c", CONTINUER if number == 0 else WRITER, str(out))
    await grow(*outs)
    assert len(inside(pod.link.hold_pid)) >= ROOM_FOR
    began = time.monotonic()
    await pod.link.freeze()
    took = time.monotonic() - began
    record_property("freeze_500_processes_seconds", round(took, 3))
    before = sizes(*outs)
    assert runs(pod.link.hold_pid) == {}
    assert took <= FREEZE_SECONDS
    await asyncio.sleep(LATER_SECONDS)
    assert runs(pod.link.hold_pid) == {}
    assert sizes(*outs) == before


@needs_root
async def test_another_user_s_process_is_said_to_be_incomplete(
    container: Container,
) -> None:
    """attack 33: hold is no root and may not stop it. It says so, wherever it says `frozen`."""
    pod = await container(1000, "cat")
    await pod.link.start(80, 24)
    words = ["nsenter", "--target", str(pod.link.hold_pid), "--pid", "sleep", "1000"]
    foreign = subprocess.Popen(words)  # noqa: ASYNC220 - it is waited for when it is dead

    async def seen() -> list[int]:
        return [pid for pid in inside(pod.link.hold_pid) if "sleep" in _words(pid)]

    try:
        (pid,) = await eventually(seen, bool, "the foreign process")
        number = int(_status(pid)["NSpid"].split()[-1])
        with pytest.raises(HoldError) as caught:
            await pod.link.freeze()
        assert (caught.value.code, caught.value.unstopped) == (
            "incomplete",
            Unstopped(1, (number,)),
        )
        status = await pod.link.status()
        assert (status.frozen, status.incomplete, status.unstopped) == (True, 1, (number,))
        kinds = [event.kind for event in pod.events]
        assert kinds == [EventKind.INCOMPLETE, EventKind.FROZEN], "said before it says frozen"
        assert pod.events[0].unstopped == Unstopped(1, (number,))
        os.kill(pid, signal.SIGKILL)
        foreign.wait()

        async def left() -> int:
            return (await pod.link.status()).incomplete

        await eventually(left, lambda count: count == 0, "that it is whole")
        assert pod.events[-1] == HoldEvent(EventKind.INCOMPLETE, unstopped=Unstopped())
    finally:
        foreign.kill()
        foreign.wait()


def _status(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}


async def test_what_is_spared_runs_on_as_long_as_its_connection_stands(
    begin: Begin, enter: Enter, tmp_path: Path
) -> None:
    """The node agent's checkpoint tool must be able to finish in a frozen session."""
    pod = await begin("cat")
    out = tmp_path / "out"
    enter(pod, sys.executable, "-c", WRITER, str(out))
    await grow(out)
    (pid,) = (pid for pid in inside(pod.link.hold_pid) if "out" in _words(pid))
    agent = await appears(pod.socket)
    await agent.spare(int(_status(pid)["NSpid"].split()[-1]))
    await pod.link.freeze()
    await grow(out)
    with pytest.raises(HoldError, match="entered from outside"):
        await agent.spare((await pod.link.status()).command_pid)
    agent.close()

    async def state() -> str:
        return process_state(pid)

    await eventually(state, lambda found: found == "T", "that it is stopped")


def make_fifo(binary: str, fifo: Path) -> None:
    words = [binary, "--nonce-fifo", str(fifo), "--install", str(fifo.parent / "hold")]
    subprocess.run(words, check=True)


async def test_hold_that_does_not_get_its_nonce_takes_all_along(
    binaries: dict[str, str], tmp_path: Path
) -> None:
    """attack 33: whoever reads the sidecar's nonce in hold's place cannot pass for hold."""
    fifo, path = tmp_path / "nonce", tmp_path / "s"
    hold = [binaries["asan"], "--nonce-from", str(fifo), "--socket", str(path), "--wait", "cat"]

    async def end() -> tuple[int | None, str]:
        process = await asyncio.create_subprocess_exec(*hold, stderr=asyncio.subprocess.PIPE)
        _, said = await asyncio.wait_for(process.communicate(), 10)
        return process.returncode, said.decode()

    code, said = await end()
    assert (code, "it was not made, or another has used it" in said) == (1, True)
    make_fifo(binaries["asan"], fifo)
    thief = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    ending = asyncio.create_task(end())
    await asyncio.sleep(0.5)
    assert not ending.done(), "nobody has written yet"
    assert not path.exists(), "it takes no connections before"
    writer = os.open(fifo, os.O_WRONLY)
    os.set_blocking(thief, True)
    os.close(writer)
    os.close(thief)
    code, said = await ending
    assert (code, "went to another process, or is damaged" in said) == (1, True)


async def test_hold_is_told_to_go_while_it_waits_for_its_nonce(
    binaries: dict[str, str], tmp_path: Path
) -> None:
    fifo = tmp_path / "nonce"
    make_fifo(binaries["release"], fifo)
    process = await asyncio.create_subprocess_exec(
        binaries["release"], "--nonce-from", str(fifo), "--socket", str(tmp_path / "s"),
        "--wait", "--namespace", "no", "cat",
    )  # fmt: skip
    await asyncio.sleep(0.3)
    process.terminate()
    assert await asyncio.wait_for(process.wait(), 10) == 143


@needs_root
async def test_what_a_cgroup_has_frozen_stands_still_for_hold_too(begin: Begin) -> None:
    """During a move: a stop signal waits there, and is taken before the next instruction."""
    pod = await begin("cat")
    cage = freezer.of(pod.link.hold_pid)
    cage = replace(cage, name=f"holdfast-test-{os.getpid()}")
    try:
        cage.freeze_these(list(inside(pod.link.hold_pid)))
        await pod.link.freeze()
        assert (await pod.link.status()).incomplete == 0
        await pod.link.thaw()
    finally:
        cage.let_go()
