"""The commands through an API server's aggregation layer: TLS, kubeconfig, gateway and sidecar are
real; who may do what is a table."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
import ssl
import subprocess
import threading
from base64 import b64encode
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from client_kit import Home, Screen, eventually
from front_kit import EVERYTHING, Front
from holdfast.access import of_cluster
from holdfast.arguments import Target
from holdfast.connection import Connection, open_socket
from holdfast.kubeconfig import choose
from holdfast.remote import AGGREGATED, Remote, TunnelLink
from holdfast_gateway import streaming
from holdfast_wire.errors import Unavailable
from holdfast_wire.frames import Attach, Control, Decoder, encode
from holdfast_wire.ids import Actor
from holdfast_wire.rights import Right

DETACH = b"\x1cd"


@pytest.fixture(scope="module")
def shell(home: Home) -> Iterator[str]:
    home.start("work")
    yield "work"
    home.run("end", "work", "--grace", "0")


@pytest.fixture
def front(home: Home, shell: str, tmp_path: Path) -> Iterator[Front]:
    made = Front(tmp_path, home.state)
    made.session("work", phase="Running", epoch=1, podName="work-1")
    connected = open_socket(home.folder(shell).sidecar_socket)
    with Connection(connected, "test", Actor("ana")) as session:
        session.request("take")
    yield made
    made.close()


Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(home: Home, front: Front) -> Run:
    config = front.kubeconfig()

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        first, *rest = arguments
        no_kubectl = "/nonexistent/kubectl"  # it is not needed
        return home.run(first, f"--kubeconfig={config}", *rest, HOLDFAST_KUBECTL=no_kubectl)

    return run


def test_reading_and_writing(front: Front, run: Run) -> None:
    assert run("ls", "-o", "name").stdout == "work\n"
    done = run("exec", "work", "-o", "json", "--", "echo $((6*7)); false")
    assert (json.loads(done.stdout)["output"].split(), done.returncode) == (["42"], 1), done
    assert run("state").stdout.startswith("prompt: ")
    assert "42" in run("screen", "work").stdout
    assert "bash" in run("graph", "work").stdout
    done = run("logs", "work", "-o", "yaml", "--limit", "2")
    assert "actor: ana" in done.stdout
    assert "modality: kubectl" in done.stdout
    where = "/apis/subresources.holdfast.dev/v1alpha1/namespaces/team/sessions/work/observe/stream"
    assert ("GET", where) in front.asked
    assert run("end", "work", "--no-wait").stdout == "work is ending\n"
    assert front.patches == [("work", {"spec": {"ended": True}})]


def test_the_same_errors(front: Front, run: Run) -> None:
    front.rights["ana"] = EVERYTHING - {Right.OBSERVE}
    done = run("graph", "work")
    assert (done.returncode, "ana may not" in done.stderr) == (77, True)
    front.rights["ana"] = EVERYTHING
    done = run("screen", "wrok")
    assert (done.returncode, "did you mean" in done.stderr.lower()) == (66, True), done.stderr
    front.rights["ana"] = frozenset()
    done = run("screen", "work")
    assert (done.returncode, "ana may not" in done.stderr) == (77, True)
    front.tokens.clear()
    done = run("screen", "work")
    assert (done.returncode, "log in again" in done.stderr) == (77, True)


def test_where_the_page_is(front: Front, run: Run) -> None:
    """A name that the gateway was given, an address that its Service has, or else the way there."""
    done = run("url", "work")
    assert done.stdout == "https://localhost:8443/#/team/work\n"
    (told,) = re.findall(r"kubectl .*", done.stderr)
    forward = "port-forward -n holdfast-system service/holdfast-gateway 8443:443"
    assert re.fullmatch(rf"kubectl --kubeconfig \S+ {forward}", told)
    assert json.loads(run("url", "work", "-o", "json").stdout)["forward"] == told
    front.service = {"status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.7"}]}}}
    done = run("url", "work")
    assert (done.stdout, done.stderr) == ("https://192.0.2.7/#/team/work\n", "")
    front.page["hosts"] = ["holdfast.example.com"]
    assert run("url").stdout == "https://holdfast.example.com/#/team/work\n"
    assert run("url", "none").returncode == 66
    front.installed = False
    done = run("url", "work")
    assert (done.returncode, "no gateway" in done.stderr) == (1, True), done


def test_end_by_the_subresource(front: Front, run: Run, home: Home) -> None:
    """Who may not write the object, but may end the session."""
    front.rights["ana"] = EVERYTHING - {"patch"}
    home.start("brief")
    front.session("brief", phase="Running", epoch=1)
    assert run("end", "brief", "--no-wait").stdout == "brief is ending\n"
    assert front.patches == []
    eventually(home.folder("brief").exit.exists, "its end")
    front.rights["ana"] = EVERYTHING - {"patch", Right.MODERATE}
    assert run("end", "work", "--no-wait").returncode == 77


def test_without_a_gateway(front: Front, run: Run) -> None:
    front.installed = False
    done = run("screen", "work")
    assert "where others only have your word" in done.stderr
    assert "/nonexistent/kubectl" in done.stderr
    # Who has no rights there either is told the same: RBAC is asked before it is known.
    front.rights["ana"] = frozenset(("get",))
    assert "where others only have your word" in run("screen", "work").stderr


def test_a_foreign_certificate(front: Front, home: Home, tmp_path: Path) -> None:
    bad = front.kubeconfig(cluster={"certificate-authority": "/etc/ssl/certs/ca-certificates.crt"})
    done = home.run("ls", f"--kubeconfig={bad}")
    assert done.returncode == 77
    assert "does not show the certificate it should" in done.stderr
    other = front.kubeconfig(cluster={"tls-server-name": "elsewhere.example.org"})
    assert home.run("ls", f"--kubeconfig={other}").returncode == 77
    insecure = front.kubeconfig(
        cluster={"certificate-authority": "", "insecure-skip-tls-verify": True}
    )
    assert home.ok("ls", f"--kubeconfig={insecure}", "-o", "name") == "work\n"


def test_through_a_proxy(front: Front, home: Home) -> None:
    """Of HTTP's kind, with a password; what passes it is TLS."""
    asked: list[bytes] = []

    def carry(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def serve() -> None:
        peer, _ = listener.accept()
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += peer.recv(1)
        asked.append(head)
        peer.sendall(b"HTTP/1.1 200 Connection established\r\nVia: p\r\n\r\n")
        with peer, socket.create_connection(("127.0.0.1", front.port)) as server:
            back = threading.Thread(target=carry, args=(server, peer))
            back.start()
            carry(peer, server)
            back.join()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        proxy = f"http://me:p%40ss@127.0.0.1:{listener.getsockname()[1]}"
        config = front.kubeconfig(cluster={"proxy-url": proxy})
        assert home.ok("ls", f"--kubeconfig={config}", "-o", "name") == "work\n"
        thread.join()
    lines = asked[0].decode().splitlines()
    assert lines[0] == f"CONNECT 127.0.0.1:{front.port} HTTP/1.1"
    assert f"Proxy-Authorization: Basic {b64encode(b'me:p@ss').decode()}" in lines


def test_a_login_program(front: Front, home: Home, tmp_path: Path) -> None:
    """It is asked once, and once more when what it said is not believed."""
    program = tmp_path / "login"
    program.write_text(
        "#!/bin/sh\n"
        f'echo "$WHY $KUBERNETES_EXEC_INFO" >> {tmp_path}/asked\n'
        f"n=$(wc -l < {tmp_path}/asked)\n"
        'echo "{\\"apiVersion\\": \\"client.authentication.k8s.io/v1\\",'
        ' \\"kind\\": \\"ExecCredential\\", \\"status\\": {\\"token\\": \\"token-$n\\"}}"\n'
    )
    program.chmod(0o755)
    front.tokens["token-2"] = "ana"
    config = front.kubeconfig({
        "exec": {
            "apiVersion": "client.authentication.k8s.io/v1", "command": "./login",
            "interactiveMode": "IfAvailable", "provideClusterInfo": True,
            "env": [{"name": "WHY", "value": "test"}],
        }
    })  # fmt: skip
    assert home.ok("screen", "work", f"--kubeconfig={config}")
    first, second = (tmp_path / "asked").read_text().splitlines()
    why, info = first.split(" ", 1)
    assert (why, first) == ("test", second)
    spec = json.loads(info)["spec"]
    assert spec["interactive"] is False
    assert spec["cluster"]["server"] == f"https://127.0.0.1:{front.port}"


def attached(screen: Callable[..., Screen], front: Front, *more: str) -> Screen:
    return screen("attach", "work", f"--kubeconfig={front.kubeconfig()}", *more)


def test_attach_through_gateways_that_go(front: Front, screen: Callable[..., Screen]) -> None:
    client = attached(screen, front)
    client.expect(rb"ready> ")
    for number, go in enumerate((front.stop_gateway, front.kill_gateway, front.kill_gateway)):
        client.type(b"echo before-%d-$((6*7))\r" % number)
        client.expect(rb"before-%d-42\r\n" % number)
        go()
        client.type(b"echo after-%d-$((6*7))\r" % number)
        client.expect(rb"after-%d-42\r\n" % number)
    client.type(DETACH)
    assert client.wait() == 0
    assert client.seen.count(b"after-1-42") == 1
    assert b"detached from work" in client.seen


def test_attach_is_cut_when_a_right_is_taken(front: Front, screen: Callable[..., Screen]) -> None:
    client = attached(screen, front)
    client.expect(rb"ready> ")
    front.revoke()
    client.expect(rb"ana may not stream any more")
    assert client.wait() == 77
    assert client.settings() == client.before


def test_a_viewer_needs_no_right_to_write(front: Front, screen: Callable[..., Screen]) -> None:
    front.rights["ana"] = frozenset((Right.OBSERVE,))
    client = attached(screen, front)
    client.expect(rb"ana may not type")
    assert client.wait() == 77
    client = attached(screen, front, "--view")
    client.expect(rb"ready> ")
    client.type(b"\x03")
    assert client.wait() == 0


def test_attach_waits_for_one_that_sleeps(front: Front, screen: Callable[..., Screen]) -> None:
    front.waiting = threading.Event()
    front.session("work", phase="Suspended", epoch=1)
    client = attached(screen, front)
    client.expect(rb"waiting for work: it is Suspended")
    front.session("work", phase="Restoring", epoch=1)
    client.expect(rb"waiting for work: it is Restoring")
    front.waiting.set()
    client.expect(rb"ready> ")
    # And once more, while attached: in the bottom line.
    front.waiting.clear()
    front.session("work", phase="Moving", epoch=1)
    front.kill_gateway()
    client.expect(rb"reconnecting.*it is Moving")
    front.waiting.set()
    client.type(b"echo back-$((6*7))\r")
    client.expect(rb"back-42\r\n")
    client.type(DETACH)
    assert client.wait() == 0


def test_attach_goes_on_waiting(front: Front, screen: Callable[..., Screen]) -> None:
    """A gateway gives up after a minute; who attaches does not, and can leave."""
    front.failing = Unavailable("session work is Pending", "try again")
    client = attached(screen, front)
    client.expect(rb"session work is Pending; waiting")
    client.expect(rb"waiting for work.*detach.*session work is Pending")
    front.failing = None
    client.expect(rb"ready> ")
    client.type(DETACH)
    assert client.wait() == 0


def test_attach_is_let_in_and_dropped_at_once(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by the gateway of a session that has just been woken, before we look: we come again."""

    async def dropped(socket: Any, link: Any, caller: Any) -> None:
        await socket.close(code=1012)

    monkeypatch.setattr(streaming, "relay", dropped)
    chosen = choose(Target("t", kubeconfig=str(front.kubeconfig())))
    assert chosen is not None
    remote = Remote(of_cluster(chosen), AGGREGATED, "kubectl")
    tunnel = remote.tunnel("work", "team")
    assert isinstance(tunnel.why(), Unavailable)
    monkeypatch.setattr(remote, "tunnel", lambda *_: tunnel)
    link = TunnelLink(remote, "work", "team")
    said: list[str] = []
    link.prepare(said.append)
    assert said == ["the gateway closed the connection (1012); waiting …"]
    link.close()


async def test_a_client_that_vanished_without_a_word_is_gone(
    front: Front, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half-open: it is there no more, and nothing said so. Others are not bothered."""
    monkeypatch.setattr(streaming, "_HEARTBEAT_SECONDS", 0.2)
    url = f"https://127.0.0.1:{front.port}{AGGREGATED}/namespaces/team/sessions/work/observe/stream"
    trust = ssl.create_default_context(cafile=str(front.authority.certificate))
    headers = {"Authorization": "Bearer ana-token"}

    async def attached(http: aiohttp.ClientSession, *, answers: bool) -> Any:
        socket = await http.ws_connect(url, ssl=trust, autoping=answers)
        await socket.send_bytes(encode(Attach({"mode": "view", "columns": 80, "rows": 24})))
        return socket

    async with aiohttp.ClientSession(headers=headers) as http:
        lively, silent = await attached(http, answers=True), await attached(http, answers=False)
        decoder = Decoder()
        here: list[int] = []
        async with asyncio.timeout(20):
            while here[-2:] != [2, 1]:
                for frame in decoder.feed((await lively.receive()).data):
                    if isinstance(frame, Control) and frame.body.get("kind") == "clients":
                        here.append(len(frame.body["clients"]))
        await lively.close()
        await silent.close()


def test_a_token_that_has_run_out(front: Front, screen: Callable[..., Screen]) -> None:
    """Of a file that is written anew: nobody notices. Else it is said."""
    file = front.folder / "token"
    file.write_text("ana-token")
    config = front.kubeconfig({"tokenFile": str(file)})
    client = screen("attach", "work", f"--kubeconfig={config}")
    client.expect(rb"ready> ")
    front.tokens = {"next-token": "ana"}
    file.write_text("next-token")
    front.expire()
    client.type(b"echo renewed-$((6*7))\r")
    client.expect(rb"renewed-42\r\n")
    front.tokens = {}
    front.expire()
    assert client.wait() == 77
