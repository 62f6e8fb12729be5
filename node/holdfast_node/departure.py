"""A session leaves this node: the source's half of a move.

    dial twice ─ ahead ─ taken as it stands (taking.py), but for the memory ─ serve ─ outcome ─ kill
                      └─────────────────────── on any failure: settle ──────────────────────┘

Its memory stays here, frozen, and goes from there straight into the processes of the target, which
asks for it; what was sent ahead, while the session ran, and has not changed is only named. With
post-copy the session runs there meanwhile:

    dial twice ─ taken, but for the memory ─ serve ─────────────── all came ─ kill
                                               └ sent ─ outcome ─┘

Where one of the two nodes cannot do so, CRIU writes the memory into files, like all the rest, and
they are sent while it writes them.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from holdfast_node import containers, log
from holdfast_node.containers import Pod
from holdfast_node.engine import Dumping, Engine
from holdfast_node.freezer import descendants
from holdfast_node.lazy import PagesLost
from holdfast_node.order import Left, Move, Phase
from holdfast_node.pages import Asked
from holdfast_node.progress import memory_of
from holdfast_node.taking import Gone, Taking
from holdfast_node.transfer import Sender

Report = Callable[..., Awaitable[object]]
# With less memory a session stands still for no longer than every move takes.
LEAST: Final = 64 << 20
AHEAD_SECONDS: Final = 120.0


class Departure:
    def __init__(
        self,
        order: Move,
        engine: Engine,
        features: tuple[str, ...],
        work: Path,
        report: Report,
        needed: Callable[[], object],
    ) -> None:
        """`needed` is called when the session would be lost if the agent went before the end."""
        self._order, self._engine, self._features = order, engine, features
        self._images = work / "images"
        self._report, self._needed = report, needed

    async def run(self, sender: Sender, pages: Asked | None = None) -> Left:
        """Returns when the session has gone on elsewhere, and nothing of it is needed here any
        more. Whatever it raises, it runs on here, if it ever stopped; `Gone` if it failed and has
        gone on elsewhere all the same, and PagesLost if some of its memory did not follow it.
        `pages`: to the target, for its memory."""
        pod = containers.find(self._order.source_pod)
        self._images.mkdir(parents=True, mode=0o700)
        taking = Taking(self._order, self._engine, self._images, sender)
        left = await self._go(sender, taking, pod, pages)
        if spared := sender.packer.saved + (0 if pages is None else pages.packer.saved):
            log.info("packed", order=self._order.name, bytes_spared=spared)
        if pages is not None and pages.known:
            log.info("known", order=self._order.name, bytes_spared=pages.known)
        if taking.cage is not None:
            await asyncio.to_thread(taking.cage.kill)
        return left

    async def _go(self, sender: Sender, taking: Taking, pod: Pod, pages: Asked | None) -> Left:
        try:
            async with self._engine.dumping(
                pod.hold, self._images, lazy=pages is not None
            ) as dumping:
                await self._take(sender, taking, pod, dumping, pages)
                if pages is None:
                    return await self._arrival(sender, taking)
            if self._order.post_copy:
                self._needed()
            return await self._served(sender, taking, pod, pages)
        except BaseException as error:
            # CRIU has left the container: only now may the tree be thawed.
            if await taking.settle():
                raise
            if self._order.post_copy:
                raise PagesLost(f"not all of its memory has left this node ({error})") from error
            raise Gone(f"the target had taken it already ({error})") from error

    async def _take(
        self, sender: Sender, taking: Taking, pod: Pod, dumping: Dumping, pages: Asked | None
    ) -> None:
        await taking.ahead(pod)
        await sender.ready()
        if pages is not None:
            pages.packer.allowed = sender.packer.allowed  # it goes to the same agent
            await self._ahead(sender, pod, pages)
        sender.progress.early = 0  # all of it is looked at once more
        sender.progress.expect(descendants(pod.hold))
        await self._report(phase=Phase.DUMPING, expected=sender.progress.expected)
        how = {"follows": True} if self._order.post_copy else {}
        await taking.stop(pod, to=self._order.target_pod, **how)
        async with taking.in_time():
            await taking.take(pod, dumping)

    async def _ahead(self, sender: Sender, pod: Pod, pages: Asked) -> None:
        """What of its memory is worth it goes while it runs. Not with post-copy, whose freeze does
        not wait for it, nor from a pod that goes: there is no time to lose."""
        size = sum(map(memory_of, descendants(pod.hold)))
        hurried = self._order.post_copy or self._order.until is not None
        if hurried or size < LEAST or not sender.room:
            return
        await self._report(phase=Phase.PENDING, expected=sender.progress.sent + size)
        began = time.monotonic()
        work = partial(self._engine.send_ahead, pod.hold, pages, sender.room, AHEAD_SECONDS)
        sent = await pages.run(work)
        took = round(time.monotonic() - began, 3)
        log.info("ahead", order=self._order.name, bytes=sent, seconds=took)

    async def _arrival(self, sender: Sender, taking: Taking) -> Left:
        """It runs there."""
        async with taking.in_time():
            manifest = await sender.finish(taking.facts(self._features, self._order.target_pod))
            await sender.outcome()
        return Left(manifest.size, manifest.digest, taking.seconds)

    async def _served(self, sender: Sender, taking: Taking, pod: Pod, pages: Asked) -> Left:
        """And every page of it is there. Single ones are needed before all else is done."""
        async with self._serving(pod, pages) as serving:
            left = await self._arrival(sender, taking)
            if self._order.post_copy:
                await self._report(phase=Phase.TRANSFERRING)
                await serving
                return left
            return replace(left, size=left.size + await serving)

    @contextlib.asynccontextmanager
    async def _serving(self, pod: Pod, pages: Asked) -> AsyncIterator[asyncio.Task[int]]:
        work = partial(self._engine.serve, pod.hold, pages)
        serving = asyncio.create_task(pages.run(work))
        try:
            yield serving
        finally:
            serving.cancel()
            await asyncio.wait([serving])
