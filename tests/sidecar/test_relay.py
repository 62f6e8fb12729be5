"""The relay as a process of its own, between pipes and a socket."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway_kit import remove

LARGE = os.urandom(1 << 20) * 4
COMMAND = [sys.executable, "-m", "holdfast_sidecar.relay"]


@pytest.fixture
def folder() -> Iterator[Path]:
    # A socket's path must be short, and pytest's directories may not be.
    path = Path(tempfile.mkdtemp(prefix="hf-"))
    yield path
    remove(path)


@pytest.fixture
def sidecar(folder: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "sidecar.sock"))
        listener.listen()
        listener.settimeout(15)
        yield listener


@pytest.fixture
def relay(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    pipe = subprocess.PIPE
    env = {**os.environ, "HOLDFAST_STATE": str(folder)}
    with subprocess.Popen(COMMAND, stdin=pipe, stdout=pipe, stderr=pipe, env=env) as process:
        yield process
        process.kill()


def accept(listener: socket.socket) -> socket.socket:
    peer, _ = listener.accept()
    peer.settimeout(15)
    return peer


def read_all(peer: socket.socket) -> bytes:
    parts = []
    while data := peer.recv(1 << 16):
        parts.append(data)
    return b"".join(parts)


def test_the_end_of_the_input_is_not_the_end(
    sidecar: socket.socket, relay: subprocess.Popen[bytes]
) -> None:
    assert relay.stdin
    assert relay.stdout
    with accept(sidecar) as peer:
        relay.stdin.write(b"question")
        relay.stdin.close()
        assert read_all(peer) == b"question"
        peer.sendall(b"answer")
    assert relay.stdout.read() == b"answer"
    assert relay.wait(15) == 0


def test_the_sidecar_s_end_is_although_the_input_is_open(
    sidecar: socket.socket, relay: subprocess.Popen[bytes]
) -> None:
    assert relay.stdout
    with accept(sidecar) as peer:
        peer.sendall(b"goodbye")
    assert relay.stdout.read() == b"goodbye"
    assert relay.wait(15) == 0


def test_much_both_ways_at_once(sidecar: socket.socket, relay: subprocess.Popen[bytes]) -> None:
    """Neither side reads before it has sent everything, so neither direction may wait."""
    stdin, stdout = relay.stdin, relay.stdout
    assert stdin
    assert stdout
    got: dict[str, bytes] = {}
    with accept(sidecar) as peer:

        def outwards() -> None:
            got["out"] = stdout.read()

        def echo() -> None:
            while data := peer.recv(1 << 16):
                peer.sendall(data)
            peer.shutdown(socket.SHUT_WR)

        echoing = threading.Thread(target=echo)
        echoing.start()
        reading = threading.Thread(target=outwards)
        writing = threading.Thread(target=lambda: (stdin.write(LARGE), stdin.close()))
        writing.start()
        writing.join(2)  # nobody reads yet: everything on the way is full
        reading.start()
        for thread in (writing, echoing, reading):
            thread.join(15)
    assert got["out"] == LARGE
    assert relay.wait(15) == 0


def test_input_goes_through_while_nobody_reads_the_output(
    sidecar: socket.socket, relay: subprocess.Popen[bytes]
) -> None:
    assert relay.stdin
    with accept(sidecar) as peer:
        peer.setblocking(False)
        sent = 0
        while sent < 1 << 20:
            try:
                sent += peer.send(b"x" * 65536)
            except BlockingIOError:
                break  # the pipe, the relay and the socket are full
        peer.settimeout(15)
        relay.stdin.write(b"\x03")
        relay.stdin.flush()
        assert peer.recv(10) == b"\x03"


def test_a_reader_that_left_is_no_error(
    sidecar: socket.socket, relay: subprocess.Popen[bytes]
) -> None:
    assert relay.stdout
    assert relay.stderr
    with accept(sidecar) as peer:
        relay.stdout.close()
        peer.sendall(b"x")
        assert relay.wait(15) == 0
        assert relay.stderr.read() == b""


def test_no_sidecar(folder: Path) -> None:
    def run() -> tuple[int, bytes, str]:
        env = {**os.environ, "HOLDFAST_STATE": str(folder)}
        done = subprocess.run(
            COMMAND, env=env, stdin=subprocess.DEVNULL, capture_output=True, check=False
        )
        return done.returncode, done.stdout, done.stderr.decode()

    sentence = "the session is not being served (yet); try again\n"
    assert run() == (75, b"", sentence)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(folder / "sidecar.sock"))
    assert run() == (75, b"", sentence)
    (folder / "sidecar.sock").unlink()
    (folder / "sidecar.sock").symlink_to(folder / "sidecar.sock")
    code, out, said = run()
    assert (code, out) == (75, b"")
    assert said.startswith("the session cannot be reached: ")
