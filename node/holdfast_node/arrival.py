"""A session arrives on this node: the target's half of a move.

    greet ─ look the order up ─ receive ─ verify ─ files ─ restore, held ─ commit ─ run

Invariant: nothing of the session runs here before its sidecar has said that the Lease is its own.
What is received is bound to the order that the API has, never to what the other agent says of it.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from holdfast_node import containers, layer, log, pair, terminal
from holdfast_node.containers import Pod
from holdfast_node.engine import Engine, Restored
from holdfast_node.order import Order
from holdfast_node.pair import Expected, Manifest
from holdfast_node.peers import Refused, SidecarLink, ask_hold
from holdfast_node.terminal import Taken
from holdfast_node.transfer import Receiver
from holdfast_node.tree import Place
from holdfast_wire.errors import Forbidden, Unavailable

_COMMIT_SECONDS: Final = 30.0
_AGAIN_SECONDS: Final = 0.2

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
        if order.target_node != self._node or order.over:
            raise Forbidden(f"nothing is to arrive on {self._node} by {order.name}")
        pod = containers.find(order.target_pod)
        work = self._work / f"arriving-{order.uid}"
        await asyncio.to_thread(shutil.rmtree, work, True)
        work.mkdir(parents=True, mode=0o700)
        try:
            await self._arrive(receiver, order, pod, work)
        finally:
            await asyncio.to_thread(shutil.rmtree, work, True)

    async def _arrive(self, receiver: Receiver, order: Order, pod: Pod, work: Path) -> None:
        parts, images = work / "parts", work / "images"
        images.mkdir(mode=0o700)
        places = _places(pod, order)
        async with self._engine.restoring(pod.hold, images) as restoring:
            ahead = asyncio.create_task(_put_ahead(receiver, places))
            try:
                manifest = await receiver.receive(parts)
                await ahead
            finally:
                ahead.cancel()
                await asyncio.wait([ahead])
            pair.check(manifest, self._expected(order))
            await asyncio.to_thread(_put_rest, pod, places, manifest, parts)
            for image in (parts / "images").iterdir():
                image.rename(images / image.name)
            taken = Taken.from_json(json.loads((parts / "queued").read_text()))

            async def held(restored: Restored) -> None:
                try:
                    await self._commit(pod, restored, taken)
                finally:
                    os.close(restored.terminal.master)
                await receiver.committed()
                for local, remote in restored.cut:
                    log.info("cut", session=order.session, local=local, remote=remote)

            await restoring.restore(held)
        log.info("arrived", session=order.session, namespace=order.namespace, order=order.name)

    async def _commit(self, pod: Pod, restored: Restored, taken: Taken) -> None:
        """The last moment at which it can still go back."""
        found = restored.terminal
        path = Path(f"/proc/{pod.hold}/root") / found.path.lstrip("/")
        rest = await asyncio.to_thread(terminal.put, path, found.master, taken)
        if rest:
            raise Unavailable(f"{len(rest)} bytes that were typed do not fit into the terminal")
        await asyncio.to_thread(_leave_word, pod, restored.cut)
        adopt = f"adopt {restored.keeper_inside} {restored.command_inside} {found.path}"
        await asyncio.to_thread(ask_hold, pod.hold, adopt, found.master)
        await _commit(pod.uid)

    def _expected(self, order: Order) -> Expected:
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


async def _commit(pod_uid: str) -> None:
    """Until the sidecar of the moment says yes or no: as long as it has not, the Lease may be
    ours, and then the source is dead. It has no reason to keep silent for long."""
    while True:
        try:
            pod = containers.find(pod_uid)
            if pod.sidecar is None:
                raise Unavailable("the sidecar does not run just now")
            await SidecarLink(pod.sidecar).ask("commit", seconds=_COMMIT_SECONDS)
        except Refused as refused:
            if refused.word == "refused":
                raise
            log.info("not committed yet", pod=pod_uid, why=str(refused))
        except Unavailable as error:
            log.warning("not committed yet", pod=pod_uid, why=str(error))
        else:
            return
        await asyncio.sleep(_AGAIN_SECONDS)


def _places(pod: Pod, order: Order) -> dict[str, Place]:
    found = {"layer": layer.root_of(pod.hold)}
    for number, path in enumerate(order.volumes):
        found[f"volumes/{number}"] = layer.volume_of(pod.hold, path)
    return found


async def _put_ahead(receiver: Receiver, places: dict[str, Place]) -> None:
    """Files that were copied while the session still ran. If it does not come after all, its pod
    goes, and they with it."""
    for name, place in places.items():
        path = await receiver.arrived(name)
        await asyncio.to_thread(_apply, path, place)


def _apply(path: Path, place: Place) -> None:
    with path.open("rb") as stream:
        layer.apply(stream, place)


def _put_rest(pod: Pod, places: dict[str, Place], manifest: Manifest, parts: Path) -> None:
    """What changed in the files since, and the sidecar's state."""
    for name, place in places.items():
        _apply(parts / f"{name}.later", place)
    sidecar = containers.find(pod.uid).sidecar  # of the moment: it may have been started anew
    if sidecar is None:
        raise Unavailable("the sidecar does not run just now")
    state = SidecarLink(sidecar).state
    try:
        uid, gid = containers.ids_of(sidecar)
        for part in manifest.parts:
            kind, _, name = part.partition("/")
            if kind == "state":
                _put_state(parts / part, state / name, uid, gid)
    except (FileNotFoundError, ProcessLookupError) as error:  # its /proc went with it
        raise Unavailable("the sidecar ended while its state was put there") from error


def _leave_word(pod: Pod, cut: tuple[tuple[str, str], ...]) -> None:
    """For the sidecar's journal: which connections did not come along."""
    sidecar = containers.find(pod.uid).sidecar
    if sidecar is None:
        return
    path = SidecarLink(sidecar).state / "cut.json"
    path.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags, 0o600), "w") as out:
        json.dump(cut, out)
        os.fchown(out.fileno(), *containers.ids_of(sidecar))


def _put_state(source: Path, target: Path, uid: int, gid: int) -> None:
    """The folder is the sidecar's own, and so may hold what it likes: nothing is followed."""
    target.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    opened = os.open(target, flags, 0o600)
    with os.fdopen(opened, "wb") as out, source.open("rb") as data:
        shutil.copyfileobj(data, out, 1 << 20)
        os.fchown(opened, uid, gid)
