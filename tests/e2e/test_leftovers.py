"""What counts as left over, on machines made of files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from e2e.cluster import kind, leftovers, nodes
from e2e.cluster.leftovers import Machine, cgroups, daemons, in_nodes, mounted_below, of_namespaces
from e2e.cluster.namespaces import missing_controllers


class Made:
    """A machine on which nothing of a cluster is."""

    def __init__(self, folder: Path) -> None:
        self.machine = Machine(*(folder / name for name in ("proc", "cgroups", "net", "netns")))
        (self.machine.proc / "self").mkdir(parents=True)
        self.mountinfo = self.machine.proc / "self" / "mountinfo"
        self.mountinfo.write_text("22 1 0:21 / / rw shared:1 - ext4 /dev/sda rw\n")
        for name in ("cgroups/freezer", "cgroups/memory", "net/lo", "netns"):
            (folder / name).mkdir(parents=True)
        self.process(1, "/sbin/init")

    def process(self, pid: int, *words: str, group: str = "/") -> None:
        folder = self.machine.proc / str(pid)
        folder.mkdir()
        (folder / "cmdline").write_bytes(b"".join(word.encode() + b"\0" for word in words))
        (folder / "cgroup").write_text(f"6:freezer:{group}\n0::/\n")

    def cgroup(self, path: str, procs: str = "") -> Path:
        folder = self.machine.cgroups / path
        folder.mkdir(parents=True)
        for part in (folder, *folder.parents):
            if part == self.machine.cgroups:
                break
            if not (part / "cgroup.procs").exists():
                (part / "cgroup.procs").touch()
        (folder / "cgroup.procs").write_text(procs)
        return folder


@pytest.fixture
def made(tmp_path: Path) -> Made:
    return Made(tmp_path)


def test_nothing(made: Made) -> None:
    assert of_namespaces(made.machine) == []


def test_everything_of_a_cluster(made: Made, state: Path) -> None:
    made.process(10, "/c/bin-1/etcd", f"--data-dir={state}/etcd")
    made.process(11, "/usr/bin/python3", "-m", "e2e.cluster", "guard", "5", str(state))
    made.process(12, "/opt/kube/kubelet", group="/holdfast/n1")
    made.process(13, "sh", group="/holdfast/n2/kubepods/pod1")
    made.mountinfo.write_text(f"30 22 0:4 net {made.machine.namespaces}/hf-n1 rw - nsfs nsfs rw\n")
    (made.machine.namespaces / "hf-n1").touch()
    (made.machine.interfaces / "hfbr0").mkdir()
    (made.machine.interfaces / "hf-n2").mkdir()
    top = made.cgroup("freezer/holdfast/n1").parent
    assert of_namespaces(made.machine) == [
        "process 10: etcd",
        "process 11: guard",
        "process 12: kubelet, in a node",
        "process 13: sh, in a node",
        f"mount {made.machine.namespaces}/hf-n1",
        "network namespace hf-n1",
        "interface hfbr0",
        "interface hf-n2",
        f"cgroup {top}/n1",
        f"cgroup {top}",
    ]


def test_other_people_s_processes(made: Made, state: Path) -> None:
    made.process(10, "/usr/bin/etcd", "--data-dir=/var/lib/etcd")
    made.process(11, "/usr/bin/tail", "-f", f"{state}/log/etcd.log")
    made.process(12, "kubectl", f"--kubeconfig={state}/kubeconfig", "get", "pods")
    made.process(13, "python3", "-m", "e2e.cluster", "status")
    made.process(18, "python3", "-m", "e2e.cluster", "guard", "5", f"{state}1")
    made.process(14, "/bin/sh", group="/holdfast-of-mine/n1")
    made.process(15, "/bin/sh", group="/holdfast/n11")
    made.process(16, "/bin/sh", group="/user/holdfast/n1")
    made.process(17)  # a zombie
    assert not list(daemons(made.machine))
    assert not list(in_nodes(made.machine))


def test_the_one_that_asks_does_not_count(made: Made, state: Path) -> None:
    made.process(os.getpid(), "python3", "-m", "e2e.cluster", "guard", "5", str(state))
    assert not list(daemons(made.machine))


def test_a_folder_of_that_name_with_other_things_in_it_is_not_ours(made: Made) -> None:
    made.cgroup("freezer/holdfast/mine")
    node = made.cgroup("freezer/holdfast/n1")
    made.cgroup("memory/holdfast", procs="77\n")
    assert list(cgroups(made.machine)) == [node]


def test_mounts_below_and_only_below(made: Made) -> None:
    lines = ["/srv/state", "/srv/state/a\\040b", "/srv/state-of-others", "/srv"]
    text = "".join(f"{n} 1 0:1 / {point} rw - tmpfs t rw\n" for n, point in enumerate(lines))
    made.mountinfo.write_text(text)
    found = mounted_below(Path("/srv/state"), made.machine)
    assert found == ["/srv/state", "/srv/state/a b"]


def test_the_record_and_its_lock_are_left_too(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leftovers, "of_namespaces", list)
    monkeypatch.setattr(kind, "engine", lambda: "docker")
    monkeypatch.setattr(kind, "containers", lambda _engine: ["holdfast-worker"])
    state.mkdir(parents=True)
    assert leftovers.leftovers() == ["container holdfast-worker", str(state)]


def test_a_machine_with_cgroup_v2_alone_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpu memory pids\n")
    assert "freezer" in missing_controllers(tmp_path)
    for name in missing_controllers(tmp_path):
        (tmp_path / name).mkdir()
        (tmp_path / name / "cgroup.procs").touch()
    assert missing_controllers(tmp_path) == []


def test_never_a_signal_to_ourselves() -> None:
    # 0 is what a cgroup shows of a process in a PID namespace beside ours; kill(0) is our group.
    assert nodes.members("0\n17\n1\n42\n") == [17, 42]
