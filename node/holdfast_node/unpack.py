"""An archive put into a tree. Nothing in the archive is trusted: a name is one component, reached
from its directory's descriptor, no link is followed, no mount is entered or removed.

What is there is replaced, never written into: it may have other names that must stay as they are.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from contextlib import suppress
from dataclasses import dataclass, field
from io import BufferedIOBase
from typing import Any, Final

from holdfast_wire.errors import Unsupported

from .archive import REPLACE, BadArchive, Kind, Reader, Record, components
from .beneath import directory, empty, open_directory, remove
from .safe_open import UnsafePath
from .tree import DEPTH

_AT_EMPTY_PATH: Final = 0x1000
_libc: Final = ctypes.CDLL(None, use_errno=True)
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
# What only a file system that lacks them, or a kernel that keeps them to itself, answers.
_NOT_HERE: Final = (errno.ENOTSUP, errno.EPERM, errno.EACCES, errno.EINVAL)


@dataclass(slots=True)
class Unpacked:
    files: int = 0
    bytes: int = 0
    removed: int = 0
    notes: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Level:
    """A directory being filled. No descriptor: it is a mount here, and what the archive has in it
    is passed over."""

    descriptor: int | None
    record: Record


def unpack(stream: BufferedIOBase, root: int) -> Unpacked:
    """`root` is closed."""
    work = _Unpack(root)
    try:
        work.all(Reader(stream))
    finally:
        work.close()
    return work.done


class _Unpack:
    def __init__(self, root: int) -> None:
        self._root = root
        self._levels: list[_Level] = []
        self.done = Unpacked()

    def close(self) -> None:
        for level in self._levels[1:]:
            if level.descriptor is not None:
                os.close(level.descriptor)
        os.close(self._root)

    def all(self, reader: Reader) -> None:
        self._reader = reader
        first = self._reader.record()
        if first.kind == Kind.END:
            return  # a difference, and there was none
        if first.kind != Kind.DIRECTORY or first.name:
            raise BadArchive("the archive of files does not begin with its root")
        self._levels.append(_Level(self._root, first))
        if first.flags & REPLACE:
            self._empty(self._root)
        while self._levels:
            record = self._reader.record()
            if record.kind == Kind.UP:
                self._leave()
            elif record.kind == Kind.END:
                raise BadArchive("the archive of files ends inside a directory")
            elif not record.name:
                raise BadArchive("the archive of files has a second root")
            elif record.kind == Kind.DIRECTORY:
                self._enter(record)
            else:
                self._leaf(record)
        if self._reader.record().kind != Kind.END:
            raise BadArchive("the archive of files goes on after its end")

    def _here(self) -> str:
        return os.fsdecode(b"/".join(level.record.name for level in self._levels[1:]))

    def _note(self, name: bytes, what: str) -> None:
        self.done.notes.append(f"{f'{self._here()}/{os.fsdecode(name)}'.lstrip('/')!r} {what}")

    def _empty(self, descriptor: int) -> None:
        spared: list[bytes] = []
        empty(descriptor, spared=spared)
        for path in spared:
            self._note(path, "is mounted here: left as it is")

    def _remove(self, parent: int, name: bytes) -> bool:
        spared: list[bytes] = []
        gone = remove(parent, name, spared=spared)
        for path in spared:
            self._note(path, "is mounted here: left as it is")
        return gone

    def _enter(self, record: Record) -> None:
        if len(self._levels) > DEPTH + 1:
            raise BadArchive("the archive of files is too deep")
        parent = self._levels[-1].descriptor
        opened = None if parent is None else self._open(parent, record)
        self._levels.append(_Level(opened, record))
        if opened is not None:
            self.done.files += 1

    def _open(self, parent: int, record: Record) -> int | None:
        try:
            opened = open_directory(parent, record.name)
        except OSError as error:
            if error.errno == errno.EXDEV:
                self._note(record.name, "is mounted here: left as it is")
                return None
            if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                raise
            if not self._remove(parent, record.name):
                return None
            os.mkdir(record.name, 0o700, dir_fd=parent)
            return open_directory(parent, record.name)
        if record.flags & REPLACE:
            self._empty(opened)
        return opened

    def _leave(self) -> None:
        """Its times come last: filling it changed them."""
        level = self._levels.pop()
        if level.descriptor is None:
            return
        try:
            _dress(level.descriptor, level.record, fresh=False)
        finally:
            if self._levels:
                os.close(level.descriptor)

    def _leaf(self, record: Record) -> None:
        here = self._levels[-1].descriptor
        kind, name = record.kind, record.name
        if kind == Kind.FILE:
            self._file(here, record)
            return
        body = self._reader.text() if kind in (Kind.SYMLINK, Kind.LINK) else b""
        if here is None:
            return
        if not self._remove(here, name):
            return
        if kind == Kind.GONE:
            self.done.removed += 1
            return
        self.done.files += 1
        if kind == Kind.LINK:
            self._link(here, name, body)
            return
        if kind == Kind.SYMLINK:
            if not body or b"\0" in body:
                raise BadArchive("the archive of files has an empty symbolic link")
            os.symlink(body, name, dir_fd=here)
        else:
            os.mkfifo(name, 0o600, dir_fd=here)
        opened = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=here)
        try:
            _dress_unopened(opened, record)
        finally:
            os.close(opened)

    def _file(self, here: int | None, record: Record) -> None:
        opened = None if here is None else self._create(here, record.name)
        if opened is None:
            self._data(None)  # only read: it is passed over
            return
        try:
            self._data(opened)
            _dress(opened, record, fresh=True)
        finally:
            os.close(opened)

    def _create(self, here: int, name: bytes) -> int | None:
        try:
            opened = os.open(name, _NEW, 0o600, dir_fd=here)
        except FileExistsError:
            if not self._remove(here, name):
                return None
            opened = os.open(name, _NEW, 0o600, dir_fd=here)
        self.done.files += 1
        return opened

    def _data(self, opened: int | None) -> None:
        end = 0
        while True:
            offset, data = self._reader.extent()
            if not data:
                break
            if opened is not None:
                _write_all(opened, data, offset)
                self.done.bytes += len(data)
            end = max(end, offset + len(data))
        if opened is not None and offset != end:
            os.ftruncate(opened, offset)

    def _link(self, here: int, name: bytes, target: bytes) -> None:
        *above, last = components(target)
        try:
            with directory(self._root, b"/".join(above)) as place:
                os.link(last, name, src_dir_fd=place, dst_dir_fd=here, follow_symlinks=False)
        except OSError as error:
            raise BadArchive(
                f"the archive links {os.fsdecode(name)!r} to a file that is not there: "
                f"{error.strerror}"
            ) from None


def _write_all(opened: int, data: memoryview, offset: int) -> None:
    count = os.pwrite(opened, data, offset)
    while count < len(data):
        count += os.pwrite(opened, data[count:], offset + count)


def _dress(opened: int, record: Record, *, fresh: bool) -> None:
    """Owner first (it takes away set-uid and capabilities), then mode, attributes, times."""
    os.fchown(opened, record.uid, record.gid)
    os.fchmod(opened, record.mode & 0o7777)
    if not fresh:
        for name in os.listxattr(opened):
            if os.fsencode(name) not in record.xattrs and not name.startswith("security."):
                with suppress(OSError):  # not ours to remove
                    os.removexattr(opened, name)
    for key, value in record.xattrs.items():
        _set(opened, key, value)
    os.utime(opened, ns=(record.mtime_ns, record.mtime_ns))


def _dress_unopened(opened: int, record: Record) -> None:
    """`opened`: the O_PATH descriptor of a FIFO or a symbolic link. The name may have been given to
    another file since, so nothing is done by name."""
    expected = stat.S_ISFIFO if record.kind == Kind.FIFO else stat.S_ISLNK
    if not expected(os.fstat(opened).st_mode):
        raise UnsafePath(
            f"{os.fsdecode(record.name)!r} was replaced while it was unpacked",
            "stop what writes to the container's files",
        )
    _by_descriptor("fchownat", opened, record.uid, record.gid)
    exact = b"/proc/self/fd/%d" % opened  # follows to the very inode, which is no link's target
    if record.kind == Kind.FIFO:
        os.chmod(exact, record.mode & 0o7777)  # noqa: PTH101 - bytes
    for key, value in record.xattrs.items():
        _set(exact, key, value)
    seconds = divmod(record.mtime_ns, 1_000_000_000)
    _by_descriptor("utimensat", opened, (ctypes.c_long * 4)(*seconds, *seconds))


def _by_descriptor(call: str, opened: int, *arguments: Any) -> None:
    """fchownat(2) or utimensat(2) of the descriptor itself, which Python has no way to ask for."""
    if getattr(_libc, call)(opened, b"", *arguments, _AT_EMPTY_PATH) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), call)


def _set(at: int | bytes, key: bytes, value: bytes) -> None:
    try:
        os.setxattr(at, key, value)
    except OSError as error:
        if error.errno not in _NOT_HERE:
            raise
        if key.startswith((b"security.capability", b"user.")):
            raise Unsupported(
                f"the attribute {os.fsdecode(key)} cannot be set here: {error.strerror}",
                "the node's file system must take extended attributes",
            ) from None
