"""A person at a terminal: `kubectl holdfast attach` on the real cluster, through a real PTY."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from client_kit import Screen
from e2e.lab import LEASE, Lab, container_pids, sidecar_pid, until

PATIENCE = 40.0
DETACH = b"\x1cd"  # ctrl-\ then d


def test_attach_leave_and_come_back(lab: Lab, attach: Callable[[str], Screen]) -> None:
    session = lab.session("desk", "bash", "--norc")
    uid = lab.get("pod", session.pod)["metadata"]["uid"]
    first = attach("desk")
    first.expect(rb"bash-[0-9.]+[#$] ", PATIENCE)
    first.type(b"kept=$((6*7)); echo kept-$kept\r")
    first.expect(rb"kept-42\r\n", PATIENCE)
    first.type(DETACH)
    assert first.wait(PATIENCE) == 0
    second = attach("desk")
    second.expect(rb"kept-42", PATIENCE)
    second.type(b"echo again-$kept\r")
    second.expect(rb"again-42\r\n", PATIENCE)
    # Its sidecar is killed under it: kubelet starts another, and the client finds it by itself.
    os.kill(sidecar_pid(uid), signal.SIGKILL)
    second.type(b"echo after-$kept\r")
    second.expect(rb"after-42\r\n", PATIENCE)
    second.process.kill()
    second.process.wait()
    session.type("echo alone-$kept")
    session.await_text("alone-42")
    assert session.epoch == 1
    until(lambda: list(container_pids(uid)), "it lives")


def test_a_client_follows_its_session_to_the_next_pod(
    lab: Lab, attach: Callable[[str], Screen]
) -> None:
    session = lab.session("follow", "bash", "--norc")
    screen = attach("follow")
    screen.expect(rb"bash-[0-9.]+[#$] ", PATIENCE)
    lab.kubectl("delete", "pod", session.pod, "--wait=false")
    screen.expect(rb"Incarnation 1 of this session was lost", LEASE + PATIENCE)
    screen.type(b"echo here-$((1+1))\r")
    screen.expect(rb"here-2\r\n", PATIENCE)
    screen.type(DETACH)
    assert screen.wait(PATIENCE) == 0
