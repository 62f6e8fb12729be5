"""What of a store may go."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast_node.store import Peer
from holdfast_node.sweep import YOUNG, owners, room, sweep, sweep_unfinished

from .test_store import FACTS, laid

NOW = 1e9
HERE = "peer://a"


def checkpoint(name: str, **status: Any) -> dict[str, Any]:
    return {
        "metadata": {"namespace": "default", "name": name},
        "spec": {"sessionUID": "uid-1", "epoch": 2},
        "status": status,
    }


@pytest.fixture
def peer(tmp_path: Path) -> Peer:
    return Peer(tmp_path / "store", budget=1 << 30, reserve=0)


def put(peer: Peer, tmp_path: Path, name: str, **facts: Any) -> None:
    parts = {"layer": b"x" * 1000}
    folder = tmp_path / os.urandom(8).hex()
    made = replace(replace(FACTS, checkpoint=name, created=NOW - YOUNG - 1), **facts)
    laid(folder, made, parts)
    peer.put(folder, lambda: None)


async def swept(peer: Peer, *items: dict[str, Any]) -> list[str]:
    gone = await sweep(peer, owners(items), lambda _kept: HERE, NOW)
    left = {item.checkpoint for item in peer.list()}
    assert not left & {item.checkpoint for item in gone}
    return sorted(item.checkpoint for item in gone)


async def test_without_its_object_it_goes(peer: Peer, tmp_path: Path) -> None:
    put(peer, tmp_path, "k1")
    put(peer, tmp_path, "k2")
    put(peer, tmp_path, "k3", created=NOW - YOUNG + 1)  # its object may be on its way to us
    assert await swept(peer, checkpoint("k2", phase="Complete", location=HERE)) == ["k1"]
    assert await swept(peer) == ["k2"]
    assert [item.checkpoint for item in peer.list()] == ["k3"]


async def test_an_object_of_that_name_is_not_enough(peer: Peer, tmp_path: Path) -> None:
    put(peer, tmp_path, "k1", session="uid-2")
    put(peer, tmp_path, "k2", namespace="else")
    both = [checkpoint(name, phase="Complete", location=HERE) for name in ("k1", "k2")]
    assert await swept(peer, *both) == ["k1", "k2"]


async def test_it_lies_where_its_object_says(peer: Peer, tmp_path: Path) -> None:
    for name in ("k1", "k2", "k3", "k4"):
        put(peer, tmp_path, name)
    assert await swept(
        peer,
        checkpoint("k1", phase="Transferring"),  # who took it last is not yet known
        checkpoint("k2", phase="Complete", location="peer://b"),  # our answer was lost
        checkpoint("k3", phase="Failed"),
        checkpoint("k4", phase="Failed", location=HERE),  # its session may have stopped for it
    ) == ["k2", "k3"]


async def test_what_was_not_finished(peer: Peer, tmp_path: Path) -> None:
    put(peer, tmp_path, "k1")
    (tmp_path / "store/uid-1/.k2-abcd").mkdir()
    writing = asyncio.Lock()
    async with writing:
        act = asyncio.create_task(sweep_unfinished(peer, writing, NOW))
        await asyncio.sleep(0.05)
        assert (tmp_path / "store/uid-1/.k2-abcd").exists()  # somebody may be writing it
    await act
    assert [path.name for path in (tmp_path / "store/uid-1").iterdir()] == ["k1"]


async def test_what_cannot_be_read_stays_for_a_day(peer: Peer, tmp_path: Path) -> None:
    put(peer, tmp_path, "k1")
    (tmp_path / "store/uid-1/k1/manifest").write_bytes(b"damaged")
    now = (tmp_path / "store/uid-1/k1").stat().st_mtime
    assert await sweep(peer, {}, lambda _kept: HERE, now) == []
    await sweep_unfinished(peer, asyncio.Lock(), now)
    assert (tmp_path / "store/uid-1/k1").exists()
    await sweep_unfinished(peer, asyncio.Lock(), now + 90_000)
    assert not (tmp_path / "store/uid-1").exists()


def test_how_much_room_there_is(peer: Peer, tmp_path: Path) -> None:
    assert room(peer) == "0 MiB of 1024 MiB for checkpoints"
    put(peer, tmp_path, "k1")
    small = Peer(tmp_path / "store", budget=1000, reserve=0)
    assert room(small).startswith("full: ")
