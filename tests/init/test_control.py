"""The control socket: who is let in, what is asked, and what cannot do harm."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import socket
import sys
import time
from pathlib import Path

import pytest

from holdfast_sidecar.hold import HoldError, HoldLink

from .holding import INTERACTIVE_BASH, Session, Start, Terminal, eventually

PYTHON = str(Path(sys.executable).resolve())


def raw(session: Session) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.settimeout(30)
    sock.connect(session.socket)
    return sock


HOLDER = """
import socket, sys, time
s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
s.connect(sys.argv[1])
s.send(b"master")
data, fds, _, _ = socket.recv_fds(s, 1000, 1)
print(len(fds), flush=True)
time.sleep(60)
"""


async def test_killed_reader_loses_nothing(start: Start, python: str) -> None:
    session = await start("sh", "-c", "read x; echo written meanwhile; cat")
    reader = await asyncio.create_subprocess_exec(
        python, "-c", HOLDER, session.socket, stdout=asyncio.subprocess.PIPE
    )
    assert reader.stdout is not None
    assert await reader.stdout.readline() == b"1\n"
    session.terminal.send(b"go\n")
    session.terminal.close()
    reader.kill()
    await reader.wait()
    session.terminal = Terminal(await session.link.master())
    await session.terminal.expect(b"written meanwhile")


INSIDE = """
import os, socket, sys
def attempt():
    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    s.connect(sys.argv[1])
    try:
        s.send(b"end 0")
    except OSError:
        pass
    while True:
        try:
            print("answer", s.recv(1000).decode(), flush=True)
            return
        except ConnectionResetError:
            pass
attempt()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        attempt()
    os._exit(0)
os.wait()
input()
"""


async def test_peers_from_inside_are_refused(start: Start, python: str, tmp_path: Path) -> None:
    session = await start(python, "-c", INSIDE, str(tmp_path / "hold.sock"))
    output = await session.terminal.expect(b'"error":"refused"', times=2)
    assert output.count(b"answer") == 2
    assert not (await session.link.status()).exited


async def test_noise_does_no_harm(start: Start) -> None:
    session = await start("cat")
    noise = random.Random(1)
    words = [
        b"status",
        b"deadline",
        b"end",
        b"signal",
        b"x" * 300,
        b"",
        b"-1",
        b"99999999999999999999",
    ]
    sock = raw(session)
    for _ in range(400):
        if noise.random() < 0.5:
            packet = noise.randbytes(noise.randrange(0, 600))
        else:
            packet = b" ".join(noise.choices(words, k=noise.randrange(2, 5))) + b" x"
        sock.send(packet)
        answer = json.loads(sock.recv(65536))
        assert answer["ok"] is False
        assert answer["error"] == "bad_request"
    sock.send(b"status")
    assert json.loads(sock.recv(65536))["ok"] is True
    sock.close()
    session.terminal.send(b"alive\n")
    await session.terminal.expect(b"alive\r\n", times=2)


NEAR_MISSES = (
    b"signal NOPE|signal 0|signal 65|end -1|end 3600001|deadline|end|status now|thaw | thaw|STATUS|"
    b"deadline 9223372036854775808|a\0b|status\n|\xff"
)


async def test_near_misses_are_bad_requests(start: Start) -> None:
    session = await start("cat")
    sock = raw(session)
    for request in NEAR_MISSES.split(b"|"):
        sock.send(request)
        assert json.loads(sock.recv(65536))["error"] == "bad_request", request
    sock.close()


async def test_ninth_connection_is_told_to_wait(start: Start) -> None:
    session = await start("cat")
    links = [await HoldLink.connect(session.socket) for _ in range(7)]
    with pytest.raises(HoldError, match="busy"):
        await HoldLink.connect(session.socket)
    links.pop().close()

    async def admitted() -> HoldLink | None:
        try:
            return await HoldLink.connect(session.socket)
        except HoldError:
            return None

    last = await eventually(admitted, lambda link: link is not None, "a free place")
    assert last is not None
    for link in [*links, last]:
        link.close()


async def test_peer_that_does_not_read_is_dropped_and_holds_up_nobody(start: Start) -> None:
    session = await start("cat")
    deaf = raw(session)
    deaf.setblocking(False)
    dropped = False
    give_up = time.monotonic() + 10
    while not dropped and time.monotonic() < give_up:
        try:
            deaf.send(b"status")
        except BlockingIOError:
            await session.link.status()  # served all the while
        except OSError:
            dropped = True
    assert dropped
    deaf.close()


async def test_a_stopped_peer_does_not_delay_others(start: Start, python: str) -> None:
    session = await start("cat")
    peer = await asyncio.create_subprocess_exec(
        python, "-c", HOLDER, session.socket, stdout=asyncio.subprocess.PIPE
    )
    assert peer.stdout is not None
    await peer.stdout.readline()
    os.kill(peer.pid, signal.SIGSTOP)
    for _ in range(50):
        await session.link.freeze()
        await session.link.thaw()
    peer.kill()
    await peer.wait()


async def test_a_large_tree_is_reported_whole(start: Start) -> None:
    session = await start(
        "bash", "-c", "for i in {1..300}; do sleep 1000 & done; echo up; cat; true"
    )
    await session.terminal.expect(b"up")
    graph = await session.graph_when(
        lambda g: sum(p.name == "sleep" for p in g.processes) == 300, "all of them"
    )
    assert not graph.truncated
    assert (await session.link.freeze()).stopped == 303
    await session.link.thaw()


SERVER = """
import os, socket, time
os.chdir("/")
t = socket.socket(); t.bind(("127.0.0.1", 0)); t.listen()
s = socket.socket(socket.AF_INET6); s.bind(("::1", 0)); s.listen()
u = socket.socket(socket.AF_UNIX); u.bind("\\0holdfast-test-%d" % os.getpid()); u.listen()
many = [os.open("/dev/null", os.O_RDONLY) for _ in range(400)]
print("port", t.getsockname()[1], flush=True)
time.sleep(60)
"""


async def test_graph_shows_what_a_process_holds(start: Start, python: str) -> None:
    ugly = b'caf\xe9 \xff"\\\x01\n'.decode("utf-8", "surrogateescape")
    session = await start(python, "-c", SERVER, ugly)
    await session.terminal.expect(b"\n")
    port = int(session.terminal.seen.split()[1])
    server = next(p for p in (await session.link.graph()).processes if p.name != "keeper")
    assert server.command[-1] == 'caf\ufffd \ufffd"\\\x01\n'
    assert (server.cwd, server.uid, server.state) == ("/", os.getuid(), "S")
    assert server.exe == PYTHON
    assert server.fds_total == 406
    assert len(server.fds) == 256
    found = [(x.protocol, x.address, x.port) for x in server.listening]
    assert ("tcp", "127.0.0.1", port) in found
    assert [x for x in found if x[1] == "::1"]
    assert [x for x in found if x[0] == "unix" and x[1].startswith("@holdfast-test-")]


async def test_shell_has_job_control(start: Start) -> None:
    session = await start(*INTERACTIVE_BASH)
    output = await session.terminal.expect(b"ready> ")
    assert b"no job control" not in output


async def test_the_outbox_outlives_who_types_from_it(start: Start) -> None:
    """Its offset says how much the terminal took, to whoever asks next."""
    session = await start("sh", "-c", "stty raw -echo; echo ready; exec sleep 600")
    await session.terminal.expect(b"ready")
    first, master = await session.link.outbox(), await session.link.master()
    os.pwrite(first, b"hello", 0)
    assert os.sendfile(master, first, None, 5) == 5
    os.close(first)
    again = await session.link.outbox()
    assert os.lseek(again, 0, os.SEEK_CUR) == 5
    os.close(again)
    os.close(master)
