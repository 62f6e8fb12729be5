"""Which processes on this node make a session: hold, the keeper, the sidecar, and the terminal.

Everything is read from the host's /proc. A session's own processes, and a tenant's other
containers, can name themselves as they like, so no name counts: hold and the sidecar are the first
processes of the containers that the Pod's status names by ID, and the keeper is the child of hold
that hold itself names (peers.keeper_of): an orphan of `kubectl exec` is its child too.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from holdfast_wire.errors import NotFound

from . import freezer

PROC: Final = Path("/proc")
_PTMX: Final = re.compile(r"^(/dev/ptmx|/dev/pts/ptmx|/ptmx)$")
_PF_EXITING: Final = 0x4
_PIDFD_GETFD: Final = 438  # the same number on every architecture
_NS_GET_PARENT: Final = 0xB702
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Pod:
    """A session's pod as this node sees it; PIDs are the host's."""

    uid: str
    hold: int
    sidecar: int | None


@dataclass(frozen=True)
class Terminal:
    """The session's terminal, taken from its keeper. Whoever has it closes `master`."""

    master: int
    path: str  # of the slave side, as the container names it


_ids: dict[str, tuple[str, str]] = {}  # of the session's and the sidecar's container, by pod


def know(pod_uid: str, session: str, sidecar: str) -> None:
    """By the Pod's status. An empty ID: that container does not run."""
    _ids[pod_uid] = (session, sidecar)


def find(pod_uid: str) -> Pod:
    """The running session pod with that UID, if its Pod was read (pods.py); NotFound when it is not
    on this node, or not up."""
    session, sidecar = _ids.get(pod_uid, ("", ""))
    firsts = [pid for pid in _pids() if _in_pod(pid, pod_uid) and _is_first(pid)] if session else []
    hold = next((pid for pid in firsts if in_container(pid, session)), None)
    if hold is None:
        raise NotFound(f"no session runs in pod {pod_uid} on this node")
    beside = (pid for pid in firsts if sidecar and in_container(pid, sidecar))
    return Pod(pod_uid, hold, next(beside, None))


def firsts() -> dict[str, list[int]]:
    """The first process of each container of this node's pods, by the pod's UID."""
    found: dict[str, list[int]] = {}
    for pid in _pids():
        if _is_first(pid) and (uid := _pod_of(pid)) is not None:
            found.setdefault(uid, []).append(pid)
    return found


def beside(hold: int) -> list[int]:
    """All processes of hold's PID namespace but hold itself, also those in namespaces below."""
    depth, space = len(status(hold)["NSpid"].split()), _namespace(hold)
    found = []
    for pid in _pids():
        with suppress(OSError, KeyError):
            numbers = status(pid)["NSpid"].split()
            inside = len(numbers) == depth and _namespace(pid) == space
            if pid != hold and (inside or (len(numbers) > depth and _below(pid, space))):
                found.append(pid)
    return found


def _namespace(pid: int) -> int:
    return (PROC / str(pid) / "ns/pid").stat().st_ino


def _below(pid: int, space: int) -> bool:
    """Whether one of the namespaces around that of `pid` is `space`."""
    opened = os.open(PROC / str(pid) / "ns/pid", os.O_RDONLY | os.O_CLOEXEC)
    try:
        while os.fstat(opened).st_ino != space:
            parent = fcntl.ioctl(opened, _NS_GET_PARENT)
            os.close(opened)
            opened = parent
    except OSError:  # there is none above that may be seen
        return False
    finally:
        os.close(opened)
    return True


def command_of(keeper: int) -> int:
    """The session's command: of the keeper's children, which may be many, the one that leads a
    session on a terminal."""
    for pid in freezer.children(keeper):
        fields = _stat(pid)
        if fields and int(fields[3]) == pid and int(fields[4]) != 0:
            return pid
    raise NotFound("the session's command has ended")


def terminal_of(keeper: int) -> Terminal:
    """A copy of the terminal's master side out of the keeper, which may well be frozen."""
    for entry in sorted((PROC / str(keeper) / "fd").iterdir(), key=lambda one: int(one.name)):
        if _PTMX.match(str(entry.readlink())):
            return Terminal(fetch(keeper, int(entry.name)), _slave(keeper, int(entry.name)))
    raise NotFound("the session's keeper holds no terminal")


def fetch(pid: int, number: int) -> int:
    """Descriptor `number` of another process, as one of ours."""
    process = os.pidfd_open(pid)
    try:
        fd = int(_libc.syscall(_PIDFD_GETFD, process, number, 0))
        if fd < 0:
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error), f"descriptor {number} of process {pid}")
    finally:
        os.close(process)
    os.set_inheritable(fd, False)
    return fd


def inner_pid(pid: int) -> int:
    """`pid` as its own container sees it."""
    return int(status(pid)["NSpid"].split()[-1])


def ids_of(pid: int) -> tuple[int, int]:
    """Its real user and group."""
    found = status(pid)
    return int(found["Uid"].split()[0]), int(found["Gid"].split()[0])


def ending(pid: int) -> bool:
    """It is gone, or was killed and waits for those of its PID namespace. With cgroup v1 it waits
    for ever while they are frozen: somebody has to kill them then."""
    fields = _stat(pid)
    return not fields or fields[0] in "ZX" or bool(int(fields[6]) & _PF_EXITING)


def gone(pid: int) -> bool:
    """Also one that only waits for its parent to take note."""
    fields = _stat(pid)
    return not fields or fields[0] in "ZX"


def status(pid: int) -> dict[str, str]:
    lines = (PROC / str(pid) / "status").read_text().splitlines()
    return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}


def name(pid: int) -> str:
    try:
        return (PROC / str(pid) / "comm").read_text().strip()
    except OSError:
        return ""


def arguments(pid: int) -> list[str]:
    try:
        text = (PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return []
    return [part.decode(errors="replace") for part in text.split(b"\0")[:-1]]


def _stat(pid: int) -> list[str]:
    """Of /proc/PID/stat what follows the name: state, parent, group, session, terminal, ..."""
    try:
        return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _slave(keeper: int, number: int) -> str:
    for line in (PROC / str(keeper) / "fdinfo" / str(number)).read_text().splitlines():
        key, _, value = line.partition(":")
        if key == "tty-index":
            return f"/dev/pts/{value.strip()}"
    raise NotFound("the keeper's terminal has no slave side")


def _pids() -> Iterator[int]:
    return (int(entry.name) for entry in PROC.iterdir() if entry.name.isdigit())


def _is_first(pid: int) -> bool:
    try:
        numbers = status(pid).get("NSpid", "").split()
    except OSError:
        return False
    # Two numbers: the node's and the container's. A PID 1 of a namespace that was made inside the
    # container has three.
    return len(numbers) == 2 and numbers[1] == "1"


def in_container(pid: int, container: str) -> bool:
    """Its cgroup is that container's, by the runtimes' ways to name it, or one below it."""
    try:
        text = (PROC / str(pid) / "cgroup").read_text()
    except OSError:
        return False
    named = re.compile(rf"(?:[a-z-]+-)?{re.escape(container)}(?:\.scope)?")
    return any(
        named.fullmatch(part) for one in freezer.memberships(text) for part in one.path.split("/")
    )


def _pod_of(pid: int) -> str | None:
    try:
        found = freezer.memberships((PROC / str(pid) / "cgroup").read_text())
    except OSError:
        return None
    return next((uid for one in found if (uid := freezer.pod_uid(one.path))), None)


def _in_pod(pid: int, pod_uid: str) -> bool:
    """Asked of every process on the node, and while a session stands still."""
    try:
        text = Path(f"/proc/{pid}/cgroup").read_text()
    except OSError:
        return False
    if pod_uid not in text.replace("_", "-"):
        return False
    found = freezer.memberships(text)
    return pod_uid == next((uid for one in found if (uid := freezer.pod_uid(one.path))), None)
