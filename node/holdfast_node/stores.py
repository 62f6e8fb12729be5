"""Where checkpoints are kept, as agents ask each other: this node's disk, another node's, or an
object store.

    put    the source: the first of the ordered keepers that takes it
    keep   a keeper: takes what an order in the API says is to be kept here
    get    the target of a bring: from wherever the order says it lies
    give   a keeper: gives what an order in the API says is wanted from here

All agents show the same certificate, so who asks proves only to be an agent; what it may have is
what the API has an order for.
"""

from __future__ import annotations

import asyncio
import platform
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from holdfast_wire.errors import (
    AlreadyExists,
    BadRequest,
    Forbidden,
    HoldfastError,
    Internal,
    NotFound,
    Unavailable,
)

from . import fetching, log, pair
from .order import Bring, Keep, Order, Where
from .pair import Expected, Fault, Keys, Manifest, Unfit
from .receiving import Receiver
from .spool import spooled
from .store import Peer, Store
from .threads import to_its_end
from .transfer import connect

PEER: Final = "peer://"

Find = Callable[[str, str], Awaitable[Order]]
Address = Callable[[str], Awaitable[tuple[str, int]]]


class Remote(Store, Protocol):
    """A store that no node has."""

    def location(self, session: str, checkpoint: str) -> str: ...

    def reach(self) -> None:
        """Raises Unavailable if it does not answer soon."""


@dataclass(frozen=True)
class Others:
    """How the agents of other nodes are reached, and how they are known."""

    address: Address
    tls: Callable[[], ssl.SSLContext]
    keys: Keys


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

    async def put(self, order: Keep, parts: Path, manifest: Manifest) -> str:
        """Where it lies, whole. Raises Unavailable when nobody took it."""
        signed = manifest.signed(self._others.keys)
        if order.store is Where.S3:
            store = self._object_store()
            await to_its_end(lambda: store.put(parts, signed))
            return store.location(manifest.facts.session, manifest.facts.checkpoint)
        reasons: list[str] = []
        for node in order.keepers:
            try:
                if node == self._node:
                    await self._write(parts, signed, manifest)
                else:
                    await self._send(node, order, parts, manifest)
            except HoldfastError as error:
                log.warning("not kept there", checkpoint=order.name, node=node, why=str(error))
                reasons.append(f"{node}: {error}")
                continue
            return PEER + node
        raise Unavailable("no node could keep it: " + "; ".join(reasons))

    async def get(self, order: Bring, into: Path) -> Manifest:
        """Laid out in `into`, and found to be what its manifest says."""
        if order.location == PEER + self._node:
            return await to_its_end(
                lambda: self._disk.get(order.of_session_uid, order.checkpoint, into)
            )
        if order.location.startswith(PEER):
            about = {"namespace": order.namespace, "for": "fetch", "order": order.name}
            address = await self._others.address(order.location.removeprefix(PEER))
            async with fetching.fetching(
                address, self._others.tls(), self._others.keys, order.checkpoint, about
            ) as receiver:
                return await fetching.fetch(receiver, into)
        store = self._object_store()
        if order.location != store.location(order.of_session_uid, order.checkpoint):
            raise NotFound(
                f"the checkpoint lies at {order.location}, which this agent does not know",
                "give the agents the object store that they had when it was stored",
            )
        return await to_its_end(lambda: store.get(order.of_session_uid, order.checkpoint, into))

    # -- a keeper ---------------------------------------------------------------------------------

    async def keep(self, receiver: Receiver) -> None:
        """A receiver's handler: what it raises is told to the source, which asks the next."""
        order = await self._find(receiver.about.get("namespace", ""), receiver.checkpoint)
        mine = isinstance(order, Keep) and order.store is Where.PEER and not order.over
        if not isinstance(order, Keep) or not mine or self._node not in order.keepers:
            raise Forbidden(f"nothing is to be kept on {self._node} by {order.name}")
        size = _number(receiver.about.get("bytes", ""))
        await asyncio.to_thread(self._disk.admit, size, 1, order.namespace)
        async with spooled(self._spool, f"keeping-{order.uid}") as folder:
            await receiver.ready()
            manifest = await receiver.receive(folder / "parts", limit=size)
            _check_kept(order, manifest)
            await self._write(folder / "parts", receiver.signed, manifest)
        await receiver.committed()
        log.info("kept", checkpoint=order.name, session=order.session, bytes=manifest.size)

    async def give(self, receiver: Receiver) -> None:
        about = receiver.about
        order = await self._find(about.get("namespace", ""), about.get("order", ""))
        wanted = isinstance(order, Bring) and order.checkpoint == receiver.checkpoint
        here = isinstance(order, Bring) and order.location == PEER + self._node
        if not isinstance(order, Bring) or order.over or not wanted or not here:
            raise Forbidden(f"nothing is to be brought from {self._node} by {order.name}")
        manifest = await asyncio.to_thread(
            self._disk.manifest, order.of_session_uid, order.checkpoint
        )
        await fetching.give(
            receiver, manifest, lambda part, take: self._disk.pieces(manifest, part, take)
        )
        log.info("given", checkpoint=order.checkpoint, order=order.name)

    # -- the steps --------------------------------------------------------------------------------

    async def _write(self, parts: Path, signed: bytes, manifest: Manifest) -> None:
        """On this node. Asked again, because the answer was lost: it is here."""
        facts = manifest.facts
        async with self.writing:
            try:
                await to_its_end(lambda: self._disk.put(parts, signed))
            except AlreadyExists:
                kept = await asyncio.to_thread(self._disk.manifest, facts.session, facts.checkpoint)
                if kept.digest != manifest.digest:
                    raise

    async def _send(self, node: str, order: Keep, parts: Path, manifest: Manifest) -> None:
        about = {"namespace": order.namespace, "for": "keep", "bytes": str(manifest.size)}
        address = await self._others.address(node)
        async with connect(
            address, self._others.tls(), self._others.keys, order.name, about, manifest.salt
        ) as sender:
            for part in manifest.parts:
                await sender.send_file(part, parts / part)
            sent = await sender.finish(manifest.facts)
            if sent.digest != manifest.digest:
                raise Internal("the checkpoint changed in the spool")
            await sender.outcome()

    def _object_store(self) -> Remote:
        if self._remote is None:
            raise Unavailable(
                "the node agents have no object store", "set nodeAgent.s3 in the chart's values"
            )
        return self._remote


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
