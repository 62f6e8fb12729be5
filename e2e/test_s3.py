"""Checkpoints in a bucket, of a real S3 server that runs on this machine: stored sealed, brought
back on another node, also where a move had just brought the session, and removed when they are old.
"""

from __future__ import annotations

import itertools
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from e2e.cluster import build, faults, processes
from e2e.cluster.places import SHARED, STATE
from e2e.cluster.running import running
from e2e.lab import LEASE, OPERATOR_NAMESPACE, Lab, Session, until
from e2e.movers import (
    Moments,
    ask,
    await_agents,
    check,
    gone,
    longest_gap,
    other,
    shared,
    walking,
)
from e2e.test_store import KEPT_WITHIN, REPL, WOKEN_WITHIN, await_kept, by_epoch, kept

NAME: Final = "checkpoints"
PORT: Final = 9321
ROOT: Final = {"ROOT_ACCESS_KEY": "somebody", "ROOT_SECRET_KEY": "something"}
# Not as a whole in any program or command line: only what runs has it, and what it wrote.
SECRET: Final = ("the quick brown ", "fox is in memory")
TO_S3: Final[dict[str, Any]] = {"checkpoints": {"everySeconds": 30, "store": "S3"}}
# `test_store.PAIR` without the size: memory and a file in step.
PAIR = """
import os, sys, time
secret = (sys.argv[2] + sys.argv[3]).encode()
path, n, many = os.environ["HOLDFAST_EPOCH_FILE"], 0, 1000
store = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
pair = os.open("/root/pair", os.O_RDWR | os.O_CREAT)
whole = (secret + b"%08d" % n) * many
os.pwrite(pair, whole, 0)
while os.pread(pair, len(whole) + 1, 0) == whole:
    n += 1
    whole = (secret + b"%08d" % n) * many
    os.pwrite(pair, whole, 0)
    with open(path) as now:
        epoch = now.read().strip()
    at = time.clock_gettime(time.CLOCK_BOOTTIME)
    os.write(store, f"{epoch} {n} {at:.4f}\\n".encode())
    time.sleep(0.02)
os.write(store, b"0 0 0\\n")
"""


@dataclass(frozen=True)
class Bucket:
    folder: Path
    host: str

    def start(self) -> None:
        words = (f"--port={self.host}:{PORT}", "posix", f"--sidecar={STATE / 's3' / 'about'}")
        processes.start("s3", [build.s3_server(), *words, self.folder], env=ROOT)
        until(self._answers, "the bucket answers")

    def stop(self) -> None:
        processes.stop("s3")

    def _answers(self) -> bool:
        with socket.socket() as sock:
            return sock.connect_ex((self.host, PORT)) == 0

    @contextmanager
    def away(self) -> Iterator[None]:
        self.stop()
        try:
            yield
        finally:
            self.start()

    def files(self) -> list[Path]:
        found = os.walk(self.folder / NAME)  # which does not mind what goes meanwhile
        return [Path(folder, name) for folder, _, names in found for name in names]

    def of(self, order: dict[str, Any]) -> list[Path]:
        """A checkpoint's objects."""
        name = order["metadata"]["name"]
        return [path for path in self.files() if name in path.parts]


@pytest.fixture(scope="module")
def bucket(lab: Lab) -> Iterator[Bucket]:
    """On this machine, where every node's way out leads; the agents know of it."""
    node = running().nodes[0]
    host = running().run_in(node, "ip", "-4", "route", "show", "default").split()[2]
    made = Bucket(STATE / "s3" / "root", host)
    for folder in (made.folder / NAME, STATE / "s3" / "about"):
        folder.mkdir(parents=True, exist_ok=True)
    names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
    secret = dict(zip(names, ROOT.values(), strict=True))
    about = {"name": "bucket", "namespace": OPERATOR_NAMESPACE}
    lab.apply({"apiVersion": "v1", "kind": "Secret", "metadata": about, "stringData": secret})
    made.start()
    try:
        lab.install(
            "upgrade", f"--set=nodeAgent.s3.bucket={NAME}", "--set=nodeAgent.s3.prefix=some/where",
            f"--set=nodeAgent.s3.endpoint=http://{host}:{PORT}",
            "--set=nodeAgent.s3.secretName=bucket",
        )  # fmt: skip
        await_agents(lab)
        yield made
    finally:
        lab.install("upgrade")
        await_agents(lab)
        made.stop()


def paired(lab: Lab, name: str, node: str) -> Session:
    (SHARED / name).unlink(missing_ok=True)
    command = ("python3", "-c", PAIR, f"/shared/{name}", *SECRET)
    return lab.session(name, *command, **shared(), node=node, spec=TO_S3)


def change(session: Session, **spec: Any) -> None:
    body = json.dumps({"spec": spec})
    session.lab.kubectl("patch", "session", session.name, "--type=merge", "-p", body)


def goes_on(session: Session, epoch: int) -> None:
    """From what the first incarnation had stored; nothing is mixed, skipped or done twice."""
    session.writes_on()
    spans = by_epoch(session.marks())
    assert list(spans) in ([1, epoch], [1, 2, epoch]), "two at once, or memory and file differ"
    assert spans[epoch][0].number <= spans[1][-1].number, "more is there than was stored"
    for before, after in itertools.pairwise(spans[epoch]):
        assert after.number == before.number + 1


@pytest.mark.long
@pytest.mark.timeout(240)
def test_a_lost_node_goes_on_from_the_bucket(lab: Lab, bucket: Bucket) -> None:
    session = paired(lab, "faraway", lab.away())
    node = session.node
    taken = await_kept(session)
    location = taken["status"]["location"]
    uid, name = session.body["metadata"]["uid"], taken["metadata"]["name"]
    assert location == f"s3://{NAME}/some/where/{uid}/{name}"
    stored = bucket.of(taken)
    assert any(path.name == "manifest" for path in stored)
    assert sum(path.stat().st_size for path in stored) > 1 << 20
    secret = "".join(SECRET).encode()
    assert not [path for path in stored if secret in path.read_bytes()], "it can be read"
    killed = time.monotonic()
    with faults.node_down(node):
        session.await_epoch(2, LEASE + KEPT_WITHIN)
        lab.report["host_loss_to_ready_s3_seconds"] = round(time.monotonic() - killed, 3)
        assert session.node == other(node)
        goes_on(session, 2)
        restored = session.condition("Restored")
        assert restored["status"] == "True", restored
        assert name in restored["message"]
    lab.await_nodes()
    await_agents(lab)


@pytest.mark.long
@pytest.mark.faults(28)
@pytest.mark.timeout(240)
def test_the_target_dies_after_the_commit(lab: Lab, bucket: Bucket) -> None:
    """Back where it came from, at the next epoch: from the bucket, not from what was left there."""
    target = lab.away()
    session = paired(lab, "twice", other(target))
    source = session.pod
    taken = await_kept(session)
    with Moments(session) as moments:
        ask(session, target)
        moments.wait("committed")
        with faults.node_down(target):
            session.await_epoch(3, LEASE + KEPT_WITHIN)
            assert session.node == other(target)
            goes_on(session, 3)
            restored = session.condition("Restored")
            assert restored["status"] == "True", restored
            assert taken["metadata"]["name"] in restored["message"]
            gone(lab, source)
    lab.await_nodes()
    await_agents(lab)


@pytest.mark.long
@pytest.mark.timeout(240)
def test_suspended_into_the_bucket_and_woken_on_the_other_node(lab: Lab, bucket: Bucket) -> None:
    session = lab.session("bucketed", *REPL, spec={"checkpoints": {"store": "S3"}})
    session.await_text("ready>")
    # More than one request takes.
    session.type(
        "import os; heap = os.urandom(40_000_000); kept = hash(heap); print('fil' + 'led')"
    )
    session.await_text("filled")
    node = session.node
    lab.holdfast("suspend", "bucketed", timeout=120)
    status = session.await_phase("Suspended")
    name = status["suspended"]["checkpoint"]
    stored = bucket.of(lab.get("checkpoint", name))
    assert sum(path.stat().st_size for path in stored) > 40_000_000
    lab.kubectl("cordon", node)
    try:
        began = time.monotonic()
        lab.holdfast("wake", "bucketed", timeout=120)
        session.await_epoch(2, WOKEN_WITHIN)
        lab.report["wake_s3_seconds"] = round(time.monotonic() - began, 3)
        assert session.node == other(node)
        session.type("print('still', hash(bytes(bytearray(heap))) == kept)")
        session.await_text("still True")
    finally:
        lab.kubectl("uncordon", node)


@pytest.mark.long
@pytest.mark.timeout(240)
def test_a_bucket_that_is_away_stops_nobody(lab: Lab, bucket: Bucket) -> None:
    session = walking(lab, "patient", 0.01, spec=TO_S3)

    def refused(goal: str) -> bool:
        found = session.condition("Checkpointed")
        message = found.get("message", "")
        return found.get("reason") == "CheckpointFailed" and goal in message

    with bucket.away():
        until(lambda: refused("could not be stored: the object store"), "it says so", KEPT_WITHIN)
        change(session, suspended=True)
        until(
            lambda: refused("could not be suspended: the object store"), "it says so", KEPT_WITHIN
        )
        session.writes_on()
        assert (session.epoch, session.status["phase"]) == (1, "Running")
        assert longest_gap(check(session, 1)) < 5, "it was stopped for nothing"
        change(session, suspended=False)
    await_kept(session)
    until(lambda: session.condition("Checkpointed")["status"] == "True", "it is stored again")
    check(session, 1)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_what_is_not_to_be_kept_leaves_the_bucket(lab: Lab, bucket: Bucket) -> None:
    """The sweep spares what is young: the agents' clocks are set ahead, as far as S3 lets them."""
    spec = {"checkpoints": {**TO_S3["checkpoints"], "keep": 1}}
    session = walking(lab, "forgetful", spec=spec)
    first = await_kept(session)
    name = first["metadata"]["name"]
    until(lambda: lab.find("checkpoint", name) is None, "it is not to be kept", KEPT_WITHIN)
    last = kept(session)[-1]
    change(session, checkpoints={"everySeconds": 0})
    assert bucket.of(first)
    assert bucket.of(last)
    ahead = ("LD_PRELOAD=/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1", "FAKETIME=+660",
             "FAKETIME_DONT_FAKE_MONOTONIC=1")  # fmt: skip
    agents = ("-n", OPERATOR_NAMESPACE, "daemonset/holdfast-node")
    lab.kubectl("set", "env", *agents, *ahead)
    try:
        until(lambda: not bucket.of(first), "its objects are gone", 120)
        assert bucket.of(last), "what is wanted is gone too"
    finally:
        names = (f"{word.partition('=')[0]}-" for word in ahead)
        lab.kubectl("set", "env", *agents, *names)
        lab.kubectl("rollout", "status", *agents, "--timeout=120s", timeout=130)
        await_agents(lab)
    session.writes_on()
    check(session, 1)
