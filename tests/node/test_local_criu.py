"""CRIU as the machine has it: what is missing is said, and what to do."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from holdfast_node import inside, local_criu
from holdfast_wire.errors import Unsupported


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def bundled(folder: Path, says: str) -> Path:
    """The loader that lies beside it is what is run."""
    (folder / "plugins").mkdir(parents=True)
    program(folder / inside.LOADER, f"#!/bin/sh\n{says}\n")
    return program(folder / "criu", "")


def test_there_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("HOLDFAST_CRIU", raising=False)
    monkeypatch.setattr(local_criu, "_path", lambda: str(tmp_path))
    with pytest.raises(Unsupported, match="no program criu on PATH") as refused:
        local_criu.bundle(tmp_path / "made", tmp_path / "hold")
    assert "install CRIU 4.0 or later" in refused.value.advice


@pytest.mark.parametrize(
    ("says", "why"),
    [
        ("echo Version: 3.17.1", "is CRIU 3.17, which is too old"),
        ("echo what is a version?", "does not say its version: what is a version"),
        ("echo wrong libc >&2; exit 1", "does not say its version: wrong libc"),
    ],
)
def test_one_that_will_not_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, says: str, why: str
) -> None:
    monkeypatch.setenv("HOLDFAST_CRIU", str(bundled(tmp_path / "criu-there", says)))
    with pytest.raises(Unsupported, match=why):
        local_criu.bundle(tmp_path / "made", tmp_path / "hold")


def test_what_is_chosen_must_be_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOLDFAST_CRIU", str(tmp_path / "absent"))
    with pytest.raises(Unsupported, match=r"HOLDFAST_CRIU is .*absent, which cannot be run"):
        local_criu.bundle(tmp_path / "made", tmp_path / "hold")
    monkeypatch.setenv("HOLDFAST_CRIU", str(program(tmp_path / "script", "#!/bin/sh\n")))
    with pytest.raises(Unsupported, match="is not the program CRIU"):
        local_criu.bundle(tmp_path / "made", tmp_path / "hold")


def test_pycriu_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOLDFAST_CRIU", str(bundled(tmp_path / "criu-there", "echo Version: 4.2")))
    monkeypatch.setattr(local_criu, "_DEBIAN", tmp_path)
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "pycriu" else found(name)
    )
    with pytest.raises(Unsupported, match="pycriu is missing") as refused:
        local_criu.bundle(tmp_path / "made", tmp_path / "hold")
    assert "python3-pycriu" in refused.value.advice


def test_a_program_without_its_loader_is_linked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Any program stands for CRIU here; its loader is found in it."""
    monkeypatch.setattr(local_criu, "_check_version", lambda *_: None)
    monkeypatch.setattr(local_criu, "_find_pycriu", lambda: None)
    monkeypatch.setenv("HOLDFAST_CRIU", "/bin/ls")
    for _ in range(2):
        made = local_criu.bundle(tmp_path / "made", tmp_path / "hold")
    assert (made / "criu").samefile("/bin/ls")
    assert (made / inside.LOADER).exists()
    assert (made / "plugins").is_dir()
    assert (made / inside.TERMINALS).readlink() == tmp_path / inside.TERMINALS
