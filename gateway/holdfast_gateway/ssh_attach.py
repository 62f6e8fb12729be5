"""An SSH client's terminal on a session: the I/O around `holdfast_wire.attach_core`, as
`holdfast.attach` is on a user's own machine. What a client sees and types is decided there.

    channel ─ typed, resized ─► core ─ Send ─► link ─► sidecar
            ◄──────── Show ─── core ◄─ frames ─ link ◄─

Nothing is queued without a bound. Output: no more than one read from the sidecar beyond what the
channel takes; then we stop reading, and the sidecar's own bounded queue drops and sends a gap.
Input: `attach_core.MAX_UNACKED`; then we stop reading the channel, whose window is small.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from typing import Any, Final, Protocol

from holdfast_gateway.auth import Caller
from holdfast_gateway.backend import READ_AHEAD, Backend, Link
from holdfast_gateway.relay import vouched
from holdfast_wire.attach_core import (
    Action,
    AttachCore,
    Connect,
    Disconnect,
    Leave,
    Send,
    Settings,
    Show,
)
from holdfast_wire.errors import Ended, Forbidden, HoldfastError, Internal, Retry
from holdfast_wire.frames import Decoder, encode
from holdfast_wire.rights import Right

# What was typed just before the end still goes out, if the session takes it.
_FLUSH_SECONDS: Final = 1.0
# A window that is dragged tells of every size on the way; nobody types in between.
_SETTLE_SECONDS: Final = 0.05


async def may_type(backend: Backend, name: str, caller: Caller) -> bool:
    """Whether he writes or only observes. Raises what keeps him from the session altogether."""
    async with backend.connect(name, caller) as link:
        try:
            await link.allow(Right.TYPE)
        except Forbidden:
            return False
    return True


class Terminal(Protocol):
    """The client's side."""

    def show(self, data: bytes) -> None: ...

    def listen(self, yes: bool) -> None:
        """Whether what is typed is to be taken from the client at the moment."""


class Attachment:
    def __init__(
        self,
        backend: Backend,
        name: str,
        caller: Caller,
        settings: Settings,
        size: tuple[int, int],
        terminal: Terminal,
    ) -> None:
        self._backend, self._name, self._caller = backend, name, caller
        self._view = settings.view
        self._core = AttachCore(settings, size)
        self._size = size
        self._terminal, self._listening = terminal, True
        self._loop = asyncio.get_running_loop()
        self._left: asyncio.Future[Leave] = self._loop.create_future()
        self._wanted = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()
        self._finished = False
        self._link: Link | None = None
        self._settling: asyncio.TimerHandle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at: float | None = None

    async def run(self) -> Leave:
        """Until somebody leaves or the session ends."""
        self._perform(self._core.start(self._loop.time()))
        links = asyncio.create_task(self._links())
        try:
            either: set[asyncio.Future[Any]] = {links, self._left}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not self._left.done():
                links.result()  # a fault of ours: it goes on for ever otherwise
                raise Internal("the connection to the session is not kept")
            await self._flush()
            return self._left.result()
        finally:
            for timer in (self._timer, self._settling):
                if timer is not None:
                    timer.cancel()
            links.cancel()
            await asyncio.wait({links})

    # -- what the channel tells

    def typed(self, data: bytes) -> None:
        if not self._left.done():
            self._perform(self._core.typed(data, self._loop.time()))

    def resized(self, columns: int, rows: int) -> None:
        self._size = columns, rows
        if self._settling is None:
            self._settling = self._loop.call_later(_SETTLE_SECONDS, self._settled)

    def _settled(self) -> None:
        self._settling = None
        if not self._left.done():
            self._perform(self._core.resized(*self._size))

    def finished(self) -> None:
        """Nothing more will be typed; what was is still delivered."""
        self._finished = True
        self._perform(())

    def ended_by(self, error: HoldfastError) -> None:
        """Whoever it is may not go on, or we cannot."""
        if not self._left.done():
            self._perform(self._core.gone(error, None))

    def writable(self, yes: bool) -> None:
        if yes:
            self._writable.set()
        else:
            self._writable.clear()

    # -- the session

    async def _links(self) -> None:
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            await self._writable.wait()
            try:
                async with self._backend.connect(self._name, self._caller) as link:
                    if not self._view:
                        await link.allow(Right.TYPE)
                    if not await self._stream(link):
                        continue
                self._perform(self._core.lost(self._loop.time()))
            except (OSError, EOFError):
                self._perform(self._core.lost(self._loop.time()))
            except Retry as error:
                self._perform(self._core.lost(self._loop.time(), error.message))
            except HoldfastError as error:
                self._perform(self._core.gone(error, await self._exit_status(error)))
                return

    async def _stream(self, link: Link) -> bool:
        """One connection from its attach to its end; False if it was we who ended it."""
        if self._left.done():
            return False
        self._link = link
        link.cut.add_done_callback(self._cut)
        decoder = Decoder()
        try:
            self._perform(self._core.connected())
            while data := await link.reader.read(READ_AHEAD):
                now = self._loop.time()
                self._perform(
                    action
                    for frame in decoder.feed(data)
                    for action in self._core.received(frame, now)
                )
                if self._link is None or self._left.done():
                    return False
                await self._writable.wait()
            return True
        finally:
            link.cut.remove_done_callback(self._cut)
            self._link = None

    def _cut(self, cut: asyncio.Future[None]) -> None:
        error = None if cut.cancelled() else cut.exception()
        if isinstance(error, HoldfastError):
            self.ended_by(error)

    async def _exit_status(self, error: HoldfastError) -> dict[str, Any] | None:
        if isinstance(error, Ended):
            with contextlib.suppress(HoldfastError):
                found = (await self._backend.describe(self._name, self._caller)).get("exit")
                return found if isinstance(found, dict) else None
        return None

    # -- acting

    def _perform(self, actions: Iterable[Action]) -> None:
        """Act. What is to be shown is gathered, so that many small frames make one write."""
        shown: list[bytes] = []
        for action in actions:
            match action:
                case Show(data):
                    shown.append(data)
                case Send(frame):
                    self._send(encode(vouched(frame, self._caller)))
                case Connect():
                    self._wanted.set()
                case Disconnect():
                    self._link = None
                    break  # what the old connection still had in its buffer is not ours any more
                case Leave():
                    self._left.set_result(action)
                    break
        if shown:
            self._terminal.show(b"".join(shown))
        if self._core.wants_input is not self._listening:
            self._listening = not self._listening
            self._terminal.listen(self._listening)
        if self._finished and not self._core.unacked and not self._left.done():
            self._finished = False
            self._perform(self._core.detached())
        self._rearm()

    def _send(self, data: bytes) -> None:
        if self._link is not None:
            # If it has gone, reading tells; what was typed goes out again on the next one.
            with contextlib.suppress(OSError):
                self._link.writer.write(data)

    def _rearm(self) -> None:
        moment = None if self._left.done() else self._core.wakeup()
        if moment != self._timer_at:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_at = moment
            self._timer = self._loop.call_at(moment, self._tick) if moment is not None else None

    def _tick(self) -> None:
        moment, self._timer_at, self._timer = self._timer_at, None, None
        if moment is not None and not self._left.done():
            self._perform(self._core.tick(max(moment, self._loop.time())))

    async def _flush(self) -> None:
        if self._link is not None and self._core.unacked:
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(_FLUSH_SECONDS):
                    await self._link.writer.drain()
