"""The stream in which a tree of files travels: records of fixed size, each with its name and body.

    head  kind, flags, name length, mode, uid, gid, mtime, size, length of extended attributes
    then  name, extended attributes, and the body that its kind has

Not tar: a record must also say "this name is gone" and "forget what was in this directory", a
file's holes stay holes, a file may shrink while it is read, and names are bytes. And there are no
paths in it: a directory's record opens it, the records after it lie in it, `UP` closes it. A name
is one component and cannot lead anywhere; only a hard link names another place.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from enum import IntEnum
from io import BufferedIOBase
from typing import Final, NamedTuple

from holdfast_wire.errors import Permanent

MAGIC: Final = b"holdfast-tree 1\n"
_HEAD: Final = struct.Struct("<BBHIIIqQI")
_EXTENT: Final = struct.Struct("<QI")
_XATTR: Final = struct.Struct("<HI")
_LENGTH: Final = struct.Struct("<I")

NAME_MAX: Final = 255  # of Linux, for one component
_XATTRS_MAX: Final = 1 << 20  # Linux lists at most 64 KiB of names, each value at most 64 KiB
PATH_MAX: Final = 1 << 16
DATA_MAX: Final = 256 << 10  # of one extent: what a reader must hold at once
_FLUSH: Final = 128 << 10  # small records are gathered to this much: it stays in a core's cache


class BadArchive(Permanent):
    """A stream that is not an archive, or breaks off, or names what no archive may name."""

    code = "bad_archive"


class Kind(IntEnum):
    END = 0
    DIRECTORY = 1
    UP = 2
    FILE = 3
    SYMLINK = 4
    FIFO = 5
    LINK = 6  # body: the path of a file that came before, from the root
    GONE = 7


REPLACE: Final = 1  # flag of a directory: what was in it is removed first

Write = Callable[[memoryview], object]
Xattrs = Mapping[bytes, bytes]
NO_XATTRS: Final[Xattrs] = {}


class Record(NamedTuple):
    kind: int
    name: bytes = b""
    flags: int = 0
    mode: int = 0
    uid: int = 0
    gid: int = 0
    mtime_ns: int = 0
    size: int = 0
    xattrs: Xattrs = NO_XATTRS


_KINDS: Final = frozenset(Kind)


class Writer:
    """Gathers records and gives them to `write` in pieces, which are valid only during the call."""

    def __init__(self, write: Write) -> None:
        self._write = write
        self._buffer = bytearray(MAGIC)
        self.records = 0

    def record(self, record: Record, body: bytes | None = None) -> None:
        kind, name, flags, mode, uid, gid, mtime_ns, size, xattrs = record
        packed = b""
        if xattrs:
            pairs = (
                (_XATTR.pack(len(key), len(value)), key, value) for key, value in xattrs.items()
            )
            packed = b"".join(piece for pair in pairs for piece in pair)
        self._buffer += _HEAD.pack(
            kind, flags, len(name), mode, uid, gid, mtime_ns, size, len(packed)
        )
        self._buffer += name + packed
        if body is not None:
            self._buffer += _LENGTH.pack(len(body)) + body
        self.records += 1
        if len(self._buffer) >= _FLUSH:
            self._flush()

    def extent(self, offset: int, data: bytes | memoryview) -> None:
        """A piece of the file whose record came last, at most DATA_MAX long."""
        self._buffer += _EXTENT.pack(offset, len(data))
        if len(data) < _FLUSH:
            self._buffer += data
            if len(self._buffer) >= _FLUSH:
                self._flush()
            return
        self._flush()
        self._write(memoryview(data))

    def file_end(self, size: int) -> None:
        self._buffer += _EXTENT.pack(size, 0)

    def close(self) -> None:
        self.record(Record(Kind.END, size=self.records))
        self._flush()

    def _flush(self) -> None:
        with memoryview(self._buffer) as view:
            self._write(view)
        self._buffer.clear()


class Reader:
    """Takes records from a stream that nobody vouches for yet: all lengths are bounded, names are
    single components."""

    def __init__(self, stream: BufferedIOBase) -> None:
        self._stream = stream
        self._buffer = memoryview(bytearray(DATA_MAX))
        self.records = 0
        if self._exactly(len(MAGIC)) != MAGIC:
            raise BadArchive("this is no archive of files, or one of another version")

    def record(self) -> Record:
        head = self._exactly(_HEAD.size)
        kind, flags, length, mode, uid, gid, mtime_ns, size, xattrs = _HEAD.unpack(head)
        if kind not in _KINDS or length > NAME_MAX or xattrs > _XATTRS_MAX or size >> 63:
            raise BadArchive("the archive of files is damaged")
        name = self._exactly(length) if length else b""
        if name:
            check_name(name)
        elif kind not in (Kind.END, Kind.UP, Kind.DIRECTORY):
            raise BadArchive("the archive of files has an entry without a name")
        pairs = _unpack_xattrs(self._exactly(xattrs)) if xattrs else NO_XATTRS
        if kind == Kind.END and size != self.records:
            raise BadArchive("the archive of files lacks some entries")
        self.records += 1
        return Record(kind, name, flags, mode, uid, gid, mtime_ns, size, pairs)

    def text(self) -> bytes:
        (length,) = _LENGTH.unpack(self._exactly(_LENGTH.size))
        if length > PATH_MAX:
            raise BadArchive("the archive of files holds a path that is too long")
        return self._exactly(length)

    def extent(self) -> tuple[int, memoryview]:
        """(offset, data); no data: the file ends there. Valid until the next call."""
        offset, length = _EXTENT.unpack(self._exactly(_EXTENT.size))
        if length > DATA_MAX or offset + length > 1 << 62:
            raise BadArchive("the archive of files is damaged")
        data = self._buffer[:length]
        if length and self._stream.readinto(data) != length:
            raise BadArchive("the archive of files breaks off")
        return offset, data

    def _exactly(self, count: int) -> bytes:
        data = self._stream.read(count)
        if len(data) != count:
            raise BadArchive("the archive of files breaks off")
        return data


def check_name(name: bytes) -> None:
    if name in (b"", b".", b"..") or b"/" in name or b"\0" in name or len(name) > NAME_MAX:
        raise BadArchive(f"the archive names an impossible file: {name[:80]!r}")


def components(path: bytes) -> tuple[bytes, ...]:
    """A path from the root, every part of it a name."""
    parts = tuple(path.split(b"/"))
    for part in parts:
        check_name(part)
    return parts


def _unpack_xattrs(packed: bytes) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    at = 0
    while at < len(packed):
        if at + _XATTR.size > len(packed):
            raise BadArchive("the archive of files is damaged")
        key, value = _XATTR.unpack_from(packed, at)
        at += _XATTR.size
        if not key or at + key + value > len(packed) or b"\0" in packed[at : at + key]:
            raise BadArchive("the archive of files is damaged")
        found[packed[at : at + key]] = packed[at + key : at + key + value]
        at += key + value
    return found
