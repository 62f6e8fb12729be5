"""The sidecar's link to hold, the guard of the session's processes: its one way in and out.

Requests and answers are packets on a Unix socket, answered in order. Invariant: every request
that was sent has one entry in `_pending` until its last packet came or the link was lost, also
when its caller was cancelled meanwhile; so an answer is never taken for another's.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from .state import Descriptor, Graph, Listener, Process, Thread

__all__ = ["EventKind", "HoldError", "HoldEvent", "HoldLink", "HoldStatus", "Unstopped"]

_PACKET_MAX = 64 * 1024  # hold promises 60 KiB at most
_ROOM_FOR_FD = socket.CMSG_SPACE(4)
_PACKETS_PER_WAKE = 64  # then the loop gets its turn, however long the graph is
_CONNECT_TRIES = 50  # hold accepts at once unless it is busy freezing, which takes 3 s at most
_CONNECT_PAUSE = 0.1


class HoldError(Exception):
    """`code` is hold's own (refused, busy, expired, ending, incomplete, running, frozen,
    no_foreground, no_jobs, not_started, started, cannot_start, cannot_adopt, bad_request), or
    `absent` (nobody listens) or `lost` (the link broke). With cannot_start, `exit_code` is what
    hold exits with; with incomplete, `unstopped` is what still runs."""

    def __init__(
        self,
        code: str,
        message: str,
        exit_code: int | None = None,
        unstopped: Unstopped | None = None,
    ) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.exit_code = exit_code
        self.unstopped = Unstopped() if unstopped is None else unstopped


class EventKind(Enum):
    EXITED = "exited"
    FROZEN = "frozen"
    THAWED = "thawed"
    INCOMPLETE = "incomplete"  # what a freeze cannot stop has changed; also to nothing
    LEAVING = "leaving"  # hold was told to go, and gives the session time to be moved


@dataclass(frozen=True, slots=True)
class Unstopped:
    """What hold could not stop of a session that it says is frozen."""

    count: int = 0
    pids: tuple[int, ...] = ()  # the first of them, as hold numbers them

    @classmethod
    def of(cls, packet: dict[str, Any]) -> Unstopped:
        """An older hold says nothing of it."""
        return cls(packet.get("incomplete", 0), tuple(packet.get("unstopped", ())))

    def __bool__(self) -> bool:
        return self.count > 0

    def __str__(self) -> str:
        named = ", ".join(map(str, self.pids))
        more = "" if self.count <= len(self.pids) else f" and {self.count - len(self.pids)} more"
        return f"{named}{more}"


@dataclass(frozen=True, slots=True)
class HoldEvent:
    kind: EventKind
    by: str | None = None  # FROZEN: "request", "deadline"; EXITED: "itself", "end", "term"
    code: int | None = None  # EXITED: one of these two
    signal: int | None = None
    milliseconds: int | None = None  # LEAVING: how long
    unstopped: Unstopped | None = None  # INCOMPLETE


@dataclass(frozen=True, slots=True)
class HoldStatus:
    version: int
    hold_pid: int
    keeper_pid: int
    command_pid: int
    tty: str
    namespace: bool
    frozen: bool
    expired: bool
    deadline_ns: int
    boottime_ns: int
    exited: bool
    code: int | None
    signal: int | None
    # An older hold, still running after an upgrade, says nothing of these.
    started: bool = True  # false: it waits for `start`
    nonce: str = ""  # names this hold; as PID 1 it keeps it from the session's processes
    by: str | None = None  # once exited: "itself", "end" or "term"
    movable: bool = False  # it keeps the session from what cannot be checkpointed
    lingering: bool = False  # between `leaving` and the end that follows it
    incomplete: int = 0  # of one that is frozen, so many still run,
    unstopped: tuple[int, ...] = ()  # and these are among them


@dataclass(frozen=True, slots=True)
class Freeze:
    stopped: int
    refused: int
    milliseconds: int


class _Pending:
    """A request on its way: its packets so far, and the descriptor that came with them."""

    def __init__(self, done: asyncio.Future[list[dict[str, Any]]]) -> None:
        self.done = done
        self.packets: list[dict[str, Any]] = []
        self.fds: list[int] = []


class HoldLink:
    def __init__(
        self,
        sock: socket.socket,
        on_event: Callable[[HoldEvent], None] | None,
        on_lost: Callable[[], None] | None,
    ) -> None:
        self._sock = sock
        self._on_event = on_event
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._pending: deque[_Pending] = deque()
        self._turn = asyncio.Lock()
        self._open = True
        creds = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        self.hold_pid: int = struct.unpack("3i", creds)[0]
        """hold's pid as this process sees it; `status().hold_pid` is as hold itself does."""
        self._loop.add_reader(sock.fileno(), self._readable)

    @classmethod
    async def connect(
        cls,
        path: str,
        on_event: Callable[[HoldEvent], None] | None = None,
        on_lost: Callable[[], None] | None = None,
    ) -> HoldLink:
        """A link that hold has admitted; otherwise HoldError."""
        link = cls(await _connect(path), on_event, on_lost)
        try:
            await link.status()
        except BaseException:
            link.close()
            raise
        return link

    async def status(self) -> HoldStatus:
        answer = await self._ask("status")
        known = {k: answer[k] for k in HoldStatus.__slots__ if k in answer}
        return HoldStatus(**known | {"unstopped": tuple(answer.get("unstopped", ()))})

    async def start(self, columns: int, rows: int) -> None:
        """Starts the command of a hold that waits. If that fails with cannot_start, hold exits."""
        await self._ask(f"start {columns}x{rows}")

    async def master(self) -> int:
        """The terminal's master side, a descriptor the caller owns."""
        return await self._descriptor("master")

    async def outbox(self) -> int:
        """The file from which inputs are typed, likewise; see outbox.py."""
        return await self._descriptor("outbox")

    async def jobs(self) -> int:
        """The file in which jobs are asked for, likewise; see jobs_file.py."""
        return await self._descriptor("jobs")

    async def nudge(self) -> None:
        """Has the keeper look into that file."""
        await self._ask("nudge")

    async def _descriptor(self, request: str) -> int:
        pending = await self._request(request)
        if not pending.fds:
            raise HoldError("lost", "hold sent no descriptor; is the open-files limit reached?")
        return pending.fds.pop()

    async def freeze(self) -> Freeze:
        answer = await self._ask("freeze")
        return Freeze(answer["stopped"], answer["refused"], answer["milliseconds"])

    async def thaw(self) -> None:
        await self._ask("thaw")

    async def deadline(self, boottime_ns: int) -> None:
        """Past this instant of CLOCK_BOOTTIME hold stops everything, whatever becomes of us."""
        await self._ask(f"deadline {boottime_ns}")

    async def graph(self) -> Graph:
        """The whole tree; only the foreground group comes with its threads."""
        return _graph((await self._request("graph")).packets)

    async def foreground(self) -> Graph:
        return _graph((await self._request("foreground")).packets)

    async def end(self, grace: float) -> None:
        """Hang up, and kill what is left after `grace` seconds."""
        await self._ask(f"end {round(grace * 1000)}")

    async def heed(self) -> None:
        """Take up the SIGTERM that was put off (`leaving`), if one was."""
        await self._ask("heed")

    async def signal(self, sig: int) -> None:
        await self._ask(f"signal {int(sig)}")

    async def spare(self, pid: int) -> None:
        """For as long as this link stands no freeze stops that process, which entered hold's
        namespace from outside, nor what it started. The node's agent asks for it."""
        await self._ask(f"spare {pid}")

    async def collected(self) -> None:
        """Lets hold go: exit status and all output have been taken."""
        await self._ask("collected")

    def close(self) -> None:
        """Leaves without a call of `on_lost`: only hold's going is news."""
        self._on_lost = None
        self._lose("the link was closed")

    async def _ask(self, request: str) -> dict[str, Any]:
        return (await self._request(request)).packets[-1]

    async def _request(self, request: str) -> _Pending:
        async with self._turn:
            if not self._open:
                raise HoldError("lost", "hold is gone; connect again")
            pending = _Pending(self._loop.create_future())
            self._pending.append(pending)
            try:
                self._sock.send(request.encode())
            except BlockingIOError:
                self._pending.remove(pending)
                raise HoldError("busy", "hold takes no requests now; try again") from None
            except OSError:
                pass  # its last words may still be there to read, and the end of them after
            try:
                await pending.done
            except BaseException:
                _close_all(pending.fds)
                raise
        return pending

    def _readable(self) -> None:
        for _ in range(_PACKETS_PER_WAKE):
            if not self._open or not self._read_one():
                return

    def _read_one(self) -> bool:
        try:
            data, fds = _receive(self._sock)
        except (BlockingIOError, InterruptedError):
            return False
        except ConnectionResetError:
            return True  # reported once, ahead of packets that came before the reset
        except OSError as error:
            self._lose(str(error))
            return False
        if not data:
            self._lose("hold closed the link")
            return False
        self._take(json.loads(data), fds)
        return True

    def _take(self, packet: dict[str, Any], fds: list[int]) -> None:
        if "event" in packet:
            self._event(packet)
        elif not self._pending:
            # Only a refusal comes unasked, and the end of the link follows it.
            _close_all(fds)
        else:
            pending = self._pending[0]
            pending.packets.append(packet)
            pending.fds += fds
            if "ok" in packet:
                self._pending.popleft()
                _settle(pending)

    def _event(self, packet: dict[str, Any]) -> None:
        try:
            kind = EventKind(packet["event"])
        except ValueError:
            return  # a newer hold may tell more than we know
        by, code, number, milliseconds = (
            packet.get(key) for key in ("by", "code", "signal", "milliseconds")
        )
        left = Unstopped.of(packet) if kind is EventKind.INCOMPLETE else None
        event = HoldEvent(kind, by, code, number, milliseconds, left)
        if self._on_event is not None:
            self._on_event(event)

    def _lose(self, why: str) -> None:
        if not self._open:
            return
        self._open = False
        self._loop.remove_reader(self._sock.fileno())
        self._sock.close()
        for pending in self._pending:
            _close_all(pending.fds)
            if not pending.done.done():
                pending.done.set_exception(HoldError("lost", why))
        self._pending.clear()
        if self._on_lost is not None:
            self._on_lost()


def _settle(pending: _Pending) -> None:
    last = pending.packets[-1]
    if pending.done.done():  # the caller was cancelled
        _close_all(pending.fds)
    elif last["ok"]:
        pending.done.set_result(pending.packets)
    else:
        _close_all(pending.fds)
        message, left = last.get("message", ""), Unstopped.of(last)
        error = HoldError(last["error"], message, last.get("code"), left)
        pending.done.set_exception(error)


def _close_all(fds: list[int]) -> None:
    while fds:
        with contextlib.suppress(OSError):
            os.close(fds.pop())


def _receive(sock: socket.socket) -> tuple[bytes, list[int]]:
    # Not socket.recv_fds(): Python 3.11's ignores its flags, and the descriptor would be inherited
    # by every process we start.
    data, parts, _, _ = sock.recvmsg(_PACKET_MAX, _ROOM_FOR_FD, socket.MSG_CMSG_CLOEXEC)
    fds: list[int] = []
    for level, kind, content in parts:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds += struct.unpack(f"{len(content) // 4}i", content[: len(content) // 4 * 4])
    return data, fds


async def _connect(path: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.setblocking(False)
    try:
        for _ in range(_CONNECT_TRIES):
            try:
                sock.connect(path)
            except BlockingIOError:  # its backlog is full
                await asyncio.sleep(_CONNECT_PAUSE)
            else:
                return sock
        raise HoldError("busy", f"hold does not take connections at {path}; try again")
    except OSError as error:
        sock.close()
        raise HoldError("absent", f"no hold listens at {path}: {error}") from error
    except BaseException:
        sock.close()
        raise


def _graph(packets: list[dict[str, Any]]) -> Graph:
    *processes, end = packets
    return Graph(
        processes=tuple(_process(p) for p in processes),
        foreground_pgid=end["foreground_pgid"],
        echo=end["echo"],
        canonical=end["canonical"],
        icrnl=end["icrnl"],
        command_pid=end["command_pid"],
        tty=end["tty"],
        truncated=end["truncated"],
    )


def _process(p: dict[str, Any]) -> Process:
    return Process(
        pid=p["pid"],
        ppid=p["ppid"],
        pgid=p["pgid"],
        sid=p["sid"],
        state=p["state"],
        name=p["name"],
        command=tuple(p["command"]),
        exe=p["exe"],
        cwd=p["cwd"],
        uid=p["uid"],
        started_ms=p["started_ms"],
        fds=tuple(_descriptor(d) for d in p["fds"]),
        fds_total=p["fds_total"],
        listening=tuple(_listener(x) for x in p["listening"]),
        wait_channel=p["wait_channel"],
        threads=tuple(_thread(t) for t in p["threads"]),
        # Said only where it is so, and by an older hold not at all.
        tracer=p.get("tracer"),
        own_users=p.get("own_users", False),
        cpu_ms=p.get("cpu_ms"),
    )


def _descriptor(d: dict[str, Any]) -> Descriptor:
    return Descriptor(d["fd"], d["target"], d.get("device"), d.get("protocol"))


def _listener(x: dict[str, Any]) -> Listener:
    return Listener(x["protocol"], x.get("address", x.get("path", "")), x.get("port"))


def _thread(t: dict[str, Any]) -> Thread:
    waits = tuple(t["waits_on"])
    return Thread(t["tid"], t["state"], t["syscall"], t["fd"], waits, t["count"])
