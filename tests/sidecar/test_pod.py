"""A pod's sidecar as a real process, with a real hold and a real command, and an API that fails."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from api_kit import Fault, Pod, lease
from gateway_kit import remove, until
from holdfast_sidecar.agent import AgentError
from holdfast_sidecar.fence import Superseded
from holdfast_sidecar.hold import HoldError, HoldStatus
from holdfast_sidecar.pod import PodSidecar
from holdfast_sidecar.settings import Settings
from holdfast_wire.lease import Timing

from .test_budget import KEPT_OUT, PACKAGES, pss_mib
from .test_settings import GOOD

SHORTEST = 13  # seconds; its command is frozen 7.8 s after the last renewal
FREEZE_AFTER = Timing.of(SHORTEST).freeze_after
COUNT = "i=0; while :; do echo $((i+=1)) >> $COUNTER; sleep 0.05; done"
MAX_IDLE_PSS_MIB = 45


MakePod = Callable[..., Pod]


@pytest.fixture
def make_pod() -> Iterator[MakePod]:
    made: list[Pod] = []

    def make(duration: int = 20) -> Pod:
        # A socket's path must be short, and pytest's directories may not be.
        made.append(Pod(Path(tempfile.mkdtemp(prefix="hf-")), duration))
        return made[-1]

    yield make
    for pod in made:
        pod.close()
        remove(pod.folder)


@pytest.fixture
def pod(make_pod: MakePod) -> Pod:
    return make_pod()


# -- beginning ------------------------------------------------------------------------------------


def test_nothing_runs_before_the_lease_is_taken(pod: Pod) -> None:
    pod.api.always = Fault(code=429)
    pod.start_hold("sh", "-c", "cat $HOLDFAST_EPOCH_FILE; cat")
    pod.start_sidecar()
    until(lambda: len(pod.api.requests) >= 3, "some attempts")
    assert not pod.status()["started"]
    assert not (pod.run / "epoch").exists()
    pod.api.always = Fault()
    pod.note("started")
    until(lambda: pod.api.notes().get("activity") == "reading", "what it does", 5)
    notes = pod.api.notes()
    assert (notes["started"], notes["clients"], notes["turn"]) == ("3", "0", "")
    holder = pod.api.get()["spec"]["holderIdentity"]
    assert holder.startswith("pod-uid/")
    assert pod.status()["nonce"] not in holder
    assert pod.status()["deadline_ns"] > 0
    epoch = pod.run / "epoch"
    assert epoch.read_text().split() == ["3"]
    assert stat.S_IMODE(epoch.stat().st_mode) == 0o444
    with pod.client() as client:
        until(lambda: client.ask("screen")["text"].split() == ["3"], "the epoch on its screen")


def test_a_notice_is_the_first_line_although_the_command_says_nothing(pod: Pod) -> None:
    pod.start("cat", HOLDFAST_NOTICE="the node \x1b[2Jwas lost")
    with pod.client() as client:
        until(
            lambda: client.ask("screen")["text"].strip() == "holdfast  the node [2Jwas lost",
            "the notice",
            5,
        )


def test_a_command_that_cannot_start(pod: Pod) -> None:
    pod.start_hold("no-such-command")
    pod.start_sidecar()
    assert "command not found: no-such-command" in pod.note("start-error")
    assert pod.note("released") == "3"
    assert "exit" not in pod.api.notes()
    assert pod.hold_goes() == 127
    assert pod.sidecar_goes() == 0


def test_told_to_go_before_hold_came(pod: Pod) -> None:
    sidecar = pod.start_sidecar()
    until(lambda: _catches(sidecar.pid, signal.SIGTERM), "that it obeys signals")
    sidecar.terminate()
    assert pod.sidecar_goes() == 0
    pod.said("told to go before the session began")
    assert pod.api.requests == []


def _catches(pid: int, number: signal.Signals) -> bool:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    caught = next(int(line.split()[1], 16) for line in lines if line.startswith("SigCgt:"))
    return bool(caught >> (number - 1) & 1)


def test_hold_told_to_go_before_it_began_is_followed_by_another(pod: Pod) -> None:
    pod.api.always = Fault(code=503)
    pod.start_hold("cat")
    pod.start_sidecar()
    until(lambda: len(pod.api.requests) >= 2, "some attempts")
    os.kill(pod.hold_pid, signal.SIGTERM)
    pod.hold_goes()
    pod.api.always = Fault()
    note = pod.exit_note()
    assert (note["cause"], note["code"], note["lines"]) == ("terminated", None, [])
    assert "start-error" not in pod.api.notes()
    assert pod.sidecar_goes() == 0


def test_superseded_before_it_began(pod: Pod) -> None:
    pod.api.put(lease(4))
    pod.start_hold("cat")
    pod.start_sidecar()
    assert pod.hold_goes() == 128 + signal.SIGTERM
    assert pod.sidecar_goes() == 0
    assert pod.api.methods() == ["GET"]


# -- going on -------------------------------------------------------------------------------------


def test_frozen_while_the_api_is_away_and_thawed_when_it_is_back(make_pod: MakePod) -> None:
    pod = make_pod(SHORTEST)
    pod.start("bash", "-c", COUNT)
    pod.counting()
    pod.api.always = Fault(reset=True)
    pod.api.drop_connections()
    gone = time.monotonic()
    until(lambda: pod.status()["frozen"], "the freeze", FREEZE_AFTER + 2)
    assert time.monotonic() - gone > FREEZE_AFTER - Timing.of(SHORTEST).renew_every - 1
    stopped = pod.count()
    until(lambda: pod.status()["expired"], "the deadline")
    assert pod.count() == stopped
    pod.api.always = Fault()
    pod.counting()
    assert not pod.status()["frozen"]
    assert pod.api.get()["spec"]["holderIdentity"].startswith("pod-uid/")


def test_a_sidecar_that_stands_still_freezes_its_session(make_pod: MakePod) -> None:
    pod = make_pod(SHORTEST)
    pod.start("bash", "-c", COUNT)
    pod.counting()
    assert pod.sidecar is not None
    pod.sidecar.send_signal(signal.SIGSTOP)
    until(lambda: pod.status()["frozen"], "the freeze", FREEZE_AFTER + 2)
    pod.sidecar.send_signal(signal.SIGCONT)
    pod.counting()


def test_killed_and_started_again_it_is_the_same(pod: Pod) -> None:
    pod.start("bash", "--norc")
    before = pod.api.get()
    with pod.client() as client:
        until(lambda: client.ask("screen")["seq"] > 0, "a prompt")
        facts = client.ask("info")
    assert pod.sidecar is not None
    (pod.run / "epoch.new").write_text("left by one that was killed")
    (pod.run / "epoch.new").chmod(0o444)
    for _ in range(2):
        pod.sidecar.kill()
        pod.sidecar_goes()
        pod.log.write_text("")
        pod.start_sidecar(HOLDFAST_NOTICE="not shown twice")
        pod.said("serving it")
    after = pod.api.get()
    assert after["spec"]["holderIdentity"] == before["spec"]["holderIdentity"]
    assert after["spec"]["leaseTransitions"] == before["spec"]["leaseTransitions"] == 1
    with pod.client() as client:
        again = client.ask("info")
        assert "twice" not in client.ask("screen")["text"]
    same = ("session_id", "created", "pid")
    assert {name: facts[name] for name in same} == {name: again[name] for name in same}


def test_the_lease_was_deleted(pod: Pod) -> None:
    pod.start("bash", "-c", COUNT)
    pod.counting()
    pod.api.delete()
    until(lambda: pod.status()["frozen"], "the freeze", 8)
    stopped = pod.count()
    pod.said("the Lease is missing")
    assert pod.count() == stopped
    pod.api.put(lease(4, "nobody"))
    assert pod.hold_goes() == 128 + signal.SIGKILL
    assert pod.sidecar_goes() == 0
    assert pod.api.notes() == {"epoch": "4"}


def test_superseded_everything_is_killed(pod: Pod) -> None:
    pod.start("bash", "-c", f"trap '' HUP TERM; ({COUNT}) & {COUNT}")
    pod.counting()
    pod.api.put(lease(4, "next/nonce"))
    assert pod.hold_goes() == 128 + signal.SIGKILL
    stopped = pod.count()
    assert pod.sidecar_goes() == 0
    pod.said("this incarnation (3) is over")
    assert pod.count() == stopped
    assert pod.api.get()["spec"]["holderIdentity"] == "next/nonce"


# -- ending ---------------------------------------------------------------------------------------


def test_the_end_is_told_and_the_lease_given_back(pod: Pod) -> None:
    pod.start("bash", "-c", "for i in {1..30}; do echo line $i; done; read x; exit $x")
    with pod.client() as client:
        until(lambda: "line 30" in client.ask("screen")["text"], "its output")
        client.ask("send", text="7\n")
        note = pod.exit_note()
        assert pod.hold_goes() == 7
        assert "line 30" in client.ask("screen")["text"]  # it can still be read
    assert (note["code"], note["signal"], note["cause"]) == (7, None, "exited")
    assert note["lines"][-2:] == ["line 30", "7"]
    assert len(note["lines"]) == 20
    assert pod.sidecar is not None
    pod.sidecar.terminate()
    assert pod.sidecar_goes() == 0


def test_nothing_is_given_back_while_anything_runs(pod: Pod) -> None:
    pod.start("bash", "-c", f"trap '' HUP TERM; ({COUNT}) & sleep 1; exit 0")
    pod.counting()
    pod.note("released")
    stopped = pod.count()
    pod.hold_goes()
    assert pod.count() == stopped


def test_terminated_the_lease_is_kept_until_nothing_is_under_way(pod: Pod) -> None:
    stubborn = f"trap '' HUP; ({COUNT}) & trap 'exit 3' HUP; read x"
    pod.start("bash", "-c", stubborn)
    pod.counting()
    os.kill(pod.hold_pid, signal.SIGTERM)
    note = pod.exit_note()
    seen = time.time()
    assert (note["cause"], note["code"]) == ("terminated", 3)
    assert seen - (pod.folder / "counter").stat().st_mtime >= Timing.of(20).in_flight
    assert pod.hold_goes() == 3


def test_an_end_is_told_to_who_is_attached(pod: Pod) -> None:
    pod.start("bash", "-c", "read x; exit 3")
    with pod.client() as client:
        client.attach()
        client.typed(b"\n")
        pod.exit_note()
        client.ask("ping")  # what was said before the answer has been heard
        assert "ended" in [news["kind"] for news in client.news]


def test_when_the_pod_goes_who_is_attached_is_sent_to_look_for_the_next(pod: Pod) -> None:
    pod.start("bash", "-c", "read x; exit 3")
    with pod.client() as client:
        client.attach()
        os.kill(pod.hold_pid, signal.SIGTERM)
        with contextlib.suppress(ConnectionResetError):  # a silent one would be a TimeoutError
            while client.next():
                pass
        told = [(news["kind"], news.get("activity")) for news in client.news]
        assert not {("ended", None), ("state", "ended")} & set(told)
    assert not (pod.state / "sidecar.sock").exists()
    pod.exit_note()


@pytest.mark.parametrize("served", [True, False])
def test_hold_was_killed_and_the_sidecar_told_to_go_meanwhile(pod: Pod, served: bool) -> None:
    pod.start_hold("cat")
    pod.start_sidecar()
    until(lambda: pod.status()["started"], "its command")
    if served:
        pod.said("serving it from seq 0")
    os.kill(pod.hold_pid, signal.SIGKILL)
    pod.hold_goes()
    assert pod.sidecar is not None
    until((pod.state / "exit.json").exists, "that it knows")
    pod.sidecar.terminate()  # as kubelet does, at once
    note = pod.exit_note()
    assert (note["cause"], note["signal"]) == ("killed", signal.SIGKILL)
    assert pod.sidecar_goes() == 0


def test_a_sidecar_killed_before_it_could_tell_the_end_does_so_when_it_is_back(pod: Pod) -> None:
    pod.start("bash", "-c", "read x; exit 4")
    with pod.client() as client:
        pod.api.always = Fault(code=500)
        client.ask("send", text="\n")
        until((pod.state / "exit.json").exists, "its end")
    assert pod.sidecar is not None
    pod.sidecar.kill()
    pod.sidecar_goes()
    assert "exit" not in pod.api.notes()
    pod.api.always = Fault()
    pod.start_sidecar()
    assert pod.exit_note()["code"] == 4
    assert pod.hold_goes() == 4


# -- hold, or not ---------------------------------------------------------------------------------


def test_an_impostor_at_hold_s_socket_is_not_believed(pod: Pod) -> None:
    """The session can put a socket of its own there while no sidecar runs. What it says, and its
    end, mean nothing."""
    pod.start("bash", "-c", COUNT)
    assert pod.sidecar is not None
    pod.sidecar.kill()
    pod.sidecar_goes()
    real = pod.socket.rename(pod.folder / "moved")
    said = {**_asked(real), "nonce": "f" * 16, "started": False}
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as impostor:
        impostor.bind(str(pod.socket))
        impostor.listen()
        impostor.settimeout(10)
        requests = len(pod.api.requests)
        pod.start_sidecar()
        heard = [_answer_as(impostor, [said, said])]  # then closed
        pod.said("is not the hold that has this sidecar's nonce")
        heard.append(_answer_as(impostor, [b"no JSON"]))
        pod.socket.unlink()
    assert {word for words in heard for word in words} == {b"status"}
    assert pod.api.requests[requests:] == []
    real.rename(pod.socket)
    pod.counting()
    pod.renewed_after(requests)
    pod.counting()
    assert "released" not in pod.api.notes()


def _asked(path: Path) -> dict[str, Any]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.connect(str(path))
        sock.send(b"status")
        found: dict[str, Any] = json.loads(sock.recv(65536))
        return found


def _answer_as(impostor: socket.socket, answers: list[Any]) -> list[bytes]:
    heard = []
    peer, _ = impostor.accept()
    with peer:
        peer.settimeout(10)
        for answer in answers:
            heard.append(peer.recv(1000))
            peer.send(answer if isinstance(answer, bytes) else json.dumps(answer).encode())
    return heard


@pytest.mark.parametrize("lives", [True, False])
async def test_a_link_that_ends_before_hold_s_socket_does(tmp_path: Path, lives: bool) -> None:
    """A hold that dies still has its socket when its connections are closed already."""
    path = tmp_path / "hold.sock"
    env = {**GOOD, "HOLDFAST_STATE": str(tmp_path), "HOLDFAST_RUN": str(tmp_path),
           "HOLDFAST_HOLD": str(path)}  # fmt: skip
    sidecar = PodSidecar(Settings.read(env))
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(str(path))
        listening.listen()
        sidecar._met = True
        sidecar._lost()
        await asyncio.sleep(0)  # and it is let in
        if lives:
            said: dict[str, Any] = dict.fromkeys(HoldStatus.__slots__, 0)
            assert _answer_as(listening, [{"ok": True, **said, "unstopped": []}]) == [b"status"]
    assert await sidecar._hold_vanished() is not lives
    sidecar._sidecar.session.journal.close()
    sidecar._sidecar.session.ring.close()


class Scripted:
    """Both a hold that starts nothing and a Lease, for what cannot be timed with real ones."""

    def __init__(self, *errors: str) -> None:
        self.errors = list(errors)
        self.calls: list[str] = []

    async def start(self, _columns: int, _rows: int) -> None:
        self.calls.append("start")
        if self.errors:
            raise HoldError(self.errors.pop(0), "as the test has it")

    async def acquire(self) -> None:
        self.calls.append("acquire")

    async def release(self, **notes: str) -> None:
        self.calls.append(f"release {' '.join(notes)}")

    def note(self, **notes: str) -> None:
        self.calls.append(f"note {' '.join(notes)}")

    def renew_now(self) -> None: ...


@pytest.mark.parametrize(
    ("errors", "raised", "calls"),
    [
        # It was stopped between the two for longer than its deadline.
        (["expired", "busy"], None, [*["acquire", "start"] * 3, "note started"]),
        (["cannot_start"], Superseded, ["acquire", "start", "release start_error"]),
        # hold is there and only the link broke: another sidecar starts the command.
        (["lost"], HoldError, ["acquire", "start"]),
    ],
)
async def test_what_becomes_of_a_start_that_fails(
    tmp_path: Path, errors: list[str], raised: type[Exception] | None, calls: list[str]
) -> None:
    env = {**GOOD, "HOLDFAST_STATE": str(tmp_path), "HOLDFAST_RUN": str(tmp_path)}
    sidecar = PodSidecar(Settings.read(env))
    both: Any = Scripted(*errors)
    waiting: Any = SimpleNamespace(started=False)
    with pytest.raises(raised) if raised else contextlib.nullcontext():
        await sidecar._begin(both, waiting, both)
    assert both.calls == calls
    sidecar._sidecar.session.journal.close()
    sidecar._sidecar.session.ring.close()


async def test_of_what_was_suspended_before_it_came_a_sidecar_says_so(tmp_path: Path) -> None:
    env = {**GOOD, "HOLDFAST_STATE": str(tmp_path), "HOLDFAST_RESTORE": "stored"}
    sidecar = PodSidecar(Settings.read(env))
    fence: Any = SimpleNamespace(suspended="")
    sidecar._fence = fence
    own = {"session": env["HOLDFAST_SESSION_UID"], "namespace": env["HOLDFAST_NAMESPACE"],
           "epoch": int(env["HOLDFAST_EPOCH"])}  # fmt: skip
    ask = {"do": "suspend", "checkpoint": "it-3-k1", **own}
    with pytest.raises(AgentError, match="served") as not_yet:
        await sidecar._asked(ask)
    assert not_yet.value.code == "not_serving"
    fence.suspended = "it-3-k1"
    assert await sidecar._asked(ask) == {"seq": 0}
    for other in ({**ask, "checkpoint": "it-3-k2"}, {"do": "unpark", **own}):
        with pytest.raises(AgentError, match="suspended") as superseded:
            await sidecar._asked(other)
        assert superseded.value.code == "superseded"


# -- small things ---------------------------------------------------------------------------------


def test_where_a_session_is_awaited_nothing_is_made_before_it_comes(tmp_path: Path) -> None:
    waits = Settings.read({**GOOD, "HOLDFAST_STATE": str(tmp_path), "HOLDFAST_RESTORE": "it-2"})
    assert (waits.restore, waits.stored) == (True, False)
    PodSidecar(waits)
    assert list(tmp_path.iterdir()) == []
    assert not Settings.read({**GOOD, "HOLDFAST_STATE": str(tmp_path)}).restore


LOADED = """
import sys
before = set(sys.modules)
import holdfast_sidecar.pod
print(*{name.split(".")[0] for name in set(sys.modules) - before})
"""


def test_imports_are_pinned() -> None:
    command = [sys.executable, "-c", LOADED]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    loaded = set(run.stdout.split())
    assert {name for name in loaded if name not in sys.stdlib_module_names} == PACKAGES
    assert not loaded & KEPT_OUT


def test_idle_it_is_small(pod: Pod) -> None:
    pod.start("cat")
    assert pod.sidecar is not None
    pod.note("activity")
    assert pss_mib(pod.sidecar.pid) < MAX_IDLE_PSS_MIB
