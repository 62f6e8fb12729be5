"""The commands against real sessions: what they print, and the code they exit with."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from client_kit import Home, alive, eventually
from holdfast.folders import Life, life, sidecar_pid


@pytest.fixture(scope="module")
def shell(home: Home) -> Iterator[str]:
    home.start("work")
    yield "work"
    home.run("end", "work", "--grace", "0")


@pytest.fixture
def untouched(home: Home, shell: str) -> Iterator[None]:
    """Whatever a test gets wrong, the session that lives is not harmed."""
    before = home.pid(shell)
    yield
    assert home.pid(shell) == before
    assert home.ok("exec", shell, "--", "echo fine").strip() == "fine"


def test_run_detached(home: Home) -> None:
    name, url = home.ok("run", "-d", "--name", "first", "--", "sleep", "1000").splitlines()
    assert name == "first"
    assert url.startswith("http://127.0.0.1:")
    assert url.endswith("&session=first")
    assert home.ok("url", "first").strip() == url
    described = json.loads((home.folder("first").description).read_text())
    assert described["command"] == ["sleep", "1000"]
    assert set(described) == {
        "name", "id", "command", "cwd", "columns", "rows", "scrollback", "created",
    }  # fmt: skip
    assert home.ok("end", "first").startswith("first ended: killed by SIG")
    assert life(home.folder("first")) is Life.ENDED


def test_run_without_a_terminal_prints_and_names_itself(home: Home, shell: str) -> None:
    first = home.ok("run", "--", "sleep", "1000").splitlines()[0]
    second = json.loads(home.ok("run", "-o", "json", "--", "/bin/sleep", "1000"))
    assert (first, second["name"]) == ("sleep", "sleep-2")
    assert second["session_id"]
    for name in (first, second["name"]):
        home.ok("end", name, "--grace", "0")


def test_the_commands_surroundings(home: Home, tmp_path: Path) -> None:
    home.ok(
        "run", "-d", "--name", "env", "--cwd", str(tmp_path), "--size", "91x17", "--",
        "bash", "-c", "env; pwd; stty size; sleep 1000",
        TMUX="x", STY="y", KITTY_PID="1", SECRET="kept",
    )  # fmt: skip
    eventually(lambda: "17 91" in home.ok("screen", "env"), "the size")
    text = home.ok("screen", "env", "--scrollback")
    for line in (
        "TERM=xterm-256color", "COLORTERM=truecolor", "HOLDFAST_SESSION=env", "SECRET=kept",
    ):  # fmt: skip
        assert line in text
    assert "HOLDFAST_SESSION_ID=" in text
    assert str(tmp_path) in text.replace("\n", "")
    for name in ("TMUX=", "STY=", "KITTY_PID="):
        assert name not in text
    home.ok("end", "env", "--grace", "0")


def test_ls(home: Home, shell: str) -> None:
    header, *rows = home.ok("ls").splitlines()
    assert header.split() == ["NAME", "STATE", "PID", "SIZE", "CLIENTS", "IDLE", "AGE", "COMMAND"]
    row = next(row for row in rows if row.startswith("work "))
    assert "prompt" in row
    assert row.endswith("bash --norc -i")
    assert "work" in home.ok("ls", "-o", "name").splitlines()
    entry = next(s for s in home.json("ls")["sessions"] if s["name"] == "work")
    assert entry["state"]["activity"] == "prompt"
    assert (entry["columns"], entry["rows"]) == (120, 40)


def test_describe(home: Home, shell: str) -> None:
    text = home.ok("describe", shell)
    assert "Name:     work\n" in text
    assert "State:    prompt: " in text
    assert "Command:  bash --norc -i\n" in text
    assert home.json("describe", shell)["pid"] == home.pid(shell)


def test_hostile_titles_and_commands(home: Home, shell: str) -> None:
    home.start(
        "odd", "bash", "-c", "printf '\\033]0;\\007evil\\033]2;x\\033[2J\\007'; sleep 999 #\x1b[2J"
    )
    for text in (home.ok("ls"), home.ok("graph", "odd"), home.ok("journal", "odd")):
        assert "\x1b" not in text
        assert "\x07" not in text
    home.ok("end", "odd", "--grace", "0")


@pytest.mark.parametrize(("command", "code"), [("true", 0), ("false", 1), ("(exit 42)", 42)])
def test_exec_codes(home: Home, shell: str, command: str, code: int) -> None:
    assert home.run("exec", shell, "--", command).returncode == code


def test_exec(home: Home, shell: str) -> None:
    assert home.ok("exec", shell, "--", "echo", "a  b", "$HOME", "'").strip() == "a  b $HOME '"
    assert home.ok("exec", shell, "--", "echo $((6*7)) | rev").strip() == "24"
    done = home.run("exec", shell, "-o", "json", "--", "echo out; (exit 3)")
    result = json.loads(done.stdout)
    assert done.returncode == result["exit_code"] == 3
    assert result["output"].strip() == "out"
    assert result["seq_end"] > result["seq_start"]


def test_exec_runs_once_for_a_key(home: Home, shell: str) -> None:
    home.ok("exec", shell, "--", "n=0")
    for _ in range(2):
        home.ok("exec", shell, "--key", "bump-1", "--", "n=$((n+1))")
    assert home.ok("exec", shell, "--", "echo n=$n").strip() == "n=1"


def test_exec_timeout_and_busy(home: Home, shell: str) -> None:
    over = home.state / "over"
    waits = f"until test -e {over}; do sleep 0.05; done"
    done = home.run("exec", shell, "--timeout", "0.3", "--", waits)
    assert done.returncode == 75
    assert "still running" in done.stderr
    done = home.run("exec", shell, "--", "echo no")
    assert done.returncode == 75
    over.touch()
    home.ok("wait", shell, "--timeout", "20")
    assert "echo no" not in home.ok("screen", shell)


def test_send_screen_wait(home: Home, shell: str) -> None:
    home.ok("send", shell, "read -p 'your name: ' who", "--enter")
    home.ok("wait", shell, "--for", "reading,input", "--timeout", "20")
    assert "your name:" in home.ok("screen", shell)
    home.ok("send", shell, "-", "--enter", stdin="zoë".encode())
    home.ok("wait", shell, "--for", "prompt", "--timeout", "20")
    assert home.ok("exec", shell, "--", "echo hello $who").strip() == "hello zoë"
    home.ok("send", shell, "sleep 1000", "--enter")
    home.ok("wait", shell, "--for", "running", "--timeout", "20")
    assert "sleep" in home.ok("state", shell)
    home.ok("send", shell, "--keys", "C-c")
    assert home.ok("wait", shell, "--timeout", "20").startswith("prompt: ")


def test_send_is_idempotent_by_key(home: Home, shell: str) -> None:
    for _ in range(2):
        home.ok("send", shell, "m=$((m+1))", "--enter", "--key", "once")
    home.ok("wait", shell)
    assert home.ok("exec", shell, "--", "echo m=$m").strip() == "m=1"


def test_screen_formats(home: Home, shell: str) -> None:
    home.ok("exec", shell, "--", "clear; printf '\\033[31mred\\033[0m\\n'")
    assert "\x1b[" not in home.ok("screen", shell)
    assert "\x1b[" in home.ok("screen", shell, "--ansi")
    assert home.json("screen", shell)["columns"] == 120
    home.ok("exec", shell, "--", "seq 1 100")
    assert "\n7\n" in home.ok("screen", shell, "--scrollback")
    assert "\n7\n" not in home.ok("screen", shell)


def test_graph(home: Home, shell: str) -> None:
    home.ok("send", shell, "sleep 1001 | cat", "--enter")
    home.ok("wait", shell, "--for", "running", "--timeout", "20")
    tree = eventually(lambda: t if "sleep 1001" in (t := home.ok("graph", shell)) else "", "sleep")
    assert "* sleep 1001" in tree
    assert "└─" in tree
    assert home.json("graph", shell)["foreground_pgid"] > 0
    home.ok("send", shell, "--keys", "C-c")
    home.ok("wait", shell, "--timeout", "20")


def test_journal_names_the_actor_and_not_the_keys(home: Home, shell: str) -> None:
    home.ok("send", shell, "  : topsecret", "--enter")
    text = home.ok("journal", shell, "--limit", "5")
    assert "topsecret" not in text
    assert " cli " in text
    assert home.json("journal", shell, "--limit", "2")["records"]


def test_freeze_and_thaw(home: Home, shell: str) -> None:
    assert home.ok("freeze", shell).startswith("frozen")
    assert home.json("state", shell)["activity"] == "frozen"
    assert home.ok("thaw", shell) == "thawed\n"
    home.ok("wait", shell, "--timeout", "20")


def test_take(home: Home, shell: str) -> None:
    assert "turn is" in home.ok("take", shell)
    assert home.ok("release", shell) == "nobody has the turn\n"
    assert "turn is" in home.ok("take", shell, "--ask")


def test_the_only_session_needs_no_name(home: Home, shell: str) -> None:
    assert home.ok("state").startswith("prompt: ")
    home.start("second", "sleep", "1000")
    done = home.run("state")
    assert done.returncode == 64
    assert "second, work" in done.stderr
    home.ok("end", "second", "--grace", "0")


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("screen", "wrok"), 66, "did you mean 'work'?"),
        (("screen", "zzz"), 66, "there is no session 'zzz'"),
        (("end", "zzz"), 66, "there is no session 'zzz'"),
        (("attach", "work"), 64, "holdfast send work"),
        (("run", "-d", "--name", "work", "--", "true"), 73, "already running"),
        (("run", "-d", "--name", "..", "--", "true"), 64, "is not a session name"),
        (("run", "-d", "--name", "", "--", "true"), 64, "is not a session name"),
        (("run", "-d", "--name", "x" * 300, "--", "true"), 64, "is not a session name"),
        (("run", "-d", "--name", "n1", "--", "no-such-command"), 127, "no-such-command"),
        (("run", "-d", "--name", "n2", "--", "/etc/passwd"), 126, "/etc/passwd"),
        (("run", "-d", "--name", "n3", "--cwd", "/nowhere", "--", "true"), 64, "/nowhere"),
        (("run", "-d", "--size", "0x0", "--", "true"), 64, "cannot be 0x0"),
        (("run", "-d", "--size", "100000x10", "--", "true"), 64, "cannot be 100000x10"),
        (("run", "-d", "--scrollback", "9999999", "--", "true"), 64, "9999999"),
        (("run", "-d", "--", ""), 64, "no command to run"),
        (("wait", "work", "--for", "ended", "--timeout", "0.1"), 124, "after 0.1 s"),
    ],
)
def test_mistakes(home: Home, arguments: tuple[str, ...], code: int, said: str) -> None:
    done = home.run(*arguments)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith("holdfast: ")
    assert said in done.stderr
    assert home.ok("ls", "-o", "name").split().count("work") == 1
    for name in ("n1", "n2", "n3"):
        assert not home.folder(name).path.exists(), "a failure leaves nothing behind"


def test_an_ended_session(home: Home, shell: str) -> None:
    home.ok("run", "-d", "--name", "over", "--", "bash", "-c", "echo bye; sleep 0.5; exit 5")
    assert home.ok("wait", "over", "--for", "ended", "--timeout", "20") == "ended: exit code 5\n"
    assert "ended (5)" in home.ok("ls")
    assert "bye" in home.ok("screen", "over"), "its last screen can be read"
    done = home.run("end", "over")
    assert done.returncode == 69
    assert "exit code 5" in done.stderr
    done = home.run("wait", "over", "--for", "prompt")
    assert done.returncode == 69
    old = sidecar_pid(home.folder("over"))
    assert old is not None
    assert home.ok("run", "-d", "--name", "over", "--", "sleep", "1000").startswith("over\n")
    assert not alive(old), "its name is free again"
    home.ok("end", "over", "--grace", "0")


def test_ended_without_a_sidecar(home: Home, shell: str) -> None:
    home.ok("run", "-d", "--name", "cold", "--", "bash", "-c", "sleep 0.3; exit 6")
    home.ok("wait", "cold", "--for", "ended", "--timeout", "20")
    home.kill_sidecar("cold")
    assert "ended (6)" in home.ok("ls")
    done = home.run("screen", "cold")
    assert done.returncode == 69
    assert "exit code 6" in done.stderr
    assert home.ok("wait", "cold", "--for", "ended") == "ended: exit code 6\n"


def test_pruned_after_a_day(home: Home, shell: str) -> None:
    for name in ("old", "fresh"):
        home.ok("run", "-d", "--name", name, "--", "bash", "-c", "exit 0")
        home.ok("wait", name, "--for", "ended", "--timeout", "20")
    day_ago = time.time() - 25 * 3600
    os.utime(home.folder("old").exit, (day_ago, day_ago))
    home.start("trigger", "sleep", "1000")
    names = home.ok("ls", "-o", "name").split()
    assert "old" not in names
    assert {"fresh", "trigger", "work"} <= set(names)
    home.ok("end", "trigger", "--grace", "0")


def test_a_very_short_command(home: Home, shell: str) -> None:
    done = home.run("run", "--name", "blink", "--", "bash", "-c", "exit 4")
    assert done.returncode in (0, 4), "over before, or after, it could be shown"
    assert "blink" in done.stdout
    eventually(lambda: "ended (4)" in home.ok("ls"), "its end")


def test_a_dead_sidecar_and_gateway_are_brought_back(home: Home, shell: str) -> None:
    pid = home.pid(shell)
    gateway = json.loads((home.state / "gateway.json").read_text())
    os.kill(gateway["pid"], 9)
    eventually(lambda: not alive(gateway["pid"]), "the gateway's death")
    home.kill_sidecar(shell)
    assert home.ok("exec", shell, "--", "echo back").strip() == "back"
    assert home.pid(shell) == pid
    again = json.loads((home.state / "gateway.json").read_text())
    assert (again["port"], again["token"]) == (gateway["port"], gateway["token"])


def test_two_at_once_for_one_name(home: Home, shell: str) -> None:
    command = home.command("run", "-d", "--name", "race", "--", "sleep", "1000")
    runs = [
        subprocess.Popen(command, env=home.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for _ in range(3)
    ]
    outs = [run.communicate(timeout=60) for run in runs]
    assert sorted(run.returncode for run in runs) == [0, 73, 73], outs
    home.ok("end", "race", "--grace", "0")


def test_hold_is_missing(home: Home, shell: str) -> None:
    done = home.run("run", "-d", "--name", "x", "--", "true", HOLDFAST_HOLD="/nowhere/hold")
    assert done.returncode == 70
    assert "make build" in done.stderr


def test_a_long_state_path(home: Home, tmp_path: Path) -> None:
    done = home.run("run", "-d", "--", "true", HOLDFAST_DIR=str(tmp_path / ("x" * 90)))
    assert done.returncode == 64
    assert "set HOLDFAST_DIR to something shorter" in done.stderr


def test_a_closed_pipe_is_quiet(home: Home, shell: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        home.command("screen", shell, "--scrollback"),
        env=home.env, stdout=writer, stderr=subprocess.PIPE, check=False, timeout=60,
    )  # fmt: skip
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


def test_end_all(home: Home) -> None:
    home.start("a1", "sleep", "1000")
    home.start("a2", "sleep", "1000")
    text = home.ok("end", "--all", "--grace", "0")
    assert "a1 ended" in text
    assert "a2 ended" in text
    assert home.run("end", "--all").returncode == 0
