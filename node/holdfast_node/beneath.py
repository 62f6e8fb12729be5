"""Opening below a directory without ever leaving it.

What lies below belongs to a session, which may swap a directory for a symbolic link while we look.
So every directory is opened by `openat2`, which follows no link, climbs to no parent and crosses no
mount; what is in a directory is reached by its bare name and that directory's descriptor.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_SYS_OPENAT2: Final = 437  # the same number on every architecture
_NO_XDEV, _NO_MAGICLINKS, _NO_SYMLINKS, _BENEATH = 0x01, 0x02, 0x04, 0x08
_RESOLVE: Final = _NO_XDEV | _NO_MAGICLINKS | _NO_SYMLINKS | _BENEATH
_TMPFS_MAGIC: Final = 0x01021994

_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
_libc: Final = ctypes.CDLL(None, use_errno=True)


class _How(ctypes.Structure):
    _fields_ = (
        ("flags", ctypes.c_uint64),
        ("mode", ctypes.c_uint64),
        ("resolve", ctypes.c_uint64),
    )


_HOW: Final = _How(_DIRECTORY, 0, _RESOLVE)
_HOW_ACROSS: Final = _How(_DIRECTORY, 0, _RESOLVE & ~_NO_XDEV)
_HOW_NAME: Final = _How(os.O_PATH | os.O_CLOEXEC | os.O_NOFOLLOW, 0, _RESOLVE)
_PATH: Final = 4000  # Linux takes 4095 bytes at once


def open_root(path: str | bytes | os.PathLike[str], below: bytes = b"") -> int:
    """The one place where a path of ours, links and all, is believed. `below` it the path is a
    session's: no link is followed, but a mount, which a volume is, may be entered."""
    root = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    if not below:
        return root
    try:
        return _openat2(root, below, _HOW_ACROSS)
    finally:
        os.close(root)


def open_directory(root: int, path: bytes) -> int:
    """The directory `path` below `root`. Raises OSError: EXDEV when it is a mount or outside,
    ELOOP when a part of it is a link, ENOTDIR, ENOENT."""
    if len(path) <= _PATH:
        return _openat2(root, path or b".", _HOW)
    cut = path.rindex(b"/", 0, _PATH)
    with directory(root, path[:cut]) as half:
        return open_directory(half, path[cut + 1 :])


def openat2(root: int, path: bytes, flags: int, mode: int, resolve: int) -> int:
    return _openat2(root, path, _How(flags, mode, resolve))


def _openat2(root: int, path: bytes, how: _How) -> int:
    opened = _libc.syscall(
        ctypes.c_long(_SYS_OPENAT2),
        ctypes.c_int(root),
        ctypes.c_char_p(path),
        ctypes.byref(how),
        ctypes.c_size_t(ctypes.sizeof(how)),
    )
    if opened < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), path)
    return int(opened)


@contextmanager
def directory(root: int, path: bytes) -> Iterator[int]:
    opened = open_directory(root, path)
    try:
        yield opened
    finally:
        os.close(opened)


def beside(parent: int, name: bytes) -> bytes:
    """A path to `name` in `parent`, for the calls that take no directory descriptor. Only the last
    part could be a link: use it with `follow_symlinks=False`."""
    return b"/proc/self/fd/%d/%s" % (parent, name)


def in_memory(descriptor: int) -> bool:
    """True on tmpfs, where a write through a shared mapping leaves no trace in a file's times."""
    buffer = ctypes.create_string_buffer(256)  # struct statfs is smaller; f_type comes first
    if _libc.fstatfs(descriptor, buffer) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return ctypes.c_long.from_buffer(buffer).value == _TMPFS_MAGIC


def _is_mount(parent: int, name: bytes) -> bool:
    """Asked before it is removed: the kernel lets a mount point of another mount namespace go, and
    its mount with it."""
    try:
        os.close(_openat2(parent, name, _HOW_NAME))
    except OSError as error:
        if error.errno == errno.EXDEV:
            return True
        raise
    return False


def empty(parent: int, *, spared: list[bytes], path: bytes = b"") -> None:
    """Removes all that is in `parent`. What is mounted in it cannot go and is not looked into: it
    is named in `spared`, and the directories above it stay."""
    for entry in list(os.scandir(parent)):
        remove(parent, os.fsencode(entry.name), spared=spared, path=path)


def remove(parent: int, name: bytes, *, spared: list[bytes], path: bytes = b"") -> bool:
    """Removes `name` and all below it. False: it, or something below it, is a mount."""
    here = b"%s/%s" % (path, name) if path else name
    try:
        if _is_mount(parent, name):
            spared.append(here)
            return False
        os.unlink(name, dir_fd=parent)
        return True
    except FileNotFoundError:
        return True
    except OSError as error:
        if error.errno not in (errno.EISDIR, errno.EPERM):
            raise
    try:
        with directory(parent, name) as inside:
            empty(inside, spared=spared, path=here)
        os.rmdir(name, dir_fd=parent)
    except OSError as error:
        if error.errno in (errno.EXDEV, errno.EBUSY):
            spared.append(here)
            return False
        if error.errno == errno.ENOTEMPTY and spared:
            return False
        raise
    return True
