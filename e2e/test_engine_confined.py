"""Attack 45: CRIU reads what a hostile process has laid out. What it could do on its node, were it
taken over: a probe runs in its place, started in the same way."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from e2e import engine_kit as kit
from e2e.engine_session import Session, Target, bench, engine, move, node, tidy
from holdfast_node import confine, containers, freezer, inside
from holdfast_node.engine import Engine
from holdfast_node.entering import Place, enter
from holdfast_node.peers import keeper_of

__all__ = ["bench", "engine", "node", "tidy"]  # fixtures; `tidy` stands in for the cluster's

pytestmark = pytest.mark.timeout(60)

# What Docker and containerd give to a container of which nothing is said.
USUAL: Final = (0, 1, 3, 4, 5, 6, 7, 8, 10, 13, 18, 27, 29, 31)
KINDS: Final = ("Seccomp", "NoNewPrivs", "CapBnd", "CapEff", "CapPrm", "CapInh", "CapAmb", "Uid")
PROBE: Final = """#!/usr/bin/python3
import ctypes, json, os, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
said = {}

def attempt(what, act):
    try:
        act()
    except OSError as error:
        said[what] = error.strerror
    else:
        said[what] = "done"

def call(number, *arguments):
    if libc.syscall(number, *arguments) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

def climb():
    for fd in map(int, os.listdir("/proc/self/fd")):
        try:
            secret = os.open("../" * 30 + SECRET, os.O_RDONLY, dir_fd=fd)
        except OSError:
            continue
        os.read(secret, 100)
        return
    raise FileNotFoundError(2, "nowhere")

attempt("raw socket", lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 3))
attempt("load a module", lambda: call(175, None, 0, None))
attempt("kexec", lambda: call(246, 0, 0, None, 0))
attempt("reach ports", lambda: call(172, 3))
attempt("make the node's disk", lambda: os.mknod("/tmp/disk", 0o060600, os.makedev(8, 0)))
attempt("change whose a file is", lambda: os.chown("/etc/hostname", 1, 1))
attempt("a file of the agent", climb)
attempt("a process of the node", lambda: call(101, 16, NODE_PID, None, None))
status = dict(line.split(":", 1) for line in open("/proc/self/status").read().splitlines())
said |= {name: status[name].strip() for name in ("CapEff", "CapPrm", "CapBnd", "NSpid")}
said["others"] = []
for pid in filter(str.isdigit, os.listdir("/proc")):
    with open(f"/proc/{pid}/status") as file:
        said["others"] += [line.split()[1] for line in file if line.startswith("CapPrm")]
said["open"] = sorted(os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
                      if os.path.exists(f"/proc/self/fd/{fd}"))
socket.socket(fileno=int(sys.argv[-1])).send(json.dumps(said).encode())
"""


@pytest.fixture
def secret(tmp_path: Path) -> Iterator[Path]:
    """A file of the agent's, which root alone may read."""
    path = tmp_path / "key"
    path.write_text(secrets.token_hex())
    path.chmod(0o600)
    yield path
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.fixture
def probe(secret: Path, tmp_path: Path) -> Path:
    """A bundle in which CRIU's loader is the probe."""
    folder = tmp_path / "bundle"
    folder.mkdir()
    text = PROBE.replace("SECRET", repr(str(secret).lstrip("/")))
    loader = folder / inside.LOADER
    # The test's own number: in the container's PID namespace there is none so high.
    loader.write_text(text.replace("NODE_PID", str(os.getpid())))
    loader.chmod(0o755)
    return folder


async def probed(place: Place, *, restoring: bool) -> dict[str, Any]:
    async with enter(place, restoring=restoring) as entered:
        said: dict[str, Any] = json.loads(await entered.receive())
    return said


def mask(capabilities: frozenset[int]) -> str:
    own = confine.bounding(os.getpid())  # this machine may lack some
    return f"{sum(1 << number for number in capabilities & own):016x}"


@pytest.mark.parametrize("restoring", [False, True], ids=["dump", "restore"])
@pytest.mark.attacks(45)
async def test_who_takes_criu_over_stays_in_the_container(
    bench: kit.Lab, probe: Path, *, restoring: bool
) -> None:
    container = bench.container("a")
    said = await probed(Place(container.hold, probe, bench.images()), restoring=restoring)
    assert said["a file of the agent"] == "nowhere"
    assert said["a process of the node"] == "No such process"
    refused = {"raw socket", "load a module", "kexec", "reach ports", "make the node's disk"}
    if not restoring:
        refused.add("change whose a file is")
    # A kernel may have been built without some of them.
    answers = {"Operation not permitted", "Function not implemented"}
    assert {said[what] for what in refused} <= answers, said
    wanted = mask(confine.RESTORE if restoring else confine.DUMP)
    assert (said["CapEff"], said["CapPrm"], said["CapBnd"]) == (wanted, wanted, wanted)
    assert not [one for one in said["others"] if int(one, 16) & ~int(wanted, 16)], "to be traced"
    assert len(said["NSpid"].split()) == 1
    assert not [path for path in said["open"] if "cgroup.procs" in path or "last_pid" in path]


def test_a_folder_of_another_mount_namespace(bench: kit.Lab) -> None:
    """As the node's cgroups are to the agent."""
    container = bench.container("a")
    above = os.open(container.root / "home", os.O_RDONLY | os.O_DIRECTORY)
    alone = confine.alone(above, Path(f"/proc/{container.hold}/ns/mnt"))
    try:
        assert os.stat("user", dir_fd=alone).st_ino == os.stat("user", dir_fd=above).st_ino
        assert os.stat("..", dir_fd=alone).st_ino == os.fstat(alone).st_ino
        assert os.stat("..", dir_fd=above).st_ino != os.fstat(above).st_ino
    finally:
        os.close(above)
        os.close(alone)


@pytest.mark.attacks(45)
async def test_a_restored_session_has_the_rights_it_had(bench: kit.Lab, engine: Engine) -> None:
    """Neither less, although CRIU has less than it had, nor more; and no filter of CRIU's."""
    session = Session(bench.container("a", may=USUAL))
    before = rights(session.keeper)
    assert int(before["bash"]["CapBnd"], 16) == sum(1 << number for number in USUAL)
    target = Target(bench.container("b", may=USUAL))
    await move(engine, session, target, bench.images())
    after = rights(keeper_of(target.container.hold))
    assert after == before


def rights(keeper: int) -> dict[str, dict[str, str]]:
    kinds = (*KINDS, "Seccomp_filters")
    return {
        containers.name(pid): {kind: containers.status(pid)[kind] for kind in kinds}
        for pid in freezer.descendants(keeper)
    }
