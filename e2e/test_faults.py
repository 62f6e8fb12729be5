"""The faults of the design, each on the real cluster, each with the oracle: a counter with its
epoch, written outside the pod. Numbers are those of docs/faults.md.

Clock rates (9) and stale watches (12) cannot be made here; the lease checker has them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime

import pytest

from e2e.cluster import faults
from e2e.cluster.places import KUBECONFIG, REPOSITORY
from e2e.cluster.running import running
from e2e.lab import (
    FROZEN_BY,
    LEASE,
    TIMING,
    Lab,
    Session,
    boottime,
    container_pids,
    sidecar_pid,
    until,
)
from e2e.viewer import Viewer, marks_in

# Nothing here may take longer than this to notice what has already happened.
SOON = 5.0
# A lost incarnation is replaced after the Lease's duration; starting a pod takes some more.
REPLACED_WITHIN = LEASE + 30.0


def other(node: str) -> str:
    return next(name for name in running().nodes if name != node)


def pod_uid(session: Session) -> str:
    return str(session.lab.get("pod", session.pod)["metadata"]["uid"])


def last_write(session: Session, epoch: int) -> float:
    return max(mark.at for mark in session.marks() if mark.epoch == epoch)


def first_write(session: Session, epoch: int) -> float:
    return min(mark.at for mark in session.marks() if mark.epoch == epoch)


@pytest.mark.faults(1, 2, 3)
def test_the_api_is_away_for_ten_leases(lab: Lab) -> None:
    """Frozen in time, never killed, and on from where they were when it comes back."""
    busy, idle = lab.counting("busy"), lab.session("idle", "bash")
    idle.type("x=remembered")
    uids = {name: pod_uid(session) for name, session in (("busy", busy), ("idle", idle))}
    pids = {pid for uid in uids.values() for pid in container_pids(uid)}
    with faults.api_down():
        down_at = boottime()
        until(lambda: busy.frozen(uids["busy"]), "the busy one is frozen", FROZEN_BY + SOON)
        until(lambda: idle.frozen(uids["idle"]), "the idle one is frozen", FROZEN_BY + SOON)
        frozen_for = last_write(busy, 1) - down_at
        assert frozen_for <= FROZEN_BY, f"it wrote {frozen_for:.1f} s after the API was gone"
        lab.report["api_outage_last_write_seconds"] = round(frozen_for, 2)
        count = len(busy.marks())
        while boottime() < down_at + 10 * LEASE:
            time.sleep(1)
            assert busy.frozen(uids["busy"])
            assert idle.frozen(uids["idle"])
        assert len(busy.marks()) == count
    busy.writes_on()
    idle.type("echo it is $x")
    idle.await_text("it is remembered")
    assert (busy.epoch, idle.epoch) == (1, 1)
    assert pids <= {pid for uid in uids.values() for pid in container_pids(uid)}
    busy.check()
    for node in running().nodes:  # each waits a minute longer by now before it asks the API again
        faults.restart_kubelet(node)


@pytest.mark.faults(4)
def test_a_node_that_loses_the_api_is_fenced_and_replaced(lab: Lab) -> None:
    session = lab.counting("cut", node=lab.away())
    uid, node = pod_uid(session), session.node
    with Viewer(lab, session.pod) as viewer, faults.cut_from_api(node):
        cut_at = boottime()
        until(lambda: session.frozen(uid), "frozen", FROZEN_BY + SOON)
        assert last_write(session, 1) - cut_at <= FROZEN_BY
        time.sleep(1)  # what was printed before is still on its way through kubectl
        seen = viewer.text()
        session.await_epoch(2, REPLACED_WITHIN)
        assert session.node == other(node)
        still = session.frozen(uid) or not session.processes(uid)
        assert still, "the old one must not run while it cannot know"
        assert viewer.text() == seen, "a frozen incarnation printed something"
        until(lambda: len([m for m in session.marks() if m.epoch == 2]) > 3, "the new one counts")
    until(lambda: not session.processes(uid), "the old one is killed", PATIENCE_AFTER_HEAL)
    assert session.condition("Fresh")["status"] == "True"
    session.check()


PATIENCE_AFTER_HEAL = 60.0


@pytest.mark.faults(5)
def test_a_node_that_only_loses_its_clients_keeps_its_session(lab: Lab) -> None:
    session = lab.counting("unseen", node=lab.away())
    with Viewer(lab, session.pod) as before:
        until(lambda: before.numbers(1), "something seen")
        with faults.cut_from_clients(session.node):
            time.sleep(2 * LEASE)
            assert session.epoch == 1
            session.writes_on()
    seen = before.text()
    with Viewer(lab, session.pod, resume=before.place()) as after:
        until(lambda: len(after.numbers(1)) > 50, "more seen")
        assert after.resumed
        assert not after.gaps
        numbers = marks_in(seen + after.text(), 1)
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers))), "a gap or a double"
    assert session.epoch == 1
    session.check()


@pytest.mark.faults(6)
def test_a_stopped_sidecar_cannot_hold_up_the_fence(lab: Lab) -> None:
    session = lab.counting("stopped")
    uid = pod_uid(session)
    with faults.stopped(sidecar_pid(uid)):
        stopped_at = boottime()
        until(lambda: session.frozen(uid), "frozen by hold", FROZEN_BY + SOON)
        late = last_write(session, 1) - stopped_at
        assert late <= FROZEN_BY
    # Continued before the Lease could be taken over: it goes on.
    session.writes_on()
    assert session.epoch == 1
    session.check()


@pytest.mark.faults(7)
def test_a_paused_node_wakes_up_after_it_was_replaced(lab: Lab) -> None:
    session = lab.counting("asleep", node=lab.away())
    uid, node = pod_uid(session), session.node
    with faults.paused(node):
        session.await_epoch(2, REPLACED_WITHIN)
        until(lambda: any(m.epoch == 2 for m in session.marks()), "the new one counts")
        asleep = len([m for m in session.marks() if m.epoch == 1])
    until(lambda: not session.processes(uid), "the old one is killed", PATIENCE_AFTER_HEAL)
    marks = session.marks()
    stale = len([m for m in marks if m.epoch == 1]) - asleep
    lab.report["paused_node_stale_writes_count"] = stale
    # A store that knows the epoch drops what comes below the highest it has seen. One that does
    # not, as this file, may get what a process did in the instant between waking and freezing.
    high, accepted = 0, []
    for mark in marks:
        if mark.epoch >= high:
            high = mark.epoch
            accepted.append(mark)
    assert [m.epoch for m in accepted] == sorted(m.epoch for m in accepted)
    assert len(accepted) == len(marks) - stale
    assert stale <= TIMING.freeze_takes / 0.05


@pytest.mark.faults(8)
@pytest.mark.parametrize("shift", [3600, -3600], ids=["ahead", "behind"])
def test_a_wall_clock_that_is_an_hour_off(lab: Lab, shift: int) -> None:
    """The sidecar's and the operator's, not the API server's: its tokens would all be invalid."""
    env = [
        {"name": "LD_PRELOAD", "value": "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1"},
        {"name": "FAKETIME", "value": f"{shift:+}"},
        {"name": "FAKETIME_DONT_FAKE_MONOTONIC", "value": "1"},
    ]
    lab.install(
        "upgrade",
        f"--set-json=sidecar.extraEnv={json.dumps(env)}",
        f"--set-json=operator.extraEnv={json.dumps(env)}",
    )
    try:
        session = lab.counting("clock")
        renewed = datetime.fromisoformat(lab.get("lease", "clock")["spec"]["renewTime"])
        assert abs(renewed.timestamp() - time.time() - shift) < 60, "the clock is not off at all"
        time.sleep(1.5 * LEASE)
        session.writes_on()
        uid = pod_uid(session)
        with faults.cut_from_api(session.node):
            cut_at = boottime()
            until(lambda: session.frozen(uid), "frozen", FROZEN_BY + SOON)
            assert last_write(session, 1) - cut_at <= FROZEN_BY
        session.writes_on()
        assert session.epoch == 1
        with faults.stopped(sidecar_pid(uid)):
            session.await_epoch(2, REPLACED_WITHIN)
        session.check()
    finally:
        lab.install("upgrade")


@pytest.mark.faults(9, 12)
def test_clock_rates_and_stale_watches_on_the_model() -> None:
    """Clocks of this one machine cannot be made to run fast, nor its watches be made late."""
    variants = ["usual", "shortest", "tight", "no-swap"]
    command = [sys.executable, "-m", "tests.lease", "--runs", "4000", *variants]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.faults(10)
def test_another_holder_ends_this_one_at_once(lab: Lab) -> None:
    session = lab.counting("robbed")
    uid = pod_uid(session)
    patch = '{"spec": {"holderIdentity": "somebody/else"}}'
    lab.kubectl("patch", "lease", "robbed", "--type=merge", "-p", patch)
    robbed_at = boottime()
    until(lambda: not session.processes(uid), "killed", FROZEN_BY)
    assert last_write(session, 1) - robbed_at <= TIMING.renew_every + 1.0
    session.await_epoch(2, REPLACED_WITHIN)
    assert first_write_after(session, 2) - robbed_at >= LEASE - TIMING.renew_every
    session.check()


def first_write_after(session: Session, epoch: int) -> float:
    until(lambda: any(m.epoch == epoch for m in session.marks()), f"incarnation {epoch} counts")
    return first_write(session, epoch)


@pytest.mark.faults(11)
def test_a_lost_answer_is_looked_up(lab: Lab) -> None:
    session = lab.counting("deaf")
    version = lab.get("lease", "deaf")["metadata"]["resourceVersion"]
    with faults.no_answers_from_api(session.node):
        time.sleep(TIMING.renew_every + TIMING.request_timeout + 0.5)
        # It was done all the same:
        assert lab.get("lease", "deaf")["metadata"]["resourceVersion"] != version
    session.writes_on()
    time.sleep(LEASE)
    assert session.epoch == 1
    session.check()
    log = lab.kubectl("logs", session.pod, "-c", "holdfast")
    assert "the Lease was not renewed" in log


@pytest.mark.faults(13)
def test_a_deleted_lease_fences_and_the_epoch_is_not_reset(lab: Lab) -> None:
    session = lab.counting("bereft")
    uid = pod_uid(session)
    deleted_at = boottime()
    lab.kubectl("delete", "lease", "bereft")
    until(lambda: session.frozen(uid) or not session.processes(uid), "fenced", FROZEN_BY)
    assert last_write(session, 1) - deleted_at <= TIMING.renew_every + TIMING.freeze_takes
    until(lambda: session.epoch >= 2 and session.status["phase"] == "Running", "replaced",
          2 * LEASE + 30)  # fmt: skip
    assert first_write_after(session, session.epoch) - deleted_at >= LEASE - 1.0
    session.check()


@pytest.mark.faults(14)
def test_storage_that_goes_back_in_time_is_noticed(lab: Lab) -> None:
    session = lab.counting("past")
    faults.save_storage("past")
    session.writes_on()
    lab.kubectl("delete", "pod", session.pod, "--wait=false")
    session.await_epoch(2, REPLACED_WITHIN)
    uid = pod_uid(session)
    faults.restore_storage("past")
    quarantined = until(
        lambda: session.condition("Quarantined").get("status") == "True" and session.condition(
            "Quarantined"), "quarantined")  # fmt: skip
    assert quarantined, "said in a condition"
    time.sleep(LEASE)
    assert not [m for m in session.marks() if m.epoch > 2]
    assert session.frozen(uid) or not session.processes(uid)
    session.check()
    # A person has looked, and lets it go on above everything that ever ran.
    lab.kubectl("annotate", "session", "past", "holdfast.dev/accept-epoch=2")
    until(lambda: any(m.epoch == 3 for m in session.marks()), "it goes on at 3", REPLACED_WITHIN)
    session.check()


@contextmanager
def second_operator() -> Iterator[int]:
    """Leads by another Lease than the first, so both act."""
    env = {
        **os.environ,
        "KUBECONFIG": str(KUBECONFIG),
        "HOLDFAST_NAMESPACE": "default",
        "HOLDFAST_POD_NAME": "second",
        "HOLDFAST_PORT": "18080",
        "HOLDFAST_IMAGE": "holdfast.test/holdfast:e2e",
        "HOLDFAST_IMAGE_PULL_POLICY": "Never",
    }
    program = REPOSITORY / ".venv" / "bin" / "holdfast-operator"
    log = (REPOSITORY / "build" / "e2e" / "second-operator.log").open("wb")
    process = subprocess.Popen([str(program)], env=env, stdout=log, stderr=log)
    try:
        yield process.pid
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        log.close()


@pytest.mark.faults(15)
def test_two_operators_make_one_pod(lab: Lab) -> None:
    with second_operator():
        until(lambda: leads(lab), "the second one leads", 30)
        sessions = [lab.counting(f"both-{n}") for n in range(3)]
        for session in sessions:
            lab.kubectl("delete", "pod", session.pod, "--wait=false")
        for session in sessions:
            session.await_epoch(2, REPLACED_WITHIN)
        for session in sessions:
            assert session.epoch == 2, "each lost pod was replaced once"
            session.writes_on()
            session.check()


def leads(lab: Lab) -> bool:
    leases = lab.get("leases", "-n", "default")["items"]
    return any("second" in str(lease["spec"].get("holderIdentity")) for lease in leases)


@pytest.mark.faults(16)
def test_a_pod_deleted_by_force_is_not_replaced_before_its_lease_ends(lab: Lab) -> None:
    session = lab.counting("forced", node=lab.away())
    uid = pod_uid(session)
    with faults.cut_from_api(session.node):
        lab.kubectl("delete", "pod", session.pod, "--force", "--grace-period=0")
        forced_at = boottime()
        session.await_epoch(2, REPLACED_WITHIN)
        assert first_write_after(session, 2) - forced_at >= LEASE - TIMING.renew_every - 1.0
        assert session.frozen(uid) or not session.processes(uid)
    until(lambda: not session.processes(uid), "the old one is killed", PATIENCE_AFTER_HEAL)
    session.check()


@pytest.mark.faults(17)
def test_a_node_that_reboots_fast(lab: Lab) -> None:
    session = lab.counting("rebooted", node=lab.away())
    node = session.node
    faults.reboot(node)
    session.await_epoch(2, REPLACED_WITHIN)
    session.writes_on()
    marks = session.check()
    assert {mark.epoch for mark in marks} == {1, 2}
    assert "StartedFresh" in " ".join(session.events())
    session.await_text("Incarnation 1 of this session was lost")
    until(lambda: node_ready(lab, node), "the node is back")


def node_ready(lab: Lab, node: str) -> bool:
    conditions = lab.get("node", node)["status"]["conditions"]
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
