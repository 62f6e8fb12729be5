"""After another wrapping key was made: what is stored is wrapped with it too, in the order's
status, because the spec is an order and does not change. Only who has a wrapping key can make such
a value, and it is bound to its checkpoint; so it needs no signature.

When nothing needs an older key any more, that is said: then it may be removed from the Secret.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from holdfast_kube import order_keys
from holdfast_kube.client import CHECKPOINTS, Api
from holdfast_kube.order_keys import LEGACY, Of
from holdfast_operator import log, metrics
from holdfast_operator.keyring import Keyring, UnknownKey
from holdfast_operator.orders import CheckpointSeen, Kind
from holdfast_wire.errors import Forbidden, HoldfastError

EVERY_SECONDS: Final = 60.0
STANDBY_SECONDS: Final = 2.0


def needed(found: Iterable[CheckpointSeen], known: frozenset[str]) -> Counter[str]:
    """How many stored checkpoints each wrapping key is needed for. Pure."""
    tally: Counter[str] = Counter()
    for one in found:
        if one.kind is not Kind.KEEP or one.failed:
            continue
        if not one.keyed:
            tally[LEGACY] += 1
        elif one.wrapped:
            names = [name for name, _ in one.wrapped]
            tally[next((name for name in names if name in known), names[0])] += 1
    return tally


def due(found: Iterable[CheckpointSeen], current: str) -> list[CheckpointSeen]:
    """What is to be wrapped anew. Pure."""
    return [
        one
        for one in found
        if one.kind is Kind.KEEP and one.wrapped and one.wrapped[0][0] != current
    ]


class Rotation:
    def __init__(
        self,
        api: Api,
        keyring: Keyring,
        namespaces: Sequence[str],
        leads: Callable[[], bool],
    ) -> None:
        self._api, self._keyring, self._leads = api, keyring, leads
        self._namespaces: Sequence[str | None] = namespaces or (None,)
        self._idle: frozenset[str] = frozenset()
        self._unknown: frozenset[str] = frozenset()

    async def run(self) -> None:
        while True:
            if not self._leads():
                await asyncio.sleep(STANDBY_SECONDS)
                continue
            try:
                await self.look()
            except HoldfastError as error:
                log.warning("wrapping keys were not looked through", error=error.message)
            await asyncio.sleep(EVERY_SECONDS)

    async def look(self) -> None:
        items: list[Mapping[str, Any]] = []
        for namespace in self._namespaces:
            items += (await self._api.list_all(CHECKPOINTS, namespace))[0]
        current, known = self._keyring.current(), self._keyring.ids()
        seen = [CheckpointSeen.of(item) for item in items]
        spaces = {one.uid: item["metadata"]["namespace"]
                  for one, item in zip(seen, items, strict=True)}  # fmt: skip
        for one in due(seen, current):
            await self._wrap(spaces[one.uid], one, current)
        if wrapped := due(seen, current):
            log.info("wrapped anew", key=current, checkpoints=len(wrapped))
            return  # what that came to, the next look shows
        self._tell(needed(seen, known), current, known)

    async def _wrap(self, namespace: str, one: CheckpointSeen, current: str) -> None:
        of = Of(namespace, one.name, one.session[1])
        known = self._keyring.ids()
        for name, wrapped in one.wrapped:
            if name not in known:
                continue
            try:
                key = order_keys.unwrap(wrapped, self._keyring.wrapping(name), of)
                fresh = order_keys.wrap(key, self._keyring.wrapping(current), of)
            except (UnknownKey, Forbidden) as error:
                log.warning("a key could not be wrapped anew", order=one.name, error=error.message)
                continue
            body = {"status": {"key": {"id": current, "wrapped": fresh}}}
            await self._api.patch(CHECKPOINTS, namespace, one.name, body, sub="status")
            return

    def _tell(self, tally: Counter[str], current: str, known: frozenset[str]) -> None:
        for name in known | tally.keys() | self._idle:
            metrics.WRAPPING_KEYS.labels(name).set(tally[name])
        idle = known - tally.keys() - {current}
        for name in sorted(idle - self._idle):
            log.info("a wrapping key is not needed any more: it may be removed", key=name)
        unknown = frozenset(tally.keys() - known)
        for name in sorted(unknown - self._unknown):
            log.warning(
                "a wrapping key is missing: what it wraps cannot be brought back",
                key=name, checkpoints=tally[name],
            )  # fmt: skip
        self._idle, self._unknown = idle, unknown
