"""What a tree of files was like at one moment, and what differs at a later one.

`scan` looks, `changes` decides (pure). A file counts as unchanged only when nothing about it
could have changed unseen:

- the kernel's clock for times is coarse, so whatever was touched shortly before the first look
  began, or after it, is taken to have changed;
- a write through a shared mapping that was already writable leaves no time behind, so what was so
  mapped at either look is taken to have changed;
- on tmpfs no such write leaves any, so there every file is taken to have changed.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from holdfast_wire.errors import Unsupported

from . import safe_open
from .beneath import beside, directory, in_memory, open_directory, open_root

# The coarsest clock that Linux has ticks each 10 ms; a second costs nothing and is beyond doubt.
_DOUBT_NS: Final = 1_000_000_000
DEPTH: Final = 200  # of directories: each takes a descriptor and a call while it is walked

Inode = tuple[int, int]  # device, number


class Seen(NamedTuple):
    """One name. `opaque`: what lower layers have there is hidden. `whiteout`: it is deleted.
    `merged`: it must be read through the mounted root, the upper layer does not hold it all."""

    mode: int
    dev: int
    ino: int
    nlink: int
    uid: int
    gid: int
    size: int
    mtime_ns: int
    ctime_ns: int
    rdev: int
    opaque: bool = False
    whiteout: bool = False
    merged: bool = False

    @property
    def inode(self) -> Inode:
        return self.dev, self.ino


@dataclass(frozen=True, slots=True)
class Place:
    """Where a tree lies: at `below` under `root`. `overlay`: the prefix of overlayfs's own
    attributes when `root` is the upper directory of an overlay, whose mounted whole is `merged`.
    `mounts`: paths from there on which something else is mounted; they are not part of it."""

    root: Path
    below: bytes = b""
    merged: Path | None = None
    overlay: bytes | None = None
    mounts: frozenset[bytes] = frozenset()


@dataclass(slots=True)
class Look:
    """All names below a place, a directory before what is in it. `at_ns`: when the look began."""

    at_ns: int
    names: dict[bytes, Seen]
    mapped: frozenset[Inode] = frozenset()
    volatile: bool = False  # on tmpfs

    def doubtful(self, seen: Seen) -> bool:
        if not stat.S_ISREG(seen.mode):
            return seen.ctime_ns >= self.at_ns - _DOUBT_NS
        return self.volatile or seen.ctime_ns >= self.at_ns - _DOUBT_NS or seen.inode in self.mapped


@dataclass(slots=True)
class Changes:
    """`names`: what to send, in order, directories also when only something in them changed.
    `replaced`: directories whose former content is to be forgotten. `gone`: names to remove."""

    names: list[tuple[bytes, Seen]] = field(default_factory=list)
    replaced: set[bytes] = field(default_factory=set)
    gone: set[bytes] = field(default_factory=set)


def scan(place: Place, pids: Iterable[int] = ()) -> Look:
    """`pids`: the processes that may have files of it mapped."""
    at_ns = time.time_ns()
    mapped = shared_mappings(pids, place.root)
    root = open_root(place.root, place.below)
    try:
        merged = None if place.merged is None else open_root(place.merged)
        try:
            names = _Walk(place, root, merged).all()
        finally:
            if merged is not None:
                os.close(merged)
        return Look(at_ns, names, mapped, in_memory(root))
    finally:
        os.close(root)


def _seen(status: os.stat_result, **marks: bool) -> Seen:
    return Seen(
        status.st_mode,
        status.st_dev,
        status.st_ino,
        status.st_nlink,
        status.st_uid,
        status.st_gid,
        status.st_size,
        status.st_mtime_ns,
        status.st_ctime_ns,
        status.st_rdev,
        **marks,
    )


class _Walk:
    def __init__(self, place: Place, root: int, merged: int | None) -> None:
        self._place, self._root, self._merged = place, root, merged
        self._names: dict[bytes, Seen] = {}

    def all(self) -> dict[bytes, Seen]:
        # A volume stands alone: there is no lower layer whose files its target may keep.
        self._names[b""] = _seen(os.fstat(self._root), opaque=self._place.overlay is None)
        self._inside(self._root, b"", 0, by_attribute=self._mark(self._root, b"opaque") == b"x")
        return self._names

    def _mark(self, descriptor: int, name: bytes) -> bytes | None:
        if self._place.overlay is None:
            return None
        try:
            return os.getxattr(descriptor, self._place.overlay + name)
        except OSError as error:
            if error.errno in (errno.ENODATA, errno.ENOTSUP):
                return None
            raise

    def _inside(
        self, here: int, path: bytes, depth: int, *, merged: bool = False, by_attribute: bool
    ) -> None:
        if depth > DEPTH:
            raise Unsupported(
                f"there are more than {DEPTH} directories inside each other",
                f"remove them: {os.fsdecode(path[:80])}...",
            )
        prefix = path + b"/" if path else b""
        with os.scandir(here) as entries:
            found = list(entries)
        for entry in found:
            name = os.fsencode(entry.name)
            below = prefix + name
            if below in self._place.mounts:
                continue
            with suppress(FileNotFoundError):  # gone since: the next look sees that
                status = entry.stat(follow_symlinks=False)
                if stat.S_ISDIR(status.st_mode):
                    self._directory(here, name, below, depth, merged)
                elif not merged and self._whiteout(here, name, status, by_attribute):
                    self._names[below] = _seen(status, whiteout=True)
                else:
                    self._names[below] = _seen(status, merged=merged)

    def _whiteout(self, here: int, name: bytes, status: os.stat_result, by_attribute: bool) -> bool:
        prefix = self._place.overlay
        if prefix is None:
            return False
        if stat.S_ISCHR(status.st_mode):
            return status.st_rdev == 0
        if not by_attribute or not stat.S_ISREG(status.st_mode) or status.st_size:
            return False
        return prefix + b"whiteout" in map(
            os.fsencode, os.listxattr(beside(here, name), follow_symlinks=False)
        )

    def _directory(self, here: int, name: bytes, path: bytes, depth: int, merged: bool) -> None:
        try:
            inside = open_directory(here, name)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EXDEV):
                return  # swapped since, or mounted since
            raise
        try:
            status = os.fstat(inside)
            mark = None if merged else self._mark(inside, b"opaque")
            if not merged and self._mark(inside, b"redirect") is not None:
                self._renamed(path, depth, status)
                return
            self._names[path] = _seen(status, opaque=mark == b"y", merged=merged)
            by_attribute = mark == b"x"
            self._inside(inside, path, depth + 1, merged=merged, by_attribute=by_attribute)
        finally:
            os.close(inside)

    def _renamed(self, path: bytes, depth: int, status: os.stat_result) -> None:
        """A directory of a lower layer under another name: the upper layer has not all of it."""
        if self._merged is None:
            raise Unsupported(
                f"a renamed directory cannot be read here: {os.fsdecode(path)}",
                "the container's root is not within reach",
            )
        with directory(self._merged, path) as inside:
            self._names[path] = _seen(status, opaque=True, merged=True)
            self._inside(inside, path, depth + 1, merged=True, by_attribute=False)


def shared_mappings(pids: Iterable[int], upper: Path) -> frozenset[Inode]:
    """The files that these processes could write to through memory. By inode as the kernel tells
    it, and by the name's inode in the upper layer, for overlayfs shows numbers of its own. One
    too many only costs sending it again."""
    top = open_root(upper)
    try:
        return frozenset(_shared_mappings(pids, top))
    finally:
        os.close(top)


def _shared_mappings(pids: Iterable[int], top: int) -> set[Inode]:
    found: set[Inode] = set()
    for pid in pids:
        names: set[bytes] = set()
        try:
            lines = Path(f"/proc/{pid}/maps").read_bytes().splitlines()
        except OSError:
            continue  # it has ended
        for line in lines:
            fields = line.split(None, 5)
            if len(fields) < 6 or fields[1][1:2] != b"w" or fields[1][3:4] != b"s":
                continue
            name = fields[5].replace(rb"\012", b"\n")
            names.add(name)
        with suppress(OSError), safe_open.root(pid) as root:
            found |= _inodes(root, names)
        found |= _inodes(top, names)
    return found


def _inodes(root: int, names: Iterable[bytes]) -> set[Inode]:
    found: set[Inode] = set()
    for name in names:
        with suppress(OSError, ValueError, Unsupported):
            status = safe_open.status_at(root, name)
            found.add((status.st_dev, status.st_ino))
    return found


def changes(before: Look | None, after: Look) -> Changes:
    """What makes the tree of `before` that of `after`. Of a file with several names all are sent
    or none, so that they stay one file."""
    if before is None:
        every = list(after.names.items())
        return Changes(every, {path for path, seen in every if _forgets(seen)}, set())
    found = Changes(replaced=_replaced(before.names, after.names))
    changed = {
        path
        for path, seen in after.names.items()
        if _parent(path) in found.replaced
        or path in found.replaced
        or _differs(before, before.names.get(path), after, seen)
    }
    linked = {after.names[path].inode for path in changed if _is_linked(after.names[path])}
    if linked:
        changed |= {
            path for path, seen in after.names.items() if _is_linked(seen) and seen.inode in linked
        }
    gone = {path for path in before.names.keys() - after.names.keys() if path}
    # Only the topmost name that went, and none that goes with a directory's former content.
    found.gone = {
        path
        for path in gone
        if (up := _parent(path)) not in gone
        and up in after.names
        and up not in found.replaced
        and stat.S_ISDIR(after.names[up].mode)
    }
    wanted = set(changed)
    for path in changed | found.gone:
        while path and (path := _parent(path)) not in wanted:
            wanted.add(path)
    found.names = [(path, seen) for path, seen in after.names.items() if path in wanted]
    return found


def _replaced(before: Mapping[bytes, Seen], after: Mapping[bytes, Seen]) -> set[bytes]:
    """Directories that have come to hide a lower layer, and all below those. In every other one
    what changed is seen name by name, whether or not it is the directory it was."""
    found: set[bytes] = set()
    for path, seen in after.items():
        if stat.S_ISDIR(seen.mode):
            was = before.get(path)
            hides = seen.opaque and (was is None or not was.opaque or was.inode != seen.inode)
            if hides or (path and _parent(path) in found):
                found.add(path)
    return found


def _forgets(seen: Seen) -> bool:
    return seen.opaque and stat.S_ISDIR(seen.mode)


def _is_linked(seen: Seen) -> bool:
    return seen.nlink > 1 and stat.S_ISREG(seen.mode)


def _differs(before: Look, was: Seen | None, after: Look, now: Seen) -> bool:
    if was is None or was != now:
        return True
    return before.doubtful(was) or (stat.S_ISREG(now.mode) and now.inode in after.mapped)


def _parent(path: bytes) -> bytes:
    return path.rpartition(b"/")[0]


def outside(mounts: Collection[bytes], base: bytes) -> frozenset[bytes]:
    """Of absolute mount points those below `base`, as paths from there."""
    top = base.rstrip(b"/") + b"/"
    return frozenset(point[len(top) :] for point in mounts if point.startswith(top))
