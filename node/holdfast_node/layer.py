"""The writable layer of a container's root, and its volumes: taken from one container, put into
another.

Taken from the overlay's upper directory, which holds exactly what differs from the image. Put in
through the other container's mounted root, never into its upper directory: changing that behind
a mounted overlay's back is undefined, and through the root a deletion is a deletion. `capture`
copies ahead while the session runs; `difference`, after the freeze, holds what changed since.
Applied one after the other they make the tree that one capture after the freeze would make.

Not carried: what is mounted (the runtime's and kubelet's, and their empty places), sockets and
device nodes (named in the report), and `security.selinux` and `security.evm`, which are bound to
a container and to an inode. In a directory renamed with overlayfs's `redirect_dir`, and of a file
with `metacopy`, what the upper directory lacks is read through the mounted root; a file with one
name in such a directory and one outside becomes two.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from io import BufferedIOBase
from pathlib import Path
from typing import Final

from holdfast_wire.errors import Unsupported

from . import safe_open, unpack
from .archive import DATA_MAX, NO_XATTRS, REPLACE, Kind, Record, Write, Writer
from .beneath import beside, directory, open_directory, open_root
from .tree import Look, Place, Seen, changes, outside, scan

# Ours and the runtime's, mounted or not.
_NEVER: Final = (b".holdfast", b"dev", b"proc", b"sys", b"run/secrets", b"run/holdfast")
_NEVER_FILES: Final = (b"etc/hostname", b"etc/hosts", b"etc/resolv.conf", b".dockerenv")
_BOUND: Final = frozenset({b"security.selinux", b"security.evm"})
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_SMALL: Final = 128 << 10  # read at once; most files are
_ESCAPE: Final = re.compile(rb"\\([0-7]{3})")


@dataclass(slots=True)
class Report:
    files: int = 0
    bytes: int = 0
    removed: int = 0
    notes: list[str] = field(default_factory=list)  # what was left out, and why


@dataclass(frozen=True, slots=True)
class Mount:
    point: bytes
    kind: bytes
    options: tuple[bytes, ...]


def mounts(pid: int) -> list[Mount]:
    """As the process sees them, in the order in which they were made."""
    return parse_mountinfo(Path(f"/proc/{pid}/mountinfo").read_bytes())


def parse_mountinfo(text: bytes) -> list[Mount]:
    found: list[Mount] = []
    for line in text.splitlines():
        front, _, back = line.partition(b" - ")
        kind, _, options = back.split(b" ", 2)
        point = _unescape(front.split(b" ")[4])
        found.append(Mount(point, kind, tuple(map(_unescape, options.split(b",")))))
    return found


def _unescape(text: bytes) -> bytes:
    return _ESCAPE.sub(lambda match: bytes([int(match[1], 8) & 0xFF]), text)


def root_of(pid: int, host: Path = safe_open.NODE) -> Place:
    """The writable layer of the container whose first process is `pid`."""
    all_mounts = mounts(pid)
    top = [mount for mount in all_mounts if mount.point == b"/"]
    if not top or top[-1].kind != b"overlay":
        kind = os.fsdecode(top[-1].kind) if top else "missing"
        raise Unsupported(
            f"the container's root is not overlayfs but {kind}",
            "moving needs containerd or CRI-O with the overlayfs snapshotter",
        )
    options = dict(option.partition(b"=")[::2] for option in top[-1].options)
    upper = options.get(b"upperdir", b"")
    if not upper.startswith(b"/"):
        raise Unsupported("the container's root has no writable layer that can be found")
    prefix = b"user.overlay." if b"userxattr" in options else b"trusted.overlay."
    points = outside([mount.point for mount in all_mounts], b"/") | {*_NEVER, *_NEVER_FILES}
    place = host / os.fsdecode(upper[1:])
    return Place(place, b"", safe_open.root_path(pid), prefix, frozenset(points))


def volume_of(pid: int, point: str) -> Place:
    """A volume, by the path at which the container whose first process is `pid` has it."""
    points = outside([mount.point for mount in mounts(pid)], os.fsencode(point))
    below = os.fsencode(point.strip("/"))
    return Place(safe_open.root_path(pid), below, mounts=points)


def places_of(pid: int, volumes: Iterable[str]) -> dict[str, Place]:
    """The writable layer and the volumes, by the names that they have as parts."""
    found = {"layer": root_of(pid)}
    for number, path in enumerate(volumes):
        found[f"volumes/{number}"] = volume_of(pid, path)
    return found


def capture(place: Place, write: Write, pids: Iterable[int] = ()) -> tuple[Look, Report]:
    """All of it, into `write`. `pids`: the container's processes. The look is for `difference`."""
    look = scan(place, pids)
    return look, _send(place, None, look, write)


def difference(
    place: Place, before: Look, write: Write, pids: Iterable[int] = ()
) -> tuple[Look, Report]:
    """What changed since `before`. The session is frozen."""
    look = scan(place, pids)
    return look, _send(place, before, look, write)


def apply(stream: BufferedIOBase, place: Place) -> Report:
    """Puts an archive into a container that waits, or into its volume. `stream` must read all that
    is asked for, as an open file does. Raises BadArchive; what was applied until then stays."""
    root = open_root(place.root, place.below) if place.merged is None else open_root(place.merged)
    done = unpack.unpack(stream, root)
    return Report(done.files, done.bytes, done.removed, done.notes)


def copy(source: int, target: int) -> None:
    """One open file into another that is empty, with its holes."""
    size = os.fstat(source).st_size
    for start, end in _extents(source, size, sparse=True):
        at = os.lseek(target, start, os.SEEK_SET)
        while at < end:
            at += os.sendfile(target, source, at, end - at)
    os.ftruncate(target, size)


def _send(place: Place, before: Look | None, after: Look, write: Write) -> Report:
    with _Sender(place, write) as sender:
        sender.all(before, after)
        return sender.report


class _Sender:
    """Writes what `changes` names. What vanished since the look is left out; the next look says
    so. Holds the descriptors of the directory it is in and of those above."""

    def __init__(self, place: Place, write: Write) -> None:
        self._place = place
        self._writer = Writer(write)
        self._links: dict[tuple[int, int], bytes] = {}
        self._path: list[bytes] = []
        self._open: list[int | None] = []  # of each directory; None: it vanished
        self._buffer = memoryview(bytearray(DATA_MAX))
        self.report = Report()

    def __enter__(self) -> _Sender:
        with ExitStack() as stack:
            self._root = open_root(self._place.root, self._place.below)
            stack.callback(os.close, self._root)
            self._merged = None
            if self._place.merged is not None:
                self._merged = open_root(self._place.merged)
                stack.callback(os.close, self._merged)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        for descriptor in self._open:
            if descriptor is not None:
                os.close(descriptor)
        self._stack.close()

    def all(self, before: Look | None, after: Look) -> None:
        found = changes(before, after)
        gone: dict[bytes, list[bytes]] = {}
        for path in found.gone:
            parent, _, name = path.rpartition(b"/")
            gone.setdefault(parent, []).append(name)
        for path, seen in found.names:
            parent, _, name = path.rpartition(b"/")
            if path:
                self._leave_to(parent.split(b"/") if parent else [])
            if stat.S_ISDIR(seen.mode):
                self._directory(path, name, seen, path in found.replaced)
                for name in sorted(gone.get(path, ())) if self._open[-1] is not None else ():
                    self._writer.record(Record(Kind.GONE, name))
                    self.report.removed += 1
            elif (here := self._open[-1]) is not None:
                with suppress(FileNotFoundError):
                    self._leaf(here, path, name, seen)
        self._leave_to(None)
        self._writer.close()

    def _leave_to(self, parts: list[bytes] | None) -> None:
        """Closes directories until the current one is at `parts`; None: all of them."""
        depth = 0 if parts is None else len(parts) + 1
        while len(self._open) > depth or (
            parts is not None and self._path != parts[: len(self._path)]
        ):
            descriptor = self._open.pop()
            if self._path:
                self._path.pop()
            if descriptor is not None:
                os.close(descriptor)
                self._writer.record(Record(Kind.UP))

    def _directory(self, path: bytes, name: bytes, seen: Seen, replace: bool) -> None:
        if path:
            self._path.append(name)
        try:
            opened = self._opened(path, name, seen)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EXDEV):
                raise
            self._open.append(None)
            return
        self._open.append(opened)
        flags = REPLACE if replace else 0
        self._writer.record(self._record(Kind.DIRECTORY, name, seen, opened, flags=flags))
        self.report.files += 1

    def _opened(self, path: bytes, name: bytes, seen: Seen) -> int:
        if not path:
            return os.dup(self._root)
        above = self._open[-1]
        if above is None:
            raise FileNotFoundError(errno.ENOENT, "gone", path)
        if seen.merged and self._merged is not None and seen.opaque:
            return open_directory(self._merged, path)  # the topmost of a renamed one
        return open_directory(above, name)

    def _leaf(self, here: int, path: bytes, name: bytes, seen: Seen) -> None:
        kind = stat.S_IFMT(seen.mode)
        if seen.whiteout:
            self._writer.record(Record(Kind.GONE, name))
            self.report.removed += 1
            return
        if kind == stat.S_IFREG:
            self._file(here, path, name, seen)
        elif kind == stat.S_IFLNK:
            target = os.readlink(name, dir_fd=here)
            record = self._record(Kind.SYMLINK, name, seen, beside(here, name))
            self._writer.record(record, target)
        elif kind == stat.S_IFIFO:
            self._writer.record(self._record(Kind.FIFO, name, seen, beside(here, name)))
        else:
            what = "a socket" if kind == stat.S_IFSOCK else "a device node"
            self.report.notes.append(f"{os.fsdecode(path)!r} is {what}: left out")
            # What the target has under that name is not what the source has.
            self._writer.record(Record(Kind.GONE, name))
            return
        self.report.files += 1

    def _file(self, here: int, path: bytes, name: bytes, seen: Seen) -> None:
        if seen.nlink > 1:
            first = self._links.get(seen.inode)
            if first is not None:
                self._writer.record(Record(Kind.LINK, name), first)
                return
        opened = _open_file(name, here)
        if opened is None:
            return  # swapped for something else
        try:
            names = os.listxattr(opened)
            self._writer.record(self._record(Kind.FILE, name, seen, opened, names=names))
            private = "" if self._place.overlay is None else os.fsdecode(self._place.overlay)
            if private and private + "nlink" in names:
                raise Unsupported(
                    f"{os.fsdecode(path)!r} has other names in the image, which overlayfs changes "
                    "with it (index=on)",
                    "mount containers with index=off, as containerd does",
                )
            if private and private + "metacopy" in names:
                # Only its attributes were copied up; the data is still the lower layer's.
                with self._whole(path) as whole:
                    self._data(whole, os.fstat(whole))
            else:
                self._data(opened, os.fstat(opened))
        finally:
            os.close(opened)
        if seen.nlink > 1:
            self._links[seen.inode] = path

    @contextmanager
    def _whole(self, path: bytes) -> Iterator[int]:
        if self._merged is None:
            raise Unsupported(f"{os.fsdecode(path)!r} can be read only through the mounted root")
        parent, _, name = path.rpartition(b"/")
        with directory(self._merged, parent) as above:
            opened = _open_file(name, above)
        if opened is None:
            raise FileNotFoundError(errno.ENOENT, "gone", path)
        try:
            yield opened
        finally:
            os.close(opened)

    def _data(self, opened: int, status: os.stat_result) -> None:
        size = status.st_size
        if size <= _SMALL and status.st_blocks * 512 >= size:
            data = os.read(opened, _SMALL)
            if data:
                self._writer.extent(0, data)
            self._writer.file_end(len(data))
            self.report.bytes += len(data)
            return
        end = 0
        for start, stop in _extents(opened, size, sparse=status.st_blocks * 512 < size):
            end = start
            while end < stop:
                piece = self._buffer[: min(stop - end, DATA_MAX)]
                count = os.preadv(opened, [piece], end)
                if not count:
                    break  # it was cut short meanwhile
                self._writer.extent(end, piece[:count])
                end += count
                self.report.bytes += count
        # A hole at the end is part of it; a file that shrank meanwhile is sent again later.
        self._writer.file_end(max(end, os.fstat(opened).st_size))

    def _record(
        self,
        kind: Kind,
        name: bytes,
        seen: Seen,
        at: int | bytes,
        *,
        flags: int = 0,
        names: list[str] | None = None,
    ) -> Record:
        if names is None:
            names = os.listxattr(at, follow_symlinks=isinstance(at, int))
        xattrs = self._xattrs(at, names) if names else NO_XATTRS
        mode = stat.S_IMODE(seen.mode)
        return Record(kind, name, flags, mode, seen.uid, seen.gid, seen.mtime_ns, seen.size, xattrs)

    def _xattrs(self, at: int | bytes, names: list[str]) -> dict[bytes, bytes]:
        """Those of the file as the container sees it: overlayfs's own are not shown there, and
        those that it hides in turn carry its prefix twice."""
        found: dict[bytes, bytes] = {}
        follow = isinstance(at, int)
        private = self._place.overlay
        for name in names:
            key = os.fsencode(name)
            if key in _BOUND:
                continue
            shown = key
            if private is not None and key.startswith(private):
                if not key.startswith(private + b"overlay."):
                    continue
                shown = private + key[len(private) + len(b"overlay.") :]
            with suppress(OSError):  # removed meanwhile
                found[shown] = os.getxattr(at, key, follow_symlinks=follow)
        return found


def _open_file(name: bytes, here: int) -> int | None:
    """None: it is no file any more. Not blocking, should it be a pipe by now."""
    try:
        opened = os.open(name, _READ, dir_fd=here)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            return None
        raise
    if stat.S_ISREG(os.fstat(opened).st_mode):
        return opened
    os.close(opened)
    return None


def _extents(opened: int, size: int, *, sparse: bool) -> Iterator[tuple[int, int]]:
    if not sparse:
        yield 0, size
        return
    at = 0
    while at < size:
        try:
            start = os.lseek(opened, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return  # a hole to the end
            raise
        at = os.lseek(opened, start, os.SEEK_HOLE)
        yield start, at
