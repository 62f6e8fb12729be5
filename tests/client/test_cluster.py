"""The commands against sessions in a cluster: the sidecars are real, only the API is files."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from client_kit import Home, Screen, eventually
from holdfast.connection import Connection, open_socket
from holdfast_wire.ids import Actor

from .fake_cluster import FakeCluster

DETACH = b"\x1cd"


@pytest.fixture(scope="module")
def shell(home: Home) -> Iterator[str]:
    home.start("work")
    yield "work"
    home.run("end", "work", "--grace", "0")


@pytest.fixture
def build(cluster: FakeCluster, shell: str, home: Home) -> str:
    """A session that runs in pod build-1; the turn is the cluster user's."""
    path = home.folder(shell).sidecar_socket
    with Connection(open_socket(path), "test", Actor("ana@x")) as session:
        session.request("take")
    cluster.session("build", phase="Running", podName="build-1", epoch=1)
    cluster.pod("build-1", shell)
    return "build"


# -- what needs only the API


def test_ls(cluster: FakeCluster) -> None:
    cluster.session(
        "build", phase="Running", podName="build-2", nodeName="n1", epoch=2, turn="ana", clients=3,
        activity="prompt", lastActiveTime="2026-01-01T00:00:00Z",
    )  # fmt: skip
    cluster.session("over", phase="Ended", exit={"code": 3, "cause": "exited"}, epoch=1)
    moves = {"progress": "copying 1/2 MiB"}
    cluster.session("new", namespace="team", phase="Moving", move=moves)
    header, *rows = cluster.ok("ls").splitlines()
    assert header.split() == [
        "NAME", "PHASE", "NODE", "EPOCH", "TURN", "CLIENTS", "IDLE", "AGE",
    ]  # fmt: skip
    assert [row.split()[:6] for row in rows] == [
        ["build", "Running", "n1", "2", "ana", "3"],
        ["over", "Ended", "(3)", "-", "1", "-"],
    ]
    assert cluster.ok("ls", "-o", "name") == "build\nover\n"
    assert cluster.ok("ls", "-n", "team", "-o", "name") == "new\n"
    assert "Moving (copying 1/2 MiB)" in cluster.ok("ls", "-n", "team")
    assert cluster.ok("ls", "-A", "-o", "name") == "default/build\ndefault/over\nteam/new\n"
    assert cluster.ok("ls", "-A").splitlines()[3].split()[:3] == ["team", "new", "Moving"]
    listed = json.loads(cluster.ok("ls", "-o", "json"))["sessions"]
    assert [one["name"] for one in listed] == ["build", "over"]
    assert listed[0]["activity"] == "prompt"
    assert "exec" not in {call["words"][0] for call in cluster.calls("get")}


def test_no_sessions(cluster: FakeCluster) -> None:
    done = cluster.run("ls")
    assert (done.returncode, done.stdout) == (0, "")
    assert "holdfast --cluster run NAME --image IMAGE" in done.stderr


def test_hostile_objects(cluster: FakeCluster) -> None:
    cluster.session(
        "evil", phase="Ended", nodeName="\x1b[2Jn", turn="\x1b]0;x\x07t", lastLines=["\x1b[2Jx"],
        conditions=[{"type": "Ready", "status": "False", "message": "a\x1bcb"}],
    )  # fmt: skip
    for text in (cluster.ok("ls"), cluster.ok("describe", "evil"), cluster.ok("screen", "evil")):
        assert "\x1b" not in text
        assert "\x07" not in text


def test_describe(cluster: FakeCluster) -> None:
    cluster.session(
        "build", phase="Ended", podName="build-1", nodeName="n1", epoch=1,
        lastLines=["$ make", "!"],
        exit={"code": 2, "signal": None, "cause": "exited"}, endedAt="2026-01-01T00:10:00Z",
        conditions=[{"type": "Ready", "status": "False", "reason": "Over", "message": "it ended"}],
    )  # fmt: skip
    old = {"type": "Normal", "reason": "Started", "message": "up"}
    new = {"type": "Warning", "reason": "Ended", "message": "over"}
    cluster.set(
        events=[
            new | {"lastTimestamp": "2026-01-01T00:10:00Z"},
            old | {"eventTime": "2026-01-01T00:00:00.000001Z", "lastTimestamp": None},
        ]
    )
    text = cluster.ok("describe", "build")
    for line in (
        r"Phase:      Ended",
        r"Exit:       exit code 2 (exited)",
        r"Node:       n1",
        r"Pod:        build-1",
        r"Epoch:      1",
        r"  Ready     False   Over    it ended",
        r"  $ make",
    ):
        assert line in text.splitlines(), text
    assert text.index("Started") < text.index("Warning")
    assert cluster.calls("get")[-1]["words"][2] == (
        "--field-selector=involvedObject.name=build,involvedObject.kind=Session"
    )
    body = json.loads(cluster.ok("describe", "build", "-o", "json"))
    assert [event["reason"] for event in body["events"]] == ["Started", "Ended"]
    assert body["last_lines"] == ["$ make", "!"]


def test_describe_without_the_right_to_events(cluster: FakeCluster) -> None:
    cluster.session("build", phase="Running")
    cluster.kubectl.write_text(
        cluster.kubectl.read_text().replace(
            'say({"items": cluster["events"]})', 'missing("events")'
        )
    )
    done = cluster.run("describe")
    assert done.returncode == 0
    assert "Running" in done.stdout
    assert "its events cannot be read" in done.stderr


def test_end(cluster: FakeCluster) -> None:
    for name in ("a", "b", "c"):
        cluster.session(name, phase="Running")
    assert cluster.ok("end", "a") == "a ended: killed by SIGTERM\n"
    assert cluster.calls("patch")[0]["words"] == [
        "patch", "sessions.holdfast.dev", "a", "--type=merge", "--patch",
        '{"spec":{"ended":true}}',
    ]  # fmt: skip
    done = cluster.run("end", "a")
    assert done.returncode == 69
    assert "session a has ended: killed by SIGTERM" in done.stderr
    cluster.set(ends=False)
    assert cluster.ok("end", "b", "--no-wait") == "b is ending\n"
    cluster.set(ends=True)
    assert cluster.ok("end", "--all").count(" ended: ") == 2
    assert "there is no session to end" in cluster.run("end", "--all").stderr


def test_move(cluster: FakeCluster) -> None:
    cluster.session("a", phase="Running", epoch=3, nodeName="n1", podName="a-3")
    assert cluster.ok("move", "a", "--to", "n1") == "a is on n1 already\n"
    refused = cluster.run("move", "a", "--to", "n9")
    assert refused.returncode == 64
    assert "there is no node 'n9'" in refused.stderr
    assert not cluster.calls("annotate")
    assert cluster.ok("move", "a") == "a is on n2 now\n"
    assert cluster.calls("annotate")[-1]["words"] == [
        "annotate", "sessions.holdfast.dev", "a", "--overwrite", "holdfast.dev/move=3",
    ]  # fmt: skip
    assert cluster.ok("move", "a", "--to", "n1", "--no-wait") == "a is to move\n"
    assert cluster.calls("annotate")[-1]["words"][-1] == "holdfast.dev/move=4/n1"


def test_a_move_that_fails_is_said_and_not_asked_for_any_more(cluster: FakeCluster) -> None:
    cluster.session("a", phase="Running", epoch=3, nodeName="n1", podName="a-3")
    cluster.set(ends=False)
    done = cluster.run("move", "a")
    assert done.returncode == 75
    assert "runs on where it is: strace" in done.stderr
    assert cluster.calls("annotate")[-1]["words"][-1] == "holdfast.dev/move-"


def test_suspend_and_wake(cluster: FakeCluster) -> None:
    cluster.session("a", phase="Running", epoch=3, nodeName="n1", podName="a-3")
    assert cluster.ok("wake", "a") == "a is not suspended: it is Running\n"
    told = cluster.ok("suspend", "a")
    assert told == "a is suspended; go on with: holdfast --cluster wake a\n"
    assert cluster.body["sessions"][0]["spec"]["suspended"] is True
    assert "Suspended" in cluster.ok("ls")
    assert "a-3-k1" in cluster.ok("describe", "a")
    done = cluster.run("wake", "a")
    assert (done.returncode, done.stdout) == (0, "a goes on, on n2\n")
    assert "waking a …" in done.stderr
    assert json.loads(cluster.calls("patch")[-1]["words"][-1]) == {
        "metadata": {"annotations": {"holdfast.dev/wake": "3"}},
        "spec": {"suspended": False},
    }
    assert cluster.ok("suspend", "a", "--no-wait") == "a is to be suspended\n"
    assert cluster.ok("wake", "a", "--no-wait") == "a is to wake\n"


def test_what_cannot_be_suspended_is_said_and_not_asked_for_any_more(cluster: FakeCluster) -> None:
    cluster.session("a", phase="Running", epoch=3, nodeName="n1", podName="a-3")
    cluster.set(ends=False)
    done = cluster.run("suspend", "a")
    assert done.returncode == 75
    assert "session a is not suspended: a device is open" in done.stderr
    assert cluster.body["sessions"][0]["spec"]["suspended"] is False


def test_what_cannot_wake_is_said(cluster: FakeCluster) -> None:
    cluster.session("a", phase="Suspended", epoch=3, suspended={"checkpoint": "a-3-k1"})
    cluster.set(ends=False)
    done = cluster.run("wake", "a")
    assert done.returncode == 75
    assert "session a is not woken: a device is open" in done.stderr


def test_fork(cluster: FakeCluster) -> None:
    cluster.session("a", phase="Running", epoch=3, nodeName="n1", podName="a-3")
    done = cluster.ok("fork", "a", "b")
    assert done == "b is a fork of a; attach with: holdfast --cluster attach b\n"
    made = cluster.body["sessions"][-1]
    assert made["spec"] == {"command": ["bash"], "forkFrom": {"session": "a"}}
    done = cluster.ok("fork", "a", "c", "--checkpoint", "a-3-k1", "--no-wait")
    assert done == "c is to be a fork of a\n"
    assert cluster.body["sessions"][-1]["spec"]["forkFrom"] == {"checkpoint": "a-3-k1"}
    assert cluster.run("fork", "a").returncode == 64
    assert cluster.run("fork", "a", "b").returncode == 73


def test_run(cluster: FakeCluster) -> None:
    assert cluster.ok("run", "web", "--image", "debian", "-d", "--size", "90x20") == "web\n"
    made = cluster.body["sessions"][0]
    assert made["spec"]["command"] == ["sh"]
    assert made["spec"]["terminal"]["columns"] == 90
    done = cluster.run("run", "web", "--image", "debian", "-d")
    assert done.returncode == 73
    made = json.loads(
        cluster.ok("run", "-n", "team", "job", "--image", "x", "-o", "json", "--", "make", "-j")
    )
    assert (made["metadata"]["namespace"], made["spec"]["command"]) == ("team", ["make", "-j"])


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("screen", "biuld"), 66, "did you mean 'build'?"),
        (("screen", "zzz"), 66, "there are: build, late, over"),
        (("screen", ".."), 64, "is not a session name"),
        (("screen",), 64, "name one of: build, late"),
        (("state", "late"), 75, "session late is Pending and has no pod: no node has room"),
        (("state", "over"), 69, "session over has ended: exit code 4"),
        (("attach", "over"), 64, "attach needs a terminal"),
        (("state", "gone"), 75, "pod gone-1 is not there yet"),
        (("run",), 64, "which name?"),
        (("run", "x"), 64, "which image?"),
        (("run", "x", "y", "--image", "z"), 64, "the command goes after '--'"),
        (("run", "x" * 60, "--image", "z"), 64, "at most 52"),
        (("end", "build", "--grace", "1"), 64, "unrecognized arguments: --grace"),
        (("ls", "--context"), 64, "expected one argument"),
    ],
)
def test_mistakes(
    cluster: FakeCluster, build: str, arguments: tuple[str, ...], code: int, said: str
) -> None:
    waits = {"type": "Ready", "status": "False", "reason": "x", "message": "no node has room"}
    cluster.session("late", phase="Pending", conditions=[waits])
    cluster.session("over", phase="Ended", exit={"code": 4})
    if "gone" in arguments:
        cluster.session("gone", phase="Running", podName="gone-1")
    done = cluster.run(*arguments)
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert said in done.stderr


@pytest.mark.parametrize(
    ("stderr", "code", "said"),
    [
        ('error: the server doesn\'t have a resource type "sessions"', 1, "helm install"),
        ("Error from server (Forbidden): no, eve", 77, "no, eve"),
        ("Unable to connect to the server: dial tcp: i/o timeout", 75, "cannot be reached"),
    ],
)
def test_the_cluster_says_no(cluster: FakeCluster, stderr: str, code: int, said: str) -> None:
    cluster.set(fails={"get": [stderr, 1]})
    for command in (("ls",), ("state", "x"), ("wait", "x"), ("end", "x"), ("screen",)):
        done = cluster.run(*command)
        assert done.returncode == code
        assert said in done.stderr


def test_no_kubectl(cluster: FakeCluster) -> None:
    done = cluster.run("ls", HOLDFAST_KUBECTL="/nowhere/kubectl")
    assert done.returncode == 127
    assert "install kubectl" in done.stderr


def test_who_may_not_exec(cluster: FakeCluster, build: str) -> None:
    cluster.set(fails={"exec": ["Error from server (Forbidden): pods/exec, eve", 1]})
    done = cluster.run("screen", build)
    assert done.returncode == 77
    assert "pods/exec, eve" in done.stderr


# -- which sessions are meant


def test_which_place(cluster: FakeCluster, home: Home, shell: str) -> None:
    cluster.session("afar", namespace="team", phase="Running")
    assert "work" in cluster.as_typed("ls", "-o", "name")
    for arguments in (
        ("ls", "-n", "team", "-o", "name"),
        ("ls", "-nteam", "-o", "name"),
        ("ls", "--namespace=team", "-o", "name"),
        ("-n", "team", "ls", "-o", "name"),
        ("--cluster", "--namespace", "team", "ls", "-o", "name"),
    ):
        assert cluster.as_typed(*arguments) == "afar\n", arguments
    cluster.as_typed("ls", "--context", "prod")
    assert cluster.calls("get")[-1]["--context"] == "prod"
    assert cluster.run("ls", "--kubeconfig=/k").returncode == 64
    # `run -n` on this machine was there first; and a command's own options are its own.
    assert cluster.as_typed("run", "-d", "-n", "named", "--", "sleep", "99").startswith("named\n")
    assert cluster.as_typed("run", "-d", "sleep", "98", "--cluster").startswith("sleep\n")
    for name in ("named", "sleep"):
        home.run("end", name, "--grace", "0")


def test_as_a_plugin(cluster: FakeCluster, home: Home, build: str) -> None:
    def plugin(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [cluster.plugin, *arguments], env=home.env | cluster.env,
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip

    assert plugin("ls", "-o", "name").stdout == "build\n"
    assert plugin("state").stdout.startswith("prompt: ")
    assert "kubectl holdfast run NAME" in plugin("screen", "-n", "empty").stderr
    assert plugin("version").stdout.startswith("holdfast ")
    assert "--image" in plugin("help", "run").stdout
    assert plugin("url").returncode == 1


# -- through the relay, to a real sidecar


def test_one_session(cluster: FakeCluster, build: str, home: Home) -> None:
    assert cluster.ok("exec", build, "--", "echo", "a  b").strip() == "a  b"
    assert cluster.run("exec", build, "--", "(exit 7)").returncode == 7
    cluster.ok("send", build, "echo sent-$((1+1))", "--enter")
    cluster.ok("wait", build, "--timeout", "20")
    assert "sent-2" in cluster.ok("screen", build)
    assert json.loads(cluster.ok("graph", build, "-o", "json"))["processes"]
    assert cluster.ok("state", build).startswith("prompt: ")
    assert cluster.ok("take", build) == "the turn is ana@x's\n"
    assert cluster.ok("freeze", build).startswith("frozen")
    assert cluster.ok("thaw", build) == "thawed\n"
    records = home.json("journal", "work", "--limit", "50")["records"]
    sent = [one for one in records if one.get("actor") == "ana@x" and one["kind"] == "input"]
    assert {one["modality"] for one in sent} == {"kubectl"}
    assert cluster.calls("exec")[0]["words"][1:3] == ["-i", "build-1"]


def test_a_large_input_and_a_large_answer(cluster: FakeCluster, build: str) -> None:
    cluster.ok("exec", build, "--", "seq 1 9000")
    text = cluster.ok("screen", build, "--scrollback")
    assert "\n4711\n" in text
    cluster.ok("send", build, "-", stdin=b": " + b"x" * 3000 + b"\r")
    cluster.ok("wait", build, "--timeout", "20")


def test_an_older_kubectl_does_not_know_us(cluster: FakeCluster, build: str, home: Home) -> None:
    cluster.set(fails={"auth": ["error: unknown command whoami", 1]})
    user = cluster.ok("take", build)
    assert user != "the turn is ana@x's\n"
    assert user == home.ok("take", "work")


def test_an_ended_sessions_screen(cluster: FakeCluster) -> None:
    cluster.session("over", phase="Ended", exit={"code": 3}, lastLines=["one", "", "two"])
    done = cluster.run("screen", "over")
    assert (done.returncode, done.stdout) == (0, "one\n\ntwo\n")
    assert "session over has ended: exit code 3; these are its last lines" in done.stderr
    body = json.loads(cluster.ok("screen", "over", "-o", "json"))
    assert (body["text"], body["ended"]) == ("one\n\ntwo", True)
    assert cluster.ok("wait", "over", "--for", "ended") == "ended: exit code 3\n"


def test_wait_goes_on_while_there_is_no_pod(cluster: FakeCluster, build: str, home: Home) -> None:
    cluster.session(build, phase="Pending")
    waiting = subprocess.Popen(
        home.command("wait", "--cluster", build, "--timeout", "30"),
        env=home.env | cluster.env, stdout=subprocess.PIPE,
    )  # fmt: skip
    with waiting:
        eventually(lambda: len(cluster.calls("get")) > 1, "a second look")
        cluster.session(build, phase="Running", podName="build-1")
        assert waiting.communicate(timeout=30)[0].startswith(b"prompt: ")
    done = cluster.run("wait", build, "--for", "ended", "--timeout", "0.1")
    assert done.returncode == 124


# -- attached

Open = Callable[..., Screen]


def test_attach(cluster: FakeCluster, build: str, screen: Open, home: Home) -> None:
    opened = screen("attach", "--cluster", build, **cluster.env)
    opened.expect(rb"ready> ")
    opened.expect(rb"attached to build \xc2\xb7 detach: ctrl-\\ then d")
    opened.type(b"echo one$((1+1))three\r")
    opened.expect(rb"one2three\r\n")
    (client,) = next(s for s in home.json("ls")["sessions"] if s["name"] == "work")["clients"]
    assert (client["actor"], client["modality"]) == ("ana@x", "kubectl")
    opened.type(b"echo last-words >$HOME/said\r" + DETACH)
    opened.expect(rb"come back with: holdfast --cluster attach build\]")
    assert opened.wait() == 0
    assert opened.settings() == opened.before
    said = home.state / "said"
    eventually(lambda: said.exists() and said.read_text() == "last-words\n", "what was typed last")


def test_attach_survives_a_move(cluster: FakeCluster, build: str, screen: Open) -> None:
    opened = screen("attach", "--cluster", build, **cluster.env)
    opened.expect(rb"ready> ")
    opened.type(b"i=0; bump() { i=$((i+1)); echo count-$i; }; bump\r")
    opened.expect(rb"count-1\r\n")
    cluster.pod("build-2", "work")
    pods = cluster.body["pods"]
    del pods["build-1"]
    cluster.set(pods=pods)
    cluster.kill_relay("build-1")
    opened.type(b"bump\r")
    opened.expect(rb"reconnecting to build.*pod build-1 is not there")
    cluster.session(build, phase="Running", podName="build-2", epoch=2)
    opened.expect(rb"count-2\r\n")
    opened.type(b"bump\r")
    opened.expect(rb"count-3\r\n")
    opened.type(DETACH)
    assert opened.wait() == 0
    assert cluster.calls("exec")[-1]["words"][2] == "build-2"


def test_attach_wakes(cluster: FakeCluster, build: str, screen: Open) -> None:
    cluster.session(build, phase="Suspended", epoch=1, suspended={"checkpoint": "build-1-k1"})
    cluster.pod("build-2", "work")
    opened = screen("attach", "--cluster", build, **cluster.env)
    opened.expect(rb"waking build")
    opened.expect(rb"ready> ")
    opened.type(DETACH)
    assert opened.wait() == 0


def test_attached_to_a_session_that_ends(cluster: FakeCluster, build: str, screen: Open) -> None:
    opened = screen("attach", "--cluster", build, **cluster.env)
    opened.expect(rb"ready> ")
    cluster.session(build, phase="Ended", exit={"code": 5, "cause": "exited"})
    cluster.kill_relay("build-1")
    opened.expect(rb"\[session build ended: exit code 5\]")
    assert opened.wait() == 5
    assert opened.settings() == opened.before


@pytest.mark.parametrize(
    ("change", "code", "said"),
    [
        ({"sessions": []}, 66, rb"session build is not there any more"),
        ({"fails": {"get": ["Error from server (Forbidden): no, eve", 1]}}, 77, rb"no, eve"),
    ],
)
def test_attached_to_a_session_taken_away(
    cluster: FakeCluster,
    build: str,
    screen: Open,
    change: dict[str, Any],
    code: int,
    said: bytes,
) -> None:
    opened = screen("attach", "--cluster", build, **cluster.env)
    opened.expect(rb"ready> ")
    cluster.set(**change)
    cluster.kill_relay("build-1")
    opened.expect(said)
    assert opened.wait() == code


def test_a_hanging_cluster_can_be_left(cluster: FakeCluster, build: str, screen: Open) -> None:
    opened = screen("attach", "--cluster", build, **cluster.env)
    opened.expect(rb"ready> ")
    cluster.kubectl.write_text(f"#!{sys.executable} -S\nimport time\ntime.sleep(60)\n")
    cluster.kill_relay("build-1")
    opened.expect(rb"(reconnecting to|connection to) build")
    opened.type(DETACH)
    assert opened.wait(patience=10) == 0


def test_run_attaches_once_it_is_up(cluster: FakeCluster, shell: str, screen: Open) -> None:
    opened = screen("run", "--cluster", "fresh", "--image", "x", "--", "bash", **cluster.env)
    opened.expect(rb"waiting for fresh.*session fresh is Pending")
    cluster.pod("fresh-1", shell)
    cluster.session("fresh", phase="Running", podName="fresh-1")
    opened.expect(rb"ready> ")
    opened.type(DETACH)
    assert opened.wait() == 0
