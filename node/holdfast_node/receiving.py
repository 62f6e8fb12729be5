"""The receiving side of a transfer. What arrives is written, and checked on the way; it counts only
when the signed manifest has come and agrees with all of it."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from cryptography.hazmat.primitives.poly1305 import Poly1305

from holdfast_wire.doors import Strangers
from holdfast_wire.errors import (
    BadRequest,
    HoldfastError,
    Internal,
    TooLarge,
    Unsupported,
    from_json,
)

from . import ahead, log, packing
from .link import CHUNK, TICK, VERSION, Coming, Frame, Link, LinkLost, answer, as_json
from .pair import (
    SALT,
    Fault,
    Manifest,
    Part,
    Unfit,
    check_checkpoint,
    check_part,
    unkeyed,
    verify,
)
from .threads import to_its_end

_TELL: Final = 64 << 20  # bytes between two words of progress
_AT_ONCE: Final = 16  # transfers; a node has few sessions to take at a time
# Connections that have not shown an agent's certificate yet. Each has a thread, for so long.
_STRANGERS: Final = 32
_STRANGERS_OF_ONE: Final = 8  # address: another agent has at most so many orders at once
_HANDSHAKE_SECONDS: Final = 5.0  # three packets, or six where one was lost
_BACKLOG: Final = 128
_PARTS: Final = 4096  # of one checkpoint: CRIU writes some ten files for each process
_ZEROS: Final = bytes(CHUNK)
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
T = TypeVar("T")


class Abandoned(LinkLost):
    """The sender gave up."""


@dataclass(slots=True)
class _Coming:
    name: str
    opened: int
    tagger: Poly1305
    size: int = 0


class Receiver:
    """One checkpoint on its way in. The handler calls `receive` once, restores, and then says
    `committed`, or raises; while it restores, the sender hears that we are at it."""

    def __init__(self, link: Link, worker: ThreadPoolExecutor) -> None:
        self.link, self.worker = link, worker
        # Of the transfer's salt, unless the handler has the order's data key.
        self.keys = unkeyed(bytes(SALT))
        self._loop = asyncio.get_running_loop()
        self._arrived: dict[str, asyncio.Future[Path]] = {}
        self._buffer = memoryview(bytearray(CHUNK))
        self._coming: dict[int, _Coming] = {}
        self._found: dict[str, Part] = {}
        self._salt = b""
        self.peer = link.node
        self.checkpoint = ""
        self.about: dict[str, str] = {}
        self.taken = 0  # bytes of parts
        self.signed = b""  # the manifest as it came, for the store
        self.received = False
        self.said = False  # what became of it
        self.lost = False  # the sender is gone: the Lease says what it needs to know

    async def receive(self, directory: Path, *, limit: int | None = None) -> Manifest:
        """Each part becomes a file of its name in `directory`, which is made, and removed again
        unless all is well. `limit`: bytes. Raises Unfit, LinkLost, TooLarge, OSError."""
        try:
            return await self.run(lambda: self._receive_into(directory, limit))
        except BaseException as error:
            for future in self._arrived.values():
                if not future.done():
                    future.set_exception(LinkLost(f"the part did not arrive: {error}"))
                    future.exception()  # nobody may be waiting
            raise

    def arrived(self, part: str) -> asyncio.Future[Path]:
        """Done when that part is there, ahead of the others. It is then whole, and from an agent,
        but what it belongs to is known only when `receive` returns."""
        return self._arrived.setdefault(part, self._loop.create_future())

    async def ready(self, room: int = 0) -> None:
        """The sender, which waits for that, may stop the session. Before `receive`. `room`: bytes
        of memory that may come while it still runs."""
        offer = {**packing.offer(), ahead.ROOM: room}
        await self.run(lambda: self.link.send_json(Frame.READY, offer))

    async def committed(self) -> None:
        await self._say(Frame.COMMITTED, b"")

    async def failed(self, error: HoldfastError) -> None:
        await self._say(Frame.FAILED, error)

    async def _say(self, kind: Frame, what: bytes | HoldfastError) -> None:
        if self.said:
            return
        self.said = True

        def work() -> None:
            if isinstance(what, HoldfastError):
                self.link.send_json(kind, what.to_json())
            else:
                self.link.send(kind, what)

        try:
            await self.run(work)
        except LinkLost:
            self.lost = True

    @property
    def salt(self) -> bytes:
        return self._salt

    async def lend(self, over: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Another has the use of the link, and says all that is to be said, until `over`."""
        self.said = self.lost = True
        waiting = asyncio.create_task(over())
        try:
            await asyncio.shield(waiting)
        except asyncio.CancelledError:
            self.link.interrupt()
            await asyncio.wait([waiting])
            raise

    async def watch(self) -> None:
        await self.link.watch()

    async def ticking(self) -> None:
        while not self.said and not self.lost:
            await asyncio.sleep(TICK)
            if self.received and not self.said:
                try:
                    await self.run(lambda: self.link.send(Frame.TICK))
                except LinkLost:
                    self.lost = True

    async def run(self, work: Callable[[], T]) -> T:
        """In the connection's thread."""
        return await to_its_end(work, self.link.interrupt, self.worker)

    # -- in the connection's thread

    def drain(self) -> None:
        self.link.drain()

    def greet(self) -> None:
        kind, _, length = self.link.head()
        hello: dict[str, Any] = as_json(self.link.body(length))
        if kind == Frame.FAILED:  # it was asked for something, and will not send it
            raise from_json(hello)
        if kind != Frame.HELLO or hello.get("version") != VERSION:
            raise Unsupported(
                "the other agent speaks another version",
                "wait until the node agents are all of one version",
            )
        try:
            self._salt = bytes.fromhex(hello["salt"])
            self.checkpoint = check_checkpoint(hello["checkpoint"])
            self.about = {str(key): str(value) for key, value in hello["about"].items()}
        except (KeyError, TypeError, ValueError, AttributeError):
            raise BadRequest("the other agent's greeting lacks something") from None
        if len(self._salt) != SALT:
            raise BadRequest("the other agent's greeting lacks something")
        self.keys = unkeyed(self._salt)

    def _receive_into(self, directory: Path, limit: int | None) -> Manifest:
        directory.mkdir(mode=0o700)
        try:
            return self._receive(directory, limit)
        except BaseException:
            shutil.rmtree(directory, ignore_errors=True)
            raise

    def _receive(self, directory: Path, limit: int | None) -> Manifest:
        told = 0
        try:
            while True:
                kind, number, length = self.link.head()
                if kind in (Frame.DATA, Frame.PACKED, Frame.ZEROS):
                    self._data(number, length, kind)
                    if limit is not None and self.taken > limit:
                        raise TooLarge(f"the checkpoint is larger than {limit >> 20} MiB")
                    if self.taken - told >= _TELL:
                        told = self.taken
                        self.link.send_json(Frame.PROGRESS, {"bytes": told})
                    continue
                body = self.link.body(length)
                if kind == Frame.BEGIN:
                    self._begin(number, body, directory)
                elif kind == Frame.END:
                    self._end(number, body, directory)
                elif kind == Frame.MANIFEST:
                    return self._manifest(body)
                elif kind == Frame.FAILED:
                    raise from_json(as_json(body))
                elif kind == Frame.ABORT:
                    raise Abandoned("the other agent gave the transfer up")
                elif kind != Frame.TICK:
                    raise BadRequest(f"the other agent sent {kind.name} out of turn")
        finally:
            for coming in self._coming.values():
                os.close(coming.opened)
            self._coming.clear()

    def _begin(self, number: int, body: bytes, directory: Path) -> None:
        try:
            name = check_part(body.decode("ascii"))
        except UnicodeDecodeError:
            raise BadRequest("the other agent named a part impossibly") from None
        known = name in self._found or any(each.name == name for each in self._coming.values())
        if known or number in self._coming or len(self._found) + len(self._coming) >= _PARTS:
            raise BadRequest(f"the other agent sent the part {name} twice, or too many")
        path = directory / name
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            opened = os.open(path, _NEW, 0o600)
        except (FileExistsError, NotADirectoryError):
            raise BadRequest(f"the part {name} stands in the way of another") from None
        self._coming[number] = _Coming(name, opened, self.keys.tagger(self._salt, name))

    def _data(self, number: int, length: int, kind: Frame) -> None:
        coming = self._coming.get(number)
        if coming is None or (kind == Frame.ZEROS and length):
            raise BadRequest("the other agent sent bytes of no part")
        if kind == Frame.ZEROS:
            view = memoryview(_ZEROS)
            os.ftruncate(coming.opened, coming.size + CHUNK)
        else:
            view = self._buffer[:length]
            self.link.read_into(view)
            view = packing.unpacked(view) if kind == Frame.PACKED else view
            _write(coming.opened, view, coming.size)
        coming.tagger.update(view)
        coming.size += len(view)
        self.taken += len(view)

    def _end(self, number: int, body: bytes, directory: Path) -> None:
        coming = self._coming.pop(number, None)
        if coming is None:
            raise BadRequest("the other agent ended a part that it did not begin")
        os.close(coming.opened)
        part = Part(coming.size, coming.tagger.finalize().hex())
        said = as_json(body)
        if (said.get("size"), said.get("tag")) != (part.size, part.tag):
            raise Unfit(
                Fault.CORRUPT, f"the checkpoint's part {coming.name} was altered on the way"
            )
        self._found[coming.name] = part
        self._loop.call_soon_threadsafe(self._tell_arrived, coming.name, directory / coming.name)

    def _tell_arrived(self, name: str, path: Path) -> None:
        future = self.arrived(name)
        if not future.done():
            future.set_result(path)

    def _manifest(self, raw: bytes) -> Manifest:
        if self._coming:
            raise Unfit(Fault.TRUNCATED, "the manifest came before the end of all parts")
        manifest = Manifest.read(raw, self.keys)
        if manifest.facts.checkpoint != self.checkpoint or manifest.salt != self._salt:
            raise Unfit(Fault.FOREIGN, "the manifest is that of another checkpoint")
        verify(manifest, self._found)
        self.signed = raw
        self.link.send_json(Frame.PROGRESS, {"bytes": self.taken})
        self.link.send(Frame.RECEIVED)
        self.received = True
        return manifest


def _write(opened: int, view: memoryview, at: int) -> None:
    while view:
        count = os.pwrite(opened, view, at)
        view, at = view[count:], at + count


Handler = Callable[[Receiver], Awaitable[None]]


@asynccontextmanager
async def serve(
    host: str, port: int, context: Callable[[], ssl.SSLContext], handler: Handler
) -> AsyncIterator[int]:
    """Listens until it is left, and gives each checkpoint that comes to `handler`; yields the
    port. What the handler raises the sender is told. `context`: asked for each connection, for
    certificates and CAs come and go."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.create_server((host, port), family=family, backlog=_BACKLOG)
    listening.setblocking(False)
    connections: set[asyncio.Task[None]] = set()
    strangers, room = Strangers(_STRANGERS, _STRANGERS_OF_ONE), asyncio.Semaphore(_AT_ONCE)

    async def one(plain: socket.socket) -> None:
        await _one(plain, context, handler, strangers, room)

    accepting = asyncio.create_task(_accept(listening, one, connections))
    try:
        yield listening.getsockname()[1]
    finally:
        accepting.cancel()
        for task in connections:
            task.cancel()
        await asyncio.wait([accepting, *connections])
        listening.close()


async def _accept(
    listening: socket.socket,
    one: Callable[[socket.socket], Coroutine[Any, Any, None]],
    connections: set[asyncio.Task[None]],
) -> None:
    loop = asyncio.get_running_loop()

    def ended(task: asyncio.Task[None]) -> None:
        connections.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.fault("a transfer broke", error)

    while True:
        try:
            plain, _ = await loop.sock_accept(listening)
        except OSError as error:  # such as too many open files
            log.warning("a connection could not be taken", reason=str(error))
            await asyncio.sleep(0.1)
            continue
        task = asyncio.create_task(one(plain))
        connections.add(task)
        task.add_done_callback(ended)


async def _one(
    plain: socket.socket,
    context: Callable[[], ssl.SSLContext],
    handler: Handler,
    strangers: Strangers,
    room: asyncio.Semaphore,
) -> None:
    try:
        peer = str(plain.getpeername()[0])
    except OSError:  # it has left already
        plain.close()
        return
    worker = ThreadPoolExecutor(1, thread_name_prefix=f"receive-{peer}")
    links: list[Link] = []  # one, also if it is made when nobody waits for it any more
    try:
        await _identified(plain, peer, context(), worker, strangers, links)
        async with room:
            await _handled(Receiver(links[0], worker), handler)
    except HoldfastError as error:
        log.warning("a transfer did not begin", peer=peer, reason=str(error))
    finally:
        for link in links:
            link.interrupt()
        worker.shutdown(wait=True)
        for link in links:
            link.close()
        plain.close()


async def _identified(
    plain: socket.socket,
    peer: str,
    context: ssl.SSLContext,
    worker: ThreadPoolExecutor,
    strangers: Strangers,
    links: list[Link],
) -> None:
    """Into `links`. Who does not show an agent's certificate in time is cut off, and so is the one
    that has tried for longest when too many do. The agents that have shown theirs do not wait for
    them."""
    # The sender never takes a session up again, and tickets that it does not read would make its
    # closing look like a broken link.
    context.num_tickets = 0
    coming = Coming(plain)
    number = strangers.enter(peer, coming.cut)
    loop = asyncio.get_running_loop()
    late = loop.call_later(_HANDSHAKE_SECONDS, coming.cut)
    try:
        await loop.run_in_executor(worker, lambda: links.append(answer(plain, context)))
    except asyncio.CancelledError:
        coming.cut()
        raise
    finally:
        late.cancel()
        strangers.leave(number)
        coming.close()


async def _handled(receiver: Receiver, handler: Handler) -> None:
    beside = [asyncio.create_task(receiver.ticking()), asyncio.create_task(receiver.watch())]
    try:
        await receiver.run(receiver.greet)
        await handler(receiver)
        await receiver.failed(Internal("the receiving agent did not say what became of it"))
    except HoldfastError as error:
        log.warning("a transfer failed", peer=receiver.peer, reason=str(error))
        await receiver.failed(error)
    except Exception as error:
        log.fault("a transfer failed", error, peer=receiver.peer)
        await receiver.failed(Internal(f"the receiving agent failed: {error}"))
    finally:
        for task in beside:
            task.cancel()
        await asyncio.wait(beside)
        if receiver.said and not receiver.lost:
            await receiver.run(receiver.drain)
