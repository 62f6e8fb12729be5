"""This pod is to go: is the session being moved away meanwhile, or does it take its SIGTERM now?

hold puts a SIGTERM off (`--linger`) and tells of it. The same SIGTERM comes when somebody deleted
the pod, and the session can be moved, and when the session itself is to end. The Session tells:

    gone, being deleted, to be ended, or over    heeded at once
    status.leaving, for this epoch               put off until then, by the wall clock
    no such word                                 heeded 3 s after it came
    no answer                                    as it was last said

Invariant: but for the first row, nothing is heeded while the session is parked: the tree may be
frozen by its cgroup, and would hear nothing of it. Whoever heeds it lets nobody park it any more
(`Departure.shut`): a hangup that is on its way must not move along.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Protocol

from holdfast_sidecar.kube import Answer, ApiError, same_object

_LOOK_SECONDS: Final = 0.5
_ANSWER_SECONDS: Final = 2.0
# The operator has seen by then that the pod is being deleted, if it is there.
_WORD_SECONDS: Final = 3.0
_OK, _NOT_FOUND = 200, 404
_OVER: Final = ("Ended", "Failed")


class SessionApi(Protocol):
    async def get(self, path: str) -> Answer: ...


@dataclass(frozen=True, slots=True)
class Word:
    ends: bool = False  # the session itself does
    until: float | None = None  # it is being moved, in seconds since 1970


def read(answer: Answer, path: str, uid: str, epoch: int) -> Word | None:
    """None: that was no answer."""
    if answer.status == _NOT_FOUND:
        return Word(ends=True)
    if answer.status != _OK or not same_object(path, answer.body):
        return None
    meta, spec = answer.body["metadata"], _mapping(answer.body.get("spec"))
    status = _mapping(answer.body.get("status"))
    going = meta.get("uid") != uid or meta.get("deletionTimestamp")
    if going or spec.get("ended") or status.get("phase") in _OVER:
        return Word(ends=True)
    told = _mapping(status.get("leaving"))
    return Word(until=_seconds(told.get("until")) if told.get("epoch") == epoch else None)


def _mapping(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _seconds(text: object) -> float | None:
    with contextlib.suppress(ValueError):
        found = datetime.fromisoformat(text) if isinstance(text, str) else None
        return found.timestamp() if found is not None and found.tzinfo is not None else None
    return None


def heeded(word: Word, parked: bool, since: float, wall: float) -> str:
    """Why it is to be heeded now; "": not yet. `since`: seconds since it came."""
    if word.ends:
        return "the session is to end"
    if parked:
        return ""
    if word.until is not None:
        return "" if wall < word.until else "the session could not be moved in time"
    return "" if since < _WORD_SECONDS else "nobody moves the session"


class Leaving:
    def __init__(self, api: SessionApi, path: str, uid: str, epoch: int) -> None:
        self._api, self._path, self._uid, self._epoch = api, path, uid, epoch

    async def over(self, parked: Callable[[], bool]) -> str:
        """Returns when the SIGTERM is to be heeded, and why."""
        began, word = time.monotonic(), Word()
        while True:
            word = await self._look() or word
            why = heeded(word, parked(), time.monotonic() - began, time.time())
            if why:
                return why
            await asyncio.sleep(_LOOK_SECONDS)

    async def _look(self) -> Word | None:
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                answer = await self._api.get(self._path)
        except (ApiError, TimeoutError):
            return None
        return read(answer, self._path, self._uid, self._epoch)
