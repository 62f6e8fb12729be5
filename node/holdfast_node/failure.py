"""Why CRIU would not: out of its log, in words for the owner of the session.

Pure. CRIU's log is for its developers, and its first error is often none; `TELLING` knows the lines
that tell something, each with what it means to a person and what that person can do.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from holdfast_wire.errors import Permanent


@dataclass(frozen=True)
class Reason:
    message: str
    advice: str = ""
    pid: int | None = None  # as the session's container numbers it
    process: str = ""


class _Failed(Permanent):
    http_status = 422

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason.message, reason.advice)
        self.reason = reason


class DumpFailed(_Failed):
    """The session cannot be taken out of its container as it is now; it is alive and frozen."""

    code = "dump_failed"


class RestoreFailed(_Failed):
    """The session could not be put into this container; nothing of it is left there."""

    code = "restore_failed"


@dataclass(frozen=True)
class _Telling:
    """`says` gets the match, and goes on after the name of the process. A group named `pid` in
    the pattern says which process it is."""

    pattern: re.Pattern[str]
    says: Callable[[re.Match[str]], str]
    advice: str


def _telling(pattern: str, says: str | Callable[[re.Match[str]], str], advice: str) -> _Telling:
    return _Telling(
        re.compile(pattern), (lambda _: says) if isinstance(says, str) else says, advice
    )


def _family(match: re.Match[str]) -> str:
    try:
        name = socket.AddressFamily(int(match["family"])).name.removeprefix("AF_")
    except ValueError:
        name = match["family"]
    return f"has a socket of family {name} open, which cannot be moved"


def _size(match: re.Match[str]) -> str:
    return (
        f"has a deleted file of {int(match['size']) >> 20} MiB open ({match['path']}), and only "
        "small ones can be moved"
    )


_CLOSE: Final = "close it or end the program, and move the session then"

TELLING: Final = (
    _telling(
        r"zombie (?P<pid>\d+) \(comm .*\) found while seizing|Unseizable",
        "is being traced or is about to end",
        "end the debugger or tracer, and move the session then",
    ),
    _telling(
        r"ctty inheritance detected sid/pgrp \d+(?:.*ctty pid_real (?P<pid>\d+))?",
        "has a device such as /dev/tty open that is not the container's own",
        _CLOSE,
    ),
    _telling(
        r"Too many external terminals",
        "has /dev/tty open, of which no more than 64 can be moved in one session",
        "end some of the programs that have, such as shells, and move the session then",
    ),
    _telling(r"Can't dump ghost file (?P<path>.*) of (?P<size>\d+) size", _size, _CLOSE),
    _telling(
        r"Can't dump file \d+ of that type \[\d+\] \((?P<what>.*)\)",
        lambda match: f"has something open that cannot be moved: {_plain(match['what'])}",
        _CLOSE,
    ),
    _telling(r"Unknown socket collected \(family (?P<family>\d+)\)", _family, _CLOSE),
    _telling(
        r"[Uu]nsupported proto (?P<number>\d+) for socket",
        lambda match: f"has a socket of protocol {match['number']} open, which cannot be moved",
        _CLOSE,
    ),
    _telling(
        r"netlink: The socket has data to read",
        "has an unread answer from the kernel waiting (a netlink socket)",
        "try again in a moment",
    ),
    _telling(
        r"unix: (?:Dangling connection|External socket|Can't dump half)",
        "is connected by a Unix socket to a process outside the session",
        _CLOSE,
    ),
    _telling(
        r"nested user namespace for (?P<pid>\d+)",
        "is in a user namespace of its own, as sandboxes make them",
        "end the sandboxed program, and move the session then",
    ),
    _telling(
        r"/secretmem", "has secret memory (memfd_secret), which cannot be read by design", _CLOSE
    ),
    _telling(
        r"No space left on device",
        "does not fit into the memory that the node sets aside for moving sessions",
        "give the node agent more memory, or let the session use less",
    ),
    _telling(
        r"Can't create inotify: Too many open files",
        "could not be looked at: the machine's limit of inotify instances is used up",
        "raise it: sysctl fs.inotify.max_user_instances=512",
    ),
    _telling(
        r"prlimit|rlimit.*(?P<pid>\d+).*not permitted|Can't dump rlimit",
        "belongs to another user, and this node does not let CRIU read its limits",
        "give the node agent CAP_SYS_RESOURCE",
    ),
    _telling(
        r"Can't fork for (?P<pid>\d+): File exists|Pid (?P<other>\d+) do not match expected",
        "needs a number that another process has in the new container",
        "start sessions with hold --reserve 300",
    ),
    _telling(
        r"Can't connect inet socket back",
        "has a connection to an address that the new pod has no route to",
        _CLOSE,
    ),
    _telling(
        r"(?:Can't bind inet socket|inet: Can't bind|Unable to bind)",
        "has a socket with an address that the new pod does not have",
        _CLOSE,
    ),
    _telling(
        r"File /?run/holdfast-bin/\S+ has bad (?P<what>size|mode|mtime|build-ID)",
        "is hold of an older release, which was not stored with it",
        "set the chart's sidecar.formerImage to the image of that release",
    ),
    _telling(
        r"File (?P<path>\S+) has bad (?P<what>size|mode|mtime|build-ID)",
        lambda match: (
            f"uses /{match['path'].lstrip('/')}, which is another file in the new container"
        ),
        "the container's image must be the same, by digest",
    ),
    _telling(
        r"Can't open file (?P<path>\S+).*No such file",
        lambda match: f"uses /{match['path'].lstrip('/')}, which is not in the new container",
        "keep it in the session's own file system or in a volume that moves along",
    ),
)

_NOISE: Final = re.compile(
    r"RLIMIT_NOFILE for self|tun: Unable to create tun|Dumping FAILED|Restoring FAILED"
    r"|Unable to detach from|cgroupd: recv req error|Could not process rule"
)
_SAYS: Final = re.compile(r"Error \([^)]*\): (?P<text>.*)")
_NAME: Final = re.compile(r"(?:pid: |SEIZE )(?P<pid>\d+) \(?comm:? (?P<name>[^)]*)\)")
_PID: Final = re.compile(r"\(pid: (?P<pid>\d+)\) failed with|^\(\d+\.\d+\)\s+(?P<inner>\d+): Error")


def explain(log: str, fallback: str) -> Reason:
    """The first line that tells something; without one, CRIU's first error as it is."""
    lines = log.splitlines()
    names = {int(m["pid"]): m["name"] for line in lines if (m := _NAME.search(line))}
    errors = [line for line in lines if "Error" in line and not _NOISE.search(line)]
    for line in errors:
        for telling in TELLING:
            if match := telling.pattern.search(line):
                pid = _named(match) or _blamed(errors)
                return reason(pid, names.get(pid or 0, ""), telling.says(match), telling.advice)
    told = next((m["text"] for line in errors if (m := _SAYS.search(line))), fallback)
    pid = _blamed(errors)
    return Reason(f"CRIU says: {told}", "", pid, names.get(pid or 0, ""))


def reason(pid: int | None, name: str, says: str, advice: str) -> Reason:
    who = f"process {pid}" if pid else "a process"
    return Reason(f"{who}{f' ({name})' if name else ''} {says}", advice, pid, name)


def _named(match: re.Match[str]) -> int | None:
    found = match.groupdict().get("pid")
    return int(found) if found else None


def _blamed(errors: list[str]) -> int | None:
    for line in errors:
        if match := _PID.search(line):
            return int(match["pid"] or match["inner"])
    return None


def _plain(what: str) -> str:
    """`anon anon_inode:[userfaultfd]` is a userfaultfd."""
    inner = re.search(r"anon_inode:\[?([^\]]*)\]?", what)
    return inner.group(1) if inner else what
