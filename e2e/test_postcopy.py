"""A session that asked for post-copy moves before its memory does: how short that makes the freeze,
that nothing of it is lost on the way, and what becomes of it if its former node is.
"""

from __future__ import annotations

import itertools
import os
import signal
from pathlib import Path
from typing import Any, Final

import pytest

from e2e.cluster import faults
from e2e.cluster.places import SHARED
from e2e.lab import LEASE, Lab, Session, until
from e2e.movers import (
    MOVED_WITHIN,
    Moments,
    agent_pid,
    ask,
    await_agents,
    check,
    checkpoint,
    gone,
    longest_gap,
    move,
    other,
    phase,
    shared,
)
from e2e.test_store import KEPT_WITHIN, by_epoch, kept

pytestmark = pytest.mark.long

BUILT_WITHIN: Final = 120.0
ALL_WITHIN: Final = 120.0
FOLLOWS: Final = {"memory": "PostCopy"}

# `movers.WALKER` with a heap: its checksum goes into a file when it is built, and again whenever
# somebody asks.
HEAVY: Final = """
import hashlib, os, sys, time
path, every = os.environ["HOLDFAST_EPOCH_FILE"], float(sys.argv[2])
size, block = int(sys.argv[3]) << 20, os.urandom(1 << 20)
heap = bytearray(size)
for at in range(0, size, 1 << 20):
    heap[at:at + (1 << 20)] = block
    heap[at:at + 8] = at.to_bytes(8, "little")
def told():
    with open(sys.argv[1] + ".sum", "a") as sums:
        sums.write(hashlib.sha256(heap).hexdigest() + "\\n")
told()
store = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
n, since = 0, time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
while True:
    n += 1
    with open(path) as now:
        epoch = now.read().strip()
    at = time.time() - since
    os.write(store, f"{epoch} {n} {at:.4f}\\n".encode())
    if os.path.exists(sys.argv[1] + ".asked"):
        os.unlink(sys.argv[1] + ".asked")
        told()
    time.sleep(every)
"""


def heavy(lab: Lab, name: str, megabytes: int, every: float = 0.01, **options: Any) -> Session:
    for suffix in ("", ".sum", ".asked"):
        Path(f"{SHARED / name}{suffix}").unlink(missing_ok=True)
    session = lab.session(
        name, "python3", "-c", HEAVY, f"/shared/{name}", str(every), str(megabytes),
        **shared(), **options,
    )  # fmt: skip
    until(lambda: len(session.marks()) > 3, f"{name} counts", BUILT_WITHIN)
    return session


def sums(session: Session) -> list[str]:
    return Path(f"{SHARED / session.name}.sum").read_text().split()


def is_whole(session: Session) -> None:
    """Every byte of its heap is what it was."""
    before = len(sums(session))
    Path(f"{SHARED / session.name}.asked").touch()
    until(lambda: len(sums(session)) > before, f"{session.name} adds up", BUILT_WITHIN)
    assert len(set(sums(session))) == 1


@pytest.mark.timeout(400)
def test_a_large_session_is_hardly_frozen_and_whole(lab: Lab) -> None:
    session = heavy(lab, "heavy", 1024, spec={"move": FOLLOWS})
    move(session, ALL_WITHIN)
    assert checkpoint(session)["spec"]["memory"] == "PostCopy"
    until(lambda: phase(session) == "Complete", "its memory is all there", ALL_WITHIN)
    session.writes_on()
    marks = check(session, 2)
    lab.report["postcopy_freeze_1gib_seconds"] = round(longest_gap(marks), 3)
    assert checkpoint(session)["status"]["sizeBytes"] < 512 << 20
    is_whole(session)
    gone(lab, "heavy-1")
    assert session.condition("Fresh")["reason"] == "Moved"


@pytest.mark.faults(31)
@pytest.mark.timeout(500)
def test_a_source_that_dies_before_the_last_page_costs_what_came_after_the_checkpoint(
    lab: Lab,
) -> None:
    spec = {"move": FOLLOWS, "checkpoints": {"everySeconds": 30}}
    session = heavy(lab, "torn", 768, 0.05, node=lab.away(), spec=spec)
    node = session.node
    until(lambda: kept(session), "it is stored", KEPT_WITHIN + 60)
    agent = agent_pid(lab, node)
    with Moments(session) as moments:
        ask(session)
        moments.wait("committed", MOVED_WITHIN + KEPT_WITHIN)
        os.kill(agent, signal.SIGSTOP)  # no page leaves the node from here on
    assert phase(session) in ("Dumping", "Transferring"), "its memory was faster"
    with faults.node_down(node):
        session.await_epoch(3, LEASE + KEPT_WITHIN)
        session.writes_on()
        assert session.node == other(node)
        restored = session.condition("Restored")
        assert (restored["status"], restored["reason"]) == ("True", "MemoryLost"), restored
        assert any(item["metadata"]["name"] in restored["message"] for item in kept(session))
        assert any(event.startswith("Restored") for event in session.events())
        spans = by_epoch(session.marks())
        assert spans[3][0].number <= spans[1][-1].number, "nothing after the checkpoint was lost"
        for before, after in itertools.pairwise(spans[3]):
            assert after.number == before.number + 1
        is_whole(session)
    lab.await_nodes()
    await_agents(lab)
