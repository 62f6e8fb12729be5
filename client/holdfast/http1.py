"""Requests over HTTP/1.1, one after the other, and the upgrade of one to a WebSocket.

The standard library's client would do, but loading it takes longer than a request. Of the answer
everything is bounded: `_HEAD_BYTES` for its head, `BODY_BYTES` for the rest.
"""

from __future__ import annotations

import contextlib
import json
import socket
from typing import Any, Final, NamedTuple

from holdfast.access import Access
from holdfast.answers import error_of
from holdfast_wire.errors import HoldfastError, Internal, TooLarge, Unavailable

# A request the API server does not answer in this time is not worth a person's wait.
REQUEST_SECONDS: Final = 15.0
BODY_BYTES: Final = 64 << 20
_HEAD_BYTES: Final = 1 << 16
_READ_BYTES: Final = 1 << 16
JSON: Final = "application/json"

Headers = list[tuple[str, str]]


class Response(NamedTuple):
    status: int
    headers: dict[str, str]
    """Names in small letters; of several of a name the last."""
    body: bytes

    def json(self) -> dict[str, Any]:
        try:
            found = json.loads(self.body)
        except (ValueError, RecursionError) as error:
            raise Internal("the server's answer is not JSON") from error
        return found if isinstance(found, dict) else {}


class Stream:
    """Reads a socket up to what is wanted, and keeps the rest."""

    def __init__(self, connected: socket.socket) -> None:
        self.socket = connected
        self.buffer = bytearray()

    def until(self, mark: bytes, limit: int = _HEAD_BYTES) -> bytes:
        searched = 0
        while (end := self.buffer.find(mark, searched)) < 0:
            searched = max(0, len(self.buffer) - len(mark))
            if len(self.buffer) > limit:
                raise TooLarge("the server's answer has too long a head")
            self._more()
        return self.take(end + len(mark))

    def exactly(self, size: int) -> bytes:
        if size > BODY_BYTES:
            raise TooLarge(f"the server's answer is over {BODY_BYTES} bytes")
        while len(self.buffer) < size:
            self._more()
        return self.take(size)

    def to_the_end(self) -> bytes:
        with contextlib.suppress(EOFError):
            while len(self.buffer) <= BODY_BYTES:
                self._more()
        return self.take(len(self.buffer))

    def take(self, size: int) -> bytes:
        taken = bytes(self.buffer[:size])
        del self.buffer[:size]
        return taken

    def arrived(self) -> bool:
        """Whether there is something, within the socket's timeout."""
        if not self.buffer:
            with contextlib.suppress(TimeoutError):
                self._more()
        return bool(self.buffer)

    def _more(self) -> None:
        data = self.socket.recv(_READ_BYTES)
        if not data:
            raise EOFError
        self.buffer += data


def head(access: Access, method: str, path: str, headers: Headers) -> bytes:
    lines = [f"{method} {access.address.prefix}{path} HTTP/1.1", f"Host: {access.address.header}"]
    lines += [f"{name}: {value}" for name, value in (*access.headers(), *headers)]
    if any("\r" in line or "\n" in line for line in lines):
        raise Internal("a header would have had two lines")
    return "\r\n".join([*lines, "", ""]).encode()


def read_head(stream: Stream) -> tuple[int, dict[str, str]]:
    while True:
        first, *lines = stream.until(b"\r\n\r\n").decode("latin-1").rstrip("\r\n").split("\r\n")
        version, _, rest = first.partition(" ")
        if not version.startswith("HTTP/1.") or not rest[:3].isdigit():
            raise Unavailable("what answers there is no HTTP server")
        status = int(rest[:3])
        if status != 100 and (status > 199 or status == 101):
            break
    parsed = (line.partition(":") for line in lines)
    return status, {name.strip().lower(): value.strip() for name, _, value in parsed}


def read_body(stream: Stream, status: int, headers: dict[str, str]) -> bytes:
    if status in (204, 304):
        return b""
    if headers.get("transfer-encoding", "").lower() == "chunked":
        return _chunks(stream)
    if (length := headers.get("content-length", "")).isdigit():
        return stream.exactly(int(length))
    return stream.to_the_end()


def _chunks(stream: Stream) -> bytes:
    parts: list[bytes] = []
    size = 0
    while True:
        line = stream.until(b"\r\n").split(b";")[0].strip()
        try:
            length = int(line, 16)
        except ValueError:
            raise Unavailable("the server's answer is broken") from None
        size += length
        if length == 0:
            while stream.until(b"\r\n") != b"\r\n":
                pass
            return b"".join(parts)
        if size > BODY_BYTES:
            raise TooLarge(f"the server's answer is over {BODY_BYTES} bytes")
        parts.append(stream.exactly(length))
        stream.until(b"\r\n")


class Http:
    """One request after the other. Not for two threads at once."""

    def __init__(self, access: Access, client: str, keep: bool = True) -> None:
        """`client`: how the asker came, for the session's journal. `keep`: the connection, for
        the next request; `close` closes it."""
        self.access, self.client, self._keep = access, client, keep
        self._stream: Stream | None = None

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        kind: str = JSON,
        seconds: float = REQUEST_SECONDS,
    ) -> dict[str, Any]:
        """The answer's object; raises what an answer that is no success says."""
        answer = self.request(method, path, body, kind, seconds)
        if answer.status >= 300:
            raise error_of(answer.status, answer.body)
        return answer.json()

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        kind: str = JSON,
        seconds: float = REQUEST_SECONDS,
    ) -> Response:
        data = b"" if body is None else json.dumps(body).encode()
        headers = [("Accept", JSON), ("X-Holdfast-Client", self.client)]
        if body is not None:
            headers += [("Content-Type", kind), ("Content-Length", str(len(data)))]
        answer = self._asked(method, path, headers, data, seconds)
        if answer.status == 401 and self.access.renew():
            self.close()
            answer = self._asked(method, path, headers, data, seconds)
        return answer

    def _asked(
        self, method: str, path: str, headers: Headers, data: bytes, seconds: float
    ) -> Response:
        kept = self._stream is not None
        try:
            return self._once(method, path, headers, data, seconds)
        except (OSError, EOFError) as error:
            self.close()
            if kept and method == "GET" and not isinstance(error, TimeoutError):
                # The server had closed what we kept; that says nothing of the next one.
                return self._asked(method, path, headers, data, seconds)
            raise Unavailable(f"{self.access.address.host} does not answer", "try again") from error
        except HoldfastError:
            self.close()
            raise

    def _once(
        self, method: str, path: str, headers: Headers, data: bytes, seconds: float
    ) -> Response:
        if self._stream is None:
            self._stream = Stream(self.access.dial())
        stream = self._stream
        stream.socket.settimeout(seconds)
        stream.socket.sendall(head(self.access, method, path, headers) + data)
        status, found = read_head(stream)
        body = read_body(stream, status, found)
        bounded = "content-length" in found or "transfer-encoding" in found
        told = found.get("connection", "").lower() == "close"
        if told or not bounded or not self._keep:
            self.close()
        return Response(status, found, body)

    def close(self) -> None:
        if self._stream is not None:
            self._stream.socket.close()
            self._stream = None
