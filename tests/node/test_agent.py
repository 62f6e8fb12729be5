"""What the agent reads, says and is set by; the moves themselves are in e2e/test_move.py."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast_node import cpu, log, peers
from holdfast_node.peers import Refused, SidecarLink, ask_hold
from holdfast_node.settings import Bucket, Settings
from holdfast_wire.errors import BadRequest, Unavailable


def test_settings() -> None:
    given = {"HOLDFAST_NODE": "n1", "HOLDFAST_POD_IP": "10.0.0.1"}
    settings = Settings.from_env({**given, "HOLDFAST_LOG_LEVEL": "debug"})
    assert (settings.node, settings.address, settings.log_level) == ("n1", "10.0.0.1", "DEBUG")
    for missing in given:
        with pytest.raises(BadRequest):
            Settings.from_env({key: value for key, value in given.items() if key != missing})
    with pytest.raises(BadRequest):
        Settings.from_env({**given, "HOLDFAST_LOG_LEVEL": "loud"})
    assert settings.store_bytes == 20 << 30
    for text, size in (("5Gi", 5 << 30), ("1000", 1000), ("3Ti", 3 << 40)):
        assert Settings.from_env({**given, "HOLDFAST_STORE_BYTES": text}).store_bytes == size
    for wrong in ("5G", "-1", "many", "1.5Gi", "²"):
        with pytest.raises(BadRequest):
            Settings.from_env({**given, "HOLDFAST_STORE_BYTES": wrong})
    assert settings.bucket is None
    s3 = {"HOLDFAST_S3_BUCKET": "kept", "HOLDFAST_S3_PREFIX": "/a/b/"}
    assert Settings.from_env({**given, **s3}).bucket == Bucket("kept", "a/b")
    with pytest.raises(BadRequest):
        Settings.from_env({**given, **s3, "HOLDFAST_S3_ENDPOINT": "minio:9000"})


def test_features_of_the_processor() -> None:
    text = "processor\t: 0\nflags\t\t: sse avx hypervisor avx\n\nprocessor\t: 1\nflags\t: other\n"
    assert cpu.features(text) == ("avx", "sse")
    assert cpu.features("Features\t: asimd fp\n") == ("asimd", "fp")
    assert cpu.features()


def test_nothing_in_a_log_acts_in_a_terminal() -> None:
    assert log.plain("a\x1b[2Jb\n") == "a [2Jb "
    assert log.plain(3) == 3


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """This very process's root as the pod's: a short path of our own in it."""
    here = Path(f"/proc/{os.getpid()}/root") / str(tmp_path).lstrip("/")
    monkeypatch.setattr(peers, "AGENT_SOCKET", f"{str(tmp_path).lstrip('/')}/a")
    monkeypatch.setattr(peers, "HOLD_SOCKET", f"{str(tmp_path).lstrip('/')}/h")
    return here


@pytest.fixture
def answers(place: Path) -> Iterator[list[bytes]]:
    """A sidecar that says what it is given here, once for each connection."""
    said: list[bytes] = []
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(place / "a"))
    listener.listen()

    def serve() -> None:
        while True:
            try:
                peer, _ = listener.accept()
            except OSError:
                return
            with peer:
                peer.recv(1 << 16)
                peer.sendall(said.pop(0))

    thread = threading.Thread(target=serve)
    thread.start()
    yield said
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join()


async def test_the_sidecars_word(answers: list[bytes]) -> None:
    link = SidecarLink(os.getpid())
    answers.append(b'{"ok": true, "seq": 7}\n')
    assert (await link.ask("seal"))["seq"] == 7
    answers.append(b'{"ok": false, "code": "superseded", "message": "gone"}\n')
    with pytest.raises(Refused) as refused:
        await link.ask("unpark")
    assert refused.value.word == "superseded"
    for broken in (b"", b"{", b"[]\n", b'{"ok": true}'):
        answers.append(broken)
        with pytest.raises(Unavailable):
            await link.ask("status")


async def test_no_sidecar(place: Path) -> None:
    assert not (place / "a").exists()
    with pytest.raises(Unavailable):
        await SidecarLink(os.getpid()).ask("status")


def test_hold_gets_the_terminal(place: Path) -> None:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(str(place / "h"))
    listener.listen()
    got: list[tuple[bytes, int]] = []

    def serve() -> None:
        peer, _ = listener.accept()
        with peer:
            text, descriptors, _, _ = socket.recv_fds(peer, 1 << 12, 4)
            got.append((text, len(descriptors)))
            for one in descriptors:
                os.close(one)
            peer.send(json.dumps({"event": "frozen"}).encode())
            peer.send(json.dumps({"ok": True}).encode())

    thread = threading.Thread(target=serve)
    thread.start()
    read, write = os.pipe()
    try:
        assert ask_hold(os.getpid(), "adopt 301 302 /dev/pts/0", read) == {"ok": True}
    finally:
        os.close(read)
        os.close(write)
        thread.join()
        listener.close()
    assert got == [(b"adopt 301 302 /dev/pts/0", 1)]
