"""What this node can do, found out once when the agent starts, and compared between two nodes."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from . import freezer, inside

NOTES: Final = "criu.kdat"  # what CRIU knows of the kernel; it finds out anew without
_SHARED_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - CRIU keeps notes on a tmpfs only
_SECONDS: Final = 30
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

    def __str__(self) -> str:
        users = "of any user" if self.any_user else "by CRIU as their user"
        memory = "follows if asked to" if self.follows else "cannot follow"
        return (
            f"CRIU {self.criu}, Linux {self.kernel}, freezer {self.freezer}, sessions {users},"
            f" memory {memory}"
        )


def look(bundle: Path, cgroups: Path = freezer.CGROUPS) -> Preflight:
    """Blocks for some tenths of a second."""
    problems = []
    checked, notes = "", b""
    needed = (inside.LOADER, "criu", inside.TERMINALS)
    if not all((bundle / name).exists() for name in needed):
        problems.append(f"CRIU is not at {bundle}")
    elif b"/etc/ld.so.preload" in (bundle / inside.LOADER).read_bytes():
        problems.append(f"the loader at {bundle} would load libraries of a user's choice")
    else:
        failed, notes = _check(bundle)
        problems += failed
        checked = _version(bundle)
    which = _freezer(cgroups)
    if not which:
        problems.append("there is no cgroup freezer; mount cgroup v2, or v1's freezer")
    if os.geteuid() != 0:
        problems.append("the agent is not root")
    return Preflight(
        kernel=platform.release(),
        criu=checked,
        cpu=cpu_digest(Path("/proc/cpuinfo").read_text(), xsave_size()),
        freezer=which,
        any_user=inside.may(inside.SYS_RESOURCE),
        problems=tuple(problems),
        notes=notes,
        follows=not problems and can_follow(bundle),
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


def _check(bundle: Path) -> tuple[list[str], bytes]:
    """`criu check`, and the notes that it leaves."""
    folder = Path(tempfile.mkdtemp(dir=_SHARED_MEMORY))
    try:
        done = _run(bundle, folder, "check")
        path = folder / NOTES
        notes = path.read_bytes() if path.exists() else b""
    except subprocess.TimeoutExpired:
        return [f"CRIU's own check did not end within {_SECONDS} s"], b""
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if done.returncode == 0:
        return [], notes
    errors = [line for line in done.stderr.splitlines() if "Error" in line]
    return [f"CRIU's own check failed: {(errors or ['no reason given'])[-1].strip()}"], notes


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
