"""What the threads show, and what is concluded from it. tests/init asks real programs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdfast_sidecar.state import Activity, Descriptor, Graph, Process, Thread, observe

TTY = "/dev/pts/7"
READ, WAIT4 = 0, 61


def thread(
    *waits: int, state: str = "S", syscall: int | None = READ, count: int | None = None
) -> Thread:
    return Thread(9, state, syscall, waits[0] if waits else None, waits, count)


def process(exe: str, *threads: Thread, pid: int = 9, argv: tuple[str, ...] = ()) -> Process:
    name = exe.rpartition("/")[2]
    fds = (Descriptor(0, TTY), Descriptor(3, "/etc/passwd"), Descriptor(5, "/dev/tty"))
    return Process(
        pid, 2, 9, 9, "S", name, argv or (name,), exe, "/", 0, 0, fds, len(fds), (), "", threads
    )  # fmt: skip


def graph(
    *processes: Process, echo: bool = True, canonical: bool = True, icrnl: bool = True
) -> Graph:
    return Graph(processes, 9, echo, canonical, icrnl, 9, TTY)


def editing(*processes: Process) -> Graph:
    return graph(*processes, echo=False, canonical=False, icrnl=False)


CASES: dict[str, tuple[Graph, Activity]] = {
    "cat": (graph(process("/bin/cat", thread(0, count=131072))), Activity.READING),
    "through /dev/tty": (graph(process("/bin/less", thread(5))), Activity.READING),
    "event loop": (graph(process("/bin/node", thread(3, 0))), Activity.READING),
    "a file": (graph(process("/bin/cat", thread(3, count=131072))), Activity.RUNNING),
    "asleep": (graph(process("/bin/sleep", thread(syscall=230))), Activity.RUNNING),
    "busy": (graph(process("/bin/yes", thread(state="R", syscall=None))), Activity.RUNNING),
    "one thread reads": (
        graph(process("/bin/x", thread(state="R", syscall=None), thread(0))),
        Activity.READING,
    ),
    "second of a pipeline": (
        graph(process("/bin/sh", thread(syscall=WAIT4)), process("/bin/cat", thread(0), pid=10)),
        Activity.READING,
    ),
    "password": (graph(process("/bin/sudo", thread(5)), echo=False), Activity.PASSWORD),
    "read -s in bash": (graph(process("/bin/bash", thread(0)), echo=False), Activity.PASSWORD),
    "echo off but working": (
        graph(process("/bin/sudo", thread(syscall=WAIT4)), echo=False),
        Activity.RUNNING,
    ),
    "bash": (editing(process("/usr/bin/bash", thread(0, syscall=270))), Activity.PROMPT),
    "bash, upgraded": (editing(process("/bin/bash (deleted)", thread(0))), Activity.PROMPT),
    "read in bash": (graph(process("/bin/bash", thread(0, count=4096))), Activity.READING),
    "read -n 1 in bash": (
        graph(process("/bin/bash", thread(0, count=1)), canonical=False),
        Activity.READING,
    ),
    "read -s -n 1 in bash": (
        graph(process("/bin/bash", thread(0, count=1)), canonical=False, echo=False),
        Activity.READING,
    ),
    "vim": (editing(process("/usr/bin/vim", thread(0))), Activity.READING),
    "dash": (graph(process("/bin/dash", thread(0, count=8192))), Activity.PROMPT),
    "read in dash": (graph(process("/bin/dash", thread(0, count=1))), Activity.READING),
    "busybox sh": (
        editing(process("/bin/busybox", thread(0), argv=("busybox", "sh"))),
        Activity.PROMPT,
    ),
    "busybox login shell": (
        editing(process("/bin/busybox", thread(0), argv=("-sh",))),
        Activity.PROMPT,
    ),
    "busybox cat": (
        graph(process("/bin/busybox", thread(0, count=4096), argv=("cat",))),
        Activity.READING,
    ),
    "busybox vi": (
        editing(process("/bin/busybox", thread(0), argv=("busybox", "vi", "sh"))),
        Activity.READING,
    ),
    "background only": (graph(replace(process("/bin/cat", thread(0)), pgid=8)), Activity.RUNNING),
    "empty": (graph(), Activity.RUNNING),
}


@pytest.mark.parametrize("name", CASES)
def test_activity(name: str) -> None:
    given, activity = CASES[name]
    seen = observe(given)
    assert seen.activity is activity
    assert seen.sentence.endswith(".")


def test_hidden_process_asking_for_a_password() -> None:
    hidden = replace(process("", thread(syscall=None)), name="sudo", fds=(), fds_total=0)
    assert observe(graph(hidden, echo=False)).activity is Activity.PASSWORD
    assert observe(graph(hidden)).activity is Activity.RUNNING


def test_says_who() -> None:
    shell, cat = process("/bin/sh", thread(syscall=WAIT4)), process("/bin/cat", thread(0), pid=10)
    seen = observe(graph(shell, cat))
    assert (seen.pid, seen.name) == (10, "cat")
    assert seen.sentence == "cat (pid 10) is waiting for input from the terminal."
    assert observe(graph(shell)).sentence == "sh (pid 9) is running."


def test_outside_knowledge_outranks_the_threads() -> None:
    reading = graph(process("/bin/cat", thread(0)))
    assert observe(reading, frozen=True).activity is Activity.FROZEN
    assert observe(reading, frozen=True, ended=True).activity is Activity.ENDED
