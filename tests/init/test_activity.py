"""What real programs do at a terminal, told apart by what the kernel shows."""

from __future__ import annotations

import os
import shutil

import pytest

from holdfast_sidecar.state import Activity, Graph, observe

from .holding import INTERACTIVE_BASH, Session, Start


async def settles_on(session: Session, activity: Activity, name: str) -> Graph:
    """Seen three times in a row: not a glimpse on the way to something else."""
    streak = 0

    def wanted(graph: Graph) -> bool:
        nonlocal streak
        seen = observe(graph)
        streak = streak + 1 if (seen.activity, seen.name) == (activity, name) else 0
        return streak >= 3

    return await session.foreground_when(wanted, f"{activity} of {name}")


async def expect_of(start: Start, command: tuple[str, ...], activity: Activity, name: str) -> None:
    session = await start(*command)
    await settles_on(session, activity, name)


@pytest.mark.parametrize(
    ("script", "activity"),
    [
        ("input('name? ')", Activity.READING),
        ("import getpass; getpass.getpass()", Activity.PASSWORD),
        ("import select; select.select([0], [], [])", Activity.READING),
        ("import select; select.select([0], [], [], 1000)", Activity.READING),
        ("import select; p = select.poll(); p.register(0, 1); p.poll()", Activity.READING),
        ("import select; p = select.epoll(); p.register(0, 1); p.poll()", Activity.READING),
        ("import select; p = select.poll(); p.register(1, 4); p.register(2, 0); input()",
         Activity.READING),
        ("import threading; threading.Thread(target=input).start()", Activity.READING),
        ("while True: pass", Activity.RUNNING),
        ("import os; r, w = os.pipe(); os.read(r, 1)", Activity.RUNNING),
    ],
)  # fmt: skip
async def test_python(start: Start, python: str, script: str, activity: Activity) -> None:
    session = await start(python, "-c", script)
    name = next(p.name for p in (await session.link.graph()).processes if p.name != "keeper")
    await settles_on(session, activity, name if name != "hold" else "python3")


@pytest.mark.parametrize(
    ("command", "activity", "name"),
    [
        (("bash", "-c", "read -s x"), Activity.PASSWORD, "bash"),
        (("bash", "-c", "read x"), Activity.READING, "bash"),
        (("bash", "-c", "read -n 1 x"), Activity.READING, "bash"),
        (("bash", "-c", "read -s -n 1 x"), Activity.READING, "bash"),
        (("sleep", "100"), Activity.RUNNING, "sleep"),
        (("cat",), Activity.READING, "cat"),
        (("dash",), Activity.PROMPT, "dash"),
        (("dash", "-c", "read x"), Activity.READING, "dash"),
        (("dash", "-c", "stty -echo; read x"), Activity.PASSWORD, "dash"),
        (INTERACTIVE_BASH, Activity.PROMPT, "bash"),
        (("bash", "-c", "while :; do :; done"), Activity.RUNNING, "bash"),
        (("sh", "-c", "sleep 100; true"), Activity.RUNNING, "sh"),
    ],
)
async def test_commands(
    start: Start, command: tuple[str, ...], activity: Activity, name: str
) -> None:
    await expect_of(start, command, activity, name)


async def test_through_a_day_in_bash(start: Start) -> None:
    session = await start(*INTERACTIVE_BASH)
    bash, type_ = "bash", session.terminal.send
    await settles_on(session, Activity.PROMPT, bash)
    type_(b"read -s secret\n")
    await settles_on(session, Activity.PASSWORD, bash)
    type_(b"hush\n")
    await settles_on(session, Activity.PROMPT, bash)
    type_(b"read name\n")
    await settles_on(session, Activity.READING, bash)
    type_(b"me\n")
    type_(b"cat | sort\n")
    await settles_on(session, Activity.READING, "cat")
    type_(b"\x04")
    await settles_on(session, Activity.PROMPT, bash)
    type_(b"sleep 100\n")
    await settles_on(session, Activity.RUNNING, "sleep")
    type_(b"\x03")
    await settles_on(session, Activity.PROMPT, bash)
    type_(b"sleep 100 &\n")
    await settles_on(session, Activity.PROMPT, bash)


@pytest.mark.skipif(
    os.geteuid() == 0 or not shutil.which("su"),
    reason="su asks root for no password, and there must be a su",
)
async def test_setuid_program_the_kernel_hides_from_us(start: Start) -> None:
    await expect_of(start, ("su", "-c", "true"), Activity.PASSWORD, "su")


@pytest.mark.skipif(shutil.which("vim") is None, reason="no vim here")
async def test_vim_reads(start: Start) -> None:
    session = await start("vim", "-u", "NONE", "-N")
    await settles_on(session, Activity.READING, "vim")


async def test_the_same_after_freeze_and_thaw(start: Start, python: str) -> None:
    poll = "import select; p = select.poll(); p.register(0, 1); p.poll(600000)"
    for command, activity, name in [
        (INTERACTIVE_BASH, Activity.PROMPT, "bash"),
        ((python, "-c", poll), Activity.READING, ""),
        (("dash", "-c", "read x"), Activity.READING, "dash"),
    ]:
        session = await start(*command)
        graph = await session.foreground_when(lambda g: bool(g.processes), "the command")
        who = name or graph.processes[0].name
        await settles_on(session, activity, who)
        await session.link.freeze()
        assert observe(await session.link.foreground(), frozen=True).activity is Activity.FROZEN
        await session.link.thaw()
        await settles_on(session, activity, who)
