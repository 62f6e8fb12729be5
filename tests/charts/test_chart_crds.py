"""The script that makes the chart's CRDs."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("chart_crds", ROOT / "scripts" / "chart_crds.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def elsewhere(script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The script, writing into an empty folder."""
    monkeypatch.setattr(script, "ROOT", tmp_path)
    monkeypatch.setattr(script, "TARGET", tmp_path / "crds")
    return tmp_path / "crds"


def check(script: ModuleType, monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["chart_crds.py", *words])
    result: int = script.main()
    return result


def test_the_copy_is_up_to_date(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    assert check(script, monkeypatch, "--check") == 0


def test_check_sees_every_difference(
    script: ModuleType,
    elsewhere: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert check(script, monkeypatch, "--check") == 1
    assert "run scripts/chart_crds.py" in capsys.readouterr().out
    assert not elsewhere.exists()
    assert check(script, monkeypatch) == 0
    assert check(script, monkeypatch, "--check") == 0
    file = elsewhere / "holdfast.dev_sessions.yaml"
    file.write_text(file.read_text().replace("minimum: 13", "minimum: 5"))
    assert check(script, monkeypatch, "--check") == 1
    assert "+                    minimum: 13" in capsys.readouterr().out


def test_what_is_left_over_goes(
    script: ModuleType, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere.mkdir()
    (elsewhere / "old.yaml").write_text("kind: Old\n")
    assert check(script, monkeypatch, "--check") == 1
    assert check(script, monkeypatch) == 0
    assert not (elsewhere / "old.yaml").exists()


@pytest.mark.parametrize(
    "text",
    ["kind: A\nmetadata:\n  name: '{{ x }}'\n", "kind: A\n", "a:\n\nmetadata:\n\nmetadata:\n"],
)
def test_what_it_cannot_copy_it_refuses(script: ModuleType, text: str) -> None:
    with pytest.raises(ValueError, match="one"):
        script.chart_copy("one", text)
