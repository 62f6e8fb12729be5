"""The one way to open something below a container's root.

A container's files belong to its session. A symbolic link there may point anywhere, and an absolute
one would resolve in the agent's own root; with the node's PID namespace `/proc/1/root` is the node.
So a container's root is pinned as a descriptor, and everything below it is opened by `openat2`
from there: no symbolic link, no magic link, never above the root. Mounts are crossed, for volumes
are mounts. `scripts/check_paths.py` refuses every other `/proc/PID/root` in the code.

Invariant: a descriptor that leaves this module is of a file below the root of a process that was
alive after the root was opened, so its PID was not reused in between.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import signal
import socket
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from holdfast_wire.errors import Unsupported

from .beneath import openat2

NODE: Final = Path("/proc/1/root")  # of the node, for an agent that shares its PID namespace
_NO_MAGICLINKS, _NO_SYMLINKS, _IN_ROOT = 0x02, 0x04, 0x10
_RESOLVE: Final = _NO_MAGICLINKS | _NO_SYMLINKS | _IN_ROOT
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_READ: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_libc: Final = ctypes.CDLL(None, use_errno=True)


class UnsafePath(Unsupported):
    """What lies there is not what it must be: a link, or not a regular file."""

    code = "unsafe_path"


def root_path(pid: int) -> Path:
    """For a caller that opens exactly this and nothing below it by path."""
    return Path(f"/proc/{pid}/root")


@contextmanager
def root(pid: int) -> Iterator[int]:
    """The root of the process, as an O_PATH descriptor. ProcessLookupError: it has ended."""
    process = os.pidfd_open(pid)
    try:
        opened = os.open(root_path(pid), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            signal.pidfd_send_signal(process, 0)  # it is the process that we began with
            yield opened
        finally:
            os.close(opened)
    finally:
        os.close(process)


def below(directory: int, path: str | bytes, flags: int, mode: int = 0) -> int:
    """Opens `path` below the descriptor of a directory. The caller closes what it gets."""
    raw = os.fsencode(path).lstrip(b"/") or b"."
    try:
        return openat2(directory, raw, flags | os.O_CLOEXEC, mode, _RESOLVE)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise UnsafePath(
            f"{os.fsdecode(raw)} in the container is a symbolic link, or lies behind one",
            "use an image that has no link there",
        ) from None


def status(pid: int, path: str) -> os.stat_result:
    """What lies at `path` below the root of the process; a link there is refused."""
    with root(pid) as top:
        return status_at(top, path)


def status_at(directory: int, path: str | bytes) -> os.stat_result:
    opened = below(directory, path, os.O_PATH | os.O_NOFOLLOW)
    try:
        return os.fstat(opened)
    finally:
        os.close(opened)


class Folder:
    """A directory below a container's root, by its descriptor. Names in it have one component."""

    def __init__(self, descriptor: int) -> None:
        self._fd = descriptor

    def read(self, name: str) -> int:
        """A regular file, to be read. The caller closes it."""
        opened = below(self._fd, component(name), _READ)
        if not stat.S_ISREG(os.fstat(opened).st_mode):
            os.close(opened)
            raise UnsafePath(f"{name} in the session's state is not a regular file")
        return opened

    def create(self, name: str, mode: int = 0o600) -> int:
        """A new file in the place of whatever has that name. The caller closes it."""
        self.remove(name)
        return os.open(component(name), _NEW, mode, dir_fd=self._fd)

    def remove(self, name: str) -> None:
        with suppress(FileNotFoundError):
            os.unlink(component(name), dir_fd=self._fd)

    @contextmanager
    def socket(self, name: str) -> Iterator[str]:
        """A path by which to connect to that very socket."""
        opened = below(self._fd, component(name), os.O_PATH | os.O_NOFOLLOW)
        try:
            if not stat.S_ISSOCK(os.fstat(opened).st_mode):
                raise UnsafePath(f"{name} in the container is not a socket")
            yield f"/proc/self/fd/{opened}"
        finally:
            os.close(opened)


@contextmanager
def folder(pid: int, path: str) -> Iterator[Folder]:
    """The directory `path` of the container whose first process is `pid`."""
    with root(pid) as top:
        opened = below(top, path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield Folder(opened)
    finally:
        os.close(opened)


def connect(pid: int, path: str, kind: int, seconds: float) -> socket.socket:
    """To a socket in the container whose first process is `pid`."""
    parent, _, name = path.rpartition("/")
    with folder(pid, parent) as there, there.socket(name) as exact:
        sock = socket.socket(socket.AF_UNIX, kind | socket.SOCK_CLOEXEC)
        sock.settimeout(seconds)
        try:
            sock.connect(exact)
        except BaseException:
            sock.close()
            raise
        return sock


def component(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise UnsafePath(f"{name[:80]!r} is not the name of a file of a session's state")
    return name


@contextmanager
def as_user(uid: int, gid: int) -> Iterator[None]:
    """This thread's file work is done as that user. The kernel takes the capabilities that would
    override the user's rights (DAC_OVERRIDE, FOWNER, CHOWN, MKNOD and others) away with it, and
    gives them back at the end. An agent that is not root is left as it is."""
    if os.geteuid() != 0:
        yield
        return
    try:
        _become(uid, gid)
        yield
    finally:
        _become(0, os.getegid())


def _become(uid: int, gid: int) -> None:
    _libc.setfsgid(gid)
    _libc.setfsuid(uid)
    now = _libc.setfsuid(-1), _libc.setfsgid(-1)  # an invalid ID: only says which it is
    if now != (uid, gid):
        raise Unsupported(
            f"thread {threading.get_native_id()} cannot do file work as user {uid}",
            "the node agent needs the capabilities SETUID and SETGID",
        )
