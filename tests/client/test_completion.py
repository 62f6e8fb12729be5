"""Completion scripts are taken by their shells, and complete what exists."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from client_kit import Home
from holdfast.completion import flags, script
from holdfast.specs import COMMANDS

from .fake_cluster import FakeCluster

FAKE = """\
#!/bin/sh
[ "$*" = "ls -o name" ] && printf 'build\\nweb\\n'
"""


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_command_and_option_is_in_it(shell: str) -> None:
    text = script(shell)
    for command in COMMANDS:
        assert command in text
        for action in flags(command):
            for option in action.option_strings:
                shown = {"fish": f"-l {option[2:]}" if option[:2] == "--" else f"-s {option[1:]}"}
                assert shown.get(shell, option) in text


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_syntax(shell: str) -> None:
    if not shutil.which(shell):
        pytest.skip(f"{shell} is not here")
    subprocess.run([shell, "-n"], input=script(shell), text=True, check=True)


def complete(folder: Path, *words: str) -> list[str]:
    """What bash offers for the last word."""
    fake = folder / "holdfast"
    if not fake.exists():
        fake.write_text(FAKE)
        fake.chmod(0o755)
    line = " ".join(f"'{word}'" for word in words)
    code = (
        f"{script('bash')}\nCOMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; _holdfast"
        '; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        ["bash", "--norc", "-c", code],
        env={"PATH": f"{folder}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    return [line for line in done.stdout.splitlines() if line]


def test_bash_completes(tmp_path: Path) -> None:
    assert complete(tmp_path, "holdfast", "at") == ["attach"]
    assert complete(tmp_path, "holdfast", "attach", "") == ["build", "web"]
    assert complete(tmp_path, "holdfast", "attach", "w") == ["web"]
    assert complete(tmp_path, "holdfast", "attach", "web", "") == []
    assert complete(tmp_path, "holdfast", "attach", "--v") == ["--view"]
    assert complete(tmp_path, "holdfast", "attach", "--view", "b") == ["build"]
    assert complete(tmp_path, "holdfast", "wait", "web", "--for", "p") == ["prompt", "password"]
    assert complete(tmp_path, "holdfast", "ls", "-o", "") == ["json", "yaml", "name"]
    assert complete(tmp_path, "holdfast", "completion", "z") == ["zsh"]
    assert complete(tmp_path, "holdfast", "help", "sc") == ["screen"]
    assert "bash" in complete(tmp_path, "holdfast", "run", "bas")
    assert "bash" in complete(tmp_path, "holdfast", "exec", "web", "--", "bas")


def test_kubectl_asks_what_may_follow(cluster: FakeCluster, home: Home) -> None:
    cluster.session("build", phase="Running")
    cluster.session("over", phase="Ended")
    cluster.session("web", namespace="team", phase="Running")

    def offered(*words: str) -> list[str]:
        code = "from holdfast.completion import kubectl; kubectl()"
        done = subprocess.run(
            [sys.executable, "-P", "-c", code, *words], env=home.env | cluster.env,
            capture_output=True, text=True, timeout=60, check=True,
        )  # fmt: skip
        *found, last = done.stdout.splitlines()
        assert last == ":4"
        return found

    assert offered("at") == ["attach"]
    assert offered("attach", "") == ["build"]
    assert offered("attach", "-n", "team", "") == ["web"]
    assert offered("attach", "build", "") == []
    assert offered("attach", "--v") == ["--view"]
    assert offered("ls", "-o", "y") == ["yaml"]
    assert offered("exec", "build", "--", "") == []
    assert offered("completion", "f") == ["fish"]
    cluster.set(fails={"get": ["Unable to connect to the server", 1]})
    assert offered("attach", "") == []
