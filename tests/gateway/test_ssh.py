"""SSH to a real session, by the real OpenSSH client: attach, run, be refused."""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import gateway_kit
import ssh_kit
from gateway_kit import Place, until
from ssh_kit import Ssh, new_key, public, rss_mib, sign

DETACH = b"\x1cd"


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Place, Ssh]]:
    """One gateway with two sessions; ana has a key, cy a certificate, nobody knows eve."""
    folder = tmp_path_factory.mktemp("ssh")
    ana, _, authority = (new_key(folder / name) for name in ("ana", "eve", "authority"))
    for name in ("cy", "dan", "old"):
        new_key(folder / name)
    sign(authority, folder / "cy", ["cy@example.com"])
    sign(authority, folder / "dan", ["dan@elsewhere.example"])
    sign(authority, folder / "old", ["cy@example.com"], valid_before=1)
    (folder / "keys").write_text(
        f'user="ana",groups="dev" {public(ana)}\n'
        f'cert-authority,principals="*@example.com",user="%p" {public(authority)}\n'
    )
    with gateway_kit.place() as place:
        place.session("build")
        place.session("other")
        ssh = ssh_kit.served(place, folder)
        place.sidecar("build")
        yield place, ssh


@pytest.fixture
def place(here: tuple[Place, Ssh]) -> Place:
    return here[0]


@pytest.fixture
def ssh(here: tuple[Place, Ssh]) -> Ssh:
    return here[1]


def state_of(ssh: Ssh, session: str) -> dict[str, object]:
    done = ssh.run("ana", "-s", ssh.at(session), "state")
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


def text_of(place: Place) -> bytes:
    return place.get("/api/v1/sessions/build/screen?format=text").body


def at_prompt(ssh: Ssh, session: str = "build") -> None:
    until(lambda: state_of(ssh, session)["activity"] == "prompt", "the prompt")


# -- attached


def test_attach_type_see_resize_detach(place: Place, ssh: Ssh) -> None:
    at_prompt(ssh)
    screen = ssh.terminal("ana", "build", (90, 25))
    try:
        screen.expect(rb"\$ ")
        screen.type(b"echo $((6*7)) $(stty size)\r")
        screen.expect(rb"[\r\n]42 25 90\r\n")
        screen.resize(100, 30)
        until(lambda: json.loads(place.get("/api/v1/sessions/build").body)["rows"] == 30, "30 rows")
        screen.type(b"stty size\r")
        screen.expect(rb"30 100\r\n")
        clients = json.loads(place.get("/api/v1/sessions/build").body)["clients"]
        assert [(one["actor"], one["modality"], one["mode"]) for one in clients] == [
            ("ana", "ssh", "write")
        ]
        screen.type(DETACH)
        screen.expect(rb"\[detached from build; come back with: ssh build@GATEWAY\]")
        assert screen.wait() == 0
    finally:
        screen.close()
    at_prompt(ssh)


def test_whoever_comes_late_sees_what_was_there(ssh: Ssh) -> None:
    at_prompt(ssh)
    assert ssh.run("ana", ssh.at("build"), "--", "echo early-$((1+1))").returncode == 0
    screen = ssh.terminal("cy", "build")
    try:
        screen.expect(rb"early-2")
        screen.type(DETACH)
        assert screen.wait() == 0
    finally:
        screen.close()


def test_what_is_typed_before_the_end_of_input_arrives(place: Place, ssh: Ssh) -> None:
    at_prompt(ssh)
    done = ssh.run("ana", "-tt", ssh.at("build"), stdin=b"echo piped-$((2+3))\r")
    assert done.returncode == 0
    until(lambda: b"\npiped-5\n" in text_of(place), "its output")


def test_a_killed_sidecar_costs_no_byte(place: Place, ssh: Ssh) -> None:
    at_prompt(ssh)
    screen = ssh.terminal("ana", "build")
    try:
        screen.expect(rb"\$ ")
        screen.type(b"for ((i=1000; i<=2200; i++)); do echo n$i; ((i % 20)) || sleep .02; done\r")
        screen.expect(rb"n1200\r\n")
        os.kill(place.sidecar("build"), signal.SIGKILL)
        screen.expect(rb"n2200\r\n")
        numbers = [int(found) for found in re.findall(rb"n(\d{4})\r\n", screen.seen)]
        assert numbers == list(range(1000, 2201))
        screen.type(DETACH)
        assert screen.wait() == 0
    finally:
        screen.close()


def test_while_the_sidecar_is_away_a_line_says_so(place: Place, ssh: Ssh) -> None:
    at_prompt(ssh, "other")
    screen = ssh.terminal("ana", "other")
    pid = place.sidecar("other")
    try:
        screen.expect(rb"\$ ")
        with (place.folder("other") / "sidecar.lock").open() as lock:
            os.kill(pid, signal.SIGKILL)
            until(lambda: not Path(f"/proc/{pid}").exists(), "its death")
            fcntl.flock(lock, fcntl.LOCK_EX)
            screen.expect(rb"connection to other lost, reconnecting")
            screen.type(b"echo held-$((3+4))\r")
        screen.expect(rb"[\r\n]held-7\r\n")
        screen.type(DETACH)
        assert screen.wait() == 0
    finally:
        screen.close()


def test_the_end_of_the_session_is_its_commands_status(place: Place, ssh: Ssh) -> None:
    place.session("short", "sh", "-c", "read line; exit 5")
    place.post("/api/v1/rescan")
    place.sidecar("short")
    screen = ssh.terminal("ana", "short")
    try:
        screen.expect(rb"\x1b\[1;1H")  # the snapshot's end: ssh has the terminal now
        screen.type(b"go\r")
        screen.expect(rb"\[session short ended: exit code 5\]")
        assert screen.wait() == 5
    finally:
        screen.close()
    again = ssh.terminal("ana", "short")
    try:
        again.expect(rb"\[session short ended: exit code 5\]")
        assert again.wait() == 5
    finally:
        again.close()


def test_a_client_that_does_not_read_costs_no_memory(place: Place, ssh: Ssh) -> None:
    assert place.gateway is not None
    at_prompt(ssh)
    screen = ssh.terminal("ana", "build")
    try:
        screen.expect(rb"\$ ")
        before = rss_mib(place.gateway.pid)
        most = 0.0
        screen.type(b"clear; head -c 30000000 /dev/zero | tr '\\0' x; echo; echo done-$((4+4))\r")
        while b"\ndone-8\n" not in text_of(place):
            most = max(most, rss_mib(place.gateway.pid))
        assert most - before < 8
        screen.expect(rb"done-8\r\n")  # by a gap and a snapshot: it was not waited for
        assert len(screen.seen) < 20_000_000
        screen.type(DETACH)
        assert screen.wait() == 0
    finally:
        screen.close()


# -- running


def test_a_command_gives_its_output_and_its_status(ssh: Ssh) -> None:
    at_prompt(ssh)
    done = ssh.run("ana", ssh.at("build"), "--", "echo out; echo more; (exit 3)")
    assert (done.returncode, done.stdout, done.stderr) == (3, b"out\nmore\n", b"")


def test_a_command_goes_to_the_sessions_shell_and_to_no_other(ssh: Ssh, tmp_path: Path) -> None:
    at_prompt(ssh)
    words = """printf '%s|' "$BASHPID $(echo in)" 'a  b' "\\$HOME"; test -z "$LEAK" && cd /tmp"""
    done = ssh.run("ana", "-o", "SetEnv=LEAK=1", ssh.at("build"), words)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(rb"\d+ in\|a  b\|\$HOME\|\n", done.stdout)
    assert ssh.run("ana", ssh.at("build"), "pwd; cd /").stdout == b"/tmp\n"


def test_with_a_terminal_lines_return(ssh: Ssh) -> None:
    at_prompt(ssh)
    done = ssh.run("ana", "-tt", ssh.at("build"), "echo a; echo b")
    assert done.stdout == b"a\r\nb\r\n"


def test_a_blocked_session_says_on_what(ssh: Ssh) -> None:
    at_prompt(ssh)
    screen = ssh.terminal("ana", "build")
    try:
        screen.expect(rb"\$ ")
        screen.type(b"read -p 'sure? ' answer\r")
        screen.expect(rb"sure\? ")
        until(lambda: state_of(ssh, "build")["activity"] == "reading", "the question")
        done = ssh.run("ana", ssh.at("build"), "--", "rm -rf /nothing")
        assert done.returncode == 75
        assert done.stdout == b""
        assert re.search(rb"holdfast: the shell is not at its prompt\. .*bash", done.stderr)
        screen.type(b"no\r" + DETACH)
        assert screen.wait() == 0
    finally:
        screen.close()


def test_without_a_terminal_it_says_what_to_do(ssh: Ssh) -> None:
    done = ssh.run("ana", ssh.at("build"))
    assert done.returncode == 64
    assert b"ssh -t build@GATEWAY" in done.stderr


def test_what_is_known_is_one_call(ssh: Ssh) -> None:
    at_prompt(ssh)
    told = json.loads(ssh.run("ana", "-s", ssh.at("build"), "graph").stdout)
    assert "bash" in [process["name"] for process in told["processes"]]
    info = json.loads(ssh.run("cy", "-s", ssh.at("build"), "info").stdout)
    assert info["session"] == "build"


# -- refused


@pytest.mark.parametrize("who", ["eve", "dan", "old"])
@pytest.mark.parametrize("session", ["build", "nothing"])
def test_who_is_not_mapped_hears_the_same_of_every_session(
    ssh: Ssh, who: str, session: str
) -> None:
    """No key, a certificate for others, an expired one."""
    done = ssh.run(who, ssh.at(session), "--", "true")
    assert done.returncode == 255
    assert b"Permission denied (publickey)" in done.stderr


def test_a_certificate_is_whom_it_says(place: Place, ssh: Ssh) -> None:
    at_prompt(ssh)
    assert ssh.run("cy", ssh.at("build"), "--", "true").returncode == 0
    told = json.loads(ssh.run("cy", "-s", ssh.at("build"), "journal").stdout)
    last = [
        record for record in told["records"] if record.get("kind", record.get("event")) == "exec"
    ]
    assert last[-1]["actor"] == "cy@example.com"


def test_there_is_no_session_of_that_name(ssh: Ssh) -> None:
    done = ssh.run("ana", ssh.at("nothing"), "--", "true")
    assert done.returncode == 66
    assert ssh.run("ana", "-tt", ssh.at("nothing")).returncode == 66
    assert ssh.run("ana", ssh.at("build.team"), "--", "true").returncode not in (0, 255)


@pytest.mark.parametrize(
    "forward",
    [
        ("-o", "ExitOnForwardFailure=yes", "-N", "-R", "0:127.0.0.1:1"),
        ("-o", "ExitOnForwardFailure=yes", "-N", "-R", "/never/sock:127.0.0.1:1"),
        ("-W", "127.0.0.1:22"),
        ("-s", "-tt"),
    ],
    ids=["remote", "remote-unix", "to-anywhere", "sftp"],
)
def test_nothing_is_forwarded(ssh: Ssh, forward: tuple[str, ...]) -> None:
    arguments = (*forward, ssh.at("build"), *(("sftp",) if "-s" in forward else ()))
    done = ssh.run("ana", *arguments)
    assert done.returncode == 255
    assert re.search(rb"failed|prohibited|refused", done.stderr)


def test_no_agent_and_no_display_reach_the_gateway(place: Place, ssh: Ssh) -> None:
    at_prompt(ssh)
    assert place.gateway is not None
    listening = Path(f"/proc/{place.gateway.pid}/net/unix").read_text().count("ssh-")
    done = ssh.run(
        "ana", "-A", "-X", ssh.at("build"), "echo [$SSH_AUTH_SOCK$DISPLAY]",
        SSH_AUTH_SOCK="/nowhere", DISPLAY=":7",
    )  # fmt: skip
    assert done.stdout == b"[]\n"
    assert Path(f"/proc/{place.gateway.pid}/net/unix").read_text().count("ssh-") == listening


def test_a_hostile_terminal_type_is_not_read(ssh: Ssh, tmp_path: Path) -> None:
    at_prompt(ssh)
    made = tmp_path / "made"
    screen = ssh.terminal("ana", "build", term=f"x$(touch {made})`touch {made}`;\x1b]0;t\x07")
    try:
        screen.expect(rb"\$ ")
        screen.type(b"echo $TERM\r")
        screen.expect(rb"[\r\n]xterm-256color\r\n")
        screen.type(DETACH)
        assert screen.wait() == 0
    finally:
        screen.close()
    assert not made.exists()


def test_a_removed_key_is_cut_off(ssh: Ssh, place: Place) -> None:
    keys = ssh.folder / "keys"
    before = keys.read_text()
    screen = ssh.terminal("ana", "build")
    try:
        screen.expect(rb"\$ ")
        began = time.monotonic()
        keys.write_text("\n".join(line for line in before.splitlines() if 'user="ana"' not in line))
        screen.expect(rb"your key is not let in any more")
        assert screen.wait() == 77
        assert time.monotonic() - began < 5
        assert ssh.run("ana", ssh.at("build"), "--", "true").returncode == 255
    finally:
        keys.write_text(before)
        screen.close()
    assert ssh.run("ana", "-s", ssh.at("build"), "state").returncode == 0


def test_a_gateway_that_stops_says_so_and_keeps_its_host_key(
    tmp_path: Path, place: Place, ssh: Ssh
) -> None:
    screen = ssh.terminal("ana", "build")
    try:
        screen.expect(rb"\$ ")
        assert place.stop() == 0
        screen.expect(rb"this gateway stops; the session goes on")
        assert screen.wait() == 75
    finally:
        screen.close()
    again = ssh_kit.served(place, ssh.folder)
    assert again.host_key == ssh.host_key
    at_prompt(again)
