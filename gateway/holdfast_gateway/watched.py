"""The cluster's Sessions, as they were last seen: listed, then watched."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Final

from holdfast_gateway import log
from holdfast_kube.client import SESSIONS, Gone, Kube, Object
from holdfast_wire.errors import HoldfastError

_WATCH_SECONDS: Final = 290
_SILENCE_SECONDS: Final = 90.0  # the API server sends a bookmark every minute
_RETRY_SECONDS: Final = 1.0

Key = tuple[str, str]


class Watched:
    def __init__(
        self, api: Kube, namespaces: tuple[str, ...], deleted: Callable[[Object], None]
    ) -> None:
        """`namespaces`: empty for all."""
        self._api, self._deleted = api, deleted
        self._namespaces: tuple[str | None, ...] = namespaces or (None,)
        self._found: dict[Key, Object] = {}
        self.ready = asyncio.Event()
        """All of them were listed once."""

    def get(self, key: Key) -> Object | None:
        return self._found.get(key)

    def every(self) -> Iterator[tuple[Key, Object]]:
        return iter(sorted(self._found.items()))

    async def run(self) -> None:
        listed = [asyncio.Event() for _ in self._namespaces]
        async with asyncio.TaskGroup() as tasks:
            for namespace, done in zip(self._namespaces, listed, strict=True):
                tasks.create_task(self._follow(namespace, done))
            for done in listed:
                await done.wait()
            self.ready.set()

    async def _follow(self, namespace: str | None, listed: asyncio.Event) -> None:
        while True:
            try:
                version = await self._list(namespace)
                listed.set()
                while True:
                    version = await self._watch(namespace, version)
            except Gone:
                continue
            except HoldfastError as error:
                log.warning("sessions_not_seen", why=str(error))
            await asyncio.sleep(_RETRY_SECONDS)

    async def _list(self, namespace: str | None) -> str:
        items, version = await self._api.list_all(SESSIONS, namespace)
        found = {key_of(item): item for item in items}
        before = {key for key in self._found if namespace is None or key[0] == namespace}
        for key in before - found.keys():
            self._gone(key)
        self._found |= found
        return version

    async def _watch(self, namespace: str | None, version: str) -> str:
        async for event in self._api.watch(
            SESSIONS, namespace, "", version,
            seconds=_WATCH_SECONDS, silence=_SILENCE_SECONDS, metadata_only=False,
        ):  # fmt: skip
            item = event["object"]
            version = str(item["metadata"].get("resourceVersion") or version)
            if event.get("type") == "BOOKMARK":
                continue
            if event.get("type") == "DELETED":
                self._gone(key_of(item))
            else:
                self._found[key_of(item)] = item
        return version

    def _gone(self, key: Key) -> None:
        item = self._found.pop(key, None)
        if item is not None:
            self._deleted(item)


def key_of(item: Object) -> Key:
    return str(item["metadata"]["namespace"]), str(item["metadata"]["name"])
