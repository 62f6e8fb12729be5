"""Sidecars are kept running: the decision alone, and with real processes that are killed."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import socket
import time
from pathlib import Path

import pytest

from gateway_kit import Place, listener_pid, until
from holdfast_gateway.folders import Folder
from holdfast_gateway.supervise import (
    BACKOFF,
    LOG_LIMIT,
    Leave,
    Observed,
    Start,
    Supervisor,
    Wait,
    decide,
)
from holdfast_wire.ids import session_name


def seen(
    *,
    accepts: bool = True,
    held: bool = False,
    runs: bool = False,
    waking: bool = False,
    deaths: int = 0,
) -> Observed:
    return Observed(accepts, held, runs, waking, deaths, last_death=100.0)


@pytest.mark.parametrize("accepts", [True, False])
@pytest.mark.parametrize("held", [True, False])
@pytest.mark.parametrize("runs", [True, False])
def test_one_is_started_only_for_a_live_session_without_one(
    accepts: bool, held: bool, runs: bool
) -> None:
    step = decide(seen(accepts=accepts, held=held, runs=runs), now=1000.0)
    assert step == (Start() if accepts and not held and not runs else Leave())


def test_a_session_that_is_being_woken_has_none_yet() -> None:
    assert decide(seen(waking=True), now=1000.0) == Leave()


@pytest.mark.parametrize("mark", ["suspending", "waking"])
def test_who_was_killed_over_it_left_a_mark(tmp_path: Path, mark: str) -> None:
    folder = Folder(session_name("build"), tmp_path)
    assert folder.unsettled() is None
    path = tmp_path / mark
    path.write_text("/store/build")
    with path.open() as worker:
        fcntl.flock(worker, fcntl.LOCK_EX)
        assert folder.unsettled() is None
        assert folder.waking() is (mark == "waking")
    assert folder.unsettled() == Path("/store/build")


def test_a_sidecar_that_ran_is_replaced_at_once() -> None:
    assert decide(seen(deaths=0), now=100.0) == Start()


def test_quick_deaths_are_answered_slower_and_slower() -> None:
    for deaths, wait in enumerate([*BACKOFF, BACKOFF[-1]], start=1):
        assert decide(seen(deaths=deaths), now=100.0 + wait) == Start()
        if wait:
            assert decide(seen(deaths=deaths), now=99.99 + wait) == Wait(100.0 + wait)


def new_sidecar(place: Place, name: str, old: int) -> int:
    path = place.folder(name) / "sidecar.sock"

    def look() -> int | None:
        pid = listener_pid(path, socket.SOCK_STREAM)
        return pid if pid != old else None

    pid = until(look, "another sidecar")
    place.sidecars.add(pid)
    return pid


def started(place: Place) -> list[str]:
    return [line for line in place.log().splitlines() if "sidecar_started" in line]


@pytest.mark.timed
def test_a_killed_sidecar_is_replaced_within_a_tenth_of_a_second(place: Place) -> None:
    place.session("build")
    place.start()
    old = place.sidecar("build")
    time.sleep(2.1)  # it lived: not a quick death
    count = len(started(place))
    os.kill(old, signal.SIGKILL)
    killed = time.monotonic()
    until(lambda: len(started(place)) > count, "a new start", 1)
    assert time.monotonic() - killed < 0.1
    assert new_sidecar(place, "build", old) != old
    assert place.get("/api/v1/sessions/build").json["state"]["activity"] != "unavailable"


def test_a_request_outlasts_a_killed_sidecar(place: Place) -> None:
    place.session("build")
    place.start()
    os.kill(place.sidecar("build"), signal.SIGKILL)
    answer = place.get("/api/v1/sessions/build/screen")
    assert answer.status == 200, answer.body


def test_an_orphan_of_an_earlier_gateway_is_watched_too(place: Place) -> None:
    place.session("build")
    place.start()
    orphan = place.sidecar("build")
    place.stop(signal.SIGKILL)
    place.start()
    assert len(started(place)) == 1, "no second one beside it"
    os.kill(orphan, signal.SIGKILL)
    assert new_sidecar(place, "build", orphan) != orphan


def test_a_new_session_is_found_and_at_once_when_poked(place: Place) -> None:
    place.start()
    place.session("late")
    place.post("/api/v1/rescan")
    until(lambda: started(place), "the poke to work", 1)
    place.sidecar("late")


def test_a_sidecar_that_cannot_run_does_not_spin(place: Place) -> None:
    folder = place.session("broken")
    (folder / "session.json").write_text("{")
    place.start()
    until(lambda: len(started(place)) >= 3, "some attempts", 10)
    count = len(started(place))
    time.sleep(2.5)
    assert len(started(place)) - count <= 2
    assert place.get("/healthz", token=None).status == 200


def test_the_sidecars_log_is_bounded(place: Place) -> None:
    folder = place.session("build")
    log = folder / "sidecar.log"
    log.write_bytes(b"x" * (LOG_LIMIT + 1))
    place.start()
    until(lambda: log.stat().st_size < LOG_LIMIT, "the log to be cut")


def test_a_dead_session_gets_no_sidecar(place: Place) -> None:
    place.session("dead", hold=False)
    place.start()
    time.sleep(0.3)
    assert started(place) == []


def test_descriptors_do_not_leak_into_sidecars(place: Place) -> None:
    place.session("build")
    place.start()
    pid = place.sidecar("build")
    lock = str(place.state / "gateway.lock")
    links = [str(f.readlink()) for f in Path(f"/proc/{pid}/fd").iterdir() if f.is_symlink()]
    assert lock not in links
    assert os.getsid(pid) == pid, "a session of its own: the gateway's terminal cannot end it"


async def test_it_ends_though_something_happened_at_that_moment(tmp_path: Path) -> None:
    """A client that leaves as the gateway stops."""
    supervisor = Supervisor(tmp_path)
    running = asyncio.create_task(supervisor.run())
    await asyncio.sleep(0.01)
    supervisor.poke()
    await asyncio.sleep(0)  # what waits for that has been told, and has not yet gone on
    running.cancel()
    done, _ = await asyncio.wait([running], timeout=5)
    assert done
