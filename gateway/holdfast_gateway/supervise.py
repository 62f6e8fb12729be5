"""Keeps one sidecar running for every session that lives.

Level-triggered: each scan looks at every folder and decides from what it sees, never from the
event that woke it. `decide` is pure; `Supervisor._start` is the only place that acts.

It also settles a session that was being suspended or woken by somebody who was killed: it runs
again, or sleeps, by what its shelf says (docs/checkpoints.md).

Invariant: this process has at most one running child per session, and starts one only when hold
answers and nobody holds `sidecar.lock`. The lock, not this module, is what makes a sidecar the
only one; a child started too many exits and is not missed.

Sidecars are started in a session of their own and are never stopped here: they outlive the gateway.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from holdfast_gateway import folders, log
from holdfast_gateway.folders import Folder
from holdfast_wire.ids import SessionName

# Finds sidecars that are not our children (left by an earlier gateway) and died unseen, and new
# sessions whose creator did not poke us.
SCAN_SECONDS: Final = 2.0
# Waits before the 1st, 2nd, … start after quick deaths: one accident costs nothing, a sidecar that
# cannot run costs a process every five seconds.
BACKOFF: Final = (0.0, 0.2, 1.0, 5.0)
# A child that died younger than this did not come up.
QUICK_DEATH_SECONDS: Final = 2.0
LOG_LIMIT: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Observed:
    """One session as seen in one scan; times on the monotonic clock."""

    hold_accepts: bool
    lock_held: bool
    child_runs: bool
    waking: bool
    quick_deaths: int
    last_death: float


@dataclass(frozen=True, slots=True)
class Leave:
    """Nothing to do."""


@dataclass(frozen=True, slots=True)
class Start:
    """Start a sidecar now."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Start one, but not before `until`."""

    until: float


Step = Leave | Start | Wait


def decide(seen: Observed, now: float) -> Step:
    if seen.child_runs or seen.lock_held or seen.waking or not seen.hold_accepts:
        return Leave()
    wait = BACKOFF[min(seen.quick_deaths, len(BACKOFF)) - 1] if seen.quick_deaths else 0.0
    until = seen.last_death + wait
    return Start() if now >= until else Wait(until)


@dataclass(slots=True)
class _Child:
    """Our last child for one session: running while `pid` is set."""

    pid: int | None = None
    pidfd: int = -1
    started: float = 0.0
    last_death: float = float("-inf")
    quick_deaths: int = 0


class Supervisor:
    def __init__(self, state: Path) -> None:
        self._state = state
        self._children: dict[SessionName, _Child] = {}
        self._settling: dict[SessionName, asyncio.Task[None]] = {}
        self._wake = asyncio.Event()

    def poke(self) -> None:
        """Something may have changed: look now."""
        self._wake.set()

    async def run(self) -> None:
        try:
            while True:
                self._wake.clear()
                pause = self._scan()
                # Not wait_for: before Python 3.12 it swallows a cancellation that comes with the
                # event, and the gateway would never stop.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._wake.wait()
        finally:
            self._let_go()

    def _scan(self) -> float:
        """One look at everything; returns how long to sleep. A handful of local system calls per
        session, so it may run on the loop."""
        now = time.monotonic()
        pause = SCAN_SECONDS
        seen = set()
        for folder in folders.every(self._state):
            seen.add(folder.name)
            child = self._children.setdefault(folder.name, _Child())
            match decide(self._observe(folder, child), now):
                case Start():
                    self._start(folder, child)
                case Wait(until):
                    pause = min(pause, until - now)
                case Leave():
                    pass
            self._settle(folder)
            _bound_log(folder)
        for gone in [name for name, c in self._children.items() if name not in seen and not c.pid]:
            del self._children[gone]
        return max(pause, 0.01)

    def _observe(self, folder: Folder, child: _Child) -> Observed:
        runs = child.pid is not None
        held = not runs and folder.sidecar_lock_held()
        # hold is asked only when the answer matters: each question is a connection to it.
        waking = folder.waking()
        accepts = not runs and not held and not waking and folder.hold_accepts()
        return Observed(accepts, held, runs, waking, child.quick_deaths, child.last_death)

    def _start(self, folder: Folder, child: _Child) -> None:
        argv = [sys.executable, "-P", "-m", "holdfast_sidecar", "--dir", str(folder.path)]
        appended = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        try:
            # Not subprocess: that would kill, or warn of, a child that is meant to stay behind.
            # Descriptors are not inheritable by default, so the child gets only these three.
            pid = os.posix_spawn(
                sys.executable,
                argv,
                os.environ,
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_OPEN, 1, str(folder.sidecar_log), appended, 0o600),
                    (os.POSIX_SPAWN_DUP2, 1, 2),
                ],
                setsid=True,
            )
        except OSError as error:
            self._died(folder.name, child, f"could not be started: {error.strerror}")
            return
        child.pid, child.started = pid, time.monotonic()
        child.pidfd = os.pidfd_open(pid)
        asyncio.get_running_loop().add_reader(child.pidfd, self._exited, folder.name, child)
        log.info("sidecar_started", session=folder.name, pid=pid, deaths=child.quick_deaths)

    def _settle(self, folder: Folder) -> None:
        shelf = folder.unsettled()
        if shelf is None or folder.name in self._settling:
            return
        words = ["settle", "--folder", str(folder.path), "--shelf", str(shelf)]
        argv = [sys.executable, "-P", "-m", "holdfast_node.hibernate", *words]
        log.warning("unsettled", session=folder.name, shelf=str(shelf))
        self._settling[folder.name] = asyncio.create_task(_finished(argv))
        self._settling[folder.name].add_done_callback(lambda _: self._settled(folder.name))

    def _settled(self, name: SessionName) -> None:
        del self._settling[name]
        self.poke()

    def _exited(self, name: SessionName, child: _Child) -> None:
        if child.pid is None:
            return
        _, status = os.waitpid(child.pid, os.WNOHANG)
        self._forget(child)
        code = os.waitstatus_to_exitcode(status)
        self._died(name, child, f"signal {-code}" if code < 0 else f"exit code {code}")

    def _died(self, name: SessionName, child: _Child, how: str) -> None:
        now = time.monotonic()
        quick = now - child.started < QUICK_DEATH_SECONDS
        child.quick_deaths = child.quick_deaths + 1 if quick else 0
        child.last_death = now
        log.warning("sidecar_exited", session=name, how=how, quick_deaths=child.quick_deaths)
        self.poke()

    def _forget(self, child: _Child) -> None:
        asyncio.get_running_loop().remove_reader(child.pidfd)
        os.close(child.pidfd)
        child.pid, child.pidfd = None, -1

    def _let_go(self) -> None:
        """The gateway goes; its sidecars stay and become init's."""
        for child in self._children.values():
            if child.pid is not None:
                self._forget(child)


async def _finished(argv: list[str]) -> None:
    """Not more than now and then: what cannot be settled is tried again."""
    process = await asyncio.create_subprocess_exec(*argv, stdin=asyncio.subprocess.DEVNULL)
    if await process.wait() != 0:
        await asyncio.sleep(SCAN_SECONDS)


def _bound_log(folder: Folder) -> None:
    """The sidecar appends, so cutting its log to nothing is safe while it writes."""
    with contextlib.suppress(OSError):
        if folder.sidecar_log.stat().st_size > LOG_LIMIT:
            os.truncate(folder.sidecar_log, 0)
