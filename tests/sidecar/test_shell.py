"""Commands given to a shell, run by real ones: what they print, how they end, and the marks."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast_sidecar import shell
from holdfast_sidecar.shell import Finished, find

JOB = "0a1b2c3d4e5f"
START = b"\x1b]7770;start;0a1b2c3d4e5f\x07"
END = b"\x1b]7770;end;0a1b2c3d4e5f;%d\x07"
SHELLS = [name for name in ("bash", "dash", "zsh", "fish") if shutil.which(name)]
POSIX = [name for name in SHELLS if name != "fish"]


def source(name: str, folder: Path, command: str, before: str = "", after: str = "") -> bytes:
    """What a shell of this name prints that reads the line as if it had been typed."""
    path = folder / "it's a job"
    path.write_text(shell.script(JOB, command, "ana (cli)", name), encoding="utf-8")
    line = shell.typed(str(path)).decode()
    assert line.endswith("\r")
    whole = f"{before}\n{line[:-1]}\n{after}\n"
    done = subprocess.run(
        [name, *(["--norc", "--noprofile"] if name == "bash" else []), "-c", whole],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        timeout=30, check=False, cwd=folder,
        env={"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "HOME": str(folder)},
    )  # fmt: skip
    return done.stdout


def result(name: str, folder: Path, command: str) -> tuple[str, int]:
    output = source(name, folder, command)
    found = find(JOB, output)
    assert found is not None, output
    assert output[: found.start].endswith(START)
    return output[found.start : found.end].decode(), found.exit_code


NASTY = {
    "plain": ("echo hello", "hello\n", 0),
    "status": ("sh -c 'exit 7'", "", 7),
    "not found": ("nonesuch-command-xyz 2>/dev/null", "", 127),
    "single quotes": ("echo 'it'\\''s' \"'\"", "it's '\n", 0),
    "double quotes": ('echo "a\\"b"', 'a"b\n', 0),
    "backslashes": (r"printf '%s\n' '\n\\t\' \\\\", "\\n\\\\t\\\n\\\\\n", 0),
    "dollar": ("x=5; echo $x '$x' \"$x\" $((x+1))", "5 $x 5 6\n", 0),
    "backticks": ("echo `echo in` $(echo there)", "in there\n", 0),
    "percent": ("echo %s %d %%n", "%s %d %%n\n", 0),
    "several lines": ("echo one\necho two\n\nfalse", "one\ntwo\n", 1),
    "carriage returns kept": ("printf 'a\\r\\nb'", "a\r\nb", 0),
    "no newline at the end": ("printf x", "x", 0),
    "comment": ("echo a # not 'closed", "a\n", 0),
    "comment alone": ("# nothing", "", 0),
    "continued": ("echo a \\\n  b", "a b\n", 0),
    "here document": ("cat <<'END'\n'$x' \"\\\nEND", "'$x' \"\\\n", 0),
    "loop": ("for i in 1 2 3\ndo\n  echo $i\ndone", "1\n2\n3\n", 0),
    "unicode": ("echo 'grüße 日本語 🙂'", "grüße 日本語 🙂\n", 0),
    "semicolons and pipes": ("echo b; echo a | cat && ! true", "b\na\n", 1),
    "reads nothing of the script": ("cat; echo $#", "0\n", 0),
    "long": ("echo " + "x" * 100_000, "x" * 100_000 + "\n", 0),
    "spaces around": ("   echo  a   ", "a\n", 0),
    "exclamation": ("echo 'hi!!' !$", "hi!! !$\n", 0),
    "looks like a mark": (r"printf '\033]7770;end;ffff;0\007'", "\x1b]7770;end;ffff;0\x07", 0),
}


@pytest.mark.parametrize("name", POSIX)
@pytest.mark.parametrize(("command", "output", "code"), NASTY.values(), ids=NASTY.keys())
def test_runs_as_written(name: str, tmp_path: Path, command: str, output: str, code: int) -> None:
    assert result(name, tmp_path, command) == (output, code)


@pytest.mark.parametrize("name", SHELLS)
def test_what_a_command_changes_lasts(name: str, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    after = "echo; pwd; echo $KEPT"
    output = source(name, tmp_path, "cd sub\nexport KEPT=yes", after=after)
    assert output.decode().split()[-2:] == [str((tmp_path / "sub").resolve()), "yes"]


@pytest.mark.parametrize("name", SHELLS)
@given(text=st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=40))
@settings(max_examples=8, deadline=None)
def test_any_text_reaches_the_command_unchanged(
    tmp_path_factory: pytest.TempPathFactory, name: str, text: str
) -> None:
    folder = tmp_path_factory.mktemp("shell")
    quoted = shell._quote(text, fish=name == "fish")
    assert result(name, folder, f"printf '%s' {quoted}") == (text.replace("\r\n", "\r\n"), 0)


@pytest.mark.parametrize("command", ["echo 'never closed", "if true", ")", "echo a; done", "a=("])
def test_a_syntax_error_in_bash_is_a_failed_command(tmp_path: Path, command: str) -> None:
    output, code = result("bash", tmp_path, command)
    assert code > 0
    assert "syntax error" in output or "unexpected" in output


@pytest.mark.parametrize("command", ["echo 'never closed", "if true", ")"])
@pytest.mark.skipif("dash" not in SHELLS, reason="no dash here")
def test_a_syntax_error_that_drops_the_script_has_no_end(tmp_path: Path, command: str) -> None:
    output = source("dash", tmp_path, command)
    assert START in output
    assert find(JOB, output) is None


@pytest.mark.parametrize("name", SHELLS)
def test_the_label_says_who_and_what_and_cannot_do_more(name: str, tmp_path: Path) -> None:
    command = "\n: first 'quoted' %s \x1b]0;x\x07 $(touch bad) `touch bad`\\\n: second"
    text = shell.script(JOB, command, "eve\x1b[2J\n'; touch bad; '", name)
    (tmp_path / "script").write_text(text)
    subprocess.run([name, "script"], cwd=tmp_path, stdout=subprocess.DEVNULL, check=False)
    label = text.splitlines()[0]
    assert not re.search(r"[\x00-\x1f]", label.replace("\\033", ""))
    assert "second" not in label
    output = source(name, tmp_path, ": x")
    assert output.startswith(b"\x1b[2m# ana (cli): : x\x1b[0m\n" + START)


def test_the_label_does_not_run(tmp_path: Path) -> None:
    command = ": $(echo ran >proof)"
    (tmp_path / "only-label").write_text(shell.script(JOB, command, "a", "bash").splitlines()[0])
    subprocess.run(["bash", "only-label"], cwd=tmp_path, stdout=subprocess.DEVNULL, check=True)
    assert not (tmp_path / "proof").exists()


def test_an_empty_command_still_makes_a_script(tmp_path: Path) -> None:
    assert result("bash", tmp_path, "  \n ") == ("", 0)


# -- finding it in the output ---------------------------------------------------------------------


def test_find_wants_both_marks() -> None:
    whole = b"$ . job\r\n" + START + b"out" + END % 3 + b"$ "
    at = whole.index(b"out")
    assert find(JOB, whole) == Finished(at, at + 3, 3)
    for length in range(at + 3 + len(END % 3)):
        assert find(JOB, whole[:length]) is None


def test_without_its_start_all_there_is_counts() -> None:
    """The ring has come round over it."""
    assert find(JOB, b"rt;0a1b2c3d4e5f\x07 tail" + END % 0) == Finished(0, 21, 0)


def test_another_jobs_marks_are_output() -> None:
    other = START.replace(JOB.encode(), b"ffffffffffff") + END.replace(JOB.encode(), b"f" * 12) % 9
    whole = other + START + other + END % 1
    begin = len(other + START)
    assert find(JOB, whole) == Finished(begin, begin + len(other), 1)
    assert find(JOB, other) is None


@pytest.mark.parametrize(
    "end", [b"\x1b]7770;end;0a1b2c3d4e5f;\x07", b"\x1b]7770;end;0a1b2c3d4e5f;x\x07"]
)
def test_a_mark_without_a_number_is_none(end: bytes) -> None:
    assert find(JOB, START + end) is None


def test_the_typed_line_is_one_line_and_stays_out_of_the_history() -> None:
    line = shell.typed("/run/it's/0a1b")
    assert line == b" . '/run/it'\\''s/0a1b'\r"
    assert line.count(b"\r") == 1
