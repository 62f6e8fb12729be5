"""The process that brings a session its memory, also after it runs. `python -m` runs it.

    source's agent ─ stream ─ this process ─ userfaultfd ─ the session's processes

CRIU has a program for this, `criu lazy-pages`. This one is there instead of it because of what
comes when such a program dies: the kernel takes a closed userfaultfd for "nothing is missing any
more", and the session's processes go on with zeros where their memory should be, and nobody is
told. Here two processes have the same table of descriptors, the pager and its watcher, and the
watcher does nothing but wait. So:

- a page that has not come is never read as zeros. Whoever touches it waits until it has come.
- if it cannot come any more (the stream broke, the pager died), the tree is frozen, the watcher
  keeps the descriptors, and names itself LOST (memory_due.py). It ends when the tree
  was killed, which is for somebody else to decide, for to hold that looks like the session's end.
- the source is told that all has come only if the agent has said that the tree runs (RUNS).

A tree that does not run before its last page has come needs no such guard, and no process: whoever
holds it kills it if they do not come. There a thread of the agent does this (lazy.py, `filling`).

Both processes are in the container's cgroups, and so outlive the agent.

What a fork, an mremap, an munmap or an madvise makes of what is missing the kernel tells, and lets
none of them go on, nor a page be copied (EAGAIN), before it was read. In one thing it cannot be
relied on: if a thread forks in the moment in which another unmaps memory that is missing, it may
tell of the second first, and then the child finds zeros in what its parent gave away.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import mmap
import os
import selectors
import signal
import socket
import struct
import sys
import time
from collections import deque
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from holdfast_wire.errors import HoldfastError

from . import uffd
from .asking import CHUNK, CLOSE, MESSAGE, Broken, Buffer, Came, Plain, Source, Stream
from .containers import ending
from .freezer import Freezer
from .memory_due import LOST, NAME
from .missing import Missing, Ranges, in_turn
from .uffd import PAGE, Event, Kind

LISTENS: Final = "lazy-pages.socket"  # where CRIU's restore looks for it, in its folder
# What the agent found in the images, each: PID, address, size, and 0 for what is missing or 1 for
# what a child does not inherit.
MISSING: Final = "missing"
RUNS: Final = b"runs"
ARRIVED: Final = b"arrived"
ENTRY: Final = struct.Struct("=QQQQ")
NEAR: Final = 64 << 10  # asked for when somebody waits for its first page
_PIECE: Final = 256 << 10  # asked for when nobody waits
_ASKED: Final = 2 * CHUNK  # and not answered yet: whoever waits for a page waits for that too
_ASKED_WHOLE: Final = 8 * CHUNK  # if nobody can wait
_EARLY: Final = 64 << 20  # asked for while CRIU still makes the processes that it is for
_BUSY_SECONDS: Final = 0.2  # after somebody waited, little is asked for that nobody waits for
_RESTORED: Final = 0x52535446  # CRIU's word for: all processes are there, with their memory mapped
_REASON: Final = 1 << 10  # bytes
_LOOK_SECONDS: Final = 1.0
_CLONE3: Final = 435  # the same number on every architecture
_CLONE_FILES: Final = 0x400
_PR_SET_NAME: Final = 15
_libc: Final = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Orders:
    """All numbers are descriptors but hold, a host PID."""

    agent: int
    stream: int
    images: int
    join: list[int]
    hold: int
    freezer: str
    unified: bool

    def to_text(self) -> str:
        return json.dumps(asdict(self))


@dataclass(eq=False)
class Space:
    """The memory of one process, or of those that share it."""

    fd: int
    pid: int  # whose it was when dumped: a child that is forked now has its parent's
    missing: Missing


class Pager:
    def __init__(
        self, orders: Orders, listening: socket.socket, stream: Stream, runs: mmap.mmap | None
    ) -> None:
        """`runs`: its first byte says that the agent has said so; None: nothing runs before the
        last page has come."""
        self._orders = orders
        self._listening = listening
        self._runs = runs
        self._source = Source(stream, buffer=Buffer(CHUNK if runs is not None else _EARLY))
        # If nothing runs, one piece is put while the next is read: into the other buffer.
        self._copies = uffd.Copies()
        self._spare = Buffer() if runs is None else None
        self._lot: list[tuple[Space, uffd.Copy]] = []
        self._being_put: Came | None = None
        self._early: list[Came] = []  # what came before it has a place
        self._hurried: set[tuple[int, int]] = set()  # PID, page: waited for, and asked for before
        self._spaces: list[Space] = []
        self._dumped: dict[int, list[tuple[int, int]]] = {}  # by PID: what is to come
        self._unasked: dict[int, Ranges] = {}
        self._turn: deque[tuple[int, int, int]] = deque()  # PID, start, end, as they are asked for
        self._waited = 0.0  # when somebody last did
        self._wiped: list[tuple[int, int, int]] = []  # PID, start, end
        self._restored = False
        self._waiting = selectors.DefaultSelector()

    def run(self) -> None:
        """Returns when no page is missing any more; Broken when one will not come."""
        with self._waiting, self._meet() as restorer:
            self._follow(restorer)

    def _follow(self, restorer: socket.socket) -> None:
        if self._runs is not None:
            self._waiting.register(self._source.stream, selectors.EVENT_READ)
        self._waiting.register(restorer, selectors.EVENT_READ)
        while not (self._restored and not self._spaces):
            ready = self._waiting.select(_LOOK_SECONDS)
            self._source.stream.tick()
            for key, _ in ready:
                if key.fileobj is restorer:
                    self._from_restorer(restorer)
                elif isinstance(key.data, Space):
                    self._settle()
                    self._look(key.data)
                elif key.fd == self._orders.agent and not self._from_agent():
                    raise Broken("the agent has left")
            self._from_source()
            self._go_on()
            if not ready and ending(self._orders.hold):
                return
        self._close()

    def _meet(self) -> socket.socket:
        self._waiting.register(self._orders.agent, selectors.EVENT_READ)
        self._waiting.register(self._listening, selectors.EVENT_READ)
        if self._runs is None:  # memory may come ahead
            self._waiting.register(self._source.stream, selectors.EVENT_READ)
        more = False
        while all(
            key.fileobj is not self._listening
            for key, _ in self._waiting.select(0 if more else _LOOK_SECONDS)
        ):
            if not self._from_agent():
                raise Broken("the agent has left")
            more = self._source.stream.tick()
        self._waiting.unregister(self._listening)
        restorer, _ = self._listening.accept()
        self._listening.close()
        told = Path(f"/proc/self/fd/{self._orders.images}", MISSING).read_bytes()
        for pid, start, size, wiped in ENTRY.iter_unpack(told):
            if wiped:
                self._wiped.append((pid, start, start + size))
            else:
                self._dumped.setdefault(pid, []).append((start, start + size))
        self._unasked = {pid: Ranges(ranges) for pid, ranges in self._dumped.items()}
        piece = CHUNK if self._runs is None else _PIECE
        self._turn.extend(in_turn(self._unasked, piece, CHUNK))
        return restorer

    def _from_agent(self) -> bool:
        try:
            said = os.read(self._orders.agent, 16)
        except BlockingIOError:
            return True
        if said == RUNS and self._runs is not None:
            self._runs[0] = 1
        return bool(said)

    # -- CRIU

    def _from_restorer(self, restorer: socket.socket) -> None:
        """A process and its userfaultfd; a zombie, by a negative number; or that it is done."""
        word = restorer.recv(4, socket.MSG_WAITALL)
        if len(word) < 4:
            self._waiting.unregister(restorer)
            if not self._restored:
                raise Broken("the restore failed")
            return
        (number,) = struct.unpack("=i", word)
        if number == _RESTORED:
            self._restored = True
            for came in self._early:
                self._put_all(came)
            self._early.clear()
        elif number > 0:
            _, fds, _, _ = socket.recv_fds(restorer, 1, 1)
            self._add(Space(fds[0], number, Missing(self._dumped.get(number, ()))))

    # -- the session's processes

    def _add(self, space: Space) -> None:
        os.set_blocking(space.fd, False)
        os.set_inheritable(space.fd, False)
        self._spaces.append(space)
        self._waiting.register(space.fd, selectors.EVENT_READ, space)

    def _leave(self, space: Space) -> None:
        """Nothing of it is missing, or it is gone."""
        self._spaces.remove(space)
        self._waiting.unregister(space.fd)
        os.close(space.fd)

    def _look(self, space: Space) -> None:
        if space in self._spaces:
            for event in uffd.events(space.fd):
                self._happened(space, event)

    def _happened(self, space: Space, event: Event) -> None:
        if event.kind == Kind.FAULT:
            self._fault(space, event.second & -PAGE)
        elif event.kind == Kind.FORK:
            self._add(Space(event.first & 0xFFFFFFFF, space.pid, self._inherited(space)))
        elif event.kind == Kind.REMAP:
            space.missing.move(event.first, event.second, event.third)
            uffd.wake(space.fd, event.first, event.third)
        else:
            space.missing.drop(event.first, event.second)
            uffd.wake(space.fd, event.first, event.second - event.first)

    def _inherited(self, space: Space) -> Missing:
        missing = space.missing.copy()
        for pid, start, end in self._wiped:
            if pid == space.pid:
                for piece in missing.pieces(start, end):
                    missing.drop(piece.start, piece.end)
        return missing

    def _fault(self, space: Space, address: int) -> None:
        was = space.missing.was(address)
        if was is None:
            uffd.zero(space.fd, address)
            return
        self._waited = time.monotonic()
        # Before all memory is mapped, what is near may have no place yet.
        near = was + (NEAR if self._restored else PAGE)
        for start, end in self._unasked[space.pid].within(was, near)[:1]:
            if start == was:
                self._unasked[space.pid].remove(start, end)
                self._source.ask(space.pid, start, end, waited=True)
                return
        if not self._restored:
            self._hurried.add((space.pid, was))
            self._hurry()

    # -- pages

    def _from_source(self) -> None:
        self._source.flush()
        came = self._source.read()
        if came is None:
            return
        if self._restored and self._spare is not None:
            self._settle()
            self._begin(came)
            self._source.buffer, self._spare = self._spare, came.buffer
        elif self._restored or came.waited:
            self._put_all(came)
        else:
            self._early.append(came)
            self._source.buffer = came.buffer.after(came.end - came.start)
            self._hurry()

    def _begin(self, came: Came) -> None:
        """To put it. Until it is settled nothing else is done to the session's processes."""
        self._being_put = came
        self._lot = [
            (
                space,
                uffd.Copy(space.fd, piece.start, came.place(piece.was), piece.end - piece.start),
            )
            for space in self._of(came.pid)
            for piece in space.missing.pieces(came.start, came.end)
        ]
        self._copies.begin(copy for _, copy in self._lot)

    def _settle(self) -> None:
        """What could not be put is tried again, with all that may have happened meanwhile."""
        came, self._being_put = self._being_put, None
        if came is None:
            return
        for (space, copy), copied in zip(self._lot, self._copies.end(), strict=True):
            space.missing.drop(copy.to, copy.to + copied)
        self._put_all(came)

    def _put_all(self, came: Came) -> None:
        while any(self._put(space, came, came.start, came.end) for space in self._of(came.pid)):
            pass

    def _hurry(self) -> None:
        """Of what came early, the pages that CRIU itself waits for: they have a place already."""
        for came in self._early:
            here = {one for one in self._hurried if one[0] == came.pid and one[1] in came}
            for pid, page in here:
                while any(self._put(each, came, page, page + PAGE) for each in self._of(pid)):
                    pass
            self._hurried -= here

    def _of(self, pid: int) -> list[Space]:
        return [space for space in self._spaces if space.pid == pid]

    def _put(self, space: Space, came: Came, start: int, end: int) -> bool:
        """Pages of what came, wherever this process misses them now. True: look again, for
        something has happened meanwhile."""
        for piece in space.missing.pieces(start, end):
            size = piece.end - piece.start
            source = came.place(piece.was)
            copied, failed = uffd.copy(space.fd, piece.start, source, size)
            while failed == errno.ENOENT and not copied and size > PAGE:
                # Its memory has borders that it had not when dumped, and a copy stops at none.
                size = size // 2 & -PAGE
                copied, failed = uffd.copy(space.fd, piece.start, source, size)
            space.missing.drop(piece.start, piece.start + copied)
            if failed:
                self._failed(space, piece.start + copied, failed)
                return space in self._spaces
            if copied < piece.end - piece.start:
                return True
        return False

    def _failed(self, space: Space, address: int, failed: int) -> None:
        if failed in (errno.ESRCH, errno.ENOSPC):
            self._leave(space)
        elif failed in (errno.EEXIST, errno.ENOENT):
            space.missing.drop(address, address + PAGE)
            uffd.wake(space.fd, address, PAGE)
        elif failed == errno.EAGAIN:
            self._look(space)
        elif failed == errno.ENOMEM and self._runs is None:
            raise Broken("its container has no memory left for it")
        elif failed == errno.ENOMEM:  # the container is at its limit, and something in it must go
            time.sleep(_LOOK_SECONDS / 10)
        else:
            raise Broken(f"a page cannot be put into its process: {os.strerror(failed)}")

    def _go_on(self) -> None:
        """Those that nobody waits for are asked for in turn."""
        if not self._source.asked:
            self._settle()
        for space in list(self._spaces) if self._restored else ():
            if not space.missing:
                self._look(space)
                if not space.missing:
                    self._leave(space)
        while self._turn and self._source.has_room(self._at_once()):
            pid, first, last = self._turn.popleft()
            for start, end in self._unasked[pid].remove(first, last):
                missing = (space.missing.pieces(start, end) for space in self._of(pid))
                if not self._restored or any(missing):
                    self._source.ask(pid, start, end)

    def _at_once(self) -> int:
        """Bytes to ask for."""
        if not self._restored:
            left = len(self._source.buffer.view) - self._source.coming
            return _ASKED if self._runs is None and left >= 2 * CHUNK else 0
        if self._runs is None:
            return _ASKED_WHOLE
        busy = time.monotonic() - self._waited < _BUSY_SECONDS
        return _PIECE if busy else _ASKED

    def _close(self) -> None:
        """The source hears that it is not needed any more; it is not, whether it hears it or not.
        An agent that left before it said that the tree runs left that to the next."""
        last = MESSAGE.pack(CLOSE, 0, 0, 0)
        if self._runs is None:
            self._say(last)
            return
        os.set_blocking(self._orders.agent, True)
        while not self._runs[0]:
            if not self._from_agent():
                return
        with contextlib.suppress(OSError, Broken):
            self._say(last)

    def _say(self, last: bytes) -> None:
        self._source.stream.patient()
        while self._source.asked:
            self._source.read()
        self._source.stream.finish(last)

    def give_up(self) -> None:
        """What is missing is zeros from here on, for whoever may still read it."""
        self._copies.close()
        for space in list(self._spaces):
            os.close(space.fd)


# -- the two processes -----------------------------------------------------------------------------


def watch(orders: Orders, listening: socket.socket) -> None:
    """Starts the pager with this process's own descriptors, and is there when it has ended."""
    _name(NAME)
    saying, said = os.pipe()
    runs = mmap.mmap(-1, PAGE)
    child = _fork_sharing()
    if child == 0:
        stream = socket.socket(fileno=orders.stream)
        stream.setblocking(False)
        os._exit(_page(Pager(orders, listening, Plain(stream), runs), said))
    _, status = os.waitpid(child, 0)
    if status == 0:
        with contextlib.suppress(OSError):
            os.write(orders.agent, ARRIVED)
        return
    why = os.read(saying, _REASON) if os.WIFEXITED(status) else b"the pager was killed"
    _block(orders, why, freeze=bool(runs[0]))


def _block(orders: Orders, why: bytes, *, freeze: bool) -> None:
    """A tree that does not run yet is the agent's or inside.py's to freeze or to kill."""
    cage = Freezer(Path(orders.freezer), orders.unified)
    if cage.exists() and cage.members():
        _name(LOST)
        if freeze:
            with contextlib.suppress(HoldfastError):
                cage.freeze()
    with contextlib.suppress(OSError):
        os.write(orders.agent, why)
    with contextlib.suppress(FileNotFoundError):  # the container ended, and its cgroup with it
        while cage.members():
            if ending(orders.hold):
                cage.kill()
            time.sleep(_LOOK_SECONDS / 10)


def _page(pager: Pager, said: int) -> int:
    try:
        pager.run()
    except BaseException as error:  # whatever it is, the pages do not come
        os.write(said, (str(error) or type(error).__name__).encode()[:_REASON])
        return 1
    return 0


def _fork_sharing() -> int:
    """fork, but that both have one table of descriptors, which is closed when both are gone."""
    arguments = struct.pack("=8Q", _CLONE_FILES, 0, 0, 0, signal.SIGCHLD, 0, 0, 0)
    child = int(_libc.syscall(_CLONE3, arguments, len(arguments)))
    if child < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), "clone3")
    return child


def _name(name: str) -> None:
    _libc.prctl(_PR_SET_NAME, name.encode())


def listen(images: int) -> socket.socket:
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listening.bind(f"/proc/self/fd/{images}/{LISTENS}")
    listening.listen(1)
    return listening


def main() -> int:
    """Ends when the pager listens; that goes on without it."""
    orders = Orders(**json.loads(sys.argv[1]))
    for fd in orders.join:
        os.write(fd, b"0")
    with contextlib.suppress(PermissionError):
        Path("/proc/self/oom_score_adj").write_text("-1000")
    listening = listen(orders.images)
    os.set_blocking(orders.agent, False)
    if os.fork() == 0:
        nothing = os.open(os.devnull, os.O_RDWR)
        for fd in range(3):  # the agent's own may be waited for until all have closed them
            os.dup2(nothing, fd)
        watch(orders, listening)
        os._exit(0)
    return 0


if __name__ == "__main__":
    sys.exit(main())
