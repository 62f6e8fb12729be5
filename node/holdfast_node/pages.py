"""Memory of a session that goes from process to process (lazy.py), on its way between two agents: a
stream of bytes in both directions, over a TLS connection of its own, in frames as on any link
(link.py).

    HELLO  DATA...  END  (each side its own)      TICK, if there is nothing to say

At the target one thread does both directions, and waits for neither of them alone. The end of the
connection is the end of both, and its silence too: then no more pages come, and the engine says
what that means.

Memory that must be whole before the session runs has a tag like any part of a checkpoint: the
source's last word is the tag of all that it sent, and the target's carrier ends well only if it
took the same.
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
from dataclasses import asdict
from typing import Any, Final, TypeVar

from cryptography.hazmat.primitives.poly1305 import Poly1305

from holdfast_wire.errors import BadRequest, HoldfastError, from_json

from .link import CHUNK, SILENCE, TICK, Frame, Link, LinkLost, as_json, frame_head
from .pair import Fault, Part, Unfit
from .threads import to_its_end
from .transfer import dialled, greeting

FOR: Final = "pages"  # what a greeting says that the connection is for
PART: Final = "memory"  # as whose tag is made
_HEAD: Final = len(frame_head(Frame.TICK))
T = TypeVar("T")


class Carrier:
    """The target's end. `end` is closed when it has run. `tagger`: of what must come whole."""

    def __init__(self, link: Link, end: socket.socket, tagger: Poly1305 | None = None) -> None:
        self._link, self._end, self._tagger = link, end, tagger
        self._size = 0  # of all that came
        self._room = memoryview(bytearray(_HEAD + CHUNK))
        self._out = self._room[:0]  # the frame that is being sent
        self._taken = memoryview(bytearray(CHUNK))
        self._in = self._taken[:0]  # what came, and our end has not taken yet
        self._head = bytearray()
        self._kind, self._rest = Frame.TICK, 0  # of the frame that is coming
        self._body = bytearray()
        self._said = self._heard = time.monotonic()
        self._ended = self._heard_end = False

    def run(self) -> None:
        """Returns when both sides have ended, and what came is right. LinkLost, Unfit, or the other
        agent's reason."""
        with self._end:
            try:
                self._carry()
            except BaseException:
                self._link.interrupt()  # the other side hears of it at once
                raise

    def _carry(self) -> None:
        self._end.setblocking(False)
        self._link.unblock()
        while self._out or self._in or not (self._ended and self._heard_end):
            moved = [self._fill(), self._send(), self._give(), self._hear()]
            if not any(moved):
                self._wait()

    def _wait(self) -> None:
        poller = select.poll()
        hears = 0 if self._in or self._heard_end else select.POLLIN
        poller.register(self._link.fileno(), hears | (select.POLLOUT if self._out else 0))
        reads = 0 if self._out or self._ended else select.POLLIN
        if events := reads | (select.POLLOUT if self._in else 0):
            poller.register(self._end, events)
        poller.poll(TICK / 4 * 1000)
        now = time.monotonic()
        if self._in or self._heard_end:
            self._heard = now  # it is not listened to
        if now - self._heard > SILENCE:
            raise LinkLost(f"nothing from the other agent for {SILENCE:.0f} s")

    def _fill(self) -> bool:
        """The next frame, if there is something to say."""
        if self._out or self._ended:
            return False
        try:
            count = self._end.recv_into(self._room[_HEAD:])
        except BlockingIOError:
            if time.monotonic() - self._said < TICK:
                return False
            self._frame(Frame.TICK, 0)
            return True
        except OSError:
            count = 0
        self._ended = count == 0
        self._frame(Frame.DATA if count else Frame.END, count)
        return True

    def _frame(self, kind: Frame, length: int) -> None:
        self._room[:_HEAD] = frame_head(kind, length)
        self._out = self._room[: _HEAD + length]

    def _send(self) -> bool:
        if not self._out:
            return False
        count = self._link.try_send(self._out)
        self._out = self._out[count:]
        if count:
            self._said = time.monotonic()
        return count > 0

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
        if self._in or self._heard_end:
            return False
        wanted = min(self._rest, CHUNK) if self._rest else _HEAD - len(self._head)
        view, count = self._taken[:wanted], 0
        # A record at a time, and given on in one piece.
        while count < wanted and (more := self._link.try_read(view[count:])):
            count += more
        if not count:
            return False
        self._heard = time.monotonic()
        self._came(view[:count])
        return True

    def _came(self, piece: memoryview) -> None:
        if self._rest:
            self._rest -= len(piece)
            if self._kind is Frame.DATA:
                self._take(piece)
            else:
                self._body += piece
        else:
            self._head += piece
            if len(self._head) < _HEAD:
                return
            self._kind, _, self._rest = self._link.parsed(bytes(self._head))
            self._head.clear()
        if self._rest == 0 and self._kind is not Frame.DATA:
            self._whole(bytes(self._body))
            self._body.clear()

    def _take(self, piece: memoryview) -> None:
        self._in = piece
        if self._tagger is not None:
            self._tagger.update(piece)
            self._size += len(piece)

    def _whole(self, body: bytes) -> None:
        if self._kind is Frame.FAILED:
            raise from_json(as_json(body))
        if self._kind is Frame.END:
            if (as_json(body) if body else {}) != _signed(self._size, self._tagger):
                raise Unfit(Fault.CORRUPT, "the session's memory was altered on the way")
            self._heard_end = True
            with contextlib.suppress(OSError):  # it has ended by itself
                self._end.shutdown(socket.SHUT_WR)
        elif self._kind is not Frame.TICK:
            raise BadRequest(f"the other agent sent {self._kind.name} out of turn")


class Asked:
    """The source's end: what the target asks for, and the answers. The methods block; one thread at
    a time calls them, and `run` gives it one."""

    def __init__(self, link: Link, worker: ThreadPoolExecutor, tagger: Poly1305 | None) -> None:
        self._link, self._worker, self._tagger = link, worker, tagger
        self._rest = 0  # of the frame that is being read
        self._size = 0  # of all answers
        self._heard = 0.0
        self._running = False

    async def run(self, work: Callable[[], T]) -> T:
        self._running = True
        return await to_its_end(work, self._link.interrupt, self._worker)

    async def ticking(self) -> None:
        """Until something runs, which says for itself that we are there."""
        while not self._running:
            await asyncio.sleep(TICK)
            if not self._running:
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

    def write(self, view: memoryview) -> None:
        """At most CHUNK."""
        if self._tagger is not None:
            self._tagger.update(view)
        self._size += len(view)
        self._link.send(Frame.DATA, view)

    def end(self) -> None:
        """The target has all of it, and hears what it must be."""
        self._link.send_json(Frame.END, _signed(self._size, self._tagger))
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


def _signed(size: int, tagger: Poly1305 | None) -> dict[str, Any]:
    return {} if tagger is None else asdict(Part(size, tagger.finalize().hex()))


@contextlib.asynccontextmanager
async def asked(
    address: tuple[str, int],
    context: ssl.SSLContext,
    checkpoint: str,
    namespace: str,
    salt: bytes,
    tagger: Poly1305 | None,
) -> AsyncIterator[Asked]:
    """`salt`: the transfer's that it belongs to, by which the target knows it. `tagger`: of memory
    that does not go before the target has found it right."""
    hello = greeting(checkpoint, salt, {"namespace": namespace, "for": FOR})
    async with dialled(address, context, f"pages-{checkpoint}") as (link, worker):
        await to_its_end(lambda: link.send_json(Frame.HELLO, hello), link.interrupt, worker)
        made = Asked(link, worker, tagger)
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
