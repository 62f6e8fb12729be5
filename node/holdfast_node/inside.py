"""The process between the agent and one CRIU that works inside a container. `python -m` runs it.

    agent ─ socket ─ this process ─ socket ─ criu swrk

CRIU runs in the container's namespaces but is loaded from the agent's own files, through a
descriptor: nothing is mounted into the container, and nothing of the container's is executed. A
user's image could otherwise bring its own `iptables`, plugin, configuration or library, and have it
run with the agent's rights (scripts/criu_bundle.py has the rest of this).

It passes packets on, and stands guard over what the agent could not do if it were killed:

- a tree that CRIU restored is frozen before anybody is told that it is there, and stays so until
  the agent thaws it. If the agent is lost before that point, the tree is killed; if after, it is
  left frozen, because the agent may have committed the move.
- a tree being dumped is frozen again when CRIU dies, which has it thawed meanwhile.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import selectors
import signal
import socket
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from holdfast_wire.errors import HoldfastError

from . import confine
from .freezer import Freezer, children

LOADER: Final = "ld.so"
TERMINALS: Final = "ctty.so"  # init/ctty.c, for restores
LIST: Final = "ttys"  # among the images, for it
PACKET_MAX: Final = 1 << 20
NAMESPACES: Final = {
    "pid": 0x20000000,
    "ipc": 0x08000000,
    "uts": 0x04000000,
    "net": 0x40000000,
    "mnt": 0x00020000,
}
# CRIU's own processes must not have PIDs that the tree needs. hold leaves the lowest 300 unused
# (--reserve), and a kernel that ran out of higher ones does not give those out again.
OWN_PIDS: Final = range(100, 301)
_HELD: Final = b"pre-resume"
SYS_RESOURCE: Final = 24
_EVENTS_MOST: Final = 16  # before hold's answer; what listens there may not be hold
_SPARE_SECONDS: Final = 5.0  # hold may be busy freezing, for two seconds at most


@dataclass(frozen=True)
class Orders:
    """What the agent wants; all numbers are descriptors it passed, unless they say otherwise."""

    restoring: bool
    agent: int
    bundle: int
    images: int
    last_pid: int
    uid: int  # the container's, which CRIU takes as its real one
    gid: int
    freezer: str
    unified: bool
    namespaces: dict[str, int]
    join: list[int]  # the container's cgroups, for restored processes to be in
    tree: int  # the folder of the tree's own freezer cgroup
    may: list[int]  # the capabilities that CRIU has
    hold: int = -1  # a connection to hold, which leaves CRIU out of its freezes while it stands
    lazy: bool = False  # a dump leaves the memory where it is

    def to_text(self) -> str:
        return json.dumps(asdict(self))


class Guard:
    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        self._freezer = Freezer(Path(orders.freezer), orders.unified)
        self._agent = socket.socket(fileno=orders.agent)
        self._criu, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._held = False
        self._dumping = False  # CRIU was asked to and has not answered
        self._agent_lost = False
        for fd in orders.join:
            os.write(fd, b"0")
        _setns(orders.namespaces["pid"], NAMESPACES["pid"])
        if orders.restoring:
            count_pids_from(orders.last_pid, OWN_PIDS.start)
        spared, told = os.pipe()
        self._inner = os.fork()
        if self._inner == 0:
            self._criu.close()
            self._agent.close()
            os.close(told)
            os.read(spared, 1)
            os.close(spared)
            os._exit(run_inside(orders, theirs.fileno()))
        theirs.close()
        os.close(spared)
        if orders.hold >= 0:
            spare(orders.hold, self._inner)
        os.close(told)

    def run(self) -> int:
        """Until CRIU is done. The exit status is for the log alone; CRIU's answers went before.

        That it has ended its socket may not say: if it was killed, what it had begun to restore has
        the other end too, and waits for it for ever."""
        ended = os.pidfd_open(self._inner)
        with selectors.DefaultSelector() as waiting:
            waiting.register(self._agent, selectors.EVENT_READ)
            waiting.register(self._criu, selectors.EVENT_READ)
            waiting.register(ended, selectors.EVENT_READ)
            while True:
                ready = {key.fileobj for key, _ in waiting.select()}
                if self._criu in ready and not self._from_criu():
                    break
                if ended in ready and self._criu not in ready:
                    break
                if self._agent in ready and not self._from_agent():
                    waiting.unregister(self._agent)
                    self._lose_agent()
        os.close(ended)
        _, status = os.waitpid(self._inner, 0)
        if self._dumping:
            self._freezer.freeze()
        return os.waitstatus_to_exitcode(status)

    def _from_criu(self) -> bool:
        packet = _receive(self._criu)
        if not packet:
            return False
        self._dumping = False
        if self._orders.restoring and _HELD in packet:
            self._hold()
        try:
            self._agent.send(packet)
        except OSError:
            self._lose_agent()
        return True

    def _from_agent(self) -> bool:
        packet = _receive(self._agent)
        if packet:
            self._dumping = not self._orders.restoring
            with contextlib.suppress(BrokenPipeError):
                self._criu.send(packet)
        return bool(packet)

    def _hold(self) -> None:
        """CRIU is a member too until now, so that its children are; it must not freeze."""
        for pid in children(self._inner):
            self._freezer.move_out(pid)
        try:
            self._freezer.freeze()
        except HoldfastError:
            self._freezer.kill()
            raise
        self._held = True

    def _lose_agent(self) -> None:
        """Closing CRIU's socket lets it fail at its next question, but not at that for a resume,
        so a tree that is not frozen yet is killed first."""
        if self._agent_lost:
            return
        self._agent_lost = True
        if self._orders.restoring and not self._held:
            for pid in children(self._inner):
                os.kill(pid, signal.SIGKILL)
            self._freezer.kill()
        with contextlib.suppress(OSError):
            self._criu.shutdown(socket.SHUT_WR)


def spare(connection: int, pid: int) -> None:
    """Asks hold to leave that process alone when it freezes. An older hold, which stops nothing
    but its own descendants, does not know the word."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    number = next(line for line in lines if line.startswith("NSpid:")).split()[-1]
    hold = socket.socket(fileno=os.dup(connection))
    with contextlib.suppress(OSError), hold:
        hold.settimeout(_SPARE_SECONDS)
        hold.send(f"spare {number}".encode())
        for _ in range(_EVENTS_MOST):
            if b'"event"' not in hold.recv(PACKET_MAX):
                break


def count_pids_from(last_pid: int, number: int) -> None:
    """The next processes in the container get the PIDs after `number`. Only one inside can say
    so, and it has a PID of the old count, which must be free again."""
    child = os.fork()
    if child == 0:
        os.pwrite(last_pid, str(number).encode(), 0)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if status:
        raise OSError("cannot choose the PIDs of CRIU's own processes")


def run_inside(orders: Orders, sock: int) -> int:
    """In the container's PID namespace: start CRIU, and when it is done let the tree's PIDs be
    counted on from its own."""
    for kind in ("ipc", "uts", "net", "mnt"):
        _setns(orders.namespaces[kind], NAMESPACES[kind])
    os.chdir("/")
    child = os.fork()
    if child == 0:
        become_criu(orders, sock)
    confine.become(orders.may)
    os.close(sock)
    _, status = os.waitpid(child, 0)
    if orders.restoring:
        os.pwrite(orders.last_pid, highest_pid(), 0)
    return os.waitstatus_to_exitcode(status) & 0xFF


def highest_pid() -> bytes:
    """The restored tree's next PIDs follow those it has, as they did where it came from."""
    numbers = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
    return str(max(numbers)).encode()


def become_criu(orders: Orders, sock: int) -> None:
    try:
        if orders.restoring:
            procs = os.open("cgroup.procs", os.O_WRONLY, dir_fd=orders.tree)
            os.write(procs, b"0")
            os.close(procs)
        else:
            # Killed in the middle it leaves its code in the session's processes.
            with contextlib.suppress(PermissionError):
                Path("/proc/self/oom_score_adj").write_text("-1000")
        for fd in (sock, orders.bundle, orders.images, orders.tree):
            os.set_inheritable(fd, True)
        for fd in (orders.last_pid, *orders.join, *orders.namespaces.values()):
            os.set_inheritable(fd, False)
        # Without it the limits of a process may be read only by its own user.
        if orders.uid != 0 and not may(SYS_RESOURCE):
            os.setresgid(orders.gid, 0, 0)
            os.setresuid(orders.uid, 0, 0)
        bundle = f"/proc/self/fd/{orders.bundle}"
        words = ["swrk", str(sock)]
        if orders.lazy:
            words = ["--ps-socket", str(nobody()), *words]
        command = criu(bundle, *words, loads=TERMINALS if orders.restoring else "")
        confine.bound(orders.may)
        os.execve(f"{bundle}/{LOADER}", command, environment(bundle))  # noqa: S606
    finally:
        os._exit(127)


def nobody() -> int:
    """A connection that the other side has closed. After a lazy dump CRIU serves the pages to this
    one, and is done at once; by itself it would open a port for everybody (cr_page_server)."""
    ours, theirs = socket.socketpair()
    theirs.close()
    os.set_inheritable(ours.fileno(), True)
    return ours.detach()


def may(capability: int) -> bool:
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if "CapEff" in x)
    return bool(int(line.split()[1], 16) >> capability & 1)


def criu(bundle: str, *words: str, loads: str = "") -> list[str]:
    """No word of it lets a file of the container decide what is loaded or done. `loads`: one more
    library of the bundle, before all others."""
    return [
        f"{bundle}/{LOADER}", "--inhibit-cache", "--library-path", bundle,
        *(["--preload", f"{bundle}/{loads}"] if loads else []), f"{bundle}/criu",
        "--no-default-config", "--libdir", f"{bundle}/plugins", *words,
    ]  # fmt: skip


def environment(bundle: str) -> dict[str, str]:
    return {"PATH": f"{bundle}/programs", "GNUTLS_NO_IMPLICIT_INIT": "1"}


def _setns(fd: int, kind: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(fd, kind) < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), "setns")


def _receive(sock: socket.socket) -> bytes:
    try:
        return sock.recv(PACKET_MAX)
    except ConnectionResetError:
        return b""


def main() -> int:
    return Guard(Orders(**json.loads(sys.argv[1]))).run()


if __name__ == "__main__":
    os._exit(main())  # a session may be frozen until this process has ended
