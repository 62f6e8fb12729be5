"""Sessions on one machine that sleep and wake: no cluster, the real CRIU, as root."""

from __future__ import annotations

import base64
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from client_kit import Home, Screen, alive, build_hold, eventually, stop
from e2e import engine_kit as kit
from e2e.cluster.places import REPOSITORY
from holdfast.folders import sidecar_pid
from holdfast.paths import SessionFolder, session_names
from sidecar_kit import Client

if os.geteuid() != 0:
    pytest.skip("needs root", allow_module_level=True)

pytestmark = pytest.mark.timeout(120)

MEBIBYTE = 1 << 20


class Machine(Home):
    """With CRIU, and a disk for what sleeps."""

    def __init__(self, folder: Path) -> None:
        super().__init__(build_hold(folder))
        script = str(REPOSITORY / "scripts/criu_bundle.py")
        words = [sys.executable, script, str(kit.debian_root()), str(folder / "criu")]
        subprocess.run(words, check=True)
        kit.use_pycriu()
        self.store = folder / "store"
        self.env |= {
            "HOLDFAST_STORE": str(self.store),
            "HOLDFAST_CRIU": str(folder / "criu/criu"),
            "PYTHONPATH": str(REPOSITORY / "build/pycriu"),
        }

    def folder(self, name: str) -> SessionFolder:
        os.environ["HOLDFAST_STORE"] = str(self.store)
        return super().folder(name)

    def phase(self, name: str) -> str:
        found = {one["name"]: one["phase"] for one in self.json("ls")["sessions"]}
        return str(found.get(name, "gone"))

    def host_pids(self, name: str) -> set[int]:
        """Of all its processes, hold too, as the machine numbers them."""
        hold = next(pid for pid in _pids() if _listens(pid, self.folder(name)))
        return {pid for pid in _pids() if _namespace(pid) == _namespace(hold)}

    def graph(self, name: str) -> set[tuple[int, str]]:
        found = self.json("graph", name)["processes"]
        return {(one["pid"], one["name"]) for one in found if one["name"] != "sleep"}

    def worker(self, act: str, name: str) -> subprocess.Popen[bytes]:
        folder = self.folder(name)
        words = [act, "--folder", str(folder.path), "--shelf", str(folder.shelf)]
        words += ["--hold", self.env["HOLDFAST_HOLD"]]
        command = [sys.executable, "-P", "-m", "holdfast_node.hibernate", *words]
        return subprocess.Popen(command, env=self.env, stdout=subprocess.PIPE)

    def reboot(self) -> None:
        """What a reboot leaves: the disk."""
        stop(int(json.loads((self.state / "gateway.json").read_text())["pid"]))
        for name in session_names(self.state):
            if (pid := sidecar_pid(self.folder(name))) is not None:  # of one that has ended
                stop(pid)
        shutil.rmtree(self.state)
        self.state.mkdir(mode=0o700)

    def sweep(self) -> None:
        for name in self.ok("ls", "-o", "name").split():
            self.run("end", name, "--grace", "0")
        left = [path.name for path in self.store.glob("*/*") if path.suffix != ".lock"]
        assert not left, left


def _pids() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def _namespace(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")  # noqa: PTH115
    except OSError:
        return ""


def _listens(pid: int, folder: SessionFolder) -> bool:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return os.fsencode(folder.hold_socket) in words and _namespace(pid) != _namespace(os.getpid())


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    with tempfile.TemporaryDirectory(prefix="hf-store-") as folder:
        made = Machine(Path(folder))
        yield made
        made.close()


@pytest.fixture(autouse=True)
def tidy(machine: Machine) -> Iterator[None]:
    """In place of the one that wants a cluster for every test."""
    yield
    machine.sweep()


def attach(machine: Machine, name: str) -> Screen:
    return Screen(machine.command("attach", name), machine.env, (120, 40))


COUNTER = "n=0; while :; do n=$((n+1)); echo $n > {}; sleep 0.05; done"


def counted(path: Path) -> int:
    return int(path.read_text() or 0)


def test_a_shell_sleeps_and_wakes(machine: Machine, tmp_path: Path) -> None:
    counter = tmp_path / "counter"
    machine.start("shell")
    machine.ok("exec", "shell", "--", "word=kept; cd /usr")
    machine.ok("exec", "shell", "--", f"({COUNTER.format(counter)}) &")
    eventually(counter.exists, "the counter counts")
    machine.ok("send", "shell", "--enter", "read -p 'na''me? ' x; echo got=$x")
    machine.ok("wait", "shell", "--for", "reading", "--timeout", "20")
    machine.ok("send", "shell", "ha")  # typed, and read by nobody
    eventually(lambda: "name? ha" in machine.ok("screen", "shell"), "the echo of it")
    screen, graph, pids = (
        machine.json("screen", "shell"), machine.graph("shell"), machine.host_pids("shell")
    )  # fmt: skip
    looks_on = attach(machine, "shell")
    looks_on.expect(rb"name\? ha")

    said = machine.ok("suspend", "shell")

    assert "shell is suspended" in said
    assert looks_on.wait() == 69
    looks_on.expect(rb"session shell is suspended")
    assert not [pid for pid in pids if alive(pid)]
    assert machine.phase("shell") == "suspended"
    assert not machine.folder("shell").path.exists()
    assert not list(Path("/sys/fs/cgroup").glob("**/holdfast-session-shell-*"))
    stood = counted(counter)
    time.sleep(0.3)
    assert counted(counter) == stood
    shelf = machine.folder("shell").shelf
    assert {path.stat().st_mode & 0o77 for path in (shelf.parent, shelf)} == {0}
    assert machine.run("send", "shell", "x").returncode == 69

    woken = attach(machine, "shell")
    woken.expect(rb"waking shell")
    woken.expect(rb"name\? ha")
    woken.type(b"lf\r")
    woken.expect(rb"got=half")
    eventually(lambda: counted(counter) > stood, "the counter goes on")
    assert counted(counter) < stood + 1000
    woken.type(b"echo $word $PWD; jobs\r")
    woken.expect(rb"kept /usr")
    woken.expect(rb"Running")
    woken.close()
    assert machine.graph("shell") == graph
    scrollback = machine.json("screen", "shell", "--scrollback")["text"]
    assert scrollback.startswith(screen["text"].rstrip().removesuffix("ha").rstrip())
    assert not shelf.exists()
    kinds = [one["kind"] for one in machine.json("journal", "shell")["records"]]
    assert kinds.count("woken") == 1
    machine.ok("suspend", "shell")  # and again
    machine.ok("wake", "shell")
    assert "kept" in machine.ok("exec", "shell", "--", "echo $word")


def test_a_job_sleeps_and_wakes_with_it(machine: Machine, tmp_path: Path) -> None:
    machine.start("works")
    script = "echo begun; until test -e $GO; do sleep 0.05; done; echo $(($(cat)+1))on; exit 3"
    asked = {"command": script, "key": "once", "env": {"GO": str(tmp_path / "go")}}
    socket_path = machine.folder("works").path / "sidecar.sock"
    with Client(socket_path) as client:
        done = client.ask("job_start", command="echo before; exit 1", key="first")["job"]["id"]
        job = client.ask("job_start", **asked)["job"]["id"]
        assert client.ask("job_output", job=job, wait=20)["end"] == len("begun\n")
        eventually(
            lambda: client.ask("job_get", job=done)["job"]["output"]["complete"], "the other's end"
        )
        pid = client.ask("job_get", job=job)["job"]["pid"]
    machine.ok("suspend", "works")
    machine.ok("wake", "works")
    with Client(socket_path) as client:
        known = {one["id"]: one for one in client.ask("job_list")["jobs"]}
        assert (known[job]["state"], known[job]["pid"]) == ("running", pid)
        assert known[done]["exit"] == {"code": 1, "signal": None}
        assert client.ask("job_start", **asked)["job"]["id"] == job
        (tmp_path / "go").touch()
        eventually(
            lambda: client.ask("job_get", job=job)["job"]["output"]["complete"], "the job's end"
        )
        told = client.ask("job_output", job=job)
        assert base64.b64decode(told["base64"]) == b"begun\n1on\n"
        assert told["job"]["exit"] == {"code": 3, "signal": None}
        assert base64.b64decode(client.ask("job_output", job=done)["base64"]) == b"before\n"
        assert client.ask("job_start", command="echo more")["job"]["id"] not in known


def test_fifty_mebibytes(machine: Machine) -> None:
    python = (sys.executable, "-q", "-i", "-c", "import os; h = os.urandom(50 << 20); s = hash(h)")
    machine.start("heap", *python)
    machine.ok("wait", "heap", "--for", "reading", "--timeout", "30")
    pids = machine.host_pids("heap")
    used = sum(_resident(pid) for pid in pids)
    assert used > 50 * MEBIBYTE
    before = machine.json("screen", "heap")
    machine.ok("suspend", "heap")
    assert not [pid for pid in pids if alive(pid)]
    began = time.monotonic()
    woken = attach(machine, "heap")
    woken.expect(rb">>> ")
    seconds = time.monotonic() - began
    print(f"attach to first frame, 50 MiB: {seconds:.2f} s")
    assert machine.json("screen", "heap")["text"] == before["text"]
    woken.type(b"print(hash(h) == s, len(h))\r")
    woken.expect(rb"True 52428800")
    woken.close()


def _resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_a_reboot(machine: Machine) -> None:
    machine.start("boot")
    machine.ok("exec", "boot", "--", "word=kept; echo here")
    screen, graph = machine.json("screen", "boot"), machine.graph("boot")
    machine.ok("suspend", "boot")
    machine.reboot()
    assert machine.phase("boot") == "suspended"
    woken = attach(machine, "boot")
    woken.expect(rb"here")
    woken.type(b"echo $word\r")
    woken.expect(rb"kept")
    woken.close()
    assert machine.graph("boot") == graph
    assert machine.json("screen", "boot")["text"].startswith(screen["text"].rstrip())


@pytest.mark.long
@pytest.mark.parametrize("harm", ["changed", "cut short", "gone", "manifest"])
def test_what_is_damaged_is_not_restored(machine: Machine, harm: str) -> None:
    machine.start("hurt")
    machine.ok("exec", "hurt", "--", "word=kept")
    machine.ok("suspend", "hurt")
    shelf = machine.folder("hurt").shelf
    victim = shelf / ("manifest.json" if harm == "manifest" else "images/pages-1.img")
    whole = victim.read_bytes()
    match harm:
        case "changed":
            victim.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        case "cut short" | "manifest":
            victim.write_bytes(whole[: len(whole) // 2])
        case _:
            victim.unlink()
    done = machine.run("wake", "hurt")
    assert done.returncode == 70
    assert "damaged" in done.stderr
    assert "nothing of it is lost" in done.stderr
    assert machine.phase("hurt") == "suspended"
    assert not machine.folder("hurt").path.exists()
    victim.write_bytes(whole)
    machine.ok("wake", "hurt")
    assert "kept" in machine.ok("exec", "hurt", "--", "echo $word")


@pytest.mark.long
def test_an_open_file_that_changed(machine: Machine, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("one\ntwo\n")
    machine.start("file")
    machine.ok("exec", "file", "--", f"exec 7< {log}; read -u 7 x")
    machine.ok("suspend", "file")
    log.write_text("one\n")
    done = machine.run("wake", "file")
    assert done.returncode != 0
    assert str(log) in done.stderr
    assert "put it back as it was" in done.stderr
    assert machine.phase("file") == "suspended"
    log.write_text("one\ntwo\n")
    machine.ok("wake", "file")
    assert "one then two" in machine.ok("exec", "file", "--", "read -u 7 y; echo $x then $y")


@pytest.mark.long
def test_connections_to_others_are_cut(machine: Machine) -> None:
    """On the machine's own network: also those over its loopback device."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(20)
        machine.start("net")
        port = server.getsockname()[1]
        machine.ok("exec", "net", "--", f"exec 5<>/dev/tcp/127.0.0.1/{port}")
        outside, _ = server.accept()
        machine.ok("suspend", "net")
        outside.close()
        woken = machine.run("wake", "net")
        assert "1 connections to the outside were cut" in woken.stderr
        assert "read error" in machine.ok("exec", "net", "--", "read x <&5; echo")
        records = machine.json("journal", "net")["records"]
        (cut,) = [one for one in records if one["kind"] == "cut"]
        assert cut["remote"] == f"127.0.0.1:{port}"


def test_what_is_missing_is_said(machine: Machine, tmp_path: Path) -> None:
    machine.start("bare")
    (tmp_path / "old/plugins").mkdir(parents=True)
    old = tmp_path / "old/ld.so"
    old.write_text("#!/bin/sh\necho Version: 3.17.1\n")
    old.chmod(0o755)
    shutil.copy(old, tmp_path / "old/criu")
    for env, why in (
        ({"HOLDFAST_CRIU": "/nonexistent"}, "HOLDFAST_CRIU is /nonexistent"),
        ({"HOLDFAST_CRIU": str(tmp_path / "old/criu")}, "CRIU 3.17, which is too old"),
        ({"PYTHONPATH": ""}, "pycriu is missing"),
    ):
        done = machine.run("suspend", "bare", stdin=b"", **env)
        assert why in done.stderr
        assert "advice: " in done.stderr
        assert "it runs on" in done.stderr
        assert done.returncode == 1
    assert machine.phase("bare") == "live"
    assert "fine" in machine.ok("exec", "bare", "--", "echo fine")


def test_at_the_wrong_moment(machine: Machine) -> None:
    machine.start("odd")
    assert "it runs" in machine.ok("wake", "odd")
    machine.ok("freeze", "odd")
    assert "holdfast thaw" in machine.run("suspend", "odd").stderr
    machine.ok("thaw", "odd")
    first, second = (
        subprocess.Popen(machine.command("suspend", "odd"), env=machine.env) for _ in range(2)
    )
    codes = {first.wait(60), second.wait(60)}
    assert 0 in codes
    assert codes <= {0, 75}
    assert "already" in machine.ok("suspend", "odd")
    refused = machine.run("run", "-d", "--name", "odd", "--", "bash")
    assert "is suspended" in refused.stderr
    both = [subprocess.Popen(machine.command("wake", "odd"), env=machine.env) for _ in range(2)]
    assert [one.wait(60) for one in both] == [0, 0]
    assert "fine" in machine.ok("exec", "odd", "--", "echo fine")


@pytest.mark.long
def test_attach_while_it_is_suspended(machine: Machine) -> None:
    machine.start("late")
    machine.ok("exec", "late", "--", "word=kept")
    with machine.worker("suspend", "late") as worker:
        assert worker.stdout is not None
        assert b"storing" in worker.stdout.readline()
        visitor = attach(machine, "late")
        assert worker.wait(60) == 0
    if visitor.process.poll() is None and machine.phase("late") == "suspended":
        visitor.wait()
    visitor.close()
    again = attach(machine, "late")
    again.type(b"echo $word\r")
    again.expect(rb"[\r\n]kept")
    again.close()


def test_one_that_sleeps_is_ended(machine: Machine) -> None:
    machine.start("gone")
    machine.ok("suspend", "gone")
    assert "it was suspended" in machine.ok("end", "gone")
    assert machine.phase("gone") == "gone"
    assert not machine.folder("gone").shelf.exists()


def _settled(machine: Machine, name: str) -> str:
    """Nobody does anything: it runs, or it sleeps, and not half of either."""

    def look() -> str:
        folder = machine.folder(name)
        marks = [mark for mark in ("suspending", "waking") if (folder.path / mark).exists()]
        return "" if marks else machine.phase(name)

    return str(eventually(lambda: look() in ("live", "suspended") and look(), "settled"))


def _killed(worker: subprocess.Popen[bytes], stage: int, seconds: float) -> None:
    """So long after it said for the `stage`th time what it does."""
    assert worker.stdout is not None
    with worker, worker.stdout:
        for _ in range(stage):
            assert b"doing" in worker.stdout.readline()
        time.sleep(seconds)
        worker.kill()


SOONER_OR_LATER = (0.0, 0.02, 0.1, 0.4)
# Frozen, and then in the dump; stored. Nothing done yet; in the restore; not stored any more.
STAGES = [("suspend", 1), ("suspend", 2), ("wake", 1), ("wake", 2), ("wake", 3)]
SURE = {("suspend", 2): "suspended", ("wake", 3): "live"}


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("act", "stage"), STAGES)
def test_whoever_does_it_is_killed(machine: Machine, tmp_path: Path, act: str, stage: int) -> None:
    counter = tmp_path / "counter"
    machine.start("hit")
    machine.ok("exec", "hit", "--", f"word=kept; ({COUNTER.format(counter)}) &")
    outcomes = []
    for seconds in SOONER_OR_LATER:
        if (act == "wake") != (machine.phase("hit") == "suspended"):
            machine.ok("suspend" if act == "wake" else "wake", "hit")
        _killed(machine.worker(act, "hit"), stage, seconds)
        outcomes.append(_settled(machine, "hit"))
        stood = counted(counter)
        if outcomes[-1] == "suspended":
            assert not [pid for pid in _pids() if _listens(pid, machine.folder("hit"))]
            time.sleep(0.2)
            assert counted(counter) == stood
            machine.ok("wake", "hit")
        assert "kept" in machine.ok("exec", "hit", "--", "echo $word")
        eventually(lambda: counted(counter) > stood, "the counter goes on")  # noqa: B023
    print(act, stage, outcomes)
    if (act, stage) in SURE:
        assert set(outcomes) == {SURE[act, stage]}
    else:
        assert outcomes[0] == ("live" if act == "suspend" else "suspended")
