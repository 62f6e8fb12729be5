"""The commands through a gateway that is named by its address, with its token: the real one of this
machine. And what is left to a `kubectl proxy`."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from client_kit import Home, Screen
from front_kit import Front
from holdfast.supervisor import Supervisor

DETACH = b"\x1cd"


@pytest.fixture(scope="module")
def gateway(home: Home) -> Iterator[dict[str, str]]:
    home.start("work")
    url = Supervisor(home.state).ensure().url("work")
    token = re.findall(r"token=([^&]+)", url)[0]
    yield {"HOLDFAST_GATEWAY": url.partition("#")[0], "HOLDFAST_TOKEN": token}
    home.run("end", "work", "--grace", "0")


def test_commands(home: Home, gateway: dict[str, str]) -> None:
    env = {"HOLDFAST_DIR": "/nonexistent", **gateway}  # nothing of this machine's is used
    assert home.ok("ls", "-o", "name", stdin=b"", **env) == "work\n"
    assert home.ok("ls", stdin=b"", **env).splitlines()[1].split()[:2] == ["work", "prompt"]
    assert home.ok("exec", "work", "--", "echo $((6*7))", stdin=b"", **env) == "42\n"
    assert home.ok("state", stdin=b"", **env).startswith("prompt: ")
    assert home.ok("wait", "--timeout", "5", stdin=b"", **env).startswith("prompt: ")
    records = json.loads(home.ok("logs", "work", "-o", "json", stdin=b"", **env))["records"]
    assert {one["modality"] for one in records if one["kind"] == "exec"} == {"http"}
    assert home.ok("url", stdin=b"", **env) == f"{gateway['HOLDFAST_GATEWAY']}#/work\n"
    done = home.run("run", "new", "--image", "x", stdin=b"", **env)
    assert (done.returncode, "kubectl holdfast run" in done.stderr) == (1, True)
    done = home.run("screen", "wrok", stdin=b"", **env)
    assert (done.returncode, "did you mean 'work'" in done.stderr) == (66, True)


def test_tokens(home: Home, gateway: dict[str, str], tmp_path: Path) -> None:
    url = gateway["HOLDFAST_GATEWAY"]
    done = home.run("ls", "--gateway", url)
    assert (done.returncode, "--audience=holdfast" in done.stderr) == (77, True)
    file = tmp_path / "token"
    file.write_text("wrong")
    assert home.run("ls", "--gateway", url, "--token-file", str(file)).returncode == 77
    file.write_text(gateway["HOLDFAST_TOKEN"])
    found = home.ok("--gateway", url, "--token-file", str(file), "ls", "-o", "name")
    assert found == "work\n"
    assert (
        home.run("ls", "--gateway", "http://example.org", "--token-file", str(file)).returncode
        == 64
    )


def test_attach(home: Home, gateway: dict[str, str], screen: Callable[..., Screen]) -> None:
    home.ok("take", "work", stdin=b"", **gateway)
    client = screen("attach", "work", **gateway)
    client.expect(rb"ready> ")
    home.kill_sidecar("work")
    client.type(b"echo again-$((6*7))\r")
    client.expect(rb"again-42\r\n")
    client.type(DETACH)
    assert client.wait() == 0


PROXY = """#!{python} -S
# `kubectl proxy`, as far as it is used: logs in, and passes on.
import os, socket, ssl, sys, threading
if "config" in sys.argv:
    print("team")
    sys.exit()
path = [word for word in sys.argv if word.startswith("--unix-socket=")][0].partition("=")[2]
listener = socket.socket(socket.AF_UNIX)
listener.bind(path)
listener.listen(8)

def carry(source, target, first):
    data = source.recv(1 << 16)
    while data:
        if first:
            head, _, rest = data.partition(b"\\r\\n")
            data = head + b"\\r\\nAuthorization: Bearer ana-token\\r\\n" + rest
            first = False
        target.sendall(data)
        data = source.recv(1 << 16)
    target.close()

while True:
    peer = listener.accept()[0]
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    server = context.wrap_socket(socket.create_connection(("127.0.0.1", {port})))
    threading.Thread(target=carry, args=(peer, server, True), daemon=True).start()
    threading.Thread(target=carry, args=(server, peer, False), daemon=True).start()
"""


def test_what_only_kubectl_can_do(home: Home, gateway: dict[str, str], tmp_path: Path) -> None:
    front = Front(tmp_path, home.state)
    try:
        front.session("work", phase="Running", epoch=1)
        kubectl = tmp_path / "kubectl"
        kubectl.write_text(PROXY.format(python=sys.executable, port=front.port))
        kubectl.chmod(0o755)
        config = front.kubeconfig({"auth-provider": {"name": "oidc"}})
        scratch = home.state / "t"  # a socket's path is short
        scratch.mkdir()
        env = {"HOLDFAST_KUBECTL": str(kubectl), "TMPDIR": str(scratch)}
        assert "ready>" in home.ok("screen", "work", f"--kubeconfig={config}", stdin=b"", **env)
        assert list(scratch.iterdir()) == []
    finally:
        front.close()
    running = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True)
    assert str(kubectl) not in running.stdout
