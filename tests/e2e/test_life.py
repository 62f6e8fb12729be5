"""Up, down, and what keeps them from harming each other: lock, owner, guard."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.cluster import __main__ as cluster
from e2e.cluster import processes
from e2e.cluster.kind import Kind
from e2e.cluster.lock import alone, lock_file
from e2e.cluster.namespaces import Namespaces
from e2e.cluster.running import record, running
from e2e.cluster.say import ClusterError


class Fake:
    """A cluster that only remembers what was asked of it."""

    nodes = ("a", "b")

    def __init__(self) -> None:
        self.done: list[str] = []
        self.fails: set[str] = set()
        self.is_healthy = True

    def _do(self, what: str) -> None:
        self.done.append(what)
        if what in self.fails:
            raise ClusterError(f"{what} fails")

    def check(self) -> None:
        self._do("check")

    def build(self) -> None:
        self._do("build")

    def start(self) -> None:
        self._do("start")

    def stop(self) -> None:
        self._do("stop")

    def healthy(self) -> bool:
        return self.is_healthy


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Fake:
    made = Fake()
    monkeypatch.setattr(cluster, "_choose", lambda: made)
    monkeypatch.setattr(cluster, "running", lambda: made)
    # What a guard, which is a process of its own, finds: an engine that is none.
    monkeypatch.setattr(cluster, "record", lambda _cluster: record(Kind("false")))
    return made


@pytest.fixture
def other() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()


def test_up_and_down_leave_nothing(fake: Fake, state: Path) -> None:
    cluster.up()
    assert fake.done == ["check", "build", "start"]
    assert state.exists()
    cluster.down()
    assert fake.done[3:] == ["stop"]
    assert not list(state.parent.iterdir())


def test_up_when_it_is_up(fake: Fake) -> None:
    cluster.up()
    cluster.up()
    assert fake.done == ["check", "build", "start"]


def test_up_when_it_is_up_and_broken(fake: Fake, state: Path) -> None:
    cluster.up()
    (state / "of the old one").touch()
    fake.is_healthy = False
    cluster.up()
    assert fake.done[3:] == ["stop", "check", "build", "start"]
    assert not (state / "of the old one").exists()


@pytest.mark.parametrize("step", ["check", "build"])
def test_what_fails_before_anything_runs_leaves_no_record(
    fake: Fake, state: Path, step: str
) -> None:
    fake.fails = {step}
    with pytest.raises(ClusterError, match=f"{step} fails"):
        cluster.up()
    assert not state.exists()
    cluster.down()
    assert "stop" not in fake.done


def test_half_up_can_be_looked_at_and_taken_down(fake: Fake, state: Path) -> None:
    fake.fails = {"start"}
    with pytest.raises(ClusterError, match="start fails"):
        cluster.up()
    assert state.exists()
    cluster.down()
    assert not state.exists()


def test_down_without_a_record_touches_nothing(fake: Fake) -> None:
    cluster.down()
    assert fake.done == []


def test_a_failed_down_keeps_the_record(fake: Fake, state: Path) -> None:
    cluster.up()
    fake.fails = {"stop"}
    with pytest.raises(ClusterError, match="stop fails"):
        cluster.down()
    assert state.exists()


def test_down_does_not_reach_into_what_is_mounted_there(
    fake: Fake, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.up()
    (state / "precious").touch()
    monkeypatch.setattr(cluster, "mounted_below", lambda _folder: [f"{state}/shared"])
    with pytest.raises(ClusterError, match="mounted"):
        cluster.down()
    assert (state / "precious").exists()


def test_a_folder_that_no_cluster_made_is_left_alone(state: Path) -> None:
    state.mkdir(parents=True)
    (state / "precious").touch()
    with pytest.raises(ClusterError, match="no cluster's"):
        cluster.down()
    assert (state / "precious").exists()
    (state / "pki").mkdir()
    assert isinstance(running(), Namespaces), "one of before the record"


# -- the one it belongs to ------------------------------------------------------------------------


def test_a_run_does_not_take_another_run_s(fake: Fake, other: subprocess.Popen[bytes]) -> None:
    cluster.up(other.pid)
    for asker in (None, os.getpid()):
        with pytest.raises(ClusterError, match=f"test run, pid {other.pid}"):
            cluster.up(asker)
    assert "stop" not in fake.done
    cluster.down()


def test_the_guard_goes_with_the_cluster(fake: Fake, other: subprocess.Popen[bytes]) -> None:
    cluster.up(other.pid)
    guard = processes.pid_of("guard")
    assert guard is not None
    cluster.down()
    assert processes.gone(guard, 0)


def test_a_guard_whose_cluster_is_gone_spares_the_next(fake: Fake, state: Path) -> None:
    cluster.up()
    (state / "pids").mkdir()
    processes.remember(state / "pids" / "guard", os.getppid())  # another one's
    read, write = os.pipe()
    os.close(write)  # what it waits for has happened
    cluster.guard(read)
    os.close(read)
    assert "stop" not in fake.done
    (state / "pids" / "guard").unlink()
    processes.remember(state / "pids" / "guard", os.getpid())
    read, write = os.pipe()
    os.close(write)
    cluster.guard(read)
    os.close(read)
    assert fake.done[-1] == "stop"


def test_nobody_to_tie_it_to(fake: Fake) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    with pytest.raises(ClusterError, match="no process"):
        cluster.up(gone.pid)
    cluster.down()


# -- processes ------------------------------------------------------------------------------------


def test_a_process_is_known_by_more_than_its_number(state: Path, tmp_path: Path) -> None:
    record = tmp_path / "record"
    processes.remember(record, os.getpid())
    assert processes.remembered(record) == os.getpid()
    text = record.read_text()
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    record.write_text(text.replace(boot, "another"))
    assert processes.remembered(record) is None, "a record of before a reboot"
    record.write_text(text.replace('"started": ', '"started": 1'))
    assert processes.remembered(record) is None, "a number that came again"
    for odd in (
        "",
        "[]",
        "{}",
        '{"pid": null, "started": 1}',
        '{"pid": 999999999, "started": null}',
    ):
        record.write_text(odd)
        assert processes.remembered(record) is None, odd
    assert processes.remembered(tmp_path / "none") is None


def test_started_and_ended(state: Path) -> None:
    pid = processes.start("sleeper", ["sleep", "60"])
    assert processes.pid_of("sleeper") == pid
    assert processes.names() == ["sleeper"]
    processes.stop("sleeper")
    assert processes.pid_of("sleeper") is None
    assert processes.names() == []
    processes.stop("sleeper")


def test_who_does_not_listen_is_killed(state: Path) -> None:
    script = "import signal,time;signal.signal(15,signal.SIG_IGN);print(flush=True);time.sleep(60)"
    pid = processes.start("deaf", [sys.executable, "-c", script])
    log = state / "log" / "deaf.log"
    give_up = time.monotonic() + 20
    while not log.read_bytes() and time.monotonic() < give_up:
        os.sched_yield()
    processes.stop("deaf", within=0.05)
    assert processes.gone(pid, 0)


# -- the lock -------------------------------------------------------------------------------------


def test_one_at_a_time(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    order: list[str] = []
    inside = threading.Event()

    def second() -> None:
        inside.wait(10)
        with alone(state):
            order.append("second")

    thread = threading.Thread(target=second)
    thread.start()
    with alone(state):
        inside.set()
        give_up = time.monotonic() + 10
        while "waiting" not in capsys.readouterr().err and time.monotonic() < give_up:
            os.sched_yield()
        order.append("first")
    thread.join(10)
    assert order == ["first", "second"]
    assert not lock_file(state).exists()


def test_a_lock_whose_file_was_removed_is_no_lock(state: Path) -> None:
    """The first removes the file as it leaves; one that waited for it must not count as alone
    beside one that makes the file anew."""
    inside, most = 0, 0
    guard = threading.Lock()

    def visit() -> None:
        nonlocal inside, most
        for _ in range(50):
            with alone(state):
                with guard:
                    inside += 1
                    most = max(most, inside)
                os.sched_yield()
                with guard:
                    inside -= 1

    threads = [threading.Thread(target=visit) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert most == 1


def test_the_lock_stays_while_there_is_a_cluster(state: Path) -> None:
    state.mkdir(parents=True)
    with alone(state):
        pass
    assert lock_file(state).exists()
