"""A session arrives on this node: the target's half of a move.

    greet ─ look the order up ─ receive ─ verify ─ land (landing.py)

With post-copy it runs when it has landed, and this goes on until its last page has come. The pages
have a connection of their own, which is bound to the first by its salt.

What is received is bound to the order that the API has, never to what the other agent says of it.
"""

from __future__ import annotations

import asyncio
import platform
import shutil
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final

from holdfast_node import containers, layer, log, pair
from holdfast_node.containers import Pod
from holdfast_node.engine import Engine, Restoring
from holdfast_node.landing import Landing, apply, lose
from holdfast_node.lazy import PagesLost
from holdfast_node.order import Move, Order, Phase
from holdfast_node.pages import Carrier, Needed
from holdfast_node.pair import Expected
from holdfast_node.transfer import Receiver
from holdfast_node.tree import Place
from holdfast_wire.errors import Forbidden, HoldfastError, NotFound

Find = Callable[[str, str], Awaitable[Order]]
Report = Callable[..., Awaitable[object]]
_MEET_SECONDS: Final = 5.0  # between the two connections of one move
# For the source to say that all is done, before the target does.
_TOLD_TRIES: Final = 5
_TOLD_SECONDS: Final = 2.0


class Arrivals:
    def __init__(
        self,
        node: str,
        engine: Engine,
        features: tuple[str, ...],
        work: Path,
        find: Find,
        report: Report,
        needed: Needed,
    ) -> None:
        self._node, self._engine, self._features = node, engine, features
        self._work, self._find = work, find
        self._report, self._needed = report, needed
        self._ends: dict[tuple[str, bytes], asyncio.Future[socket.socket]] = {}

    async def pages(self, receiver: Receiver) -> None:
        """The handler of the connection that the memory comes by."""
        order = await self._ordered(receiver)
        try:
            async with asyncio.timeout(_MEET_SECONDS):
                end = await asyncio.shield(self._end(order, receiver))
        except TimeoutError:
            raise NotFound(f"no memory is to come by {order.name}") from None
        finally:
            self._ends.pop((order.uid, receiver.salt), None)
        await receiver.alone(Carrier(receiver.link, end).run)

    def _end(self, order: Move, receiver: Receiver) -> asyncio.Future[socket.socket]:
        made: asyncio.Future[socket.socket] = asyncio.get_running_loop().create_future()
        return self._ends.setdefault((order.uid, receiver.salt), made)

    @contextmanager
    def _stream(self, order: Move, receiver: Receiver) -> Iterator[socket.socket | None]:
        """What the engine hears the source by, once the connection for it has come."""
        if not order.post_copy:
            yield None
            return
        ours, theirs = socket.socketpair()
        self._end(order, receiver).set_result(theirs)
        try:
            yield ours
        finally:
            ours.close()
            if self._ends.pop((order.uid, receiver.salt), None) is not None:
                theirs.close()

    async def _ordered(self, receiver: Receiver) -> Move:
        order = await self._find(receiver.about.get("namespace", ""), receiver.checkpoint)
        if not isinstance(order, Move) or order.target_node != self._node or order.over:
            raise Forbidden(f"nothing is to arrive on {self._node} by {order.name}")
        return order

    async def __call__(self, receiver: Receiver) -> None:
        """The receiver's handler: what it raises is told to the source."""
        order = await self._ordered(receiver)
        pod = containers.find(order.target_pod)
        work = self._work / f"arriving-{order.uid}"
        await asyncio.to_thread(shutil.rmtree, work, True)
        work.mkdir(parents=True, mode=0o700)
        with ExitStack() as until:
            try:
                with self._stream(order, receiver) as pages:
                    await self._arrive(receiver, order, pod, work, pages, until)
            finally:
                await asyncio.to_thread(shutil.rmtree, work, True)
        if order.post_copy:
            await self._done(order)

    async def _arrive(
        self,
        receiver: Receiver,
        order: Move,
        pod: Pod,
        work: Path,
        pages: socket.socket | None,
        until: ExitStack,
    ) -> None:
        parts, images = work / "parts", work / "images"
        images.mkdir(mode=0o700)
        places = layer.places_of(pod.hold, order.volumes)
        landing = Landing(pod, order.session, parts, committed=receiver.committed)
        async with self._engine.restoring(pod.hold, images, pages=pages) as restoring:
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
            until.enter_context(self._needed.now())
            await landing.restore(restoring)
            await self._all_came(order, restoring)
        log.info("arrived", session=order.session, namespace=order.namespace, order=order.name)

    async def _all_came(self, order: Move, restoring: Restoring) -> None:
        try:
            await restoring.arrived()
        except PagesLost as error:
            said = partial(self._report, order, phase=Phase.FAILED, reason="PagesLost")
            await lose(order.target_pod, restoring.cage, partial(said, message=str(error)))
            raise

    async def _done(self, order: Move) -> None:
        """The source says so, if it still can."""
        for _ in range(_TOLD_TRIES):
            await asyncio.sleep(_TOLD_SECONDS)
            with suppress(HoldfastError):
                if (await self._find(order.namespace, order.name)).over:
                    return
        await self._report(order, phase=Phase.COMPLETE)

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
