"""Connections: frames in, frames out, over one Unix socket.

A connection may attach, and then gets the stream; or just ask. Nothing a peer sends can end the
session or another's connection: what cannot be decoded ends its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import pwd
import socket
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from holdfast_sidecar import __version__
from holdfast_sidecar.audience import MOST_TOLD
from holdfast_sidecar.fanout import Outlet
from holdfast_sidecar.requests import Asker, Requests
from holdfast_sidecar.session import Session
from holdfast_sidecar.turn import Mode, Participant
from holdfast_wire.errors import BadRequest, HoldfastError, Internal
from holdfast_wire.frames import (
    Ack,
    AckStatus,
    Attach,
    Control,
    Decoder,
    Error,
    Frame,
    Input,
    Resize,
)
from holdfast_wire.ids import Actor, ClientId, actor_of, terminal_size

_RECEIVE: Final = 64 << 10
_MAX_CONNECTIONS: Final = 1024
_MAX_REQUESTS: Final = 64  # at once, on one connection
# Typed while the session is being moved; whoever types more is not read any further.
_MAX_HELD: Final = 1 << 20


def _actor(said: dict[str, Any], default: Actor) -> Actor:
    """Who a client is by the word of somebody who may speak for others."""
    name = said.get("actor")
    return default if name in (None, "") else actor_of(name, said.get("uid", ""))


def _short(value: object, default: str) -> str:
    text = value if isinstance(value, str) and value else default
    return "".join(c for c in text if c.isprintable())[:64]


class Connection:
    def __init__(self, sock: socket.socket, server: Server) -> None:
        self._sock, self._server = sock, server
        self._session = server.session
        self._decoder = Decoder()
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._client: ClientId | None = None
        self._closed = False
        self._held: list[Input] = []
        self._held_bytes = 0
        self._actor, self._trusted = _peer(sock)
        self._modality = "socket"
        emulator = self._session.emulator
        self.outlet = Outlet(
            sock, self._session.ring, lambda: emulator.seq, self._behind, self.close
        )
        self._loop.add_reader(sock, self._readable)

    def _readable(self) -> None:
        try:
            data = self._sock.recv(_RECEIVE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close()
            return
        try:
            for frame in self._decoder.feed(data):
                self._handle(frame)
        except HoldfastError as error:
            self.outlet.send(Error.of(error))
            self.close()

    def _handle(self, frame: Frame) -> None:
        if self._closed:
            return
        match frame:
            case Input() if self._session.parked and self._session.exit is None:
                self._hold(frame)
            case Input():
                self._refusable(frame.number, lambda: self._input(frame))
            case Resize():
                self._refusable(0, lambda: self._window(frame))
            case Attach(body):
                self._refusable(0, lambda: self._attach(body))
            case Control(body):
                self._request(body)
            case _:
                raise BadRequest("a client does not send such frames")

    def _refusable(self, ref: int, act: Any) -> None:
        """What may be refused without ending the connection."""
        try:
            act()
        except HoldfastError as error:
            self.outlet.send(Error.of(error, ref))

    # -- attaching --------------------------------------------------------------------------------

    def _attach(self, body: dict[str, Any]) -> None:
        if self._client is not None:
            raise BadRequest("this connection is attached already")
        columns, rows = body.get("columns"), body.get("rows")
        if not isinstance(columns, int) or not isinstance(rows, int):
            raise BadRequest("'columns' and 'rows' must be numbers")
        columns, rows = terminal_size(columns, rows)
        mode = Mode.parse(body.get("mode", "write"))
        if self._trusted:
            self._actor = _actor(body, self._actor)
        self._modality = _short(body.get("modality"), "socket")
        client = self._client = self._server.next_client()
        since = round(time.time(), 3)
        self._session.join(
            Participant(client, self._actor, self._modality, mode, columns, rows, since)
        )
        wanted = self._wanted(body.get("resume"))
        ring = self._session.ring
        resumed = wanted is not None and ring.oldest <= wanted <= ring.head
        how = self._session.exit
        answer = {
            **self._server.requests.facts(),
            **self._session.turn.who(client, MOST_TOLD),
            "client": client,
            "mode": mode.value,
            "resumed": resumed,
            "seq": wanted if resumed else ring.head,
            "head": ring.head,
            "exit": None if how is None or self._session.goes_on_elsewhere else how.to_json(),
            "version": __version__,
        }
        self.outlet.send(Attach(answer))
        self._session.admit(client, self.outlet)
        if resumed and wanted is not None:
            self.outlet.stream_from(wanted, (0, 0))
        else:
            self._spawn(self._session.send_snapshot(self.outlet, wanted))
        self._server.look()

    def _wanted(self, resume: object) -> int | None:
        """The seq the client wants to go on from, if it means this session."""
        if not isinstance(resume, dict) or resume.get("session_id") != self._session.spec.id:
            return None
        seq = resume.get("seq")
        return seq if isinstance(seq, int) and not isinstance(seq, bool) and seq >= 0 else None

    def _behind(self) -> None:
        """The outlet fell too far behind: gap and snapshot, once it has sent what it had."""
        self._spawn(self._session.send_snapshot(self.outlet, self.outlet.left_at))

    # -- acting -----------------------------------------------------------------------------------

    def _input(self, frame: Input) -> None:
        if self._client is None:
            raise BadRequest("attach before you type", "or use a 'send' request")

        def done(order: int, duplicate: bool) -> None:
            status = AckStatus.DUPLICATE if duplicate else AckStatus.APPLIED
            self.outlet.send_soon(Ack(frame.number, order, status))

        self._session.write(self._actor, self._client, self._modality, frame.key, frame.data, done)

    def _hold(self, frame: Input) -> None:
        """Not taken and not acknowledged: if the session goes, its client types it again there."""
        self._held.append(frame)
        self._held_bytes += len(frame.data) + len(frame.key)
        if self._held_bytes > _MAX_HELD:
            self._loop.remove_reader(self._sock)

    def stayed(self) -> None:
        """The session stays here: now is the time for what was typed meanwhile."""
        if self._closed:
            return
        held, self._held, self._held_bytes = self._held, [], 0
        self._loop.add_reader(self._sock, self._readable)
        for frame in held:
            self._handle(frame)

    def _window(self, frame: Resize) -> None:
        if self._client is None:
            raise BadRequest("attach before you resize")
        self._session.window(self._client, *terminal_size(frame.columns, frame.rows))

    def _request(self, body: dict[str, Any]) -> None:
        number = body.get("id")
        ref = number if isinstance(number, int) and 0 <= number < 2**64 else 0
        if len(self._tasks) >= _MAX_REQUESTS:
            raise BadRequest("too many requests at once on one connection", "wait for answers")
        self._spawn(self._answer(ref, body))

    async def _answer(self, ref: int, body: dict[str, Any]) -> None:
        try:
            asker = self._asker(body)
            result = await self._server.requests.answer(asker, body)
            self.outlet.send(Control({"kind": "answer", "id": ref, "result": result}))
        except HoldfastError as error:
            self.outlet.send(Error.of(error, ref))

    def _asker(self, body: dict[str, Any]) -> Asker:
        said = body.get("as")
        if self._client is None and self._trusted and isinstance(said, dict):
            return Asker(_actor(said, self._actor), None, _short(said.get("modality"), "socket"))
        return Asker(self._actor, self._client, self._modality)

    # -- ending -----------------------------------------------------------------------------------

    def _spawn(self, work: Any) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        self._loop.call_exception_handler({"message": "a request failed", "exception": error})
        with contextlib.suppress(OSError):
            self.outlet.send(Error.of(Internal("the sidecar failed; its log has the reason")))
        self.close()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._loop.remove_reader(self._sock)
        self.outlet.close()
        for task in self._tasks:
            task.cancel()
        if self._client is not None:
            self._session.leave(self._client)
        self._sock.close()
        self._server.gone(self)


class Server:
    def __init__(
        self, session: Session, requests: Requests, path: Path, look: Callable[[], None]
    ) -> None:
        """`look` is called when somebody came who will want to know what the session does."""
        self.session, self.requests, self.look = session, requests, look
        self._path = path
        self._numbers = itertools.count(1)
        self._connections: set[Connection] = set()
        self._loop = asyncio.get_running_loop()
        # Bound under another name and renamed: who finds the socket can connect to it.
        new = path.with_suffix(".new")
        new.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        self._listener.setblocking(False)
        self._listener.bind(str(new))
        new.chmod(0o600)
        self._listener.listen(128)
        new.rename(path)
        self._loop.add_reader(self._listener, self._accept)

    def next_client(self) -> ClientId:
        return ClientId(f"c{next(self._numbers)}")

    @property
    def connections(self) -> int:
        return len(self._connections)

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError:
            return
        self.adopt(sock)

    def adopt(self, sock: socket.socket) -> None:
        """A connection, wherever it was made."""
        sock.setblocking(False)
        if len(self._connections) >= _MAX_CONNECTIONS or self._listener.fileno() < 0:
            sock.close()
            return
        self._connections.add(Connection(sock, self))

    def gone(self, connection: Connection) -> None:
        self._connections.discard(connection)

    def stayed(self) -> None:
        for connection in list(self._connections):
            connection.stayed()

    def close(self) -> None:
        if self._listener.fileno() < 0:
            return
        self._path.unlink(missing_ok=True)  # first: who is let go looks for the next one at once
        self._loop.remove_reader(self._listener)
        self._listener.close()
        for connection in list(self._connections):
            connection.close()


def _peer(sock: socket.socket) -> tuple[Actor, bool]:
    """Who is on the other end, by the kernel's word, and whether it may speak for others: only
    root and the user this sidecar runs as, who could take its place anyway."""
    _pid, uid, _gid = struct.unpack(
        "3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    )
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        name = str(uid)
    return Actor(name), uid in (0, os.geteuid())
