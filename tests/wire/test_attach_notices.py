"""What an attachment writes on its last line, and takes back."""

from __future__ import annotations

import re

from attach_kit import answer, live, resume_of, sent, shown, ticks_until
from holdfast_wire.attach_core import (
    QUIET_SECONDS,
    AttachCore,
    Connect,
    Disconnect,
)
from holdfast_wire.frames import (
    Control,
    Output,
)


def test_backoff_and_notice() -> None:
    machine = live()
    machine.lost(10.0)
    early = ticks_until(machine, 10.0 + QUIET_SECONDS - 0.01)
    assert shown(early) == b"", "no flicker for a short absence"
    tries = sum(isinstance(action, Connect) for action in early)
    assert 3 <= tries <= 8
    late = ticks_until(machine, 20.0)
    assert shown(late).count(b"reconnecting") == 1
    assert 4 <= sum(isinstance(action, Connect) for action in late) <= 12


def painted_over(machine: AttachCore, now: float) -> bytes:
    """It asks what is under its notice, and is told."""
    (request,) = sent(machine.tick(now))
    assert isinstance(request, Control)
    assert request.body["kind"] == "screen"
    lines = "\n".join(f"row {n}" for n in range(24))
    body = {"kind": "answer", "id": request.body["id"], "result": {"seq": 100, "text": lines}}
    return shown(machine.received(Control(body), now + 0.1))


def test_a_notice_is_painted_over_after_a_quiet_resume() -> None:
    machine = live()
    machine.lost(10.0)
    ticks_until(machine, 13.0)
    machine.connected()
    machine.received(answer(100, resumed=True), 13.0)
    assert b"\x1b[24;1H\x1b[0m\x1b[2Krow 23" in painted_over(machine, 13.0)
    assert shown(machine.received(Output(100, b"more"), 13.2)) == b"more"


def test_a_session_on_the_move_is_told_from_a_lost_connection() -> None:
    machine = live()
    machine.received(Control({"kind": "moving"}), 10.0)
    assert shown(ticks_until(machine, 10.0 + QUIET_SECONDS - 0.01)) == b"", "most take no longer"
    machine.lost(10.5)
    said = shown(ticks_until(machine, 12.0))
    assert said.count("build is moving to another node…".encode()) == 1
    machine.connected()
    machine.received(answer(100, resumed=True), 12.5)
    assert b"row 23" in painted_over(machine, 12.5)
    machine.lost(20.0)
    assert b"lost, reconnecting" in shown(ticks_until(machine, 22.0))


def test_how_far_a_move_has_come_is_said_and_kept_up() -> None:
    machine = live()

    def comes(sent: int, expected: int, now: float) -> str:
        body = {"kind": "progress", "sent": sent, "expected": expected}
        return shown(machine.received(Control(body), now)).decode()

    assert comes(5, 10, 9.0) == "", "nothing moves"
    machine.received(Control({"kind": "moving"}), 10.0)
    assert comes(1, 10, 10.5) == comes(2, 10, 11.0) == "", "most take no longer"
    assert "build is moving to another node, 20 %…" in shown(ticks_until(machine, 12.0)).decode()
    assert "build is moving to another node, 34 %…" in comes(34, 100, 12.5)
    assert comes(345, 1000, 12.6) == "", "the same words again"
    assert ", 99 %…" in comes(300, 100, 13.0), "what is expected is a guess"
    assert comes(1, 0, 13.5) == comes(-1, -1, 13.6) == ""
    machine.received(Control({"kind": "stayed"}), 14.0)
    assert b"row 23" in painted_over(machine, 14.0)


def test_what_is_waited_for_is_said() -> None:
    machine = live()
    machine.received(Control({"kind": "moving"}), 10.0)
    machine.lost(10.1)
    machine.connected()

    def waits(sentence: str, now: float) -> bytes:
        return shown(machine.received(Control({"kind": "waiting", "sentence": sentence}), now))

    assert waits("it is Moving", 10.5) == b"", "most take no longer"
    said = shown(ticks_until(machine, 12.0)).decode()
    assert re.search("build is moving to another node….*it is Moving", said)
    assert b"it is Restoring" in waits("it is \x1b[2JRestoring", 13.0)
    assert waits("it is Restoring", 13.5) == b""
    machine.received(answer(100, resumed=True), 14.0)
    assert b"row 23" in painted_over(machine, 14.0)


def test_a_session_that_stayed_after_all() -> None:
    machine = live()
    machine.received(Control({"kind": "saving"}), 10.0)
    assert b"build is being stored" in shown(ticks_until(machine, 12.0))
    machine.received(Control({"kind": "stayed"}), 13.0)
    assert b"row 23" in painted_over(machine, 13.0)
    assert shown(ticks_until(machine, 30.0)) == b""


def test_output_under_a_notice_asks_for_a_fresh_picture() -> None:
    machine = live()
    machine.lost(10.0)
    ticks_until(machine, 13.0)
    machine.connected()
    machine.received(answer(100, resumed=True), 13.0)
    assert machine.received(Output(100, b"scrolls\r\n"), 13.0) == [Disconnect()]
    assert isinstance(machine.tick(13.0)[-1], Connect)
    assert resume_of(machine) is None


def test_a_sequence_cut_in_two_is_not_resumed_after_a_notice() -> None:
    machine = live()
    machine.received(Output(100, b"text\x1b[38;5"), 0.0)
    machine.lost(10.0)
    notice = shown(ticks_until(machine, 13.0))
    assert notice.startswith(b"\x18"), "ours would end it"
    assert resume_of(machine) is None


def test_a_sequence_cut_in_two_is_resumed_without_a_notice() -> None:
    machine = live()
    machine.received(Output(100, b"text\x1b[38;5"), 0.0)
    machine.lost(10.0)
    assert shown(ticks_until(machine, 10.2)) == b""
    assert resume_of(machine) == {"session_id": "id1", "seq": 110}


def greeting(machine: AttachCore) -> bytes:
    (request,) = sent(machine.tick(1.0))
    assert isinstance(request, Control)
    text = "\n".join(f"row {n}" for n in range(24))
    body = {"kind": "answer", "id": request.body["id"], "result": {"seq": 100, "text": text}}
    return shown(machine.received(Control(body), 1.0))


def test_the_greeting_is_taken_back_before_output() -> None:
    machine = live()
    assert "attached to build · detach: ctrl-\\ then d".encode() in greeting(machine)
    after = shown(machine.received(Output(100, b"more"), 1.1))
    assert after.endswith(b"row 23\x1b[0m\x1b8more")


def test_the_greeting_goes_by_itself() -> None:
    machine = live()
    greeting(machine)
    moment = machine.wakeup()
    assert moment is not None
    assert b"row 23" in shown(machine.tick(moment))
    assert machine.wakeup() is None


def test_a_picture_of_another_moment_is_not_used() -> None:
    machine = live()
    (request,) = sent(machine.tick(1.0))
    assert isinstance(request, Control)
    body = {"kind": "answer", "id": request.body["id"], "result": {"seq": 99, "text": ""}}
    assert shown(machine.received(Control(body), 1.0)) == b""
    assert sent(machine.tick(2.0)), "it asks again"


def test_who_has_the_turn_hears_who_asks_for_it() -> None:
    machine = live()
    here = [{"client": "c1", "actor": "ana"}, {"client": "c2", "actor": "ben"}]
    news = {
        "kind": "clients",
        "clients": here,
        "holder": "ana",
        "asking": [{"actor": "ben\x1b[2J"}],
    }
    assert b"attached to" in painted_over(machine, 1.0)
    ticks_until(machine, 9.0)
    machine.received(Control({**news, "holder": "ben", "asking": [{"actor": "ana"}]}), 9.0)
    assert sent(machine.tick(10.0)) == [], "that is the other's to hear"
    machine.received(Control(news), 10.0)
    said = painted_over(machine, 10.5)
    assert b"asks for the turn" in said
    assert b"\x1b[2J" not in said
    machine.received(Control(news), 20.0)
    assert sent(machine.tick(21.0)) == [], "once"
