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
from holdfast_node.seal import Sealing
from holdfast_node.store import Kept, NoRoom, Peer
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


def laid(
    folder: Path,
    facts: Facts = FACTS,
    parts: Mapping[str, bytes] = PARTS,
    keys: Keys = KEYS,
) -> Manifest:
    """A sealed checkpoint, as a spool and its keep leave it."""
    salt, found = os.urandom(32), {}
    for name, data in parts.items():
        path = folder / "parts" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as out:
            sealing = Sealing(out.write, keys, f"{facts.checkpoint}/{name}")
            sealing.update(memoryview(data))
            sealing.finish()
        tagger = keys.tagger(salt, name)
        tagger.update(data)
        found[name] = Part(len(data), tagger.finalize().hex())
    made = Manifest(facts, salt, found)
    (folder / "manifest").touch(0o600)
    (folder / "manifest").write_bytes(made.signed(keys))
    return made


def put(peer: Peer, folder: Path, manifest: Manifest | None = None) -> Kept:
    found = manifest or laid(folder)
    return peer.put(folder, lambda: store.check_sealed(folder, found, KEYS))


def got(peer: Peer, session: str, checkpoint: str, into: Path, keys: Keys = KEYS) -> Manifest:
    return store.lay_out(peer.folder(session, checkpoint), into, keys, lambda _part: True)


@pytest.fixture
def peer(tmp_path: Path) -> Peer:
    return Peer(tmp_path / "store", budget=1 << 30, reserve=0)


def everything(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*") if path.is_file())


def test_what_is_put_is_got(peer: Peer, tmp_path: Path) -> None:
    kept = put(peer, tmp_path / "in")
    assert not (tmp_path / "in").exists(), "it is not there twice"
    assert kept.size > len(PARTS["images/pages-1.img"])
    assert [item.checkpoint for item in peer.list()] == ["build-2-1"]
    assert peer.list("uid-2") == []
    manifest = got(peer, "uid-1", "build-2-1", tmp_path / "out")
    assert manifest == kept.manifest
    for name, data in PARTS.items():
        assert (tmp_path / "out" / name).read_bytes() == data
        assert (tmp_path / "out" / name).stat().st_mode & 0o777 == 0o600
    with pytest.raises(AlreadyExists):
        put(peer, tmp_path / "in")
    peer.delete("uid-1", "build-2-1")
    peer.delete("uid-1", "build-2-1")
    assert peer.list() == []
    assert list((tmp_path / "store").iterdir()) == []
    with pytest.raises(NotFound):
        got(peer, "uid-1", "build-2-1", tmp_path / "again")


def test_who_keeps_it_cannot_open_it(peer: Peer, tmp_path: Path) -> None:
    """Attack 34: a keeper has no key, and another order's opens nothing."""
    put(peer, tmp_path / "in")
    with pytest.raises(Unfit) as raised:
        got(peer, "uid-1", "build-2-1", tmp_path / "out", Keys(bytes(32)))
    assert raised.value.fault is Fault.UNSIGNED
    folder, manifest = peer.folder("uid-1", "build-2-1"), peer.manifest("uid-1", "build-2-1")
    with pytest.raises(Unfit, match="sealed with another key"):
        store.check_sealed(folder, manifest, Keys(bytes(32)))


def test_at_rest_it_is_sealed_and_for_root_alone(peer: Peer, tmp_path: Path) -> None:
    put(peer, tmp_path / "in")
    assert (tmp_path / "store").stat().st_mode & 0o777 == 0o700
    for path in everything(tmp_path / "store"):
        assert path.stat().st_mode & 0o777 == 0o600
        assert b"secret of the session" not in path.read_bytes()


@pytest.mark.parametrize("part", ["images/pages-1.img", "layer", "state/ring"])
def test_a_damaged_part_is_never_laid_out(peer: Peer, tmp_path: Path, part: str) -> None:
    put(peer, tmp_path / "in")
    place = tmp_path / "store/uid-1/build-2-1/parts" / part
    whole = place.read_bytes()
    for damaged in (whole[:-1], whole[:-1] + bytes([whole[-1] ^ 1]), b"", whole + b"x"):
        place.write_bytes(damaged)
        with pytest.raises(Unfit):
            got(peer, "uid-1", "build-2-1", tmp_path / "out")
    place.unlink()
    with pytest.raises(Unfit) as raised:
        got(peer, "uid-1", "build-2-1", tmp_path / "out")
    assert raised.value.fault is Fault.TRUNCATED
    assert sorted(path.name for path in tmp_path.iterdir()) == ["store"]


def test_what_does_not_lie_on_the_disk_as_it_was_is_not_kept(peer: Peer, tmp_path: Path) -> None:
    manifest = laid(tmp_path / "in")
    other = tmp_path / "in/parts/state/ring"
    other.write_bytes((tmp_path / "in/parts/layer").read_bytes())
    with pytest.raises(Unfit):
        put(peer, tmp_path / "in", manifest)
    other.unlink()
    with pytest.raises(Unfit):
        put(peer, tmp_path / "in", manifest)
    assert [*everything(tmp_path / "store")] == []


def test_a_checkpoint_under_anothers_name_is_refused(peer: Peer, tmp_path: Path) -> None:
    put(peer, tmp_path / "in")
    (tmp_path / "store/uid-1").rename(tmp_path / "store/uid-2")
    with pytest.raises(Unfit, match="another checkpoint"):
        got(peer, "uid-2", "build-2-1", tmp_path / "out")
    assert peer.list() == []


def test_over_the_budget_is_refused_with_the_reason(tmp_path: Path) -> None:
    manifest = laid(tmp_path / "in")
    small = Peer(tmp_path / "small", budget=1 << 20, reserve=0)
    for attempt in (lambda: small.admit(manifest.size), lambda: put(small, tmp_path / "in")):
        with pytest.raises(NoRoom, match="needs 2 MiB and of the 1 MiB"):
            attempt()
    full = Peer(tmp_path / "full", budget=1 << 60, reserve=1 << 60)
    with pytest.raises(NoRoom, match="must stay"):
        full.admit(manifest.size)
    assert everything(tmp_path / "small") == everything(tmp_path / "full") == []


def test_a_namespace_has_its_share_and_others_theirs(tmp_path: Path) -> None:
    """Attack 42: one tenant's checkpoints filled the node's store for all."""
    peer = Peer(tmp_path / "store", budget=10 << 20, reserve=0, percent=50)

    def add(namespace: str, number: int) -> None:
        facts = replace(FACTS, namespace=namespace, checkpoint=f"build-{number}", session=namespace)
        folder = tmp_path / f"{namespace}-{number}"
        put(peer, folder, laid(folder, facts))

    add("greedy", 1)
    add("greedy", 2)
    with pytest.raises(NoRoom, match="5 MiB that the namespace greedy may have here 4 MiB are"):
        add("greedy", 3)
    with pytest.raises(NoRoom, match="namespace greedy"):
        peer.admit(2 << 20, 1, "greedy")
    add("modest", 1)
    add("modest", 2)
    peer.delete("greedy", "build-1")
    add("greedy", 4)


def test_what_is_not_whole(peer: Peer, tmp_path: Path) -> None:
    for session in ("uid-1", "uid-2"):
        facts = replace(FACTS, session=session)
        put(peer, tmp_path / session, laid(tmp_path / session, facts))
    root, now = tmp_path / "store", time.time()
    assert peer.unfinished(now) == []
    # An agent that was killed while it wrote.
    (root / "uid-2/.build-2-2-abcd").mkdir()
    (root / "uid-2/build-2-1/manifest").write_bytes(b"damaged")
    assert peer.unfinished(now) == [root / "uid-2/.build-2-2-abcd"]
    left = peer.unfinished(now + 90_000)
    assert left == [root / "uid-2/.build-2-2-abcd", root / "uid-2/build-2-1"]
    for orphan in left:
        peer.remove(orphan)
    assert peer.unfinished(now + 90_000) == []
    assert [path.name for path in root.iterdir()] == ["uid-1"]
    with pytest.raises(NotFound):
        peer.remove(tmp_path)


def test_a_node_without_room_is_not_begun_on(
    peer: Peer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(peer, tmp_path / "in")
    monkeypatch.setattr(store, "free", lambda _folder: 1 << 20)
    with pytest.raises(NoRoom, match="has 2 MiB of memory and the node has room for 1 MiB"):
        got(peer, "uid-1", "build-2-1", tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["store"]


def test_names_lead_nowhere_else(peer: Peer, tmp_path: Path) -> None:
    for name in ("..", "../in", "", "/etc", ".hidden", "a/b"):
        with pytest.raises(BadRequest):
            peer.folder(name, "build-2-1")
        with pytest.raises(BadRequest):
            peer.delete("uid-1", name)


def test_files_are_unsealed_while_they_are_read(peer: Peer, tmp_path: Path) -> None:
    kept = put(peer, tmp_path / "in")
    folder = peer.folder("uid-1", "build-2-1")
    only = store.lay_out(folder, tmp_path / "out", KEYS, lambda name: name == "state/ring")
    assert only == kept.manifest
    assert [path.name for path in everything(tmp_path / "out")] == ["ring"]
    for name, data in PARTS.items():
        with store.reader(folder, only, KEYS, name) as source:
            assert source.read() == data
    (folder / "parts/layer").write_bytes(b"altered")
    with pytest.raises(Unfit), store.reader(folder, only, KEYS, "layer") as source:
        source.read()


def test_the_disk_store_is_a_store(peer: Peer) -> None:
    accepted: store.Store = peer
    assert accepted.list() == []
