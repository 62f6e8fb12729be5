"""`/dev/tty` in a dump: it becomes the terminal that it is.

dash and busybox's sh hold it open at their prompt, and pagers do. Opening it gives the terminal
that controls who opens, and of the name the kernel keeps no more than the path. CRIU would open it
by that name again, in a process that may not have its terminal yet, and so refuses nearly every
tree that has one (tty_verify_ctty). Here CRIU is told that `/dev/tty` is somebody else's, and
leaves blanks. While the tree stands frozen the kernel is asked which terminal each one is, and the
images then have that one's slave side: it reads, writes and obeys as before.

Invariant: images that leave the engine have no blank; what cannot be filled in is a DumpFailed.
"""

from __future__ import annotations

import fcntl
import os
import struct
from pathlib import Path
from typing import Any, Final

from pycriu.images import core_pb2, fdinfo_pb2, tty_pb2

from . import containers, criu_rpc, failure, freezer, safe_open
from .failure import DumpFailed
from .safe_open import UnsafePath

_DEV_TTY: Final = os.makedev(5, 0)
_PTS: Final = 136  # its major number
_TIOCGDEV: Final = 0x80045432  # x86_64, aarch64
_INFOS: Final = "tty-info.img"
_FILES: Final = "files.img"


def external(keeper: int) -> list[str]:
    """What CRIU has to be told for it."""
    try:
        found = safe_open.status(keeper, "dev/tty")
    except (OSError, UnsafePath):
        return []
    return [f"tty[{_DEV_TTY:x}:{found.st_dev:x}]"] if found.st_rdev == _DEV_TTY else []


def resolve(images: Path, keeper: int) -> None:
    """Of a tree that was dumped and still is as it was then."""
    infos = list(criu_rpc.entries(images / _INFOS, tty_pb2.tty_info_entry))
    blanks = {info.id: info for info in infos if info.type == tty_pb2.EXT_TTY}
    if not blanks:
        return
    known = {info.id: info for info in infos if info.id not in blanks}
    files = list(criu_rpc.entries(images / _FILES, fdinfo_pb2.file_entry))
    ttys = [file.tty for file in files if file.HasField("tty")]
    paths = {tty.tty_info_id: tty.regf_id for tty in ttys}
    holders = _holders(images, keeper)
    for tty in ttys:
        if (blank := blanks.get(tty.tty_info_id)) is None:
            continue
        index = _index(*holders[tty.id])
        slave, master = 2 * index, 2 * index + 1  # CRIU's numbers for them
        if master not in known:
            raise _refused(holders[tty.id][0], "that is not the session's")
        if slave not in known:  # nobody has it open by its own name
            file = fdinfo_pb2.file_entry(id=1 + max(file.id for file in files))
            known[slave] = _name(file, tty, blank, keeper, index)
            files.append(file)
            paths[slave] = file.id
        tty.tty_info_id, tty.regf_id = slave, paths[slave]
    criu_rpc.rewrite(images / _FILES, files)
    criu_rpc.rewrite(images / _INFOS, known.values())


def _holders(images: Path, keeper: int) -> dict[int, tuple[int, int]]:
    """For each file of CRIU's: a process that has it, by its host PID, and its descriptor."""
    found = {}
    for pid in freezer.descendants(keeper):
        path = images / f"ids-{containers.inner_pid(pid)}.img"
        if not path.exists():  # of one that has ended, and waits for its parent
            continue
        [ids] = criu_rpc.entries(path, core_pb2.task_kobj_ids_entry)
        path = images / f"fdinfo-{ids.files_id}.img"
        for entry in criu_rpc.entries(path, fdinfo_pb2.fdinfo_entry):
            found[entry.id] = (pid, int(entry.fd))
    return found


def _index(pid: int, number: int) -> int:
    """Which of the pseudoterminals it is."""
    fd = containers.fetch(pid, number)
    try:
        (device,) = struct.unpack("=I", fcntl.ioctl(fd, _TIOCGDEV, bytes(4)))
    except OSError as error:  # hung up
        raise _refused(pid, "that is gone") from error
    finally:
        os.close(fd)
    if os.major(device) != _PTS:
        raise _refused(pid, "that is not the session's")
    return os.minor(device)


def _name(file: Any, tty: Any, blank: Any, keeper: int, index: int) -> Any:
    """Makes the name's own entry of `file`, and returns what CRIU would know of that terminal."""
    named = f"/dev/pts/{index}"
    found = safe_open.status(keeper, named)
    file.type = fdinfo_pb2.REG
    file.reg.id, file.reg.name, file.reg.mode = file.id, named, found.st_mode
    file.reg.flags, file.reg.pos = tty.flags, 0
    file.reg.fown.CopyFrom(tty.fown)
    made = tty_pb2.tty_info_entry()
    made.CopyFrom(blank)
    made.id, made.type, made.pty.index = 2 * index, tty_pb2.PTY, index
    made.rdev, made.dev = found.st_rdev, found.st_dev
    made.uid, made.gid = found.st_uid, found.st_gid
    return made


def _refused(pid: int, which: str) -> DumpFailed:
    says = f"has /dev/tty open, of a terminal {which}"
    advice = "close it or end the program, and move the session then"
    return DumpFailed(failure.reason(containers.inner_pid(pid), containers.name(pid), says, advice))
