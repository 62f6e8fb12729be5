"""What hold does so that a session can be checkpointed and restored elsewhere."""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import time
from errno import ENOSYS, EPROTONOSUPPORT
from pathlib import Path

import pytest

from .death_signal import death_signal, needs_x86_64
from .holding import Build, Container, Start, Wait, descendants, needs_root

# Each is 0 or errno. On x86_64 also as the two other kinds of program there would ask.
PROBE = """
import ctypes, json, mmap, platform
from pathlib import Path

libc = ctypes.CDLL(None, use_errno=True)
intel = platform.machine() == "x86_64"
SOCKET, RING, MPTCP = (41 if intel else 198), 425, 262

def call(*numbers):
    failed = libc.syscall(*(ctypes.c_long(n) for n in numbers)) < 0
    return ctypes.get_errno() if failed else 0

status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
answers = {
    "ring": [call(n, 0, 0, 0, 0, 0) for n in range(RING, RING + 3)],
    "before and after": [call(n, -1, 0, 0, 0, 0) for n in (RING - 1, RING + 3)],
    "mptcp": [call(SOCKET, family, 1, MPTCP) for family in (2, 10)],
    "mptcp as int": call(SOCKET, 2, 1, MPTCP | 1 << 32),
    "tcp": [call(SOCKET, family, 1, 6) for family in (2, 10)],
    "unix": call(SOCKET, 1, 1, 0),
    "packet": call(SOCKET, 17, 3, MPTCP),
    "privileges": int(status["NoNewPrivs"]),
}
if intel:
    code = mmap.mmap(-1, 4096, prot=7)
    # push rbx; mov eax, edi; mov ebx, esi; xchg edx, ecx; int 0x80; pop rbx; ret
    code.write(bytes.fromhex("53 89f8 89f3 87d1 cd80 5b c3"))
    old = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_int] * 4)(
        ctypes.addressof(ctypes.c_char.from_buffer(code)))
    answers["i386"] = [-min(old(*n), 0) for n in (
        (425, 0, 0, 0), (359, 2, 1, MPTCP), (359, 2, 1, 6))]
    answers["x32"] = call(0x40000000 | SOCKET, 2, 1, MPTCP)
print(json.dumps(answers))
"""


def outside(python: str) -> dict[str, object]:
    done = subprocess.run([python, "-c", PROBE], check=True, capture_output=True)
    answers: dict[str, object] = json.loads(done.stdout)
    return answers


async def inside(start: Start, python: str, *options: str) -> dict[str, object]:
    session = await start("sh", "-c", '"$0" -c "$1"; cat', python, PROBE, options=options)
    assert (await session.link.status()).movable == ("--movable" in options)
    seen = await session.terminal.expect(b"}\r\n")
    answers: dict[str, object] = json.loads(seen[seen.index(b"{") :].replace(b"\r\n", b""))
    return answers


async def test_what_cannot_be_moved_is_not_there(start: Start, python: str) -> None:
    plain, answers = outside(python), await inside(start, python, "--movable")
    assert answers["ring"] == [ENOSYS] * 3
    assert answers["mptcp"] == [EPROTONOSUPPORT] * 2
    assert answers["mptcp as int"] == EPROTONOSUPPORT
    assert answers["tcp"] == [0, 0]
    assert answers["unix"] == 0
    for same in ("packet", "before and after"):
        assert answers[same] == plain[same]
    assert answers["privileges"] == 1
    if platform.machine() == "x86_64":
        old = plain["i386"]
        assert isinstance(old, list)
        assert answers["i386"] == [ENOSYS, EPROTONOSUPPORT, old[2]]
        assert answers["x32"] == EPROTONOSUPPORT


async def test_without_the_option_all_is_as_ever(start: Start, python: str) -> None:
    plain = outside(python)
    assert await inside(start, python) == plain
    if plain["ring"] == [ENOSYS] * 3 or plain["mptcp"] == [EPROTONOSUPPORT] * 2:
        pytest.skip("this kernel has none of it, so the filter is not seen to be absent")


async def test_the_filter_is_the_tree_s_and_not_hold_s(start: Start) -> None:
    session = await start("cat", options=("--movable",))
    hold = session.link.hold_pid
    keeper, command = descendants(hold)

    def seccomp(pid: int) -> str:
        return Path(f"/proc/{pid}/status").read_text().partition("Seccomp:")[2].split()[0]

    assert [seccomp(p) for p in (keeper, command)] == ["2", "2"]
    assert seccomp(hold) == seccomp(os.getpid())


@pytest.mark.timed
@needs_root
async def test_pids_are_left_to_who_restores(container: Container) -> None:
    pod = await container(1000, "cat", options=("--reserve", "300"))
    begin = time.monotonic()
    await pod.link.start(80, 24)
    took = time.monotonic() - begin
    status = await pod.link.status()
    assert (status.keeper_pid, status.command_pid) == (301, 302)
    assert took < 2  # some tens of milliseconds, but a machine may be busy
    assert [p.pid for p in (await pod.link.graph()).processes] == [301, 302]


@needs_root
async def test_none_are_used_up_that_are_gone_already(container: Container) -> None:
    pod = await container(1000, "cat", options=("--reserve", "2"))
    await pod.link.start(80, 24)
    keeper = (await pod.link.status()).keeper_pid
    assert 2 < keeper < 100


@pytest.mark.timed
async def test_without_a_namespace_none_are_reserved(wait: Wait) -> None:
    waiting = await wait("cat", options=("--reserve", "10000"))
    begin = time.monotonic()
    await waiting.link.start(80, 24)
    status = await waiting.link.status()
    if status.namespace:
        assert status.keeper_pid == 10001
    else:
        assert time.monotonic() - begin < 0.5


@pytest.mark.parametrize(
    "wrong",
    [("--reserve", "10001"), ("--reserve", "-1"), ("--linger", "1s"), ("--linger", "3600001")],
)
def test_a_wrong_number_is_told(build: Build, socket_path: str, wrong: tuple[str, str]) -> None:
    hold = [build.path, "--socket", socket_path, *wrong, "--", "true"]
    done = subprocess.run(hold, check=False, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith(f"hold: bad {wrong[0]} {wrong[1]}; give ")


@needs_root
@needs_x86_64
async def test_the_keeper_of_pid_1_outlives_a_parent(start: Start) -> None:
    """A restored keeper's first parent is the checkpoint tool, and that goes."""
    session = await start("sh", "-c", "read x; exit 6")
    keeper, command = descendants(session.link.hold_pid)
    namespaced = (await session.link.status()).namespace
    assert death_signal(keeper) == (0 if namespaced else signal.SIGKILL)
    assert death_signal(command) == signal.SIGKILL
    session.terminal.send(b"\n")
    await session.terminal.expect(b"\r\n")
