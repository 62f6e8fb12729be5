"""What `import holdfast` gives is a promise; a change here is a change for its users."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import holdfast
from holdfast_wire import errors

ROOT = Path(__file__).parents[2]
EXPORTED = [
    "AlreadyExists",
    "BadName",
    "BadRequest",
    "Busy",
    "CommandFailed",
    "Ended",
    "Executed",
    "Exit",
    "Forbidden",
    "Gap",
    "Graph",
    "HoldfastError",
    "Internal",
    "Job",
    "JobState",
    "News",
    "NoTurn",
    "NotFound",
    "Output",
    "Permanent",
    "Port",
    "Process",
    "Record",
    "Refused",
    "Resize",
    "Retry",
    "Screen",
    "Sent",
    "Session",
    "SessionInfo",
    "Snapshot",
    "State",
    "StillRunning",
    "Suspended",
    "TimedOut",
    "TooLarge",
    "Unauthenticated",
    "Unavailable",
    "Unsupported",
    "__version__",
    "connect",
    "run_session",
    "sessions",
    "sync",
]


def test_exported_members() -> None:
    assert sorted(holdfast.__all__) == sorted(EXPORTED) == sorted(dir(holdfast))
    for name in EXPORTED:
        assert getattr(holdfast, name) is not None


def test_every_error_is_exported() -> None:
    for error in errors.BY_CODE.values():
        assert getattr(holdfast, error.__name__) is error


def test_a_module_does_not_hide_what_is_exported() -> None:
    """A submodule, once imported, is an attribute of its package."""
    hidden = [name for name in EXPORTED if (ROOT / "client" / "holdfast" / f"{name}.py").exists()]
    assert hidden == ["sync"]


def test_nothing_else() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        _ = holdfast.nonsense


def test_the_version_is_the_distributions() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert holdfast.__version__ == project["project"]["version"]


def _loaded(*arguments: str) -> set[str]:
    code = (
        "import sys; from holdfast.cli import main; main(sys.argv[1:]);"
        "print('\\n' + ' '.join(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True
    )
    return set(done.stdout.rsplit("\n", 2)[-2].split())


SLOW = {
    "asyncio",
    "http.client",
    "subprocess",
    "email",
    "aiohttp",
    "pyghostty",
    "importlib.metadata",
    "shutil",
}


def test_help_loads_little() -> None:
    loaded = _loaded("--help")
    assert not loaded & (SLOW | {"socket", "dataclasses", "holdfast_wire.frames"})


def test_ls_loads_little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_DIR", str(tmp_path / "state"))
    assert not _loaded("ls") & SLOW


def test_ls_in_a_cluster_loads_little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kubectl = tmp_path / "kubectl"
    kubectl.write_text("#!/bin/sh\necho '{\"items\": []}'\n")
    kubectl.chmod(0o755)
    monkeypatch.setenv("HOLDFAST_KUBECTL", str(kubectl))
    loaded = _loaded("ls", "--cluster")
    assert "holdfast.kube" in loaded
    unwanted = {"holdfast.connection", "holdfast.local", "holdfast.relay", "holdfast_wire.frames"}
    assert not loaded & ((SLOW - {"subprocess"}) | unwanted)


def test_attaching_to_a_cluster_loads_little() -> None:
    """All that `kubectl holdfast attach` needs up to its first frame, and no library for it."""
    modules = "attach", "api", "cluster_commands", "plainyaml", "reach", "remote"
    code = "import sys" + "".join(f", holdfast.{name}" for name in modules)
    done = subprocess.run(
        [sys.executable, "-c", f"{code}; print(*sys.modules)"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    loaded = set(done.stdout.split())
    assert "holdfast.tunnel" in loaded
    assert not loaded & (SLOW | {"holdfast.kube", "holdfast.relay", "tempfile", "yaml"})


def test_completing_names_loads_less(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_DIR", str(tmp_path / "state"))
    assert not _loaded("ls", "-o", "name") & (SLOW | {"dataclasses", "holdfast_wire.frames"})
