"""Trees of files for the tests of layers: what one looks like, and things done to one."""

from __future__ import annotations

import hashlib
import io
import os
import random
import shutil
import stat
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast_node import layer, tree
from holdfast_node.archive import Kind, Record, Writer
from holdfast_node.tree import Look, Place

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")

Looks = dict[bytes, tuple[object, ...]]


def looks(root: Path, *, links: bool = True) -> Looks:
    """All that a process could see of it but times of access and change, and inode numbers."""
    found: Looks = {}
    groups: dict[tuple[int, int], list[bytes]] = {}
    top = os.fsencode(root)
    for above, folders, files in os.walk(top):
        for name in [b"", *folders, *files] if above == top else [*folders, *files]:
            path = above + b"/" + name if name else above
            short = os.path.relpath(path, top)
            status = os.lstat(path)
            body: object = None
            if stat.S_ISREG(status.st_mode):
                body = hashlib.sha256(Path(os.fsdecode(path)).read_bytes()).hexdigest()
                groups.setdefault((status.st_dev, status.st_ino), []).append(short)
            elif stat.S_ISLNK(status.st_mode):
                body = Path(os.fsdecode(path)).readlink()
            names = os.listxattr(path, follow_symlinks=False)
            xattrs = {name: os.getxattr(path, name, follow_symlinks=False) for name in names}
            owner = (status.st_uid, status.st_gid)
            found[short] = (oct(status.st_mode), owner, status.st_mtime_ns, body, xattrs)
    for group in groups.values() if links else ():
        for short in group:
            found[short] += (tuple(sorted(group)),)
    return found


@contextmanager
def overlay(folder: Path, lower: Path, options: str = "") -> Iterator[tuple[Path, Path]]:
    """(upper, merged)"""
    upper, work, merged = folder / "upper", folder / "work", folder / "merged"
    for each in (upper, work, merged):
        each.mkdir(parents=True)
    shutil.copystat(lower, upper)
    chosen = f"lowerdir={lower},upperdir={upper},workdir={work}{options}"
    subprocess.run(["mount", "-t", "overlay", "overlay", "-o", chosen, merged], check=True)
    try:
        yield upper, merged
    finally:
        subprocess.run(["umount", merged], check=True)


def furnish(root: Path) -> None:
    """An image's files."""
    for folder in ("etc", "usr/lib/python", "usr/bin", "home/user/src", "var/empty"):
        (root / folder).mkdir(parents=True)
    for number in range(12):
        (root / f"usr/lib/python/module{number}.py").write_text(f"x = {number}\n" * number)
        (root / f"home/user/src/file{number}").write_bytes(bytes([number]) * 1000)
    (root / "etc/passwd").write_text("root:x:0:0::/root:/bin/sh\n")
    (root / "usr/bin/tool").write_bytes(b"\x7fELF" * 100)
    (root / "usr/bin/tool").chmod(0o755)
    (root / "usr/bin/link").symlink_to("tool")
    os.link(root / "etc/passwd", root / "etc/passwd-")


class Mischief:
    """Things a session does to its files, by a seed."""

    def __init__(self, root: Path, seed: int) -> None:
        self._root, self._random = root, random.Random(seed)

    def do(self, count: int) -> None:
        for _ in range(count):
            chosen = self._random.choice(
                [
                    self._write,
                    self._write,
                    self._append,
                    self._delete,
                    self._rename,
                    self._folder,
                    self._link,
                    self._symlink,
                    self._mode,
                    self._swap,
                    self._xattr,
                    self._sparse,
                ]
            )
            chosen()

    def _all(self) -> list[Path]:
        return sorted(path for path in self._root.rglob("*"))

    def _folders(self) -> list[Path]:
        return [self._root, *(p for p in self._all() if p.is_dir() and not p.is_symlink())]

    def _files(self) -> list[Path]:
        return [p for p in self._all() if p.is_file() and not p.is_symlink()]

    def _fresh(self) -> Path:
        return self._random.choice(self._folders()) / f"n{self._random.randrange(40)}"

    def _clear(self, path: Path) -> None:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)

    def _write(self) -> None:
        path = self._fresh()
        if not path.is_dir():
            path.unlink(missing_ok=True)
            path.write_bytes(self._random.randbytes(self._random.randrange(3000)))

    def _append(self) -> None:
        if files := self._files():
            with self._random.choice(files).open("ab") as file:
                file.write(b"more")

    def _delete(self) -> None:
        if paths := self._all():
            self._clear(self._random.choice(paths))

    def _rename(self) -> None:
        paths = self._all()
        target = self._fresh()
        if not paths:
            return
        source = self._random.choice(paths)
        if source == target or source in target.parents or target in source.parents:
            return
        self._clear(target)
        shutil.move(source, target)

    def _folder(self) -> None:
        path = self._fresh()
        self._clear(path)
        path.mkdir()

    def _swap(self) -> None:
        """Deleted and made again: the new one hides what the image has there."""
        path = self._random.choice(self._folders())
        if path != self._root:
            shutil.rmtree(path)
            path.mkdir()
            (path / "fresh").write_text("new")

    def _link(self) -> None:
        target = self._fresh()
        if (files := self._files()) and not target.is_dir():
            source = self._random.choice(files)
            if source != target:
                target.unlink(missing_ok=True)
                os.link(source, target)

    def _symlink(self) -> None:
        path = self._fresh()
        self._clear(path)
        path.symlink_to(self._random.choice(["/etc/shadow", "..", "nowhere", "../../.."]))

    def _mode(self) -> None:
        paths = [path for path in self._all() if not path.is_symlink()]
        if paths:
            self._random.choice(paths).chmod(self._random.choice([0o700, 0o755, 0o1777, 0o2750]))

    def _xattr(self) -> None:
        if files := self._files():
            value = self._random.randbytes(10)
            os.setxattr(self._random.choice(files), f"user.{self._random.choice('ab')}", value)

    def _sparse(self) -> None:
        path = self._fresh()
        if not path.is_dir():
            path.unlink(missing_ok=True)
            with path.open("wb") as file:
                file.seek(self._random.randrange(1, 1 << 20))
                file.write(b"end")
                file.truncate(file.tell() + self._random.randrange(1 << 18))


def taken(place: Place, before: Look | None = None) -> tuple[bytes, Look, layer.Report]:
    pieces: list[bytes] = []

    def write(view: memoryview) -> None:
        pieces.append(bytes(view))

    if before is None:
        look, report = layer.capture(place, write)
    else:
        look, report = layer.difference(place, before, write)
    return b"".join(pieces), look, report


def put(archive: bytes, place: Place) -> layer.Report:
    return layer.apply(io.BufferedReader(io.BytesIO(archive)), place)


def seen_at(place: Place) -> Path:
    return place.root if place.merged is None else place.merged


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def settle(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was done so far is beyond doubt, without waiting a second for it."""
    monkeypatch.setattr(tree, "_DOUBT_NS", 20_000_000)
    time.sleep(0.05)


def two_passes(source: Place, target: Place, once: Place, seed: int, *, links: bool = True) -> None:
    root = seen_at(source)
    Mischief(root, seed).do(12)
    time.sleep(0.03)
    first, look, _ = taken(source)
    Mischief(root, seed + 1).do(12)
    second, _, _ = taken(source, look)
    put(first, target)
    put(second, target)
    put(taken(source)[0], once)
    assert looks(seen_at(target), links=links) == looks(root, links=links)
    assert looks(seen_at(once), links=links) == looks(root, links=links)


def archive_of(*records: tuple[Record, bytes | None], root: int = 0) -> bytes:
    pieces: list[bytes] = []
    writer = Writer(lambda view: pieces.append(bytes(view)))
    writer.record(mine(Kind.DIRECTORY, b"", root))
    for record, body in records:
        if record.kind == Kind.FILE:
            writer.record(record)
            writer.extent(0, body or b"")
            writer.file_end(len(body or b""))
        else:
            writer.record(record, body)
    writer.record(Record(Kind.UP))
    writer.close()
    return b"".join(pieces)


def mine(kind: Kind, name: bytes, flags: int = 0) -> Record:
    return Record(kind, name, flags, 0o755, os.getuid(), os.getgid())
