"""What in the session would keep it from moving, from the graph of its processes. Pure.

Said of a process is only what CRIU refuses for certain (checked against its sources); what it may
refuse, such as a large deleted file or a Unix socket to the outside, shows when it is tried. The
words are those that the node's agent has for a move that failed.

A process is told by the kernel's name for it, never by its command line: whoever may read a Session
reads this too, and passwords stand in command lines.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Final

from holdfast_sidecar.state import Descriptor, Graph, Process

MOST_TOLD: Final = 3
_LIMITS: Final = {"command": 32, "what": 200, "advice": 120}
_CLOSE: Final = "close it or end the program"
_ESCAPE: Final = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"
    r"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"
)

# Null and its like; terminals, virtual, auxiliary, serial and pseudo.
_MOVABLE_MAJORS: Final = frozenset({1, 4, 5, 188, 204, *range(128, 144)})
_MOVABLE: Final = frozenset({"char 10:200", "char 10:235"})  # tun, autofs
# As /proc names them, in brackets or not. CRIU knows eventfd, epoll, inotify, fanotify, signalfd,
# timerfd, pidfd and sometimes a bpf-map, and refuses any other.
_ANONYMOUS: Final = {
    "io_uring": "an io_uring",
    "userfaultfd": "a userfaultfd",
    "perf_event": "a perf_event",
    "bpf-prog": "a BPF program",
    "bpf_link": "a BPF link",
    "bpf-link": "a BPF link",
    "btf": "BPF type data",
    "seccomp notify": "a seccomp listener",
    "kvm-vm": "a virtual machine (kvm)",
}
_ANONYMOUS_NAME: Final = re.compile(r"anon_inode:\[?([^\]]*)\]?")
_SECRET: Final = "/secretmem (deleted)"  # noqa: S105 - memory, made by memfd_secret()
# CRIU knows Unix, netlink and packet sockets, and of IP: TCP, UDP, UDP-Lite, ICMP and raw.
_PROTOCOLS: Final = frozenset(
    {"MPTCP", "MPTCPv6", "SCTP", "SCTPv6", "DCCP", "DCCPv6", "AF_VSOCK", "ALG", "TIPC"}
)


@dataclass(frozen=True, slots=True)
class Blocker:
    pid: int
    command: str
    what: str  # goes on after the name of the process
    advice: str


def blockers(graph: Graph) -> list[Blocker]:
    """Parents before children; each kind once for a process, and once for all that one traces or
    that are in one sandbox."""
    names = {process.pid: process.name for process in graph.processes}
    sandboxed = {process.pid for process in graph.processes if process.own_users}
    found: dict[tuple[object, str], Blocker] = {}
    for process in graph.processes:
        if process.state in "ZX":
            continue
        if process.tracer is not None:
            what, advice = _traced(process.tracer, names)
            found.setdefault(("traced", what), _blocker(process, what, advice))
        if process.own_users and process.ppid not in sandboxed:
            what = "is in a user namespace of its own, as sandboxes make them"
            found[process.pid, what] = _blocker(process, what, "end the sandboxed program")
        for held in filter(None, map(_open, process.fds)):
            what = f"has {held} open, which cannot be moved"
            found.setdefault((process.pid, what), _blocker(process, what, _CLOSE))
    return list(found.values())


def encode(told: Sequence[Blocker]) -> str:
    """For the Lease: bounded, and nothing in it acts in a terminal."""
    return json.dumps([asdict(blocker) for blocker in told[:MOST_TOLD]])


def _blocker(process: Process, what: str, advice: str) -> Blocker:
    texts = {"command": process.name, "what": what, "advice": advice}
    return Blocker(process.pid, **{key: _plain(text, _LIMITS[key]) for key, text in texts.items()})


def _traced(tracer: int, names: dict[int, str]) -> tuple[str, str]:
    by = f"{names[tracer]} (process {tracer})" if tracer in names else f"process {tracer}"
    return f"is being traced by {by}", "end the debugger or tracer"


def _open(descriptor: Descriptor) -> str | None:
    """What this is, if it cannot be moved."""
    target, device = descriptor.target, descriptor.device
    if device is not None:
        return None if _is_movable(device) else f"the device {target}"
    if match := _ANONYMOUS_NAME.fullmatch(target):
        return _ANONYMOUS.get(match[1].partition(":")[0])
    if target == _SECRET:
        return "secret memory (memfd_secret)"
    if descriptor.protocol in _PROTOCOLS:
        return f"a socket of the kind {descriptor.protocol}"
    return None


def _is_movable(device: str) -> bool:
    kind, _, numbers = device.partition(" ")
    major = numbers.partition(":")[0]
    known = major.isdigit() and int(major) in _MOVABLE_MAJORS
    return kind == "char" and (known or device in _MOVABLE)


def _plain(text: str, limit: int) -> str:
    kept = "".join(c for c in _ESCAPE.sub("", text) if c.isprintable())
    return kept if len(kept) <= limit else kept[: limit - 1] + "…"
