"""What this node can do, found out once when the agent starts, and compared between two nodes.

CRIU's `check --all` asks for three kinds of features. Without one of the first, which it calls
absolutely required, it does nothing at all: the node can neither give nor take a session, and so it
is without those of NEEDED. The others are needed by some trees only, or not by holdfast: what is
lacking of them is said, and refuses nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import hashlib
import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from . import freezer, inside

# Beyond what CRIU requires of itself, by its name for it: what holdfast cannot do without.
NEEDED: Final = {
    "seccomp_suspend": "a process under a filter, as all of a session are, cannot be dumped",
    "seccomp_filters": "the filter that a session runs under cannot be dumped",
}
NOTES: Final = "criu.kdat"  # what CRIU knows of the kernel; it finds out anew without
_SHARED_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - CRIU keeps notes on a tmpfs only
_SECONDS: Final = 30
_PLACE: Final = re.compile(r"^\w+\s*(\([^)]*\):)?\s*")  # "Warn  (criu/cr-check.c:824): "
# What a program that looked once goes on to use. Others, such as those about the hypervisor, come
# and go with the machine and are nobody's business.
_IRRELEVANT: Final = frozenset({"hypervisor", "constant_tsc", "nonstop_tsc", "tsc_known_freq"})


@dataclass(frozen=True)
class Preflight:
    """`problems` says in words what keeps sessions from being moved from or to this node."""

    kernel: str
    criu: str
    cpu: str  # the same on two nodes: a process of the one can run on the other
    freezer: str  # "v1", "v2" or ""
    any_user: bool  # sessions of any uid; otherwise only by CRIU as their own user
    problems: tuple[str, ...]
    notes: bytes = field(repr=False)
    follows: bool = False  # the memory of a session can come here after it
    lacks: tuple[str, ...] = ()  # in CRIU's words: what only some sessions would need, or none

    def __str__(self) -> str:
        users = "of any user" if self.any_user else "by CRIU as their user"
        memory = "follows if asked to" if self.follows else "cannot follow"
        return (
            f"CRIU {self.criu}, Linux {self.kernel}, freezer {self.freezer}, sessions {users},"
            f" memory {memory}{self.lacking}"
        )

    @property
    def lacking(self) -> str:
        return f"; not needed, and not there: {' '.join(self.lacks)}" if self.lacks else ""


def look(bundle: Path, cgroups: Path = freezer.CGROUPS) -> Preflight:
    """Blocks for some tenths of a second."""
    problems = []
    version, checked = "", Checked()
    needed = (inside.LOADER, "criu", inside.TERMINALS)
    if not all((bundle / name).exists() for name in needed):
        problems.append(f"CRIU is not at {bundle}")
    elif b"/etc/ld.so.preload" in (bundle / inside.LOADER).read_bytes():
        problems.append(f"the loader at {bundle} would load libraries of a user's choice")
    else:
        checked = check(partial(_run, bundle))
        problems += checked.problems
        version = _version(bundle)
    which = _freezer(cgroups)
    if not which:
        problems.append("there is no cgroup freezer; mount cgroup v2, or v1's freezer")
    if os.geteuid() != 0:
        problems.append("the agent is not root")
    return Preflight(
        kernel=platform.release(),
        criu=version,
        cpu=cpu_digest(Path("/proc/cpuinfo").read_text(), xsave_size()),
        freezer=which,
        any_user=inside.may(inside.SYS_RESOURCE),
        problems=tuple(problems),
        notes=checked.notes,
        follows=not problems and can_follow(bundle),
        lacks=checked.lacks,
    )


async def fit(bundle: Path, cgroups: Path, every: float = 60.0) -> None:
    """Returns when nothing is in the way any more: on a busy machine a check may fail for once."""
    while True:
        await asyncio.sleep(every)
        found = await asyncio.to_thread(look, bundle, cgroups)
        if not found.problems:
            return


def can_follow(bundle: Path) -> bool:
    """A session's memory can come here after it (lazy.py)."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        done = _run(bundle, Path("/"), "check", "--feature", "uffd-noncoop")
        return done.returncode == 0
    return False


def cpu_digest(cpuinfo: str, xsave: int) -> str:
    """A name for what programs can find out about the processor: its flags, and how much room its
    registers take, which a restored signal frame depends on."""
    flags: set[str] = set()
    for line in cpuinfo.splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("flags", "Features"):
            flags = set(value.split()) - _IRRELEVANT
            break
    text = " ".join([platform.machine(), str(xsave), *sorted(flags)])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def xsave_size() -> int:
    """Bytes of a signal's frame at least, as the kernel tells every program; 0: it does not."""
    auxiliary_minimum_signal_stack = 51
    getauxval = ctypes.CDLL(None).getauxval
    getauxval.restype = ctypes.c_ulong
    return int(getauxval(auxiliary_minimum_signal_stack))


def _freezer(cgroups: Path) -> str:
    with contextlib.suppress(OSError):
        if (cgroups / "freezer").is_dir():
            return "v1"
        if (cgroups / "cgroup.controllers").exists():
            return "v2"
    return ""


@dataclass(frozen=True)
class Checked:
    problems: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()
    notes: bytes = field(default=b"", repr=False)


Run = Callable[..., "subprocess.CompletedProcess[str]"]


def check(run: Run) -> Checked:
    """`criu check --all`, and the notes that it leaves. It fails if anything is lacking, and ends
    at what is absolutely required: so it is asked again for that alone."""
    folder = Path(tempfile.mkdtemp(dir=_SHARED_MEMORY))
    try:
        every = run(folder, "check", "--all")
        path = folder / NOTES
        notes = path.read_bytes() if path.exists() else b""
        if every.returncode == 0:
            return Checked(notes=notes)
        required = run(folder, "check")
        if required.returncode != 0:
            why = (_said(required.stderr, "Error") or ["no reason given"])[-1]
            return Checked((f"CRIU's own check failed: {why}",), notes=notes)
        missing = [
            f"CRIU has no {name}: {without}"
            for name, without in NEEDED.items()
            if run(folder, "check", "--feature", name).returncode != 0
        ]
    except subprocess.TimeoutExpired:
        return Checked((f"CRIU's own check did not end within {_SECONDS} s",))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    said = _said(every.stderr, "Warn", "Error") or ["CRIU does not say what."]
    return Checked(tuple(missing), tuple(dict.fromkeys(said)), notes)


def _said(text: str, *levels: str) -> list[str]:
    """Its lines of these levels, without where in its source they are said."""
    lines = (line.strip() for line in text.splitlines() if line.strip().startswith(levels))
    return [_PLACE.sub("", line) for line in lines]


def _version(bundle: Path) -> str:
    with contextlib.suppress(subprocess.TimeoutExpired):
        for line in _run(bundle, Path("/"), "--version").stdout.splitlines():
            if line.startswith("Version:"):
                return line.split()[1]
    return ""


def _run(bundle: Path, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        inside.criu(str(bundle), *words),
        env=inside.environment(str(bundle)),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
