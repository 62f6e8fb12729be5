"""A checkpoint from one agent to another: parts as they come, then the manifest, then what became
of it. One connection for each; nothing is resumed. A link that is lost is lost, and what counts
afterwards is the Lease, never what either agent believes.

    sender     HELLO  BEGIN DATA|PACKED|ZEROS... END  (parts may overlap)  MANIFEST
    receiver   READY  PROGRESS...  RECEIVED  TICK...  COMMITTED | FAILED

READY says what the receiver can unpack (packing.py), and keep of memory that comes before it has a
place (ahead.py). A session that moves is not stopped before.

The work is done by one thread for each connection; memory is bounded by one chunk for each.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import ssl
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from cryptography.hazmat.primitives.poly1305 import Poly1305

from holdfast_wire.errors import HoldfastError, Internal, from_json

from . import ahead, packing
from .growing import Feeds, Growing
from .link import CHUNK, TICK, VERSION, Frame, Link, LinkLost, Place, as_json, dial
from .packing import Packer
from .pair import SALT, Facts, Keys, Manifest, Part, check_part, unkeyed
from .progress import Progress
from .receiving import Receiver, serve
from .threads import to_its_end

__all__ = ["Aborted", "LinkLost", "Receiver", "Sender", "connect", "serve"]

_ZEROS: Final = bytes(CHUNK)
T = TypeVar("T")


class Aborted(Internal):
    """The sender was closed while it sent."""


@dataclass(slots=True)
class _Going(Growing):
    number: int
    name: str
    tagger: Poly1305
    size: int = 0


class Sender(Feeds[_Going]):
    """Calls are made one after another. Any of them raises LinkLost, or the receiver's reason for
    giving up (a HoldfastError) as soon as it has said so."""

    def __init__(self, link: Link, keys: Keys, worker: ThreadPoolExecutor, salt: bytes) -> None:
        super().__init__()
        self._link, self._keys, self._worker, self._salt = link, keys, worker, salt
        self._received = self._ready = False
        self._failure: HoldfastError | None = None
        self.parts: dict[str, Part] = {}
        self._names: set[str] = set()
        self.packer = Packer(self._send, link.held_by_receiver)
        self.room = 0  # bytes of memory that the receiver can keep before they have a place
        self.progress = Progress()

    @property
    def salt(self) -> bytes:
        """Names this very transfer to both agents, and to nobody else."""
        return self._salt

    async def send_bytes(self, part: str, data: bytes) -> None:
        await self.send_from(part, lambda write: write(memoryview(data)))

    async def send_file(self, part: str, path: Path, *, punch: bool = False) -> None:
        """`punch`: what is sent is freed at the source, piece by piece."""
        await self._run(lambda: self._feed_file(part, path, punch))

    async def send_from(self, part: str, produce: Callable[[Callable[[memoryview], None]], T]) -> T:
        """`produce` runs in the connection's thread and gives its bytes to the function that it is
        called with. `layer.capture` is such a producer."""

        def work() -> T:
            going = self._begin(part)
            made = produce(lambda view: self._data(going, view))
            self._end(going)
            return made

        return await self._run(work)

    async def follow(self, prefix: str, directory: Path, done: asyncio.Event) -> None:
        """CRIU's images while it writes them (growing.py)."""
        await self._run(lambda: self._feed_folder(prefix, directory, done))

    async def ready(self) -> None:
        """Returns when the receiver has all it needs to restore what will come."""

        def work() -> None:
            while not self._ready:
                self._hear()

        await self._run(work)

    async def finish(self, facts: Facts) -> Manifest:
        """Returns when the receiver has found all of it right. LinkLost from here on: the receiver
        may have it, and may commit; ask the Lease."""
        manifest = Manifest(facts, self._salt, dict(self.parts))

        def work() -> None:
            self._send(Frame.MANIFEST, manifest.signed(self._keys))
            while not self._received:
                self._hear()

        await self._run(work)
        return manifest

    async def outcome(self) -> None:
        """Returns when the receiver has committed."""

        def work() -> None:
            while self._hear() != Frame.COMMITTED:
                pass

        await self._run(work)

    async def keep_alive(self) -> None:
        """Runs beside the calls: the receiver hears from us though we have nothing to send."""
        while True:
            await asyncio.sleep(TICK)
            if self._received:
                return
            try:
                await self._run(self._tick)
            except HoldfastError:
                return  # the next call says so

    async def _run(self, work: Callable[[], T]) -> T:
        return await to_its_end(work, self.interrupt, self._worker)

    def interrupt(self) -> None:
        self._closing.set()
        self._link.interrupt()

    # -- in the connection's thread

    def _tick(self) -> None:
        self._check()
        if not self._received:
            self._send(Frame.TICK)

    def _send(self, kind: Frame, body: bytes | memoryview = b"", number: int = 0) -> None:
        try:
            self._link.send(kind, body, number)
        except LinkLost:
            with suppress(LinkLost):  # it may have said why before it hung up
                while not self._closing.is_set():
                    self._hear()
            raise

    def _check(self) -> None:
        """The receiver may have said something meanwhile."""
        if self._closing.is_set():
            raise Aborted("the transfer was given up")
        if self._failure is not None:
            raise self._failure
        while self._link.waiting():
            self._hear()

    def _hear(self) -> Frame:
        if self._failure is not None:
            raise self._failure
        kind, _, length = self._link.head()
        body = self._link.body(length)
        if kind == Frame.FAILED:
            self._failure = from_json(as_json(body))
            raise self._failure
        if kind == Frame.PROGRESS:
            self.progress.taken = int(as_json(body).get("bytes", 0))
        if kind == Frame.READY and body:  # of an agent of an older version it has none
            said = as_json(body)
            self.packer.allowed = packing.accepted(said)
            room = said.get(ahead.ROOM)
            self.room = room if isinstance(room, int) else 0
        self._received = self._received or kind == Frame.RECEIVED
        self._ready = self._ready or kind == Frame.READY
        return kind

    def _begin(self, part: str) -> _Going:
        check_part(part)
        if part in self._names:
            raise Internal(f"the part {part} was sent already")  # its key is used up
        self._names.add(part)
        self._check()
        going = _Going(len(self._names), part, self._keys.tagger(self._salt, part))
        self._send(Frame.BEGIN, part.encode(), going.number)
        return going

    def _data(self, going: _Going, view: memoryview) -> None:
        for at in range(0, len(view), CHUNK):
            piece = view[at : at + CHUNK]
            going.tagger.update(piece)
            if len(piece) == CHUNK and piece[0] == piece[-1] == 0 and bytes(piece) == _ZEROS:
                self._send(Frame.ZEROS, b"", going.number)  # most of a ring that was never filled
            else:
                self.packer.send(piece, going.number)
            self._check()
            going.size += len(piece)
            self.progress.sent += len(piece)

    def _end(self, going: _Going) -> None:
        part = Part(going.size, going.tagger.finalize().hex())
        self._send(Frame.END, json.dumps(asdict(part)).encode(), going.number)
        self.parts[going.name] = part


@asynccontextmanager
async def dialled(
    to: Place, context: ssl.SSLContext, name: str
) -> AsyncIterator[tuple[Link, ThreadPoolExecutor]]:
    """A link to that node's agent and the one thread that uses it; both end with this."""
    worker = ThreadPoolExecutor(1, thread_name_prefix=name)
    try:
        link = await asyncio.get_running_loop().run_in_executor(worker, dial, to, context)
    except BaseException:
        worker.shutdown(wait=False)
        raise
    watching = asyncio.create_task(link.watch())
    try:
        yield link, worker
    finally:
        link.interrupt()
        watching.cancel()
        await asyncio.wait([watching])
        worker.shutdown(wait=True)
        link.close()


@asynccontextmanager
async def sending(
    link: Link, worker: ThreadPoolExecutor, keys: Keys, hello: dict[str, Any]
) -> AsyncIterator[Sender]:
    """Says `hello`, and that we are still there, until it is left."""
    loop = asyncio.get_running_loop()
    sender = Sender(link, keys, worker, bytes.fromhex(hello["salt"]))
    await loop.run_in_executor(worker, link.send_json, Frame.HELLO, hello)
    ticking = asyncio.create_task(sender.keep_alive())
    try:
        yield sender
    finally:
        ticking.cancel()
        await asyncio.wait([ticking])


def greeting(checkpoint: str, salt: bytes, about: dict[str, str]) -> dict[str, Any]:
    return {"version": VERSION, "checkpoint": checkpoint, "salt": salt.hex(), "about": about}


@asynccontextmanager
async def connect(
    to: Place,
    context: ssl.SSLContext,
    keys: Keys | None,
    checkpoint: str,
    about: dict[str, str] | None = None,
) -> AsyncIterator[Sender]:
    """`about`: what the receiver's handler needs to know before the first byte, such as the pod's
    UID. `keys`: None for what is sealed already (`pair.unkeyed`). Leaving without an outcome tells
    the receiver to forget all of it."""
    salt = secrets.token_bytes(SALT)
    hello, keys = greeting(checkpoint, salt, about or {}), keys or unkeyed(salt)
    async with dialled(to, context, f"send-{checkpoint}") as (link, worker):
        try:
            async with sending(link, worker, keys, hello) as sender:
                yield sender
        finally:
            with suppress(LinkLost, RuntimeError):
                await asyncio.get_running_loop().run_in_executor(worker, link.send, Frame.ABORT)
