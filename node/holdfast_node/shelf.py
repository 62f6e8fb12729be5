"""Where a session of this machine lies while it sleeps: one folder on a disk, for root alone.

    NAME.new ── whole, on the disk, renamed ──> NAME ── renamed ──> NAME.old ── removed
     being taken                              it sleeps           it runs

Invariant: the session sleeps if and only if NAME is there. Both renames are one step, so whoever is
killed leaves it on one side or the other, and what else is there is rubbish: processes of a session
that sleeps, or files of one that runs.

`manifest.json` has the size and the digest of every other file: all of it is as it was, or nothing
is restored.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from holdfast_wire.errors import Internal, Unsupported

from . import cpu

_MANIFEST: Final = "manifest.json"
_VERSION: Final = 1
IMAGES: Final = "images"
STATE: Final = "state"
QUEUED: Final = "queued.json"
# Of CRIU's about its own work, written anew whenever it is tried.
_NOT_PARTS: Final = re.compile(r".*\.log|stats-.*|criu\.kdat.*")


@dataclass(frozen=True)
class Shelf:
    path: Path

    @property
    def new(self) -> Path:
        return self.path.with_name(f"{self.path.name}.new")

    @property
    def old(self) -> Path:
        return self.path.with_name(f"{self.path.name}.old")

    @property
    def lock(self) -> Path:
        return self.path.with_name(f"{self.path.name}.lock")

    @property
    def criu(self) -> Path:
        """For links to the program, while it is needed."""
        return self.path.with_name(f"{self.path.name}.criu")

    def full(self) -> bool:
        return self.path.exists()

    def prepare(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.path.parent.chmod(0o700)

    def begin(self) -> Path:
        """An empty folder to put it in."""
        shutil.rmtree(self.new, ignore_errors=True)
        self.new.mkdir(mode=0o700)
        for name in (IMAGES, STATE):
            (self.new / name).mkdir(mode=0o700)
        return self.new

    def finish(self) -> int:
        """The session sleeps from here on. How many bytes it is."""
        parts = {name: _looked_at(path) for name, path in _parts(self.new)}
        manifest = {
            "version": _VERSION,
            "created": time.time(),
            "features": list(cpu.features()),
            "parts": parts,
        }
        (self.new / _MANIFEST).write_text(json.dumps(manifest))
        for folder in (self.new / IMAGES, self.new / STATE, self.new):
            for path in folder.iterdir():
                if path.is_file():
                    _sync(path)
            _sync(folder)
        self.new.rename(self.path)
        with contextlib.suppress(OSError):  # it sleeps already; a failure must not say otherwise
            _sync(self.path.parent)
        return sum(size for size, _ in parts.values())

    def check(self) -> None:
        """All of it is as it was, and this machine can run it; else this says why."""
        try:
            manifest: dict[str, Any] = json.loads((self.path / _MANIFEST).read_bytes())
            parts = {str(name): (int(s), str(d)) for name, (s, d) in manifest["parts"].items()}
            features = set(manifest["features"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise _damaged(f"its manifest cannot be read: {error!r}") from error
        if manifest.get("version") != _VERSION:
            raise Unsupported(
                f"it was stored by another version of holdfast ({manifest.get('version')})",
                "wake it with that one",
            )
        found = dict(_parts(self.path))
        for name, told in parts.items():
            if name not in found:
                raise _damaged(f"{name} is not there")
            if _looked_at(found[name]) != told:
                raise _damaged(f"{name} is not as it was")
        if lacking := sorted(features - set(cpu.features())):
            raise Unsupported(
                f"this processor lacks what it had: {', '.join(lacking[:5])}",
                "wake it on the machine it was suspended on",
            )

    def leave(self) -> None:
        """The session runs from here on. Nothing after the rename may fail; and if a power cut
        undoes it, nothing runs."""
        shutil.rmtree(self.old, ignore_errors=True)
        self.path.rename(self.old)

    def sweep(self) -> None:
        for path in (self.new, self.old, self.criu):
            shutil.rmtree(path, ignore_errors=True)


def _damaged(why: str) -> Internal:
    return Internal(
        f"what was stored of it is damaged: {why}",
        "put the file back from a copy and wake it again, or give it up with 'holdfast end'",
    )


def _parts(folder: Path) -> Iterator[tuple[str, Path]]:
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_file() and name != _MANIFEST and not _NOT_PARTS.fullmatch(path.name):
            yield name, path


def _looked_at(path: Path) -> tuple[int, str]:
    with path.open("rb") as file:
        return path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
