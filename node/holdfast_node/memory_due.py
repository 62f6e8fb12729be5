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


def coming(cage: Freezer) -> bool:
    """Pages of this tree have not come yet, or never will."""
    return not {NAME, LOST}.isdisjoint(_beside(cage))


def _beside(cage: Freezer) -> set[str]:
    """The names of the container's processes that are not the session's."""
    found = set()
    for pid in (cage.parent / "cgroup.procs").read_text().split():
        with contextlib.suppress(OSError):
            found.add(Path(f"/proc/{pid}/comm").read_text().strip())
    return found
