"""The link against a scripted hold; tests/init runs it against the real one."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast_sidecar.hold import EventKind, HoldError, HoldEvent, HoldLink

STATUS = {
    "ok": True, "version": 1, "hold_pid": 1, "keeper_pid": 2, "command_pid": 3, "tty": "/dev/pts/0",
    "namespace": True, "frozen": False, "expired": False, "deadline_ns": 0, "boottime_ns": 5,
    "exited": False, "code": None, "signal": None, "started": True, "nonce": "0123456789abcdef",
    "by": None,
}  # fmt: skip
END = {
    "ok": True, "end": True, "processes": 0, "foreground_pgid": 3, "echo": True, "canonical": True,
    "icrnl": True, "command_pid": 3, "tty": "/dev/pts/0", "truncated": False,
}  # fmt: skip
PROCESS = {
    "pid": 3, "ppid": 2, "pgid": 3, "sid": 3, "state": "S", "name": "cat", "command": ["cat"],
    "exe": "/bin/cat", "cwd": "/", "uid": 0, "started_ms": 1,
    "fds": [{"fd": 0, "target": "/dev/pts/0"}],
    "fds_total": 1, "listening": [{"protocol": "unix", "path": "/s"},
                                  {"protocol": "tcp", "address": "::1", "port": 80}],
    "wait_channel": "", "threads": [{"tid": 3, "state": "S", "syscall": 0, "fd": 0,
                                     "waits_on": [0], "count": 1}],
}  # fmt: skip


class FakeHold:
    """Says what the test tells it to, when it is told to."""

    def __init__(self, path: str) -> None:
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(path)
        self.listener.listen()
        self.listener.setblocking(False)
        self.peer = self.listener

    async def accept(self) -> None:
        self.peer, _ = await asyncio.get_running_loop().sock_accept(self.listener)
        self.peer.setblocking(False)

    async def hear(self) -> bytes:
        return await asyncio.get_running_loop().sock_recv(self.peer, 1000)

    def say(self, packet: dict[str, Any], fds: list[int] | None = None) -> None:
        socket.send_fds(self.peer, [json.dumps(packet).encode()], fds or [])

    def close(self) -> None:
        self.peer.close()
        self.listener.close()


Connect = Callable[..., Awaitable[HoldLink]]


@pytest.fixture
async def hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FakeHold]:
    monkeypatch.chdir(tmp_path)
    fake = FakeHold("s")
    yield fake
    fake.close()


@pytest.fixture
async def connect(hold: FakeHold) -> AsyncIterator[Connect]:
    links: list[HoldLink] = []

    async def run(**callbacks: Any) -> HoldLink:
        connecting = asyncio.create_task(HoldLink.connect("s", **callbacks))
        await hold.accept()
        assert await hold.hear() == b"status"
        hold.say(STATUS)
        links.append(await connecting)
        return links[-1]

    yield run
    for link in links:
        link.close()


async def test_nobody_listens(tmp_path: Path) -> None:
    with pytest.raises(HoldError, match="absent") as caught:
        await HoldLink.connect(str(tmp_path / "none"))
    assert caught.value.code == "absent"


async def test_refusal_is_told_though_the_request_was_never_read(hold: FakeHold) -> None:
    connecting = asyncio.create_task(HoldLink.connect("s"))
    await hold.accept()
    hold.say({"ok": False, "error": "refused", "message": "from inside"})
    hold.peer.close()
    with pytest.raises(HoldError, match="from inside") as caught:
        await connecting
    assert caught.value.code == "refused"


async def test_requests_are_words(hold: FakeHold, connect: Connect) -> None:
    link = await connect()
    for call, words in [
        (link.thaw, b"thaw"),
        (lambda: link.start(120, 40), b"start 120x40"),
        (lambda: link.deadline(12), b"deadline 12"),
        (lambda: link.end(1.5), b"end 1500"),
        (lambda: link.signal(2), b"signal 2"),
        (link.collected, b"collected"),
    ]:
        asking: asyncio.Task[None] = asyncio.create_task(call())
        assert await hold.hear() == words
        hold.say({"ok": True})
        await asking


async def test_a_command_that_cannot_start_tells_its_exit_code(
    hold: FakeHold, connect: Connect
) -> None:
    link = await connect()
    starting = asyncio.create_task(link.start(80, 24))
    await hold.hear()
    answer = {"ok": False, "error": "cannot_start", "message": "command not found", "code": 127}
    hold.say(answer)
    hold.peer.close()
    with pytest.raises(HoldError, match="command not found") as caught:
        await starting
    assert (caught.value.code, caught.value.exit_code) == ("cannot_start", 127)


async def test_status_of_one_that_waits_and_of_one_that_ended(
    hold: FakeHold, connect: Connect
) -> None:
    link = await connect()
    answers: list[dict[str, Any]] = [{"started": False}, {"exited": True, "code": 0, "by": "term"}]
    for said in answers:
        asking = asyncio.create_task(link.status())
        await hold.hear()
        hold.say(STATUS | said)
        status = await asking
        assert {name: getattr(status, name) for name in said} == said
        assert status.nonce == STATUS["nonce"]


async def test_an_older_hold_is_understood(hold: FakeHold, connect: Connect) -> None:
    link = await connect()
    asking = asyncio.create_task(link.status())
    await hold.hear()
    hold.say({k: v for k, v in STATUS.items() if k not in ("started", "nonce", "by")})
    status = await asking
    assert (status.started, status.nonce, status.by) == (True, "", None)


async def test_the_exit_says_what_called_for_it(hold: FakeHold, connect: Connect) -> None:
    events: list[HoldEvent] = []
    link = await connect(on_event=events.append)
    asking = asyncio.create_task(link.thaw())
    await hold.hear()
    hold.say({"event": "exited", "code": 0, "signal": None, "by": "end"})
    hold.say({"ok": True})
    await asking
    assert events == [HoldEvent(EventKind.EXITED, by="end", code=0)]


async def test_graph_is_gathered_from_packets_with_events_between(
    hold: FakeHold, connect: Connect
) -> None:
    events: list[HoldEvent] = []
    link = await connect(on_event=events.append)
    asking = asyncio.create_task(link.graph())
    assert await hold.hear() == b"graph"
    hold.say(PROCESS)
    hold.say({"event": "frozen", "by": "deadline"})
    hold.say({"event": "something new"})
    hold.say(PROCESS | {"pid": 4})
    hold.say(END)
    graph = await asking
    assert [p.pid for p in graph.processes] == [3, 4]
    first = graph.processes[0]
    assert [(x.address, x.port) for x in first.listening] == [("/s", None), ("::1", 80)]
    assert first.threads[0].waits_on == (0,)
    assert events == [HoldEvent(EventKind.FROZEN, by="deadline")]


async def test_one_request_at_a_time(hold: FakeHold, connect: Connect) -> None:
    link = await connect()
    first, second = asyncio.create_task(link.thaw()), asyncio.create_task(link.freeze())
    assert await hold.hear() == b"thaw"
    hold.say({"ok": False, "error": "expired", "message": "too late"})
    with pytest.raises(HoldError, match="too late"):
        await first
    assert await hold.hear() == b"freeze"
    hold.say({"ok": True, "stopped": 2, "refused": 1, "milliseconds": 3})
    assert (await second).refused == 1


async def test_answer_to_a_cancelled_request_is_nobody_else_s(
    hold: FakeHold, connect: Connect
) -> None:
    link = await connect()
    asking = asyncio.create_task(link.master())
    assert await hold.hear() == b"master"
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    status = asyncio.create_task(link.status())
    assert await hold.hear() == b"status"
    before = set(os.listdir("/proc/self/fd"))  # noqa: PTH208
    hold.say({"ok": True}, [0])
    hold.say(STATUS | {"command_pid": 77})
    assert (await status).command_pid == 77
    assert set(os.listdir("/proc/self/fd")) == before  # noqa: PTH208 - not even its descriptor


async def test_master_is_a_descriptor_of_our_own(hold: FakeHold, connect: Connect) -> None:
    link = await connect()
    asking = asyncio.create_task(link.master())
    await hold.hear()
    read, write = os.pipe()
    hold.say({"ok": True}, [write])
    os.close(write)
    master = await asking
    assert not os.get_inheritable(master)
    os.write(master, b"x")
    assert os.read(read, 1) == b"x"
    os.close(read)
    os.close(master)


async def test_loss_fails_what_is_pending_and_is_told_once(
    hold: FakeHold, connect: Connect
) -> None:
    lost: list[bool] = []
    link = await connect(on_lost=lambda: lost.append(True))
    asking = asyncio.create_task(link.status())
    await hold.hear()
    hold.peer.close()
    with pytest.raises(HoldError, match="lost"):
        await asking
    with pytest.raises(HoldError, match="lost"):
        await link.status()
    link.close()
    assert lost == [True]


async def test_closing_is_not_losing(hold: FakeHold, connect: Connect) -> None:
    lost: list[bool] = []
    link = await connect(on_lost=lambda: lost.append(True))
    link.close()
    link.close()
    assert lost == []
    assert await hold.hear() == b""
