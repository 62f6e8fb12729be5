from __future__ import annotations

import asyncio
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast_node import inside, preflight

ONE = "model name\t: x\nflags\t\t: fpu avx sse hypervisor\n\nmodel name\t: x\nflags\t\t: other"


def test_a_cpu_is_named_by_what_programs_can_use() -> None:
    same = preflight.cpu_digest("flags : sse fpu avx\n", 832)
    assert preflight.cpu_digest(ONE, 832) == same
    assert preflight.cpu_digest(ONE, 2696) != same
    assert preflight.cpu_digest("flags : sse fpu\n", 832) != same


def test_the_frame_of_a_signal_has_a_size() -> None:
    assert preflight.xsave_size() >= 512


def test_a_node_without_criu_says_so(tmp_path: Path) -> None:
    found = preflight.look(tmp_path, tmp_path)
    assert f"CRIU is not at {tmp_path}" in found.problems
    assert any("freezer" in problem for problem in found.problems)


def test_a_loader_that_would_load_a_user_s_libraries_is_refused(tmp_path: Path) -> None:
    (tmp_path / inside.LOADER).write_bytes(b"...\0/etc/ld.so.preload\0...")
    for name in ("criu", inside.TERMINALS):
        (tmp_path / name).write_bytes(b"")
    found = preflight.look(tmp_path)
    assert any("user's choice" in problem for problem in found.problems)
    assert found.notes == b""


def test_nothing_of_the_container_decides_how_criu_starts() -> None:
    words = inside.criu("/b", "swrk", "3")
    assert words[:5] == ["/b/ld.so", "--inhibit-cache", "--library-path", "/b", "/b/criu"]
    assert "--no-default-config" in words
    assert words[words.index("--libdir") + 1] == "/b/plugins"
    assert inside.environment("/b")["PATH"] == "/b/programs"
    words = inside.criu("/b", "swrk", "3", loads=inside.TERMINALS)
    assert words[4:7] == ["--preload", "/b/ctty.so", "/b/criu"]
    assert "HOME" not in inside.environment("/b")


DIRTY = "Warn  (criu/cr-check.c:824): Dirty tracking is OFF. Memory snapshot will not work.\n"


def checked(**answers: tuple[int, str]) -> preflight.Checked:
    """By a CRIU that answers so, and otherwise that all is well."""

    def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
        (folder / preflight.NOTES).write_bytes(b"notes")
        code, said = answers.get(words[-1].strip("-"), (0, "Looks good.\n"))
        return subprocess.CompletedProcess(words, code, "", said)

    return preflight.check(run)


def test_what_nobody_needs_may_be_lacking_and_is_said() -> None:
    assert checked() == preflight.Checked(notes=b"notes")
    found = checked(all=(1, DIRTY + DIRTY))
    assert found.problems == ()
    assert found.lacks == ("Dirty tracking is OFF. Memory snapshot will not work.",)
    assert found.notes == b"notes"
    assert checked(all=(1, "")).lacks == ("CRIU does not say what.",)


def test_what_is_needed_may_not() -> None:
    required = checked(all=(1, ""), check=(1, f"{DIRTY}Error (criu/x.c:7): no map_files\n"))
    assert required.problems == ("CRIU's own check failed: no map_files",)
    for name in preflight.NEEDED:
        (problem,) = checked(all=(1, DIRTY), **{name: (1, "")}).problems
        assert problem.startswith(f"CRIU has no {name}: ")


def test_a_check_that_does_not_end_is_a_problem() -> None:
    def run(_folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
        raise subprocess.TimeoutExpired(words, 30)

    (problem,) = preflight.check(run).problems
    assert "did not end" in problem


async def test_what_was_in_the_way_may_go(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bad = preflight.look(tmp_path, tmp_path)
    assert bad.problems
    looks = iter([bad, bad, replace(bad, problems=())])
    monkeypatch.setattr(preflight, "look", lambda *_: next(looks))
    await asyncio.wait_for(preflight.fit(tmp_path, tmp_path, every=0.01), 5)
    assert list(looks) == []
