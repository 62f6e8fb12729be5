"""A cgroup that stops a session's processes without their noticing, and that keeps them stopped.

The tree lives in a sub-cgroup `holdfast` of its container's freezer cgroup; the container's PID 1
is not in it. Nothing is ever sent to the processes, so job control has nothing to see.

Invariant: a frozen tree runs again only by `thaw`, and one that `kill` was called for never does:
its SIGKILLs are pending before it is thawed, and a pending SIGKILL is taken before user code.
The kernel keeps the state, so an agent that starts anew finds it with `frozen_ones`.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from holdfast_wire.errors import Internal, Retry, Unsupported

CGROUPS: Final = Path("/sys/fs/cgroup")
NAME: Final = "holdfast"
FENCE: Final = "holdfast-fence"  # beside it, for what hold could not stop (fence_guard.py)
FREEZE_SECONDS: Final = 5.0
KILL_SECONDS: Final = 10.0
_NUDGE_SECONDS: Final = 0.2  # v1 is known to forget a task now and then; being told again helps
_POD_UID: Final = re.compile(r"pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12})")


class NotFrozen(Retry):
    """A process did not stop in time: it waits for something that no signal ends."""

    code = "not_frozen"


@dataclass(frozen=True)
class Membership:
    """One line of /proc/PID/cgroup."""

    controllers: tuple[str, ...]  # empty: the unified hierarchy
    path: str

    def folder(self, root: Path) -> Path:
        """Where the hierarchy is mounted by custom, and this cgroup in it."""
        relative = self.path.lstrip("/")
        if not self.controllers:
            unified = root / "unified"
            return (unified if unified.is_dir() else root) / relative
        name = ",".join(self.controllers).removeprefix("name=")
        return root / name / relative


def memberships(text: str) -> tuple[Membership, ...]:
    found = []
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        found.append(Membership(tuple(c for c in controllers.split(",") if c), path))
    return tuple(found)


def pod_uid(path: str) -> str | None:
    """The UID of the pod that a cgroup belongs to, by the kubelet's ways to name it."""
    found = _POD_UID.search(path)
    return found.group(1).replace("_", "-") if found else None


def cgroups_of(pid: int) -> tuple[Membership, ...]:
    found = memberships(Path(f"/proc/{pid}/cgroup").read_text())
    if any("/.." in one.path for one in found):
        raise Unsupported(
            "the agent sees its node's cgroups from inside a cgroup namespace",
            "run it privileged, with the host's cgroup namespace",
        )
    return found


@dataclass(frozen=True)
class Freezer:
    """The freezer cgroup of one container (`parent`), v1 or v2."""

    parent: Path
    unified: bool
    name: str = NAME

    @property
    def path(self) -> Path:
        return self.parent / self.name

    @property
    def pod_uid(self) -> str | None:
        return pod_uid(str(self.parent))

    @property
    def control(self) -> Path:
        """The file that freezes; CRIU writes the same one."""
        return self.path / ("cgroup.freeze" if self.unified else "freezer.state")

    def make(self) -> None:
        self.path.mkdir(exist_ok=True)

    def exists(self) -> bool:
        return self.path.is_dir()

    def members(self) -> list[int]:
        """The processes in it, as this PID namespace sees them; a 0 is one it cannot see."""
        return [int(line) for line in (self.path / "cgroup.procs").read_text().split()]

    def frozen(self) -> bool:
        """Every task in it stands still."""
        if not self.unified:
            return self.control.read_text().strip() == "FROZEN"
        return "frozen 1" in (self.path / "cgroup.events").read_text().splitlines()

    def wanted(self) -> bool:
        """It was told to freeze, whether or not it came to an end of it."""
        if not self.unified:
            return (self.path / "freezer.self_freezing").read_text().strip() == "1"
        return self.control.read_text().strip() == "1"

    def gather(self, keeper: int, seconds: float = FREEZE_SECONDS) -> int:
        """Moves the tree in without stopping it, which takes the kernel some milliseconds that
        it then need not be frozen for."""
        self.make()
        return self._take_in(keeper, time.monotonic() + seconds)

    def freeze_tree(self, keeper: int, seconds: float = FREEZE_SECONDS) -> int:
        """Freezes `keeper` and all it ever started; how many processes that were.

        The cgroup is frozen first and the tree moved into it from the root down, so that what
        was moved forks no more; when a whole look finds nobody outside, nobody is left who could.
        """
        self.make()
        deadline = time.monotonic() + seconds
        try:
            self._tell(True)
            count = self._take_in(keeper, deadline)
            self.await_frozen(deadline - time.monotonic())
        except BaseException:
            self.thaw()
            raise
        return count

    def _take_in(self, keeper: int, deadline: float) -> int:
        quiet = 0
        while True:
            inside = set(self.members())
            tree = [pid for pid in descendants(keeper) if _state(pid) not in "ZX"]
            outside = [pid for pid in tree if pid not in inside]
            for pid in outside:
                self.move_in(pid)
            quiet = 0 if outside else quiet + 1
            if quiet == 2:  # a child may change its parent while it is looked for: look twice
                return len(tree)
            if time.monotonic() > deadline:
                raise NotFrozen("the session starts processes faster than they can be stopped")

    def freeze_these(self, pids: list[int], seconds: float = FREEZE_SECONDS) -> None:
        """These, beside what is in it already."""
        self.make()
        self._tell(True)
        for pid in pids:
            self.move_in(pid)
        self.await_frozen(seconds)

    def let_go(self) -> None:
        """What is in it runs on where its container is."""
        if not self.exists():
            return
        self.thaw()
        for pid in self.members():
            self.move_out(pid)
        self.remove()

    def move_in(self, pid: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            (self.path / "cgroup.procs").write_text(str(pid))

    def move_out(self, pid: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            (self.parent / "cgroup.procs").write_text(str(pid))

    def await_frozen(self, seconds: float = FREEZE_SECONDS) -> None:
        deadline = time.monotonic() + seconds
        nudge = time.monotonic() + _NUDGE_SECONDS
        pause = 0.0005
        while not self.frozen():
            now = time.monotonic()
            if now > deadline:
                raise NotFrozen(
                    "a process of the session does not stop: " + ", ".join(self._awake()),
                    "it waits for a device or a file server; try again when that answers",
                )
            if now > nudge:
                self._tell(True)
                nudge = now + _NUDGE_SECONDS
            time.sleep(pause)
            pause = min(pause * 2, 0.01)

    def freeze(self) -> None:
        """Freezes what is in it."""
        self._tell(True)
        self.await_frozen()

    def thaw(self) -> None:
        self._tell(False)

    def kill(self, seconds: float = KILL_SECONDS) -> None:
        """Ends every task in it. Not one of them runs user code again."""
        if self.unified:
            (self.path / "cgroup.kill").write_text("1")
        deadline = time.monotonic() + seconds
        while left := self._alive():
            if not self.unified:
                for pid in left:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            self.thaw()
            if time.monotonic() > deadline:
                raise Internal(f"{len(left)} processes of the session do not die")
            time.sleep(0.001)
        self.thaw()

    def remove(self) -> None:
        """Gone, if it is empty; left where it is otherwise."""
        with contextlib.suppress(OSError):
            self.path.rmdir()

    def _alive(self) -> list[int]:
        return [pid for pid in self.members() if _state(pid) not in "ZX"]

    def _awake(self) -> list[str]:
        """Those of its processes that sleep where no signal reaches, by name."""
        return [f"{_name(pid)} ({pid})" for pid in self.members() if _state(pid) in "DR"] or [
            "unknown"
        ]

    def _tell(self, frozen: bool) -> None:
        words = ("0", "1") if self.unified else ("THAWED", "FROZEN")
        self.control.write_text(words[frozen])


def of(pid: int, root: Path = CGROUPS) -> Freezer:
    """The freezer of the container that process `pid` is PID 1 of."""
    found = cgroups_of(pid)
    for one in found:
        if "freezer" in one.controllers:
            return Freezer(_outermost(one.folder(root)), unified=False)
    for one in found:
        if not one.controllers:
            return Freezer(_outermost(one.folder(root)), unified=True)
    raise Unsupported("this node has no cgroup freezer", "mount cgroup v2, or v1's freezer")


def _outermost(folder: Path) -> Path:
    return folder.parent if folder.name in (NAME, FENCE) else folder


def frozen_ones(root: Path = CGROUPS) -> list[Freezer]:
    """The frozen trees of this node, also those that an agent before this one froze."""
    first = root / "freezer"
    unified = not first.is_dir()
    found = []
    for folder in _folders(root if unified else first):
        freezer = Freezer(folder.parent, unified)
        with contextlib.suppress(OSError):  # a container that ends takes its cgroup away
            if freezer.wanted():
                found.append(freezer)
    return found


def _folders(root: Path) -> Iterator[Path]:
    for folder, names, _ in os.walk(root):
        if NAME in names:
            yield Path(folder) / NAME


def descendants(pid: int) -> list[int]:
    """`pid` and its children to the last, parents first."""
    found = [pid]
    for one in found:
        found.extend(child for child in children(one) if child not in found)
    return found


def children(pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError):  # it ended
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                found.extend(map(int, (task / "children").read_text().split()))
    return found


def _state(pid: int) -> str:
    """One letter, as in /proc/PID/stat; X for one that is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return "?"
