"""What holds `/dev/tty` open moves: shells without a line editor, pagers, programs that ask."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

import pytest

from e2e import engine_kit as kit
from e2e.engine_lazy import lazily
from e2e.engine_session import Session, Target, bench, dumped, engine, move, node, tidy
from holdfast_node import containers
from holdfast_node.engine import Engine
from holdfast_node.failure import DumpFailed
from holdfast_node.peers import keeper_of

__all__ = ["bench", "engine", "node", "tidy"]  # fixtures; `tidy` stands in for the cluster's

pytestmark = pytest.mark.timeout(60)

SHELLS = {"dash": ("dash", "-i"), "busybox": ("/home/user/busybox", "sh", "-i")}


def furnished(container: kit.Container) -> kit.Container:
    shutil.copy("/bin/busybox", container.root / "home/user/busybox")
    return container


def ttys(session: Session) -> list[str]:
    """What the session's command has open of terminals, by their names, each once."""
    pid = containers.command_of(session.keeper)
    found = {str(entry.readlink()) for entry in Path(f"/proc/{pid}/fd").iterdir()}
    return sorted(one for one in found if one.startswith(("/dev/tty", "/dev/pts")))


@pytest.mark.parametrize("uid", [0, 1000])
@pytest.mark.parametrize("shell", SHELLS)
async def test_a_shell_with_its_jobs(bench: kit.Lab, engine: Engine, shell: str, uid: int) -> None:
    session = Session(furnished(bench.container("a", *SHELLS[shell], uid=uid)))
    session.typist.type("sleep 1000 & x=kept; echo re''ady\n")
    session.typist.until("ready")
    assert ttys(session) == ["/dev/pts/0", "/dev/tty"]
    target = Target(furnished(bench.container("b", uid=uid)))
    await move(engine, session, target, bench.images())
    typist = target.typist
    typist.type("echo $x; jobs; echo se''en\n")
    seen = typist.until("seen")
    assert "kept" in seen
    assert "Running" in seen
    typist.type("sleep 2000\n")
    kit.until(lambda: foreground(target) == "sleep", "it runs in the foreground")
    typist.type("\x1a")
    typist.until("Stopped")
    typist.type("fg\n")
    kit.until(lambda: foreground(target) == "sleep", "it is in the foreground again")
    typist.type("\x03")
    kit.until(lambda: foreground(target) == "shell", "the shell has the terminal back")
    typist.type("echo was=$?; kill %1; echo x > /dev/tty && echo op''ened\n")
    typist.until("was=130")
    typist.until("opened")


def foreground(target: Target) -> str:
    """Who has the terminal: the shell, or the name of its job."""
    keeper = keeper_of(target.container.hold)
    command = containers.command_of(keeper)
    stat = Path(f"/proc/{command}/stat").read_text().rpartition(")")[2].split()
    group = int(stat[5])
    return "shell" if group == command else containers.name(group)


@pytest.mark.long
async def test_a_shell_whose_memory_follows(bench: kit.Lab, engine: Engine) -> None:
    session = Session(bench.container("a", "dash", "-i"))
    session.typist.type("x=kept; echo re''ady\n")
    session.typist.until("ready")
    target = Target(bench.container("b"))
    async with lazily(engine, session, target, bench.images()) as following:
        target.typist.type("echo $x; cat\n")
        target.typist.until("kept")
        await following.all_came()
    kit.until(lambda: foreground(target) == "cat", "it runs in the foreground")
    target.typist.type("\x03")
    kit.until(lambda: foreground(target) == "shell", "the shell has the terminal back")


@pytest.mark.long
async def test_one_that_is_stored_runs_on_and_moves_twice(bench: kit.Lab, engine: Engine) -> None:
    session = Session(bench.container("a", "dash", "-i"))
    session.typist.type("x=kept; echo re''ady\n")
    session.typist.until("ready")
    async with dumped(engine, session, bench.images()) as cage:
        cage.thaw()
    assert ttys(session) == ["/dev/pts/0", "/dev/tty"]
    session.typist.type("echo again-$x\n")
    session.typist.until("again-kept")
    there, back = Target(bench.container("b")), Target(bench.container("c"))
    await move(engine, session, there, bench.images())
    session.container = there.container
    await move(engine, session, back, bench.images())
    back.typist.type("echo back-$x; cat\n")
    back.typist.until("back-kept")
    kit.until(lambda: foreground(back) == "cat", "it runs in the foreground")
    back.typist.type("\x03")
    kit.until(lambda: foreground(back) == "shell", "the shell has the terminal back")


WITHOUT = "setsid sleep 3001 & sleep 3002 &"  # of its own session, and of the shell's
WITHIN = {
    "bash": ["bash --norc"],
    "dash": ["dash -i"],
    "three": ["bash --norc", "dash -i", "bash --norc"],
    "terminal": ["script -qc 'bash --norc' /dev/null", "bash --norc"],
}


@pytest.mark.parametrize("shells", WITHIN)
async def test_a_shell_within_a_shell(bench: kit.Lab, engine: Engine, shells: str) -> None:
    """Only who leads a session can take a terminal; everybody else has it from a parent."""
    session = Session(bench.container("a"))
    for number, shell in enumerate(WITHIN[shells]):
        session.typist.type(f"{shell}\n")
        session.typist.type(f"echo up''-{number}\n")
        session.typist.until(f"up-{number}")
    session.typist.type(f"{WITHOUT} echo re''ady\n")
    session.typist.until("ready")
    kit.until(lambda: settled(session.container), "both sleep, and setsid has gone")
    was = controlled(session.container)
    target = Target(bench.container("b"))
    await move(engine, session, target, bench.images())
    assert controlled(target.container) == was
    typist = target.typist
    typist.type("cat\n")
    kit.until(lambda: "cat" in in_front(target), "a job in the foreground")
    typist.type("\x1a")
    typist.until("Stopped")
    typist.type("fg\n")
    kit.until(lambda: "cat" in in_front(target), "it is in the foreground again")
    typist.type("\x03")
    kit.until(lambda: "cat" not in names(target), "ctrl-C ended it")
    typist.type("echo x >/dev/tty && echo op''ened\n")
    typist.until("opened")


def settled(container: kit.Container) -> bool:
    running = [one[0] for one in controlled(container).values()]
    return running.count("sleep") == 2 and "setsid" not in running


def in_front(target: Target) -> set[str]:
    """Who is in the foreground of a terminal."""
    found = controlled(target.container).values()
    return {name for name, _, group, _, _, front in found if group == front}


def controlled(container: kit.Container) -> dict[int, list[str]]:
    """Of each process: name, parent, group, session, terminal and the group in its foreground, by
    the container's numbers."""
    found = {}
    for pid in container.pids():
        with contextlib.suppress(OSError):  # it has ended meanwhile
            inner = containers.inner_pid(pid)
            stat = (container.root / f"proc/{inner}/stat").read_text()
            found[inner] = [containers.name(pid), *stat.rpartition(")")[2].split()[1:6]]
    return found


HOLDS = """
import fcntl, os, sys
both, reads = os.open("/dev/tty", os.O_RDWR), os.open("/dev/tty", os.O_RDONLY | os.O_NONBLOCK)
{then}
os.write(both, b"ready? ")
os.read(both, 100)
flags = [fcntl.fcntl(fd, fcntl.F_GETFL) & (os.O_ACCMODE | os.O_NONBLOCK) for fd in (both, reads)]
assert flags == [os.O_RDWR, os.O_RDONLY | os.O_NONBLOCK], flags
try:
    os.read(reads, 1)
except BlockingIOError:
    os.write(both, b"na''me? ")
line = os.read(both, 100).decode()
os.write(both, f"got={{line.strip()}} of {{os.tcgetpgrp(both)}} in {{os.getpgrp()}}".encode())
os.read(both, 100)
"""
ALONE = "os.closerange(0, 3)"  # nothing of the terminal is open by another name


@pytest.mark.long
@pytest.mark.parametrize("then", ["", ALONE], ids=["beside", "alone"])
@pytest.mark.parametrize("uid", [0, 1000])
async def test_a_program_reads_and_writes_it(
    bench: kit.Lab, engine: Engine, then: str, uid: int
) -> None:
    program = HOLDS.format(then=then)
    session = Session(bench.container("a", "python3", "-c", program, uid=uid))
    session.typist.until("ready? ")
    slave = session.slave().stat()
    target = Target(bench.container("b", uid=uid))
    await move(engine, session, target, bench.images())
    target.typist.type("\n")
    target.typist.until("na''me? ")
    target.typist.type("moved\n")
    target.typist.until("got=moved of 302 in 302")
    now = (target.container.root / "dev/pts/0").stat()
    assert (now.st_uid, now.st_mode) == (slave.st_uid, slave.st_mode)


NESTED = """
import os, pty, sys
print("outer" if os.open("/dev/tty", os.O_RDWR) else "", flush=True)
pty.spawn(["dash", "-i"])
"""


@pytest.mark.long
async def test_of_two_terminals_each_its_own(bench: kit.Lab, engine: Engine) -> None:
    """As in a pane of tmux: there `/dev/tty` is the pane."""
    session = Session(bench.container("a", "python3", "-c", NESTED))
    session.typist.until("# ")
    session.typist.type("ls -l /proc/$$/fd; stty cols 99; echo re''ady\n")
    assert "/dev/tty" in session.typist.until("ready")
    target = Target(bench.container("b"))
    await move(engine, session, target, bench.images())
    target.typist.type("readlink /proc/$$/fd/10; stty size; sleep 3000\n")
    target.typist.until("/dev/pts/1")
    target.typist.until("0 99")
    kit.until(lambda: "sleep" in names(target), "a job in the foreground")
    target.typist.type("\x1a")
    target.typist.until("Stopped")
    target.typist.type("kill -9 %1; echo fi''ne\n")
    target.typist.until("fine")


def names(target: Target) -> list[str]:
    return [containers.name(pid) for pid in target.container.pids()]


GONE = """
import os, signal, time
master, slave = os.openpty()
reading, writing = os.pipe()
if os.fork() == 0:
    os.login_tty(slave)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    held = os.open("/dev/tty", os.O_RDWR)
    os.closerange(0, 3)
    os.close(master)
    os.write(writing, b"x")
    time.sleep(1000)
os.read(reading, 1)
os.close(slave)
os.close(master)
print("got=" + input("ready? "))
"""
MANY = """
import os
held = [os.open("/dev/tty", os.O_RDWR) for _ in range(65)]
print("got=" + input("ready? "))
"""


@pytest.mark.parametrize(
    ("program", "says"),
    [
        (GONE, r"process 303 \(python3\) has /dev/tty open, of a terminal that is gone"),
        (MANY, r"process 302 \(python3\) has /dev/tty open, of which no more than 64"),
    ],
    ids=["gone", "many"],
)
async def test_what_cannot_be_moved_is_named(
    bench: kit.Lab, engine: Engine, program: str, says: str
) -> None:
    session = Session(bench.container("a", "python3", "-c", program))
    session.typist.until("ready? ")
    with pytest.raises(DumpFailed, match=says):
        async with dumped(engine, session, bench.images()):
            pass
    engine.freezer(session.container.hold).thaw()
    session.typist.type("alive\n")
    session.typist.until("got=alive")
