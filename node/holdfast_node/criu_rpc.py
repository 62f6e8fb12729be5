"""CRIU's protocol: one request, questions from CRIU on the way, one answer.

The messages are CRIU's own, from its Python package (`pycriu`, as Debian's python3-pycriu has it),
which needs `protobuf`.
"""

from __future__ import annotations

import ipaddress
import itertools
import mmap
import socket
import struct
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Final

from pycriu import rpc_pb2 as rpc
from pycriu.images import fdinfo_pb2, mm_pb2, pagemap_pb2, pstree_pb2, tty_pb2

from holdfast_wire.errors import Internal

from .entering import Entered

LOG_LEVEL: Final = 3  # with more it has a line for each piece of memory, and takes twice as long
SEIZE_SECONDS: Final = 5  # the tree is frozen already, so this takes milliseconds or never ends
GHOST_LIMIT: Final = 64 << 20
_LAZY, _PRESENT = 2, 4  # of a pagemap's entry
_WIPE_ON_FORK: Final = 18  # as madvise numbers it
_MAGIC: Final = 8  # bytes


class Kind(Enum):
    DUMP = rpc.DUMP
    RESTORE = rpc.RESTORE

    @property
    def log(self) -> str:
        return f"{self.name.lower()}.log"


@dataclass(frozen=True)
class Answer:
    success: bool
    message: str  # CRIU's first error, if it has one
    errno: int
    pid: int | None  # of the restored tree's root


Notified = Callable[[str, int | None], Awaitable[bool]]
"""Called with a script's name; CRIU goes on when it returned true."""


async def converse(entered: Entered, request: bytes, notified: Notified | None = None) -> Answer:
    await entered.send(request)
    while True:
        response = rpc.criu_resp()
        response.ParseFromString(await entered.receive())
        if response.type != rpc.NOTIFY:
            return _answer(response)
        asked = response.notify
        pid = int(asked.pid) if asked.HasField("pid") else None
        go_on = True if notified is None else await notified(str(asked.script), pid)
        reply = rpc.criu_req(type=rpc.NOTIFY, notify_success=go_on)
        await entered.send(bytes(reply.SerializeToString()))


async def ready(entered: Entered) -> None:
    """Returns when CRIU is loaded, and waits for what it is to do. Internal: it never will be."""
    request = rpc.criu_req(type=rpc.VERSION, keep_open=True)
    if not (await converse(entered, bytes(request.SerializeToString()))).success:
        raise Internal("CRIU does not even say its version", "see the agent's log")


def _answer(response: Any) -> Answer:
    restored = response.HasField("restore")
    return Answer(
        success=bool(response.success),
        message=str(response.cr_errmsg).strip(),
        errno=int(response.cr_errno),
        pid=int(response.restore.pid) if restored else None,
    )


def dump_request(
    keeper: int, images: str, freezer: str, external: list[str], *, lazy: bool = False
) -> bytes:
    """`keeper` as its container numbers it. The tree is left alive, frozen by its cgroup: CRIU
    freezes what it found frozen before it lets go of it. `external`: what is not CRIU's to know."""
    request = _request(Kind.DUMP, images)
    request.opts.pid = keeper
    request.opts.leave_running = True
    request.opts.timeout = SEIZE_SECONDS
    request.opts.freeze_cgroup = freezer
    request.opts.lazy_pages = lazy
    request.opts.external.extend(external)
    return bytes(request.SerializeToString())


def restore_request(images: str, *, lazy: bool = False) -> bytes:
    request = _request(Kind.RESTORE, images)
    request.opts.lazy_pages = lazy
    request.opts.notify_scripts = True
    return bytes(request.SerializeToString())


def _request(kind: Kind, images: str) -> Any:
    request = rpc.criu_req(type=kind.value)
    options = request.opts
    options.images_dir_fd = -1
    options.images_dir = images
    options.log_level = LOG_LEVEL
    options.log_file = kind.log
    options.tcp_established = True
    options.tcp_skip_in_flight = True  # a connection nobody accepted yet has no process to move
    options.file_locks = True
    options.ext_unix_sk = True
    options.link_remap = True
    options.ghost_limit = GHOST_LIMIT
    options.manage_cgroups_mode = rpc.IGNORE
    # Connections between frozen processes have no traffic, and the others are cut: nothing to lock.
    options.network_lock = rpc.SKIP
    return request


def pids_in(images: Path) -> frozenset[int]:
    """Every number that a dumped tree needs free where it is restored."""
    found: set[int] = set()
    for entry in entries(images / "pstree.img", pstree_pb2.pstree_entry):
        found.update((entry.pid, entry.pgid, entry.sid), entry.threads)
    return frozenset(found - {0})


def addresses_in(images: Path) -> frozenset[str]:
    """The addresses of their own that a dumped tree's sockets have, and that CRIU gives them again:
    not the loopback ones, which are everywhere, nor those that stand for all."""
    found = set()
    for entry in entries(images / "files.img", fdinfo_pb2.file_entry):
        if entry.HasField("isk") and entry.isk.src_addr:
            size = 4 if entry.isk.family == socket.AF_INET else 16
            packed = struct.pack(f"={len(entry.isk.src_addr)}I", *entry.isk.src_addr)[:size]
            address = ipaddress.ip_address(packed)
            address = getattr(address, "ipv4_mapped", None) or address
            if not (address.is_loopback or address.is_unspecified):
                found.add(str(address))
    return frozenset(found)


def terminals_in(images: Path) -> list[tuple[int, int]]:
    """(number, the session that it controls, or 0) of each terminal whose master side is there."""
    found = entries(images / "tty-info.img", tty_pb2.tty_info_entry)
    masters = (one for one in found if one.type == tty_pb2.PTY and one.id % 2)
    return sorted((int(one.pty.index), int(one.sid)) for one in masters)


def lazy_in(images: Path) -> list[tuple[int, int, int]]:
    """(PID, address, size) of memory that the images leave to be fetched."""
    found = []
    for path in sorted(images.glob("pagemap-[0-9]*.img")):
        pid = int(path.stem.removeprefix("pagemap-"))
        for entry in itertools.islice(entries(path, pagemap_pb2.pagemap_entry), 1, None):
            if entry.flags & _LAZY and not entry.flags & _PRESENT:
                pages = entry.nr_pages or entry.compat_nr_pages
                found.append((pid, int(entry.vaddr), pages * mmap.PAGESIZE))
    return found


def wiped_in(images: Path) -> list[tuple[int, int, int]]:
    """(PID, address, size) of memory that a child does not inherit, but has as zeros."""
    found = []
    for path in sorted(images.glob("mm-[0-9]*.img")):
        pid = int(path.stem.removeprefix("mm-"))
        for entry in entries(path, mm_pb2.mm_entry):
            found += [
                (pid, int(vma.start), int(vma.end - vma.start))
                for vma in entry.vmas
                if vma.madv >> _WIPE_ON_FORK & 1
            ]
    return found


def entries(path: Path, kind: Any) -> Iterator[Any]:
    """An image is two magic numbers, and messages with their length before them."""
    data = path.read_bytes()
    place = _MAGIC
    while place < len(data):
        (length,) = struct.unpack_from("=I", data, place)
        yield kind.FromString(data[place + 4 : place + 4 + length])
        place += 4 + length


def rewrite(path: Path, messages: Iterable[Any]) -> None:
    """Puts these into an image in the place of its own."""
    texts = [message.SerializeToString() for message in messages]
    magic = path.read_bytes()[:_MAGIC]
    path.write_bytes(magic + b"".join(struct.pack("=I", len(text)) + text for text in texts))
