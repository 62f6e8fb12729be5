"""Where checkpoints are kept, as agents ask each other: this node's disk, another node's, or an
object store.

    put    the source: the first of the ordered keepers that takes it
    keep   a keeper: takes what an order in the API says is to be kept here
    get    the target of a bring: from wherever the order says it lies
    give   a keeper: gives what an order in the API says is wanted from here

What is kept is sealed with the data key of its order, which a keeper never has. Who asks proves by
its certificate which node it is of, and may have what an order in the API names that node for.
"""

from __future__ import annotations

import asyncio
import platform
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from io import BufferedReader
from pathlib import Path
from typing import Final, Protocol

from holdfast_wire.errors import (
    AlreadyExists,
    BadRequest,
    Forbidden,
    HoldfastError,
    NotFound,
    Unavailable,
)

from . import fetching, log, pair
from .link import Place
from .order import Bring, Keep, Order, Where
from .pair import Expected, Fault, Keys, Manifest, Part, Unfit, unkeyed
from .receiving import Receiver
from .spool import spooled
from .store import (
    MANIFEST,
    PARTS,
    Kept,
    Peer,
    Store,
    check_sealed,
    check_whole,
    glance,
    lay_out,
    reader,
)
from .threads import to_its_end
from .transfer import connect

PEER: Final = "peer://"

Find = Callable[[str, str], Awaitable[Order]]
Address = Callable[[str], Awaitable[tuple[str, int]]]


class Remote(Store, Protocol):
    """A store that no node has."""

    def put(self, sealed: Path) -> Kept: ...

    def get(self, session: str, checkpoint: str, into: Path) -> None: ...

    def location(self, session: str, checkpoint: str) -> str: ...

    def reach(self) -> None:
        """Raises Unavailable if it does not answer soon."""


@dataclass(frozen=True)
class Others:
    """How the agents of other nodes are reached, and how they are known."""

    address: Address
    tls: Callable[[], ssl.SSLContext]

    async def place(self, node: str) -> Place:
        return Place(node, await self.address(node))


@dataclass(frozen=True)
class Found:
    """Of a bring: the checkpoint as it was stored, and its parts in memory, in the clear, but for
    files, which are unsealed when they are put where they belong."""

    manifest: Manifest
    parts: Path
    sealed: Path
    keys: Keys = field(repr=False)

    def reader(self, part: str) -> BufferedReader:
        return reader(self.sealed, self.manifest, self.keys, part)


class Stores:
    def __init__(
        self,
        node: str,
        disk: Peer,
        spool: Path,
        others: Others,
        find: Find,
        remote: Remote | None = None,
    ) -> None:
        self._node, self._disk, self._spool = node, disk, spool
        self._others, self._find, self._remote = others, find, remote
        self.writing = asyncio.Lock()  # one at a time, so that the budget is kept

    async def ready(self, order: Keep) -> None:
        """Before the session is stopped for it: is there anybody to keep it?"""
        if order.store is Where.S3:
            await asyncio.to_thread(self._object_store().reach)
            return
        reasons: list[str] = []
        for node in order.keepers:
            try:
                if node != self._node:
                    await self._others.address(node)
            except HoldfastError as error:
                reasons.append(str(error))
                continue
            return
        raise Unavailable("no node can keep it: " + ("; ".join(reasons) or "none is named"))

    # -- the source and the target ----------------------------------------------------------------

    async def put(self, order: Keep, sealed: Path, manifest: Manifest, keys: Keys) -> str:
        """Where it lies, whole. `sealed`: a folder that a Spool filled. Raises Unavailable when
        nobody took it."""
        signed = manifest.signed(keys)
        await asyncio.to_thread((sealed / MANIFEST).write_bytes, signed)
        if order.store is Where.S3:
            store = self._object_store()
            await to_its_end(lambda: store.put(sealed))
            return store.location(manifest.facts.session, manifest.facts.checkpoint)
        reasons: list[str] = []
        for node in order.keepers:
            try:
                if node == self._node:
                    whole = partial(check_sealed, sealed, manifest, keys)
                    await self._write(sealed, manifest, whole)
                else:
                    await self._send(node, order, sealed, manifest)
            except HoldfastError as error:
                log.warning("not kept there", checkpoint=order.name, node=node, why=str(error))
                reasons.append(f"{node}: {error}")
                continue
            return PEER + node
        raise Unavailable("no node could keep it: " + "; ".join(reasons))

    async def get(self, order: Bring, keys: Keys, memory: Path, disk: Path) -> Found:
        """Found to be what its manifest says. `memory`, `disk`: empty folders, of which only the
        first may hold anything in the clear."""
        sealed = await self._sealed(order, disk / "sealed")
        parts = memory / "parts"
        manifest = await to_its_end(lambda: lay_out(sealed, parts, keys, _in_memory))
        return Found(manifest, parts, sealed, keys)

    async def _sealed(self, order: Bring, into: Path) -> Path:
        """The folder in which it lies, as it was stored."""
        if order.location == PEER + self._node:
            return await asyncio.to_thread(
                self._disk.folder, order.of_session_uid, order.checkpoint
            )
        if order.location.startswith(PEER):
            about = {"namespace": order.namespace, "for": "fetch", "order": order.name}
            place = await self._others.place(order.location.removeprefix(PEER))
            async with fetching.fetching(
                place, self._others.tls(), order.checkpoint, about
            ) as receiver:
                await fetching.fetch(receiver, into)
            return into
        store = self._object_store()
        if order.location != store.location(order.of_session_uid, order.checkpoint):
            raise NotFound(
                f"the checkpoint lies at {order.location}, which this agent does not know",
                "give the agents the object store that they had when it was stored",
            )
        await to_its_end(lambda: store.get(order.of_session_uid, order.checkpoint, into))
        return into

    # -- a keeper ---------------------------------------------------------------------------------

    async def keep(self, receiver: Receiver) -> None:
        """A receiver's handler: what it raises is told to the source, which asks the next."""
        order = await self._find(receiver.about.get("namespace", ""), receiver.checkpoint)
        mine = isinstance(order, Keep) and order.store is Where.PEER and not order.over
        if not isinstance(order, Keep) or not mine or self._node not in order.keepers:
            raise Forbidden(f"nothing is to be kept on {self._node} by {order.name}")
        order.only_for(receiver.peer, order.source_node)
        size = _number(receiver.about.get("bytes", ""))
        await asyncio.to_thread(self._disk.admit, size, 1, order.namespace)
        async with spooled(self._spool, f"keeping-{order.uid}") as folder:
            await receiver.ready()
            sealed = folder / "sealed"
            listed = await receiver.receive(sealed, limit=size)
            manifest = await asyncio.to_thread(glance, sealed)
            _check_kept(order, manifest)
            sizes = {name.removeprefix(f"{PARTS}/"): part.size
                     for name, part in listed.parts.items() if name != MANIFEST}  # fmt: skip
            check_whole(manifest, sizes)
            await self._write(sealed, manifest, partial(_read_back, sealed, listed))
        await receiver.committed()
        log.info("kept", checkpoint=order.name, session=order.session, bytes=manifest.size)

    async def give(self, receiver: Receiver) -> None:
        about = receiver.about
        order = await self._find(about.get("namespace", ""), about.get("order", ""))
        wanted = isinstance(order, Bring) and order.checkpoint == receiver.checkpoint
        here = isinstance(order, Bring) and order.location == PEER + self._node
        if not isinstance(order, Bring) or order.over or not wanted or not here:
            raise Forbidden(f"nothing is to be brought from {self._node} by {order.name}")
        order.only_for(receiver.peer, order.target_node)
        session, name = order.of_session_uid, order.checkpoint
        sealed = await asyncio.to_thread(self._disk.folder, session, name)
        manifest = await asyncio.to_thread(self._disk.manifest, session, name)
        await fetching.give(receiver, sealed, manifest)
        log.info("given", checkpoint=order.checkpoint, order=order.name)

    # -- the steps --------------------------------------------------------------------------------

    async def _write(self, sealed: Path, manifest: Manifest, whole: Callable[[], None]) -> None:
        """On this node. Asked again, because the answer was lost: it is here."""
        facts = manifest.facts
        async with self.writing:
            try:
                await to_its_end(lambda: self._disk.put(sealed, whole))
            except AlreadyExists:
                kept = await asyncio.to_thread(self._disk.manifest, facts.session, facts.checkpoint)
                if kept.digest != manifest.digest:
                    raise

    async def _send(self, node: str, order: Keep, sealed: Path, manifest: Manifest) -> None:
        size = await asyncio.to_thread(_total, sealed)
        about = {"namespace": order.namespace, "for": "keep", "bytes": str(size)}
        place = await self._others.place(node)
        async with connect(place, self._others.tls(), None, order.name, about) as sender:
            await fetching.send_sealed(sender, sealed, manifest)
            await sender.outcome()

    def _object_store(self) -> Remote:
        if self._remote is None:
            raise Unavailable(
                "the node agents have no object store", "set nodeAgent.s3 in the chart's values"
            )
        return self._remote


def _in_memory(part: str) -> bool:
    """Not what belongs into the container's file system: of that there may be much."""
    return part.partition("/")[0] not in ("layer", "layer.later", "volumes")


def _total(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _read_back(sealed: Path, listed: Manifest) -> None:
    """What lies on the disk is what came."""
    found: dict[str, Part] = {}
    for name in listed.parts:
        tagger, size = unkeyed(listed.salt).tagger(listed.salt, name), 0
        with (sealed / name).open("rb") as source:
            while piece := source.read(1 << 20):
                tagger.update(piece)
                size += len(piece)
        found[name] = Part(size, tagger.finalize().hex())
    pair.verify(listed, found)


def _check_kept(order: Keep, manifest: Manifest) -> None:
    """It is the checkpoint that is ordered."""
    facts = manifest.facts
    said = (facts.session, facts.namespace, facts.name, facts.epoch, facts.source_pod)
    meant = (order.session_uid, order.namespace, order.session, order.epoch, order.source_pod)
    if said != meant or facts.target_pod:
        raise Unfit(Fault.FOREIGN, f"this is not the checkpoint that {order.name} orders")


def check_brought(order: Bring, manifest: Manifest, features: tuple[str, ...]) -> None:
    """It is the one that was ordered, and can run here. Raises Unfit. Pure."""
    if manifest.digest != order.digest:
        raise Unfit(
            Fault.FOREIGN,
            f"what is kept as {order.checkpoint} is another checkpoint than the one that was "
            f"ordered: {manifest.digest}",
        )
    pair.check(
        manifest,
        Expected(
            session=order.of_session_uid,
            namespace=order.namespace,
            name=order.of_session,
            epoch=order.epoch,
            image=order.image,
            architecture=platform.machine(),
            features=features,
        ),
    )
    if manifest.facts.target_pod:
        raise Unfit(Fault.FOREIGN, f"{order.checkpoint} was a move, and is not to be kept")
    had = sum(name.startswith("volumes/") and "." not in name for name in manifest.parts)
    if had != len(order.volumes):
        raise Unfit(
            Fault.FOREIGN,
            f"the checkpoint has {had} volumes and the pod {len(order.volumes)}",
            "give the session the volumes that it had",
        )


def _number(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise BadRequest("the other agent does not say how large the checkpoint is")
    return int(text)
