"""Sessions of this machine: one connection to the sidecar per request, one per attached client."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final

from holdfast_gateway import folders
from holdfast_gateway.auth import Caller
from holdfast_gateway.backend import (
    CONNECT_SECONDS,
    READ_AHEAD,
    REQUEST_SECONDS,
    Link,
    Reader,
)
from holdfast_gateway.folders import Folder
from holdfast_wire.errors import Ended, HoldfastError, Internal, Unavailable, Unsupported
from holdfast_wire.frames import Control, Decoder, Error, encode
from holdfast_wire.rights import REQUESTS, Right

_RETRY_SECONDS: Final = 0.05
REQUEST_ID: Final = 1


class Sessions:
    """A `Backend`: the sessions of this machine. Whoever has the gateway's token may do all."""

    def __init__(self, state: Path, poke: Callable[[], None]) -> None:
        self._state = state
        self._poke = poke

    @contextlib.asynccontextmanager
    async def connect(
        self,
        name: str,
        caller: Caller,
        patience: float = CONNECT_SECONDS,
        right: Right = Right.OBSERVE,
    ) -> AsyncIterator[Link]:
        folder = folders.find(self._state, name)
        reader, writer = await self._open(folder, patience)
        try:
            yield Link(reader, writer, _allowed, asyncio.get_running_loop().create_future())
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
            self._poke()  # if it was the sidecar that went, do not wait for the next scan

    async def _open(
        self, folder: Folder, patience: float
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        deadline = asyncio.get_running_loop().time() + patience
        while True:
            try:
                return await asyncio.open_unix_connection(
                    str(folder.sidecar_socket), limit=READ_AHEAD
                )
            except OSError:
                self._poke()
                if asyncio.get_running_loop().time() >= deadline or not folder.hold_accepts():
                    raise self._away(folder) from None
                await asyncio.sleep(_RETRY_SECONDS)

    def _away(self, folder: Folder) -> HoldfastError:
        ended = folder.exit()
        if ended is not None:
            return Ended(f"session {folder.name!r} has ended", "start a new one")
        return Unavailable(
            f"session {folder.name!r} has no sidecar at the moment",
            f"try again; {folder.sidecar_log} says why if it stays so",
        )

    async def request(
        self,
        name: str,
        body: dict[str, Any],
        caller: Caller,
        *,
        seconds: float = REQUEST_SECONDS,
        patience: float = CONNECT_SECONDS,
    ) -> dict[str, Any]:
        request = encode(Control({**body, "id": REQUEST_ID, "as": caller.to_json()}))
        retry_until = asyncio.get_running_loop().time() + patience
        try:
            async with asyncio.timeout(patience + seconds):
                while True:
                    try:
                        async with self.connect(name, caller, patience) as link:
                            return await asked(link, request)
                    except (OSError, EOFError):
                        late = asyncio.get_running_loop().time() >= retry_until
                        if late or not repeatable(body):
                            raise TimeoutError from None
                    await asyncio.sleep(_RETRY_SECONDS)
        except TimeoutError:
            raise silent(name) from None

    async def list(self, caller: Caller) -> list[dict[str, Any]]:
        found = list(folders.every(self._state))
        return await asyncio.gather(*(self.describe(folder.name, caller) for folder in found))

    async def wake(self, name: str, caller: Caller) -> dict[str, Any]:
        folder = folders.find(self._state, name)
        if folder.hold_accepts() or folder.exit() is not None:
            return await self.describe(name, caller)
        raise Unsupported(
            "this gateway does not wake sessions of this machine", f"use: holdfast wake {name}"
        )

    async def describe(self, name: str, caller: Caller) -> dict[str, Any]:
        folder = folders.find(self._state, name)
        try:
            return await self.request(name, {"kind": "info"}, caller, seconds=2.0, patience=0.0)
        except HoldfastError:
            return _from_files(folder)


async def _allowed(_: Right) -> None:
    """The token was right."""


async def asked(link: Link, request: bytes) -> dict[str, Any]:
    """The answer to one encoded request; EOFError if the sidecar goes before it."""
    link.writer.write(request)
    await link.writer.drain()
    return await _answer(link.reader)


def silent(name: str) -> Unavailable:
    return Unavailable(
        f"session {name!r} did not answer", "try again; with a key it takes effect once"
    )


def repeatable(body: dict[str, Any]) -> bool:
    return "key" in body or REQUESTS.get(body["kind"]) is Right.OBSERVE


async def _answer(reader: Reader) -> dict[str, Any]:
    decoder = Decoder()
    while data := await reader.read(READ_AHEAD):
        for frame in decoder.feed(data):
            match frame:
                case Control({"kind": "answer", "id": int(ref), "result": dict(result)}):
                    if ref == REQUEST_ID:
                        return result
                case Error(ref=ref):
                    if ref in (0, REQUEST_ID):
                        raise frame.exception()
                case Control():
                    continue  # news, or a kind from a newer sidecar
                case _:
                    raise Internal("the sidecar answered a request with a stream")
    raise EOFError


def _state_from_files(folder: Folder) -> dict[str, Any]:
    ended = folder.exit()
    if ended is None:
        return {"activity": "unavailable", "process": None, "exit": None, "sentence": "no sidecar"}
    return {"activity": "ended", "process": None, "exit": ended, "sentence": "has ended"}


def _from_files(folder: Folder) -> dict[str, Any]:
    told = folder.session()
    state = _state_from_files(folder)
    kept = {key: told.get(key) for key in ("command", "created", "columns", "rows")}
    return {
        "session": folder.name,
        "session_id": told.get("id"),
        **kept,
        "clients": [],
        "state": state,
        "exit": state["exit"],
    }
