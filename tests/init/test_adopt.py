"""A session that someone else restored in the container becomes the one hold guards."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from holdfast_node import containers, freezer
from holdfast_sidecar.hold import EventKind, HoldError, HoldLink

from .holding import PATIENCE, Container, Wait, Waiting, eventually, needs_root

# In the place of a checkpoint tool: makes a keeper and a command on a terminal, hands the master
# side out, and is their parent until it is told to go. "reap" takes the keeper's end first. As any
# keeper it has its jobs at 100, or with JOBS another file there.
TOOL = """
import fcntl, os, signal, socket, sys, termios
link = socket.socket(fileno=int(sys.argv[1]))
master, slave = os.openpty()
tty = os.ttyname(slave)
read, write = os.pipe()
keeper = os.fork()
if keeper == 0:
    os.setsid()
    command = os.fork()
    if command == 0:
        os.setsid()
        fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
        for fd in range(3):
            os.dup2(slave, fd)
        os.execvp(sys.argv[2], sys.argv[2:])
    link.close()
    os.dup2(os.memfd_create(os.environ.get("JOBS", "holdfast-jobs")), 100)
    os.write(100, b"of this keeper")
    os.write(write, str(command).encode())
    for fd in (0, 1, 2, slave, read, write):
        os.close(fd)
    status = os.waitpid(command, 0)[1]
    if os.WIFSIGNALED(status):
        os.kill(os.getpid(), os.WTERMSIG(status))
        signal.pause()
    os._exit(os.WEXITSTATUS(status))
command = int(os.read(read, 20))
os.close(slave)
socket.send_fds(link, [f"{keeper} {command} {tty}".encode()], [master])
os.close(master)
if link.recv(10) == b"reap":
    os.waitpid(keeper, 0)
    link.send(b"reaped")
    link.recv(10)
"""
NO_PRIVILEGES = ("setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs")
BUSY = ("sh", "-c", "sleep 600 & echo ready; read x; exit 7")


@dataclass
class Restored:
    """Pids as the container has them, and the link to the tool that is their parent."""

    keeper: int
    command: int
    tty: str
    master: int
    link: socket.socket
    process: asyncio.subprocess.Process

    @property
    def request(self) -> str:
        return f"adopt {self.keeper} {self.command} {self.tty}"

    async def tell(self, word: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self.link, word)

    async def tool_goes(self) -> None:
        with contextlib.suppress(OSError):
            await self.tell(b"go")
        await asyncio.wait_for(self.process.wait(), PATIENCE)


Restore = Callable[..., Awaitable[Restored]]


@pytest.fixture
async def restore(python: str, container: Container) -> AsyncIterator[Restore]:
    """Needs `container`, so that tools are gone before their containers are."""
    made: list[Restored] = []
    links: list[HoldLink] = []

    async def spare(pod: Waiting, entering: int) -> None:
        """As the agent does it: no freeze stops the tool."""
        (tool,) = freezer.children(entering)
        links.append(await HoldLink.connect(pod.socket))
        await links[-1].spare(containers.inner_pid(tool))

    async def run(pod: Waiting, *command: str) -> Restored:
        ours, theirs = socket.socketpair()
        number = str(theirs.fileno())
        process = await asyncio.create_subprocess_exec(
            "nsenter", "--target", str(pod.link.hold_pid), "--mount", "--pid", *NO_PRIVILEGES,
            python, "-c", TOOL, number, *command, pass_fds=[theirs.fileno()],
        )  # fmt: skip
        theirs.close()
        ours.settimeout(PATIENCE)
        said, fds, _, _ = await asyncio.to_thread(socket.recv_fds, ours, 1000, 1)
        keeper, pid, tty = said.decode().split()
        ours.setblocking(False)
        await spare(pod, process.pid)
        made.append(Restored(int(keeper), int(pid), tty, fds[0], ours, process))
        return made[-1]

    yield run
    for one in made:
        if one.process.returncode is None:
            await one.tool_goes()
        one.link.close()
        os.close(one.master)
    for link in links:  # last: a frozen session's tool could not go any more
        link.close()


def ask(pod: Waiting, request: str, *fds: int) -> dict[str, object]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.settimeout(30)
        sock.connect(pod.socket)
        socket.send_fds(sock, [request.encode()], list(fds))
        answer: dict[str, object] = json.loads(sock.recv(65536))
        return answer


OK = {"ok": True}


def adopt(pod: Waiting, restored: Restored) -> None:
    assert ask(pod, restored.request, restored.master) == OK


async def pids(pod: Waiting) -> list[int]:
    return [p.pid for p in (await pod.link.graph()).processes]


async def states(pod: Waiting) -> set[str]:
    return {p.state for p in (await pod.link.graph()).processes}


async def parent_of_keeper(pod: Waiting) -> int:
    return (await pod.link.graph()).processes[0].ppid


async def freezes_and_thaws(pod: Waiting) -> None:
    assert (await pod.link.freeze()).refused == 0
    assert {p.state for p in (await pod.link.graph()).processes} == {"T"}
    await pod.link.thaw()
    await eventually(lambda: states(pod), lambda now: now == {"S"}, "all sleep again")


@needs_root
async def test_it_is_guarded_like_one_that_hold_started(
    container: Container, restore: Restore
) -> None:
    pod = await container(0, "true", options=("--reserve", "300"))
    restored = await restore(pod, *BUSY)
    adopt(pod, restored)
    status = await pod.link.status()
    assert (status.started, status.exited, status.namespace) == (True, False, True)
    assert (status.keeper_pid, status.command_pid) == (restored.keeper, restored.command)
    assert status.tty == restored.tty
    terminal = await pod.terminal()
    await terminal.expect(b"ready")
    assert not os.get_blocking(restored.master)

    assert await parent_of_keeper(pod) not in (0, 1)
    assert (await pids(pod))[:2] == [restored.keeper, restored.command]
    assert len(await pids(pod)) == 3
    await freezes_and_thaws(pod)

    await restored.tool_goes()
    await eventually(lambda: parent_of_keeper(pod), lambda parent: parent == 1, "a new parent")
    assert (await pids(pod))[:2] == [restored.keeper, restored.command]
    assert len(await pids(pod)) == 3
    await freezes_and_thaws(pod)
    graph = await pod.link.foreground()
    assert [p.pid for p in graph.processes] == [restored.command, max(await pids(pod))]

    terminal.send(b"\n")
    end = await pod.event(EventKind.EXITED)
    assert (end.code, end.by) == (7, "itself")
    terminal.close()
    await pod.link.collected()
    assert await pod.gone() == (7, "")


@needs_root
@pytest.mark.parametrize("name", ["holdfast-jobs", "holdfast-job", "holdfast-jobs (deleted)"])
async def test_its_jobs_are_found_by_their_name(
    container: Container, restore: Restore, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("JOBS", name)
    pod = await container(0, "true")
    restored = await restore(pod, *BUSY)
    with pytest.raises(HoldError, match="not_started"):
        await pod.link.jobs()
    adopt(pod, restored)
    if name != "holdfast-jobs":
        with pytest.raises(HoldError, match="no_jobs"):
            await pod.link.jobs()
        return
    file = await pod.link.jobs()
    assert os.pread(file, 100, 0) == b"of this keeper"
    os.pwrite(file, b"and", 0)
    os.close(file)


@needs_root
async def test_frozen_before_its_parent_goes_it_stays_so(
    container: Container, restore: Restore
) -> None:
    pod = await container(0, "true")
    restored = await restore(pod, *BUSY)
    adopt(pod, restored)
    await (await pod.terminal()).expect(b"ready")
    await pod.link.freeze()
    await restored.tool_goes()
    assert {p.state for p in (await pod.link.graph()).processes} == {"T"}
    await pod.link.thaw()
    await eventually(lambda: states(pod), lambda now: now == {"S"}, "all sleep again")
    assert not (await pod.link.status()).exited


@needs_root
async def test_an_end_that_another_has_yet_to_take_is_waited_for(
    container: Container, restore: Restore
) -> None:
    pod = await container(0, "true")
    restored = await restore(pod, "sh", "-c", "read x; exit 9")
    adopt(pod, restored)
    os.write(restored.master, b"\n")

    async def states() -> list[str]:
        return [p.state for p in (await pod.link.graph()).processes]

    await eventually(states, lambda found: found == ["Z"], "an end that nobody took")
    await asyncio.sleep(0.3)  # hold looks several times
    assert not (await pod.link.status()).exited
    await restored.tool_goes()
    assert (await pod.event(EventKind.EXITED)).code == 9


@needs_root
async def test_an_end_that_another_took_is_noticed(container: Container, restore: Restore) -> None:
    pod = await container(0, "true")
    restored = await restore(pod, "sh", "-c", "read x; exit 9")
    adopt(pod, restored)
    await restored.tell(b"reap")
    os.write(restored.master, b"\n")
    end = await pod.event(EventKind.EXITED)
    assert (end.code, end.signal, end.by) == (None, 9, "itself")
    await pod.link.collected()
    assert await pod.gone() == (128 + 9, "")


@needs_root
@pytest.mark.parametrize("first", ["tool", "end"])
async def test_it_can_be_ended(container: Container, restore: Restore, first: str) -> None:
    pod = await container(0, "true")
    restored = await restore(pod, *BUSY)
    adopt(pod, restored)
    await (await pod.terminal()).expect(b"ready")
    if first == "tool":
        await restored.tool_goes()
    await pod.link.end(0)

    async def all_dead() -> bool:
        return {p.state for p in (await pod.link.graph()).processes} <= {"Z"}

    await eventually(all_dead, bool, "the end of all processes")
    await restored.tool_goes()
    end = await pod.event(EventKind.EXITED)
    assert (end.signal, end.by) == (9, "end")


@needs_root
async def test_the_deadline_stops_it_whoever_its_parent_is(
    container: Container, restore: Restore
) -> None:
    pod = await container(0, "true")
    restored = await restore(pod, *BUSY)
    adopt(pod, restored)
    await pod.link.deadline(time.clock_gettime_ns(time.CLOCK_BOOTTIME) + 300_000_000)
    assert (await pod.event(EventKind.FROZEN)).by == "deadline"
    assert {p.state for p in (await pod.link.graph()).processes} == {"T"}


@needs_root
async def test_only_what_nothing_began_in(container: Container, restore: Restore) -> None:
    pod = await container(0, "cat")
    restored = await restore(pod, *BUSY)
    await pod.link.start(80, 24)
    before = await pod.link.status()
    assert ask(pod, restored.request, restored.master)["error"] == "started"
    after = await pod.link.status()
    assert (after.keeper_pid, after.tty) == (before.keeper_pid, before.tty)
    assert restored.tty != after.tty


@needs_root
async def test_nothing_begins_beside_it(container: Container, restore: Restore) -> None:
    pod = await container(0, "cat")
    restored = await restore(pod, *BUSY)
    past = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - 1
    await pod.link.deadline(past)
    assert ask(pod, restored.request, restored.master)["error"] == "expired"
    await pod.link.deadline(past + 60_000_000_000)
    adopt(pod, restored)
    assert ask(pod, restored.request, restored.master)["error"] == "started"
    with pytest.raises(HoldError) as caught:
        await pod.link.start(80, 24)
    assert caught.value.code == "started"


def descriptors(pod: Waiting) -> list[str]:
    return sorted(str(p.readlink()) for p in Path(f"/proc/{pod.link.hold_pid}/fd").iterdir())


async def settled(pod: Waiting) -> list[str]:
    """Without the connections that were closed a moment ago."""
    await pod.link.status()
    return descriptors(pod)


def terminals_up_to(tty: str, pod: Waiting) -> list[int]:
    """Masters in the container, as many as it takes for a terminal of that name to be there."""
    root = Path(f"/proc/{pod.link.hold_pid}/root")
    made = []
    while not (root / tty.lstrip("/")).exists():
        made.append(os.open(root / "dev/pts/ptmx", os.O_RDWR | os.O_NOCTTY))
    return made


@needs_root
async def test_what_does_not_fit_is_refused_and_changes_nothing(
    container: Container, restore: Restore
) -> None:
    pod = await container(0, "cat")
    restored, other = await restore(pod, *BUSY), await restore(pod, "cat")
    before = await settled(pod)
    slave = os.open(f"/proc/{pod.link.hold_pid}/root{restored.tty}", os.O_RDWR | os.O_NOCTTY)
    elsewhere, far = os.openpty()  # of this machine's /dev/pts, under a number both have
    twins = terminals_up_to(os.ttyname(far), pod)
    master, adopting = restored.master, restored.request
    pair = f"adopt {restored.keeper} {restored.command}"
    refused = [
        (adopting, (), "no descriptor"),
        (adopting, (master, master), "more than one"),
        (adopting, (master,) * 3, "more than one"),
        (adopting, (master,) * 50, "more than one"),
        (adopting, (slave,), "not the master side"),
        (adopting, (restored.link.fileno(),), "not the master side"),
        (adopting, (other.master,), "another one"),
        (adopting, (elsewhere,), "another one"),
        (f"{pair} {os.ttyname(far)}", (elsewhere,), "another one"),
        (f"{pair} {other.tty}", (master,), "another one"),
        (f"{pair} /dev/null", (master,), "another one"),
        (f"{pair} /dev/pts/77", (master,), "another one"),
        (f"{pair} /dev/{'x' * 100}", (master,), "too long"),
        (f"adopt 4000000 {restored.command} {restored.tty}", (master,), "no such keeper"),
        (f"adopt 1 {restored.command} {restored.tty}", (master,), "no such keeper"),
    ]
    for request, fds, why in refused:
        answer = ask(pod, request, *fds)
        assert answer["error"] == "cannot_adopt"
        assert why in str(answer["message"]), request
    for wrong in (
        "adopt", pair, f"{pair} ", f"{pair} tty", f"{adopting} more", f"adopt  {restored.tty}",
        *(f"adopt {number} 2 {restored.tty}" for number in ("0", "-3", "99999999999", "two")),
    ):  # fmt: skip
        assert ask(pod, wrong, master)["error"] == "bad_request", wrong
    assert not (await pod.link.status()).started
    await eventually(lambda: settled(pod), lambda now: now == before, "the same descriptors")
    adopt(pod, restored)
    for fd in (slave, elsewhere, far, *twins):
        os.close(fd)


async def test_only_as_pid_1(wait: Wait) -> None:
    waiting = await wait("cat")
    if (await waiting.link.status()).namespace:
        pytest.skip(
            "in a PID namespace of its own hold is PID 1, and this is about where it is not"
        )
    master, slave = os.openpty()
    answer = ask(waiting, f"adopt {os.getpid()} {os.getpid()} {os.ttyname(slave)}", master)
    assert answer["error"] == "cannot_adopt"
    assert "only as PID 1" in str(answer["message"])
    os.close(master)
    os.close(slave)


async def test_descriptors_with_other_requests_are_closed(wait: Wait) -> None:
    waiting = await wait("cat")
    await waiting.link.start(80, 24)
    before = await settled(waiting)
    read, write = os.pipe()
    for count in (1, 2, 3, 200):
        assert ask(waiting, "status", *[read] * count)["ok"]
        assert ask(waiting, "nonsense", *[read] * count)["error"] == "bad_request"
        assert ask(waiting, "x" * 300, *[read] * count)["error"] == "bad_request"
        assert ask(waiting, "adopt 2 3 /dev/pts/0", *[read] * count)["error"] == "started"
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
            sock.connect(waiting.socket)
            socket.send_fds(sock, [b""], [read] * count)  # nothing, and gone
    await eventually(lambda: settled(waiting), lambda now: now == before, "the same descriptors")
    os.close(read)

    async def broken() -> bool:
        """The last connection may still wait to be accepted, and what came with it."""
        try:
            os.write(write, b"x")
        except BrokenPipeError:
            return True
        return False

    await eventually(broken, bool, "nobody has it any more")
    os.close(write)
