"""hold as PID 1 of a container: any uid, no capabilities, a read-only root, a hostile session."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast_sidecar.hold import EventKind, HoldError, HoldLink

from .holding import (
    Build,
    Container,
    Start,
    Terminal,
    appears,
    descendants,
    eventually,
    needs_root,
)

NOBODY = 65534

# Each line of output is one thing that should not have been possible.
JOBS = "/memfd:holdfast-jobs (deleted)"  # the keeper's
ATTACK = """
(: < /proc/1/mem) 2>/dev/null && echo "opened memory"
for file in environ maps auxv io; do
  head -c 1 /proc/1/$file >/dev/null 2>&1 && echo "read $file"
done
for fd in 0 1 2 3 4 5 6; do
  readlink /proc/1/fd/$fd; (: < /proc/1/fd/$fd) 2>/dev/null && echo "took fd"
done
readlink /proc/1/exe && echo "saw exe"
for name in KILL STOP TERM INT HUP USR1 SEGV QUIT ABRT CONT; do kill -$name 1; done
for x in 1 2 3 4 5 6 7 8 9 10; do kill -TERM 1; done
touch /anything /etc/anything 2>/dev/null && echo "wrote to the root"
(: < /proc/$PPID/mem) && echo "looked into the keeper"
echo done
cat
"""


@needs_root
@pytest.mark.parametrize("uid", [1000, 0])
async def test_the_session_cannot_reach_its_guard(container: Container, uid: int) -> None:
    pod = await container(uid, "sh", "-c", ATTACK)
    await pod.link.start(80, 24)
    terminal = await pod.terminal()
    output = await terminal.expect(b"done")
    assert output.split() == b"looked into the keeper done".split()
    status = await pod.link.status()
    assert (status.exited, status.hold_pid, status.namespace) == (False, 1, True)
    assert (await pod.link.freeze()).refused == 0
    await pod.link.thaw()
    graph = await pod.link.graph()
    assert {p.uid for p in graph.processes} == {uid}
    targets = {d.target for p in graph.processes for d in p.fds}
    assert targets == {"/dev/null", "/dev/pts/ptmx", status.tty, JOBS}
    terminal.send(b"\x04")
    await pod.event(EventKind.EXITED)
    terminal.close()
    await pod.link.collected()
    assert await pod.gone() == (0, "")


@needs_root
async def test_the_keeper_does_not_know_the_nonce(
    container: Container,
) -> None:
    pod = await container(1000, "cat")
    for _ in range(20):
        nonce = (await pod.link.status()).nonce.encode()
    await pod.link.start(80, 24)
    await pod.link.status()
    hold = pod.link.hold_pid
    keeper, *_ = descendants(hold)
    assert holds(hold, nonce)
    assert not holds(keeper, nonce)


def holds(pid: int, secret: bytes) -> bool:
    with Path(f"/proc/{pid}/mem").open("rb", 0) as memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            span, rights = line.split()[:2]
            start, end = (int(x, 16) for x in span.split("-"))
            if "rw" not in rights or end - start > 1 << 30 or "[vvar" in line:
                continue  # address space the sanitizer reserves and never touches
            memory.seek(start)
            if secret in memory.read(end - start):
                return True
    return False


@needs_root
async def test_why_it_could_not_start_is_left_for_the_kubelet(
    container: Container, room: Path
) -> None:
    pod = await container(1000, "no-such-command")
    with pytest.raises(HoldError) as caught:
        await pod.link.start(80, 24)
    assert caught.value.exit_code == 127
    code, said = await pod.gone()
    why = "command not found: no-such-command; check its name and PATH"
    assert (code, said) == (127, f"hold: {why}\n")
    assert (room / "why").read_text() == caught.value.message == why


@contextmanager
def as_somebody_else() -> Iterator[None]:
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@needs_root
async def test_shared_lets_other_uids_in(
    container: Container,
) -> None:
    pod = await container(1000, "cat")
    assert stat.S_IMODE(os.stat(pod.socket).st_mode) == 0o666  # noqa: PTH116
    with as_somebody_else():
        link = await HoldLink.connect(pod.socket)
    await link.start(80, 24)
    await link.end(0)
    link.close()
    assert (await pod.event(EventKind.EXITED)).by == "end"


@needs_root
async def test_not_shared_it_is_its_owner_s(
    binaries: dict[str, str], room: Path, environment: dict[str, str]
) -> None:
    path = str(room / "s")
    process = await asyncio.create_subprocess_exec(
        binaries["release"], "--wait", "--socket", path, "--", "cat", env=environment
    )
    link = await appears(path)
    with as_somebody_else(), pytest.raises(HoldError) as caught:
        await HoldLink.connect(path)
    assert caught.value.code == "absent"
    await link.end(0)
    assert await process.wait() == 143
    link.close()


async def test_shared_needs_a_namespace(build: Build, socket_path: str) -> None:
    process = await asyncio.create_subprocess_exec(
        build.path, "--shared", "--socket", socket_path, "--namespace", "no", "--", "true",
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    _, said = await process.communicate()
    assert process.returncode == 1
    assert said.startswith(b"hold: --shared needs hold to be PID 1")
    assert not await asyncio.to_thread(Path(socket_path).exists)


# Gone before hold looks who it was, and under every uid there is.
HIT_AND_RUN = """
import os, socket, sys
for i in range(60):
    if os.fork() == 0:
        if os.geteuid() == 0:
            os.setuid(i % 3 * 1000)
        s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            s.connect(sys.argv[1])
            s.send(b"end 0")
        except OSError:
            pass
        os._exit(0)
    if i % 4 == 0:
        os.wait()
print("tried", flush=True)
input()
"""


async def test_a_peer_from_inside_is_refused_though_it_is_gone(
    python: str, build: Build, room: Path
) -> None:
    inside = build.namespace == "auto" and os.geteuid() == 0
    path = room / "s"
    options = ("--socket", str(path), *(("--shared",) if inside else ()))
    process = await asyncio.create_subprocess_exec(
        build.path, "--daemon", "--namespace", build.namespace, *options, "--",
        python, "-c", HIT_AND_RUN, str(path),
    )  # fmt: skip
    assert await process.wait() == 0
    link = await appears(str(path))
    terminal = Terminal(await link.master())
    try:
        await terminal.expect(b"tried")
        assert not (await link.status()).exited
    finally:
        terminal.close()
        await link.end(0)
        await eventually(link.status, lambda s: s.exited, "its end")
        await link.collected()
        link.close()


# Some that connect as fast as they can, so that there is always one more to refuse, and one that
# signals hold without end.
FLOOD = """
import os, socket, sys
for i in range(12):
    if os.fork() == 0:
        while True:
            s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            s.connect(sys.argv[1])
            s.close()
if os.fork() == 0:
    while True:
        os.kill(int(sys.argv[2]), 17)
print("flooding", flush=True)
os.wait()
"""


async def test_a_flood_from_inside_does_not_keep_the_deadline_off(
    start: Start, python: str, tmp_path: Path, build: Build
) -> None:
    inside = build.namespace == "auto" and os.geteuid() == 0
    target = "1" if inside else "0"
    session = await start(python, "-c", FLOOD, str(tmp_path / "hold.sock"), target)
    await session.terminal.expect(b"flooding")
    await session.link.deadline(time.clock_gettime_ns(time.CLOCK_BOOTTIME) + 300_000_000)
    assert (await session.event(EventKind.FROZEN)).by == "deadline"


# A SIGTERM that claims to come from outside, pid 0, as a process inside can with a queued one.
FORGED = """
import ctypes, os, struct
info = ctypes.create_string_buffer(struct.pack("4i2i", 15, 0, -1, 0, 0, 0), 128)
number = {"x86_64": 129}.get(os.uname().machine, 138)
assert ctypes.CDLL(None).syscall(number, 1, 15, info) == 0
os.kill(1, 15)
print("sent", flush=True)
input()
"""


@needs_root
async def test_sigterm_from_inside_is_not_heeded(start: Start, python: str, build: Build) -> None:
    if build.namespace == "no":
        pytest.skip("without a namespace hold is not PID 1")
    session = await start(python, "-c", FORGED)
    await session.terminal.expect(b"sent")
    await session.link.foreground()
    assert not (await session.link.status()).exited
    assert b"Hangup" not in session.terminal.drain()
    os.kill(session.link.hold_pid, signal.SIGTERM)
    assert (await session.event(EventKind.EXITED)).by == "term"


# An old seccomp profile: close_range (436) is not permitted; and the limit of a container runtime.
OLD_PROFILE = """
import ctypes, os, resource, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
code = [(0x20, 0, 0, 0), (0x15, 0, 1, 436), (0x06, 0, 0, 0x50001), (0x06, 0, 0, 0x7fff0000)]
filter = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *c) for c in code))
program = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(code), ctypes.addressof(filter)))
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, program, 0, 0) == 0
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
for fd in (20, 30, 31, 400):
    os.dup2(1, fd, inheritable=True)
os.execv(sys.argv[1], sys.argv[1:])
"""


async def test_an_old_seccomp_profile_lets_nothing_leak(
    build: Build, python: str, socket_path: str, environment: dict[str, str]
) -> None:
    process = await asyncio.create_subprocess_exec(
        python, "-c", OLD_PROFILE, build.path, "--socket", socket_path,
        "--namespace", build.namespace, "--", "cat",
        env=environment, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    link = await appears(socket_path)
    graph = await link.graph()
    targets = [d.target for p in graph.processes for d in p.fds]
    assert {t for t in targets if "ptmx" not in t} == {"/dev/null", graph.tty, JOBS}
    assert len(targets) == 3 + 1 + 1 + 3
    await link.end(0)
    await eventually(link.status, lambda s: s.exited, "its end")
    await link.collected()
    link.close()
    assert await process.wait() == 128 + signal.SIGKILL


def test_install(build: Build, tmp_path: Path) -> None:
    target = tmp_path / "bin"
    target.mkdir()
    path = target / "hold"
    (target / "hold.new").write_text("left by one that was killed")
    (target / "hold.new").chmod(0o400)

    def install(to: Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [build.path, "--install", str(to)], check=False, capture_output=True, text=True
        )

    for content in (b"", None, Path(build.path).read_bytes() + b"x"):
        if content is not None:
            path.unlink(missing_ok=True)
            path.write_bytes(content)
        before = path.stat().st_ino
        done = install(path)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        assert path.read_bytes() == Path(build.path).read_bytes()
        assert stat.S_IMODE(path.stat().st_mode) == 0o555
        assert [p.name for p in target.iterdir()] == ["hold"]
        # A new file, never one that is half written; but what is the same already stays, for a
        # session that runs from it could not be moved any more.
        assert (path.stat().st_ino == before) is (content is None)
    for wrong, words in [(tmp_path / "no" / "hold", "must exist"), (target, "path of a file")]:
        failed = install(wrong)
        assert failed.returncode == 1
        assert words in failed.stderr
        assert failed.stderr.startswith("hold: cannot ")
    assert [p.name for p in tmp_path.iterdir()] == ["bin"]
