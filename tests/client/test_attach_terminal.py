"""Attaching in a real terminal to a real session: what the user sees, and what is left behind."""

from __future__ import annotations

import hashlib
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from client_kit import Home, Screen, alive, eventually
from holdfast.folders import sidecar_pid

DETACH = b"\x1cd"
Open = Callable[..., Screen]
# Where a line begins in what a terminal gets: after the one before it, or, if a snapshot or one of
# the client's own messages came just then, where that puts the cursor.
NEW_LINE = rb"(?:[\r\n]|\x1b\[\d+;1H|\x1b8)"


@pytest.fixture(scope="module")
def shell(home: Home) -> Iterator[str]:
    home.start("shell")
    yield "shell"
    home.run("end", "shell", "--grace", "0")


def attached(screen: Open, *arguments: str, size: tuple[int, int] = (90, 25)) -> Screen:
    opened = screen("attach", *arguments, size=size)
    opened.expect(rb"ready> ")
    return opened


def leave(opened: Screen) -> None:
    opened.type(DETACH)
    assert opened.wait() == 0


def test_type_see_detach(screen: Open, shell: str) -> None:
    opened = attached(screen, shell)
    assert opened.is_raw()
    opened.type(b"echo one$((1+1))three\r")
    opened.expect(NEW_LINE + rb"one2three\r\n")
    opened.type(DETACH)
    opened.expect(rb"\[detached from shell; come back with: holdfast attach shell\]")
    assert opened.wait() == 0
    assert opened.settings() == opened.before


def test_the_detach_key_is_shown_on_attaching(screen: Open, shell: str) -> None:
    opened = attached(screen, shell)
    opened.expect(rb"attached to shell \xc2\xb7 detach: ctrl-\\ then d")
    leave(opened)


def test_leaving_resets_what_programs_turned_on(screen: Open, home: Home, shell: str) -> None:
    opened = attached(screen, shell)
    opened.type(b"printf '\\033[?1049h\\033[?1003h\\033[?2004h\\033[?25l\\033[>1u\\033[31mX'\r")
    opened.expect(rb"\x1b\[\?1049h")
    leave(opened)
    farewell = opened.seen[opened.seen.rindex(b"\x1b[?1049h") :]
    for wanted in (
        b"\x1b[?47l",
        b"\x1b[?1003l",
        b"\x1b[?2004l",
        b"\x1b[?25h",
        b"\x1b[<",
        b"\x1b[0m",
    ):
        assert wanted in farewell
    assert b"\x1b[3J" not in opened.seen, "the user's scrollback is theirs"
    assert b"\x1bc" not in opened.seen
    home.ok("send", shell, "printf '\\033[?1049l\\033[?1003l\\033[?25h\\033[0m'; clear", "--enter")
    home.ok("wait", shell)


def test_scrollback_comes_along(screen: Open, home: Home, shell: str) -> None:
    home.ok("exec", shell, "--", "seq 5001 5200")
    opened = attached(screen, shell)
    leave(opened)
    for number in (5001, 5100, 5200):
        assert str(number).encode() in opened.seen


def test_the_session_takes_the_window_size(screen: Open, home: Home, shell: str) -> None:
    opened = attached(screen, shell, size=(101, 33))
    opened.type(b"stty size\r")
    opened.expect(NEW_LINE + rb"33 101\r\n")
    opened.resize(77, 20)
    eventually(lambda: home.json("screen", shell)["columns"] == 77, "the new size")
    opened.type(b"stty size\r")
    opened.expect(NEW_LINE + rb"20 77\r\n")
    leave(opened)


def test_a_killed_sidecar_is_survived_and_inputs_count_once(
    screen: Open, home: Home, shell: str
) -> None:
    pid = home.pid(shell)
    opened = attached(screen, shell)
    opened.type(b"i=0; bump() { i=$((i+1)); echo count-$i; }\r")
    opened.expect(rb"ready> ")
    for round_ in range(1, 4):
        home.kill_sidecar(shell)
        opened.type(b"bump\r")
        opened.expect(NEW_LINE + rb"count-%d\r\n" % round_)
    leave(opened)
    assert opened.settings() == opened.before
    assert home.ok("exec", shell, "--", "echo $i").strip() == "3"
    assert home.pid(shell) == pid


def test_output_during_an_outage_is_seen(screen: Open, home: Home, shell: str) -> None:
    opened = attached(screen, shell)
    opened.type(b"for n in $(seq 1 40); do echo line-$n-; sleep 0.05; done; echo all-done\r")
    opened.expect(NEW_LINE + rb"line-3-")
    home.kill_sidecar(shell)
    opened.expect(NEW_LINE + rb"all-done")
    leave(opened)
    for number in range(1, 41):
        assert b"line-%d-" % number in opened.seen


def test_a_hanging_sidecar_is_told_and_can_be_left(screen: Open, home: Home, shell: str) -> None:
    pid = sidecar_pid(home.folder(shell))
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        opened = screen("attach", shell)
        opened.expect(rb"waiting for shell")
        opened.type(DETACH)
        assert opened.wait() == 0
        assert opened.settings() == opened.before
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)]
)
def test_signals_restore_the_terminal(
    screen: Open, home: Home, shell: str, number: signal.Signals, code: int
) -> None:
    opened = attached(screen, shell)
    opened.process.send_signal(number)
    assert opened.wait() == code
    assert opened.settings() == opened.before
    assert b"\x1b[?25h" in opened.seen
    assert home.json("state", shell)["activity"] == "prompt"


def test_stopped_and_continued(screen: Open, shell: str) -> None:
    opened = attached(screen, shell)
    opened.process.send_signal(signal.SIGSTOP)
    eventually(lambda: _stat(opened.process.pid) == "T", "the stop")
    opened.process.send_signal(signal.SIGCONT)
    opened.expect(rb"ready> ")
    opened.type(b"echo go$((1+1))on\r")
    opened.expect(NEW_LINE + rb"go2on")
    leave(opened)


def _stat(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_quit_key_reaches_the_session(screen: Open, shell: str) -> None:
    """ctrl-\\ twice is one ctrl-\\; so is one that nothing follows."""
    opened = attached(screen, shell)
    for keys in (b"\x1c\x1c", b"\x1c"):
        opened.type(b"bash -c 'trap \"echo got-quit; exit\" QUIT; echo i''s-up; read x'\r")
        opened.expect(rb"is-up\r\n")
        opened.type(keys)
        opened.expect(rb"got-quit\r\n")
        opened.expect(rb"ready> ")
    leave(opened)


def test_view_does_not_type(screen: Open, home: Home, shell: str) -> None:
    opened = attached(screen, shell, "--view")
    opened.type(b"echo intruder\r")
    home.ok("send", shell, "echo legiti$((1+0))mate", "--enter")
    opened.expect(NEW_LINE + rb"legiti1mate")
    assert b"intruder" not in opened.seen
    opened.type(b"\x03")
    opened.expect(rb"\[detached from shell")
    assert opened.wait() == 0


def test_other_detach_keys(screen: Open, shell: str) -> None:
    opened = attached(screen, shell, "--detach-keys", "ctrl-],q")
    opened.type(b"\x1cd")
    opened.expect(rb"d")
    opened.type(b"\x15\x1dq")
    assert opened.wait() == 0


def test_a_big_paste_arrives_whole(screen: Open, home: Home) -> None:
    # A program of its own, not a line typed at a shell, which sets the terminal as it pleases.
    script = "stty -echo -icanon; echo ready; head -c 300000 | md5sum; echo over; sleep 600"
    home.start("paste", "sh", "-c", script)
    opened = screen("attach", "paste")
    opened.expect(rb"ready\r\n")
    data = bytes(range(32, 127)) * 3158
    os.set_blocking(opened.master, False)
    rest = memoryview(data[:300000])
    while rest:
        try:
            rest = rest[os.write(opened.master, rest) :]
        except BlockingIOError:
            opened.pump(0.02)
    os.set_blocking(opened.master, True)
    digest = hashlib.md5(data[:300000], usedforsecurity=False).hexdigest()
    opened.expect(digest.encode())
    opened.expect(rb"over")
    leave(opened)
    home.run("end", "paste", "--grace", "0")


def test_run_attaches_and_gives_the_exit_code(screen: Open) -> None:
    opened = screen("run", "--name", "brief", "--", "bash", "-c", "echo hello; read x; exit 3")
    opened.expect(rb"hello")
    opened.type(b"\r")
    opened.expect(rb"\[session brief ended: exit code 3\]")
    assert opened.wait() == 3
    assert opened.settings() == opened.before


def test_killed_by_a_signal(screen: Open, home: Home) -> None:
    opened = screen("run", "--name", "victim", "--", "bash", "-c", "echo up; kill -9 $$")
    opened.expect(rb"\[session victim ended: killed by SIGKILL\]")
    assert opened.wait() == 137


def test_the_last_output_is_seen_before_the_end(screen: Open) -> None:
    script = "read x; seq 1 60000; echo the-very-last"
    opened = screen("run", "--name", "flood", "--", "bash", "-c", script)
    opened.expect(rb"attached to flood")
    opened.type(b"\r")
    opened.expect(rb"the-very-last\r\n", patience=60)
    opened.expect(rb"\[session flood ended: exit code 0\]")
    assert opened.wait() == 0


def test_run_survives_its_terminal(screen: Open, home: Home) -> None:
    opened = screen("run", "--name", "orphan", "--", "bash", "--norc", "-i")
    opened.expect(rb"ready> ")
    opened.type(b"echo my-pid-is-$$-\r")
    opened.expect(rb"my-pid-is-(\d+)-\r\n")
    pid = home.pid("orphan")
    client = opened.process.pid
    opened.hang_up()
    eventually(lambda: opened.process.poll() is not None, "the client's end")
    assert not alive(client)
    assert home.pid("orphan") == pid
    assert home.ok("exec", "orphan", "--", "echo still $((40+2))").strip() == "still 42"
    home.ok("end", "orphan", "--grace", "0")


def test_the_session_dies_with_its_sidecar_away(screen: Open, home: Home) -> None:
    opened = screen("run", "--name", "brittle", "--", "bash", "-c", "read x; exit 7")
    opened.expect(rb"attached to brittle")
    home.kill_sidecar("brittle")
    opened.type(b"\r")
    opened.expect(rb"\[session brittle ended: exit code 7\]")
    assert opened.wait() == 7
    assert opened.settings() == opened.before


def test_attach_to_oneself_is_refused(screen: Open, home: Home, shell: str) -> None:
    session_id = home.json("ls")["sessions"]
    own = next(s["session_id"] for s in session_id if s["name"] == shell)
    opened = screen("attach", shell, HOLDFAST_SESSION_ID=own)
    opened.expect(rb"you are inside session shell")
    assert opened.wait() == 64
