"""Checkpoints kept on this agent's disk, sealed, by an agent that has no key for them.

    ROOT/SESSION-UID/CHECKPOINT/manifest    signed, in the clear: it holds no secret
    ROOT/SESSION-UID/CHECKPOINT/parts/...   sealed

What the manifest says is proved where it is brought back, with the order's data key. Who keeps it
takes its word only for what it is called, and when it may be removed.

Written under a name that begins with a dot, checked, and renamed when it is whole, so whatever
has a proper name is complete. Everything is for root alone. The calls block: use a thread.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
    verify,
)
from .seal import Unsealed, sealed_size, unseal

MANIFEST: Final = "manifest"
PARTS: Final = "parts"
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

    def list(self, session: str | None = None) -> Sequence[Kept]: ...

    def delete(self, session: str, checkpoint: str) -> None: ...


class Peer:
    """`budget`: bytes that all checkpoints together may take. `reserve`: bytes of the disk that
    must stay free, for the node needs them more. `percent`: of the budget, what the checkpoints of
    one namespace may take, so that no tenant has all of it."""

    def __init__(self, root: Path, budget: int, reserve: int = 1 << 30, percent: int = 100) -> None:
        self._root, self.budget, self._reserve = root, budget, reserve
        self._share = budget * percent // 100
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        root.chmod(0o700)

    def put(self, sealed: Path, check: Callable[[], object]) -> Kept:
        """Keeps the folder `sealed`, which lies on this disk and is gone from there then. `check`
        reads all of it again, when it is surely on the disk. Raises Unfit, NoRoom and
        AlreadyExists."""
        read = glance(sealed)
        place = self._place(read.facts.session, read.facts.checkpoint)
        if place.exists():
            raise AlreadyExists(f"the checkpoint {read.facts.checkpoint} is kept already")
        self._afford(_size(sealed), read.facts.namespace)
        for path in sealed.rglob("*"):
            _sync(path)
        check()
        place.parent.mkdir(mode=0o700, exist_ok=True)
        try:
            sealed.rename(place)
        except BaseException:
            with suppress(OSError):
                place.parent.rmdir()  # when this was its first
            raise
        _sync(place.parent)
        return Kept(read.facts.session, read.facts.checkpoint, _size(place), read)

    def folder(self, session: str, checkpoint: str) -> Path:
        """Where it lies, sealed. Raises NotFound."""
        place = self._place(session, checkpoint)
        self._manifest(place)
        return place

    def manifest(self, session: str, checkpoint: str) -> Manifest:
        """As it says itself. Raises NotFound, Unfit."""
        return self._manifest(self._place(session, checkpoint))

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
        """Of an agent that ended in the middle; and what cannot be read, after a day. Call it when
        nothing is being put."""
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
        self._afford(needs, namespace)
        if needs + self._reserve > (has := free(self._root)):
            raise NoRoom(
                f"the checkpoint needs {needs >> 20} MiB and the node's disk has {has >> 20} MiB "
                f"free, of which {self._reserve >> 20} MiB must stay",
                "free some of the node's disk",
            )

    def _afford(self, needs: int, namespace: str) -> None:
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

    def _manifest(self, place: Path) -> Manifest:
        read = glance(place)
        if (read.facts.session, read.facts.checkpoint) != (place.parent.name, place.name):
            raise Unfit(Fault.FOREIGN, f"{place.name} holds another checkpoint")
        return read


# -- what all stores do ---------------------------------------------------------------------------

Pieces = Callable[[str], Iterator[bytes]]
"""Of a part that is kept, what was sealed."""


def sealed_name(checkpoint: str, part: str) -> str:
    return f"{checkpoint}/{part}"


def raw_manifest(sealed: Path) -> bytes:
    try:
        return (sealed / MANIFEST).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise NotFound(f"the checkpoint {sealed.name} is not kept here") from None


def glance(sealed: Path) -> Manifest:
    return Manifest.glance(raw_manifest(sealed))


def check_whole(manifest: Manifest, sizes: Mapping[str, int]) -> None:
    """Each part is there, whole by its length, and nothing else; what is in it shows when it is
    unsealed. `sizes`: of what lies there, by part. Raises Unfit."""
    for name, part in manifest.parts.items():
        if sizes.get(name) != sealed_size(part.size):
            raise Unfit(
                Fault.TRUNCATED, f"the checkpoint lacks its part {name}, or it is cut short"
            )
    for name in sizes.keys() - manifest.parts.keys():
        raise Unfit(Fault.CORRUPT, f"the checkpoint has a part that its manifest lacks: {name}")


def unsealed(sealed: Path, manifest: Manifest, keys: Keys, name: str) -> Iterator[bytes]:
    with opened(sealed / PARTS, name) as source:
        yield from unseal(source, keys, sealed_name(manifest.facts.checkpoint, name))


def check_sealed(sealed: Path, manifest: Manifest, keys: Keys) -> None:
    """All of it is what was taken. Raises Unfit."""
    pieces = partial(unsealed, sealed, manifest, keys)
    check_parts(manifest, keys, pieces, lambda _name, _piece: None)


def reader(sealed: Path, manifest: Manifest, keys: Keys, name: str) -> BufferedReader:
    """One part, unsealed while it is read."""
    source = opened(sealed / PARTS, name)
    what = sealed_name(manifest.facts.checkpoint, name)
    return BufferedReader(Unsealed(source, keys, what), 1 << 20)


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


def lay_out(sealed: Path, into: Path, keys: Keys, wanted: Callable[[str], bool]) -> Manifest:
    """All of it is checked; the parts that are wanted lie in `into` then, in the clear, which must
    be in memory. It appears when all was found right. Raises NoRoom before it begins."""
    manifest = Manifest.read(raw_manifest(sealed), keys)
    parts = [name for name in manifest.parts if wanted(name)]
    needs = sum(manifest.parts[name].size for name in parts)
    if needs > (has := free(into.parent)):
        raise NoRoom(
            f"the session has {needs >> 20} MiB of memory and the node has room for {has >> 20} MiB"
        )
    fresh = into.parent / f"{_UNFINISHED}{into.name}-{secrets.token_hex(4)}"
    try:
        fresh.mkdir(mode=0o700)
        for name in parts:
            (fresh / name).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            _create(fresh / name).close()

        def write(name: str, piece: bytes) -> None:
            if not wanted(name):
                return
            with (fresh / name).open("ab", buffering=0) as target:
                view = memoryview(piece)
                while view:
                    view = view[target.write(view) :]

        check_parts(manifest, keys, partial(unsealed, sealed, manifest, keys), write)
        fresh.rename(into)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise
    return manifest


def free(folder: Path) -> int:
    """Bytes of its disk."""
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize


def _create(path: Path) -> BufferedWriter:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return BufferedWriter(FileIO(os.open(path, flags, 0o600), "wb"))


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_NOFOLLOW)
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
