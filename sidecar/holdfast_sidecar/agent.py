"""agent.sock: the node's agent asks here that a session be let go, or taken over (docs/move.md).

One JSON object a line, one answer a line, for root alone: whoever asks here decides where the
session lives. An answer that nobody waits for any more is still brought about.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

from holdfast_sidecar.runner import log

_MAX_LINE: Final = 64 << 10

Body = dict[str, Any]
Answer = Callable[[Body], Awaitable[Body]]


class AgentError(Exception):
    """What was asked was not done; `code` is for the agent, the message for a person."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def admitted(uid: int) -> bool:
    return uid == 0


async def serve(path: Path, answer: Answer) -> asyncio.Server:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        uid = _peer_uid(writer.get_extra_info("socket"))
        if not admitted(uid):
            log(f"user {uid} is not served at {path.name}")
            writer.close()
            return
        # A line over the limit is a ValueError: it ends this conversation and nothing else.
        with contextlib.suppress(OSError, ValueError):
            while line := await reader.readline():
                said = json.dumps(await _answered(line, answer), separators=(",", ":"))
                writer.write(said.encode() + b"\n")
                await writer.drain()
        writer.close()

    new = path.with_suffix(".new")
    new.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    listener.setblocking(False)
    listener.bind(str(new))
    new.chmod(0o600)
    listener.listen(16)
    new.rename(path)
    return await asyncio.start_unix_server(talk, sock=listener, limit=_MAX_LINE)


async def _answered(line: bytes, answer: Answer) -> Body:
    try:
        body = json.loads(line)
        if not isinstance(body, dict):
            raise ValueError("not an object")
    except ValueError as error:
        return _refusal("bad_request", f"this cannot be understood: {error}")
    try:
        return {"ok": True, **await answer(body)}
    except AgentError as error:
        log(f"the agent asked to {str(body.get('do'))[:20]}; {error.code}: {error}")
        return _refusal(error.code, str(error))


def check_meant(body: Body, session: str, namespace: str, epoch: int) -> None:
    """The order is for this incarnation of this session, and for no other."""
    own = {"session": session, "namespace": namespace, "epoch": epoch}
    for name, value in own.items():
        if body.get(name) != value or isinstance(body.get(name), bool):
            raise AgentError("foreign", f"this is for another session: its {name} is not {value}")


def _refusal(code: str, message: str) -> Body:
    return {"ok": False, "code": code, "message": message}


def _peer_uid(sock: socket.socket) -> int:
    peer = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    uid: int = struct.unpack("3i", peer)[1]
    return uid
