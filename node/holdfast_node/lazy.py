"""Memory that goes from the processes of one node to those of another, and never lies in a file.
The agents' side of it; docs/move.md has the whole.

    source   CRIU dumps all but the pages, which stay in the frozen tree, and are read out of it
             as they are asked for (serve)
    target   the pager (pager.py) asks for them, first for those that somebody waits for (Following)

Between the two goes one stream of bytes in both directions, which the agents carry as they like.
It comes before the session runs (`whole`), or, with post-copy, the session runs first.

CRIU's own page server is not used. It has a memory's pages in pipes and so has to go on, with the
tree in its hands, until the last was fetched; and without CAP_SYS_RESOURCE, or where
fs.pipe-max-size is below 4 MiB, it cannot serve even one (page-pipe.c, pipe_read_dest_init fails
unnoticed).

Invariant: `serve` returns only when no page is missing at the target, and it runs or, if it was to
be whole, may. Whatever else ends the stream is an error, to both.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final, Protocol

from holdfast_wire.errors import HoldfastError, Permanent

from . import ahead, asking, containers, criu_rpc, entering, freezer, pager
from .ahead import PIECE
from .entering import Place
from .freezer import Freezer
from .pager import Pager
from .uffd import PAGE

STEP: Final = ahead.STEP  # with a message's head it is less than a link's chunk


class PagesLost(Permanent):
    """At the target: memory of the session will never come. It is frozen and cannot go on; kill
    it when its sidecar knows. At the source: what the target has is not known from this."""

    code = "pages_lost"
    http_status = 422


# -- the source ------------------------------------------------------------------------------------


class Stream(Protocol):
    """To the target. One thread at a time uses it."""

    def read(self, view: memoryview) -> bool:
        """Fills it. False: the target has ended its side."""

    def write(self, view: memoryview, head: int, pid: int, address: int) -> None:
        """At most STEP and a message's head: that is as long as `head` says. Then pages of that
        process, from that address on."""

    def end(self) -> None:
        """Nothing will be asked for any more."""


def serve(stream: Stream, cage: Freezer) -> int:
    """Bytes of memory that the target has now. Blocks."""
    buffer = memoryview(bytearray(asking.MESSAGE.size + STEP))
    asked, served = buffer[: asking.MESSAGE.size], 0
    with contextlib.ExitStack() as opened:
        memory = _memory(cage, opened)
        while stream.read(asked):
            command, pid, address, size = asking.MESSAGE.unpack(asked)
            if command == asking.CLOSE:
                stream.end()
                return served
            if pid not in memory or not 0 < size <= asking.CHUNK or (address | size) % PAGE:
                raise PagesLost("the target asked for something that is no page")
            _answer(stream, cage, (memory[pid], pid), address, size, buffer)
            served += size
    raise PagesLost("the target left before it had all pages")


def _answer(
    stream: Stream,
    cage: Freezer,
    process: tuple[int, int],
    address: int,
    size: int,
    buffer: memoryview,
) -> None:
    """What is asked, again, and then the bytes. In steps that stay in a core's cache; the last one
    goes only if the tree was frozen up to then."""
    head, (memory, pid) = asking.MESSAGE.size, process
    at = 0
    while at < size:
        step = min(STEP - (address + at) % PIECE, size - at)  # what was sent ahead is not split
        try:
            count = os.preadv(memory, [buffer[head : head + step]], address + at)
        except OSError as error:
            raise PagesLost(f"pages could not be read: {error}") from error
        if count != step or (at + step == size and not cage.frozen()):
            raise PagesLost("the session is not as it was dumped any more")
        first = 0 if at == 0 else head
        stream.write(buffer[first : head + step], head - first, pid, address + at)
        at += step


def _memory(cage: Freezer, opened: contextlib.ExitStack) -> dict[int, int]:
    """By the container's PIDs. The kernel lets the agent read what the process itself may not."""
    found = {}
    for pid in cage.members():
        fd = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
        opened.callback(os.close, fd)
        found[containers.inner_pid(pid)] = fd
    return found


# -- the target ------------------------------------------------------------------------------------


class Following:
    """The pager of one restored tree: `saying` is what it says in the end. `agent`: to it, if the
    tree may run before."""

    def __init__(
        self, saying: asyncio.Task[bytes], images: Path, agent: socket.socket | None
    ) -> None:
        self._saying, self._images, self._agent = saying, images, agent
        self.whole = agent is None  # it does not run before

    def expect(self) -> None:
        """Before CRIU restores: what will be missing, out of the images."""
        entries = [(*one, 0) for one in criu_rpc.lazy_in(self._images)]
        entries += [(*one, 1) for one in criu_rpc.wiped_in(self._images)]
        (self._images / pager.MISSING).write_bytes(
            b"".join(pager.ENTRY.pack(*one) for one in entries)
        )

    @contextlib.contextmanager
    def lost(self, act: Callable[[], None]) -> Iterator[None]:
        """If pages are lost meanwhile, `act` is called, in a thread."""
        loop = asyncio.get_running_loop()

        def said(task: asyncio.Task[bytes]) -> None:
            if not task.cancelled() and task.result() != pager.ARRIVED:
                loop.run_in_executor(None, act)

        self._saying.add_done_callback(said)
        try:
            yield
        finally:
            self._saying.remove_done_callback(said)

    def check(self) -> None:
        """PagesLost, if it is known already that they will not come."""
        if self._saying.done():
            _tell(self._saying.result())

    def runs(self) -> None:
        """The tree is about to run: from here on the pager answers for it."""
        if self._agent is not None:
            with contextlib.suppress(OSError):  # `arrived` says why
                self._agent.send(pager.RUNS)

    async def arrived(self) -> None:
        """Returns when the last page has come."""
        _tell(await asyncio.shield(self._saying))


async def _hear(agent: socket.socket) -> bytes:
    with agent:
        return await asyncio.get_running_loop().sock_recv(agent, 1 << 13)


def _tell(said: bytes) -> None:
    if said != pager.ARRIVED:
        why = said.decode(errors="replace") or "the pager was killed"
        raise PagesLost(f"memory of the session will never come: {why}")


@contextlib.asynccontextmanager
async def following(place: Place, stream: socket.socket) -> AsyncIterator[Following]:
    """Takes the stream. If this is left before the last page has come, a tree that runs by then is
    frozen for good."""
    agent, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    agent.setblocking(False)
    with contextlib.ExitStack() as unless:
        unless.callback(agent.close)  # if it is not even started, or not waited for
        await _started(place, theirs, stream)
        unless.pop_all()
    saying = asyncio.create_task(_hear(agent))
    try:
        yield Following(saying, place.images, agent)
    finally:
        saying.cancel()
        await asyncio.wait([saying])


@contextlib.asynccontextmanager
async def filling(place: Place, stream: asking.Stream) -> AsyncIterator[Following]:
    """The same for a tree that does not run before the last page has come. A thread does it: if the
    agent goes, nothing is lost that the source has not got."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    theirs.setblocking(False)
    with theirs, contextlib.ExitStack() as opened:
        orders = replace(_orders(place, theirs, opened), join=[])
        listening = opened.enter_context(pager.listen(orders.images))
        filler = Pager(orders, listening, stream, None)
        saying = asyncio.create_task(asyncio.to_thread(_fill, filler))
        try:
            yield Following(saying, place.images, None)
        finally:
            ours.close()  # it hears of it
            await asyncio.wait([saying])


def _fill(filler: Pager) -> bytes:
    try:
        filler.run()
    except (asking.Broken, HoldfastError, OSError) as error:
        return str(error).encode()
    finally:
        filler.give_up()
    return pager.ARRIVED


async def _started(place: Place, theirs: socket.socket, stream: socket.socket) -> None:
    with theirs, stream, contextlib.ExitStack() as opened:
        orders = replace(_orders(place, theirs, opened), stream=stream.fileno())
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-I", "-m", "holdfast_node.pager", orders.to_text(),
            pass_fds=[orders.agent, orders.stream, orders.images, *orders.join],
            stdin=asyncio.subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        if await process.wait():
            raise PagesLost("the pager could not be started", "see the agent's log")


def _orders(place: Place, agent: socket.socket, opened: contextlib.ExitStack) -> pager.Orders:
    def take(path: Path, flags: int) -> int:
        fd = os.open(path, flags | os.O_CLOEXEC)
        opened.callback(os.close, fd)
        return fd

    cage = freezer.of(place.hold, place.cgroups)
    return pager.Orders(
        agent=agent.fileno(),
        stream=-1,
        images=take(place.images, os.O_RDONLY | os.O_DIRECTORY),
        join=[take(one / "cgroup.procs", os.O_WRONLY) for one in entering.cgroups(place)],
        hold=place.hold,
        freezer=str(cage.parent),
        unified=cage.unified,
    )
