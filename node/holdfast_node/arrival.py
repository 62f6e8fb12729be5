"""A session arrives on this node: the target's half of a move.

    greet ─ look the order up ─ receive ─ verify ─ land (landing.py)

What is received is bound to the order that the API has, never to what the other agent says of it.
"""

from __future__ import annotations

import asyncio
import platform
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

from holdfast_node import containers, layer, log, pair
from holdfast_node.containers import Pod
from holdfast_node.engine import Engine
from holdfast_node.landing import Landing, apply
from holdfast_node.order import Move, Order
from holdfast_node.pair import Expected
from holdfast_node.transfer import Receiver
from holdfast_node.tree import Place
from holdfast_wire.errors import Forbidden

Find = Callable[[str, str], Awaitable[Order]]


class Arrivals:
    def __init__(
        self, node: str, engine: Engine, features: tuple[str, ...], work: Path, find: Find
    ) -> None:
        self._node, self._engine, self._features = node, engine, features
        self._work, self._find = work, find

    async def __call__(self, receiver: Receiver) -> None:
        """The receiver's handler: what it raises is told to the source."""
        order = await self._find(receiver.about.get("namespace", ""), receiver.checkpoint)
        if not isinstance(order, Move) or order.target_node != self._node or order.over:
            raise Forbidden(f"nothing is to arrive on {self._node} by {order.name}")
        pod = containers.find(order.target_pod)
        work = self._work / f"arriving-{order.uid}"
        await asyncio.to_thread(shutil.rmtree, work, True)
        work.mkdir(parents=True, mode=0o700)
        try:
            await self._arrive(receiver, order, pod, work)
        finally:
            await asyncio.to_thread(shutil.rmtree, work, True)

    async def _arrive(self, receiver: Receiver, order: Move, pod: Pod, work: Path) -> None:
        parts, images = work / "parts", work / "images"
        images.mkdir(mode=0o700)
        places = layer.places_of(pod.hold, order.volumes)
        landing = Landing(pod, order.session, parts, committed=receiver.committed)
        async with self._engine.restoring(pod.hold, images) as restoring:
            ahead = asyncio.create_task(_put_ahead(receiver, places))
            try:
                manifest = await receiver.receive(parts)
                await ahead
            finally:
                ahead.cancel()
                await asyncio.wait([ahead])
            pair.check(manifest, self._expected(order))
            await asyncio.to_thread(landing.put_files, places, ".later")
            await asyncio.to_thread(landing.put_state, manifest.parts)
            for image in (parts / "images").iterdir():
                image.rename(images / image.name)
            await landing.restore(restoring)
        log.info("arrived", session=order.session, namespace=order.namespace, order=order.name)

    def _expected(self, order: Move) -> Expected:
        return Expected(
            session=order.session_uid,
            namespace=order.namespace,
            name=order.session,
            epoch=order.epoch,
            image=order.image,
            architecture=platform.machine(),
            features=self._features,
            target_pod=order.target_pod,
        )


async def _put_ahead(receiver: Receiver, places: dict[str, Place]) -> None:
    """Files that were copied while the session still ran. If it does not come after all, its pod
    goes, and they with it."""
    for name, place in places.items():
        path = await receiver.arrived(name)
        await asyncio.to_thread(apply, path, place)
