"""Whether memory of a tree is still to come: by the processes beside it in its container, which the
pager and its watcher are (pager.py)."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Final

from .freezer import Freezer

NAME: Final = "holdfast-pager"
LOST: Final = "holdfast-lost"


def blocked(cage: Freezer) -> bool:
    """Pages of this tree will never come: it must be killed, and its session restored from the
    last checkpoint. An agent that finds a frozen tree asks this first."""
    return LOST in _beside(cage)


def lost(cage: Freezer) -> bool:
    """As `blocked`; not if its container is gone."""
    try:
        return blocked(cage)
    except OSError:
        return False


def coming(cage: Freezer) -> bool:
    """Pages of this tree have not come yet, or never will."""
    return not {NAME, LOST}.isdisjoint(_beside(cage))


def _beside(cage: Freezer) -> set[str]:
    """The names of the agent's own processes in the container's cgroup. They are in the agent's
    PID namespace; a process of the session never is, whatever it calls itself."""
    found, own = set(), Path("/proc/self/ns/pid").stat().st_ino
    for pid in (cage.parent / "cgroup.procs").read_text().split():
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/ns/pid").stat().st_ino == own:
                found.add(Path(f"/proc/{pid}/comm").read_text().strip())
    return found
