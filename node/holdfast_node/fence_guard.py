"""What hold cannot stop, the node's agent does: the cgroup freezer needs nobody's leave.

    find the sessions' pods ─ ask each hold, each second ─ frozen, incomplete: cage what is left
                                                         └ thawed, or gone: let it go again

A pod is found by its processes' cgroups. What they say of its name is a hint: the Pod of that name
is read from the API, and believed if its UID, node and containers are those that were found. hold
is believed if it has the nonce that its sidecar gave it. After that the API is not needed.

The cage is a cgroup of its own beside that of moves (freezer.py), which are left alone: a pod with
an order under way, or whose tree an agent has frozen, is not touched.

Invariant: hold and the sidecar are never in a cage. What is in one is let go only when a believed
hold says that it is thawed, or when hold is no more; an agent that starts anew finds it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from holdfast_wire.errors import HoldfastError, NotFound

from . import containers, freezer, log, memory_due
from .containers import Pod
from .freezer import Freezer
from .peers import STATE, ask_hold
from .pods import Register
from .safe_open import as_user, folder

LOOK_SECONDS: Final = 1.0
FIND_SECONDS: Final = 5.0
FREEZE_SECONDS: Final = 1.0
NONCE: Final = "hold"  # a file of the sidecar's (nonce.py)
_NONCE_MOST: Final = 128
_AGAIN_SECONDS: Final = 30.0
_HINTS: Final = ("HOLDFAST_NAMESPACE", "HOLDFAST_POD")

Busy = Callable[[str], bool]
Ask = Callable[[int, str], dict[str, Any]]


@dataclass
class _Watched:
    pod: Pod
    cage: Freezer
    nonce: str  # of its hold; "": not read yet
    said: str = ""


class FenceGuard:
    def __init__(
        self, node: str, register: Register, busy: Busy, cgroups: Path, ask: Ask = ask_hold
    ) -> None:
        """`busy`: whether an order about that pod is under way."""
        self._node, self._register, self._busy = node, register, busy
        self._cgroups, self._ask = cgroups, ask
        self._watched: dict[str, _Watched] = {}
        self._again_at: dict[str, float] = {}  # pods that are none of ours

    async def run(self) -> None:
        """For ever. The API may keep whoever looks for pods waiting; the fence must not wait."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._find_ever())
            tasks.create_task(self._guard_ever())

    async def _find_ever(self) -> None:
        while True:
            await self.find()
            await asyncio.sleep(FIND_SECONDS)

    async def _guard_ever(self) -> None:
        while True:
            began = time.monotonic()
            await asyncio.gather(*(self._guard(one) for one in list(self._watched.values())))
            await asyncio.sleep(max(0.0, began + LOOK_SECONDS - time.monotonic()))

    async def find(self) -> None:
        """One look for the pods of this node."""
        found = await asyncio.to_thread(containers.firsts)
        for uid in self._watched.keys() - found.keys():
            with suppress(OSError):
                await asyncio.to_thread(self._watched[uid].cage.let_go)
            del self._watched[uid]
        for uid, pids in found.items():
            with suppress(HoldfastError, OSError):  # not now; it is looked for again
                if self._register.knows(uid) or await self._learn(uid, pids):
                    self._watch(await self._register.find(uid))

    def _watch(self, pod: Pod) -> None:
        before = self._watched.get(pod.uid)
        if before is not None and before.pod == pod:
            return
        cage = replace(freezer.of(pod.hold, self._cgroups), name=freezer.FENCE)
        nonce = before.nonce if before is not None and before.pod.hold == pod.hold else ""
        self._watched[pod.uid] = _Watched(pod, cage, nonce)

    async def _learn(self, uid: str, pids: list[int]) -> bool:
        if time.monotonic() < self._again_at.get(uid, 0.0):
            return False
        self._again_at = {u: at for u, at in self._again_at.items() if at > time.monotonic()}
        self._again_at[uid] = time.monotonic() + _AGAIN_SECONDS
        for pid in pids:
            namespace, name = await asyncio.to_thread(_hints, pid)
            if namespace and name:
                return await self._register.learn(namespace, name, uid, self._node)
        return False

    async def _guard(self, one: _Watched) -> None:
        if self._busy(one.pod.uid):
            return
        try:
            left = await asyncio.to_thread(self.look, one)
            what = f"stopped what hold could not: {left}" if left else one.said
        except (HoldfastError, OSError) as error:
            what = f"what hold cannot stop would not be stopped: {error}"
        if what != one.said:
            one.said = what
            log.warning("fence", pod=one.pod.uid, what=what)

    def look(self, one: _Watched) -> list[int]:
        """The processes that were put into the cage. Blocks."""
        if containers.ending(one.pod.hold):
            one.cage.let_go()
            return []
        status = self._ask(one.pod.hold, "status")
        if not one.nonce and one.pod.sidecar is not None:
            one.nonce = _nonce(one.pod.sidecar)
        if not one.nonce or status.get("nonce") != one.nonce:
            raise NotFound("what answers at hold's socket is not hold")
        if not status.get("frozen"):
            one.cage.let_go()
            return []
        moved = replace(one.cage, name=freezer.NAME)
        if not status.get("incomplete") or (
            moved.exists() and (moved.wanted() or memory_due.coming(moved))
        ):
            return []
        left = [pid for pid in containers.beside(one.pod.hold) if not _stands(pid)]
        if left:
            one.cage.freeze_these(left, FREEZE_SECONDS)
        return left


def _stands(pid: int) -> bool:
    """Stopped, dead, or frozen by a cage already."""
    try:
        threads = list(Path(f"/proc/{pid}/task").iterdir())
        states = [(one / "stat").read_text().rpartition(")")[2].split()[0] for one in threads]
        # Not cgroups_of(): one that came from the node may be outside the agent's own namespace.
        lines = freezer.memberships(Path(f"/proc/{pid}/cgroup").read_text())
        cages = [one.path.rpartition("/")[2] for one in lines]
    except OSError:
        return True
    return all(state in "TtZX" for state in states) or freezer.FENCE in cages


def _hints(pid: int) -> tuple[str, str]:
    """The Pod's namespace and name, as that process has been told, or pretends to."""
    try:
        text = Path(f"/proc/{pid}/environ").read_bytes()[: 1 << 20].decode(errors="replace")
    except OSError:
        return "", ""
    found = dict(entry.partition("=")[::2] for entry in text.split("\0"))
    return tuple(found.get(name, "")[:253] for name in _HINTS)  # type: ignore[return-value]


def _nonce(sidecar: int) -> str:
    with as_user(*containers.ids_of(sidecar)), folder(sidecar, STATE) as state:
        opened = state.read(NONCE)
    with open(opened) as file:  # noqa: PTH123 - a descriptor
        return file.read(_NONCE_MOST)
