"""A session leaves this node: the source's half of a move.

    dial ─ capture ahead ─ park ─ freeze ─ seal ─ take input ─ dump ─ send ─ outcome ─ kill
                            └──────────── on any failure: settle ───────────┘

Connections to the outside are dumped as they are and cut at the target: a move that is taken back
has lost none.

Invariant: once `seal` was asked for, the tree is thawed only after the sidecar has said that the
Lease is ours and carries no offer, and killed only after it has said, or the target has, that
another has it. An agent that dies in between leaves a frozen tree; the next one takes it back, or
finishes it (`settle`).
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

from holdfast_node import containers, layer, log, terminal
from holdfast_node.containers import Pod
from holdfast_node.engine import Dumping, Engine
from holdfast_node.freezer import Freezer, descendants
from holdfast_node.order import Left, Order, Phase
from holdfast_node.pair import Facts, Manifest
from holdfast_node.peers import Refused, SidecarLink
from holdfast_node.terminal import Taken
from holdfast_node.transfer import Sender
from holdfast_node.tree import Look, Place
from holdfast_wire.errors import HoldfastError, NotFound, Unavailable

QUEUED: Final = "queued.json"  # in the sidecar's folder: typed, and taken out of the terminal
_AGAIN_SECONDS: Final = 0.5
_SIDECAR_SECONDS: Final = 30.0  # to seal: an emulator far behind has to come to the end first

Report = Callable[..., Awaitable[None]]


class Departure:
    def __init__(
        self, order: Order, engine: Engine, features: tuple[str, ...], work: Path, report: Report
    ) -> None:
        self._order, self._engine, self._features = order, engine, features
        self._images = work / "images"
        self._report = report
        self._parked = False
        self._cage: Freezer | None = None
        self._since = 0.0

    async def run(self, sender: Sender) -> Left:
        """Returns when the session has gone on elsewhere. Whatever it raises, it runs on here, if
        it ever stopped; `Gone` if it failed and has gone on elsewhere all the same."""
        order = self._order
        pod = containers.find(order.source_pod)
        self._images.mkdir(parents=True, mode=0o700)
        try:
            async with self._engine.dumping(pod.hold, self._images) as dumping:
                manifest = await self._leave(sender, pod, dumping)
        except BaseException as error:
            # CRIU has left the container: only now may the tree be thawed.
            if self._parked and not await asyncio.shield(settle(order.source_pod, self._cage)):
                raise Gone(f"the target had taken it already ({error})") from error
            raise
        seconds = time.monotonic() - self._since
        if self._cage is not None:
            await asyncio.to_thread(self._cage.kill)
        return Left(manifest.size, manifest.digest, seconds)

    async def _leave(self, sender: Sender, pod: Pod, dumping: Dumping) -> Manifest:
        order = self._order
        places = _places(pod, order)
        pids = descendants(pod.hold)
        looks = [await self._ahead(sender, *place, pids) for place in places.items()]
        await self._report(phase=Phase.DUMPING)
        await self._stop(pod)
        try:
            async with asyncio.timeout(order.deadline):
                sealed = await _ask(order.source_pod, "seal", seconds=_SIDECAR_SECONDS)
                pids = descendants(dumping.keeper)
                taken = await asyncio.to_thread(self._empty_terminal, dumping.keeper, pod)
                await self._send_memory(sender, dumping.dump)
                for (name, place), look in zip(places.items(), looks, strict=True):
                    await self._later(sender, name, place, look, pids)
                await self._send_state(sender, sealed, taken)
                manifest = await sender.finish(self._facts())
                await sender.outcome()
        except TimeoutError as error:
            raise Unavailable(
                f"it took longer than {order.deadline:g} s",
                "allow it more with spec.move.deadlineSeconds",
            ) from error
        return manifest

    async def _stop(self, pod: Pod) -> None:
        """Input closed, and then the tree frozen."""
        self._parked = True  # also if the answer is lost
        await _ask(self._order.source_pod, "park", to=self._order.target_pod)
        self._since = time.monotonic()
        self._cage = await self._engine.freeze(pod.hold)

    # -- the steps --------------------------------------------------------------------------------

    async def _ahead(self, sender: Sender, name: str, place: Place, pids: list[int]) -> Look:
        look, report = await sender.send_from(name, lambda write: layer.capture(place, write, pids))
        for note in report.notes:
            log.info("left behind", checkpoint=self._order.name, part=name, what=note)
        return look

    async def _later(
        self, sender: Sender, name: str, place: Place, look: Look, pids: list[int]
    ) -> None:
        await sender.send_from(
            f"{name}.later", lambda write: layer.difference(place, look, write, pids)
        )

    async def _send_memory(self, sender: Sender, dump: Callable[[], Awaitable[object]]) -> None:
        done = asyncio.Event()
        sending = asyncio.create_task(sender.follow("images", self._images, done))
        try:
            await dump()
            done.set()
            await sending
        finally:
            sending.cancel()
            await asyncio.wait([sending])

    async def _send_state(self, sender: Sender, sealed: dict[str, Any], taken: Taken) -> None:
        state = SidecarLink(_sidecar_of(containers.find(self._order.source_pod))).state
        try:
            for name in sealed["files"]:
                await sender.send_file(f"state/{name}", state / name)
        except (FileNotFoundError, ProcessLookupError) as error:  # its /proc went with it
            raise Unavailable("the sidecar ended while its state was sent") from error
        await sender.send_bytes("queued", json.dumps(taken.to_json()).encode())

    def _empty_terminal(self, keeper: int, pod: Pod) -> Taken:
        found = containers.terminal_of(keeper)
        try:
            taken = terminal.take(Path(f"/proc/{pod.hold}/root") / found.path.lstrip("/"))
        finally:
            os.close(found.master)
        # Where it outlives this agent, and the session cannot reach it.
        kept = SidecarLink(_sidecar_of(containers.find(pod.uid))).state / QUEUED
        kept.unlink(missing_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(kept, flags, 0o600), "w") as out:
            json.dump({"path": found.path, **taken.to_json()}, out)
        return taken

    def _facts(self) -> Facts:
        order = self._order
        return Facts(
            checkpoint=order.name,
            session=order.session_uid,
            namespace=order.namespace,
            name=order.session,
            epoch=order.epoch,
            source_pod=order.source_pod,
            target_pod=order.target_pod,
            image=order.image,
            architecture=platform.machine(),
            kernel=platform.release(),
            features=self._features,
            created=time.time(),
        )


class Gone(HoldfastError):
    """It failed here, but the session has gone on elsewhere."""


async def settle(pod_uid: str, cage: Freezer | None) -> bool:
    """True: the session is ours again and runs. False: it has gone on elsewhere, and what is left
    of it here is dead. The Lease decides, by the sidecar's word; it is asked until it answers."""
    empty = cage is not None
    while True:
        try:
            if empty:
                # Before the sidecar types on: what was typed first comes first. If the session has
                # gone on elsewhere, this terminal dies with what is left here.
                await asyncio.to_thread(_fill_terminal, pod_uid)
                empty = False
            await _ask(pod_uid, "unpark")
        except (Refused, NotFound) as error:
            if isinstance(error, Refused) and error.word != "superseded":
                log.warning("the sidecar does not take it back", pod=pod_uid, why=str(error))
                await asyncio.sleep(_AGAIN_SECONDS)
                continue
            # It is another's, or its pod is about to be gone and waits for what is frozen in it.
            if cage is not None:
                await asyncio.to_thread(cage.kill)
            return False
        except HoldfastError as error:
            log.warning("the sidecar does not answer", pod=pod_uid, why=str(error))
            await asyncio.sleep(_AGAIN_SECONDS)
            continue
        if cage is not None:
            await asyncio.to_thread(cage.thaw)
        return True


def _fill_terminal(pod_uid: str) -> None:
    """With what was taken out of it, if anything was."""
    pod = containers.find(pod_uid)
    queued = SidecarLink(_sidecar_of(pod)).state / QUEUED
    try:
        kept = json.loads(queued.read_text())
    except FileNotFoundError:
        return
    found = containers.terminal_of(containers.keeper_of(pod.hold))
    try:
        path = Path(f"/proc/{pod.hold}/root") / str(kept["path"]).lstrip("/")
        rest = terminal.put(path, found.master, Taken.from_json(kept))
    finally:
        os.close(found.master)
    queued.unlink()
    if rest:
        log.warning("input was lost: the terminal has no room for it", pod=pod_uid, bytes=len(rest))


async def _ask(pod_uid: str, do: str, **fields: Any) -> dict[str, Any]:
    """The sidecar of the moment: it may be started anew at any time."""
    return await SidecarLink(_sidecar_of(containers.find(pod_uid))).ask(do, **fields)


def _sidecar_of(pod: Pod) -> int:
    if pod.sidecar is None:
        raise Unavailable("the sidecar does not run just now")
    return pod.sidecar


def _places(pod: Pod, order: Order) -> dict[str, Place]:
    found = {"layer": layer.root_of(pod.hold)}
    for number, path in enumerate(order.volumes):
        found[f"volumes/{number}"] = layer.volume_of(pod.hold, path)
    return found
