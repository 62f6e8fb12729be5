"""Where a checkpoint lies until it is stored. A session that is stored and runs on is frozen only
until its parts are written.

Sealed with the order's data key on their way to the disk: nothing of a session is ever there in the
clear. CRIU writes its images itself, and seals nothing; it writes them into memory, from where they
are sealed onto the disk and freed while it still writes.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from io import BufferedIOBase, BufferedWriter, FileIO
from pathlib import Path
from typing import Final, TypeVar

from cryptography.hazmat.primitives.poly1305 import Poly1305

from holdfast_wire.errors import Internal

from .growing import Feeds, Growing
from .pair import Facts, Keys, Manifest, Part, check_part
from .seal import Sealing
from .store import PARTS, NoRoom, free, sealed_name
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


@asynccontextmanager
async def folders(disk: Path, memory: Path, name: str) -> AsyncIterator[tuple[Path, Path]]:
    """On the disk, where all is sealed, and in memory."""
    async with spooled(disk, name) as sealed, spooled(memory, name) as clear:
        yield sealed, clear


def admit(root: Path, needs: int, reserve: int) -> None:
    """Raises NoRoom: a disk that a checkpoint fills is the whole node's trouble."""
    if needs + reserve > (has := free(root)):
        raise NoRoom(
            f"{needs >> 20} MiB are to be written and the node's disk has {has >> 20} MiB free, of "
            f"which {reserve >> 20} MiB must stay",
            "free some of the node's disk",
        )


@dataclass(slots=True)
class _Sealed(Growing):
    name: str
    out: BufferedIOBase
    sealing: Sealing
    tagger: Poly1305
    size: int = 0
    looked: int = 0


class Spool(Feeds[_Sealed]):
    """Takes what a Sender takes, as long as the disk has `reserve` bytes free. `folder`: on the
    disk. `images`: in memory, and CRIU's."""

    def __init__(
        self,
        folder: Path,
        images: Path,
        keys: Keys,
        salt: bytes,
        checkpoint: str,
        reserve: int = 0,
    ) -> None:
        super().__init__()
        self.folder, self.images, self._reserve = folder, images, reserve
        self._keys, self._salt, self._checkpoint = keys, salt, checkpoint
        self.images.mkdir(mode=0o700, parents=True)
        self.parts: dict[str, Part] = {}

    def admit(self, needs: int) -> None:
        """Raises NoRoom."""
        admit(self.folder, needs, self._reserve)

    def manifest(self, facts: Facts) -> Manifest:
        return Manifest(facts, self._salt, dict(self.parts))

    async def send_bytes(self, part: str, data: bytes) -> None:
        await self.send_from(part, lambda write: write(memoryview(data)))

    async def send_file(self, part: str, path: Path) -> None:
        # The folder is the sidecar's own, and so may hold what it likes: nothing is followed.
        await self._run(lambda: self._feed_file(part, path, punch=False))

    async def send_from(self, part: str, produce: Callable[[Callable[[memoryview], None]], T]) -> T:
        def work() -> T:
            going = self._begin(part)
            try:
                made = produce(lambda view: self._data(going, view))
            except BaseException:
                going.out.close()
                raise
            self._end(going)
            return made

        return await self._run(work)

    async def follow(self, prefix: str, directory: Path, done: asyncio.Event) -> None:
        if (prefix, directory) != (IMAGES, self.images):
            raise Internal(f"{directory} is not the spool's")
        await self._run(lambda: self._feed_folder(prefix, directory, done))

    async def _run(self, work: Callable[[], T]) -> T:
        return await to_its_end(work, self._closing.set)

    # -- in a thread

    def _begin(self, part: str) -> _Sealed:
        path = self.folder / PARTS / check_part(part)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        out = BufferedWriter(FileIO(os.open(path, _NEW, 0o600), "wb"), _CHUNK)
        sealing = Sealing(out.write, self._keys, sealed_name(self._checkpoint, part))
        return _Sealed(part, out, sealing, self._keys.tagger(self._salt, part))

    def _data(self, going: _Sealed, view: memoryview) -> None:
        self._check()
        if going.size >= going.looked:
            self.admit(_LOOK)
            going.looked = going.size + _LOOK
        going.tagger.update(view)
        going.sealing.update(view)
        going.size += len(view)

    def _end(self, going: _Sealed) -> None:
        with going.out as out:
            going.sealing.finish()
            out.flush()
        self.parts[going.name] = Part(going.size, going.tagger.finalize().hex())

    def _check(self) -> None:
        if self._closing.is_set():
            raise Internal("it was given up")

    def _tick(self) -> None:
        self._check()
