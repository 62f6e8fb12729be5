"""Parts on their way into a store."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast_node.pair import Part
from holdfast_node.seal import sealed_size
from holdfast_node.spool import Spool, admit, spooled
from holdfast_node.store import NoRoom, check_sealed, reader
from holdfast_node.threads import to_its_end
from holdfast_wire.errors import BadRequest, Internal

from .test_store import FACTS, KEYS


def two(write: Callable[[memoryview], None]) -> int:
    write(memoryview(b"ab"))
    return 7


def made(folder: Path, reserve: int = 0) -> Spool:
    folder.mkdir(exist_ok=True)
    return Spool(folder, folder.parent / "memory/images", KEYS, bytes(32), "k", reserve)


async def test_the_manifest_is_of_what_lies_there(tmp_path: Path) -> None:
    """Attack 40: nothing of it is on the disk in the clear, at any time."""
    marker, done = b"a secret of the session ", asyncio.Event()
    pages = marker * 200_000
    async with spooled(tmp_path / "spool", "taking") as folder:
        assert folder.stat().st_mode & 0o777 == 0o700
        spool = made(folder)

        def nothing_in_the_clear() -> None:
            for path in filter(Path.is_file, folder.rglob("*")):
                assert path.stat().st_mode & 0o777 == 0o600
                assert b"secret of" not in path.read_bytes(), path

        following = asyncio.create_task(spool.follow("images", spool.images, done))
        with (spool.images / "pages-1.img").open("wb", buffering=0) as criu:
            criu.write(pages)
            async with asyncio.timeout(10):
                while os.fstat(criu.fileno()).st_blocks * 512 > len(pages) // 4:
                    nothing_in_the_clear()
                    await asyncio.sleep(0.001)
        (spool.images / "core-1.img").write_bytes(b"registers")
        (spool.images / "parent").symlink_to("/etc/passwd")
        done.set()
        await following
        (tmp_path / "ring").write_bytes(marker)
        await spool.send_file("state/ring", tmp_path / "ring")
        assert await spool.send_from("layer", two) == 7
        await spool.send_bytes("queued", marker)
        nothing_in_the_clear()
        manifest = spool.manifest(replace(FACTS, checkpoint="k"))
        tagger = KEYS.tagger(bytes(32), "state/ring")
        tagger.update(marker)
        assert manifest.parts["state/ring"] == Part(len(marker), tagger.finalize().hex())
        sizes = {"images/pages-1.img": len(pages), "images/core-1.img": 9, "layer": 2,
                 "queued": len(marker), "state/ring": len(marker)}  # fmt: skip
        assert {name: part.size for name, part in manifest.parts.items()} == sizes
        for name, part in manifest.parts.items():
            assert (folder / "parts" / name).stat().st_size == sealed_size(part.size)
        check_sealed(folder, manifest, KEYS)
        with reader(folder, manifest, KEYS, "images/pages-1.img") as source:
            assert source.read() == pages
    assert not folder.exists()


async def test_nothing_else_gets_in(tmp_path: Path) -> None:
    spool = made(tmp_path / "in")
    (tmp_path / "link").symlink_to("/etc/passwd")
    with pytest.raises(OSError, match="symbolic links"):
        await spool.send_file("state/ring", tmp_path / "link")
    await spool.send_bytes("queued", b"")
    with pytest.raises(FileExistsError):
        await spool.send_bytes("queued", b"")
    with pytest.raises(BadRequest):
        await spool.send_bytes("../out", b"")
    with pytest.raises(Internal):
        await spool.follow("images", tmp_path, asyncio.Event())


async def test_who_gives_up_waits_for_the_writer(tmp_path: Path) -> None:
    spool = made(tmp_path / "in")
    begun, ended = threading.Event(), threading.Event()

    def produce(write: Callable[[memoryview], None]) -> None:
        try:
            while True:
                write(memoryview(b"x"))
                begun.set()
        finally:
            ended.set()

    act = asyncio.create_task(spool.send_from("layer", produce))
    await asyncio.to_thread(begun.wait)
    act.cancel()
    with pytest.raises(asyncio.CancelledError):
        await act
    assert ended.is_set()
    assert await to_its_end(lambda: 3) == 3


def test_a_dump_does_not_fill_the_disk(tmp_path: Path) -> None:
    admit(tmp_path, 1 << 10, 0)
    with pytest.raises(NoRoom, match="must stay"):
        admit(tmp_path, 1 << 10, 1 << 60)


async def test_files_do_not_fill_the_disk_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = made(tmp_path / "in", reserve=1000)
    left = [100 << 20, 60 << 20, 20 << 20, 1 << 20]
    monkeypatch.setattr("holdfast_node.spool.free", lambda _folder: left.pop(0))

    def produce(write: Callable[[memoryview], None]) -> None:
        while True:
            write(memoryview(bytes(1 << 20)))

    with pytest.raises(NoRoom, match="has 1 MiB free"):
        await spool.send_from("layer", produce)
    assert left == []
    assert (tmp_path / "in/parts/layer").stat().st_size <= 48 << 20
