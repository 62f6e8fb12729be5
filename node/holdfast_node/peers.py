"""The two processes in a session's pod that an agent talks to: its sidecar and its hold.

Both listen on Unix sockets in the pod's volumes, opened by `safe_open`. Both know the
agent by what the kernel says of it: root to the sidecar, outside its PID namespace to hold.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from holdfast_wire.errors import HoldfastError, NotFound, Unavailable

from . import containers, freezer, safe_open
from .safe_open import UnsafePath

AGENT_SOCKET: Final = "var/lib/holdfast/agent.sock"
STATE: Final = "var/lib/holdfast"
HOLD_SOCKET: Final = ".holdfast/hold.sock"
_ANSWER_SECONDS: Final = 10.0
_LINE: Final = 1 << 20
_PACKET: Final = 64 << 10


class Refused(HoldfastError):
    """The sidecar or hold said no; `code` is its word for it."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.word = code


class SidecarLink:
    """One request at a time, each on a connection of its own: a sidecar may be started anew
    between any two."""

    def __init__(self, pid: int) -> None:
        self._connect = partial(
            safe_open.connect, pid, AGENT_SOCKET, socket.SOCK_STREAM, _ANSWER_SECONDS
        )

    @classmethod
    def at(cls, folder: Path) -> SidecarLink:
        """Of a session on this machine, without a pod."""
        made = cls.__new__(cls)
        made._connect = partial(_connected, folder / "agent.sock")
        return made

    async def ask(self, do: str, seconds: float = _ANSWER_SECONDS, **fields: Any) -> dict[str, Any]:
        try:
            async with asyncio.timeout(seconds):
                answer = await self._exchange({"do": do, **fields})
        except UnsafePath:
            raise
        except (OSError, EOFError, ValueError, TimeoutError) as error:
            raise Unavailable(f"the sidecar does not answer {do}: {error!r}") from error
        if answer.get("ok") is not True:
            raise Refused(str(answer.get("code", "")), str(answer.get("message", "")))
        return answer

    async def _exchange(self, request: dict[str, Any]) -> dict[str, Any]:
        sock = await asyncio.to_thread(self._connect)
        reader, writer = await asyncio.open_unix_connection(sock=sock, limit=_LINE)
        try:
            writer.write(json.dumps(request).encode() + b"\n")
            line = await reader.readline()
        finally:
            writer.close()
        if not line.endswith(b"\n"):
            raise EOFError("the connection ended")
        found = json.loads(line)
        if not isinstance(found, dict):
            raise ValueError("not an object")
        return found


def ask_hold(pid: int, request: str, descriptor: int | None = None) -> dict[str, Any]:
    """`pid` is hold's own, on the host."""
    return _ask_hold(partial(_to_hold, pid, None), request, descriptor)


def keeper_of(hold: int, path: Path | None = None) -> int:
    """The root of the session's tree, by hold's word: what a process calls itself says nothing, and
    orphans of others become hold's children too. `path`: of hold's socket, if it is in no pod.
    NotFound: none was started, or it has ended."""
    said = _ask_hold(partial(_to_hold, hold, path), "status", None)
    own = len(containers.status(hold)["NSpid"].split())
    for pid in freezer.children(hold) if said.get("exited") is False else ():
        if containers.ending(pid):
            continue
        numbers = containers.status(pid)["NSpid"].split()
        # One with more numbers is in a PID namespace of its own, and counted by that.
        if len(numbers) == own and int(numbers[-1]) == said.get("keeper_pid"):
            return pid
    raise NotFound("the session has no processes")


def _to_hold(hold: int, path: Path | None) -> socket.socket:
    """Its socket lies where the session can put another in its place. The kernel knows who made the
    one that answers."""
    if path is None:
        kind = socket.SOCK_SEQPACKET
        sock = safe_open.connect(hold, HOLD_SOCKET, kind, _ANSWER_SECONDS)
    else:
        sock = _connected(path, socket.SOCK_SEQPACKET)
    peer = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    if struct.unpack("3i", peer)[0] != hold:
        sock.close()
        raise OSError("another process listens in the place of hold")
    return sock


def ask_hold_at(path: Path, request: str, descriptor: int | None = None) -> dict[str, Any]:
    """Of a session on this machine, without a pod."""
    return _ask_hold(partial(_connected, path, socket.SOCK_SEQPACKET), request, descriptor)


def _connected(path: Path, kind: int = socket.SOCK_STREAM) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, kind | socket.SOCK_CLOEXEC)
    sock.settimeout(_ANSWER_SECONDS)
    try:
        sock.connect(str(path))
    except BaseException:
        sock.close()
        raise
    return sock


def _ask_hold(
    connect: Callable[[], socket.socket], request: str, descriptor: int | None
) -> dict[str, Any]:
    """A packet there and a packet back."""
    try:
        with connect() as sock:
            if descriptor is None:
                sock.send(request.encode())
            else:
                socket.send_fds(sock, [request.encode()], [descriptor])
            answer = _until(sock, lambda packet: "event" not in packet)
    except (OSError, ValueError) as error:
        raise Unavailable(f"hold does not answer {request.split()[0]}: {error!r}") from error
    if answer.get("ok") is not True:
        raise Refused(str(answer.get("error", "")), str(answer.get("message", "")))
    return answer


def _until(sock: socket.socket, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    while True:
        data = sock.recv(_PACKET)
        if not data:
            raise OSError("it closed the connection")
        packet = json.loads(data)
        if isinstance(packet, dict) and wanted(packet):
            return packet
