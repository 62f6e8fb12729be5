"""A session leaves one pod and goes on in another. The processes themselves do not move here: the
second hold has a command of its own."""

from __future__ import annotations

import contextlib
import shutil
import threading

import pytest

from api_kit import Fault, Pod, Request, owned
from gateway_kit import until
from holdfast_wire.errors import NoTurn
from holdfast_wire.frames import AckStatus

from .moving import (
    DEAF,
    TAKES,
    TARGET,
    acked,
    begin,
    carry,
    ignored,
    is_write,
    kill,
    once,
    seal,
    sealed,
    stay,
    taken,
    takes,
)

# -- it goes --------------------------------------------------------------------------------------


def lease_is_taken(target: Pod) -> None:
    found = target.api.get()
    assert found["spec"]["holderIdentity"].startswith(f"{TARGET}/")
    assert found["spec"]["leaseTransitions"] == 2
    assert target.note("cut") == '[["10.1.0.2:5000", "10.9.9.9:443"]]'
    now = target.api.notes()
    assert (now["epoch"], now["started"], now["moved"]) == ("4", "4", "3")
    assert not {"offer", "offered", "released", "exit"} & set(now)


def test_it_goes_on_in_the_other_pod_as_if_nothing_had_been(source: Pod, target: Pod) -> None:
    script = TAKES.replace("touch", r"printf '\033]2;my title\007line %s\r\n' 1 2 3; touch")
    begin(source, script)
    with source.client() as ana:
        ana.attach(actor="ana", columns=90, rows=30)
        ana.typed(b"one,", 1, b"k1")
        until(lambda: acked(ana) == [1], "the first ack")
        before, screen = ana.ask("info"), ana.ask("screen")
        journal = ana.ask("journal")["records"]
        assert source.agent("park", to=TARGET)["ok"]
        ana.typed(b"two,", 2, b"k2")
        assert source.ask_hold("freeze")["ok"]
        files = sealed(source)["files"]
        carry(source, target, files)
        assert target.agent("prepare") == {"ok": True}
        assert not target.agent("status")["serving"]
        answer = target.agent("commit")
        assert answer == {"ok": True, "seq": before["seq"]}
        assert target.agent("commit")["ok"], "the answer may have been lost"
        with contextlib.suppress(ConnectionResetError):
            while ana.next():
                pass
        assert "ended" not in {news["kind"] for news in ana.news}
        assert [ack.number for ack in ana.acks] == [1]
        seq = ana.seq
    source.hold_goes()
    source.sidecar_goes()
    with target.client() as ben, target.client() as ana:
        ben.attach(actor="ben")
        with pytest.raises(NoTurn):
            ben.ask("send", text="not now")
        resume = {"session_id": before["session_id"], "seq": seq}
        welcome = ana.attach(actor="ana", columns=90, rows=30, resume=resume)
        assert (welcome["resumed"], welcome["holder"]) == (True, "ana")
        after, shown = ana.ask("info"), ana.ask("screen")
        same = ("session_id", "created", "seq", "oldest", "title", "columns", "rows", "command")
        assert {name: before[name] for name in same} == {name: after[name] for name in same}
        assert (before["epoch"], after["epoch"], after["title"]) == (3, 4, "my title")
        assert shown == screen
        assert "line 3" in shown["text"]
        records = ana.ask("journal")["records"]
        assert records[: len(journal)] == journal
        moved = [record for record in records if record["kind"] == "moved"]
        assert [(record["from"], record["to"]) for record in moved] == [(3, 4)]
        cut = [record for record in records if record["kind"] == "cut"]
        assert [(one["local"], one["remote"]) for one in cut] == [("10.1.0.2:5000", "10.9.9.9:443")]
        ana.typed(b"one,", 11, b"k1")
        ana.typed(b"two,", 12, b"k2")
        until(lambda: acked(ana) == [11, 12], "the acks")
        assert [(a.order, a.status) for a in ana.acks] == [
            (1, AckStatus.DUPLICATE),
            (2, AckStatus.APPLIED),
        ]
        until(lambda: taken(target) == b"two,", "what was typed on the way")
        assert ana.gaps == []
    lease_is_taken(target)
    assert (target.run / "epoch").read_text().split() == ["4"]
    assert target.status()["deadline_ns"] > 0
    assert target.agent("status")["serving"]


def test_what_was_not_yet_typed_is_typed_there_once_and_it_can_go_on_from_there(
    source: Pod, target: Pod
) -> None:
    data = b"".join(b"%07d," % n for n in range(40_000))
    begin(source, DEAF)
    with source.client() as client:
        client.attach()
        client.typed(data, 1, b"much")
        client.ask("ping")
        files = seal(source)["files"]
        assert client.acks == []
    carry(source, target, files)
    assert target.agent("commit")["ok"]
    until(lambda: taken(target).endswith(data[-8:]), "the rest of it")
    typed = taken(target)
    assert 0 < len(typed) < len(data)
    assert data.endswith(typed)
    with target.client() as client:
        client.attach()
        client.typed(data, 2, b"much")
        until(lambda: acked(client) == [2], "its ack")
        assert client.acks[0].status is AckStatus.DUPLICATE
    kill(target)
    requests = len(target.api.requests)
    target.start_sidecar()
    target.renewed_after(requests)
    with target.client() as client:
        facts = client.ask("info")
        client.ask("send", text="more")
        records = client.ask("journal")["records"]
    assert (facts["session_id"], facts["epoch"]) == ("session-uid.3", 4)
    assert [record["kind"] for record in records].count("moved") == 1
    until(lambda: taken(target) == typed + b"more", "no byte twice")
    # And once more, onwards: the stream keeps its name.
    assert target.agent("park", to="third")["ok"]
    assert target.ask_hold("freeze")["ok"]
    sealed(target)
    assert (target.state / "sealed.json").read_text().count('"session_id": "session-uid.3"') == 1


@pytest.mark.parametrize(
    "fault", [Fault(lost=True), Fault(reset=True), Fault(code=500), Fault(code=429)]
)
def test_the_taking_s_write_or_its_answer_is_lost(source: Pod, target: Pod, fault: Fault) -> None:
    begin(source)
    carry(source, target, seal(source)["files"])
    target.api.choose = once(takes, fault)
    assert target.agent("commit")["ok"]
    assert target.api.get()["spec"]["holderIdentity"].startswith(f"{TARGET}/")
    assert target.status()["deadline_ns"] > 0
    source.said("this incarnation (3) is over")


def test_the_source_renews_just_before_it_is_taken(source: Pod, target: Pod) -> None:
    begin(source)
    carry(source, target, seal(source)["files"])
    target.api.choose = once(takes, Fault(before=lambda: target.api.annotate(activity="new")))
    assert target.agent("commit")["ok"]
    assert sum(map(takes, target.api.requests)) >= 2


def test_the_source_takes_it_back_just_before_it_is_taken(source: Pod, target: Pod) -> None:
    begin(source)
    carry(source, target, seal(source)["files"])
    target.api.choose = once(takes, Fault(before=lambda: stay(source)))
    answer = target.agent("commit")
    assert (answer["ok"], answer["code"]) == (False, "refused")
    assert not target.agent("status")["serving"]
    with source.client() as client:
        client.attach()
        client.typed(b"one")
        until(lambda: acked(client) == [1], "its ack")
    # Another try, to the same pod.
    files = seal(source)["files"]
    for name in files:
        shutil.copy(source.state / name, target.state / name)
    assert target.agent("commit")["ok"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"offer": "another-pod"},
        {"offer": ""},
        {"epoch": "5"},
        {"epoch": "2"},
        {"released": "3"},
    ],
)
def test_only_what_is_offered_to_this_pod_by_the_epoch_before_is_taken(
    source: Pod, target: Pod, wrong: dict[str, str]
) -> None:
    begin(source)
    carry(source, target, seal(source)["files"])
    kill(source)
    target.api.annotate(**wrong)
    answer = target.agent("commit")
    assert (answer["ok"], answer["code"]) == (False, "refused")
    assert target.api.notes()["epoch"] != "4"  # a try by what it saw before is refused by the API


def test_another_session_s_lease_is_not_taken(source: Pod, target: Pod) -> None:
    begin(source)
    carry(source, target, seal(source)["files"])
    kill(source)
    target.api.put(owned(target.api.get(), "another-session"))
    assert target.agent("commit")["code"] == "refused"
    assert target.api.notes()["epoch"] != "4"  # a try by what it saw before is refused by the API


@pytest.mark.parametrize("broken", ["ring", "keyframe", "journal", "outbox", "sealed.json"])
def test_files_that_are_not_whole_are_refused_and_nothing_is_taken(
    source: Pod, target: Pod, broken: str
) -> None:
    begin(source, TAKES.replace("touch", "seq 50; touch"))
    with source.client() as client:
        client.attach()
        client.typed(b"one", 1, b"k1")
        until(lambda: acked(client) == [1], "its ack")
    files = seal(source)["files"]
    carry(source, target, files)
    (target.state / broken).write_bytes((target.state / broken).read_bytes()[:20])
    answer = target.agent("commit")
    assert (answer["ok"], answer["code"]) == (False, "refused")
    assert target.api.notes()["epoch"] != "4"  # a try by what it saw before is refused by the API
    shutil.copy(source.state / broken, target.state / broken)
    if broken == "keyframe":  # without one, what the ring had was given up
        shutil.copy(source.state / "ring", target.state / "ring")
    assert target.agent("commit")["ok"]


def put_anew(source: Pod, target: Pod, files: list[str]) -> None:
    """As the agent does: never into a file that is there."""
    for name in files:
        (target.state / name).unlink()
        shutil.copy(source.state / name, target.state / name)


def test_what_was_prepared_is_not_what_came_after_all(source: Pod, target: Pod) -> None:
    begin(source)
    carry(source, target, seal(source)["files"])
    assert target.agent("prepare")["ok"]
    stay(source)
    assert target.agent("commit")["code"] == "refused"
    assert target.agent("prepare")["ok"], "the files are right; whose it is, the Lease says"
    with source.client() as client:
        client.attach()
        client.typed(b"one", 1, b"k1")
        until(lambda: acked(client) == [1], "its ack")
    put_anew(source, target, seal(source)["files"])
    assert target.agent("commit")["ok"]
    with target.client() as client:
        client.attach()
        client.typed(b"one", 1, b"k1")
        until(lambda: acked(client) == [1], "its ack")
        assert client.acks[0].status is AckStatus.DUPLICATE


def test_prepared_it_is_taken_by_one_write(source: Pod, target: Pod) -> None:
    begin(source)
    carry(source, target, seal(source)["files"])
    kill(source)
    assert target.agent("prepare")["ok"]
    before = len(target.api.requests)
    assert target.agent("commit")["ok"]
    assert takes(target.api.requests[before])


@pytest.mark.parametrize("broken", ["ring", "sealed.json"])
def test_what_is_not_whole_cannot_be_prepared_and_may_come_again(
    source: Pod, target: Pod, broken: str
) -> None:
    begin(source)
    files = seal(source)["files"]
    carry(source, target, files)
    (target.state / broken).write_bytes((target.state / broken).read_bytes()[:20])
    assert target.agent("prepare")["code"] == "refused"
    put_anew(source, target, files)
    assert target.agent("prepare")["ok"]
    assert target.agent("commit")["ok"]


def test_nothing_is_taken_before_hold_has_the_session(source: Pod, target: Pod) -> None:
    begin(source)
    files = seal(source)["files"]
    target.start_hold("sh", "-c", TAKES)
    target.start_sidecar()
    target.said("waiting for a session")
    assert target.agent("status") == {
        "ok": True, "parked": False, "offered": False, "serving": False, "epoch": 4, "seq": 0,
    }  # fmt: skip
    assert target.agent("park", patient=False, to="x")["code"] == "not_serving"
    for name in files:
        shutil.copy(source.state / name, target.state / name)
    assert target.agent("commit")["code"] == "refused"
    assert not (target.state / "sidecar.sock").exists()
    stay(source)


# -- the target's sidecar is killed ---------------------------------------------------------------


def test_killed_before_the_commit_it_waits_again(source: Pod, target: Pod) -> None:
    begin(source)
    carry(source, target, seal(source)["files"])
    kill(target)
    writes = sum(map(is_write, target.api.requests))
    target.start_sidecar()
    assert not target.agent("status")["serving"]
    assert target.agent("commit")["ok"]
    assert sum(map(is_write, target.api.requests)) > writes


def test_killed_when_it_had_taken_it_and_not_served_it_serves_when_it_is_back(
    source: Pod, target: Pod
) -> None:
    begin(source, DEAF)
    data = b"x" * 100_000
    with source.client() as client:
        client.attach(actor="ana")
        client.typed(data, 1, b"k1")
        client.ask("ping")
        files = seal(source)["files"]
    carry(source, target, files)
    stop, landed = threading.Event(), threading.Event()

    def choose(request: Request) -> Fault | None:
        if landed.is_set() and not stop.is_set():
            return Fault(hang=stop)
        if takes(request) and not landed.is_set():
            landed.set()
            return Fault(lost=True)
        return None

    target.api.choose = choose
    asking = threading.Thread(target=lambda: ignored(lambda: target.agent("commit")))
    asking.start()
    assert landed.wait(10)
    until(lambda: target.api.notes().get("epoch") == "4", "the taking")
    kill(target)
    asking.join(20)
    stop.set()
    target.start_sidecar()
    with target.client() as ben:
        ben.attach(actor="ben")
        assert ben.welcome["holder"] == "ana"
        kinds = [record["kind"] for record in ben.ask("journal")["records"]]
    assert kinds.count("moved") == 1
    assert target.agent("commit")["ok"]
    until(lambda: taken(target)[-1:] == b"x", "what was to be typed")
    assert len(taken(target)) < len(data)
