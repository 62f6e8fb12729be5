"""A session arrives on this node: the target's half of a move.

    greet ─ look the order up ─ receive ─ verify ─ land (landing.py)

Its memory has a connection of its own, which is bound to the first by its salt, and comes when all
else is there: page by page, before it runs. With post-copy it runs when it has landed, and this
goes on until its last page has come.

What is received is bound to the order that the API has, never to what the other agent says of it;
and it comes from the node that the order names as its source.
"""

from __future__ import annotations

import asyncio
import platform
import shutil
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from holdfast_node import ahead, containers, layer, log, pair
from holdfast_node.containers import Pod
from holdfast_node.engine import Engine, Restoring
from holdfast_node.frames import Frames
from holdfast_node.landing import Landing, apply, lose
from holdfast_node.lazy import PagesLost
from holdfast_node.order import Memory, Move, Order, Phase
from holdfast_node.pages import PART, Carrier, Needed
from holdfast_node.pair import Expected, Keys
from holdfast_node.pods import register
from holdfast_node.threads import to_its_end
from holdfast_node.transfer import Receiver
from holdfast_node.tree import Place
from holdfast_wire.errors import BadRequest, Forbidden, HoldfastError, NotFound

Find = Callable[[str, str], Awaitable[Order]]
Report = Callable[..., Awaitable[object]]
_MEET_SECONDS: Final = 5.0  # between the two connections of one move
_LAST_SECONDS: Final = 2.0  # for what is on its way when our end is closed
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
        keys: Callable[[Order], Keys],
    ) -> None:
        """`keys`: made of the data key of an order, if it is sealed to this node."""
        self._keys = keys
        self._node, self._engine, self._features = node, engine, features
        self._work, self._find = work, find
        self._report, self._needed = report, needed
        self._meetings: dict[tuple[str, bytes], _Meeting] = {}

    async def pages(self, receiver: Receiver) -> None:
        """The handler of the connection that the memory comes by: the other has the use of it."""
        order = await self._ordered(receiver)
        meeting = self._meeting(order, receiver)
        meeting.come.set_result(receiver)
        try:
            async with asyncio.timeout(_MEET_SECONDS):
                await meeting.claimed.wait()
        except TimeoutError:
            raise NotFound(f"no memory is to come by {order.name}") from None
        finally:
            self._meetings.pop((order.uid, receiver.salt), None)
        await receiver.lend(meeting.over)

    def _meeting(self, order: Move, receiver: Receiver) -> _Meeting:
        return self._meetings.setdefault((order.uid, receiver.salt), _Meeting())

    @asynccontextmanager
    async def _stream(self, order: Move, receiver: Receiver) -> AsyncIterator[_Streams]:
        """What the engine hears the source by."""
        memory = _memory(order, receiver)
        if memory is Memory.IMAGES:
            yield _Streams()
            return
        async with self._meeting(order, receiver).met(order) as other:
            if memory is Memory.BEFORE:
                tagger, room = receiver.keys.tagger(receiver.salt, PART), ahead.room()
                frames = Frames(other.link, tagger, ahead.Kept(room))
                yield _Streams(before=frames, room=room)
                return
            ours, theirs = socket.socketpair()
            carrying = asyncio.create_task(
                to_its_end(Carrier(Frames(other.link), theirs).run, other.link.interrupt)
            )
            try:
                yield _Streams(after=ours)
            finally:
                ours.close()
                await asyncio.wait([carrying], timeout=_LAST_SECONDS)
                carrying.cancel()
                await asyncio.wait([carrying])

    async def _ordered(self, receiver: Receiver) -> Move:
        order = await self._find(receiver.about.get("namespace", ""), receiver.checkpoint)
        if not isinstance(order, Move) or order.target_node != self._node or order.over:
            raise Forbidden(f"nothing is to arrive on {self._node} by {order.name}")
        order.only_for(receiver.peer, order.source_node)
        receiver.keys = self._keys(order)
        return order

    async def __call__(self, receiver: Receiver) -> None:
        """The receiver's handler: what it raises is told to the source."""
        order = await register.bind(await self._ordered(receiver), self._node, target=True)
        pod = containers.find(order.target_pod)
        work = self._work / f"arriving-{order.uid}"
        await asyncio.to_thread(shutil.rmtree, work, True)
        work.mkdir(parents=True, mode=0o700)
        with ExitStack() as until:
            try:
                async with self._stream(order, receiver) as streams:
                    await self._arrive(receiver, order, pod, work, streams, until)
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
        streams: _Streams,
        until: ExitStack,
    ) -> None:
        parts, images = work / "parts", work / "images"
        images.mkdir(mode=0o700)
        places = layer.places_of(pod.hold, order.volumes)
        async with self._engine.restoring(
            pod.hold, images, before=streams.before, after=streams.after
        ) as restoring:
            landing = Landing(
                pod, order.session, parts, whole=restoring.whole, committed=receiver.committed
            )
            await receiver.ready(streams.room)
            putting = asyncio.create_task(_put_ahead(receiver, places))
            try:
                manifest = await receiver.receive(parts)
                await putting
            finally:
                putting.cancel()
                await asyncio.wait([putting])
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


@dataclass(frozen=True)
class _Streams:
    """As the engine takes them; none, if the memory is in the images."""

    before: Frames | None = None
    room: int = 0  # for what comes before the session stands still
    after: socket.socket | None = None


class _Meeting:
    """Of the two connections of one move. That of the memory is the other's until that is done."""

    def __init__(self) -> None:
        self.come: asyncio.Future[Receiver] = asyncio.get_running_loop().create_future()
        self.claimed, self._done = asyncio.Event(), asyncio.Event()

    @asynccontextmanager
    async def met(self, order: Move) -> AsyncIterator[Receiver]:
        self.claimed.set()
        try:
            yield await self._other(order)
        finally:
            self._done.set()

    async def _other(self, order: Move) -> Receiver:
        try:
            async with asyncio.timeout(_MEET_SECONDS):
                return await self.come
        except TimeoutError:
            raise NotFound(f"the connection for the memory of {order.name} did not come") from None

    async def over(self) -> None:
        await self._done.wait()


def _memory(order: Move, receiver: Receiver) -> Memory:
    """As the source has it, which looked whether this node can; after it runs only if ordered."""
    try:
        said = Memory(receiver.about.get("memory", ""))
    except ValueError:
        raise BadRequest("the other agent does not say how the memory comes") from None
    if (said is Memory.AFTER) != order.post_copy:
        raise Forbidden(f"memory is not to come {said} the session by {order.name}")
    return said


async def _put_ahead(receiver: Receiver, places: dict[str, Place]) -> None:
    """Files that were copied while the session still ran. If it does not come after all, its pod
    goes, and they with it."""
    for name, place in places.items():
        path = await receiver.arrived(name)
        await asyncio.to_thread(apply, path, place)
