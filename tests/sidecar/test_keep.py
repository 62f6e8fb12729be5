"""A session is stored and goes on, or is suspended: real sidecars, holds and commands."""

from __future__ import annotations

import contextlib
import re
import signal
import threading
from collections.abc import Callable
from typing import Any

from api_kit import Fault, Pod, Request
from gateway_kit import until
from holdfast_wire.frames import AckStatus
from sidecar_kit import Client

from .moving import DEAF, acked, begin, digest, ignored, is_write, kill, notes, once, taken

NAME = "it-3-k1"
# Prints numbers all the time; what it is given lies in the file.
BUSY = """stty raw -echo; touch $COUNTER; exec 3<&0; cat <&3 >> $COUNTER &
i=0; while :; do echo $((i+=1)),; done"""
PREFIX = "holdfast.dev/"


def park(pod: Pod) -> None:
    assert pod.agent("park", keep=True)["ok"]


def keep(pod: Pod) -> dict[str, Any]:
    park(pod)
    assert pod.ask_hold("freeze")["ok"]
    answer = pod.agent("seal", keep=True)
    assert answer["ok"], answer
    return answer


def goes_on(pod: Pod) -> None:
    answer = pod.agent("unpark")
    assert answer["ok"], answer
    assert pod.ask_hold("thaw")["ok"]


def suspends(request: Request) -> bool:
    return is_write(request) and PREFIX + "suspended" in notes(request)


def until_closed(client: Client) -> set[str]:
    """What it had heard by then."""
    with contextlib.suppress(ConnectionResetError):
        while client.next():
            pass
    return {news["kind"] for news in client.news}


def is_suspended(pod: Pod) -> None:
    found, now = pod.api.get(), pod.api.notes()
    assert found["spec"]["holderIdentity"] == ""
    assert (now["epoch"], now["released"], now["suspended"]) == ("3", "3", NAME)
    assert not {"exit", "offer", "offered", "start-error"} & set(now)


# -- it goes on -----------------------------------------------------------------------------------


def test_a_busy_session_is_stored_and_nobody_notices(source: Pod) -> None:
    begin(source, BUSY)
    with source.client() as client:
        client.attach()
        client.typed(b"1,", 1, b"k1")
        until(lambda: acked(client) == [1], "the first ack")
        for number in (2, 3):
            it_is_stored(source, client, number)
        assert [ack.status for ack in client.acks] == [AckStatus.APPLIED] * 3
        until(lambda: taken(source) == b"1,2,3,", "what was typed")
        assert not {"moving", "saving", "stayed"} & {news["kind"] for news in client.news}
        first, *more, _cut = re.findall(rb"(\d+),", bytes(client.stream).partition(b"\n")[2])
        assert len(more) > 100
        assert [int(n) for n in more] == [*range(int(first) + 1, int(first) + 1 + len(more))]
        assert client.gaps == []
    assert not any(PREFIX + "offer" in notes(r) for r in source.api.requests if is_write(r))


def it_is_stored(pod: Pod, client: Client, number: int) -> None:
    park(pod)
    client.typed(b"%d," % number, number, b"k%d" % number)
    assert pod.ask_hold("freeze")["ok"]
    answer = pod.agent("seal", keep=True)
    assert pod.agent("seal", keep=True) == answer, "its answer may have been lost"
    status, before = pod.agent("status"), digest(pod, answer["files"])
    assert (status["parked"], status["offered"]) == (True, False)
    assert status["seq"] == answer["seq"]
    assert acked(client)[-1] == number - 1
    assert digest(pod, answer["files"]) == before
    # A renewal may come at any time, but none is waited for.
    pod.api.always = Fault(hang=(stop := threading.Event()))
    goes_on(pod)
    pod.api.always = Fault()
    stop.set()
    until(lambda: acked(client)[-1] == number, "its ack")


def test_who_acts_waits_for_it_and_hears_of_it_if_it_takes_long(source: Pod) -> None:
    begin(source)
    with source.client() as client, source.client() as other:
        client.attach()
        answer = keep(source)
        before = digest(source, answer["files"])
        sent: list[dict[str, Any]] = []
        sending = threading.Thread(target=lambda: sent.append(other.ask("send", text="late")))
        sending.start()
        client.until_news("saving")
        with source.client() as third:
            third.attach(mode="view")
            third.until_news("saving")
        assert digest(source, answer["files"]) == before
        assert sent == []
        goes_on(source)
        client.until_news("stayed")
        sending.join(20)
    assert [answer["duplicate"] for answer in sent] == [False]
    until(lambda: taken(source) == b"late", "what was sent")
    what_is_asked_wrongly_is_refused(source)


def what_is_asked_wrongly_is_refused(pod: Pod) -> None:
    for wrong in ("yes", 1, None):
        assert pod.agent("park", keep=wrong)["code"] == "bad_request"
    assert pod.agent("seal", keep=True)["code"] == "not_parked"
    assert pod.agent("suspend", checkpoint=NAME)["code"] == "not_parked"
    park(pod)
    assert pod.agent("seal")["code"] == "not_parked", "it is not on its way to anybody"
    assert pod.agent("suspend", checkpoint=NAME)["code"] == "not_parked"
    keep(pod)
    assert pod.agent("park", to="another")["code"] == "busy"
    assert pod.agent("suspend")["code"] == "bad_request"
    goes_on(pod)
    assert pod.agent("park", to="another")["ok"]
    assert pod.agent("seal", keep=True)["code"] == "not_parked"
    assert pod.agent("suspend", checkpoint=NAME)["code"] == "not_parked"
    assert not any(map(suspends, pod.api.requests))


def test_killed_when_parked_it_comes_back_open_and_when_sealed_it_is_sealed_again(
    source: Pod,
) -> None:
    begin(source)
    park(source)
    kill(source)
    source.start_sidecar()
    assert source.agent("seal", keep=True)["code"] == "not_parked"
    with source.client() as client:
        client.attach()
        client.typed(b"one,")
        until(lambda: acked(client) == [1], "its ack")
    files = keep(source)["files"]
    before = digest(source, files)
    kill(source)
    source.start_sidecar()
    source.said("the session is sealed, and to be stored")
    with source.client() as client:
        client.attach(columns=70)
        client.typed(b"two")
        assert acked(client) == []
        assert source.agent("seal", keep=True)["files"] == files
        assert digest(source, files) == before
        goes_on(source)
        until(lambda: taken(source) == b"one,two", "what was typed")
    assert not (source.state / "keeping").exists(), "the next one comes back open"


def test_a_session_that_is_killed_while_it_is_stored_has_ended(source: Pod) -> None:
    begin(source)
    keep(source)
    source.ask_hold("end 0")
    assert source.exit_note()["signal"] == signal.SIGKILL
    answer = source.agent("suspend", checkpoint=NAME)
    assert answer["code"] in ("ended", "superseded")
    assert "suspended" not in source.api.notes()


# -- it is suspended ------------------------------------------------------------------------------


def test_suspended_its_lease_says_as_what_and_who_is_attached_looks_it_up(source: Pod) -> None:
    begin(source)
    with source.client() as client:
        client.attach()
        keep(source)
        client.typed(b"for later")
        answer = source.agent("suspend", checkpoint=NAME)
        assert answer["ok"], answer
        is_suspended(source)
        assert "ended" not in until_closed(client)
        assert client.acks == []
    assert source.hold_goes() == 128 + signal.SIGKILL
    assert source.sidecar_goes() == 0
    is_suspended(source)
    assert taken(source) == b""


def test_suspended_just_when_it_is_killed_it_is_suspended(source: Pod) -> None:
    """Nothing has run since it was stored."""
    begin(source)
    keep(source)
    source.api.choose = once(suspends, Fault(code=500, before=lambda: source.ask_hold("end 0")))
    answer = source.agent("suspend", checkpoint=NAME)
    assert answer["ok"], answer
    is_suspended(source)
    assert source.agent("suspend", checkpoint=NAME)["ok"]
    assert source.agent("unpark")["code"] == "superseded"


def test_a_suspension_is_called_off_unless_it_landed(source: Pod) -> None:
    begin(source)
    with source.client() as client:
        client.attach()
        client.typed(b"one,", 1)
        it_is_refused(source)
        until(lambda: acked(client) == [1], "its ack")
        it_lands_unheard(source, lambda: client.typed(b"two", 2))
        assert "ended" not in until_closed(client)
        assert [ack.number for ack in client.acks] == [1]
    source.hold_goes()
    is_suspended(source)
    assert taken(source) == b"one,"


def it_is_refused(pod: Pod) -> None:
    keep(pod)
    refused = threading.Event()
    pod.api.choose = lambda r: Fault(code=500, before=refused.set) if suspends(r) else None
    answers: list[dict[str, Any]] = []
    asking = threading.Thread(target=lambda: answers.append(pod.agent("suspend", checkpoint=NAME)))
    asking.start()
    assert refused.wait(20)
    assert pod.agent("suspend", checkpoint="other")["code"] == "busy"
    assert pod.agent("status")["parked"]
    goes_on(pod)
    asking.join(20)
    assert [answer["code"] for answer in answers] == ["withdrawn"]
    assert not {"suspended", "released"} & set(pod.api.notes())
    assert pod.api.get()["spec"]["holderIdentity"].startswith("pod-uid/")


def it_lands_unheard(pod: Pod, meanwhile: Callable[[], None]) -> None:
    keep(pod)
    landed = threading.Event()

    def choose(request: Request) -> Fault | None:
        if landed.is_set():
            return Fault(reset=True)
        if suspends(request):
            landed.set()
            return Fault(lost=True)
        return None

    pod.api.choose = choose
    asking = threading.Thread(target=lambda: ignored(lambda: pod.agent("suspend", checkpoint=NAME)))
    asking.start()
    assert landed.wait(20)
    meanwhile()
    until(lambda: pod.api.notes().get("suspended"), "the release")
    pod.api.choose = lambda _request: None
    assert pod.agent("unpark")["code"] == "superseded"
    asking.join(20)


def test_killed_when_it_was_suspended_the_next_one_gives_up_quietly(source: Pod) -> None:
    begin(source, DEAF)
    keep(source)
    stop = threading.Event()
    source.api.choose = once(suspends, Fault(lost=True))
    asking = threading.Thread(
        target=lambda: ignored(lambda: source.agent("suspend", checkpoint=NAME))
    )
    asking.start()
    until(lambda: source.api.notes().get("suspended"), "the release")
    source.api.always = Fault(hang=stop)
    kill(source)
    asking.join(20)
    source.api.always = Fault()
    stop.set()
    requests = len(source.api.requests)
    source.start_sidecar()
    source.hold_goes()
    assert source.sidecar_goes() == 0
    assert not any(map(is_write, source.api.requests[requests:]))
    is_suspended(source)
