"""What hold cannot stop is stopped by its cgroup (attack 33), on real cgroups where root may make
them. On the cluster: e2e/test_fence.py."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from holdfast_node import containers
from holdfast_node.containers import Pod
from holdfast_node.fence_guard import FenceGuard, _Watched
from holdfast_node.freezer import CGROUPS, FENCE, Freezer
from holdfast_node.pods import Register
from holdfast_wire.errors import NotFound

UID = "0f6b1c34-5e2d-4b6f-9a8e-1234567890ab"
WRITER = "import sys, time\nwhile True: open(sys.argv[1], 'a').write('.'); time.sleep(0.001)"

needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("nsenter"), reason="needs root"
)


@dataclass
class Container:
    """A PID 1 that does nothing, and somebody who was brought in and writes."""

    hold: int
    cage: Freezer
    out: Path
    status: dict[str, Any] = field(default_factory=dict)

    def ask(self, _pid: int, _request: str) -> dict[str, Any]:
        return self.status

    def writes(self) -> bool:
        before = self.out.stat().st_size
        time.sleep(0.2)
        return self.out.stat().st_size > before


def _child(pid: int) -> int:
    give_up = time.monotonic() + 10
    while time.monotonic() < give_up:
        with contextlib.suppress(OSError, ValueError):
            return int(Path(f"/proc/{pid}/task/{pid}/children").read_text())
    raise AssertionError("it has no child")


@pytest.fixture
def container(tmp_path: Path) -> Iterator[Container]:
    v1 = (CGROUPS / "freezer").is_dir()
    parent = (CGROUPS / "freezer" if v1 else CGROUPS) / f"holdfast-test-{os.getpid()}"
    out = tmp_path / "out"
    out.touch()
    parent.mkdir()
    cage = Freezer(parent, not v1, FENCE)
    first = subprocess.Popen(["unshare", "--pid", "--fork", "--kill-child", "sleep", "1000"])
    hold = _child(first.pid)
    other = subprocess.Popen(
        ["nsenter", "--target", str(hold), "--pid", sys.executable, "-c", WRITER, str(out)]
    )
    while not out.stat().st_size:
        time.sleep(0.01)
    try:
        yield Container(hold, cage, out)
    finally:
        for one in (other, first):
            one.kill()
            one.wait()
        cage.let_go()
        give_up = time.monotonic() + 10
        while parent.exists() and time.monotonic() < give_up:
            for pid in (parent / "cgroup.procs").read_text().split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), 9)
            with contextlib.suppress(OSError):
                parent.rmdir()


def watched(container: Container, nonce: str = "n") -> _Watched:
    return _Watched(Pod(UID, container.hold, None), container.cage, nonce)


def guard(container: Container, busy: bool = False) -> FenceGuard:
    return FenceGuard("n1", Register(), lambda _uid: busy, CGROUPS, container.ask)


@needs_root
def test_what_hold_cannot_stop_stands_still_until_hold_thaws(container: Container) -> None:
    """attack 33"""
    own, one = guard(container), watched(container)
    container.status = {"nonce": "n", "frozen": True, "incomplete": 0}
    assert own.look(one) == []
    assert container.writes(), "hold says that it can do without"
    container.status["incomplete"] = 1
    (left,) = own.look(one)
    assert left in containers.beside(container.hold)
    assert not container.writes()
    assert container.hold not in container.cage.members()
    assert own.look(one) == [], "what is in the cage is not put there again"
    container.status = {"nonce": "n", "frozen": False, "incomplete": 0}
    assert own.look(one) == []
    assert container.writes()
    assert not container.cage.exists()


@needs_root
async def test_nobody_but_hold_is_believed_and_no_move_is_disturbed(container: Container) -> None:
    """attack 33: the session can put a socket of its own in the place of hold's."""
    container.status = {"nonce": "another", "frozen": True, "incomplete": 1}
    with pytest.raises(NotFound, match="is not hold"):
        guard(container).look(watched(container))
    container.status["nonce"] = ""
    with pytest.raises(NotFound, match="is not hold"):
        guard(container).look(watched(container, ""))
    container.status["nonce"] = "n"
    await guard(container, busy=True)._guard(watched(container))
    assert container.writes()
    moved = Freezer(container.cage.parent, container.cage.unified)
    moved.make()
    moved.freeze()
    try:
        assert guard(container).look(watched(container)) == []
        assert container.writes()
    finally:
        moved.thaw()
        moved.remove()


def pod(**more: Any) -> dict[str, Any]:
    owner = {"apiVersion": "holdfast.dev/v1alpha1", "kind": "Session", "name": "build",
             "uid": "u", "controller": True}  # fmt: skip
    running: dict[str, Any] = {"running": {}}
    statuses = [
        {"name": name, "containerID": f"containerd://{digit * 64}", "state": running}
        for name, digit in (("session", "a"), ("holdfast", "b"))
    ]
    item: dict[str, Any] = {
        "metadata": {
            "namespace": "team",
            "name": "build-1",
            "uid": UID,
            "ownerReferences": [owner],
        },
        "spec": {"nodeName": "n1"},
        "status": {"containerStatuses": statuses},
    }
    for place, value in more.items():
        part, _, key = place.partition("_")
        item[part][key] = value
    return item


@pytest.mark.parametrize(
    ("found", "believed"),
    [
        (pod(), True),
        (pod(metadata_uid="another"), False),
        (pod(spec_nodeName="n2"), False),
        (pod(metadata_ownerReferences=[]), False),
        (pod(status_containerStatuses=[]), False),
        (None, False),
    ],
)
async def test_a_pod_s_own_word_is_a_hint_only(
    found: dict[str, Any] | None, believed: bool
) -> None:
    register = Register()

    async def read(_namespace: str, _name: str) -> dict[str, Any] | None:
        return found

    register._read = read
    assert await register.learn("team", "build-1", UID, "n1") is believed
    assert register.knows(UID) is believed
