"""Pages of a session whose memory follows it (lazy.py), on their way between two agents: a stream
of bytes in both directions, over a TLS connection of their own, in frames as on any link (link.py).

    HELLO  DATA...  END  (each side its own)      TICK, if there is nothing to say

One thread does both directions, and waits for neither of them alone. The end of the connection is
the end of both, and its silence too: then no more pages come, and the engine says what that means.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import ssl
import time
from collections.abc import AsyncIterator, Iterator
from typing import Final

from holdfast_wire.errors import BadRequest, HoldfastError, from_json

from . import log
from .link import CHUNK, SILENCE, TICK, Frame, Link, LinkLost, as_json, frame_head
from .transfer import dialled, greeting

FOR: Final = "pages"  # what a greeting says that the connection is for
_HEAD: Final = len(frame_head(Frame.TICK))
_LAST_SECONDS: Final = 2.0  # for what is on its way when our end is closed


class Carrier:
    """`end` is closed when it has run."""

    def __init__(self, link: Link, end: socket.socket) -> None:
        self._link, self._end = link, end
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
        """Returns when both sides have ended. LinkLost, or the other agent's reason."""
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
        if not self._rest and len(self._head) < _HEAD:
            wanted = _HEAD - len(self._head)
        else:
            wanted = min(self._rest, CHUNK)
        count = self._link.try_read(self._taken[:wanted])
        if not count:
            return False
        self._heard = time.monotonic()
        self._came(self._taken[:count])
        return True

    def _came(self, piece: memoryview) -> None:
        if self._rest:
            self._rest -= len(piece)
            if self._kind is Frame.DATA:
                self._in = piece
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

    def _whole(self, body: bytes) -> None:
        if self._kind is Frame.FAILED:
            raise from_json(as_json(body))
        if self._kind is Frame.END:
            self._heard_end = True
            with contextlib.suppress(OSError):  # it has ended by itself
                self._end.shutdown(socket.SHUT_WR)
        elif self._kind is not Frame.TICK:
            raise BadRequest(f"the other agent sent {self._kind.name} out of turn")


@contextlib.asynccontextmanager
async def carried(
    address: tuple[str, int],
    context: ssl.SSLContext,
    checkpoint: str,
    namespace: str,
    salt: bytes,
) -> AsyncIterator[socket.socket]:
    """The source's: an end of a stream whose other end the target has. `salt`: the transfer's that
    it belongs to, by which the target knows it."""
    hello = greeting(checkpoint, salt, {"namespace": namespace, "for": FOR})
    loop = asyncio.get_running_loop()
    async with dialled(address, context, f"pages-{checkpoint}") as (link, worker):
        await loop.run_in_executor(worker, link.send_json, Frame.HELLO, hello)
        ours, theirs = socket.socketpair()
        carrying = loop.run_in_executor(worker, Carrier(link, theirs).run)
        carrying.add_done_callback(lambda done: done.cancelled() or done.exception())  # it is heard
        try:
            yield ours
        finally:
            ours.close()
            await asyncio.wait([carrying], timeout=_LAST_SECONDS)
            link.interrupt()
            try:
                await carrying
            except HoldfastError as error:
                log.info("pages are not carried any more", order=checkpoint, why=str(error))


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
