"""Two containers on this machine, made by hand: what the engine needs of Kubernetes, without it.

Each has its own mount, PID, network, IPC and UTS namespace, an overlay over the cluster's Debian
root, its own cgroups, and hold as PID 1 without capabilities, as in a pod. Everything but the
cgroups dies with the process that made it; cgroups of a maker that died are swept by the next.

`python -m e2e.engine_kit` is the container's way in.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import functools
import json
import os
import select
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from e2e.cluster import build
from e2e.cluster.places import REPOSITORY
from holdfast_node.freezer import Freezer

CGROUPS: Final = Path("/sys/fs/cgroup")
PREFIX: Final = "holdfast-lab-"
CONTROLLERS: Final = ("freezer", "memory", "pids", "cpu")
_libc = ctypes.CDLL(None, use_errno=True)
_MS_BIND, _MS_REC, _MS_PRIVATE, _MS_RDONLY, _MS_REMOUNT = 4096, 16384, 1 << 18, 1, 32
_PR_SET_PDEATHSIG, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 1, 24, 38


def debian_root() -> Path:
    """The cluster's nodes are made from it; the first call makes it, which takes a minute."""
    return build.node_root()


# -- what the product gets from its image ----------------------------------------------------------


def use_pycriu() -> None:
    """CRIU's Python package, out of the Debian root: it is not on PyPI."""
    folder = REPOSITORY / "build" / "pycriu"
    folder.mkdir(parents=True, exist_ok=True)
    new = folder / f"new-{os.getpid()}"
    new.unlink(missing_ok=True)
    new.symlink_to(debian_root() / "usr/lib/python3/dist-packages/pycriu")
    new.rename(folder / "pycriu")  # in one step: other workers of the run look there too
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


# -- inside: from here to hold ---------------------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    root: str
    base: str  # an empty folder
    hold: str
    name: str
    address: str
    uid: int
    cgroups: list[str]
    command: list[str]
    may: list[int]  # its capabilities


def _check(result: int, what: str) -> int:
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), what)
    return result


def _mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> None:
    arguments = (source.encode(), target.encode(), kind.encode(), flags, data.encode())
    _check(_libc.mount(*arguments), f"mount {target}")


def _die_with(parent: int) -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, 9)
    if os.getppid() != parent:
        os._exit(1)


def become_container(plan: Plan, parent: int) -> None:
    _die_with(parent)
    for folder in plan.cgroups:
        Path(folder, "cgroup.procs").write_text("0")
    _check(_libc.unshare(0x00020000 | 0x20000000 | 0x40000000 | 0x08000000 | 0x04000000), "unshare")
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writing)
        _libc.prctl(_PR_SET_PDEATHSIG, 9)
        os.read(reading, 1)
        _become_hold(plan)
    os.close(reading)
    print(child, flush=True)
    os.close(writing)
    os.waitpid(child, 0)


def _become_hold(plan: Plan) -> None:
    socket.sethostname(plan.name)
    _mount("", "/", flags=_MS_REC | _MS_PRIVATE)
    base = plan.base
    _mount("tmpfs", base, "tmpfs")
    upper, work, root = f"{base}/upper", f"{base}/work", f"{base}/root"
    for folder in (upper, work, root):
        Path(folder).mkdir()
    _mount("overlay", root, "overlay", 0, f"lowerdir={plan.root},upperdir={upper},workdir={work}")
    _furnish(root, plan)
    _network(plan.address)
    os.chdir(root)
    _check(_libc.pivot_root(b".", b"."), "pivot_root")
    _check(_libc.umount2(b".", 2), "umount")
    os.chdir("/")
    _drop(plan.uid, plan.may)
    os.execve(plan.hold, plan.command, {"PATH": "/usr/bin:/bin:/usr/sbin", "TERM": "xterm"})  # noqa: S606


def _furnish(root: str, plan: Plan) -> None:
    _mount("tmpfs", f"{root}/dev", "tmpfs", 0, "mode=755")
    for name in ("null", "zero", "full", "random", "urandom", "tty"):
        Path(root, "dev", name).touch()
        _mount(f"/dev/{name}", f"{root}/dev/{name}", flags=_MS_BIND)
    for name in ("pts", "shm"):
        Path(root, "dev", name).mkdir()
    _mount("devpts", f"{root}/dev/pts", "devpts", 0, "newinstance,ptmxmode=0666,mode=0620")
    _mount("shm", f"{root}/dev/shm", "tmpfs")
    Path(root, "dev/ptmx").symlink_to("pts/ptmx")
    _mount("proc", f"{root}/proc", "proc")
    _mount(f"{root}/proc/sys", f"{root}/proc/sys", flags=_MS_BIND)
    _mount("", f"{root}/proc/sys", flags=_MS_BIND | _MS_REMOUNT | _MS_RDONLY)
    Path(root, ".holdfast").mkdir(exist_ok=True)
    _mount("tmpfs", f"{root}/.holdfast", "tmpfs", 0, "mode=777")
    Path(f"{root}{plan.hold}").parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(plan.hold, f"{root}{plan.hold}")
    Path(root, "home/user").mkdir(parents=True, exist_ok=True)
    os.chown(f"{root}/home/user", plan.uid, plan.uid)


def _network(address: str) -> None:
    """The loopback device, up, with one more address that is not a loopback one, and a way for
    packets to elsewhere, though not to anybody."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for name, text in (("lo", "127.0.0.1"), ("lo:1", address)):
            packed = struct.pack("16sHH4s8x", name.encode(), socket.AF_INET, 0,
                                 socket.inet_aton(text))  # fmt: skip
            fcntl.ioctl(sock, 0x8916, packed)  # SIOCSIFADDR
            mask = struct.pack("16sHH4s8x", name.encode(), socket.AF_INET, 0,
                               b"\xff" * 4 if name != "lo" else b"\xff\0\0\0")  # fmt: skip
            fcntl.ioctl(sock, 0x891C, mask)
            fcntl.ioctl(sock, 0x8914, struct.pack("16sH14x", name.encode(), 0x41))  # up, running
    subprocess.run(["ip", "route", "add", "default", "dev", "lo"], check=True)


def _drop(uid: int, may: list[int]) -> None:
    for capability in set(range(64)) - set(may):
        _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")


# -- outside ---------------------------------------------------------------------------------------


class Container:
    """One that runs hold, waiting."""

    def __init__(
        self,
        lab: Lab,
        name: str,
        command: list[str],
        address: str,
        uid: int,
        may: tuple[int, ...],
    ) -> None:
        self._cgroups = [CGROUPS / one / f"{PREFIX}{os.getpid()}-{name}" for one in CONTROLLERS]
        for folder in self._cgroups:
            folder.mkdir()
        words = [str(lab.hold), "--socket", "/.holdfast/hold.sock", "--shared", "--wait",
                 "--movable", "--reserve", "300", "--cwd", "/home/user", "--"]  # fmt: skip
        base = lab.folder / name
        base.mkdir(exist_ok=True)
        groups = [str(folder) for folder in self._cgroups]
        plan = Plan(str(lab.root), str(base), str(lab.hold), name, address, uid, groups,
                    words + command, list(may))  # fmt: skip
        self._process = subprocess.Popen(
            [sys.executable, "-m", "e2e.engine_kit", json.dumps(plan.__dict__), str(os.getpid())],
            stdout=subprocess.PIPE, cwd=REPOSITORY, text=True,
        )  # fmt: skip
        assert self._process.stdout is not None
        self.hold = int(self._process.stdout.readline())
        self.root = Path(f"/proc/{self.hold}/root")
        self._link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._link.settimeout(10)
        try:
            until(self._connect, "hold listens", 20)
        except BaseException:
            self.close()
            raise

    def _connect(self) -> bool:
        return self._link.connect_ex(str(self.root / ".holdfast/hold.sock")) == 0

    def ask(self, request: str, fd: int | None = None) -> dict[str, Any]:
        fds = [] if fd is None else [fd]
        socket.send_fds(self._link, [request.encode()], fds)
        while True:
            answer: dict[str, Any] = json.loads(self._link.recv(1 << 16))
            if "event" not in answer:
                return answer

    @contextlib.contextmanager
    def replaced_socket(self) -> Iterator[None]:
        """As the session can: another's socket lies where hold's was."""
        path = self.root / ".holdfast/hold.sock"
        path.rename(path.with_suffix(".was"))
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
            sock.bind(str(path))
            sock.listen()
            yield
        path.with_suffix(".was").rename(path)

    def start(self) -> None:
        answer = self.ask("start 80x24")
        assert answer["ok"], answer

    def count_pids_from(self, number: int) -> None:
        """As if so many processes had come and gone in it."""
        words = ["sh", "-c", f"echo {number} > /proc/sys/kernel/ns_last_pid"]
        subprocess.run(["nsenter", "-t", str(self.hold), "-p", *words], check=True)

    def leave_orphan(self, words: str) -> None:
        """As `kubectl exec` may: a process that comes from outside, and whose parent ends."""
        command = ["nsenter", "-t", str(self.hold), "-p", "-m", "sh", "-c", f"{words} &"]
        nothing = subprocess.DEVNULL
        subprocess.run(command, check=True, stdin=nothing, stdout=nothing)

    def enter_network(self, act: Callable[[], Any]) -> Any:
        """Calls `act` in a thread that is in the container's network."""
        result: list[Any] = []

        def run() -> None:
            with Path(f"/proc/{self.hold}/ns/net").open() as space:
                _check(_libc.setns(space.fileno(), 0x40000000), "setns")
            result.append(act())

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        return result[0]

    @property
    def cgroup(self) -> str:
        """Its name, by which a container is known."""
        return self._cgroups[0].name

    def pids(self) -> list[int]:
        """Host PIDs of all its processes but hold."""
        found = (self._cgroups[1] / "cgroup.procs").read_text().split()
        return [int(pid) for pid in found if int(pid) not in (self.hold, self._process.pid)]

    def close(self) -> None:
        self._link.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.hold, 9)
        freezer = self._cgroups[0] / "holdfast/freezer.state"
        if freezer.exists():
            freezer.write_text("THAWED")
        self._process.wait(20)
        assert self._process.stdout is not None
        self._process.stdout.close()
        sweep(self._cgroups)


class Lab:
    def __init__(self, folder: Path) -> None:
        sweep_dead()
        self.root = debian_root()
        self.folder = folder
        self.bundle = folder / "bundle"
        subprocess.run(
            [sys.executable, REPOSITORY / "scripts/criu_bundle.py", self.root, self.bundle],
            check=True,
        )
        subprocess.run(["make", "-s", "-C", REPOSITORY / "init", f"OUT={folder}/bin"], check=True)
        self.hold = folder / "bin/hold"
        shutil.copy(folder / "bin/ctty.so", self.bundle)
        self._made: list[Container] = []
        self._images: list[Path] = []

    def container(
        self,
        name: str,
        *command: str,
        address: str = "10.9.9.1",
        uid: int = 0,
        may: tuple[int, ...] = (),
    ) -> Container:
        words = list(command) or ["bash", "--norc"]
        made = Container(self, name, words, address, uid, may)
        self._made.append(made)
        return made

    def images(self) -> Path:
        """An empty folder on a tmpfs, as the agent has it."""
        self._images.append(
            Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir="/dev/shm"))
        )
        return self._images[-1]

    def end_all(self) -> None:
        """No container, nor image of one, is left."""
        while self._made:
            self._made.pop().close()
        while self._images:
            shutil.rmtree(self._images.pop(), ignore_errors=True)


def ours(cages: list[Freezer]) -> list[Freezer]:
    """Of all on this machine, which may well have other labs, and clusters."""
    return [cage for cage in cages if cage.parent.name.startswith(f"{PREFIX}{os.getpid()}-")]


def sweep(folders: list[Path]) -> None:
    for folder in folders:
        for path in (folder / "holdfast", folder):
            until(functools.partial(_gone, path), f"{path} is empty", 10)


def _gone(path: Path) -> bool:
    with contextlib.suppress(OSError):
        path.rmdir()
    return not path.exists()


def sweep_dead() -> None:
    """What a maker that was killed left: its containers died with it, unless they were frozen."""
    for one in CONTROLLERS:
        for folder in _of_the_dead(CGROUPS / one):
            state = folder / "holdfast/freezer.state"
            if state.exists():
                state.write_text("THAWED")
            sweep([folder])
    for place in (Path("/dev/shm"), Path(tempfile.gettempdir())):
        for folder in _of_the_dead(place):
            shutil.rmtree(folder, ignore_errors=True)


def _of_the_dead(place: Path) -> Iterator[Path]:
    for folder in place.glob(f"{PREFIX}*"):
        maker = folder.name.removeprefix(PREFIX).split("-")[0]
        if not Path(f"/proc/{maker}").exists():
            yield folder


def until(true: Callable[[], Any], what: str, seconds: float = 10) -> Any:
    deadline = time.monotonic() + seconds
    while not (result := true()):
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.005)
    return result


class Typist:
    """Reads and writes a terminal's master side."""

    def __init__(self, master: int) -> None:
        self.master = master
        self.seen = b""

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def read(self, seconds: float = 0.0) -> bytes:
        while select.select([self.master], [], [], seconds)[0]:
            try:
                self.seen += os.read(self.master, 1 << 16)
            except (BlockingIOError, OSError):
                break
        return self.seen

    def until(self, text: str, seconds: float = 10) -> str:
        until(lambda: text.encode() in self.read(), f"{text!r} in {self.seen!r}", seconds)
        return self.seen.decode(errors="replace")

    def close(self) -> None:
        os.close(self.master)


@contextlib.contextmanager
def opened() -> Iterator[Lab]:
    with tempfile.TemporaryDirectory(prefix=f"{PREFIX}{os.getpid()}-") as folder:
        lab = Lab(Path(folder))
        try:
            yield lab
        finally:
            lab.end_all()


if __name__ == "__main__":
    become_container(Plan(**json.loads(sys.argv[1])), int(sys.argv[2]))
