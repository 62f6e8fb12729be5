"""A session that is all here, in parts, goes on in a pod that waits for it: what a move's arrival
and a stored checkpoint have in common.

    files ─ the sidecar's state ─ restore, held ─ input ─ adopt ─ commit ─ run
                               └─ prepare ───────────────────┘

Invariant: nothing of the session runs here before its sidecar has said that the Lease is its own.
Everything that can fail is done before it is asked.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from io import BufferedIOBase
from pathlib import Path
from typing import Any, Final

from holdfast_node import containers, layer, log, program, terminal
from holdfast_node.containers import Pod
from holdfast_node.engine import Restored, Restoring
from holdfast_node.freezer import Freezer
from holdfast_node.peers import Refused, ask_hold
from holdfast_node.safe_open import component
from holdfast_node.taking import ask, sidecar_of, state_of
from holdfast_node.terminal import Taken
from holdfast_node.tree import Place
from holdfast_wire.errors import HoldfastError, NotFound, Unavailable

_COMMIT_SECONDS: Final = 30.0
_AGAIN_SECONDS: Final = 0.2


async def _nothing() -> None:
    return


@dataclass(frozen=True)
class Landing:
    """`reader`: for parts that are files of the session and do not lie in `parts`. `said`: what the
    sidecar is told with `commit`. `whole`: returns when nothing is lacking that may still be on its
    way when the tree is there. `committed`: called when it said yes."""

    pod: Pod
    session: str
    parts: Path
    reader: Callable[[str], BufferedIOBase] | None = None
    said: Mapping[str, Any] = field(default_factory=dict)
    whole: Callable[[], Awaitable[None]] = _nothing
    committed: Callable[[], Awaitable[None]] = _nothing

    def put_files(self, places: Mapping[str, Place], suffix: str) -> None:
        for name, place in places.items():
            part = f"{name}{suffix}"
            if self.reader is None:
                apply(self.parts / part, place)
                continue
            with self.reader(part) as stream:
                layer.apply(stream, place)

    def put_state(self, names: Iterable[str]) -> None:
        """`names`: of all parts."""
        sidecar = sidecar_of(containers.find(self.pod.uid))  # it may have been started anew
        try:
            for part in names:
                kind, _, name = part.partition("/")
                if kind == "state":
                    _put_state(self.parts / "state" / component(name), sidecar, name)
        except (FileNotFoundError, ProcessLookupError) as error:  # its /proc went with it
            raise Unavailable("the sidecar ended while its state was put there") from error

    def _put_program(self, images: Path) -> None:
        try:
            program.put(self.parts, images, sidecar_of(containers.find(self.pod.uid)))
        except (FileNotFoundError, ProcessLookupError) as error:
            raise Unavailable("the sidecar ended while hold's program was put there") from error

    async def restore(self, restoring: Restoring) -> None:
        """The images are where `restoring` looks for them. Returns when the session runs."""
        taken = Taken.from_json(json.loads((self.parts / "queued").read_text()))
        await asyncio.to_thread(self._put_program, restoring.images)
        preparing = asyncio.create_task(prepare(self.pod.uid, self.said))

        async def held(restored: Restored) -> None:
            try:
                await self._adopt(restored, taken)
            finally:
                os.close(restored.terminal.master)
            await self.whole()
            await preparing
            await commit(self.pod.uid, self.said)
            await self.committed()
            for local, remote in restored.cut:
                log.info("cut", session=self.session, local=local, remote=remote)

        try:
            await restoring.restore(held)
        finally:
            preparing.cancel()
            await asyncio.wait([preparing])

    async def _adopt(self, restored: Restored, taken: Taken) -> None:
        found = restored.terminal
        rest = await asyncio.to_thread(terminal.put, found.master, taken)
        if rest:
            raise Unavailable(f"{len(rest)} bytes that were typed do not fit into the terminal")
        await asyncio.to_thread(_leave_word, self.pod, restored.cut)
        adopt = f"adopt {restored.keeper_inside} {restored.command_inside} {found.path}"
        await asyncio.to_thread(ask_hold, self.pod.hold, adopt, found.master)


async def prepare(pod_uid: str, said: Mapping[str, Any]) -> None:
    """What the sidecar can do before it is to commit. If it cannot, that will say so."""
    try:
        await ask(pod_uid, "prepare", seconds=_COMMIT_SECONDS, **said)
    except HoldfastError as error:
        log.info("not prepared", pod=pod_uid, why=str(error))


async def commit(pod_uid: str, said: Mapping[str, Any]) -> None:
    """The last moment at which it can still go back. Until the sidecar of the moment says yes or
    no: as long as it has not, the Lease may be ours, and then nobody else has the session. It has
    no reason to keep silent for long."""
    while True:
        try:
            await ask(pod_uid, "commit", seconds=_COMMIT_SECONDS, **said)
        except Refused as refused:
            if refused.word in ("refused", "foreign"):
                raise
            log.info("not committed yet", pod=pod_uid, why=str(refused))
        except Unavailable as error:
            log.warning("not committed yet", pod=pod_uid, why=str(error))
        else:
            return
        await asyncio.sleep(_AGAIN_SECONDS)


async def lose(
    pod_uid: str, cage: Freezer, reported: Callable[[], Awaitable[object]] = _nothing
) -> None:
    """Memory of what is frozen here will never come. Its sidecar gives the Lease back, which is to
    the operator as if the host were lost; only then is the tree killed, for an end that hold saw
    would be the session's. `reported` comes in between."""
    while True:
        try:
            await ask(pod_uid, "lost", seconds=_COMMIT_SECONDS)
        except Refused as refused:
            if refused.word in ("superseded", "ended"):
                break
            why = str(refused)
        except NotFound:
            break
        except HoldfastError as error:
            why = str(error)
        else:
            break
        log.warning("not given up yet", pod=pod_uid, why=why)
        await asyncio.sleep(_AGAIN_SECONDS)
    await reported()
    await asyncio.to_thread(cage.kill)


def apply(path: Path, place: Place) -> None:
    with path.open("rb") as stream:
        layer.apply(stream, place)


def _leave_word(pod: Pod, cut: tuple[tuple[str, str], ...]) -> None:
    """For the sidecar's journal: which connections did not come along."""
    sidecar = containers.find(pod.uid).sidecar
    if sidecar is None:
        return
    with state_of(sidecar) as state, os.fdopen(state.create("cut.json"), "w") as out:
        json.dump(cut, out)


def _put_state(source: Path, sidecar: int, name: str) -> None:
    """The folder is the sidecar's own, and so may hold what it likes: nothing is followed."""
    with source.open("rb") as data, state_of(sidecar) as state:
        opened = state.create(name)
        with os.fdopen(opened, "wb"):
            layer.copy(data.fileno(), opened)
