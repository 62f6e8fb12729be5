"""A stored session goes on in a pod of this node that waits for it.

    get ─ is it the one that is meant ─ files ─ land (landing.py)

Invariant: what is restored is the very checkpoint that the order names by its digest, so an older
one cannot be put in its place by whoever keeps it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from holdfast_node import containers, freezer, layer, log
from holdfast_node.containers import Pod
from holdfast_node.engine import Engine
from holdfast_node.landing import Landing, commit
from holdfast_node.order import Bring
from holdfast_node.peers import Refused, keeper_of
from holdfast_node.spool import IMAGES
from holdfast_node.stores import Found, check_brought
from holdfast_node.taking import ask
from holdfast_wire.errors import HoldfastError, NotFound, Unavailable

Get = Callable[[], Awaitable[Found]]


async def bring(order: Bring, engine: Engine, features: tuple[str, ...], get: Get) -> None:
    """Returns when the session runs. Whatever it raises, nothing of it does."""
    pod = containers.find(order.target_pod)
    if _taken(pod, engine):  # begun by an agent whose word of it was lost
        await resume(order, engine)
        return
    began = time.monotonic()
    found = await get()
    manifest, got = found.manifest, time.monotonic()
    check_brought(order, manifest, features)
    places = layer.places_of(pod.hold, order.volumes)
    said = {"stored": stored(order)}
    landing = Landing(pod, order.session, found.parts, found.reader, said)
    async with engine.restoring(pod.hold, found.parts / IMAGES) as restoring:
        for suffix in ("", ".later"):
            await asyncio.to_thread(landing.put_files, places, suffix)
        await asyncio.to_thread(landing.put_state, manifest.parts)
        await landing.restore(restoring)
    log.info(
        "brought",
        session=order.session,
        namespace=order.namespace,
        order=order.name,
        bytes=manifest.size,
        got_seconds=round(got - began, 3),
        landed_seconds=round(time.monotonic() - got, 3),
    )


def stored(order: Bring) -> dict[str, Any]:
    """What the sidecar is told of it."""
    return {
        "epoch": order.epoch,
        "taken": order.taken,
        "why": order.why,
        "from": order.of_session,
        "checkpoint": order.checkpoint,
    }


async def resume(order: Bring, engine: Engine) -> None:
    """An agent before this one began it. Its restored tree may stand here, held, and the sidecar
    may have been asked: then the Lease may be ours, and it is asked again. Raises if it is not."""
    pod = containers.find(order.target_pod)
    cage = engine.freezer(pod.hold)
    if not _held(cage):
        if (await _status(order)).get("serving") is not True:
            raise Unavailable("the node's agent was started anew in the middle of it")
        return
    try:
        await commit(order.target_pod, {"stored": stored(order)})
    except (Refused, NotFound) as error:
        await asyncio.to_thread(cage.kill)
        raise Unavailable(
            f"the node's agent was started anew in the middle of it ({error})"
        ) from error
    await asyncio.to_thread(cage.thaw)


def _taken(pod: Pod, engine: Engine) -> bool:
    """Something of a session is in the pod: CRIU must not be let at it again."""
    try:
        keeper_of(pod.hold)
    except NotFound:
        return _held(engine.freezer(pod.hold))
    return True


def _held(cage: freezer.Freezer) -> bool:
    return cage.exists() and cage.wanted() and bool(cage.members())


async def _status(order: Bring) -> dict[str, Any]:
    try:
        return await ask(order.target_pod, "status")
    except HoldfastError as error:
        raise Unavailable(
            f"the node's agent was started anew in the middle of it ({error})"
        ) from error
