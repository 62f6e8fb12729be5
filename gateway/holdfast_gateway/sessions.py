"""Conversations with sidecars: one connection per request, one per attached client."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from holdfast_gateway import folders
from holdfast_gateway.auth import Caller
from holdfast_gateway.folders import Folder
from holdfast_wire.errors import Ended, HoldfastError, Internal, Unavailable
from holdfast_wire.frames import Control, Decoder, Error, encode

# A killed sidecar is back well within this; longer, and the caller should hear of it.
CONNECT_SECONDS: Final = 3.0
_RETRY_SECONDS: Final = 0.05
REQUEST_SECONDS: Final = 10.0
# What asyncio reads ahead from one sidecar. Beyond it the sidecar's own bounded queue takes over.
READ_AHEAD: Final = 1 << 18
_REQUEST_ID: Final = 1
_READING: Final = frozenset({"info", "screen", "state", "graph", "journal", "ping"})


@dataclass(frozen=True, slots=True)
class Sidecar:
    """An open connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


class Sessions:
    def __init__(self, state: Path, poke: Callable[[], None]) -> None:
        self._state = state
        self._poke = poke

    def find(self, name: str) -> Folder:
        return folders.find(self._state, name)

    @contextlib.asynccontextmanager
    async def connect(
        self, folder: Folder, patience: float = CONNECT_SECONDS
    ) -> AsyncIterator[Sidecar]:
        """Connect, waiting out a sidecar that is just being restarted."""
        sidecar = await self._open(folder, patience)
        try:
            yield sidecar
        finally:
            sidecar.writer.close()
            with contextlib.suppress(OSError):
                await sidecar.writer.wait_closed()

    async def _open(self, folder: Folder, patience: float) -> Sidecar:
        deadline = asyncio.get_running_loop().time() + patience
        while True:
            try:
                reader, writer = await asyncio.open_unix_connection(
                    str(folder.sidecar_socket), limit=READ_AHEAD
                )
            except OSError:
                self._poke()
                if asyncio.get_running_loop().time() >= deadline or not folder.hold_accepts():
                    raise self._away(folder) from None
                await asyncio.sleep(_RETRY_SECONDS)
            else:
                return Sidecar(reader, writer)

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
        folder: Folder,
        body: dict[str, Any],
        caller: Caller,
        *,
        seconds: float = REQUEST_SECONDS,
        patience: float = CONNECT_SECONDS,
    ) -> dict[str, Any]:
        """One request, one answer. If the sidecar dies over it, it is put to the next one, unless
        that could do a thing twice: then `Unavailable`, and the caller decides."""
        request = encode(Control({**body, "id": _REQUEST_ID, "as": caller.to_json()}))
        retry_until = asyncio.get_running_loop().time() + patience
        try:
            async with asyncio.timeout(patience + seconds):
                while True:
                    try:
                        return await self._request_once(folder, request, patience)
                    except (OSError, EOFError):
                        self._poke()
                        late = asyncio.get_running_loop().time() >= retry_until
                        if late or not _repeatable(body):
                            raise TimeoutError from None
                    await asyncio.sleep(_RETRY_SECONDS)
        except TimeoutError:
            raise Unavailable(
                f"session {folder.name!r} did not answer",
                "try again; with a key it takes effect once",
            ) from None

    async def _request_once(
        self, folder: Folder, request: bytes, patience: float
    ) -> dict[str, Any]:
        async with self.connect(folder, patience) as sidecar:
            sidecar.writer.write(request)
            await sidecar.writer.drain()
            return await _answer(sidecar.reader)

    async def list(self, caller: Caller) -> list[dict[str, Any]]:
        found = list(folders.every(self._state))
        return await asyncio.gather(*(self.describe(folder, caller) for folder in found))

    async def describe(self, folder: Folder, caller: Caller) -> dict[str, Any]:
        """What the sidecar says of its session, or what the folder says if there is none."""
        try:
            return await self.request(folder, {"kind": "info"}, caller, seconds=2.0, patience=0.0)
        except HoldfastError:
            return _from_files(folder)

    def ended(self, name: str) -> dict[str, Any]:
        """The last state of a session without a sidecar."""
        return _state_from_files(self.find(name))


def _repeatable(body: dict[str, Any]) -> bool:
    return "key" in body or body["kind"] in _READING


async def _answer(reader: asyncio.StreamReader) -> dict[str, Any]:
    decoder = Decoder()
    while data := await reader.read(READ_AHEAD):
        for frame in decoder.feed(data):
            match frame:
                case Control({"kind": "answer", "id": int(ref), "result": dict(result)}):
                    if ref == _REQUEST_ID:
                        return result
                case Error(ref=ref):
                    if ref in (0, _REQUEST_ID):
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
