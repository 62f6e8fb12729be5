"""The C interface as it was read when holdfast was installed, and as pyghostty reads it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from holdfast_sidecar import abi

PRINTED = """
from holdfast_sidecar.ghostty import Terminal
terminal = Terminal(20, 3, 100)
terminal.feed(b"one\\r\\ntwo \\x1b[1mbold\\x1b[0m")
row = terminal.track(0)
print(terminal.title, terminal.cursor, terminal.encode())
"""
WITHOUT = "from holdfast_sidecar import abi; abi._PREFIX = '_not_there_'\n"


def printed(*before: str) -> str:
    run = [sys.executable, "-c", "".join(before) + PRINTED]
    return subprocess.run(run, capture_output=True, text=True, check=True, timeout=60).stdout


def test_it_is_prepared() -> None:
    found = abi._package()
    assert (Path(abi.__file__).parent / f"{abi._name(found)}.py").exists()


def test_without_it_all_is_the_same() -> None:
    assert printed() == printed(WITHOUT)


def test_what_was_made_of_another_version_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    before = abi._name(abi._package())
    monkeypatch.setattr(sys, "hexversion", sys.hexversion + 1)
    assert abi._name(abi._package()) != before
