"""Parts of a checkpoint as files, for the time that they are on their way into a store.

While the session stands still they are only written; what takes time beyond that, their tags and
the manifest, is made when it runs again. On the store's disk, for a session's memory may be more
than the node has left of its own; in the clear, for root alone, and gone when they are stored."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from io import BufferedWriter, FileIO
from pathlib import Path
from typing import Final, TypeVar

from holdfast_wire.errors import Internal

from .pair import Facts, Keys, Manifest, Part, check_part
from .store import NoRoom, free
from .threads import to_its_end

IMAGES: Final = "images"
_CHUNK: Final = 1 << 20
_LOOK: Final = 16 << 20  # bytes between two looks at the disk
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
T = TypeVar("T")


@asynccontextmanager
async def spooled(root: Path, name: str) -> AsyncIterator[Path]:
    """A folder of one's own, empty and for root alone, that goes with whoever needed it."""
    folder = await asyncio.to_thread(_folder, root, name)
    try:
        yield folder
    finally:
        await asyncio.to_thread(shutil.rmtree, folder, True)


def _folder(root: Path, name: str) -> Path:
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=root))


def admit(root: Path, needs: int, reserve: int) -> None:
    """Raises NoRoom: a disk that a checkpoint fills is the whole node's trouble."""
    if needs + reserve > (has := free(root)):
        raise NoRoom(
            f"{needs >> 20} MiB are to be written and the node's disk has {has >> 20} MiB free, of "
            f"which {reserve >> 20} MiB must stay",
            "free some of the node's disk",
        )


class Spool:
    """Takes what a Sender takes, as long as the disk has `reserve` bytes free."""

    def __init__(self, folder: Path, reserve: int = 0) -> None:
        self.folder, self._reserve = folder, reserve
        self.images = folder / IMAGES  # CRIU writes there itself
        self.images.mkdir(mode=0o700)
        self._closing = threading.Event()

    def admit(self, needs: int) -> None:
        """Raises NoRoom."""
        admit(self.folder, needs, self._reserve)

    async def send_bytes(self, part: str, data: bytes) -> None:
        await self.send_from(part, lambda write: write(memoryview(data)))

    async def send_file(self, part: str, path: Path) -> None:
        await self._run(lambda: self._copy(part, path))

    async def send_from(self, part: str, produce: Callable[[Callable[[memoryview], None]], T]) -> T:
        def work() -> T:
            with self._create(part) as out:
                looked = written = 0

                def write(view: memoryview) -> None:
                    nonlocal looked, written
                    if self._closing.is_set():
                        raise Internal("it was given up")
                    if written >= looked:
                        self.admit(_LOOK)
                        looked = written + _LOOK
                    out.write(view)
                    written += len(view)

                return produce(write)

        return await self._run(work)

    async def follow(self, prefix: str, directory: Path, done: asyncio.Event) -> None:
        """They are where they belong."""
        if (prefix, directory) != (IMAGES, self.images):
            raise Internal(f"{directory} is not in the spool")
        await done.wait()

    def manifest(self, keys: Keys, facts: Facts, salt: bytes) -> Manifest:
        """Of what lies there. Blocks: reads all of it."""
        found: dict[str, Part] = {}
        for path in sorted(self.folder.rglob("*")):
            if path.is_file() and not path.is_symlink():
                name = check_part(str(path.relative_to(self.folder)))
                found[name] = _tagged(path, keys, salt, name)
        return Manifest(facts, salt, found)

    async def _run(self, work: Callable[[], T]) -> T:
        return await to_its_end(work, self._closing.set)

    def _copy(self, part: str, path: Path) -> None:
        # The folder is the sidecar's own, and so may hold what it likes: nothing is followed.
        opened = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        with os.fdopen(opened, "rb") as source, self._create(part) as out:
            shutil.copyfileobj(source, out, _CHUNK)

    def _create(self, part: str) -> BufferedWriter:
        path = self.folder / check_part(part)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return BufferedWriter(FileIO(os.open(path, _NEW, 0o600), "wb"), _CHUNK)


def _tagged(path: Path, keys: Keys, salt: bytes, name: str) -> Part:
    tagger, size = keys.tagger(salt, name), 0
    buffer = memoryview(bytearray(_CHUNK))
    with path.open("rb", buffering=0) as source:
        while count := source.readinto(buffer):
            tagger.update(buffer[:count])
            size += count
    return Part(size, tagger.finalize().hex())
