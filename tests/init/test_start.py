"""Starting, and failing to start, a session."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import stat
import subprocess
from pathlib import Path

import pytest

from holdfast_sidecar.hold import EventKind, HoldError, HoldLink

from .holding import Build, Start, Terminal, appears, eventually


async def run(build: Build, *arguments: str) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        build.path, *arguments, stderr=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL
    )
    _, stderr = await process.communicate()
    assert process.returncode is not None
    return process.returncode, stderr.decode()


def exists(path: str) -> bool:
    return Path(path).exists()


async def test_starts_on_a_terminal_of_the_asked_size(start: Start, build: Build) -> None:
    session = await start("sh", "-c", "stty size; tty; read x", options=("--size", "101x37"))
    await session.terminal.expect(b"37 101\r\n/dev/pts/")
    status = await session.link.status()
    assert (status.version, status.exited, status.frozen, status.expired) == (
        1,
        False,
        False,
        False,
    )
    assert status.deadline_ns == 0 < status.boottime_ns
    inside = build.namespace == "auto" and os.geteuid() == 0
    assert status.namespace is inside
    assert (status.hold_pid == 1) is inside


async def test_processes_keep_their_pids_and_parents(start: Start) -> None:
    session = await start("sh", "-c", "sleep 1000 & cat")
    names = {"keeper", "sh", "sleep", "cat"}
    first = await session.graph_when(
        lambda g: {p.name for p in g.processes} == names, "the four processes"
    )
    status = await session.link.status()
    parents = {p.name: p.ppid for p in first.processes}
    assert parents["keeper"] == status.hold_pid
    assert parents["sh"] == status.keeper_pid
    assert parents["cat"] == parents["sleep"] == status.command_pid == first.command_pid
    second = await session.link.graph()
    assert {(p.pid, p.ppid) for p in second.processes} == {(p.pid, p.ppid) for p in first.processes}


async def test_command_inherits_nothing_but_its_terminal(
    build: Build, start: Start, tmp_path: Path
) -> None:
    leaked = os.open(tmp_path, os.O_RDONLY)
    os.set_inheritable(leaked, True)
    session = await start("sh", "-c", "umask; ls -l /proc/$$/fd; grep Sig /proc/self/status; cat")
    graph = await session.graph_when(
        lambda g: any(p.name == "cat" for p in g.processes), "the command"
    )
    os.close(leaked)
    for process in graph.processes:
        targets = [d.target for d in process.fds]
        if process.name == "keeper":
            assert targets[:3] == ["/dev/null"] * 3
            assert [t.rpartition("/")[2] for t in targets[3:]] == [
                "ptmx",
                "memfd:holdfast-jobs (deleted)",
            ]
        else:
            assert targets == [graph.tty] * 3
    output = session.terminal.drain().decode()
    assert "SigBlk:\t0000000000000000" in output
    assert "SigIgn:\t0000000000000000" in output
    assert output.startswith(f"{_umask():04o}")
    assert stat.S_IMODE(os.stat(session.socket).st_mode) == 0o600  # noqa: PTH116


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


async def test_orphans_are_reparented_to_the_keeper_and_reaped(start: Start) -> None:
    session = await start("sh", "-c", "(sleep 1000 & exec sleep 0.01) & wait; (sleep 0.1 &); cat")
    status = await session.link.status()
    graph = await session.graph_when(
        lambda g: (
            any(p.name == "sleep" and p.ppid == status.keeper_pid for p in g.processes)
            and sum(p.name == "sleep" for p in g.processes) == 1
        ),
        "one orphan adopted and one reaped",
    )
    assert all(p.state != "Z" for p in graph.processes)


@pytest.mark.parametrize(
    ("script", "code", "number"),
    [
        ("exit 0", 0, None),
        ("exit 7", 7, None),
        ("kill -TERM $$", None, 15),
        ("kill -9 $$", None, 9),
    ],
)
async def test_exit_is_kept_until_collected(
    start: Start, script: str, code: int | None, number: int | None
) -> None:
    session = await start("sh", "-c", f"read x; {script}")
    with pytest.raises(HoldError, match="running"):
        await session.link.collected()
    session.terminal.send(b"\n")
    event = await session.event(EventKind.EXITED)
    assert (event.code, event.signal) == (code, number)
    status = await session.link.status()
    assert (status.exited, status.code, status.signal) == (True, code, number)


async def test_unread_output_outlives_the_command_and_its_reader(start: Start) -> None:
    session = await start("sh", "-c", "read x; echo last words; exit 4")
    session.terminal.send(b"\n")
    await session.event(EventKind.EXITED)
    session.link.close()
    again = await HoldLink.connect(session.socket)
    reader = Terminal(await again.master())
    await reader.expect(b"last words")
    reader.close()
    await again.collected()
    again.close()
    await session.hold_gone()
    assert not exists(session.socket)


async def test_what_remains_after_the_command_is_killed(start: Start) -> None:
    session = await start("bash", "-c", "trap '' HUP; sleep 1000 & read x")
    await session.graph_when(lambda g: any(p.name == "sleep" for p in g.processes), "sleep")
    session.terminal.send(b"\n")
    await session.event(EventKind.EXITED)
    await session.graph_when(lambda g: not g.processes, "an empty tree")


async def test_foreground_hold_ends_with_the_command_s_status(
    build: Build, socket_path: str, environment: dict[str, str]
) -> None:
    process = await asyncio.create_subprocess_exec(
        build.path, "--socket", socket_path, "--namespace", build.namespace, "--",
        "sh", "-c", "read x; kill -USR1 $$",
        env=environment,
    )  # fmt: skip
    try:
        await _answer(await appears(socket_path), b"\n")
        assert await process.wait() == 128 + signal.SIGUSR1
    finally:
        if process.returncode is None:
            process.kill()


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="needs root")
async def test_as_pid_1_of_a_container(
    binaries: dict[str, str], socket_path: str, environment: dict[str, str]
) -> None:
    process = await asyncio.create_subprocess_exec(
        "unshare", "--pid", "--fork", "--kill-child", "--mount-proc",
        binaries["asan"], "--socket", socket_path, "--", "sh", "-c", "read x; exit 9",
        env=environment,
    )  # fmt: skip
    try:
        link = await appears(socket_path)
        status = await link.status()
        assert (status.hold_pid, status.namespace) == (1, True)
        await _answer(link, b"\n")
        assert await process.wait() == 9
    finally:
        if process.returncode is None:
            process.kill()


async def _answer(link: HoldLink, text: bytes) -> None:
    master = await link.master()
    os.write(master, text)
    await eventually(link.status, lambda s: s.exited, "the exit")
    await link.collected()
    link.close()
    os.close(master)


async def test_sigterm_is_an_orderly_end_and_then_a_leave(start: Start) -> None:
    session = await start("bash", "-c", "trap 'echo hung up; exit 3' HUP; while :; do read x; done")
    await session.foreground_when(
        lambda g: any(t.waits_on for p in g.processes for t in p.threads), "bash, its trap set"
    )
    os.kill(session.link.hold_pid, signal.SIGHUP)
    os.kill(session.link.hold_pid, signal.SIGINT)
    assert not (await session.link.status()).exited
    os.kill(session.link.hold_pid, signal.SIGTERM)
    assert (await session.event(EventKind.EXITED)).code == 3
    assert b"hung up" in session.terminal.drain()
    os.kill(session.link.hold_pid, signal.SIGTERM)
    await session.hold_gone()


async def test_the_guard_s_death_ends_the_session(start: Start) -> None:
    session = await start("sh", "-c", "cat")
    before = await session.graph_when(lambda g: len(g.processes) == 3, "keeper, sh and cat")
    assert before.processes
    lost = asyncio.Event()
    link = await HoldLink.connect(session.socket, on_lost=lost.set)
    os.kill(link.hold_pid, signal.SIGKILL)
    await asyncio.wait_for(lost.wait(), 5)
    # Only our own copy of the master is left: the terminal says that its other side is gone.

    async def hung_up() -> bool:
        try:
            return os.read(session.terminal.fd, 1) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True

    await eventually(hung_up, bool, "hangup")


@pytest.mark.parametrize("daemon", [["--daemon"], []])
async def test_failures_say_what_to_do(
    build: Build, socket_path: str, tmp_path: Path, daemon: list[str]
) -> None:
    base = ["--socket", socket_path, "--namespace", build.namespace, *daemon]
    (tmp_path / "plain").write_text("not a program")
    # name: arguments, exit status, words
    cases: dict[str, tuple[list[str], int, str]] = {
        "missing": ([*base, "--", "no-such-command"], 127, "check its name and PATH"),
        "plain": ([*base, "--", "./plain"], 126, "must be an executable"),
        "cwd": ([*base, "--cwd", "/no/such", "--", "true"], 1, "--cwd"),
        "dir": (["--socket", "/no/such/s", *daemon, "--", "true"], 1, "directory must exist"),
        "long": (["--socket", "/tmp/" + "x" * 200, *daemon, "--", "true"], 1, "shorter"),  # noqa: S108
        "size": ([*base, "--size", "0x7", "--", "true"], 1, "such as 80x24"),
        "nothing": ([*base], 1, "--help"),
    }
    for name, (arguments, code, words) in cases.items():
        got, text = await run(build, *arguments)
        assert (name, got) == (name, code), text
        assert words in text, name
        assert text.startswith("hold: "), text
        assert text.count("\n") == 1, text
        assert not exists(socket_path)


async def test_a_live_socket_is_respected_and_a_dead_one_replaced(
    build: Build, start: Start
) -> None:
    session = await start("cat")
    code, text = await run(build, "--daemon", "--socket", session.socket, "--", "true")
    assert code == 1
    assert "in use" in text
    os.kill(session.link.hold_pid, signal.SIGKILL)
    await session.hold_gone()
    assert exists(session.socket)
    code, _ = await run(
        build, "--daemon", "--socket", session.socket, "--namespace", build.namespace, "--", "cat"
    )
    assert code == 0
    link = await HoldLink.connect(session.socket)
    assert link.hold_pid != session.link.hold_pid
    link.close()


async def test_help_and_version(build: Build) -> None:
    assert (await run(build, "--help"))[0] == 0
    assert (await run(build, "--version"))[0] == 0


@pytest.mark.skipif(
    subprocess.run(["unshare", "-rm", "true"], check=False, capture_output=True).returncode != 0,
    reason="this kernel lets nobody but root hide a device",
)
async def test_without_terminals_it_says_so(binaries: dict[str, str], socket_path: str) -> None:
    script = 'mount --bind /dev/null /dev/ptmx && exec "$0" --daemon --socket "$1" -- true'
    process = await asyncio.create_subprocess_exec(
        "unshare", "-rm", "sh", "-c", script, binaries["release"], socket_path,
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    _, said = await process.communicate()
    assert process.returncode == 1
    assert b"cannot open a terminal" in said
    assert b"/dev/ptmx must exist" in said
