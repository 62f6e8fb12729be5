"""Checkpoints in a bucket, of a real server that speaks S3 over HTTP."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import obstore
import pytest
from obstore.store import S3Store

from holdfast_node.order import Where
from holdfast_node.pair import Facts, Fault, Manifest, Unfit
from holdfast_node.s3 import S3
from holdfast_node.settings import Bucket
from holdfast_node.store import Kept, Peer, lay_out
from holdfast_node.stores import Others, Remote, Stores
from holdfast_node.sweep import Ours, owners, sweep
from holdfast_wire.errors import AlreadyExists, BadRequest, NotFound, Unavailable

from .test_store import FACTS, KEYS, laid
from .test_stores import KEEP, bring

PARTS = {
    "images/pages-1.img": os.urandom((1 << 20) + 3),
    "layer": b"",
    "state/ring": b"secret of the session",
}
BIG = {**PARTS, "images/pages-1.img": os.urandom(1 << 20) * 37}  # more than one request takes


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
    words = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    address = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                _ask(address, "GET")
                break
            except (urllib.error.URLError, ConnectionError):
                assert time.monotonic() < deadline
                assert process.poll() is None
                time.sleep(0.05)
        yield address
    finally:
        process.kill()
        process.wait()


def _ask(address: str, method: str) -> None:
    request = urllib.request.Request(address, method=method)  # noqa: S310
    urllib.request.urlopen(request, timeout=10).close()  # noqa: S310


@pytest.fixture
def bucket(server: str, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "somebody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "something")
    name = f"b{os.urandom(6).hex()}"
    _ask(f"{server}/{name}", "PUT")
    return Bucket(name, "some/where", server)


@pytest.fixture
def store(bucket: Bucket) -> S3:
    return S3(bucket)


@pytest.fixture
def raw(bucket: Bucket) -> S3Store:
    return S3Store(
        bucket.name,
        config={"endpoint": bucket.endpoint, "region": "us-east-1"},
        client_options={"allow_http": True},
    )


def names(raw: S3Store) -> list[str]:
    return sorted(item["path"] for chunk in obstore.list(raw) for item in chunk)


def put(store: S3, tmp_path: Path, facts: Facts = FACTS) -> None:
    folder = tmp_path / os.urandom(8).hex()
    laid(folder, facts, PARTS)
    store.put(folder)


def got(store: S3, session: str, checkpoint: str, tmp_path: Path) -> Manifest:
    """In `out`, unsealed."""
    sealed = tmp_path / os.urandom(8).hex()
    store.get(session, checkpoint, sealed)
    return lay_out(sealed, tmp_path / "out", KEYS, lambda _part: True)


def test_what_is_put_is_got(store: S3, bucket: Bucket, raw: S3Store, tmp_path: Path) -> None:
    remote: Remote = store
    laid(tmp_path / "in", FACTS, BIG)
    store.put(tmp_path / "in")
    location = f"s3://{bucket.name}/some/where/uid-1/build-2-1"
    assert remote.location("uid-1", "build-2-1") == location
    (kept,) = store.list()
    assert (kept.session, kept.checkpoint) == ("uid-1", "build-2-1")
    assert kept.size > len(BIG["images/pages-1.img"])
    assert store.list("uid-2") == []
    assert len(store.list("uid-1")) == 1
    assert got(store, "uid-1", "build-2-1", tmp_path) == kept.manifest
    for name, data in BIG.items():
        assert (tmp_path / "out" / name).read_bytes() == data
    assert names(raw) == [
        f"some/where/uid-1/build-2-1/{name}"
        for name in ("manifest", "parts/images/pages-1.img", "parts/layer", "parts/state/ring")
    ]
    for name in names(raw):
        assert b"secret of the session" not in bytes(obstore.get(raw, name).bytes())
    store.delete("uid-1", "build-2-1")
    store.delete("uid-1", "build-2-1")
    assert names(raw) == []
    assert store.list() == []
    with pytest.raises(NotFound):
        got(store, "uid-1", "build-2-1", tmp_path)


def test_asked_again(store: S3, tmp_path: Path) -> None:
    laid(tmp_path / "in", FACTS, PARTS)
    assert store.put(tmp_path / "in") == store.put(tmp_path / "in")
    with pytest.raises(AlreadyExists):
        put(store, tmp_path, replace(FACTS, created=2.5))


def test_without_all_parts_there_is_no_manifest(store: S3, raw: S3Store, tmp_path: Path) -> None:
    laid(tmp_path / "in", FACTS, PARTS)
    (tmp_path / "in/parts/state/ring").unlink()
    with pytest.raises(Unfit):
        store.put(tmp_path / "in")
    (tmp_path / "in/parts/state/ring").write_bytes(b"short")
    with pytest.raises(Unfit, match="cut short"):
        store.put(tmp_path / "in")
    assert "some/where/uid-1/build-2-1/manifest" not in names(raw)
    assert store.list() == []
    now = datetime.now(UTC)
    assert store.delete_abandoned(now) == []  # it may be on its way
    assert store.delete_abandoned(now + timedelta(days=2)) == ["some/where/uid-1/build-2-1"]
    assert names(raw) == []


@pytest.mark.parametrize("part", sorted(PARTS))
def test_a_damaged_part_is_never_laid_out(
    store: S3, raw: S3Store, tmp_path: Path, part: str
) -> None:
    put(store, tmp_path)
    path = f"some/where/uid-1/build-2-1/parts/{part}"
    whole = bytes(obstore.get(raw, path).bytes())
    for damaged in (whole[:-1], whole[:-1] + bytes([whole[-1] ^ 1]), whole + b"x"):
        obstore.put(raw, path, damaged)
        with pytest.raises(Unfit):
            got(store, "uid-1", "build-2-1", tmp_path)
    obstore.delete(raw, path)
    with pytest.raises(Unfit) as raised:
        got(store, "uid-1", "build-2-1", tmp_path)
    assert raised.value.fault is Fault.TRUNCATED
    assert not (tmp_path / "out").exists()


def test_under_anothers_name(store: S3, raw: S3Store, tmp_path: Path) -> None:
    put(store, tmp_path)
    for name in names(raw):
        obstore.copy(raw, name, name.replace("uid-1", "uid-2"))
    with pytest.raises(Unfit, match="another checkpoint"):
        got(store, "uid-2", "build-2-1", tmp_path)
    assert [item.session for item in store.list()] == ["uid-1"]


async def test_the_sweep_leaves_alone_what_another_cluster_keeps(store: S3, tmp_path: Path) -> None:
    put(store, tmp_path, replace(FACTS, cluster="theirs"))
    put(store, tmp_path, replace(FACTS, cluster="ours", checkpoint="build-2-2"))
    put(store, tmp_path, replace(FACTS, checkpoint="build-2-3"))  # by an older version
    now, ours = time.time(), Ours()

    def here(kept: Kept) -> str:
        return store.location("uid-1", kept.checkpoint)

    def checkpoint(name: str) -> dict[str, Any]:
        status = {"phase": "Complete", "location": store.location("uid-1", name)}
        meta = {"namespace": "default", "name": name}
        return {"metadata": meta, "spec": {"sessionUID": "uid-1"}, "status": status}

    async def swept(*names: str) -> list[str]:
        owned = owners(map(checkpoint, names))
        ours.look(owned, ["newest", "ours"])
        return [one.checkpoint for one in await sweep(store, owned, here, now, ours)]

    assert await swept("build-2-2", "build-2-3") == []
    assert await swept("build-2-2") == ["build-2-3"], "it had a Checkpoint here"
    assert await swept() == ["build-2-2"], "it has the mark of a CA of ours"
    assert [one.checkpoint for one in store.list()] == ["build-2-1"]


def test_without_a_bucket(bucket: Bucket, tmp_path: Path) -> None:
    nowhere = S3(replace(bucket, name="no-such-bucket"))
    with pytest.raises(Unavailable, match="the object store"):
        put(nowhere, tmp_path)


def test_names_lead_nowhere_else(store: S3, tmp_path: Path) -> None:
    for name in ("..", "../in", "", "/etc", "a/b"):
        with pytest.raises(BadRequest):
            got(store, name, "build-2-1", tmp_path)
        with pytest.raises(BadRequest):
            store.delete("uid-1", name)


async def test_a_keep_and_a_bring_by_way_of_the_bucket(store: S3, tmp_path: Path) -> None:
    """No keeper is asked, and no agent but the one that needs it."""

    def nobody(*_: object) -> Any:
        raise AssertionError("no other agent is asked")

    disk = Peer(tmp_path / "kept", 1 << 30, reserve=0)
    stores = Stores("a", disk, tmp_path / "spool", Others(nobody, nobody), nobody, store)
    facts = replace(FACTS, checkpoint=KEEP.name, session=KEEP.session_uid)
    manifest = laid(tmp_path / "in", facts, PARTS)
    order = replace(KEEP, store=Where.S3, keepers=())
    await stores.ready(order)
    location = await stores.put(order, tmp_path / "in", manifest, KEYS)
    assert location == store.location(KEEP.session_uid, KEEP.name)
    wanted = bring(manifest, location)
    folders = tmp_path / "memory", tmp_path / "disk"
    for folder in folders:
        folder.mkdir()
    found = await stores.get(wanted, KEYS, *folders)
    assert found.manifest == manifest
    assert (tmp_path / "memory/parts/state/ring").read_bytes() == PARTS["state/ring"]
    for path in (tmp_path / "disk").rglob("*"):
        assert not path.is_file() or b"secret of the session" not in path.read_bytes()
    with pytest.raises(NotFound, match="does not know"):
        await stores.get(replace(wanted, location="s3://else/where"), KEYS, *folders)


async def test_nobody_is_stopped_for_a_bucket_that_does_not_answer(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nobody(*_: object) -> Any:
        raise AssertionError("no other agent is asked")

    monkeypatch.setattr("holdfast_node.s3._ASKED", timedelta(seconds=0.5))
    disk = Peer(tmp_path / "kept", 1 << 30, reserve=0)
    order = replace(KEEP, store=Where.S3, keepers=())
    with socket.create_server(("127.0.0.1", 0)) as silent:
        mute = f"http://127.0.0.1:{silent.getsockname()[1]}"
        for wrong in (replace(bucket, endpoint=mute), replace(bucket, name="no-such-bucket")):
            others = Others(nobody, nobody)
            stores = Stores("a", disk, tmp_path / "spool", others, nobody, S3(wrong))
            began = time.monotonic()
            with pytest.raises(Unavailable, match="the object store"):
                await stores.ready(order)
            assert time.monotonic() - began < 5
