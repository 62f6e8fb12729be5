"""The attachment's state machine, without a terminal and without a clock."""

from __future__ import annotations

from typing import Any

import pytest

from attach_kit import BOTH, KEYS, answer, core, left, live, resume_of, sent, shown
from holdfast_wire.attach_core import (
    MAX_UNACKED,
    QUIET_SECONDS,
    Action,
    AttachCore,
    Connect,
    Disconnect,
    Leave,
    Phase,
    Settings,
)
from holdfast_wire.errors import Forbidden, NoTurn, Unavailable
from holdfast_wire.frames import (
    Ack,
    AckStatus,
    Attach,
    Control,
    Error,
    Gap,
    Input,
    Output,
    Part,
    Resize,
    Snapshot,
)
from holdfast_wire.ids import Actor


def test_the_first_attach_asks_for_everything() -> None:
    machine = core()
    actions = machine.start(0.0)
    assert isinstance(actions[-1], Connect)
    (frame,) = sent(machine.connected())
    assert frame == Attach({"mode": "write", "columns": 80, "rows": 24, "modality": "cli"})


def test_who_takes_long_to_connect_is_asked_once() -> None:
    machine = live()
    machine.lost(10.0)
    assert isinstance(machine.tick(10.1)[-1], Connect)
    slow = [action for now in (11.0, 12.0, 40.0) for action in machine.tick(now)]
    assert b"lost" in shown(slow)
    assert not any(isinstance(action, Connect) for action in slow)
    assert machine.wakeup() is None
    machine.lost(41.0)
    assert isinstance(machine.tick(43.0)[-1], Connect)


def test_it_says_who_it_is_if_told() -> None:
    settings = Settings(
        "build", True, KEYS, "nonce", "kubectl holdfast attach", "kubectl", Actor("ana", "u-1")
    )
    machine = AttachCore(settings, (80, 24))
    machine.start(0.0)
    (frame,) = sent(machine.connected())
    assert isinstance(frame, Attach)
    assert frame.body["modality"] == "kubectl"
    assert (frame.body["actor"], frame.body["uid"]) == ("ana", "u-1")
    assert "kubectl holdfast attach]" in left(machine.detached()).message


def test_why_it_waits_is_shown_and_renewed() -> None:
    machine = live()
    machine.lost(1.0, "the pod\x1b[2J is starting")
    (text,) = [text for text in [shown(machine.tick(1.0 + QUIET_SECONDS))] if text]
    assert b"the pod is starting" in text
    machine.connected()
    assert shown(machine.lost(3.0, "the pod\x1b[2J is starting")) == b""
    machine.connected()
    assert b"no node has room" in shown(machine.lost(4.0, "no node has room"))


@pytest.mark.parametrize("again", [True, False])
@pytest.mark.parametrize("seq", [0, 99, 100, 140])
def test_what_was_typed_is_not_for_an_incarnation_begun_anew(seq: int, again: bool) -> None:
    machine = live()
    machine.typed(b"rm -r build\r", 1.0)
    machine.lost(1.0)
    machine.connected()
    told = {} if again else {"session_id": "id1.2"}
    actions = machine.received(answer(seq, resumed=again and seq == 100, **told), 2.0)
    assert bool(sent(actions)) is again
    assert machine.unacked == (1 if again else 0)
    if not again:
        machine.received(Snapshot(seq, 80, 24, BOTH, b"ready> "), 2.0)
        machine.tick(3.0)
        actions = machine.received(
            Control({"kind": "answer", "id": 1 << 41, "result": {"seq": seq}}), 3
        )
        assert b"12 typed bytes were not delivered" in shown(actions)
        assert machine.phase is Phase.LIVE


def test_output_after_a_snapshot() -> None:
    machine = core()
    machine.start(0.0)
    machine.connected()
    machine.received(answer(), 0.0)
    first = machine.received(Snapshot(7, 80, 24, Part.FIRST, b"one"), 0.0)
    last = machine.received(Snapshot(7, 80, 24, Part.LAST, b"two"), 0.0)
    assert shown(first).endswith(b"\x1b[H\x1b[Jone")
    assert shown(last) == b"two"
    assert shown(machine.received(Output(7, b"abc"), 0.0)) == b"abc"
    machine.lost(1.0)
    assert resume_of(machine) == {"session_id": "id1", "seq": 10}


def test_half_a_snapshot_is_not_resumed_from() -> None:
    machine = live()
    machine.received(Snapshot(500, 80, 24, Part.FIRST, b"half"), 0.0)
    machine.lost(1.0)
    assert resume_of(machine) is None


def test_what_was_seen_is_not_shown_twice() -> None:
    machine = live()
    machine.received(Output(100, b"abcdef"), 0.0)
    assert shown(machine.received(Output(103, b"defghi"), 0.0)) == b"ghi"


def test_gaps_are_counted() -> None:
    machine = live()
    assert machine.received(Gap(100, 400), 0.0) == []
    assert (machine.gaps, machine.bytes_missed) == (1, 300)


def test_unacknowledged_input_goes_out_again_once() -> None:
    machine = live()
    for text in (b"a", b"b", b"c"):
        machine.typed(text, 0.0)
    machine.received(Ack(1, 1, AckStatus.APPLIED), 0.0)
    machine.lost(1.0)
    assert sent(machine.typed(b"d", 1.0)) == []
    machine.connected()
    again = sent(machine.received(answer(100, resumed=True), 1.1))
    assert again == [
        Input(2, b"nonce-2", b"b"),
        Input(3, b"nonce-3", b"c"),
        Input(4, b"nonce-4", b"d"),
    ]
    for number in (2, 3, 4):
        machine.received(Ack(number, number, AckStatus.DUPLICATE), 1.2)
    assert machine.unacked == 0


@pytest.mark.parametrize("cut", ["before the answer", "after the answer"])
def test_interrupted_again_while_coming_back(cut: str) -> None:
    machine = live()
    machine.typed(b"x", 0.0)
    machine.lost(1.0)
    machine.connected()
    if cut == "after the answer":
        machine.received(answer(100, resumed=True), 1.0)
    machine.lost(1.1)
    assert resume_of(machine) == {"session_id": "id1", "seq": 100}
    again = sent(machine.received(answer(100, resumed=True), 1.2))
    assert again == [Input(1, b"nonce-1", b"x")]


def test_input_stops_at_the_limit() -> None:
    machine = live()
    chunk = b"x" * (1 << 16)
    count = 0
    while machine.wants_input:
        machine.typed(chunk, 0.0)
        count += 1
    assert count == MAX_UNACKED // len(chunk)
    machine.received(Ack(1, 1, AckStatus.APPLIED), 0.0)
    assert machine.wants_input


def test_refused_input_is_dropped_and_told() -> None:
    machine = live()
    machine.typed(b"x", 0.0)
    actions = machine.received(Error.of(NoTurn("ana has the turn"), 1), 0.0)
    assert shown(actions) == b"\x07"
    assert machine.unacked == 0
    (request,) = sent(machine.tick(1.0))
    assert isinstance(request, Control)
    body = {"kind": "answer", "id": request.body["id"], "result": {"seq": 100, "text": ""}}
    assert b"ana has the turn" in shown(machine.received(Control(body), 1.0))


def test_detach() -> None:
    machine = live()
    leave = left(machine.typed(b"ls\r\x1cd", 0.0))
    assert leave == Leave(0, "[detached from build; come back with: holdfast attach build]")
    assert machine.phase is Phase.OVER
    assert machine.lost(1.0) == []


def test_detach_while_cut_off_says_what_was_lost() -> None:
    machine = live()
    machine.lost(1.0)
    machine.typed(b"abc", 1.0)
    assert "3 typed bytes were not delivered" in left(machine.typed(b"\x1cd", 1.0)).message


def test_a_lone_first_key_is_sent_later() -> None:
    machine = live()
    assert sent(machine.typed(b"\x1c", 5.0)) == []
    moment = machine.wakeup()
    assert moment is not None
    frames = sent(machine.tick(max(moment, 6.0)))
    assert Input(1, b"nonce-1", b"\x1c") in frames


def test_a_viewer_sends_nothing() -> None:
    machine = live(view=True)
    assert sent(machine.typed(b"rm -rf\r", 0.0)) == []
    assert left(machine.typed(b"\x03", 0.0)).code == 0


def ended(**exit_status: Any) -> Control:
    return Control({"kind": "ended", "exit": exit_status})


def head(actions: list[Action], seq: int) -> Control:
    (request,) = sent(actions)
    assert isinstance(request, Control)
    assert request.body["kind"] == "info"
    return Control({"kind": "answer", "id": request.body["id"], "result": {"seq": seq}})


@pytest.mark.parametrize(
    ("exit_status", "code", "words"),
    [
        ({"code": 3, "signal": None}, 3, "exit code 3"),
        ({"code": None, "signal": 9}, 137, "killed by SIGKILL"),
        ({}, 69, "not known"),
    ],
)
def test_the_end(exit_status: dict[str, Any], code: int, words: str) -> None:
    machine = live()
    leave = left(machine.received(head(machine.received(ended(**exit_status), 0.0), 100), 0.0))
    assert leave.code == code
    assert words in leave.message


def test_the_end_waits_for_the_last_output() -> None:
    """News overtakes output that a slow client has not taken yet."""
    machine = live()
    actions = machine.received(head(machine.received(ended(code=0), 0.0), 104), 0.0)
    assert actions == []
    actions = machine.received(Output(100, b"last"), 0.0)
    assert shown(actions) == b"last"
    assert left(actions).code == 0


@pytest.mark.parametrize("told", ["by the answer", "before the answer", "by a state"])
def test_the_end_falls_into_the_attach(told: str) -> None:
    machine = core()
    machine.start(0.0)
    machine.connected()
    state = {"activity": "ended", "exit": {"code": 5, "signal": None}}
    actions: list[Action] = []
    if told == "before the answer":
        assert machine.received(ended(code=5), 0.0) == []
        actions = machine.received(answer(), 0.0)
    elif told == "by the answer":
        actions = machine.received(answer(state=state), 0.0)
    else:
        machine.received(answer(), 0.0)
        actions = machine.received(Control({"kind": "state", **state}), 0.0)
    assert machine.received(head(actions, 9), 0.0) == []
    actions = machine.received(Snapshot(9, 80, 24, BOTH, b"last screen"), 0.0)
    assert b"last screen" in shown(actions)
    assert left(actions).code == 5


def test_another_session_of_the_same_name_gets_nothing() -> None:
    machine = live()
    machine.typed(b"rm x\r", 0.0)
    machine.lost(1.0)
    machine.connected()
    actions = machine.received(answer(session_id="id2"), 1.0)
    assert sent(actions) == []
    assert "another session" in left(actions).message


def test_errors_at_attach() -> None:
    machine = core()
    machine.start(0.0)
    machine.connected()
    error = left(machine.received(Error.of(Forbidden("no")), 0.0)).error
    assert isinstance(error, Forbidden)
    machine = core()
    machine.start(0.0)
    machine.connected()
    assert machine.received(Error.of(Unavailable("soon")), 0.0)[0] == Disconnect()
    assert machine.phase is Phase.AWAY


def test_gone_while_away() -> None:
    machine = live()
    machine.lost(1.0)
    assert left(machine.gone(Unavailable("x"), {"code": 4, "signal": None})).code == 4
    machine = live()
    machine.lost(1.0)
    assert left(machine.gone(Unavailable("x"), None)).error is not None


def test_sizes() -> None:
    machine = live()
    assert sent(machine.resized(100, 30)) == [Resize(0, 100, 30)]
    assert machine.resized(100, 30) == []
    # A session lower than the window scrolls at its own last row.
    assert b"\x1b[1;20r" in shown(machine.received(Resize(100, 80, 20), 0.0))


def test_unknown_news_is_ignored() -> None:
    machine = live()
    for body in ({"kind": "weather"}, {}, {"kind": "answer", "id": 9, "result": 3}):
        assert machine.received(Control(body), 0.0) == []
