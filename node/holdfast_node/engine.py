"""Takes a session's processes out of one container as files, and into another from them.

    source: dumping() ─ freeze() ─ ... ─ dump()      then thaw() or kill()
    target: restoring() ─ ... ─ restore(held)       the tree runs only after held() returned

With memory that does not lie in the images (lazy.py) the source has serve() before kill(), and the
target whole() before held() returns or, if the tree may run first, arrived() after restore().

Invariants: a dumped tree is alive and frozen, whatever became of the dump; only a CRIU that was
killed in the middle may have damaged it, and then there is no dump. A restored tree runs no
instruction of its own before `held` returned, not even if the agent is killed; and if `held`
raised, nothing of the tree is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from holdfast_wire.errors import HoldfastError, Internal, Unavailable

from . import (
    ahead,
    asking,
    connections,
    containers,
    criu_rpc,
    devtty,
    failure,
    freezer,
    lazy,
    memory_due,
)
from .containers import Terminal
from .criu_rpc import Answer, Kind
from .entering import Entered, Place, enter
from .failure import DumpFailed, Reason, RestoreFailed, explain
from .freezer import CGROUPS, Freezer
from .inside import LIST, OWN_PIDS
from .lazy import Following, PagesLost
from .peers import keeper_of
from .preflight import NOTES

_HELD = "pre-resume"
_RESTORED = "post-restore"


@dataclass(frozen=True)
class Dumped:
    pids: frozenset[int]  # as the container numbers them
    size: int  # of all images, in bytes
    milliseconds: float


@dataclass(frozen=True)
class Restored:
    """A tree that is complete and frozen. Who takes `terminal.master` closes it."""

    keeper: int  # its host PID
    keeper_inside: int  # as the container numbers it
    command_inside: int  # the session's command, likewise
    terminal: Terminal
    cut: tuple[tuple[str, str], ...]  # connections to the outside: (local, remote)


@dataclass(frozen=True)
class Dumping:
    """CRIU stands ready in the container: nothing has to be loaded while the tree is frozen."""

    entered: Entered
    keeper: int
    images: Path
    notes: bytes = field(repr=False)
    lazy: bool = False

    async def dump(self) -> Dumped:
        """Of a frozen tree. It is alive and frozen afterwards, also when this raises."""
        began = time.monotonic()
        _refuse_traced(self.keeper)
        request = criu_rpc.dump_request(
            containers.inner_pid(self.keeper),
            self.entered.images,
            self.entered.freezer,
            devtty.external(self.keeper),
            lazy=self.lazy,
        )
        with _noted(self.images, self.notes):
            answer = await _converse(self.entered, request)
        if answer is None or not answer.success:
            raise await _failed(DumpFailed, self.images, Kind.DUMP, answer)
        await asyncio.to_thread(devtty.resolve, self.images, self.keeper)
        pids = await asyncio.to_thread(criu_rpc.pids_in, self.images)
        return Dumped(pids, _size(self.images), (time.monotonic() - began) * 1000)


Held = Callable[[Restored], Awaitable[None]]
"""Returns when the tree may run; raises when it must not. It has the terminal from then on."""


@dataclass(frozen=True)
class Restoring:
    """CRIU stands ready in the container."""

    entered: Entered
    hold: int
    cage: Freezer
    images: Path
    notes: bytes = field(repr=False)
    following: Following | None = None

    async def restore(self, held: Held) -> int:
        """The keeper's host PID; the tree runs. It raises what `held` raised, or RestoreFailed;
        then nothing of the tree is left. Called once."""
        await asyncio.to_thread(_check_pids, self.images)
        addresses = await asyncio.to_thread(criu_rpc.addresses_in, self.images)
        await asyncio.to_thread(_list_terminals, self.images)
        holding = _Holding(self.hold, self.cage, held, self.following)
        request = criu_rpc.restore_request(self.entered.images, lazy=self.following is not None)
        if self.following is not None:
            await asyncio.to_thread(self.following.expect)
        with holding.borrowed, _noted(self.images, self.notes), self._expecting(holding):
            for address in addresses:
                holding.borrowed.enter_context(connections.borrowed_address(self.hold, address))
            try:
                answer = await _converse(self.entered, request, holding.notified)
                await self.entered.leave()
            except BaseException:
                if holding.released:
                    self.cage.thaw()
                else:
                    self.cage.kill()
                raise
        if holding.refused is not None:
            raise holding.refused
        if not holding.released:
            await asyncio.to_thread(self.cage.kill)
            raise await _failed(RestoreFailed, self.images, Kind.RESTORE, answer)
        self.cage.thaw()
        return holding.keeper

    async def whole(self) -> None:
        """For `held`: returns when there is no reason any more, of memory's, why it must not run.
        PagesLost: it never may."""
        if self.following is not None and self.following.whole:
            await self.following.arrived()

    async def arrived(self) -> None:
        """After a restore from a lazy dump: returns when the last page has come. PagesLost: one
        never will. The tree is frozen then, for good: kill it, once its sidecar knows why."""
        if self.following is None:
            return
        try:
            await self.following.arrived()
        except PagesLost:
            with contextlib.suppress(HoldfastError):
                await asyncio.to_thread(self.cage.freeze)
            raise

    @contextlib.contextmanager
    def _expecting(self, holding: _Holding) -> Iterator[None]:
        """If pages are lost before the tree is there, CRIU may well be waiting for one of them."""
        if self.following is None:
            yield
            return

        def lost() -> None:
            if not holding.held:
                self.cage.kill()

        with self.following.lost(lost):
            yield


class Engine:
    def __init__(
        self,
        bundle: Path,
        cgroups: Path = CGROUPS,
        notes: bytes = b"",
        also: tuple[int, ...] = (),
        hold_socket: Path | None = None,
    ) -> None:
        """`notes` is what CRIU found out about this kernel (Preflight.notes). `also`: descriptors
        that whatever works in a container has too, such as a lock's, free when nothing does.
        `hold_socket`: of the one session that it is for, if that is in no pod."""
        self._hold_socket = hold_socket
        self._bundle = bundle
        self._also = also
        self._cgroups = cgroups
        self._notes = notes

    def freezer(self, hold: int) -> Freezer:
        return freezer.of(hold, self._cgroups)

    async def freeze(self, hold: int) -> Freezer:
        """Stops the session in hold's container. NotFrozen: it runs on."""
        cage = self.freezer(hold)
        keeper = await asyncio.to_thread(keeper_of, hold, self._hold_socket)
        await asyncio.to_thread(cage.freeze_tree, keeper)
        return cage

    @contextlib.asynccontextmanager
    async def dumping(
        self, hold: int, images: Path, *, lazy: bool = False
    ) -> AsyncIterator[Dumping]:
        """Makes ready to dump the session in hold's container, frozen or not yet. A dump that was
        cancelled comes to its end before this is left, so thaw after that and not before. `lazy`:
        most of the memory stays in the frozen tree, for `serve`."""
        if memory_due.coming(self.freezer(hold)):
            raise Unavailable(
                "memory of the session is still on its way here", "try again when it has come"
            )
        keeper = await asyncio.to_thread(keeper_of, hold, self._hold_socket)
        place = Place(hold, self._bundle, images, self._cgroups, self._also)
        async with enter(place, restoring=False, lazy=lazy) as entered:
            await asyncio.to_thread(self.freezer(hold).gather, keeper)
            await criu_rpc.ready(entered)
            yield Dumping(entered, keeper, images, self._notes, lazy)

    def send_ahead(self, hold: int, taker: ahead.Taker, room: int, seconds: float) -> int:
        """Gives the target memory of the tree that is about to be dumped, and runs. Blocks."""
        return ahead.send(taker, self.freezer(hold), room, time.monotonic() + seconds)

    def serve(self, hold: int, stream: lazy.Stream) -> int:
        """After a lazy dump: gives the target what it asks for of the frozen tree's memory, and
        returns how much that was. Blocks. Only when this has returned is every page there, and may
        the tree be killed, if it runs there. PagesLost: it was not told so; ask the Lease whose the
        session is."""
        return lazy.serve(stream, self.freezer(hold))

    @contextlib.asynccontextmanager
    async def restoring(
        self,
        hold: int,
        images: Path,
        *,
        before: asking.Stream | None = None,
        after: socket.socket | None = None,
    ) -> AsyncIterator[Restoring]:
        """Makes ready to restore into hold's container, which has no session. `images` may be
        filled until `restore` is called. For images of a lazy dump, a stream to the source's
        `serve`: `before`, by which all memory comes before the tree runs; or `after`, which is
        taken: then leave this only after `arrived`."""
        place = Place(hold, self._bundle, images, self._cgroups, self._also)
        async with contextlib.AsyncExitStack() as stack:
            entered = await stack.enter_async_context(enter(place, restoring=True))
            following = None
            if before is not None:
                following = await stack.enter_async_context(lazy.filling(place, before))
            if after is not None:
                following = await stack.enter_async_context(lazy.following(place, after))
            await criu_rpc.ready(entered)
            yield Restoring(entered, hold, self.freezer(hold), images, self._notes, following)


class _Holding:
    """Answers CRIU's questions during a restore: all are granted but the last."""

    def __init__(self, hold: int, cage: Freezer, held: Held, following: Following | None) -> None:
        self._hold = hold
        self._cage = cage
        self._held = held
        self._following = following
        self.held = False
        self.keeper = 0
        self._inside = 0
        self.released = False
        self.refused: Exception | None = None
        self.borrowed = contextlib.ExitStack()

    async def notified(self, script: str, pid: int | None) -> bool:
        if script == _RESTORED and pid is not None:
            self._inside = pid
        if script != _HELD:
            return True
        self.held = True
        try:
            if self._following is not None:
                self._following.check()
            await self._held(await asyncio.to_thread(self._restored))
        except Exception as error:
            self.refused = error
            await asyncio.to_thread(self._cage.kill)
            return False
        self.released = True
        if self._following is not None:
            self._following.runs()
        return True

    def _restored(self) -> Restored:
        """Connections to the outside came back as they were, and are cut here: only so does their
        process read an error, and not an end that looks like the peer's own. They stayed whole in
        the source, which needs them if the move is given up."""
        if not self._cage.frozen():
            raise Internal("a restored tree was not frozen")
        members = self._cage.members()
        cut = connections.cut(self._hold, members)
        self.borrowed.close()
        self.keeper = {containers.inner_pid(pid): pid for pid in members}[self._inside]
        command = containers.inner_pid(containers.command_of(self.keeper))
        terminal = containers.terminal_of(self.keeper)
        return Restored(self.keeper, self._inside, command, terminal, tuple(cut))


def _refuse_traced(keeper: int) -> None:
    """CRIU has to trace them itself, and takes ten seconds to see that it cannot."""
    for pid in freezer.descendants(keeper):
        for task in Path(f"/proc/{pid}/task").iterdir():
            tracer = int(containers.status(int(task.name)).get("TracerPid", "0"))
            if tracer:
                by = containers.name(tracer) or "a process outside"
                raise DumpFailed(
                    failure.reason(
                        containers.inner_pid(pid),
                        containers.name(pid),
                        f"is being traced by {by}",
                        "end the debugger or tracer, and move the session then",
                    )
                )


def _check_pids(images: Path) -> None:
    if taken := sorted(pid for pid in criu_rpc.pids_in(images) if pid in OWN_PIDS):
        raise RestoreFailed(
            Reason(
                f"process {taken[0]} has a number that CRIU itself needs",
                f"start sessions with hold --reserve {OWN_PIDS[-1]}",
            )
        )


def _list_terminals(images: Path) -> None:
    """For init/ctty.c, which CRIU has loaded."""
    lines = [f"{index} {session}\n" for index, session in criu_rpc.terminals_in(images)]
    (images / LIST).write_text("".join(lines))


async def _converse(
    entered: Entered, request: bytes, notified: criu_rpc.Notified | None = None
) -> Answer | None:
    """None when CRIU died; its log may still say why."""
    try:
        return await criu_rpc.converse(entered, request, notified)
    except Internal:
        return None


async def _failed(
    kind: type[DumpFailed] | type[RestoreFailed], images: Path, act: Kind, answer: Answer | None
) -> HoldfastError:
    path = images / act.log
    text = path.read_text(errors="replace") if path.exists() else ""
    return kind(explain(text, answer.message if answer else "CRIU ended without an answer"))


@contextlib.contextmanager
def _noted(images: Path, notes: bytes) -> Iterator[None]:
    """They are about this machine's kernel, so they do not stay with images that travel."""
    path = images / NOTES
    path.unlink(missing_ok=True)
    if notes:
        path.write_bytes(notes)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def _size(images: Path) -> int:
    return sum(entry.stat().st_size for entry in os.scandir(images) if entry.is_file())
