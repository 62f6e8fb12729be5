"""What a session has in common with the world outside, after it moved and in its fork: connections,
clocks, random numbers, secrets, and the number that its writes are fenced by.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator

import pytest

from e2e.cluster.running import running
from e2e.lab import Lab, Session
from e2e.movers import MOVED_WITHIN, ask

pytestmark = [pytest.mark.long, pytest.mark.timeout(240)]

# Both ends of a connection within the session, and one to the test; what each of them still is.
CONNECTS = """
import os, random, socket, sys, time
sys.ps1 = "ready> "
ears = socket.create_server(("127.0.0.1", 8081))
inner = socket.create_connection(("127.0.0.1", 8081))
heard, _ = ears.accept()
outer = socket.create_connection((sys.argv[1], int(sys.argv[2])))
def within():
    heard.sendall(b"hello")
    return inner.recv(9)
def outside():
    outer.settimeout(5)
    try:
        outer.sendall(b"hello")
        return outer.recv(9)
    except OSError as error:
        return type(error).__name__
random.seed(7)
secret, began = os.environ["SECRET"], time.monotonic()
def epoch():
    return open(os.environ["HOLDFAST_EPOCH_FILE"]).read().strip()
"""


@contextlib.contextmanager
def answering() -> Iterator[tuple[str, int, list[socket.socket]]]:
    """A port of this machine that pods reach; who connected."""
    host, _ = running().api
    peers: list[socket.socket] = []
    with socket.create_server((host, 0)) as listening:
        listening.settimeout(60)
        try:
            yield host, listening.getsockname()[1], peers
        finally:
            for peer in peers:
                peer.close()


def connected(lab: Lab, name: str, host: str, port: int) -> Session:
    command = ("python3", "-q", "-i", "-c", CONNECTS, host, str(port))
    secret = {"env": [{"name": "SECRET", "value": "sesame"}]}
    session = lab.session(name, *command, container=secret)
    session.await_text("ready>")
    return session


def says(session: Session, expression: str, answer: str) -> None:
    session.type(f"print('so:', {expression})")
    session.await_text(f"so: {answer}")


def answer(session: Session, expression: str, mark: str) -> str:
    """What it prints for that, as text. `mark` is new each time."""
    session.type(f"print('{mark}' + '=', {expression})")
    session.await_text(f"{mark}= ")
    return session.screen().rpartition(f"{mark}= ")[2].splitlines()[0].strip()


def test_a_move_cuts_what_goes_outside_and_says_so(lab: Lab) -> None:
    with answering() as (host, port, _):
        session = connected(lab, "caller", host, port)
        ask(session)
        session.await_epoch(2, MOVED_WITHIN)
        assert "Error" in answer(session, "outside()", "outside")
        says(session, "within()", "b'hello'")
    (cut,) = session.status["cutConnections"]
    assert cut["remote"] == f"{host}:{port}"
    assert any(one.startswith("ConnectionsCut") and cut["remote"] in one
               for one in session.events())  # fmt: skip
    assert cut["remote"] in lab.holdfast("journal", "caller")


def test_what_a_fork_has_in_common_with_its_origin(lab: Lab) -> None:
    """Each line of the table in docs/session.md."""
    with answering() as (host, port, _):
        source = connected(lab, "stem", host, port)
        was = float(answer(source, "time.monotonic()", "was"))
        lab.holdfast("fork", "stem", "graft", timeout=150)
        fork = Session(lab, "graft")
        fork.await_ready()
        both = (source, fork)
        for name in both:  # sockets
            says(name, "within()", "b'hello'")
        assert "Error" in answer(fork, "outside()", "outside")
        assert answer(source, "outer.send(b'x')", "sent") == "1", "the origin's was cut too"
        drawn = [answer(one, "[random.random() for _ in range(3)]", "drawn") for one in both]
        assert drawn[0] == drawn[1], "a generator in memory goes on as it was"
        kernel = [answer(one, "os.urandom(8).hex()", "kernel") for one in both]
        assert kernel[0] != kernel[1]
        says(fork, "secret", "sesame")
        assert float(answer(fork, "time.monotonic()", "now")) >= was, "it runs back"
        assert abs(float(answer(fork, "time.time()", "wall")) - time.time()) < 10
        says(fork, "epoch()", "1")
        assert (
            lab.get("lease", "graft")["spec"]["holderIdentity"]
            != (lab.get("lease", "stem")["spec"]["holderIdentity"])
        )
        says(fork, "os.path.exists('/var/run/secrets/kubernetes.io')", "False")
