"""Checkpoints that are kept: taken while a session runs on, and what they are good for when its
node is lost, when it is suspended, and when it is forked.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any

import pytest

from client_kit import Screen
from e2e.balancer import spread
from e2e.cluster import faults
from e2e.cluster.places import SHARED
from e2e.lab import LEASE, Lab, Mark, Session, until
from e2e.movers import await_agents, check, gone, longest_gap, other, shared, walking

OFTEN = {"checkpoints": {"everySeconds": 30}}
KEPT_WITHIN = 75.0
WOKEN_WITHIN = 40.0
# Memory and a file in step: before each number the file must be, from its first byte to its last,
# what memory says it is. A write takes long enough to be in the middle of one. The marks are those
# of `movers.WALKER`; one out of step is its last.
PAIR = """
import os, sys, time
path, n, size = os.environ["HOLDFAST_EPOCH_FILE"], 0, 1 << 18
store = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
pair = os.open("/root/pair", os.O_RDWR | os.O_CREAT)
os.pwrite(pair, b"%08d" % n * size, 0)
while os.pread(pair, 8 * size, 0) == b"%08d" % n * size:
    n += 1
    os.pwrite(pair, b"%08d" % n * size, 0)
    with open(path) as now:
        epoch = now.read().strip()
    at = time.clock_gettime(time.CLOCK_BOOTTIME)
    os.write(store, f"{epoch} {n} {at:.4f}\\n".encode())
os.write(store, b"0 0 0\\n")
"""
REPL = ("python3", "-q", "-i", "-c", "import sys; sys.ps1 = 'ready> '")


def kept(session: Session) -> list[dict[str, Any]]:
    """Its complete checkpoints, oldest first."""
    items = session.lab.get("checkpoints")["items"]
    found = [
        item for item in items
        if item["spec"]["sessionName"] == session.name and "store" in item["spec"]
        and (item.get("status") or {}).get("phase") == "Complete"
    ]  # fmt: skip
    return sorted(found, key=lambda item: str(item["status"]["completedAt"]))


def await_kept(session: Session, count: int = 1) -> dict[str, Any]:
    until(lambda: len(kept(session)) >= count, f"{session.name} is stored", KEPT_WITHIN)
    return kept(session)[-1]


def by_epoch(marks: list[Mark]) -> dict[int, list[Mark]]:
    return {epoch: list(found) for epoch, found in itertools.groupby(marks, lambda m: m.epoch)}


@pytest.mark.timeout(240)
@pytest.mark.long
def test_a_session_is_stored_and_runs_on(lab: Lab) -> None:
    session = walking(lab, "stored", 0.01, spec=OFTEN)
    node = session.node
    first = await_kept(session)
    await_kept(session, 2)
    assert (session.epoch, session.node) == (1, node)
    marks = check(session, 1)
    lab.report["checkpoint_freeze_small_seconds"] = first["status"]["freezeSeconds"]
    assert longest_gap(marks) < 5
    assert first["status"]["location"] == f"peer://{other(node)}"
    assert session.status["lastCheckpoint"]["name"] == kept(session)[-1]["metadata"]["name"]


@pytest.mark.faults(34, 35)
@pytest.mark.timeout(300)
def test_a_lost_node_costs_what_came_after_the_checkpoint(lab: Lab) -> None:
    spread(lab)  # one of them is lost, too
    (SHARED / "survivor").unlink(missing_ok=True)
    command = ("python3", "-c", PAIR, "/shared/survivor")
    session = lab.session("survivor", *command, **shared(), node=lab.away(), spec=OFTEN)
    node = session.node
    taken = await_kept(session)
    count = len(session.marks())
    until(lambda: len(session.marks()) > count + 20, "there is something to lose")
    killed = time.monotonic()
    with faults.node_down(node):
        session.await_epoch(2, LEASE + KEPT_WITHIN)
        took = time.monotonic() - killed
        lab.report["host_loss_to_ready_seconds"] = round(took, 3)
        session.writes_on()
        assert session.node == other(node)
        spans = by_epoch(session.marks())
        assert list(spans) == [1, 2], "two at once, or memory and files of different moments"
        # The next number: it was stored in the very moment before the node died.
        assert spans[2][0].number <= spans[1][-1].number + 1, "more is there than was stored"
        for before, after in itertools.pairwise(spans[2]):
            assert after.number == before.number + 1
        restored = session.condition("Restored")
        assert restored["status"] == "True", restored
        assert taken["metadata"]["name"] in restored["message"]
        assert any(event.startswith("Restored") for event in session.events())
        session.await_text("Restored from the checkpoint")
    lab.await_nodes()
    await_agents(lab)
    assert took <= LEASE + 10


@pytest.mark.long
@pytest.mark.timeout(400)
def test_a_lost_node_that_had_the_operator(lab: Lab) -> None:
    spread(lab)
    node = other(lab.away())
    session = walking(lab, "orphan", node=node, spec=OFTEN)
    assert session.node == node
    await_kept(session)
    killed = time.monotonic()
    with faults.node_down(node):
        # The node is missed for 20 s, and left by the operator after 5; the sessions of a lost node
        # wait for it, and then for as long as it takes to be sure that they are lost.
        session.await_epoch(2, 25 + LEASE + KEPT_WITHIN)
        lab.report["host_and_operator_loss_to_ready_seconds"] = round(time.monotonic() - killed, 3)
        assert session.node == other(node)
        session.await_text("Restored from the checkpoint")
        assert session.condition("Restored")["status"] == "True"
    lab.await_nodes()
    await_agents(lab)
    assert [epoch for epoch, _ in itertools.groupby(session.marks(), lambda m: m.epoch)] == [1, 2]


@pytest.mark.long
@pytest.mark.timeout(240)
@pytest.mark.timed
def test_suspended_it_costs_nothing_and_goes_on_when_it_is_woken(
    lab: Lab, attach: Callable[[str], Screen]
) -> None:
    session = lab.session("sleeper", *REPL)
    session.await_text("ready>")
    session.type("heap = bytearray(b'x' * 50_000_000); kept = 6 * 7")
    session.type("open('/tmp/note', 'w').write('on paper') and print('writ' + 'ten')")
    session.await_text("written")
    pod = session.pod
    lab.holdfast("suspend", "sleeper", timeout=120)
    status = session.await_phase("Suspended")
    assert status["suspended"]["checkpoint"]
    gone(lab, pod)
    assert session.condition("Ready")["reason"] == "Suspended"
    time.sleep(2)
    assert session.status["phase"] == "Suspended", "it woke up by itself"
    began = time.monotonic()
    lab.holdfast("wake", "sleeper", "--no-wait")
    screen = attach("sleeper")
    screen.expect(rb"ready> ", WOKEN_WITHIN)
    took = time.monotonic() - began
    lab.report["wake_first_frame_seconds"] = round(took, 3)
    screen.type(b"print('still', kept, len(heap), open('/tmp/note').read())\r")
    screen.expect(rb"still 42 50000000 on paper", WOKEN_WITHIN)
    assert session.epoch == 2
    assert took <= 5


@pytest.mark.long
@pytest.mark.timeout(240)
def test_idle_it_hibernates_and_a_person_brings_it_back(lab: Lab) -> None:
    idle = {"idle": {"afterSeconds": 60, "then": "Hibernate"}}
    session = lab.session("dormouse", *REPL, spec=idle)
    session.type("kept = 6 * 7")
    session.await_phase("Suspended", 120)
    lab.holdfast("wake", "dormouse", timeout=120)
    session.await_epoch(2, WOKEN_WITHIN)
    session.type("print('still', kept)")
    session.await_text("still 42")


@pytest.mark.timeout(240)
def test_a_fork_has_what_there_was_and_goes_its_own_way(lab: Lab) -> None:
    source = lab.session("trunk", *REPL)
    source.await_text("ready>")
    source.type("kept = 6 * 7; open('/tmp/note', 'w').write('common') and print('writ' + 'ten')")
    source.await_text("written")
    lab.holdfast("fork", "trunk", "branch", timeout=150)
    branch = Session(lab, "branch")
    branch.await_ready()
    assert source.epoch == 1
    source.type("kept += 1; open('/tmp/note', 'w').write('trunk') and print('trunk', kept)")
    branch.type("kept -= 1; open('/tmp/note', 'a').write(', branch') and print('branch', kept)")
    source.await_text("trunk 43")
    branch.await_text("branch 41")
    source.type("print('reads', open('/tmp/note').read())")
    branch.type("print('reads', open('/tmp/note').read())")
    source.await_text("reads trunk")
    branch.await_text("reads common, branch")
    branch.type("import os; print('fork' + ' file', open(os.environ['HOLDFAST_FORK_FILE']).read())")
    branch.await_text('"session": "trunk"')
    branch.await_text("fork of trunk")
