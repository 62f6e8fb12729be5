"""A session is to leave its pod, and stays after all: real sidecars, holds and commands, and an
API that fails."""

from __future__ import annotations

import contextlib
import os
import stat
import threading
from typing import Any

import pytest

from api_kit import Fault, Pod, Request, lease, owned
from gateway_kit import until
from holdfast_sidecar.agent import admitted
from holdfast_wire.errors import Unavailable
from holdfast_wire.frames import AckStatus

from .moving import (
    TARGET,
    acked,
    begin,
    digest,
    ignored,
    is_write,
    kill,
    offers,
    once,
    seal,
    sealed,
    stay,
    taken,
)

# -- it stays after all ---------------------------------------------------------------------------


def test_typing_before_during_and_after_is_taken_once_in_order_and_acknowledged_then(
    source: Pod,
) -> None:
    begin(source)
    with source.client() as client:
        client.attach(columns=100)
        client.typed(b"one,", 1, b"k1")
        until(lambda: acked(client) == [1], "the first ack")
        assert source.agent("park", to=TARGET)["ok"]
        client.until_news("moving")
        assert source.agent("progress", sent=1, expected=4)["ok"]
        assert client.until_news("progress") == {"kind": "progress", "sent": 1, "expected": 4}
        assert source.agent("progress", sent=-1, expected="4")["code"] == "bad_request"
        client.typed(b"two,", 2, b"k2")
        assert acked(client) == [1]
        with pytest.raises(Unavailable, match="being moved"):
            client.ask("send", text="by request")
        assert source.ask_hold("freeze")["ok"]
        files = sealed(source)["files"]
        status = source.agent("status")
        assert (status["parked"], status["offered"], status["serving"]) == (True, True, True)
        assert source.api.notes()["offer"] == TARGET
        client.typed(b"three,", 3, b"k3")
        assert acked(client) == [1]
        stay(source)
        client.until_news("stayed")
        client.typed(b"four.", 4, b"k4")
        until(lambda: acked(client) == [1, 2, 3, 4], "every ack")
        until(lambda: taken(source) == b"one,two,three,four.", "what was typed")
        assert [ack.status for ack in client.acks] == [AckStatus.APPLIED] * 4
        client.typed(b"four.", 5, b"k4")
        until(lambda: acked(client)[-1] == 5, "the duplicate's ack")
    assert set(files) == {"ring", "keyframe", "journal", "outbox", "sealed.json"}
    assert taken(source) == b"one,two,three,four."


def test_while_it_is_sealed_its_files_do_not_change(source: Pod) -> None:
    begin(source)
    with source.client() as client:
        client.attach(columns=100, rows=30)
        client.typed(b"one")
        until(lambda: acked(client), "its ack")
        files = seal(source)["files"]
        before = digest(source, files)
        with source.client() as other:
            other.attach(columns=70, rows=20, actor="ben")
            other.until_news("moving")
            with pytest.raises(Unavailable):
                other.ask("take")
            assert "records" in client.ask("journal")
        client.close()
        requests = len(source.api.requests)
        source.renewed_after(requests)
        assert source.api.notes()["offer"] == TARGET, "a renewal keeps it"
        assert digest(source, files) == before
    kill(source)
    source.start_sidecar()
    source.said(f"the session is sealed, and offered to pod {TARGET}")
    with source.client() as client:
        client.attach(columns=60)
        client.until_news("moving")
        client.typed(b"two")
        assert acked(client) == []
        assert digest(source, files) == before
        assert source.agent("seal")["files"] == files
        assert digest(source, files) == before
        stay(source)
        until(lambda: taken(source) == b"onetwo", "what was typed")
        joins = [r for r in client.ask("journal")["records"] if r["kind"] == "join"]
        assert client.ask("info")["columns"] == 60
    assert [join["actor"] for join in joins].count("ben") == 0, "the killed one kept it in mind"
    assert digest(source, files) != before


def test_parked_and_forgotten_it_opens_by_itself(source: Pod) -> None:
    begin(source)
    with source.client() as client:
        client.attach()
        assert source.agent("park", to=TARGET, seconds=0.3)["ok"]
        client.typed(b"one")
        client.until_news("stayed")
        until(lambda: acked(client) == [1], "its ack")
    assert not source.agent("status")["parked"]
    assert source.agent("seal")["code"] == "not_parked"
    assert source.agent("unpark")["ok"]


def test_a_sealed_one_does_not_open_by_itself(source: Pod) -> None:
    begin(source)
    assert source.agent("park", to=TARGET, seconds=0.5)["ok"]
    sealed(source)
    until(lambda: source.api.notes().get("offer"), "the offer")
    requests = len(source.api.requests)
    source.renewed_after(requests)
    assert source.agent("status")["offered"]
    stay(source)


def test_what_is_asked_wrongly_is_refused(source: Pod) -> None:
    begin(source)
    asked: list[dict[str, Any]] = [
        {}, {"to": ""}, {"to": 3}, {"to": "pod-uid"}, {"to": "x", "seconds": -1},
    ]  # fmt: skip
    for wrong in asked:
        assert source.agent("park", **wrong)["code"] == "bad_request", wrong
    assert source.agent("dance")["code"] == "bad_request"
    assert source.agent("commit")["code"] == "refused"
    assert source.agent("seal")["code"] == "not_parked"
    seal(source)
    assert source.agent("park", to="another")["code"] == "busy"
    assert source.agent("park", to=TARGET)["ok"]


def test_the_end_of_a_sealed_session_is_not_told_before_it_is_known_whose_it_is(
    source: Pod,
) -> None:
    begin(source)
    with source.client() as client:
        client.attach()
        seal(source)
        source.ask_hold("end 0")
        with contextlib.suppress(ConnectionResetError):
            while client.next():
                pass
        assert "ended" not in {news["kind"] for news in client.news}
    source.exit_note()
    assert "offer" not in source.api.notes()


# -- the API fails while it is offered and taken back ---------------------------------------------


@pytest.mark.parametrize("fault", [Fault(lost=True), Fault(reset=True), Fault(code=429)])
def test_the_offer_s_write_or_its_answer_is_lost(source: Pod, fault: Fault) -> None:
    begin(source)
    source.api.choose = once(offers, fault)
    seal(source)
    assert source.api.notes()["offer"] == TARGET
    stay(source)


@pytest.mark.parametrize("fault", [Fault(lost=True), Fault(reset=True), Fault(code=500)])
def test_the_withdrawal_s_write_or_its_answer_is_lost(source: Pod, fault: Fault) -> None:
    begin(source)
    with source.client() as client:
        client.attach()
        seal(source)
        client.typed(b"one")
        source.api.choose = once(lambda r: is_write(r) and not offers(r), fault)
        stay(source)
        until(lambda: acked(client) == [1], "its ack")


def test_an_offer_in_doubt_keeps_it_closed_until_its_withdrawal_is_acknowledged(
    source: Pod,
) -> None:
    """The offer's write lands, and nobody hears of it; for a while nothing else gets through."""
    begin(source)
    with source.client() as client:
        client.attach()
        assert source.agent("park", to=TARGET)["ok"]
        landed = threading.Event()

        def choose(request: Request) -> Fault | None:
            if landed.is_set():
                return Fault(reset=True)
            if offers(request):
                landed.set()
                return Fault(lost=True)
            return None

        source.api.choose = choose
        sealing: list[dict[str, Any]] = []
        asking = threading.Thread(target=lambda: sealing.append(source.agent("seal")))
        asking.start()
        assert landed.wait(10)
        client.typed(b"one")
        answer = source.agent("unpark")
        assert answer["code"] == "unavailable"
        asking.join(20)
        assert sealing[0]["code"] in ("unavailable", "withdrawn")
        assert acked(client) == []
        status = source.agent("status")
        assert status["parked"]
        assert status["offered"]
        assert source.api.notes()["offer"] == TARGET
        source.api.choose = lambda _request: None
        assert source.agent("unpark")["ok"]
        assert "offer" not in source.api.notes()
        until(lambda: acked(client) == [1], "its ack")


def test_taken_by_another_it_does_not_open_and_who_is_attached_is_sent_away(source: Pod) -> None:
    begin(source)
    with source.client() as client:
        client.attach()
        seal(source)
        client.typed(b"one")
        source.api.put(owned(lease(4, f"{TARGET}/nonce")))
        with contextlib.suppress(ConnectionError):
            assert source.agent("unpark")["code"] == "superseded"
        with contextlib.suppress(ConnectionResetError):
            while client.next():
                pass
        told = [(news["kind"], news.get("activity")) for news in client.news]
        assert not {("ended", None), ("state", "ended")} & set(told)
        assert client.acks == []
    source.hold_goes()
    source.sidecar_goes()
    assert taken(source) == b""
    assert source.api.get()["spec"]["holderIdentity"] == f"{TARGET}/nonce"


# -- the source's sidecar is killed ---------------------------------------------------------------


def test_killed_when_parked_it_comes_back_open(source: Pod) -> None:
    begin(source)
    assert source.agent("park", to=TARGET)["ok"]
    kill(source)
    source.start_sidecar()
    with source.client() as client:
        client.attach()
        client.typed(b"one")
        until(lambda: acked(client) == [1], "its ack")
    assert source.agent("seal")["code"] == "not_parked"
    assert source.agent("unpark")["ok"]


def test_killed_when_its_offer_may_have_landed_it_finds_out(source: Pod) -> None:
    begin(source)
    assert source.agent("park", to=TARGET)["ok"]
    landed = threading.Event()
    source.api.choose = once(offers, Fault(lost=True, before=landed.set))
    asking = threading.Thread(target=lambda: ignored(lambda: source.agent("seal")))
    asking.start()
    assert landed.wait(10)
    until(lambda: source.api.notes().get("offer"), "the offer")
    kill(source)
    asking.join(20)
    source.start_sidecar()
    source.said("the session is sealed")
    assert source.agent("status")["offered"]
    stay(source)
    with source.client() as client:
        client.attach()
        client.typed(b"one")
        until(lambda: acked(client) == [1], "its ack")


# -- who may ask ----------------------------------------------------------------------------------


def test_only_root_is_admitted() -> None:
    assert admitted(0)
    assert not any(admitted(uid) for uid in (1, 1000, 65532, 65534))


@pytest.mark.skipif(os.geteuid() != 0, reason="another user is needed")
def test_another_user_is_not_served(source: Pod) -> None:
    begin(source)
    path = source.state / "agent.sock"
    until(path.exists, "agent.sock")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    for step in (source.folder, source.state):
        step.chmod(0o755)
    path.chmod(0o666)
    assert source.agent("status")["ok"]
    os.seteuid(65534)
    try:
        with pytest.raises(OSError, match=r"closed|reset|Broken pipe"):
            source.agent("status")
    finally:
        os.seteuid(0)
    source.said("user 65534 is not served")
