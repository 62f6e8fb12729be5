"""A session that takes no input now: it is on its way to another pod, or it is being stored.

Who is attached hears of a move at once, and of being stored only if that takes long: a checkpoint
now and then is nothing to be told of.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, Final

from holdfast_wire.errors import Unavailable

_MOVING: Final = {"kind": "moving"}
_SAVING: Final = {"kind": "saving"}
_STAYED: Final = {"kind": "stayed"}
_SAVING_SECONDS: Final = 2.0
# A request that acts waits so long for the end of a checkpoint.
_PATIENCE_SECONDS: Final = 10.0


class Parking:
    def __init__(self, tell: Callable[[dict[str, Any]], None]) -> None:
        self._tell = tell
        self.parked = False
        self.news: dict[str, Any] | None = None
        """What who is attached has been told, and who comes is to be."""
        self._saving = False
        self._soon: asyncio.TimerHandle | None = None
        self._open = asyncio.Event()
        self._open.set()

    def check(self) -> None:
        """Raises while it is parked."""
        if self.parked:
            what = "saved" if self._saving else "moved"
            raise Unavailable(f"the session is being {what}", "try again in a moment")

    async def passed(self) -> None:
        """The same, for who can wait for a moment."""
        if self._saving:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_PATIENCE_SECONDS):
                    await self._open.wait()
        self.check()

    def park(self, *, saving: bool) -> None:
        if self.parked and saving == self._saving:
            return
        self.parked, self._saving = True, saving
        self._open.clear()
        self.close()
        if saving:
            loop = asyncio.get_running_loop()
            self._soon = loop.call_later(_SAVING_SECONDS, self._say, _SAVING)
        else:
            self._say(_MOVING)

    def open(self) -> None:
        self.parked = self._saving = False
        self.close()
        self.wake()
        if self.news is not None:
            self.news = None
            self._tell(_STAYED)

    def wake(self) -> None:
        """Whoever waits looks again."""
        self._open.set()

    def _say(self, news: dict[str, Any]) -> None:
        self.news = news
        self._tell(news)

    def close(self) -> None:
        if self._soon is not None:
            self._soon.cancel()
            self._soon = None
