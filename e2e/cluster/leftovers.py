"""What is there of a cluster on this machine: after `down` that is nothing.

Only what is certainly the cluster's counts. Its names are its own (`hfbr0`, `hf-n1`, the cgroup
`holdfast/n1`); a process counts if it is in such a cgroup, or if it is one of the cluster's
programs and was told to work in the cluster's folder.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from e2e.cluster import kind
from e2e.cluster.lock import lock_file
from e2e.cluster.places import BRIDGE, CGROUP, NODES, STATE, link_name

# What a cluster starts on the machine itself. kubectl is not of them: it is whoever calls it.
_DAEMONS: Final = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
_GUARD: Final = ("-m", "e2e.cluster", "guard")


@dataclass(frozen=True, slots=True)
class Machine:
    """Where a kernel shows what is there."""

    proc: Path = Path("/proc")
    cgroups: Path = Path("/sys/fs/cgroup")
    interfaces: Path = Path("/sys/class/net")
    namespaces: Path = Path("/run/netns")


HERE: Final = Machine()


def leftovers() -> list[str]:
    """A line for each thing, for people to read; nothing if nothing is left."""
    found = of_namespaces()
    if (engine := kind.engine()) is not None:
        found += [f"container {name}" for name in kind.containers(engine)]
    found += [str(path) for path in (STATE, lock_file(STATE)) if path.exists()]
    return found


def of_namespaces(machine: Machine = HERE) -> list[str]:
    links = [link_name(node) for node in NODES]
    return [
        *(f"process {pid}: {name}" for pid, name in daemons(machine)),
        *(f"process {pid}: {name}, in a node" for pid, name in in_nodes(machine)),
        *(f"mount {point}" for point in mounts(machine)),
        *(f"network namespace {n}" for n in links if (machine.namespaces / n).exists()),
        *(f"interface {n}" for n in (BRIDGE, *links) if (machine.interfaces / n).exists()),
        *(f"cgroup {group}" for group in cgroups(machine)),
    ]


def daemons(machine: Machine = HERE) -> Iterator[tuple[int, str]]:
    """The control plane's processes, and the guard of a cluster; not the one that asks."""
    for pid in _pids(machine):
        words = _words(machine, pid)
        if pid == os.getpid() or not words:
            continue
        name = Path(words[0]).name
        if name in _DAEMONS and any(f"{STATE}/" in word for word in words):
            yield pid, name
        elif tuple(words[1:4]) == _GUARD and words[-1] == str(STATE):
            yield pid, "guard"


def in_nodes(machine: Machine = HERE) -> Iterator[tuple[int, str]]:
    group = re.compile(rf":/{re.escape(CGROUP)}/({'|'.join(NODES)})(/|$)", re.MULTILINE)
    for pid in _pids(machine):
        try:
            groups = (machine.proc / str(pid) / "cgroup").read_text()
        except OSError:
            continue
        if group.search(groups):
            words = _words(machine, pid)
            yield pid, Path(words[0]).name if words else "?"


def mounts(machine: Machine = HERE) -> list[str]:
    """Those that this machine sees; a node's own go with the node."""
    names = [machine.namespaces / link_name(node) for node in NODES]
    return [*mounted_below(STATE, machine), *(p for n in names for p in mounted_below(n, machine))]


def mounted_below(folder: Path, machine: Machine = HERE) -> list[str]:
    """There, and in there."""
    lines = (machine.proc / "self" / "mountinfo").read_text().splitlines()
    points = [_unescaped(line.split()[4]) for line in lines]
    return [point for point in points if Path(point).is_relative_to(folder)]


def cgroups(machine: Machine = HERE) -> Iterator[Path]:
    """A node's; and what they are in, if nobody else has put something there."""
    if not machine.cgroups.is_dir():
        return
    for hierarchy in sorted(machine.cgroups.iterdir()):
        top = hierarchy / CGROUP
        if not top.is_dir():
            continue
        below = {path.name for path in top.iterdir() if path.is_dir()}
        yield from (top / node for node in NODES if node in below)
        if below <= set(NODES) and not (top / "cgroup.procs").read_text().strip():
            yield top


def _pids(machine: Machine) -> list[int]:
    return sorted(int(entry.name) for entry in machine.proc.iterdir() if entry.name.isdigit())


def _words(machine: Machine, pid: int) -> list[str]:
    """Empty for a zombie, which holds nothing."""
    try:
        text = (machine.proc / str(pid) / "cmdline").read_bytes()
    except OSError:
        return []
    return text.decode(errors="replace").rstrip("\0").split("\0") if text else []


def _unescaped(word: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), word)
