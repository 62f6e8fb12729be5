"""Processes looked at through /proc, and descriptors fetched out of them."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast_node import containers
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


def test_a_hold_without_a_session_has_no_keeper() -> None:
    with pytest.raises(NotFound):
        containers.keeper_of(os.getpid())


@pytest.mark.parametrize(
    ("words", "hold", "sidecar"),
    [
        (["/run/holdfast-bin/hold", "--socket", "/x", "--", "bash"], True, False),
        (["hold", "--install", "/x"], False, False),
        (["/venv/bin/python", "/venv/bin/holdfast-sidecar"], False, True),
        (["holdfast-sidecar"], False, True),
        (["bash", "-c", "x", "holdfast-sidecar"], False, False),
        ([], False, False),
    ],
)
def test_who_is_who(words: list[str], hold: bool, sidecar: bool) -> None:
    assert containers._is_hold(words) is hold
    assert containers._is_sidecar(words) is sidecar


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
