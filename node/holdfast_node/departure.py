"""A session leaves this node: the source's half of a move.

dial ─ taken as it stands (taking.py), sent on the way ─ outcome ─ kill
             └───────────── on any failure: settle ─────────────┘
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from holdfast_node import containers
from holdfast_node.containers import Pod
from holdfast_node.engine import Dumping, Engine
from holdfast_node.order import Left, Move, Phase
from holdfast_node.pair import Manifest
from holdfast_node.taking import Gone, Taking
from holdfast_node.transfer import Sender

Report = Callable[..., Awaitable[object]]


class Departure:
    def __init__(
        self, order: Move, engine: Engine, features: tuple[str, ...], work: Path, report: Report
    ) -> None:
        self._order, self._engine, self._features = order, engine, features
        self._images = work / "images"
        self._report = report

    async def run(self, sender: Sender) -> Left:
        """Returns when the session has gone on elsewhere. Whatever it raises, it runs on here, if
        it ever stopped; `Gone` if it failed and has gone on elsewhere all the same."""
        pod = containers.find(self._order.source_pod)
        self._images.mkdir(parents=True, mode=0o700)
        taking = Taking(self._order, self._engine, self._images, sender)
        try:
            async with self._engine.dumping(pod.hold, self._images) as dumping:
                manifest = await self._leave(sender, taking, pod, dumping)
        except BaseException as error:
            # CRIU has left the container: only now may the tree be thawed.
            if not await taking.settle():
                raise Gone(f"the target had taken it already ({error})") from error
            raise
        seconds = taking.seconds
        if taking.cage is not None:
            await asyncio.to_thread(taking.cage.kill)
        return Left(manifest.size, manifest.digest, seconds)

    async def _leave(self, sender: Sender, taking: Taking, pod: Pod, dumping: Dumping) -> Manifest:
        await taking.ahead(pod)
        await self._report(phase=Phase.DUMPING)
        await taking.stop(pod, to=self._order.target_pod)
        async with taking.in_time():
            await taking.take(pod, dumping)
            manifest = await sender.finish(taking.facts(self._features, self._order.target_pod))
            await sender.outcome()
        return manifest
