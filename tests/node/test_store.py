"""Checkpoints on a disk: whole or not there, sealed, bounded."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast_node import store
from holdfast_node.pair import Facts, Fault, Keys, Manifest, Part, Unfit
from holdfast_node.store import NoRoom, Peer
from holdfast_wire.errors import AlreadyExists, BadRequest, NotFound

KEYS = Keys(b"0123456789abcdef0123456789abcdef")
FACTS = Facts(
    checkpoint="build-2-1",
    session="uid-1",
    namespace="default",
    name="build",
    epoch=2,
    source_pod="pod-a",
    target_pod="",
    image="sha256:1",
    architecture="x86_64",
    kernel="6.18",
    features=("avx",),
    created=1.5,
)
PARTS = {"images/pages-1.img": b"secret of the session" * 100_000, "layer": b"", "state/ring": b"r"}


def laid(folder: Path, facts: Facts = FACTS, parts: Mapping[str, bytes] = PARTS) -> bytes:
    """A checkpoint as a receiver leaves it; its manifest."""
    salt, found = os.urandom(32), {}
    for name, data in parts.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        tagger = KEYS.tagger(salt, name)
        tagger.update(data)
        found[name] = Part(len(data), tagger.finalize().hex())
    return Manifest(facts, salt, found).signed(KEYS)


@pytest.fixture
def peer(tmp_path: Path) -> Peer:
    return Peer(tmp_path / "store", KEYS, budget=1 << 30, reserve=0)


def everything(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*") if path.is_file())


def test_what_is_put_is_got(peer: Peer, tmp_path: Path) -> None:
    signed = laid(tmp_path / "in")
    kept = peer.put(tmp_path / "in", signed)
    assert kept.size > len(PARTS["images/pages-1.img"])
    assert [item.checkpoint for item in peer.list()] == ["build-2-1"]
    assert peer.list("uid-2") == []
    manifest = peer.get("uid-1", "build-2-1", tmp_path / "out")
    assert manifest == kept.manifest
    for name, data in PARTS.items():
        assert (tmp_path / "out" / name).read_bytes() == data
        assert (tmp_path / "out" / name).stat().st_mode & 0o777 == 0o600
    with pytest.raises(AlreadyExists):
        peer.put(tmp_path / "in", signed)
    peer.delete("uid-1", "build-2-1")
    peer.delete("uid-1", "build-2-1")
    assert peer.list() == []
    assert list((tmp_path / "store").iterdir()) == []
    with pytest.raises(NotFound):
        peer.get("uid-1", "build-2-1", tmp_path / "again")


def test_at_rest_it_is_sealed_and_for_root_alone(peer: Peer, tmp_path: Path) -> None:
    peer.put(tmp_path / "in", laid(tmp_path / "in"))
    assert (tmp_path / "store").stat().st_mode & 0o777 == 0o700
    for path in everything(tmp_path / "store"):
        assert path.stat().st_mode & 0o777 == 0o600
        assert b"secret of the session" not in path.read_bytes()


@pytest.mark.parametrize("part", ["images/pages-1.img", "layer", "state/ring"])
def test_a_damaged_part_is_never_laid_out(peer: Peer, tmp_path: Path, part: str) -> None:
    peer.put(tmp_path / "in", laid(tmp_path / "in"))
    place = tmp_path / "store/uid-1/build-2-1/parts" / part
    whole = place.read_bytes()
    for damaged in (whole[:-1], whole[:-1] + bytes([whole[-1] ^ 1]), b"", whole + b"x"):
        place.write_bytes(damaged)
        with pytest.raises(Unfit):
            peer.get("uid-1", "build-2-1", tmp_path / "out")
    place.unlink()
    with pytest.raises(Unfit) as raised:
        peer.get("uid-1", "build-2-1", tmp_path / "out")
    assert raised.value.fault is Fault.TRUNCATED
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "store"]


def test_parts_that_are_not_the_manifests_are_not_kept(peer: Peer, tmp_path: Path) -> None:
    signed = laid(tmp_path / "in")
    (tmp_path / "in/state/ring").write_bytes(b"x")
    with pytest.raises(Unfit):
        peer.put(tmp_path / "in", signed)
    (tmp_path / "in/state/ring").unlink()
    with pytest.raises(Unfit):
        peer.put(tmp_path / "in", signed)
    assert list((tmp_path / "store").iterdir()) == []


def test_a_checkpoint_under_anothers_name_is_refused(peer: Peer, tmp_path: Path) -> None:
    peer.put(tmp_path / "in", laid(tmp_path / "in"))
    (tmp_path / "store/uid-1").rename(tmp_path / "store/uid-2")
    with pytest.raises(Unfit, match="another checkpoint"):
        peer.get("uid-2", "build-2-1", tmp_path / "out")
    assert peer.list() == []


def test_over_the_budget_is_refused_with_the_reason(tmp_path: Path) -> None:
    signed = laid(tmp_path / "in")
    small = Peer(tmp_path / "small", KEYS, budget=1 << 20, reserve=0)
    with pytest.raises(NoRoom, match="needs 2 MiB and of the 1 MiB"):
        small.put(tmp_path / "in", signed)
    full = Peer(tmp_path / "full", KEYS, budget=1 << 60, reserve=1 << 60)
    with pytest.raises(NoRoom, match="must stay"):
        full.put(tmp_path / "in", signed)
    assert everything(tmp_path / "small") == everything(tmp_path / "full") == []


def test_a_namespace_has_its_share_and_others_theirs(tmp_path: Path) -> None:
    """Attack 42: one tenant's checkpoints filled the node's store for all."""
    peer = Peer(tmp_path / "store", KEYS, budget=10 << 20, reserve=0, percent=50)

    def put(namespace: str, number: int) -> None:
        facts = replace(FACTS, namespace=namespace, checkpoint=f"build-{number}", session=namespace)
        folder = tmp_path / f"{namespace}-{number}"
        peer.put(folder, laid(folder, facts))

    put("greedy", 1)
    put("greedy", 2)
    with pytest.raises(NoRoom, match="5 MiB that the namespace greedy may have here 4 MiB are"):
        put("greedy", 3)
    with pytest.raises(NoRoom, match="namespace greedy"):
        peer.admit(2 << 20, 1, "greedy")
    put("modest", 1)
    put("modest", 2)
    peer.delete("greedy", "build-1")
    put("greedy", 4)


def test_what_is_not_whole(peer: Peer, tmp_path: Path) -> None:
    for session in ("uid-1", "uid-2"):
        facts = replace(FACTS, session=session)
        peer.put(tmp_path / session, laid(tmp_path / session, facts))
    root, now = tmp_path / "store", time.time()
    assert peer.unfinished(now) == []
    # An agent that was killed while it wrote.
    (root / "uid-2/.build-2-2-abcd").mkdir()
    (root / "uid-2/build-2-1/manifest").write_bytes(b"damaged")
    assert peer.unfinished(now) == [root / "uid-2/.build-2-2-abcd"]
    left = peer.unfinished(now + 90_000)  # the secret was not wrong for a moment only
    assert left == [root / "uid-2/.build-2-2-abcd", root / "uid-2/build-2-1"]
    for orphan in left:
        peer.remove(orphan)
    assert peer.unfinished(now + 90_000) == []
    assert [path.name for path in root.iterdir()] == ["uid-1"]
    with pytest.raises(NotFound):
        peer.remove(tmp_path)


def test_a_disk_without_room_is_not_begun_on(
    peer: Peer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer.put(tmp_path / "in", laid(tmp_path / "in"))
    monkeypatch.setattr(store, "free", lambda _folder: 1 << 20)
    with pytest.raises(NoRoom, match="has 2 MiB and the node's disk 1 MiB free"):
        peer.get("uid-1", "build-2-1", tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "store"]


def test_names_lead_nowhere_else(peer: Peer, tmp_path: Path) -> None:
    for name in ("..", "../in", "", "/etc", ".hidden", "a/b"):
        with pytest.raises(BadRequest):
            peer.get(name, "build-2-1", tmp_path / "out")
        with pytest.raises(BadRequest):
            peer.delete("uid-1", name)


def test_a_part_is_read_without_the_others(peer: Peer, tmp_path: Path) -> None:
    kept = peer.put(tmp_path / "in", laid(tmp_path / "in"))
    manifest = peer.manifest("uid-1", "build-2-1")
    assert manifest == kept.manifest
    for name, data in PARTS.items():
        found = bytearray()
        peer.pieces(manifest, name, found.extend)
        assert found == data
    (tmp_path / "store/uid-1/build-2-1/parts/layer").write_bytes(b"altered")
    with pytest.raises(Unfit):
        peer.pieces(manifest, "layer", lambda _view: None)


def test_the_disk_store_is_a_store(peer: Peer) -> None:
    accepted: store.Store = peer
    assert accepted.list() == []
