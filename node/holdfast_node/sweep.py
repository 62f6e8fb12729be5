"""Stored checkpoints that nobody can ask for any more are removed.

A checkpoint lives as long as its Checkpoint object, and where that object says. What else is in a
store was left by an agent that ended in the middle, by a keeper whose answer was lost, or belongs
to an object that was deleted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from . import log
from .store import Kept, NoRoom, Peer, Store

YOUNG: Final = 600.0  # seconds: an object, or what it says, may be on its way to us

Owner = tuple[str, str, str]  # namespace, UID of the session, name of the checkpoint
Owners = Mapping[Owner, tuple[bool, str]]
"""Of each Checkpoint object: it is over; where it lies."""


def owners(items: Iterable[Mapping[str, Any]]) -> Owners:
    found: dict[Owner, tuple[bool, str]] = {}
    for item in items:
        meta, spec, status = item["metadata"], item.get("spec") or {}, item.get("status") or {}
        owner = (str(meta["namespace"]), str(spec.get("sessionUID")), str(meta["name"]))
        over = status.get("phase") in ("Complete", "Failed")
        found[owner] = over, str(status.get("location") or "")
    return found


def unwanted(
    kept: Iterable[Kept],
    owned: Owners,
    here: Callable[[Kept], str],
    now: float,
    ours: Callable[[Kept], bool],
) -> list[Kept]:
    """`here`: the location under which an object would know it. Pure."""
    found: list[Kept] = []
    for item in kept:
        facts = item.manifest.facts
        over, location = owned.get(owner_of(item), (True, ""))
        if over and ours(item) and location != here(item) and facts.created < now - YOUNG:
            found.append(item)
    return found


class Ours:
    """What of a bucket is this cluster's: another may use it too, and has other Checkpoints. What
    has the mark of a CA of our nodes, and what had a Checkpoint here while this agent ran."""

    def __init__(self) -> None:
        self._known: set[Owner] = set()
        self._marks: frozenset[str] = frozenset()

    def look(self, owned: Owners, marks: Iterable[str]) -> None:
        self._known.update(owned)
        self._marks = frozenset(marks)

    def __call__(self, kept: Kept) -> bool:
        return kept.manifest.facts.cluster in self._marks or owner_of(kept) in self._known


def owner_of(kept: Kept) -> Owner:
    facts = kept.manifest.facts
    return facts.namespace, facts.session, facts.checkpoint


async def sweep(
    store: Store,
    owned: Owners,
    here: Callable[[Kept], str],
    now: float,
    ours: Callable[[Kept], bool] = lambda _kept: True,
) -> Sequence[Kept]:
    gone = unwanted(await asyncio.to_thread(store.list), owned, here, now, ours)
    for item in gone:
        await asyncio.to_thread(store.delete, item.session, item.checkpoint)
        log.info("removed", checkpoint=item.checkpoint, session=item.session, bytes=item.size)
    return gone


async def sweep_unfinished(disk: Peer, writing: asyncio.Lock, now: float) -> None:
    """What no agent writes any more, and what cannot be read."""
    async with writing:
        for orphan in await asyncio.to_thread(disk.unfinished, now):
            await asyncio.to_thread(disk.remove, orphan)
            log.warning("removed what was not whole", name=orphan.name)


def room(disk: Peer) -> str:
    """For people, and short: what the node's annotation says of its store."""
    used, budget = disk.used() >> 20, disk.budget >> 20
    words = f"{used} MiB of {budget} MiB for checkpoints"
    try:
        disk.admit(disk.budget // 20)
    except NoRoom as error:
        return f"full: {error}"
    return words
