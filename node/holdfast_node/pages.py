"""Memory of a session that goes from process to process (lazy.py), on its way between two agents: a
stream of bytes in both directions, over a TLS connection of its own (frames.py). The end of the
connection is the end of both, and its silence too: then no more pages come, and the engine says
what that means.

Memory that must be whole before the session runs has a tag like any part of a checkpoint: the
source's last word is the tag of all that it sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from cryptography.hazmat.primitives.poly1305 import Poly1305

from holdfast_wire.errors import BadRequest, HoldfastError, from_json

from .ahead import PLACE, Early, joined
from .frames import Frames, last_word
from .link import CHUNK, SILENCE, TICK, Frame, Link, LinkLost, Place, as_json
from .packing import Packer
from .progress import Progress
from .threads import to_its_end
from .transfer import dialled, greeting

FOR: Final = "pages"  # what a greeting says that the connection is for
PART: Final = "memory"  # as whose tag is made
T = TypeVar("T")


class Carrier:
    """At the target: between the source and whoever has the other end of `end`, which is closed
    when this has run."""

    def __init__(self, frames: Frames, end: socket.socket) -> None:
        self._frames, self._end = frames, end
        self._taken = memoryview(bytearray(CHUNK))
        self._in = self._taken[:0]  # what came, and our end has not taken yet
        self._ended = self._told = False  # our end has, and the other side's end was passed on

    def run(self) -> None:
        """Returns when both sides have ended. LinkLost, or the other agent's reason."""
        with self._end:
            try:
                self._carry()
            except BaseException:
                self._frames.interrupt()  # the other side hears of it at once
                raise

    def _carry(self) -> None:
        self._end.setblocking(False)
        while self._frames.sending or self._in or not (self._ended and self._told):
            moved = [self._fill(), self._frames.flush(), self._give(), self._hear()]
            if not any(moved):
                self._wait()

    def _wait(self) -> None:
        poller = select.poll()
        deaf = bool(self._in or self._frames.ended)
        sends = select.POLLOUT if self._frames.sending else 0
        poller.register(self._frames.fileno(), (0 if deaf else select.POLLIN) | sends)
        reads = 0 if self._frames.sending or self._ended else select.POLLIN
        if events := reads | (select.POLLOUT if self._in else 0):
            poller.register(self._end, events)
        poller.poll(TICK / 4 * 1000)
        if deaf:
            self._frames.deaf()
        self._frames.tick()

    def _fill(self) -> bool:
        """The next frame, if there is something to say."""
        if self._frames.sending or self._ended:
            return False
        try:
            count = self._end.recv_into(self._frames.room)
        except BlockingIOError:
            return False
        except OSError:
            count = 0
        self._ended = count == 0
        self._frames.frame(Frame.DATA if count else Frame.END, count)
        return True

    def _give(self) -> bool:
        if not self._in:
            return False
        try:
            self._in = self._in[self._end.send(self._in) :]
        except BlockingIOError:
            return False
        except OSError as error:
            raise LinkLost(f"nobody takes the pages here any more: {error}") from error
        return True

    def _hear(self) -> bool:
        if self._in or self._told:
            return False
        self._in = self._taken[: self._frames.read(self._taken)]
        if self._frames.ended:
            self._told = True
            with contextlib.suppress(OSError):  # it has ended by itself
                self._end.shutdown(socket.SHUT_WR)
        return self._told or bool(self._in)


class Asked:
    """The source's end: what the target asks for, and the answers. The methods block; one thread at
    a time calls them, and `run` gives it one."""

    def __init__(
        self,
        link: Link,
        worker: ThreadPoolExecutor,
        tagger: Poly1305 | None,
        progress: Progress,
    ) -> None:
        self._link, self._worker, self._tagger = link, worker, tagger
        self._progress = progress
        self.packer = Packer(link.send, link.held_by_receiver)
        self.early = Early()
        self.known = 0  # bytes that the target had already when they were asked for
        self._rest = 0  # of the frame that is being read
        self._size = 0  # of all answers
        self._heard = self._said = 0.0
        self._running = self._ended = False

    async def run(self, work: Callable[[], T]) -> T:
        self._running = True
        try:
            return await to_its_end(work, self._link.interrupt, self._worker)
        finally:
            self._running = False

    async def ticking(self) -> None:
        """While nothing runs, which would say for itself that we are there."""
        while not self._ended:
            await asyncio.sleep(TICK)
            if not self._running and not self._ended:
                try:
                    await to_its_end(self._tick, self._link.interrupt, self._worker)
                except HoldfastError:
                    return  # whoever reads is told

    def read(self, view: memoryview) -> bool:
        """Fills it. False: the target has nothing more to ask for."""
        while view:
            if not self._rest and not self._next():
                return False
            count = min(self._rest, len(view))
            self._link.read_into(view[:count])
            self._rest -= count
            view = view[count:]
        return True

    def send_ahead(self, pid: int, address: int, view: memoryview) -> None:
        """Whole pieces of a process that runs. At most CHUNK."""
        self._link.send(Frame.AHEAD, PLACE.pack(pid, address, len(view)))
        self.packer.send(view)
        self._progress.early += len(view)
        self._said = time.monotonic()

    def still_there(self) -> None:
        """Now and then, if nothing is sent."""
        if time.monotonic() - self._said > TICK:
            self._said = time.monotonic()
            self._tick()

    def write(self, view: memoryview, head: int = 0, pid: int = 0, address: int = 0) -> None:
        """At most CHUNK: after the first `head` bytes pages of the frozen tree, from there."""
        if self._tagger is not None:
            self._tagger.update(view)
        self._size += len(view)
        sent = 0
        for start, end in joined(self.early.same(pid, address, view[head:])):
            if sent < head + start:
                self.packer.send(view[sent : head + start])
            self._link.send(Frame.KNOWN, PLACE.pack(pid, address + start, end - start))
            self.known += end - start
            sent = head + end
        if sent < len(view):
            self.packer.send(view[sent:])
        self._progress.memory = self._size

    def end(self) -> None:
        """The target has all of it, and hears what it must be."""
        self._ended = True
        self._link.send_json(Frame.END, last_word(self._size, self._tagger))
        self._link.drain()

    def _tick(self) -> None:
        self._link.send(Frame.TICK)

    def _next(self) -> bool:
        """Comes to the body of the next frame of bytes. False: none will come."""
        self._heard = time.monotonic()
        while True:
            if not self._link.waiting(TICK):
                if time.monotonic() - self._heard > SILENCE:
                    raise LinkLost(f"nothing from the other agent for {SILENCE:.0f} s")
                self._tick()
                continue
            self._heard = time.monotonic()
            kind, _, length = self._link.head()
            if kind is Frame.DATA and length:
                self._rest = length
                return True
            body = self._link.body(length)
            if kind is Frame.END:
                return False
            if kind is Frame.FAILED:
                raise from_json(as_json(body))
            if kind is not Frame.TICK:
                raise BadRequest(f"the other agent sent {kind.name} out of turn")


@contextlib.asynccontextmanager
async def asked(
    to: Place,
    context: ssl.SSLContext,
    checkpoint: str,
    namespace: str,
    salt: bytes,
    tagger: Poly1305 | None,
    progress: Progress,
) -> AsyncIterator[Asked]:
    """`salt`: the transfer's that it belongs to, by which the target knows it. `tagger`: of memory
    that does not go before the target has found it right."""
    hello = greeting(checkpoint, salt, {"namespace": namespace, "for": FOR})
    async with dialled(to, context, f"pages-{checkpoint}") as (link, worker):
        await to_its_end(lambda: link.send_json(Frame.HELLO, hello), link.interrupt, worker)
        made = Asked(link, worker, tagger, progress)
        ticking = asyncio.create_task(made.ticking())
        try:
            yield made
        finally:
            ticking.cancel()
            await asyncio.wait([ticking])


class Needed:
    """Sessions that are lost if this agent goes now. One that is stopped waits for them, for as
    long as it is given."""

    def __init__(self) -> None:
        self._count = 0
        self._none = asyncio.Event()
        self._none.set()

    @contextlib.contextmanager
    def now(self) -> Iterator[None]:
        self._count += 1
        self._none.clear()
        try:
            yield
        finally:
            self._count -= 1
            if self._count == 0:
                self._none.set()

    async def no_more(self) -> None:
        await self._none.wait()
