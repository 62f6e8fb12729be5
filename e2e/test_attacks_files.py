"""Attacks on the node's agent by whoever can write where it reads and unpacks, played with real
containers and whole agents, without a cluster."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pty
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e import engine_kit as kit
from e2e.engine_pods import Pods
from e2e.engine_session import bench, engine, node, tidy
from e2e.test_keep_agents import Cluster, authority, cluster, keep, keys, pods, session
from holdfast_node import unpack
from holdfast_node.archive import Kind, Record, Writer
from holdfast_wire.errors import HoldfastError

__all__ = ["authority", "bench", "cluster", "engine", "keys", "node", "pods", "tidy"]  # fixtures

pytestmark = pytest.mark.timeout(120)


@contextlib.contextmanager
def rewritten(file: Path, **fields: Any) -> Iterator[list[str]]:
    """As soon as it is there, somebody else's words are in it."""
    done, seen = threading.Event(), [""]

    def watch() -> None:
        while not done.wait(0.001):
            with contextlib.suppress(OSError, ValueError):
                text = file.read_text()
                if text == seen[0]:
                    continue
                seen[0] = json.dumps(json.loads(text) | fields)
                file.write_text(seen[0])

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        yield seen
    finally:
        done.set()
        watching.join()


@pytest.mark.attacks(31)
async def test_typed_input_goes_back_to_its_own_terminal(
    cluster: Cluster, bench: kit.Lab, pods: Pods
) -> None:
    """What was typed is taken out while a session is stored, and put back. A path beside it, and a
    link in the container, lead to a terminal of the node."""
    own = session(bench, pods)
    own.typist.type("half ")
    master, victim = pty.openpty()
    (own.container.root / "tmp/tty").symlink_to(os.ttyname(victim))
    try:
        with rewritten(pods.here.state / "queued.json", path="/tmp/tty") as seen:
            async with cluster.agent("a"):
                cluster.api.put("build-2-k1", "a", keep("a"))
                assert (await cluster.api.over("build-2-k1"))["phase"] == "Complete"
        assert "path" in seen[0], "nothing was rewritten"
        os.set_blocking(victim, False)
        os.write(master, b"\n")  # ends the line, if there is one
        assert os.read(victim, 100) == b"\n"
    finally:
        os.close(master)
        os.close(victim)
    own.typist.type("way\n")
    own.typist.until("got=half way")


@pytest.mark.attacks(32)
def test_a_fifo_that_is_swapped_while_it_is_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between its making and the setting of its mode it becomes a link to a file of the node."""
    secret, root = tmp_path / "secret", tmp_path / "root"
    secret.write_text("secret")
    secret.chmod(0o600)
    root.mkdir()
    make = os.mkfifo

    def made_and_swapped(path: Any, mode: int = 0o666, *, dir_fd: int | None = None) -> None:
        make(path, mode, dir_fd=dir_fd)
        (root / "pipe").rename(root / "away")
        (root / "pipe").symlink_to(secret)

    monkeypatch.setattr(os, "mkfifo", made_and_swapped)
    pieces: list[bytes] = []
    writer = Writer(lambda view: pieces.append(bytes(view)))
    writer.record(Record(Kind.DIRECTORY, mode=0o755, uid=0, gid=0))
    writer.record(Record(Kind.FIFO, b"pipe", mode=0o666, uid=0, gid=0))
    writer.record(Record(Kind.UP))
    writer.close()
    opened = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    with pytest.raises(HoldfastError, match="was replaced while"):
        unpack.unpack(io.BytesIO(b"".join(pieces)), opened)
    assert secret.stat().st_mode & 0o777 == 0o600
