"""Clients that follow a session in the background, each in its way, and come back by themselves.
What they saw is kept: joined by seq, where a byte that is missing or comes twice is an error.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Final, TypeVar

import aiohttp

import holdfast
from client_kit import Screen
from e2e.guests import Guests
from e2e.lab import until
from events_kit import Viewer

T = TypeVar("T")
PATIENCE: Final = 60.0


class Stream:
    """`stream`: every byte since `began`. `picture`: what gives the screen in a terminal."""

    def __init__(self) -> None:
        self.began: int | None = None
        self.stream = bytearray()
        self.earlier = bytearray()  # of incarnations that were lost
        self.picture = bytearray()
        self.kinds: list[str] = []  # of its news

    @property
    def head(self) -> int:
        return (self.began or 0) + len(self.stream)

    def snapshot(self, seq: int, data: bytes, *, first: bool = True) -> None:
        assert not self.stream or seq == self.head, f"a snapshot at {seq}, not {self.head}"
        if first:
            self.picture.clear()
        self.picture += data
        if self.began is None or not self.stream:
            self.began = seq

    def restarted(self) -> None:
        """The session began anew, and its stream with it."""
        self.earlier += self.stream
        self.stream.clear()
        self.began = None

    def output(self, seq: int, data: bytes) -> None:
        if self.began is None:
            self.began = seq
        assert seq == self.head, f"byte {seq} where {self.head} is next"
        self.stream += data
        self.picture += data


class BySdk(Stream):
    def __init__(self, session: holdfast.Session, from_seq: int | None = None) -> None:
        super().__init__()
        self._session, self._from = session, from_seq

    async def follow(self) -> None:
        async with self._session as session:
            async for item in session.stream(self._from):
                match item:
                    case holdfast.Snapshot():
                        self.snapshot(item.seq, item.data)
                    case holdfast.Output(seq, data):
                        self.output(seq, data)
                    case holdfast.Gap():
                        self.kinds.append("gap")
                    case holdfast.News("restarted"):
                        self.kinds.append("restarted")
                        self.restarted()
                    case holdfast.News():
                        self.kinds.append(item.kind)


class ByEvents(Stream):
    """Server-sent events, as a browser's EventSource has them: it comes back with the last id."""

    def __init__(self, guests: Guests, who: str, session: str, url: str = "") -> None:
        super().__init__()
        self._url, self._tls = f"{guests.base(session, url)}/stream", guests.tls
        self._headers = {
            "Authorization": f"Bearer {guests[who].token}",
            "Accept": "text/event-stream",
        }
        self._last = ""
        self.connections = 0

    async def follow(self) -> None:
        limit = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(timeout=limit, read_bufsize=1 << 22) as http:
            while "ended" not in self.kinds:
                with contextlib.suppress(aiohttp.ClientError, OSError):
                    await self._once(http)
                await asyncio.sleep(0.2)

    async def _once(self, http: aiohttp.ClientSession) -> None:
        headers = self._headers | ({"Last-Event-ID": self._last} if self._last else {})
        async with http.get(self._url, headers=headers, ssl=self._tls) as response:
            if response.status == 503:
                return  # not reached at the moment
            assert response.status == 200, await response.text()
            self.connections += 1
            viewer, told, taken = Viewer(response), 0, 0
            while await viewer.next():
                for kind, body in viewer.seen[told:]:
                    self._news(kind, body)
                if viewer.began is not None and taken < len(viewer.stream):
                    self.output(viewer.began + taken, viewer.stream[taken:])
                told, taken = len(viewer.seen), len(viewer.stream)
                self._last = viewer.last or self._last

    def _news(self, kind: str, body: dict[str, Any]) -> None:
        if kind == "snapshot":
            text = body.get("text")
            data = base64.b64decode(body["base64"]) if text is None else text.encode()
            self.snapshot(body["seq"], data, first=body["first"])
        self.kinds.append(kind)


class AtTerminal:
    """Somebody's terminal with a client in it (kubectl, ssh), read all the time."""

    def __init__(self, screen: Screen) -> None:
        self.screen = screen
        self.longest_pause = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        at, size = time.monotonic(), 0
        while not self._stop.is_set() and self.screen.process.poll() is None:
            self.screen.pump(0.1)
            if len(self.screen.seen) > size:
                now = time.monotonic()
                self.longest_pause = max(self.longest_pause, now - at if size else 0.0)
                at, size = now, len(self.screen.seen)

    @property
    def seen(self) -> bytes:
        return self.screen.seen

    def shows(self, text: bytes) -> None:
        until(lambda: text in self.seen, f"{text!r} at a terminal", PATIENCE)

    def release(self) -> Screen:
        """Not read any more: it is the caller's."""
        self._stop.set()
        self._thread.join(5)
        return self.screen

    def close(self) -> None:
        self.release().close()


class Background:
    """An event loop beside the test, which may have a browser's in its own thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._tasks: list[Any] = []

    def run(self, work: Coroutine[Any, Any, T], patience: float = PATIENCE) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(patience)

    def start(self, work: Coroutine[Any, Any, T]) -> Callable[[float], T]:
        """Goes on; what it gives is waited for by the call."""
        task = asyncio.run_coroutine_threadsafe(work, self._loop)
        self._tasks.append(task)
        return task.result

    def check(self) -> None:
        """Whatever ended by an error raises it."""
        for task in self._tasks:
            if task.done() and not task.cancelled():
                task.result()

    def close(self) -> None:
        async def stop() -> None:
            tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.sleep(0.1)  # what was closed says so to the loop

        self.run(stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()


@contextlib.contextmanager
def background() -> Iterator[Background]:
    made = Background()
    try:
        yield made
    finally:
        made.close()


def without_a_gap(way: str, numbers: list[int], *, painted_anew: bool = False) -> None:
    """`painted_anew`: a terminal that was told of the move gets a fresh picture, with what had
    scrolled away; it may show a number again, but never leaves one out."""
    for before, after in itertools.pairwise(numbers):
        next_one = after == before + 1 or (painted_anew and after <= before)
        assert next_one, f"{way}: {after} after {before}"
