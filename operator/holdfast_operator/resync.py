"""Every few minutes all Sessions are looked at again, whatever the watches said; and kopf's watch
of them is checked against the list, for it can go silent and not notice."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import Any, Final

from holdfast_kube.client import SESSIONS, Api
from holdfast_operator import log
from holdfast_operator.contact import Contact
from holdfast_operator.names import Key
from holdfast_wire.errors import HoldfastError

EVERY_SECONDS: Final = 240.0
SOURCE: Final = "sessions"


class Resync:
    def __init__(
        self,
        api: Api,
        namespaces: tuple[str, ...],
        dirty: Callable[[Key, float], None],
        contact: Contact,
        clock: Callable[[], float],
    ) -> None:
        self._api, self._dirty, self._contact, self._clock = api, dirty, contact, clock
        self._namespaces: tuple[str | None, ...] = namespaces or (None,)
        self._watched: dict[Key, str] = {}  # versions as kopf showed them
        self._listed: dict[Key, str] = {}
        self._soon = asyncio.Event()
        contact.expect(SOURCE)

    def watched(self, meta: Mapping[str, Any], gone: bool) -> None:
        """kopf showed this Session."""
        key = Key(meta["namespace"], meta["name"])
        if gone:
            self._watched.pop(key, None)
        else:
            self._watched[key] = meta["resourceVersion"]

    def now(self) -> None:
        """Look at everything now: the lead has come to us."""
        self._soon.set()

    async def run(self) -> None:
        while True:
            try:
                await self.once()
            except HoldfastError as error:
                log.warning("the sessions could not be listed", error=error.message)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(EVERY_SECONDS):
                    await self._soon.wait()
            self._soon.clear()

    async def once(self) -> None:
        found: dict[Key, str] = {}
        for namespace in self._namespaces:
            items, _ = await self._api.list_all(SESSIONS, namespace, metadata_only=True)
            for item in items:
                meta = item["metadata"]
                found[Key(meta["namespace"], meta["name"])] = meta["resourceVersion"]
        for key in found:
            self._dirty(key, 0.0)
        if not self.missed(found):
            self._contact.made(SOURCE, self._clock())
        self._listed = found

    def missed(self, found: Mapping[Key, str]) -> list[Key]:
        """Versions that stood in the last list too and that kopf has never shown."""
        return [
            key
            for key, version in found.items()
            if self._listed.get(key) == version and self._watched.get(key) != version
        ]
