"""What CRIU may do on its node: the capabilities that it needs, and no way out of its folders.

CRIU reads what a hostile process has laid out. It has the namespaces of the session's container,
but for the user namespace, and a few folders of the agent as descriptors.

- Capabilities are bounded before CRIU is executed. What a restored process may have is a part of
  what its container's first process has, so that is left to a restoring CRIU: it gives each process
  its own set, out of what it has itself.
- A descriptor of a folder leads out of it: `..` goes up to the root of whoever opened it, which is
  the agent, and from there to the node. So each folder is handed on as a mount of its own that is
  attached nowhere, where `..` of the top is the top.

There is no seccomp filter, for the kernel forbids it: who is under one may neither suspend another
process's filter nor read it (PTRACE_O_SUSPEND_SECCOMP, PTRACE_SECCOMP_GET_FILTER), and every
session has one. See docs/decisions/0043-criu-is-confined-by-capabilities.md.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from concurrent.futures import ThreadPoolExecutor
from enum import IntEnum
from pathlib import Path
from typing import Final


class Cap(IntEnum):
    """As capability.h numbers them."""

    CHOWN = 0
    DAC_OVERRIDE = 1
    DAC_READ_SEARCH = 2
    FOWNER = 3
    FSETID = 4
    KILL = 5
    SETGID = 6
    SETUID = 7
    SETPCAP = 8
    NET_BIND_SERVICE = 10
    NET_ADMIN = 12
    IPC_LOCK = 14
    IPC_OWNER = 15
    SYS_CHROOT = 18
    SYS_PTRACE = 19
    SYS_ADMIN = 21
    SYS_NICE = 23
    SYS_RESOURCE = 24
    SYS_TIME = 25
    LEASE = 28


# It writes too: a link beside each deleted file that has another name, in whosever folder.
DUMP: Final[frozenset[int]] = frozenset({
    Cap.DAC_OVERRIDE, Cap.DAC_READ_SEARCH, Cap.FOWNER, Cap.KILL, Cap.NET_ADMIN, Cap.SYS_ADMIN,
    Cap.SYS_CHROOT, Cap.SYS_PTRACE, Cap.SYS_RESOURCE,
})  # fmt: skip
# Processes with their users, limits, priorities, clocks, locked memory, and what they listen on.
RESTORE: Final[frozenset[int]] = DUMP | {
    Cap.CHOWN, Cap.FSETID, Cap.IPC_LOCK, Cap.IPC_OWNER, Cap.LEASE, Cap.NET_BIND_SERVICE,
    Cap.SETGID, Cap.SETPCAP, Cap.SETUID, Cap.SYS_NICE, Cap.SYS_TIME,
}  # fmt: skip
_ALL: Final = 64
_PR_CAPBSET_READ, _PR_CAPBSET_DROP = 23, 24
_VERSION: Final = 0x20080522  # of capset, with 64 of them
_OPEN_TREE: Final = 428  # the same number on every architecture
_CLONE, _CLOEXEC, _EMPTY_PATH = 0x1, 0x80000, 0x1000
_CLONE_FS, _CLONE_NEWNS = 0x200, 0x20000
NODE_MOUNTS: Final = Path("/proc/1/ns/mnt")
_libc: Final = ctypes.CDLL(None, use_errno=True)


def needed(hold: int, *, restoring: bool) -> list[int]:
    """By CRIU, to work in the container whose first process is `hold`."""
    return sorted(RESTORE | bounding(hold) if restoring else DUMP)


def bounding(pid: int) -> frozenset[int]:
    """The capabilities that the process, and what it starts, can ever have."""
    mask = _mask(pid, "CapBnd")
    return frozenset(number for number in range(_ALL) if mask >> number & 1)


def bound(keep: list[int]) -> None:
    """What this process executes next, as root, has no other capability, and cannot get one."""
    for number in range(_ALL):
        if number not in keep and _libc.prctl(_PR_CAPBSET_READ, number, 0, 0, 0) == 1:
            _check(_libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0), f"drop capability {number}")


def become(keep: list[int]) -> None:
    """This process itself has no other capability from now on, whatever it executes: CRIU can look
    into the one that waits for it in the container."""
    bound(keep)
    mask = sum(1 << number for number in keep) & _mask(os.getpid(), "CapPrm")
    low, high = mask & 0xFFFFFFFF, mask >> 32
    header, sets = struct.pack("=Ii", _VERSION, 0), struct.pack("=6I", low, low, 0, high, high, 0)
    _check(_libc.capset(header, sets), "capset")


def alone(folder: int, node: Path = NODE_MOUNTS) -> int:
    """The open folder as a mount of its own, out of which no path leads. The caller closes it. The
    kernel does that only from the folder's own mount namespace: this one's, or else the node's,
    which the agent's cgroups are in."""
    try:
        return _tree(folder)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    with ThreadPoolExecutor(1) as thread:  # which alone goes there, and ends
        return thread.submit(_tree_in, node, folder).result()


def _tree_in(space: Path, folder: int) -> int:
    with space.open() as opened:
        _check(_libc.unshare(_CLONE_FS), "unshare")
        _check(_libc.setns(opened.fileno(), _CLONE_NEWNS), "setns")
    return _tree(folder)


def _tree(folder: int) -> int:
    flags = _CLONE | _CLOEXEC | _EMPTY_PATH
    return _check(_libc.syscall(_OPEN_TREE, folder, b"", flags), "open_tree")


def _mask(pid: int, kind: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(f"{kind}:")).split()[1], 16)


def _check(result: int, what: str) -> int:
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), what)
    return result
