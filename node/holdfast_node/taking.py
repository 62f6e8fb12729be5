"""A session of this node is stopped and taken into parts: what a move and a keep have in common.

    ahead ─ stop: park, freeze ─ take: seal, take input, dump, what changed since ─ ...
               └────────────── on any failure: settle ──────────────┘

Connections to the outside are dumped as they are and cut where they are restored: a session that
runs on here has lost none.

Invariant: once `seal` was asked for, the tree is thawed only after the sidecar has said that the
Lease is ours and carries no offer, and killed only after it has said, or the target has, that
another has it, or that nobody has any more. An agent that dies in between leaves a frozen tree; the
next one takes it back, or finishes it (`settle`).
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from holdfast_node import containers, layer, log, program, terminal
from holdfast_node.containers import Pod
from holdfast_node.engine import Dumping, Engine
from holdfast_node.freezer import Freezer, descendants
from holdfast_node.order import Keep, Move
from holdfast_node.pair import Facts
from holdfast_node.peers import STATE, Refused, SidecarLink, keeper_of
from holdfast_node.pods import register
from holdfast_node.progress import Progress
from holdfast_node.safe_open import Folder, UnsafePath, as_user, folder
from holdfast_node.terminal import Taken
from holdfast_node.tree import Look
from holdfast_wire.errors import HoldfastError, NotFound, Unavailable

QUEUED: Final = "queued.json"  # in the sidecar's folder: typed, and taken out of the terminal
_AGAIN_SECONDS: Final = 0.5
_PIECE: Final = 1 << 20
_MOST_QUEUED: Final = 1 << 20  # more than a terminal can hold, in base64
SIDECAR_SECONDS: Final = 30.0  # to seal: an emulator far behind has to come to the end first
_SHOWN_SECONDS: Final = 1.0
_LEAST_SECONDS: Final = 1.0  # frozen for less than that nothing has ever moved
_MORE_GRACE: Final = "allow it more with terminationGracePeriodSeconds of its template"
T = TypeVar("T")


class Parts(Protocol):
    """Where they go: to another agent, or into files."""

    async def send_bytes(self, part: str, data: bytes) -> None: ...

    async def send_file(self, part: str, path: Path) -> None: ...

    async def send_from(
        self, part: str, produce: Callable[[Callable[[memoryview], None]], T]
    ) -> T: ...

    async def follow(self, prefix: str, directory: Path, done: asyncio.Event) -> None: ...


class Gone(HoldfastError):
    """It failed here, but the session has gone on elsewhere."""


class Taking:
    """The calls are made in their order, `settle` at any time after CRIU has left the container."""

    def __init__(self, order: Move | Keep, engine: Engine, images: Path, parts: Parts) -> None:
        self._order, self._engine = order, engine
        self._images, self._parts = images, parts
        self._looks: list[Look] = []
        self._parked = False
        self._settling: asyncio.Task[bool] | None = None
        self._since = self._allowed = 0.0
        self.cage: Freezer | None = None
        self.at = 0.0  # when it was frozen, in seconds since 1970

    @property
    def seconds(self) -> float:
        """For which it has been frozen."""
        return time.monotonic() - self._since

    async def ahead(self, pod: Pod) -> None:
        """Files are copied while the session runs."""
        pids = descendants(pod.hold)
        keeper = await asyncio.to_thread(keeper_of, pod.hold)
        await self._parts.send_from(program.PART, partial(program.pour, keeper))
        for name, place in layer.places_of(pod.hold, self._order.volumes).items():
            look, report = await self._parts.send_from(
                name, partial(layer.capture, place, pids=pids)
            )
            self._looks.append(look)
            for note in report.notes:
                log.info("left behind", checkpoint=self._order.name, part=name, what=note)

    async def stop(self, pod: Pod, **how: Any) -> None:
        """Input closed, and then the tree frozen. `how`: what the sidecar is told of it."""
        self._allowed = self._order.may_freeze(time.time())
        if self._allowed < _LEAST_SECONDS:
            raise Unavailable("its pod was deleted, and goes too soon", _MORE_GRACE)
        self._parked = True  # also if the answer is lost
        await ask(pod.uid, "park", **how)
        self._since, self.at = time.monotonic(), time.time()
        self.cage = await self._engine.freeze(pod.hold)

    @asynccontextmanager
    async def in_time(self) -> AsyncIterator[None]:
        """It may be frozen no longer than ordered, counted from the freeze."""
        try:
            async with asyncio.timeout(self._allowed - self.seconds):
                yield
        except TimeoutError as error:
            more = "allow it more with spec.move.deadlineSeconds"
            raise Unavailable(
                f"it took longer than {self._allowed:.3g} s",
                more if self._allowed == self._order.deadline else _MORE_GRACE,
            ) from error

    async def take(self, pod: Pod, dumping: Dumping, **how: Any) -> int:
        """Of the session that stands still, everything; its terminal's seq. `how`: what the sidecar
        is told of it, if it is not to be offered."""
        first = how or {"unoffered": True}
        sealed = await ask(pod.uid, "seal", seconds=SIDECAR_SECONDS, **first)
        async with _beside(self._offer(pod, how)):
            pids = descendants(dumping.keeper)
            taken = await asyncio.to_thread(_empty_terminal, dumping.keeper, pod)
            await self._memory(dumping, sealed, taken)
            places = layer.places_of(pod.hold, self._order.volumes)
            for (name, place), look in zip(places.items(), self._looks, strict=True):
                await self._parts.send_from(
                    f"{name}.later", partial(layer.difference, place, look, pids=pids)
                )
        return int(sealed.get("seq", 0))

    async def _offer(self, pod: Pod, how: dict[str, Any]) -> None:
        """To the target; the API takes a while for it. What is kept is offered to nobody."""
        if not how:
            await ask(pod.uid, "seal", seconds=SIDECAR_SECONDS)

    async def _memory(self, dumping: Dumping, sealed: dict[str, Any], taken: Taken) -> None:
        """And what changes no more since it is sealed: CRIU needs a while for its first page."""
        done = asyncio.Event()
        async with _beside(self._follow(sealed, taken, done)):
            await dumping.dump()
            done.set()

    async def _follow(self, sealed: dict[str, Any], taken: Taken, done: asyncio.Event) -> None:
        await self._state(sealed)
        await self._parts.send_bytes("queued", json.dumps(taken.to_json()).encode())
        await self._parts.follow("images", self._images, done)

    async def _state(self, sealed: dict[str, Any]) -> None:
        sidecar = sidecar_of(containers.find(self._order.source_pod))
        try:
            for name in map(str, sealed["files"]):
                opened = await asyncio.to_thread(_open_state, sidecar, name)
                try:
                    await self._parts.send_from(f"state/{name}", partial(_pour, opened))
                finally:
                    os.close(opened)
        except (FileNotFoundError, ProcessLookupError) as error:  # its /proc went with it
            raise Unavailable("the sidecar ended while its state was taken") from error

    async def settle(self) -> bool:
        """As the function of that name, once. True also if it was never stopped."""
        if not self._parked:
            return True
        if self._settling is None:
            self._settling = asyncio.create_task(settle(self._order.source_pod, self.cage))
        return await asyncio.shield(self._settling)

    def facts(self, features: tuple[str, ...], target_pod: str) -> Facts:
        order = self._order
        return Facts(
            checkpoint=order.name,
            session=order.session_uid,
            namespace=order.namespace,
            name=order.session,
            epoch=order.epoch,
            source_pod=order.source_pod,
            target_pod=target_pod,
            image=order.image,
            architecture=platform.machine(),
            kernel=platform.release(),
            features=features,
            created=self.at,
        )


@asynccontextmanager
async def _beside(work: Coroutine[Any, Any, object]) -> AsyncIterator[None]:
    """Is done when this is left, or not wanted any more."""
    working = asyncio.create_task(work)
    try:
        yield
        await working
    finally:
        working.cancel()
        await asyncio.wait([working])


async def settle(pod_uid: str, cage: Freezer | None) -> bool:
    """True: the session is ours again and runs. False: it is not ours any more, and what is left
    of it here is dead. The Lease decides, by the sidecar's word; it is asked until it answers."""
    empty = cage is not None
    while True:
        try:
            if empty:
                # Before the sidecar types on: what was typed first comes first. If the session has
                # gone on elsewhere, this terminal dies with what is left here.
                await asyncio.to_thread(_fill_terminal, pod_uid)
                empty = False
            await ask(pod_uid, "unpark")
        except (Refused, NotFound) as error:
            if isinstance(error, Refused) and error.word != "superseded":
                if cage is not None and _dead(cage):
                    return False  # a session that was brought here, and did not arrive
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


def _dead(cage: Freezer) -> bool:
    try:
        return not cage.members()
    except OSError:  # its container is gone
        return True


async def ask(pod_uid: str, do: str, **fields: Any) -> dict[str, Any]:
    """The sidecar of the moment: it may be started anew at any time."""
    pod = await register.find(pod_uid)
    return await SidecarLink(sidecar_of(pod)).ask(do, **register.address(pod_uid), **fields)


async def show(pod_uid: str, progress: Progress) -> None:
    """To who is attached, of a session that stands still for long: most do not, and are not to be
    held up by it. A sidecar may be too old to know it."""
    if progress.expected and time.monotonic() - progress.since > _SHOWN_SECONDS:
        await ask(pod_uid, "progress", sent=progress.all_sent, expected=progress.expected)


def sidecar_of(pod: Pod) -> int:
    if pod.sidecar is None:
        raise Unavailable("the sidecar does not run just now")
    return pod.sidecar


def _empty_terminal(keeper: int, pod: Pod) -> Taken:
    found = containers.terminal_of(keeper)
    try:
        taken = terminal.take(found.master)
    finally:
        os.close(found.master)
    # Where it outlives this agent, and the session cannot reach it.
    sidecar = sidecar_of(containers.find(pod.uid))
    with state_of(sidecar) as state, os.fdopen(state.create(QUEUED), "w") as out:
        json.dump(taken.to_json(), out)
    return taken


@contextmanager
def state_of(sidecar: int) -> Iterator[Folder]:
    """The sidecar's folder. What is done with it is done with the sidecar's own rights."""
    with as_user(*containers.ids_of(sidecar)), folder(sidecar, STATE) as state:
        yield state


def _pour(opened: int, write: Callable[[memoryview], None]) -> None:
    while data := os.read(opened, _PIECE):
        write(memoryview(data))


def _open_state(sidecar: int, name: str) -> int:
    with state_of(sidecar) as state:
        return state.read(name)


def _fill_terminal(pod_uid: str) -> None:
    """With what was taken out of it, if anything was."""
    pod = containers.find(pod_uid)
    try:
        with os.fdopen(_open_state(sidecar_of(pod), QUEUED)) as opened:
            kept = Taken.from_json(json.loads(opened.read(_MOST_QUEUED)))
    except FileNotFoundError:
        return
    except (ValueError, KeyError, TypeError, UnsafePath) as error:
        log.warning("input was lost: its file was changed", pod=pod_uid, why=str(error))
        return
    found = containers.terminal_of(keeper_of(pod.hold))
    try:
        rest = terminal.put(found.master, kept)
    finally:
        os.close(found.master)
    with state_of(sidecar_of(pod)) as state:
        state.remove(QUEUED)
    if rest:
        log.warning("input was lost: the terminal has no room for it", pod=pod_uid, bytes=len(rest))
