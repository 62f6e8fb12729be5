"""A pod that is to go: hold puts its SIGTERM off, and what the Session says decides for how long.
A real sidecar, a real hold and a real command."""

from __future__ import annotations

import os
import signal
import threading
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from api_kit import OWNER, Fault, Pod, Request
from gateway_kit import until
from holdfast_sidecar.kube import Answer
from holdfast_sidecar.leaving import Word, heeded, read

from .moving import DEAF, kill, seal, stay
from .test_pod import COUNT

PATH = "/apis/holdfast.dev/v1alpha1/namespaces/ns/sessions/it"
LINGER = ("--linger", "120000")
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def session(uid: str = OWNER, **parts: dict[str, Any]) -> dict[str, Any]:
    """As the API has it, with more `metadata`, `spec` and `status`."""
    meta = {"name": "it", "namespace": "ns", "uid": uid, **parts.get("metadata", {})}
    spec, status = parts.get("spec", {}), parts.get("status", {})
    return {"kind": "Session", "metadata": meta, "spec": spec, "status": status}


def leaving(seconds: float, epoch: int = 3) -> dict[str, Any]:
    at = datetime.now(UTC) + timedelta(seconds=seconds)
    told = {"epoch": epoch, "until": at.isoformat(timespec="seconds").replace("+00:00", "Z")}
    return session(status={"phase": "Running", "leaving": told})


# -- what is read, and what follows ---------------------------------------------------------------

SAID = {"epoch": 3, "until": "2026-01-02T03:04:05Z"}


@pytest.mark.parametrize(
    ("code", "body", "word"),
    [
        (200, session(), Word()),
        (200, session(status={"leaving": SAID}), Word(until=NOW.timestamp())),
        (200, session(status={"leaving": {**SAID, "epoch": 2}}), Word()),
        (200, session(status={"leaving": {**SAID, "until": "2026-01-02T03:04:05"}}), Word()),
        (200, session(status={"leaving": {**SAID, "until": "soon"}}), Word()),
        (200, session(status={"leaving": {**SAID, "until": 7}}), Word()),
        (200, session(status={"leaving": "x"}), Word()),
        (200, session(spec={"ended": True}, status={"leaving": SAID}), Word(ends=True)),
        (200, session(metadata={"deletionTimestamp": "x"}), Word(ends=True)),
        (200, session(status={"phase": "Ended"}), Word(ends=True)),
        (200, session(status={"phase": "Failed"}), Word(ends=True)),
        (200, session(uid="another", status={"leaving": SAID}), Word(ends=True)),
        (404, {}, Word(ends=True)),
        (403, {}, None),
        (500, {}, None),
        (200, {}, None),
        (200, {"metadata": {"name": "other"}}, None),
    ],
)
def test_what_the_session_says(code: int, body: dict[str, Any], word: Word | None) -> None:
    assert read(Answer(code, body), PATH, OWNER, 3) == word


@pytest.mark.parametrize(
    ("word", "parked", "since", "heed"),
    [
        (Word(), False, 2.9, False),
        (Word(), False, 3.0, True),
        (Word(), True, 100.0, False),
        (Word(until=50.0), False, 100.0, False),
        (Word(until=49.0), False, 0.0, True),
        (Word(until=49.0), True, 100.0, False),
        (Word(ends=True), False, 0.0, True),
        (Word(ends=True), True, 0.0, True),
    ],
)
def test_when_it_is_heeded(word: Word, parked: bool, since: float, heed: bool) -> None:
    assert bool(heeded(word, parked, since, wall=49.5)) == heed


# -- the real ones --------------------------------------------------------------------------------


@pytest.fixture
def pod(source: Pod) -> Pod:
    return source


def go(pod: Pod) -> float:
    """As kubelet tells it."""
    os.kill(pod.hold_pid, signal.SIGTERM)
    return time.monotonic()


def runs(pod: Pod, session: dict[str, Any] | None) -> None:
    if session is not None:
        pod.api.put(session, PATH)
    pod.start("sh", "-c", COUNT, options=LINGER)
    pod.counting()


def looks(pod: Pod) -> int:
    return sum(request.path == PATH for request in pod.api.requests)


def test_nobody_is_asked_before_it_is_to_go(pod: Pod) -> None:
    runs(pod, session())
    assert looks(pod) == 0


def test_while_it_is_being_moved_it_goes_on_and_then_it_is_heeded(pod: Pod) -> None:
    runs(pod, leaving(600))
    began = go(pod)
    while time.monotonic() < began + 4:
        pod.counting()
    assert looks(pod) >= 4
    assert "exit" not in pod.api.notes()
    pod.api.put(session(), PATH)  # nobody moves it after all
    found = pod.exit_note()
    assert (found["cause"], found["signal"]) == ("terminated", signal.SIGHUP)
    pod.hold_goes()


@pytest.mark.timed
def test_without_a_word_it_is_heeded_soon(pod: Pod) -> None:
    runs(pod, leaving(600, epoch=2))
    began = go(pod)
    until(lambda: pod.status()["exited"], "the end")
    assert 3 <= time.monotonic() - began < 5
    assert pod.exit_note()["cause"] == "terminated"


def refused(request: Request) -> Fault | None:
    return Fault(code=403) if request.path == PATH else None


@pytest.mark.timed
def test_one_that_may_not_read_its_session_heeds_it_soon(pod: Pod) -> None:
    pod.api.choose = refused
    runs(pod, leaving(600))
    began = go(pod)
    until(lambda: pod.status()["exited"], "the end")
    assert 3 <= time.monotonic() - began < 5
    assert pod.exit_note()["cause"] == "terminated"


ENDS = {
    "ended": session(spec={"ended": True}),
    "deleted": session(metadata={"deletionTimestamp": "2026-01-02T03:04:05Z"}),
    "gone": None,
    "another": session(uid="another"),
}


@pytest.mark.timed
@pytest.mark.parametrize("how", ENDS)
def test_one_that_is_to_end_ends_at_once(pod: Pod, how: str) -> None:
    runs(pod, ENDS[how])
    began = go(pod)
    until(lambda: pod.status()["exited"], "the end")
    assert time.monotonic() - began < 1.5
    assert pod.exit_note()["cause"] == "terminated"


@pytest.mark.timed
def test_its_time_is_up_also_where_nobody_answers(pod: Pod) -> None:
    runs(pod, None)
    pod.api.put(leaving(7), PATH)
    began = go(pod)
    until(lambda: looks(pod) >= 2, "a look")
    pod.api.choose = lambda request: Fault(reset=True) if request.path == PATH else None
    until(lambda: pod.status()["exited"], "the end")
    assert 5.5 <= time.monotonic() - began < 9
    assert pod.exit_note()["cause"] == "terminated"


def test_a_look_that_hangs_holds_up_no_renewal(pod: Pod) -> None:
    runs(pod, leaving(600))
    go(pod)
    until(lambda: looks(pod) >= 2, "a look")
    answered = threading.Event()
    pod.api.choose = lambda request: Fault(hang=answered) if request.path == PATH else None
    try:
        for _ in range(2):
            pod.renewed_after(len(pod.api.requests))
        pod.counting()
    finally:
        answered.set()


def test_what_stands_still_for_a_move_is_not_told_before_it_stays(pod: Pod) -> None:
    pod.api.put(session(), PATH)
    pod.start("sh", "-c", DEAF, options=LINGER)
    until((pod.folder / "counter").exists, "the command")
    seal(pod)
    began = go(pod)
    until(lambda: looks(pod) >= 2, "a look")
    time.sleep(max(0.0, began + 4 - time.monotonic()))
    assert not pod.status()["exited"]
    stay(pod)
    assert pod.exit_note()["cause"] == "terminated"


def test_once_it_was_told_nobody_moves_it(pod: Pod) -> None:
    stubborn = "trap '' HUP TERM; touch $COUNTER; while :; do sleep 1; done"
    pod.api.put(session(spec={"ended": True}), PATH)
    pod.start("sh", "-c", stubborn, options=(*LINGER, "--term-grace", "4000"))
    until((pod.folder / "counter").exists, "the command")
    go(pod)
    pod.said("the command is told to end")
    assert not pod.status()["exited"]
    assert pod.agent("park", to="target-uid")["code"] == "ended"
    assert pod.agent("park", keep=True)["code"] == "ended"


def test_the_next_sidecar_knows_of_it(pod: Pod) -> None:
    runs(pod, leaving(600))
    go(pod)
    until(lambda: looks(pod) >= 1, "a look")
    kill(pod)
    pod.api.put(session(), PATH)
    pod.start_sidecar()
    assert pod.exit_note()["cause"] == "terminated"


def test_killed_for_not_having_gone_in_time_it_was_told_to_go(pod: Pod) -> None:
    """Else a session whose pod's grace was shortened would count as ended."""
    runs(pod, leaving(600))
    go(pod)
    until(lambda: looks(pod) >= 1, "a look")
    os.kill(pod.hold_pid, signal.SIGKILL)
    found = pod.exit_note()
    assert (found["cause"], found["signal"]) == ("terminated", signal.SIGKILL)


def test_one_that_was_moved_away_says_nothing_of_an_end(pod: Pod) -> None:
    pod.api.put(leaving(600), PATH)
    pod.start("sh", "-c", DEAF, options=LINGER)
    until((pod.folder / "counter").exists, "the command")
    go(pod)
    until(lambda: looks(pod) >= 1, "a look")
    seal(pod)
    taken = pod.api.get()
    taken["metadata"]["annotations"]["holdfast.dev/epoch"] = "4"
    taken["spec"]["holderIdentity"] = "target-uid/x"
    pod.api.put(taken)
    pod.hold_goes()
    assert "exit" not in pod.api.notes()
    assert pod.api.get()["spec"]["holderIdentity"] == "target-uid/x"
