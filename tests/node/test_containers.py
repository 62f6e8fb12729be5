"""Processes looked at through /proc, and descriptors fetched out of them."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import time
from pathlib import Path

import pytest

from holdfast_node import containers, freezer
from holdfast_wire.errors import NotFound


def test_a_terminal_is_fetched_out_of_its_keeper() -> None:
    master, slave = pty.openpty()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE,
                          pass_fds=[master]) as process:  # fmt: skip
        try:
            found = containers.terminal_of(process.pid)
            assert found.path == os.ttyname(slave)
            assert not os.get_inheritable(found.master)
            os.write(found.master, b"hello\n")
            assert os.read(slave, 10) == b"hello\n"
            os.close(found.master)
        finally:
            process.kill()
    os.close(master)
    os.close(slave)


def test_a_process_without_a_terminal_has_none_to_fetch() -> None:
    with subprocess.Popen(["sleep", "60"], stdin=subprocess.DEVNULL) as process:
        with pytest.raises(NotFound):
            containers.terminal_of(process.pid)
        process.kill()


def test_a_pod_that_is_not_here_is_not_found() -> None:
    with pytest.raises(NotFound):
        containers.find("0f6b1c34-5e2d-4b6f-9a8e-1234567890ab")


def test_a_pid_1_inside_the_session_is_not_its_containers_first() -> None:
    """Attack 28: `unshare -Urp` makes a PID 1 with any argv; it lies one namespace too deep."""
    deeper = "exec -a holdfast-sidecar sleep 60"
    words = ["unshare", "-Urpf", "--kill-child", "unshare", "-Urpf", "--kill-child", "bash", "-c"]
    with subprocess.Popen([*words, deeper]) as process:
        until = time.monotonic() + 10
        tree: list[int] = []
        while time.monotonic() < until and not (len(tree) == 3 and _argv(tree[2])):
            tree = freezer.descendants(process.pid)
        assert [len(containers.status(pid)["NSpid"].split()) for pid in tree] == [1, 2, 3]
        assert [containers._is_first(pid) for pid in tree] == [False, True, False]
        process.kill()


def _argv(pid: int) -> bool:
    return containers.arguments(pid)[:1] == ["holdfast-sidecar"]


@pytest.mark.parametrize(
    ("path", "inside"),
    [
        (f"/kubepods/burstable/pod1/{'a' * 64}", True),
        (f"/kubepods.slice/x.slice/cri-containerd-{'a' * 64}.scope", True),
        (f"/kubepods.slice/x.slice/crio-{'a' * 64}.scope/holdfast", True),
        (f"/kubepods/burstable/pod1/{'b' * 64}", False),
        (f"/kubepods/burstable/pod1/{'a' * 65}", False),
        (f"/kubepods/burstable/pod1/{'b' * 64}/x{'a' * 64}", False),
    ],
)
def test_a_container_is_known_by_its_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, inside: bool
) -> None:
    """Attack 28: by the cgroup that the runtime made, never by argv."""
    (tmp_path / "7").mkdir()
    (tmp_path / "7/cgroup").write_text(f"0::{path}\n")
    monkeypatch.setattr(containers, "PROC", tmp_path)
    assert containers.in_container(7, "a" * 64) is inside


def test_who_has_ended_or_not() -> None:
    assert not containers.ending(os.getpid())
    with subprocess.Popen(["true"]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert containers.ending(process.pid)
    assert containers.ending(process.pid)


def test_a_process_s_numbers() -> None:
    assert containers.inner_pid(os.getpid()) == os.getpid()
    assert containers.ids_of(os.getpid()) == (os.getuid(), os.getgid())
    assert containers.name(os.getpid()) == Path("/proc/self/comm").read_text().strip()
    assert containers.name(2**22 + 1) == ""
    assert containers.arguments(2**22 + 1) == []
