"""The cluster of namespaces itself: how fast it is there, that two do not get in each other's way,
and that nothing of it is left, however it ends.

It brings clusters up and down, so it is run before its worker has one.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.cluster import __main__ as cluster
from e2e.cluster import kind, processes
from e2e.cluster.leftovers import daemons, in_nodes, leftovers
from e2e.cluster.places import BRIDGE, REPOSITORY, STATE
from e2e.cluster.running import running
from e2e.cluster.say import ClusterError, run

pytestmark = [
    pytest.mark.skipif(
        os.environ.get("HOLDFAST_KEEP") == "1",
        reason="brings clusters up and down, and HOLDFAST_KEEP=1 keeps the one that is up",
    ),
    pytest.mark.xdist_group("cluster"),
    pytest.mark.timeout(400),
]
UP_SECONDS = 60.0
VERB = [sys.executable, "-m", "e2e.cluster"]


@pytest.fixture(autouse=True)
def tidy() -> Iterator[None]:
    """In place of the one that wants a cluster for every test."""
    if kind.engine() is not None:
        pytest.skip(
            "with Docker or Podman the cluster is made by kind, and these are about the one without"
        )
    if STATE.exists():
        pytest.fail("a cluster is up; this does not run beside one")
    assert not leftovers(), "somebody left something before"
    yield
    cluster.down()


def begun(*verb: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([*VERB, *verb], cwd=REPOSITORY)


def until_something_runs() -> None:
    give_up = time.monotonic() + UP_SECONDS
    while not (list(daemons()) and list(in_nodes())):
        assert time.monotonic() < give_up
        time.sleep(0.05)


def test_killed_on_the_way_up() -> None:
    process = begun("up")
    until_something_runs()
    process.kill()
    process.wait()
    cluster.down()
    assert leftovers() == []


def test_a_run_that_is_killed_takes_its_cluster_along() -> None:
    script = (
        "import os, time; from e2e.cluster import __main__ as c; c.up(os.getpid()); time.sleep(600)"
    )
    process = subprocess.Popen([sys.executable, "-c", script], cwd=REPOSITORY)
    try:
        until_something_runs()
        with pytest.raises(ClusterError, match="test run"):
            cluster.up()
    finally:
        process.kill()
        process.wait()
    give_up = time.monotonic() + 60.0
    while left := leftovers():
        assert time.monotonic() < give_up, left
        time.sleep(0.2)


def test_what_somebody_else_made_stays() -> None:
    run("ip", "link", "add", BRIDGE, "type", "bridge")
    try:
        with pytest.raises(ClusterError, match=f"in the way.*\n.*interface {BRIDGE}"):
            cluster.up()
        cluster.down()
        assert Path(f"/sys/class/net/{BRIDGE}").exists()
    finally:
        run("ip", "link", "del", BRIDGE)


def test_two_at_once_make_one_that_is_kept_comes_back_and_goes_without_a_trace() -> None:
    both = [begun("up"), begun("up")]
    assert [process.wait(300) for process in both] == [0, 0]
    assert running().healthy()
    before = {name: processes.pid_of(name) for name in processes.names()}
    cluster.up()
    assert before == {name: processes.pid_of(name) for name in processes.names()}
    crash()
    assert leftovers()
    cluster.up()
    assert running().healthy()
    cluster.down()
    assert leftovers() == []
    cluster.down()


def crash() -> None:
    """There are records, cgroups, interfaces, namespaces, and nothing runs."""
    for name in processes.names():
        processes.stop(name, signal.SIGKILL)
        (STATE / "pids" / name).write_text('{"pid": 1, "started": 0, "boot": "another"}')
