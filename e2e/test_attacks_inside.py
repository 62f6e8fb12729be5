"""Attacks by a process of the session on those that guard it."""

from __future__ import annotations

from typing import Final

import pytest

from e2e.cluster import faults
from e2e.lab import LEASE, Lab, sidecar_pid, until

# Each line of output names one thing that should not have been possible.
HOSTILE: Final = r"""
import ctypes, os, signal, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
ATTACH, SEIZE = 16, 0x4206
for number in set(range(1, 65)) - {32, 33}:
    os.kill(1, number)
for request in (ATTACH, SEIZE):
    if libc.ptrace(request, 1, 0, 0) == 0:
        print("traced hold")
for name in ("mem", "environ", "maps"):
    try:
        open(f"/proc/1/{name}", "rb").read(1)
        print("read", name, "of hold")
    except OSError:
        pass
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        # Hold's own arguments repeat this program: only the names of programs count.
        names = open(f"/proc/{pid}/cmdline", "rb").read().split(b"\0")[:2]
    except OSError:
        continue
    if any(name.endswith(b"holdfast-sidecar") for name in names):
        print("saw the sidecar")
for folder, _, files in os.walk("/run/holdfast"):
    for name in files:
        asked = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        asked.settimeout(2)
        try:
            asked.connect(os.path.join(folder, name))
            asked.send(b"thaw")
            if asked.recv(4096):
                print("hold answered at", name)
        except OSError:
            pass
        asked.close()
print("tried" + " everything", flush=True)
while True:
    print(sys.stdin.readline().strip()[::-1], flush=True)
"""


@pytest.mark.attacks(21)
@pytest.mark.timeout(120)
@pytest.mark.parametrize("uid", [1000, 0])
def test_a_session_cannot_reach_its_guard(lab: Lab, uid: int) -> None:
    session = lab.session(
        "prisoner", "python3", "-c", HOSTILE,
        container={"securityContext": {"runAsUser": uid}},
    )  # fmt: skip
    session.await_text("tried everything")
    found = session.screen().split("tried everything")[0].strip()
    assert found == "", found
    session.type("evila llits")
    session.await_text("still alive")
    # What tried to escape from the fence is stopped by it, without the sidecar's help.
    pod = str(lab.get("pod", session.pod)["metadata"]["uid"])
    with faults.stopped(sidecar_pid(pod)):
        until(lambda: session.frozen(pod), "it is frozen", LEASE)
