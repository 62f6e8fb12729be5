"""A session under test, and patience with it: no fixed sleeps, only deadlines."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import pytest

from holdfast_sidecar.hold import EventKind, HoldError, HoldEvent, HoldLink
from holdfast_sidecar.state import Graph

T = TypeVar("T")
PATIENCE = 30.0  # a limit on a wrong answer; a right one comes in milliseconds


@dataclass(frozen=True)
class Build:
    path: str
    namespace: str


async def eventually(
    probe: Callable[[], Awaitable[T]], wanted: Callable[[T], bool], what: str
) -> T:
    give_up = time.monotonic() + PATIENCE
    while True:
        got = await probe()
        if wanted(got):
            return got
        if time.monotonic() > give_up:
            pytest.fail(f"never came: {what}; last seen: {got!r}")
        await asyncio.sleep(0.01)


def process_state(pid: int) -> str:
    """As in /proc; "X" when it is gone or only waits to be reaped."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return "X"
    state = stat.rpartition(")")[2].split()[0]
    return "X" if state == "Z" else state


def descendants(root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                stat = (entry / "stat").read_text().rpartition(")")[2].split()
                children.setdefault(int(stat[1]), []).append(int(entry.name))
    found, todo = [], [root]
    while todo:
        todo += (below := children.get(todo.pop(), []))
        found += below
    return found


@dataclass
class Terminal:
    """One holder of the master side. Reads as it goes, so that the session never blocks on us."""

    fd: int
    seen: bytes = b""

    def __post_init__(self) -> None:
        os.set_blocking(self.fd, False)

    def send(self, data: bytes) -> None:
        os.write(self.fd, data)

    def drain(self) -> bytes:
        with contextlib.suppress(BlockingIOError, OSError):
            while data := os.read(self.fd, 65536):
                self.seen += data
        return self.seen

    async def expect(self, wanted: bytes, times: int = 1) -> bytes:
        async def look() -> bytes:
            return self.drain()

        return await eventually(look, lambda seen: seen.count(wanted) >= times, repr(wanted))

    def close(self) -> None:
        os.close(self.fd)


async def _event(events: list[HoldEvent], kind: EventKind) -> HoldEvent:
    async def look() -> list[HoldEvent]:
        return [e for e in events if e.kind is kind]

    return (await eventually(look, bool, f"event {kind}"))[-1]


@dataclass
class Session:
    socket: str
    link: HoldLink
    terminal: Terminal
    events: list[HoldEvent] = field(default_factory=list)

    async def event(self, kind: EventKind) -> HoldEvent:
        return await _event(self.events, kind)

    async def graph_when(self, wanted: Callable[[Graph], bool], what: str) -> Graph:
        return await eventually(self.link.graph, wanted, what)

    async def foreground_when(self, wanted: Callable[[Graph], bool], what: str) -> Graph:
        return await eventually(self.link.foreground, wanted, what)

    async def hold_gone(self) -> None:
        async def state() -> str:
            return process_state(self.link.hold_pid)

        await eventually(state, lambda state: state == "X", "the end of hold")

    async def finish(self) -> None:
        """Ends it as a sidecar would, and sees hold go. By force if that does not work."""
        hold = self.link.hold_pid
        everyone = [hold, *descendants(hold)]
        try:
            await _end_politely(self.socket)
            await self.hold_gone()
        finally:
            for pid in everyone:
                if process_state(pid) != "X":
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            self.terminal.close()
            self.link.close()


async def _end_politely(path: str) -> None:
    give_up = time.monotonic() + PATIENCE
    while True:
        try:
            link = await HoldLink.connect(path)
            break
        except HoldError as error:
            # Gone already, as some tests want it; or all its places are taken by links just closed.
            if error.code != "busy" or time.monotonic() > give_up:
                return
            await asyncio.sleep(0.05)
    try:
        await link.end(0)
        await eventually(link.status, lambda s: s.exited, "the end of the session")
        await link.collected()
    finally:
        link.close()


async def appears(
    socket_path: str, on_event: Callable[[HoldEvent], None] | None = None
) -> HoldLink:
    async def connect() -> HoldLink | None:
        try:
            return await HoldLink.connect(socket_path, on_event=on_event)
        except HoldError:
            return None

    link = await eventually(connect, bool, "a link to hold")
    assert link is not None
    return link


@dataclass
class Waiting:
    """A hold in front that has not started its command."""

    socket: str
    process: asyncio.subprocess.Process
    link: HoldLink
    events: list[HoldEvent]

    async def event(self, kind: EventKind) -> HoldEvent:
        return await _event(self.events, kind)

    async def terminal(self) -> Terminal:
        return Terminal(await self.link.master())

    async def gone(self) -> tuple[int, str]:
        """Its exit code and what it said."""
        _, said = await asyncio.wait_for(self.process.communicate(), PATIENCE)
        assert self.process.returncode is not None
        return self.process.returncode, (said or b"").decode()


Start = Callable[..., Awaitable[Session]]
Wait = Callable[..., Awaitable[Waiting]]

INTERACTIVE_BASH = ("bash", "--norc", "--noprofile", "-i")
Container = Callable[..., Awaitable[Waiting]]

needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("unshare"), reason="needs root"
)

# What a container runtime makes: namespaces, a /dev of its own, a root that cannot be written,
# and a process that may do nothing special. $0 is a directory that stays writable.
CONTAINER = """
set -e
uid=$1; shift
mount --make-rprivate /
mount -t proc proc /proc
mount --bind "$0" "$0"
mkdir "$0/dev"
mount -t tmpfs tmpfs "$0/dev"
for name in null zero urandom tty; do
  touch "$0/dev/$name"; mount --bind "/dev/$name" "$0/dev/$name"
done
mkdir "$0/dev/pts"
mount -t devpts -o newinstance,ptmxmode=0666,mode=0620 devpts "$0/dev/pts"
ln -s pts/ptmx "$0/dev/ptmx"
touch "$0/dev/termination-log" "$0/why"
chmod 666 "$0/why"
mount --bind "$0/why" "$0/dev/termination-log"
mount --rbind "$0/dev" /dev
mount -o remount,bind,ro /
cd /
exec setpriv --reuid "$uid" --regid "$uid" --clear-groups --bounding-set=-all --inh-caps=-all \
  --no-new-privs "$@"
"""
