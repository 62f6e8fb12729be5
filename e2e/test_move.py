"""A session leaves its node and goes on, alive, on the other: what clients see."""

from __future__ import annotations

import random
import re
import time

import pytest

from e2e.cluster import faults
from e2e.lab import Lab, until
from e2e.movers import (
    MOVED_WITHIN,
    ask,
    await_agents,
    check,
    draining,
    gone,
    longest_gap,
    move,
    other,
    walking,
)
from e2e.viewer import Viewer, again

EVERY = 0.005
RANDOM_MOVES = 40


def joined(parts: list[bytes]) -> list[tuple[int, int]]:
    """Epoch and number of each mark in the stream."""
    found = []
    for line in b"".join(parts).splitlines():
        if line.startswith(b"<") and line.endswith(b">"):
            epoch, _, number = line[1:-1].partition(b":")
            found.append((int(epoch), int(number)))
    return found


@pytest.mark.timeout(180)
@pytest.mark.timed
def test_a_client_follows_and_misses_nothing(lab: Lab) -> None:
    """Joined by seq the stream has no gap and no double; the counter in it is the oracle."""
    session = walking(lab, "followed", EVERY, node=lab.away())
    node = session.node
    with Viewer(lab, session.pod) as first:
        until(lambda: len(first.text()) > 1000, "something is seen")
        with draining(lab, node) as drain:
            until(lambda: first.ended, "the client's connection ends", MOVED_WITHIN)
            with again(lab, session, first) as second:
                until(lambda: len(second.text()) > 2000, "more is seen")
                drain.succeeds()
    assert not first.gaps + second.gaps
    marks = joined([first.text(), second.text()])
    numbers = [number for _, number in marks]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers))), "a gap or a double"
    assert {epoch for epoch, _ in marks} == {1, 2}
    assert second.first_at is not None
    lab.report["move_stream_pause_seconds"] = round(second.first_at - first.last_at, 3)
    written = check(session, 2)
    lab.report["move_freeze_small_seconds"] = round(longest_gap(written), 3)
    assert session.condition("Fresh")["reason"] == "Moved"
    gone(lab, "followed-1")


@pytest.mark.timeout(300)
@pytest.mark.long
def test_ten_moves_back_and_forth(lab: Lab) -> None:
    session = walking(lab, "commuter", EVERY)
    for _ in range(10):
        move(session)
    session.writes_on()
    marks = check(session, 11)
    assert {mark.epoch for mark in marks} == set(range(1, 12))
    lab.report["moves_total_count"] = lab.report.get("moves_total_count", 0) + 10


@pytest.mark.long
@pytest.mark.timeout(500)
def test_random_sessions_move_under_load(lab: Lab) -> None:
    """Two at once; a fixed seed chooses. All of them count without a pause."""
    sessions = [walking(lab, f"crowd-{n}", 0.01) for n in range(4)]
    chosen, epochs, moves = random.Random(5), dict.fromkeys(range(4), 1), 0
    while moves < RANDOM_MOVES:
        pair = chosen.sample(range(4), 2)
        nodes = [sessions[number].node for number in pair]
        for number in pair:
            assert ask(sessions[number]) == epochs[number]
        for number, node in zip(pair, nodes, strict=True):
            epochs[number] += 1
            sessions[number].await_epoch(epochs[number], MOVED_WITHIN)
            assert sessions[number].node == other(node)
            moves += 1
    for number, session in enumerate(sessions):
        session.writes_on()
        marks = check(session, epochs[number])
        assert {mark.epoch for mark in marks} == set(range(1, epochs[number] + 1))
    lab.report["random_moves_count"] = moves
    lab.report["moves_total_count"] = lab.report.get("moves_total_count", 0) + moves
    await_agents(lab)


# Half of it becomes a sixth when packed, the other half cannot; and it knows what it had. If it is
# busy, all of the other half is changed many times a second: it is turned by a byte.
LOAD = """
import hashlib, os, select, sys
noise, heap, turned = bytearray(os.urandom(96 << 20)), [[n, str(n)] for n in range(800_000)], 0
def tag():
    at = turned % len(noise)
    whole = hashlib.sha256(noise[at:] + noise[:at])
    whole.update(repr(heap).encode())
    return whole.hexdigest()
before, busy = tag(), sys.argv[1] == "busy"
print("loaded", flush=True)
while True:
    while busy and not select.select([0], [], [], 0)[0]:
        last = noise.pop()
        noise[:0] = bytes([last])
        turned += 1
    input()
    print("same", tag() == before, turned > 20 or not busy, flush=True)
"""
SLOW_MBIT = 200


@pytest.mark.timeout(240)
@pytest.mark.timed
def test_memory_at_rest_goes_while_the_session_runs(lab: Lab) -> None:
    """So that even over a slow link it stands still hardly longer than every session does."""
    session = lab.session("rested", "python3", "-c", LOAD, "idle", node=lab.away())
    session.await_text("loaded")
    with faults.slow(session.node, SLOW_MBIT):
        ask(session)
        session.await_epoch(2, MOVED_WITHIN)
    session.type("well?")
    session.await_text("same True True")
    until(lambda: "lastMove" in session.status, "its figures")
    last = session.status["lastMove"]
    lab.report["move_slow_link_at_rest_seconds"] = last["freezeSeconds"]
    assert last["sizeBytes"] > 200 << 20
    assert last["freezeSeconds"] < 1.5


@pytest.mark.timeout(240)
@pytest.mark.timed
def test_how_far_a_move_has_come_is_seen_and_a_slow_link_is_spared(lab: Lab) -> None:
    session = lab.session("laden", "python3", "-c", LOAD, "busy", node=lab.away())
    session.await_text("loaded")
    node, seen = session.node, set()

    def arrived() -> bool:
        told = session.lab.kubectl("get", "session", session.name).splitlines()[1]
        seen.update(re.findall(r"copying (\d+)/(\d+) MiB", told))
        return session.epoch == 2

    with faults.slow(node, SLOW_MBIT), Viewer(lab, session.pod) as watching:
        ask(session)
        until(arrived, "it has moved", MOVED_WITHIN)
    session.type("well?")
    session.await_text("same True True")
    shares = sorted((int(sent), int(of)) for sent, of in seen)
    assert any(0 < sent < of for sent, of in shares), f"nothing was seen in mid-move: {shares}"
    assert any(0 < one["sent"] < one["expected"] for one in watching.progress)
    until(lambda: "lastMove" in session.status, "its figures")
    last = session.status["lastMove"]
    assert "move" not in session.status
    plain = last["sizeBytes"] * 8 / (SLOW_MBIT * 1e6)
    lab.report["move_slow_link_seconds"] = last["freezeSeconds"]
    lab.report["move_slow_link_plain_seconds"] = round(plain, 3)
    assert last["freezeSeconds"] < 0.6 * plain
    said = " ".join(session.events())
    for reason in ("Moving: ", "MoveFrozen: ", "Moved: ", "MoveComplete: "):
        assert reason in said


def test_a_move_by_hand_goes_where_it_is_told_to(lab: Lab) -> None:
    session = walking(lab, "sent", node=lab.away())
    node = session.node
    ask(session, node)  # it is there
    time.sleep(3)
    assert (session.epoch, session.node) == (1, node)
    ask(session, other(node))
    session.await_epoch(2, MOVED_WITHIN)
    assert session.node == other(node)
    session.writes_on()
    check(session, 2)
