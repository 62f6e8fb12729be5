"""A very small client of the Kubernetes API: one JSON request after the other on one connection.

The sidecar renews a Lease, and looks at its Session when its pod is to go; a general HTTP client
would cost every session more memory than its terminal does. The token is read anew
for each request and the authority's certificates whenever their file changed: both are replaced
while we run.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import ssl
from pathlib import Path
from typing import Any, Final, NamedTuple

_MAX_HEAD: Final = 64 << 10
_MAX_BODY: Final = 4 << 20  # an object in etcd has at most 1.5 MiB
_FIRST_FINAL: Final = 200
_WITHOUT_BODY: Final = (204, 304)


class ApiError(Exception):
    """No answer, or none that could be understood. What was asked may have been done."""


# Deep nesting is told by the JSON parser as a RecursionError.
_NO_ANSWER: Final = (OSError, EOFError, ValueError, RecursionError, asyncio.LimitOverrunError)


class Answer(NamedTuple):
    status: int
    body: dict[str, Any]


class Api:
    def __init__(self, host: str, port: int, credentials: Path) -> None:
        """`credentials` is a folder with `token` and `ca.crt`."""
        self._host, self._port = host, port
        self._token, self._authority = credentials / "token", credentials / "ca.crt"
        self._trust: tuple[os.stat_result, ssl.SSLContext] | None = None
        self._stream: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    @classmethod
    def from_environment(cls, credentials: Path) -> Api:
        try:
            host = os.environ["KUBERNETES_SERVICE_HOST"]
            port = int(os.environ["KUBERNETES_SERVICE_PORT"])
        except (KeyError, ValueError):
            raise ApiError("KUBERNETES_SERVICE_HOST and _PORT are not set: no pod?") from None
        return cls(host, port, credentials)

    async def get(self, path: str) -> Answer:
        return await self._request("GET", path, None)

    async def put(self, path: str, body: dict[str, Any]) -> Answer:
        return await self._request("PUT", path, body)

    def close(self) -> None:
        if self._stream is not None:
            self._stream[1].transport.abort()
            self._stream = None

    async def _request(self, method: str, path: str, body: dict[str, Any] | None) -> Answer:
        """Bounded by the caller's timeout. Whatever goes wrong ends the connection with it, so
        that an answer is never taken for another's."""
        try:
            reader, writer = await self._connected()
            writer.write(self._encode(method, path, body))
            await writer.drain()
            return await self._answer(reader)
        except _NO_ANSWER as error:
            self.close()
            raise ApiError(f"{method} {path}: {str(error) or type(error).__name__}") from error
        except BaseException:
            self.close()
            raise

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._stream is not None and (
            self._stream[1].is_closing()
            or self._trust_changed()
            or not await _quiet(self._stream[0])
        ):
            self.close()
        if self._stream is None:
            self._stream = await asyncio.open_connection(
                self._host, self._port, ssl=self._context(), limit=_MAX_HEAD
            )
        return self._stream

    def _trust_changed(self) -> bool:
        now = self._authority.stat()
        return self._trust is None or (now.st_ino, now.st_mtime_ns) != (
            self._trust[0].st_ino,
            self._trust[0].st_mtime_ns,
        )

    def _context(self) -> ssl.SSLContext:
        if self._trust is None or self._trust_changed():
            stat = self._authority.stat()
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            context.load_verify_locations(cafile=str(self._authority))
            self._trust = (stat, context)
        return self._trust[1]

    def _encode(self, method: str, path: str, body: dict[str, Any] | None) -> bytes:
        content = b"" if body is None else json.dumps(body, separators=(",", ":")).encode()
        host = f"[{self._host}]" if ":" in self._host else self._host
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: {host}:{self._port}\r\n"
            f"Authorization: Bearer {self._token.read_text().strip()}\r\n"
            "Accept: application/json\r\nUser-Agent: holdfast-sidecar\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
        )
        return head.encode("ascii") + content

    async def _answer(self, reader: asyncio.StreamReader) -> Answer:
        status, fields = await _head(reader)
        while status < _FIRST_FINAL:  # 100 Continue and its like come before the answer
            status, fields = await _head(reader)
        content = await _content(reader, status, fields)
        if "close" in fields.get("connection", "").lower():
            self.close()
        body = json.loads(content) if content else {}
        return Answer(status, body if isinstance(body, dict) else {})


async def _quiet(reader: asyncio.StreamReader) -> bool:
    """Whether the idle connection is open and nothing came unasked: that would be taken for the
    answer to what is asked next."""
    look = asyncio.ensure_future(reader.read(1))
    try:
        await asyncio.sleep(0)
        return not look.done()
    finally:
        look.cancel()
        await asyncio.wait([look])


async def _head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    version, _, rest = head[0].partition(" ")
    if not version.startswith("HTTP/1."):
        raise ValueError(f"no HTTP answer: {head[0][:80]!r}")
    fields = {
        name.strip().lower(): value.strip()
        for name, _, value in (line.partition(":") for line in head[1:] if line)
    }
    return int(rest[:3]), fields


async def _content(reader: asyncio.StreamReader, status: int, fields: dict[str, str]) -> bytes:
    if status in _WITHOUT_BODY:
        return b""
    coding = fields.get("transfer-encoding", "").lower()
    if coding == "chunked":
        return await _chunks(reader)
    if coding:
        raise ValueError(f"an answer coded as {coding[:40]!r}")
    if "content-length" not in fields:
        # It would end with the connection; where that is kept, nobody could tell where.
        raise ValueError("an answer of unknown length")
    length = int(fields["content-length"])
    if not 0 <= length <= _MAX_BODY:
        raise ValueError(f"an answer of {length} bytes")
    return await reader.readexactly(length)


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    parts: list[bytes] = []
    total = 0
    while size := int((await reader.readline()).split(b";")[0], 16):
        total += size
        if total > _MAX_BODY:
            raise ValueError("an answer without end")
        parts.append(await reader.readexactly(size))
        if await reader.readexactly(2) != b"\r\n":
            raise ValueError("a chunk of another size than it said")
    while (await reader.readline()).strip():
        pass  # trailers
    return b"".join(parts)


def same_object(path: str, body: dict[str, Any]) -> bool:
    """Whether an answer is the object asked for, and not some proxy's idea of one."""
    with contextlib.suppress(KeyError, TypeError):
        return bool(body["metadata"]["name"] == path.rsplit("/", 1)[-1])
    return False
