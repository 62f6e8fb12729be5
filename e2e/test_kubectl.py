"""`kubectl holdfast` through the API server's aggregation layer: a kubeconfig and rights on
subresources are all that people here have. There is no kubectl beside it, and no right to pods."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import ssl
import statistics
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import holdfast
from client_kit import Screen
from e2e.cluster.places import KUBECONFIG, REPOSITORY
from e2e.guests import AUTHORITY, Guests
from e2e.guests import NAME as GATEWAY_NAME
from e2e.lab import OPERATOR_NAMESPACE, Lab
from uplink_kit import authority

PATIENCE = 40.0
DETACH = b"\x1cd"  # ctrl-\ then d
PROMPT = rb"bash-[0-9.]+[#$] "
PROGRAM = str(REPOSITORY / ".venv" / "bin" / "kubectl-holdfast")
ENV = {"HOLDFAST_KUBECTL": "/nonexistent/kubectl", "PATH": "/usr/bin:/bin", "HOME": "/nonexistent",
       "TERM": "xterm-256color", "LANG": "C.UTF-8"}  # fmt: skip
ROLES = {"writer": "holdfast-user", "observer": "holdfast-observer", "stranger": None}
CUT_SECONDS = 5.0
GATEWAYS = ("-l", "app.kubernetes.io/component=gateway")


class Person:
    """A service account with a role, its kubeconfig, and the plugin it is used by."""

    def __init__(self, lab: Lab, folder: Path, name: str, role: str | None) -> None:
        self.name, self._lab = name, lab
        self.actor = f"system:serviceaccount:default:{name}"
        lab.kubectl("create", "serviceaccount", name)
        if role is not None:
            lab.kubectl("create", "rolebinding", name, f"--clusterrole={role}",
                        f"--serviceaccount=default:{name}")  # fmt: skip
        config = yaml.safe_load(KUBECONFIG.read_text())
        token = lab.kubectl("create", "token", name, "--duration=1h").strip()
        config["users"] = [{"name": name, "user": {"token": token}}]
        for one in config["contexts"]:
            one["context"]["user"] = name
        self.kubeconfig = folder / name
        self.kubeconfig.write_text(yaml.safe_dump(config))  # as a person's is: YAML

    def command(self, *arguments: str) -> list[str]:
        return [PROGRAM, f"--kubeconfig={self.kubeconfig}", *arguments]

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*arguments), env=ENV, capture_output=True, text=True, timeout=60,
            check=False,
        )  # fmt: skip

    def ok(self, *arguments: str) -> str:
        done = self.run(*arguments)
        assert done.returncode == 0, (arguments, done.stdout, done.stderr)
        assert done.stderr == ""
        return done.stdout


@pytest.fixture(scope="module")
def people(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Person]]:
    folder = tmp_path_factory.mktemp("people")
    yield {name: Person(lab, folder, name, role) for name, role in ROLES.items()}
    for name in ROLES:
        lab.kubectl("delete", "serviceaccount,rolebinding", name, "--ignore-not-found")


@pytest.fixture
def at_terminal() -> Iterator[Callable[..., Screen]]:
    opened: list[Screen] = []

    def open_screen(person: Person, *arguments: str) -> Screen:
        opened.append(Screen(person.command(*arguments), ENV))
        return opened[-1]

    yield open_screen
    for screen in opened:
        screen.close()


def test_a_writer(lab: Lab, people: dict[str, Person], at_terminal: Callable[..., Screen]) -> None:
    writer = people["writer"]
    lab.session("typed", "bash", "--norc")
    screen = at_terminal(writer, "attach", "typed")
    screen.expect(PROMPT, PATIENCE)
    screen.type(b"echo by-hand-$((6*7))\r")
    screen.expect(rb"by-hand-42\r\n", PATIENCE)
    screen.type(DETACH)
    assert screen.wait(PATIENCE) == 0
    done = writer.run(
        "exec", "typed", "-o", "json", "--", "echo $((6*7)); exit_with() { return 3; }; exit_with"
    )
    assert done.returncode == 3, done.stderr
    assert json.loads(done.stdout)["output"].split() == ["42"]
    writer.ok("send", "typed", "sleep 600", "--enter")
    assert "running" in writer.ok("wait", "typed", "--for", "running", "--timeout", "20")
    assert "sleep" in writer.ok("graph", "typed")
    writer.ok("send", "typed", "--keys", "C-c")
    assert "by-hand-42" in writer.ok("screen", "typed")
    records = json.loads(writer.ok("logs", "typed", "-o", "json"))["records"]
    by = {(record["actor"], record["modality"]) for record in records if record["kind"] == "exec"}
    assert by == {(writer.actor, "kubectl")}  # by the cluster's word, not the client's
    assert writer.ok("ls", "-o", "name") == "typed\n"


def answers(person: Person, name: str) -> dict[str, int]:
    asked = {
        "screen": ("screen", name), "state": ("state", name), "graph": ("graph", name),
        "logs": ("logs", name), "send": ("send", name, "x"), "exec": ("exec", name, "--", "true"),
        "take": ("take", name), "freeze": ("freeze", name),
    }  # fmt: skip
    return {what: person.run(*words).returncode for what, words in asked.items()}


def test_rbac_decides(
    lab: Lab, people: dict[str, Person], at_terminal: Callable[..., Screen]
) -> None:
    session = lab.session("guarded", "bash", "--norc")
    session.await_text("bash-")
    read, write = ("screen", "state", "graph", "logs"), ("send", "exec", "take", "freeze")
    assert answers(people["observer"], "guarded") == dict.fromkeys(read, 0) | dict.fromkeys(
        write, 77
    )
    # The same for what is there and what is not: he learns nothing.
    assert set(answers(people["stranger"], "guarded").values()) == {77}
    assert set(answers(people["stranger"], "absent").values()) == {77}
    assert people["writer"].run("screen", "absent").returncode == 66
    assert people["stranger"].run("ls").returncode == 77
    refused = at_terminal(people["observer"], "attach", "guarded")
    assert refused.wait(PATIENCE) == 77
    viewer = at_terminal(people["observer"], "attach", "guarded", "--view")
    viewer.expect(PROMPT, PATIENCE)
    session.type("echo seen-$((6*7))")
    viewer.expect(rb"seen-42", PATIENCE)
    viewer.type(b"\x03")
    assert viewer.wait(PATIENCE) == 0


def test_a_right_that_is_taken_away_cuts(
    lab: Lab, people: dict[str, Person], at_terminal: Callable[..., Screen]
) -> None:
    lab.session("cut", "bash", "--norc")
    screen = at_terminal(people["writer"], "attach", "cut")
    screen.expect(PROMPT, PATIENCE)
    lab.kubectl("delete", "rolebinding", "writer")
    began = time.monotonic()
    try:
        assert screen.wait(CUT_SECONDS + 2.0) == 77
        lab.report["revoked_attach_cut_seconds"] = round(time.monotonic() - began, 2)
        assert time.monotonic() - began < CUT_SECONDS
    finally:
        lab.kubectl("create", "rolebinding", "writer", "--clusterrole=holdfast-user",
                    "--serviceaccount=default:writer")  # fmt: skip


def test_typing_through_the_death_of_gateways(
    lab: Lab, people: dict[str, Person], at_terminal: Callable[..., Screen]
) -> None:
    """Whichever it is attached to dies; each line takes effect once."""
    lab.session("through", "bash", "--norc")
    screen = at_terminal(people["writer"], "attach", "through")
    screen.expect(PROMPT, PATIENCE)
    number = 0
    for pod in lab.get("pods", "-n", OPERATOR_NAMESPACE, *GATEWAYS)["items"]:
        for _ in range(5):
            number += 1
            screen.type(b"echo n-$((%d+0))-; " % number)
        screen.type(b"\r")
        lab.kubectl("delete", "pod", "-n", OPERATOR_NAMESPACE, pod["metadata"]["name"],
                    "--grace-period=0", "--force", "--wait=false")  # fmt: skip
        for _ in range(5):
            number += 1
            screen.type(b"echo n-$((%d+0))-\r" % number)
        screen.expect(rb"n-%d-\r\n" % number, PATIENCE)
        lab.kubectl("rollout", "status", "-n", OPERATOR_NAMESPACE, "deployment", *GATEWAYS,
                    "--timeout=90s")  # fmt: skip
    done = people["writer"].run("screen", "through", "--scrollback")
    # A gateway that has just come may have to wait for the session's sidecar, and says so.
    text = done.stdout
    assert done.returncode == 0, done.stderr
    assert [int(n) for n in re.findall(r"^n-(\d+)-$", text, re.MULTILINE)] == [
        *range(1, number + 1)
    ]
    screen.type(DETACH)
    assert screen.wait(PATIENCE) == 0


@pytest.mark.parametrize("odd", ["&anchor ", "something-only-kubectl-knows: x\n    "])
def test_what_is_left_to_kubectl(lab: Lab, people: dict[str, Person], odd: str) -> None:
    """A kubeconfig written as only kubectl reads it; and one that asks for something else."""
    writer = people["writer"]
    lab.session("odd", "bash", "--norc")
    text = writer.kubeconfig.read_text()
    config = writer.kubeconfig.with_name("odd")
    config.write_text(text.replace("token: ", f"{odd}token: " if "x" in odd else f"token: {odd}"))
    command = [PROGRAM, f"--kubeconfig={config}", "exec", "odd", "--", "echo $((6*7))"]
    env = {**ENV, "HOLDFAST_KUBECTL": str(lab.programs / "kubectl")}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.returncode) == ("42\n", 0), done.stderr
    records = json.loads(writer.ok("logs", "odd", "-o", "json"))["records"]
    assert {one["actor"] for one in records if one["kind"] == "exec"} == {writer.actor}


def test_the_sdk(lab: Lab, people: dict[str, Person]) -> None:
    lab.session("sdk", "bash", "--norc")

    async def use() -> Any:
        config = str(people["writer"].kubeconfig)
        assert "sdk" in [one.name for one in await holdfast.sessions(kubeconfig=config)]
        async with holdfast.connect("sdk", kubeconfig=config) as session:
            await session.wait("prompt", timeout=30)
            done = await session.exec("echo $((6*7))")
            assert (done.exit_code, done.output.split()) == (0, ["42"])
            async for item in session.stream(from_seq=0):
                if isinstance(item, holdfast.Output) and b"42" in item.data:
                    break
        observer = str(people["observer"].kubeconfig)
        async with holdfast.connect("sdk", kubeconfig=observer) as session:
            with pytest.raises(holdfast.Forbidden):
                await session.send("x")
        with pytest.raises(holdfast.Forbidden):
            await holdfast.connect("sdk", kubeconfig=str(people["stranger"].kubeconfig)).info()

    asyncio.run(use())


# The program itself, to which the gateway's name is this machine, as by its hosts file.
_AT_HOME = """
import socket, sys
name, asked = sys.argv[1], socket.getaddrinfo
socket.getaddrinfo = lambda host, *a, **b: asked("127.0.0.1" if host == name else host, *a, **b)
sys.argv[:2] = ["holdfast"]
from holdfast.cli import main
sys.exit(main())
"""


def test_a_gateway_by_its_address(lab: Lab, guests: Guests) -> None:
    """Without a kubeconfig: a URL, a token for it, and the CA of its certificate."""
    session = guests.reached(lab.session("direct", "bash", "--norc"))
    given = {"HOLDFAST_GATEWAY": guests.url, "HOLDFAST_TOKEN": guests["wanda"].token,
             "HOLDFAST_GATEWAY_CA": str(guests.folder / AUTHORITY)}  # fmt: skip
    command = [str(REPOSITORY / ".venv" / "bin" / "python"), "-c", _AT_HOME, GATEWAY_NAME]

    def run(*words: str, **other: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*command, *words], env=ENV | given | other, capture_output=True, text=True, timeout=60,
            check=False,
        )  # fmt: skip

    assert run("wait", "direct", "-n", "default").returncode == 0
    assert run("ls", "-o", "name").stdout == "default/direct\n"
    done = run("exec", "direct", "--", "echo $((6*7)); (exit 3)")
    assert (done.returncode, done.stdout) == (3, "42\n"), done
    assert run("url", "direct").stdout == f"{guests.url}/#/default/direct\n"
    records = json.loads(run("logs", "direct", "-o", "json").stdout)["records"]
    (ran,) = [one for one in records if one["kind"] == "exec"]
    assert (ran["actor"], ran["modality"]) == (guests["wanda"].actor, "http")
    screen = Screen([*command, "attach", "direct"], ENV | given)
    try:
        screen.expect(PROMPT)
        screen.type(b"echo at-$((6*7))\r")
        screen.expect(b"at-42")
        screen.type(DETACH)
        assert screen.wait() == 0
    finally:
        screen.close()
    for code, said, other in (
        (77, "does not show the certificate it should", {"HOLDFAST_GATEWAY_CA": ""}),
        (77, "does not show the certificate", {"HOLDFAST_GATEWAY_CA": str(_other(guests.folder))}),
        (77, "token", {"HOLDFAST_TOKEN": "nonsense"}),
        (77, "may not", {"HOLDFAST_TOKEN": guests["otto"].token}),
    ):
        done = run("send", "direct", "-n", "default", "x", **other)
        assert (done.returncode, said in done.stderr) == (code, True), done
    assert run("state", "gone", "-n", "default").returncode == 66
    assert session.epoch == 1


def _other(folder: Path) -> Path:
    """An authority that signed nothing here."""
    path = folder / "other-ca.crt"
    path.write_text(authority("other").pem)
    return path


def test_where_the_page_is(lab: Lab, people: dict[str, Person]) -> None:
    """For somebody who may look at his sessions and at nothing of the gateway's."""
    lab.session("paged", "bash", "--norc")
    done = people["observer"].run("url", "paged", "-o", "json")
    found = json.loads(done.stdout)
    assert found["url"] == "https://localhost:8443/#/default/paged"
    words = shlex.split(found["forward"])
    assert words[-4:] == ["-n", OPERATOR_NAMESPACE, "service/holdfast-gateway", "8443:443"]
    with subprocess.Popen(
        [str(lab.programs / "kubectl"), f"--kubeconfig={KUBECONFIG}", *words[-5:-1], ":443"],
        stdout=subprocess.PIPE, text=True,
    ) as forward:  # fmt: skip
        try:
            assert forward.stdout is not None
            port = re.findall(r"127\.0\.0\.1:(\d+) ->", forward.stdout.readline())[0]
            insecure = ssl._create_unverified_context()  # noqa: S323 - as a browser told to
            with urllib.request.urlopen(f"https://localhost:{port}/", context=insecure) as page:
                assert b"holdfast" in page.read()
        finally:
            forward.terminate()


@pytest.mark.timed
def test_the_first_frame_comes_as_fast_as_an_exec(
    lab: Lab, people: dict[str, Person], at_terminal: Callable[..., Screen]
) -> None:
    """In one run, one after the other: `kubectl exec POD -- true`, and from starting the plugin to
    the session's first byte on the terminal."""
    session = lab.session("fast", "bash", "--norc")
    session.await_text("bash-")
    pod = session.pod
    executed, attached = [], []
    for _ in range(9):
        began = time.monotonic()
        lab.kubectl("exec", pod, "-c", "session", "--", "true")
        executed.append(time.monotonic() - began)
        began = time.monotonic()
        screen = at_terminal(people["writer"], "attach", "fast")
        screen.expect(PROMPT, PATIENCE)
        attached.append(time.monotonic() - began)
        screen.type(DETACH)
        assert screen.wait(PATIENCE) == 0
    first, exec_true = (statistics.median(times) * 1000 for times in (attached, executed))
    lab.report["kubectl_attach_first_frame_ms"] = round(first, 1)
    lab.report["kubectl_exec_true_ms"] = round(exec_true, 1)
    assert first <= 2 * exec_true, (attached, executed)
