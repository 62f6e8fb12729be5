"""A stored session goes on in a pod: it is recovered, woken, or forked. Real sidecars and holds,
but the processes are not restored here: the pod's hold has a command of its own."""

from __future__ import annotations

import json
import re
import shutil
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from api_kit import Fault, Pod, Request, lease, owned
from gateway_kit import until
from holdfast_wire.frames import AckStatus

from .moving import TAKES, acked, begin, ignored, is_write, kill, pod_file, taken
from .test_keep import keep

CHECKPOINT = "it-3-k7"
SCRIPT = TAKES.replace("touch", r"printf 'line %s\r\n' 1 2 3; touch")


@dataclass(frozen=True)
class Kept:
    folder: Path
    files: list[str]
    seq: int
    taken: float
    info: dict[str, Any]

    def put(self, pod: Pod, *names: str) -> None:
        for name in names or self.files:
            shutil.copy(self.folder / name, pod.state / name)


@pytest.fixture(scope="module")
def kept() -> Iterator[Kept]:
    """The files of epoch 3 of session-uid, in which ana has the turn and typed once."""
    folder = Path(tempfile.mkdtemp(prefix="hf-"))
    pod = Pod(folder, 20)
    pod.for_agents = Path("/proc/self").stat().st_uid != 0
    try:
        begin(pod, SCRIPT)
        with pod.client() as ana:
            ana.attach(actor="ana")
            ana.typed(b"one,", 1, b"k1")
            until(lambda: acked(ana) == [1], "its ack")
            info = ana.ask("info")
            answer = keep(pod)
        store = Path(shutil.copytree(pod.state, folder / "store", ignore=_sockets))
        yield Kept(store, answer["files"], answer["seq"], time.time() - 100, info)
    finally:
        pod.close()
        shutil.rmtree(folder)


def _sockets(_folder: str, names: list[str]) -> list[str]:
    return [name for name in names if name.endswith(".sock")]


Bring = Callable[..., Pod]


@pytest.fixture
def bring(pods: Callable[[Pod | None], Pod], kept: Kept) -> Bring:
    """A pod of this epoch with everything in place for `commit`."""

    def make(epoch: int, session: str = "session-uid") -> Pod:
        pod = pods(None)
        pod.epoch = epoch
        pod.api.put(owned(lease(epoch, suspended="it-3-k6"), session))
        pod.start_hold("sh", "-c", TAKES)
        again(pod, session)
        pod.said("waiting for a session")
        kept.put(pod)
        (pod.state / "cut.json").write_text('[["10.1.0.2:5000", "10.9.9.9:443"]]')
        assert pod.ask_hold("start 80x24")["ok"]
        until(pod_file(pod).exists, "the restored command")
        return pod

    return make


def again(pod: Pod, session: str = "session-uid") -> None:
    wide = {"HOLDFAST_COLUMNS": "100"} if session == "fork-uid" else {}
    pod.session = session
    pod.start_sidecar(HOLDFAST_RESTORE="stored", **wide)


def commit(pod: Pod, kept: Kept, why: str, /, **other: Any) -> dict[str, Any]:
    stored = {"epoch": 3, "taken": kept.taken, "why": why, "from": "it", "checkpoint": CHECKPOINT}
    return pod.agent("commit", stored=stored | other)


PLACE = ("time", "number", "previous")


def records(pod: Pod, *kinds: str) -> list[dict[str, Any]]:
    with pod.client() as client:
        found = client.ask("journal")["records"]
    return [
        {name: value for name, value in record.items() if name not in PLACE}
        for record in found
        if record["kind"] in kinds
    ]


def screen(pod: Pod) -> str:
    with pod.client() as client:
        return " ".join(str(client.ask("screen")["text"]).split())


def writes(pod: Pod) -> int:
    return sum(map(is_write, pod.api.requests))


def rfc3339(moment: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(moment))


# -- it goes on -----------------------------------------------------------------------------------


def test_woken_it_is_as_if_nothing_had_been(kept: Kept, bring: Bring) -> None:
    pod = bring(6)
    told = json.loads((pod.state / "sealed.json").read_text())
    (pod.state / "sealed.json").write_text(json.dumps({**told, "active": kept.taken}))
    assert commit(pod, kept, "Wake") == {"ok": True, "seq": kept.seq}
    assert commit(pod, kept, "Wake")["ok"], "the answer may have been lost"
    assert commit(pod, kept, "Wake", checkpoint="another")["code"] == "refused"
    with pod.client() as ana:
        resume = {"session_id": "session-uid.3", "seq": kept.seq}
        welcome = ana.attach(actor="ana", resume=resume)
        assert (welcome["resumed"], welcome["holder"], welcome["epoch"]) == (True, "ana", 6)
        assert welcome["created"] == kept.info["created"]
        assert welcome["idle_seconds"] < time.time() - kept.taken - 1, "it has just been woken"
        ana.typed(b"one,", 2, b"k1")
        ana.typed(b"two,", 3, b"k2")
        until(lambda: acked(ana) == [2, 3], "the acks")
        assert [ack.status for ack in ana.acks] == [AckStatus.DUPLICATE, AckStatus.APPLIED]
        assert bytes(ana.stream) == b""
    until(lambda: taken(pod) == b"two,", "what was typed")
    woken = {"kind": "woken", "from": 3, "to": 6, "taken": kept.taken, "checkpoint": CHECKPOINT}
    cut = {"kind": "cut", "local": "10.1.0.2:5000", "remote": "10.9.9.9:443"}
    assert records(pod, "woken", "restored", "moved", "cut") == [woken, cut]
    pod.note("cut")
    now = pod.api.notes()
    said = {
        "epoch": "6", "started": "6", "restored": "3", "restored-from": CHECKPOINT,
        "restored-taken": rfc3339(kept.taken), "cut": '[["10.1.0.2:5000", "10.9.9.9:443"]]',
    }  # fmt: skip
    assert {name: now.get(name) for name in said} == said
    assert not {"suspended", "released", "moved", "exit"} & set(now)
    assert pod.api.get()["spec"]["holderIdentity"].startswith(f"{pod.uid}/")
    assert (pod.run / "epoch").read_text().split() == ["6"]
    assert not (pod.run / "fork").exists()


def test_recovered_it_is_a_stream_of_its_own_and_says_what_is_lost(
    kept: Kept, bring: Bring
) -> None:
    pod = bring(4)
    killed_before_it_waits_again(pod)
    killed_after_it_serves_without_being_asked(pod, kept)
    with pod.client() as ana:
        welcome = ana.attach(actor="ana", resume={"session_id": "session-uid.3", "seq": 0})
        assert (welcome["resumed"], welcome["session_id"]) == (False, "session-uid.4")
        ana.typed(b"one,", 2, b"k1")
        until(lambda: acked(ana) == [2], "the ack")
        assert ana.acks[0].status is AckStatus.DUPLICATE, "it is part of what was restored"
    shown = screen(pod)
    when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(kept.taken))
    said = re.search(rf"line 3 holdfast Restored from the checkpoint of {when}: .* (\d+) s", shown)
    assert said, shown
    assert 100 <= int(said[1]) < 100 + time.time() - kept.taken
    # Stored again, and killed meanwhile: it is still the one that it became.
    keep(pod)
    kill(pod)
    again(pod)
    pod.said("the session is sealed, and to be stored")
    assert pod.agent("unpark")["ok"]
    assert pod.ask_hold("thaw")["ok"]
    with pod.client() as client:
        info = client.ask("info")
    assert (info["session_id"], info["epoch"]) == ("session-uid.4", 4)
    assert screen(pod).count("Restored from") == 1
    assert [record["to"] for record in records(pod, "restored")] == [4]


def killed_before_it_waits_again(pod: Pod) -> None:
    kill(pod)
    again(pod)
    assert not pod.agent("status")["serving"]


def killed_after_it_serves_without_being_asked(pod: Pod, kept: Kept) -> None:
    stop, landed = threading.Event(), threading.Event()

    def choose(request: Request) -> Fault | None:
        if landed.is_set() and not stop.is_set():
            return Fault(hang=stop)
        if is_write(request) and not landed.is_set():
            landed.set()
            return Fault(lost=True)
        return None

    pod.api.choose = choose
    asking = threading.Thread(target=lambda: ignored(lambda: commit(pod, kept, "Recover")))
    asking.start()
    assert landed.wait(20)
    until(lambda: pod.api.notes().get("restored") == "3", "the taking")
    kill(pod)
    asking.join(20)
    stop.set()
    again(pod)
    with pod.client() as client:
        assert client.ask("info")["session_id"] == "session-uid.4"
    assert commit(pod, kept, "Recover") == {"ok": True, "seq": pod.agent("status")["seq"]}


def test_a_fork_is_another_session_and_knows_it(kept: Kept, bring: Bring) -> None:
    pod = bring(1, "fork-uid")
    assert commit(pod, kept, "Fork", **{"from": "build"})["ok"]
    with pod.client() as client:
        assert client.ask("info")["columns"] == 80, "as it was, whatever is asked of a new one"
    fork = pod.run / "fork"
    assert json.loads(fork.read_text()) == {
        "session": "build", "epoch": 3, "checkpoint": CHECKPOINT, "takenAt": rfc3339(kept.taken),
    }  # fmt: skip
    assert stat.S_IMODE(fork.stat().st_mode) == 0o444
    with pod.client() as ben:
        welcome = ben.attach(actor="ben", resume={"session_id": "session-uid.3", "seq": 0})
        assert (welcome["resumed"], welcome["session_id"]) == (False, "fork-uid.1")
        assert welcome["holder"] == "ben", "the turn was nobody's"
        assert welcome["created"] > kept.info["created"]
        assert ben.ask("take")["holder"] == "ben"
    with pod.client() as ana:
        ana.attach(actor="ana")
        ana.typed(b"one,", 1, b"k1")
        until(lambda: acked(ana) == [1], "its ack")
        assert ana.acks[0].status is AckStatus.APPLIED, "the key was the other session's"
    until(lambda: taken(pod) == b"one,", "what was typed")
    assert f"This is a fork of build, taken {rfc3339(kept.taken)[:10]}" in screen(pod)
    assert [(r["session"], r["from"], r["to"]) for r in records(pod, "forked")] == [("build", 3, 1)]
    fork.unlink()
    kill(pod)
    again(pod, "fork-uid")
    with pod.client() as ana:
        assert ana.attach(actor="ana")["session_id"] == "fork-uid.1"
        ana.typed(b"one,", 1, b"k1")
        until(lambda: acked(ana) == [1], "its ack")
        assert ana.acks[0].status is AckStatus.DUPLICATE, "now it is its own"
    assert fork.exists()
    # Where it goes on from here it is a fork still.
    keep(pod)
    told = json.loads((pod.state / "sealed.json").read_text())
    assert (told["session_id"], told["fork"]["session"]) == ("fork-uid.1", "build")


# -- it does not ----------------------------------------------------------------------------------


def test_what_is_not_what_was_stored_is_refused_and_the_lease_is_left_alone(
    kept: Kept, bring: Bring
) -> None:
    pod = bring(5)
    asked: list[dict[str, Any]] = [
        {"epoch": 2}, {"epoch": 4}, {"epoch": 5}, {"epoch": 6},
    ]  # fmt: skip
    for wrong in asked:
        assert commit(pod, kept, "Wake", **wrong)["code"] == "refused", wrong
    asked = [
        {"epoch": "3"}, {"epoch": 0}, {"taken": -1}, {"taken": True}, {"why": "Move"},
        {"from": ""}, {"checkpoint": 3}, {"checkpoint": "a\nb"},
    ]  # fmt: skip
    for wrong in asked:
        assert commit(pod, kept, "Wake", **wrong)["code"] == "bad_request", wrong
    assert pod.agent("commit")["code"] == "bad_request"
    for name in ("ring", "keyframe", "journal", "outbox", "sealed.json"):
        (pod.state / name).write_bytes((pod.state / name).read_bytes()[:20])
        assert commit(pod, kept, "Recover")["code"] == "refused", name
        kept.put(pod)
    told = json.loads((pod.state / "sealed.json").read_text())
    (pod.state / "sealed.json").write_text(json.dumps({**told, "session_id": "other.3"}))
    for why in ("Recover", "Wake"):
        assert "of session other.3" in commit(pod, kept, why)["message"]
    kept.put(pod)
    for taken_lease in (
        lease(5, "another/nonce"), lease(5, released="5"), lease(6), lease(4),
    ):  # fmt: skip
        pod.api.put(owned(taken_lease))
        assert commit(pod, kept, "Recover")["code"] == "refused", taken_lease
    pod.api.put(owned(lease(5), "another-session"))
    assert commit(pod, kept, "Recover")["code"] == "refused"
    pod.api.delete()
    assert commit(pod, kept, "Recover")["code"] == "refused"
    assert writes(pod) == 0
    assert not pod.agent("status")["serving"]
    pod.api.put(owned(lease(5)))
    assert commit(pod, kept, "Recover")["ok"]
