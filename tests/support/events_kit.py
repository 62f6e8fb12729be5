"""A client of a session's server-sent events."""

from __future__ import annotations

import base64
import json
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp


class Viewer:
    """What a client sees: its output joined by position, and everything else."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.response = response
        self.stream = b""
        self.began: int | None = None
        self.last = ""
        self.seen: list[tuple[str, dict[str, Any]]] = []

    @property
    def kinds(self) -> list[str]:
        return [kind for kind, _ in self.seen]

    async def next(self) -> bool:
        """Whether there was another event."""
        lines: dict[str, str] = {}
        while True:
            line = (await self.response.content.readline()).decode()
            if not line:
                return False
            if line == "\n":
                if "data" in lines:
                    break
                lines = {}  # a comment, or the time to wait
            name, _, value = line.rstrip("\n").partition(": ")
            lines[name] = value
        self._take(lines["event"], json.loads(lines["data"]), lines.get("id"))
        return True

    def _take(self, kind: str, body: dict[str, Any], mark: str | None) -> None:
        self.last = mark or self.last
        if kind != "output":
            self.seen.append((kind, body))
            return
        data = body["text"].encode() if "text" in body else base64.b64decode(body["base64"])
        if self.began is None:
            self.began = body["seq"]
        assert body["seq"] == self.began + len(self.stream), "a gap, or a byte twice"
        self.stream += data

    async def until(self, done: Callable[[], bool]) -> None:
        while not done():
            assert await self.next(), f"the stream ended: {self.seen[-3:]}"


@asynccontextmanager
async def viewing(
    url: str,
    token: str,
    last: str = "",
    tls: ssl.SSLContext | None = None,
    name: str | None = None,
    patience: float = 40.0,
) -> AsyncIterator[Viewer]:
    """`name`: of the gateway's certificate, where the URL has an address."""
    headers = {"Authorization": f"Bearer {token}", "Accept": "text/event-stream"}
    limit = aiohttp.ClientTimeout(total=patience)
    async with aiohttp.ClientSession(trust_env=False, timeout=limit, read_bufsize=1 << 22) as http:
        sent = {**headers, **({"Last-Event-ID": last} if last else {})}
        async with http.get(
            url, headers=sent, ssl=True if tls is None else tls, server_hostname=name
        ) as response:
            assert response.status == 200, await response.text()
            assert response.headers["Content-Type"] == "text/event-stream"
            yield Viewer(response)
