"""What can be told of a freezer without root: on files that look like cgroups. The real one is in
e2e/test_engine.py."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from holdfast_node import freezer
from holdfast_node.freezer import Freezer, Membership, NotFrozen
from holdfast_wire.errors import Unsupported

UID = "0f6b1c34-5e2d-4b6f-9a8e-1234567890ab"
V1 = f"""\
9:name=systemd:/kubepods/besteffort/pod{UID}/abc
7:cpu,cpuacct:/kubepods/besteffort/pod{UID}/abc
6:freezer:/kubepods/besteffort/pod{UID}/abc
0::/
"""


def test_a_process_s_cgroups_are_read() -> None:
    found = freezer.memberships(V1)
    assert found[1] == Membership(("cpu", "cpuacct"), f"/kubepods/besteffort/pod{UID}/abc")
    assert found[3] == Membership((), "/")


def test_where_each_hierarchy_lies(tmp_path: Path) -> None:
    systemd, cpu, cage, unified = freezer.memberships(V1)
    rest = f"kubepods/besteffort/pod{UID}/abc"
    assert systemd.folder(tmp_path) == tmp_path / "systemd" / rest
    assert cpu.folder(tmp_path) == tmp_path / "cpu,cpuacct" / rest
    assert cage.folder(tmp_path) == tmp_path / "freezer" / rest
    assert unified.folder(tmp_path) == tmp_path
    (tmp_path / "unified").mkdir()
    assert unified.folder(tmp_path) == tmp_path / "unified"


@pytest.mark.parametrize(
    "path",
    [
        f"/kubepods/burstable/pod{UID}/0123",
        f"/kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice/cri-containerd-0123.scope",
        f"/kubelet/kubepods/pod{UID}/0123/holdfast",
    ],
)
def test_a_pod_is_known_by_its_cgroup(path: str) -> None:
    assert freezer.pod_uid(path) == UID


@pytest.mark.parametrize("path", ["/", "/system.slice/pod.service", "/kubepods/podx/1"])
def test_others_are_no_pod(path: str) -> None:
    assert freezer.pod_uid(path) is None


def test_a_namespace_that_hides_the_node_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(freezer, "memberships", lambda _: (Membership((), "/../other"),))
    with pytest.raises(Unsupported, match="cgroup namespace"):
        freezer.cgroups_of(os.getpid())


def fake(root: Path, *, unified: bool) -> Freezer:
    made = Freezer(root / "pod" / "container", unified)
    made.parent.mkdir(parents=True)
    made.make()
    (made.path / "cgroup.procs").write_text("")
    if unified:
        (made.path / "cgroup.freeze").write_text("0\n")
        (made.path / "cgroup.kill").write_text("")
        (made.path / "cgroup.events").write_text("populated 1\nfrozen 0\n")
    else:
        (made.path / "freezer.state").write_text("THAWED\n")
        (made.path / "freezer.self_freezing").write_text("0\n")
    return made


def test_v2_is_told_by_its_files(tmp_path: Path) -> None:
    cage = fake(tmp_path, unified=True)
    assert not cage.frozen()
    assert not cage.wanted()

    def kernel() -> None:
        time.sleep(0.05)
        (cage.path / "cgroup.events").write_text("populated 1\nfrozen 1\n")

    thread = threading.Thread(target=kernel)
    thread.start()
    cage.freeze()
    thread.join()
    assert (cage.path / "cgroup.freeze").read_text() == "1"
    assert cage.wanted()
    assert cage.frozen()
    cage.thaw()
    assert (cage.path / "cgroup.freeze").read_text() == "0"
    cage.kill()
    assert (cage.path / "cgroup.kill").read_text() == "1"


def test_v1_is_told_by_its_file(tmp_path: Path) -> None:
    cage = fake(tmp_path, unified=False)
    cage.freeze()
    assert (cage.path / "freezer.state").read_text() == "FROZEN"
    cage.thaw()
    assert (cage.path / "freezer.state").read_text() == "THAWED"


def test_what_does_not_stop_is_named(tmp_path: Path) -> None:
    cage = fake(tmp_path, unified=True)
    (cage.path / "cgroup.procs").write_text(f"{os.getpid()}\n")
    with pytest.raises(NotFrozen, match=str(os.getpid())):
        cage.await_frozen(0.05)


@pytest.mark.parametrize("unified", [True, False])
def test_the_frozen_ones_are_found_again(tmp_path: Path, unified: bool) -> None:
    root = tmp_path if unified else tmp_path / "freezer"
    one = fake(root / "kubepods" / f"pod{UID}", unified=unified)
    fake(root / "other", unified=unified)
    assert freezer.frozen_ones(tmp_path) == []
    name, word = ("cgroup.freeze", "1") if unified else ("freezer.self_freezing", "1")
    (one.path / name).write_text(word + "\n")
    assert freezer.frozen_ones(tmp_path) == [one]
    assert one.pod_uid == UID


def test_children_are_found_to_the_last() -> None:
    script = (
        "import os, time\nfor _ in range(2):\n  os.fork()\nprint('x', flush=True)\ntime.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        for _ in range(4):
            process.stdout.readline()
        found = freezer.descendants(process.pid)
        for pid in reversed(found):
            os.kill(pid, 9)
    assert len(found) == 4
    assert found[0] == process.pid
