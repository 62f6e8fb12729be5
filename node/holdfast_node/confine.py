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
import os
import struct
from pathlib import Path
from typing import Final

CHOWN, DAC_OVERRIDE, DAC_READ_SEARCH, FOWNER, FSETID, KILL, SETGID, SETUID, SETPCAP = range(9)
NET_BIND_SERVICE, NET_ADMIN, IPC_LOCK, IPC_OWNER = 10, 12, 14, 15
SYS_CHROOT, SYS_PTRACE, SYS_ADMIN, SYS_NICE, SYS_RESOURCE, SYS_TIME, LEASE = (
    18,
    19,
    21,
    23,
    24,
    25,
    28,
)

DUMP: Final = frozenset({
    DAC_OVERRIDE, DAC_READ_SEARCH, KILL, NET_ADMIN, SYS_CHROOT, SYS_PTRACE, SYS_ADMIN, SYS_RESOURCE,
})  # fmt: skip
RESTORE: Final = DUMP | {
    CHOWN, FOWNER, FSETID, SETGID, SETUID, SETPCAP, NET_BIND_SERVICE, IPC_LOCK, IPC_OWNER, SYS_NICE,
    SYS_TIME, LEASE,
}  # fmt: skip
_ALL: Final = 64
_PR_CAPBSET_READ, _PR_CAPBSET_DROP = 23, 24
_VERSION: Final = 0x20080522  # of capset, with 64 of them
_OPEN_TREE: Final = 428  # the same number on every architecture
_CLONE, _CLOEXEC, _EMPTY_PATH = 0x1, 0x80000, 0x1000
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


def alone(folder: int) -> int:
    """The open folder as a mount of its own, out of which no path leads. The caller closes it."""
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
