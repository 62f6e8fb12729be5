"""The sidecar without memory: the kernel kills it, and of the session nothing is lost, not even
what was on its way out of the terminal just then.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
import time
import tty
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.cluster.places import NUMBER
from e2e.lab import Lab, process_state, sidecar_pid, until
from e2e.movers import (
    check,
    pod_uid,
    walking,
)
from e2e.viewer import Viewer, again, marks_in
from holdfast_sidecar.ring import Ring

pytestmark = pytest.mark.long

CGROUPS = Path("/sys/fs/cgroup")
ROUNDS = 12


@pytest.mark.faults(33)
@pytest.mark.timeout(120)
def test_a_sidecar_without_memory_is_killed_and_its_session_lives(lab: Lab) -> None:
    session = walking(lab, "starved")
    uid = pod_uid(lab, session.pod)
    pid = sidecar_pid(uid)
    with Viewer(lab, session.pod) as first:
        until(lambda: len(first.text()) > 500, "something is seen")
        starve(pid)
        until(lambda: first.ended, "the client's connection ends")
    until(lambda: sidecar_of(uid) not in (None, pid), "another sidecar runs")
    session.writes_on()
    with again(lab, session, first) as second:
        until(lambda: len(second.text()) > 500, "more is seen")
        numbers = marks_in(first.text() + second.text(), 1)
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers))), "a gap or a double"
    status = lab.get("pod", session.pod)["status"]
    ended = [s["lastState"]["terminated"] for s in
             status["containerStatuses"] + status.get("initContainerStatuses", [])
             if "terminated" in s.get("lastState", {})]  # fmt: skip
    assert any(one["reason"] == "OOMKilled" for one in ended), ended
    assert session.epoch == 1
    session.writes_on()
    check(session)


def sidecar_of(uid: str) -> int | None:
    try:
        return sidecar_pid(uid)
    except AssertionError:
        return None


def starve(pid: int) -> None:
    """Its container's memory is made less than it has, by whichever cgroup there is."""
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "memory":
            limit = CGROUPS / f"memory{path}/memory.limit_in_bytes"
            used = CGROUPS / f"memory{path}/memory.usage_in_bytes"
            squeeze(pid, limit, used)
            return
    path = Path(f"/proc/{pid}/cgroup").read_text().strip().split("::")[-1]
    (CGROUPS / path.lstrip("/") / "memory.max").write_text("1M")


def squeeze(pid: int, limit: Path, used: Path) -> None:
    """v1 refuses a limit below what is in use, but takes away what it can for it. One just at it is
    enough then, at the next need."""
    give_up = time.monotonic() + 30
    while process_state(pid) not in "ZX" and time.monotonic() < give_up:
        for share in (2, 1):
            with contextlib.suppress(OSError):
                limit.write_text(str(int(used.read_text()) // share))
        time.sleep(0.01)


# -- the same a dozen times, and only what reads the terminal -------------------------------------

# It has more than is left to it, and every page of the ring is its own to lose.
READER = """
import sys
from pathlib import Path
from holdfast_sidecar.ring import Ring
Path(sys.argv[1], "cgroup.procs").write_text("0")
held, ring = bytearray(8 << 20), Ring(Path(sys.argv[2]), 1 << 20)
print("reading", flush=True)
while ring.fill(int(sys.argv[3])):
    pass
"""


@contextlib.contextmanager
def group() -> Iterator[Path]:
    made = CGROUPS / ("memory" if (CGROUPS / "memory").is_dir() else "") / f"holdfast-ring-{NUMBER}"
    made.mkdir()
    try:
        yield made
    finally:
        until(lambda: not (made / "cgroup.procs").read_text(), "it is gone")
        made.rmdir()


class Printing:
    """Prints lines of a known sequence into a terminal, until it is told to stop."""

    def __init__(self) -> None:
        self.master, self._slave = os.openpty()
        tty.setraw(self._slave)
        self._stop, self.lines = threading.Event(), 0
        self._thread = threading.Thread(target=self._print)
        self._thread.start()

    def _print(self) -> None:
        while not self._stop.is_set():
            os.write(self._slave, b"%09d\n" % self.lines)
            self.lines += 1

    def rest_into(self, ring: Ring) -> None:
        """It stops, and what is left is read."""
        self._stop.set()
        os.set_blocking(self.master, False)
        while self._thread.is_alive() or self._left():
            with contextlib.suppress(BlockingIOError):
                ring.fill(self.master)

    def _left(self) -> bool:
        return bool(select.select((self.master,), (), (), 0.1)[0])

    def close(self) -> None:
        self._stop.set()
        os.close(self.master)
        os.close(self._slave)


@pytest.mark.faults(33)
def test_what_was_on_its_way_out_of_the_terminal_is_not_lost(tmp_path: Path) -> None:
    for number in range(ROUNDS):
        path, printing = tmp_path / str(number), Printing()
        try:
            with group() as cgroup:
                command = [
                    sys.executable,
                    "-c",
                    READER,
                    str(cgroup),
                    str(path),
                    str(printing.master),
                ]
                reader = subprocess.Popen(
                    command, stdout=subprocess.PIPE, pass_fds=[printing.master]
                )
                assert reader.stdout is not None
                assert reader.stdout.readline() == b"reading\n"
                time.sleep(0.1)
                starve(reader.pid)
                assert reader.wait(30) == -signal.SIGKILL
                reader.stdout.close()
            ring = Ring(path, 1 << 20)
            printing.rest_into(ring)
        finally:
            printing.close()
        assert ring.head == 10 * printing.lines, f"round {number}"
        ring.close()
