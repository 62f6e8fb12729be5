"""Sessions that an agent before this one left frozen: settled before anything else is done to them.

Invariant: nothing is thawed or killed here before its Pod was read and checked (pods.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from holdfast_kube.client import CHECKPOINTS, Kube
from holdfast_node import containers, freezer, log, memory_due
from holdfast_node.landing import lose
from holdfast_node.order import Bring, read
from holdfast_node.pods import Foreign, register
from holdfast_node.taking import settle
from holdfast_wire.errors import BadRequest, NotFound, Retry

PAUSE_SECONDS: Final = 2.0


class Abandoned:
    def __init__(self, node: str, kube: Kube) -> None:
        self._node, self._kube = node, kube
        self.tasks: dict[str, asyncio.Task[None]] = {}  # by the pod's UID

    def begin(self, cgroups: Path) -> None:
        for cage in freezer.frozen_ones(cgroups):
            if (uid := cage.pod_uid) is not None:
                self.tasks[uid] = asyncio.create_task(self._settle(uid, cage))

    async def _settle(self, pod: str, cage: freezer.Freezer) -> None:
        lost = await asyncio.to_thread(memory_due.lost, cage)
        await self._learn(pod, cage)
        if lost:
            await lose(pod, cage)
            log.warning("killed what lacks memory for good", pod=pod)
            return
        ours = await settle(pod, cage)
        log.warning("settled what was frozen", pod=pod, runs_on=ours)

    async def _learn(self, pod: str, cage: freezer.Freezer) -> None:
        """Which Pod it is that was found frozen: by the order that it was frozen for, or, if that
        is gone, as the fence's guard finds it. Returns also when it is not there any more. Until
        its Pod is known it stays frozen."""
        while cage.exists() and await asyncio.to_thread(_populated, cage):
            if register.knows(pod):
                return
            try:
                for item in (await self._kube.list_all(CHECKPOINTS, None))[0]:
                    if await self._fits(item, pod):
                        return
                log.warning("no order fits what is frozen here", pod=pod)
            except Retry as error:
                log.warning("the orders cannot be read", why=str(error))
            await asyncio.sleep(PAUSE_SECONDS)

    async def _fits(self, item: Mapping[str, Any], pod: str) -> bool:
        try:
            order = read(item)
            source = not isinstance(order, Bring) and order.source_pod == pod
            if not source and getattr(order, "target_pod", "") != pod:
                return False
            await register.bind(order, self._node, target=not source)
        except (BadRequest, Foreign, NotFound):
            return False
        return True


def _populated(cage: freezer.Freezer) -> bool:
    """Something is in it, and the container's own first process was not killed."""
    try:
        firsts = (cage.parent / "cgroup.procs").read_text().split()
        return bool(cage.members()) and not all(containers.ending(int(pid)) for pid in firsts)
    except OSError:  # its container is gone
        return False
