"""Checkpoints kept on this agent's disk, sealed.

    ROOT/SESSION-UID/CHECKPOINT/manifest    signed, in the clear: it holds no secret
    ROOT/SESSION-UID/CHECKPOINT/parts/...   sealed

Written under a name that begins with a dot, checked, and renamed when it is whole, so whatever
has a proper name is complete. Everything is for root alone. The calls block: use a thread.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from io import BufferedReader, BufferedWriter, FileIO
from pathlib import Path
from typing import Final, Protocol

from holdfast_wire.errors import AlreadyExists, HoldfastError, NotFound, Retry

from .pair import (
    Fault,
    Keys,
    Manifest,
    Part,
    Unfit,
    check_checkpoint,
    check_part,
    verify,
)
from .seal import seal, sealed_size, unseal

_MANIFEST: Final = "manifest"
_PARTS: Final = "parts"
_UNFINISHED: Final = "."
_DAY: Final = 86400.0


class NoRoom(Retry):
    """The checkpoint would take more of the disk than it may."""

    code = "no_room"
    http_status = 507


@dataclass(frozen=True, slots=True)
class Kept:
    session: str
    checkpoint: str
    size: int  # on the disk
    manifest: Manifest


class Store(Protocol):
    """Where checkpoints are kept: this agent's disk, or an object store."""

    def put(self, parts: Path, manifest: bytes) -> Kept: ...

    def get(self, session: str, checkpoint: str, into: Path) -> Manifest: ...

    def list(self, session: str | None = None) -> Sequence[Kept]: ...

    def delete(self, session: str, checkpoint: str) -> None: ...


class Peer:
    """`budget`: bytes that all checkpoints together may take. `reserve`: bytes of the disk that
    must stay free, for the node needs them more. `percent`: of the budget, what the checkpoints of
    one namespace may take, so that no tenant has all of it."""

    def __init__(
        self, root: Path, keys: Keys, budget: int, reserve: int = 1 << 30, percent: int = 100
    ) -> None:
        self._root, self._keys, self.budget, self._reserve = root, keys, budget, reserve
        self._share = budget * percent // 100
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        root.chmod(0o700)

    def put(self, parts: Path, manifest: bytes) -> Kept:
        """Keeps what lies in `parts`, as a receiver left it. Raises Unfit, NoRoom and
        AlreadyExists."""
        read = Manifest.read(manifest, self._keys)
        place = self._place(read.facts.session, read.facts.checkpoint)
        if place.exists():
            raise AlreadyExists(f"the checkpoint {read.facts.checkpoint} is kept already")
        self.admit(read.size, len(read.parts), read.facts.namespace)
        place.parent.mkdir(mode=0o700, exist_ok=True)
        fresh = place.parent / f"{_UNFINISHED}{place.name}-{secrets.token_hex(4)}"
        try:
            fresh.mkdir(mode=0o700)
            for name in read.parts:
                self._seal(read, parts, fresh / _PARTS, name)
            with _create(fresh / _MANIFEST) as target:
                target.write(manifest)
                target.flush()
                os.fsync(target.fileno())
            as_it_lies = partial(self._unsealed, fresh, read)
            check_parts(read, self._keys, as_it_lies, lambda _name, _piece: None)
            fresh.rename(place)
        except BaseException:
            shutil.rmtree(fresh, ignore_errors=True)
            with suppress(OSError):
                place.parent.rmdir()  # when this was its first
            raise
        _sync(place.parent)
        return Kept(read.facts.session, read.facts.checkpoint, _size(place), read)

    def get(self, session: str, checkpoint: str, into: Path) -> Manifest:
        """Lays it out in `into`, which appears when all of it is there and found right. Raises
        NotFound, Unfit."""
        place = self._place(session, checkpoint)
        manifest = self._manifest(place)
        lay_out(manifest, into, self._keys, lambda name: self._unsealed(place, manifest, name))
        return manifest

    def manifest(self, session: str, checkpoint: str) -> Manifest:
        """Raises NotFound, Unfit."""
        return self._manifest(self._place(session, checkpoint))

    def pieces(self, manifest: Manifest, part: str, take: Callable[[memoryview], None]) -> None:
        """One part of what is kept, straight from the disk, for who checks the whole."""
        place = self._place(manifest.facts.session, manifest.facts.checkpoint)
        for piece in self._unsealed(place, manifest, part):
            take(memoryview(piece))

    def list(self, session: str | None = None) -> Sequence[Kept]:
        """What is whole. What cannot be read is not among them."""
        found: list[Kept] = []
        for place in self._places():
            if session in (None, place.parent.name):
                with suppress(HoldfastError):
                    read = self._manifest(place)
                    found.append(Kept(place.parent.name, place.name, _size(place), read))
        return sorted(found, key=lambda item: item.manifest.facts.created)

    def delete(self, session: str, checkpoint: str) -> None:
        """Gone at once for a reader, whatever happens while its files are removed."""
        place = self._place(session, checkpoint)
        if not place.is_dir():
            return
        dying = place.parent / f"{_UNFINISHED}{place.name}-{secrets.token_hex(4)}"
        place.rename(dying)
        shutil.rmtree(dying)
        with suppress(OSError):
            place.parent.rmdir()

    def unfinished(self, now: float) -> Sequence[Path]:
        """Of an agent that ended in the middle; and what cannot be read, after a day: it could be,
        once the agents have the secret again that it was sealed with. Call it when nothing is
        being put."""
        found: list[Path] = []
        for folder in sorted(self._root.iterdir()):
            for place in sorted(folder.iterdir()):
                if place.name.startswith(_UNFINISHED):
                    found.append(place)
                    continue
                try:
                    self._manifest(place)
                except HoldfastError:
                    if place.stat().st_mtime < now - _DAY:
                        found.append(place)
        return found

    def remove(self, orphan: Path) -> None:
        """One that `unfinished` named."""
        if self._root not in orphan.parents:
            raise NotFound(f"{orphan} is not in the store")
        shutil.rmtree(orphan)
        with suppress(OSError):
            orphan.parent.rmdir()

    def used(self) -> int:
        return _size(self._root)

    def _places(self) -> Iterable[Path]:
        for folder in sorted(self._root.iterdir()):
            for place in sorted(folder.iterdir()):
                if not place.name.startswith(_UNFINISHED):
                    yield place

    def _place(self, session: str, checkpoint: str) -> Path:
        return self._root / check_checkpoint(session) / check_checkpoint(checkpoint)

    def admit(self, size: int, parts: int = 1, namespace: str = "") -> None:
        """Raises NoRoom: a checkpoint of so many bytes in so many parts cannot be kept now."""
        needs = sealed_size(size) + (parts - 1) * sealed_size(0)  # no less than part by part
        used = self.used()
        if used + needs > self.budget:
            raise NoRoom(
                f"the checkpoint needs {needs >> 20} MiB and of the {self.budget >> 20} MiB for "
                f"checkpoints {used >> 20} MiB are used",
                "keep fewer checkpoints, or give the node agent more disk",
            )
        if namespace and self._share < self.budget:
            own = sum(
                kept.size for kept in self.list() if kept.manifest.facts.namespace == namespace
            )
            if own + needs > self._share:
                raise NoRoom(
                    f"the checkpoint needs {needs >> 20} MiB, and of the {self._share >> 20} MiB "
                    f"that the namespace {namespace} may have here {own >> 20} MiB are used",
                    "keep fewer checkpoints, or raise nodeAgent.store.namespacePercent",
                )
        if needs + self._reserve > (has := free(self._root)):
            raise NoRoom(
                f"the checkpoint needs {needs >> 20} MiB and the node's disk has {has >> 20} MiB "
                f"free, of which {self._reserve >> 20} MiB must stay",
                "free some of the node's disk",
            )

    def _manifest(self, place: Path) -> Manifest:
        try:
            raw = (place / _MANIFEST).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            raise NotFound(f"the checkpoint {place.name} is not kept here") from None
        read = Manifest.read(raw, self._keys)
        if (read.facts.session, read.facts.checkpoint) != (place.parent.name, place.name):
            raise Unfit(Fault.FOREIGN, f"{place.name} holds another checkpoint")
        return read

    def _seal(self, manifest: Manifest, parts: Path, into: Path, name: str) -> None:
        target_path = into / check_part(name)
        target_path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with opened(parts, name) as source, _create(target_path) as target:
            for piece in seal(source, self._keys, sealed_name(manifest, name)):
                target.write(piece)
            target.flush()
            os.fsync(target.fileno())

    def _unsealed(self, place: Path, manifest: Manifest, name: str) -> Iterator[bytes]:
        with opened(place / _PARTS, name) as source:
            yield from unseal(source, self._keys, sealed_name(manifest, name))


# -- what all stores do ---------------------------------------------------------------------------

Pieces = Callable[[str], Iterator[bytes]]
"""Of a part that is kept, what was sealed."""


def sealed_name(manifest: Manifest, part: str) -> str:
    return f"{manifest.facts.checkpoint}/{part}"


def opened(parts: Path, name: str) -> BufferedReader:
    try:
        return (parts / name).open("rb")
    except FileNotFoundError:
        raise Unfit(Fault.TRUNCATED, f"the checkpoint lacks its part {name}") from None


def check_parts(
    manifest: Manifest, keys: Keys, pieces: Pieces, take: Callable[[str, bytes], None]
) -> None:
    """All that the manifest lists, piece by piece to `take`. Raises Unfit, at the latest when all
    was taken."""
    found: dict[str, Part] = {}
    for name in manifest.parts:
        tagger, size = keys.tagger(manifest.salt, name), 0
        for piece in pieces(name):
            tagger.update(piece)
            size += len(piece)
            take(name, piece)
        found[name] = Part(size, tagger.finalize().hex())
    verify(manifest, found)


def lay_out(manifest: Manifest, into: Path, keys: Keys, pieces: Pieces) -> None:
    """`into` appears when all of it is there and found right. Raises NoRoom before it begins."""
    if manifest.size > (has := free(into.parent)):
        raise NoRoom(
            f"the checkpoint has {manifest.size >> 20} MiB and the node's disk {has >> 20} MiB "
            "free",
            "free some of the node's disk",
        )
    fresh = into.parent / f"{_UNFINISHED}{into.name}-{secrets.token_hex(4)}"
    try:
        fresh.mkdir(mode=0o700)
        for name in manifest.parts:
            (fresh / name).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            _create(fresh / name).close()

        def write(name: str, piece: bytes) -> None:
            with (fresh / name).open("ab", buffering=0) as target:
                view = memoryview(piece)
                while view:
                    view = view[target.write(view) :]

        check_parts(manifest, keys, pieces, write)
        fresh.rename(into)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise


def free(folder: Path) -> int:
    """Bytes of its disk."""
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize


def _create(path: Path) -> BufferedWriter:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return BufferedWriter(FileIO(os.open(path, flags, 0o600), "wb"))


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _size(folder: Path) -> int:
    total = 0
    for above, _folders, files in os.walk(folder):
        for name in files:
            with suppress(FileNotFoundError):
                total += (Path(above) / name).lstat().st_size
    return total
