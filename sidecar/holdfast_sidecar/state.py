"""What the session is doing, from kernel evidence alone: pure, no I/O.

The facts are which processes are in the terminal's foreground group, which system call each of
their threads is blocked in and on which descriptors, and the terminal's mode. Nothing is guessed
from output or from silence.

Invariant: PROMPT, READING and PASSWORD are only said when a thread of the foreground group is
seen blocked on the session's terminal; the one exception is a process the kernel hides from us
(sudo run by a plain user) that sleeps while the terminal is set for a password.

Known limits: a shell's own `read -e` looks like its prompt, because it is the same line editor;
bash started with --noediting shows READING at its prompt.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from posixpath import basename


@dataclass(frozen=True, slots=True)
class Descriptor:
    fd: int
    target: str
    device: str | None = None  # "char 10:229", "block 8:0"
    protocol: str | None = None  # a socket's, as the kernel names it: TCP, UNIX, MPTCP


@dataclass(frozen=True, slots=True)
class Listener:
    protocol: str  # "tcp" or "unix"
    address: str  # an IP address, or the socket's path
    port: int | None


@dataclass(frozen=True, slots=True)
class Thread:
    tid: int
    state: str
    syscall: int | None  # None: running, or not ours to look into
    fd: int | None
    waits_on: tuple[int, ...]
    count: int | None  # bytes asked for, when the call says


@dataclass(frozen=True, slots=True)
class Process:
    pid: int
    ppid: int
    pgid: int
    sid: int
    state: str
    name: str
    command: tuple[str, ...]
    exe: str
    cwd: str
    uid: int
    started_ms: int
    fds: tuple[Descriptor, ...]
    fds_total: int
    listening: tuple[Listener, ...]
    wait_channel: str
    threads: tuple[Thread, ...]
    tracer: int | None = None  # the process that traces it: a debugger, strace
    own_users: bool = False  # it has a user namespace of its own
    cpu_ms: int | None = None  # how long it has computed


@dataclass(frozen=True, slots=True)
class Graph:
    processes: tuple[Process, ...]
    foreground_pgid: int
    echo: bool
    canonical: bool
    icrnl: bool  # carriage return is read as newline; line editors turn it off
    command_pid: int
    tty: str
    truncated: bool = False


class Activity(Enum):
    RUNNING = "running"
    PROMPT = "prompt"
    READING = "reading"
    PASSWORD = "password"  # noqa: S105 - a state, not a secret
    FROZEN = "frozen"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Observation:
    activity: Activity
    pid: int | None
    name: str | None
    sentence: str


# fmt: off
SHELLS_WITH_EDITOR = frozenset({
    "ash", "bash", "csh", "elvish", "fish", "ksh", "ksh93", "mksh", "nu", "oksh", "tcsh", "xonsh",
    "yash", "zsh", "zsh5",
})
# fmt: on
# These read their commands like any program reads a line, a buffer at a time; their `read` takes
# single bytes, so as not to swallow what the next command is to read.
SHELLS_WITHOUT_EDITOR = frozenset({"ash", "dash", "posh", "sh"})
_MULTICALL = frozenset({"busybox", "toybox"})


def observe(graph: Graph, *, frozen: bool = False, ended: bool = False) -> Observation:
    """`frozen` and `ended` are known from elsewhere, and outrank what the threads show."""
    if ended:
        return Observation(Activity.ENDED, None, None, "The session has ended.")
    if frozen:
        return Observation(Activity.FROZEN, None, None, "The session is frozen.")
    group = [p for p in graph.processes if p.pgid == graph.foreground_pgid]
    for process in group:
        for thread in process.threads:
            if _waits_on_terminal(process, thread, graph.tty):
                return _waiting(graph, process, thread)
    if graph.canonical and not graph.echo:
        for process in group:
            if _hidden(process):
                return _say(Activity.PASSWORD, process)
    return _running(graph, group)


def _waiting(graph: Graph, process: Process, thread: Thread) -> Observation:
    if graph.canonical and not graph.echo:
        return _say(Activity.PASSWORD, process)
    if _at_prompt(graph, _program(process), thread):
        return _say(Activity.PROMPT, process)
    return _say(Activity.READING, process)


def _at_prompt(graph: Graph, program: str, thread: Thread) -> bool:
    if graph.canonical:
        return program in SHELLS_WITHOUT_EDITOR and thread.count is not None and thread.count > 1
    if graph.echo or program not in SHELLS_WITH_EDITOR:  # a line editor echoes by itself
        return False
    # `read -s -n 1` of bash turns off the same two flags, but unlike its editor leaves this on.
    return not (program == "bash" and graph.icrnl)


def _program(process: Process) -> str:
    """The executable's name; for a multi-call binary, that of the tool it plays."""
    program = basename(process.exe.removesuffix(" (deleted)"))
    if program not in _MULTICALL:
        return program
    words = [basename(word).removeprefix("-") for word in process.command[:2]]
    while words and words[0] in _MULTICALL:
        words.pop(0)
    return {"sh": "ash"}.get(words[0], words[0]) if words else program


def _waits_on_terminal(process: Process, thread: Thread, tty: str) -> bool:
    if not thread.waits_on:
        return False
    ours = {d.fd for d in process.fds if d.target in (tty, "/dev/tty")}
    return any(fd in ours for fd in thread.waits_on)


def _hidden(process: Process) -> bool:
    """Asleep, and the kernel shows us neither its calls nor its files."""
    return (
        process.fds_total == 0
        and bool(process.threads)
        and all(t.syscall is None and t.state == "S" for t in process.threads)
    )


def ports(graph: Graph, boot: float) -> list[dict[str, object]]:
    """Who in the session listens where, and since when it has been running. `boot`: the wall
    clock's time at which the kernel's started counting."""
    return [
        {
            "protocol": listener.protocol,
            "address": listener.address,
            "port": listener.port,
            "pid": process.pid,
            "name": process.name,
            "since": round(boot + process.started_ms / 1000, 2),
        }
        for process in graph.processes
        for listener in process.listening
    ]


_SENTENCES = {
    Activity.PROMPT: "{} (pid {}) is at its prompt.",
    Activity.READING: "{} (pid {}) is waiting for input from the terminal.",
    Activity.PASSWORD: "{} (pid {}) is waiting for input that is not shown, such as a password.",
    Activity.RUNNING: "{} (pid {}) is running.",
}


def _say(activity: Activity, process: Process) -> Observation:
    sentence = _SENTENCES[activity].format(process.name, process.pid)
    return Observation(activity, process.pid, process.name, sentence)


def _running(graph: Graph, group: list[Process]) -> Observation:
    leader = next((p for p in group if p.pid == graph.foreground_pgid), None)
    process = leader or (group[0] if group else None)
    if process is None:
        sentence = "No process is in the foreground of the terminal."
        return Observation(Activity.RUNNING, None, None, sentence)
    return _say(Activity.RUNNING, process)
