"""A session of this node is stored as it is.

    ready ─ taken as it stands (taking.py), into files ─ RunOn: thaw ─ store
                                                       └ Stop:  store ─ suspend ─ kill
                 └───────────── on any failure: settle ─────────────┘

Invariant: a session that is to stop is given up only when all of it is stored and that was said in
the order's status; until its sidecar has said that the Lease is released, it can go back.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from holdfast_node import containers, log
from holdfast_node.containers import Pod
from holdfast_node.engine import Engine
from holdfast_node.freezer import descendants
from holdfast_node.order import Keep, Phase, Saved, Then
from holdfast_node.pair import SALT, Keys
from holdfast_node.peers import Refused, keeper_of
from holdfast_node.spool import IMAGES, Spool
from holdfast_node.stores import Stores
from holdfast_node.taking import SIDECAR_SECONDS, Gone, Taking, ask
from holdfast_wire.errors import HoldfastError, NotFound, Unavailable

_AGAIN_SECONDS: Final = 0.5

Report = Callable[..., Awaitable[bool]]
"""False: the API has not taken it."""


class Keeping:
    """`keys`: made of the order's data key. `cluster`: a word for whose it is."""

    def __init__(
        self,
        order: Keep,
        engine: Engine,
        features: tuple[str, ...],
        keys: Keys,
        cluster: str,
        stores: Stores,
        report: Report,
    ) -> None:
        self._order, self._engine, self._features = order, engine, features
        self._keys, self._cluster = keys, cluster
        self._stores, self._report = stores, report

    async def run(self, disk: Path, memory: Path, reserve: int) -> Saved:
        """Returns when it is stored. If it raises, the session runs on here, or is not ours.
        `disk`, `memory`: empty folders, the first on a disk that must keep `reserve` bytes free."""
        await self._stores.ready(self._order)
        pod = containers.find(self._order.source_pod)
        salt = secrets.token_bytes(SALT)
        images = memory / IMAGES
        spool = Spool(disk, images, self._keys, salt, self._order.name, reserve)
        taking = Taking(self._order, self._engine, spool.images, spool)
        if self._order.then is Then.STOP:
            return await self._stop(pod, spool, taking)
        return await self._run_on(pod, spool, taking)

    async def _run_on(self, pod: Pod, spool: Spool, taking: Taking) -> Saved:
        try:
            seq = await self._take(pod, spool, taking)
        except BaseException:
            await taking.settle()
            raise
        ours = await taking.settle()
        seconds = taking.seconds
        if not ours:
            raise Unavailable("the session has gone on elsewhere meanwhile")
        await self._report(phase=Phase.TRANSFERRING)
        return await self._store(spool, taking, seq, seconds)

    async def _stop(self, pod: Pod, spool: Spool, taking: Taking) -> Saved:
        saved: Saved | None = None
        try:
            seq = await self._take(pod, spool, taking)
            async with taking.in_time():
                found = await self._store(spool, taking, seq, 0.0)
                if not await self._report(phase=Phase.TRANSFERRING, left=found):
                    raise Unavailable("the API does not take word of where it is stored")
            saved = found
            await suspend(self._order)
        except BaseException as error:
            if not await taking.settle() and saved is not None:
                raise Gone(f"it is stored, and does not run here any more ({error})") from error
            raise
        if taking.cage is not None:
            await asyncio.to_thread(taking.cage.kill)
        return saved

    async def _take(self, pod: Pod, spool: Spool, taking: Taking) -> int:
        """When it returns the session is frozen, and CRIU has left its container."""
        async with self._engine.dumping(pod.hold, spool.images) as dumping:
            await taking.ahead(pod)
            await asyncio.to_thread(spool.admit, resident(pod))
            await self._report(phase=Phase.DUMPING)
            await taking.stop(pod, keep=True)
            async with taking.in_time():
                return await taking.take(pod, dumping, keep=True)

    async def _store(self, spool: Spool, taking: Taking, seq: int, seconds: float) -> Saved:
        facts = replace(taking.facts(self._features, ""), cluster=self._cluster)
        manifest = spool.manifest(facts)
        location = await self._stores.put(self._order, spool.folder, manifest, self._keys)
        frozen = seconds or taking.seconds
        return Saved(manifest.size, manifest.digest, frozen, location, seq, taking.at)


async def suspend(order: Keep) -> None:
    """Until the sidecar of the moment has said yes or no. An answer that was lost is asked for
    again; a pod that is gone by then was deleted because it had been yes."""
    asked = False
    while True:
        try:
            await ask(order.source_pod, "suspend", seconds=SIDECAR_SECONDS, checkpoint=order.name)
        except Refused as refused:
            if refused.word != "unavailable":
                raise
            why = str(refused)
        except NotFound:
            if not asked:
                raise
            return
        except HoldfastError as error:
            why = str(error)
        else:
            return
        asked = True
        log.warning("not suspended yet", pod=order.source_pod, why=why)
        await asyncio.sleep(_AGAIN_SECONDS)


async def resume(order: Keep) -> None:
    """An agent before this one began it, and what it left frozen was settled since. Raises unless
    the session was stored and stopped: then its pod may well be gone."""
    if order.then is Then.STOP and order.location:
        try:
            await suspend(order)
        except NotFound:
            return
        except Refused as refused:
            if refused.word == "superseded":
                return
            raise Unavailable(
                f"the node's agent was started anew in the middle of it ({refused})"
            ) from refused
        return
    raise Unavailable("the node's agent was started anew in the middle of it")


def resident(pod: Pod) -> int:
    """Bytes of memory that the session's processes do not have from files; what they share counts
    for each."""
    found = 0
    for pid in descendants(keeper_of(pod.hold)):
        try:
            status = containers.status(pid)
        except OSError:  # it ended
            continue
        found += sum(int(status.get(key, "0").split()[0]) for key in ("RssAnon", "RssShmem"))
    return found << 10
