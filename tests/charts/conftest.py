"""helm, from the same environment as the tests."""

from __future__ import annotations

import copy
import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

CHART = Path(__file__).parents[2] / "charts" / "holdfast"

Run = Callable[..., "subprocess.CompletedProcess[str]"]
Render = Callable[..., list[dict[str, Any]]]


@pytest.fixture(scope="session")
def helm(tmp_path_factory: pytest.TempPathFactory) -> Run:
    places = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    binary = shutil.which("helm", path=places)
    assert binary, "helm is missing: pip install -e '.[dev]' brings it"
    # A folder of its own: neither a person's plugins nor a cluster have a say.
    home = tmp_path_factory.mktemp("helm")
    env = {"HOME": str(home), "PATH": places, "KUBECONFIG": "/dev/null"}

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [binary, *words], env=env, capture_output=True, text=True, timeout=60, check=False
        )

    return run


@pytest.fixture(scope="session")
def render(helm: Run, tmp_path_factory: pytest.TempPathFactory) -> Render:
    """What helm would install with these values, in order; or what its hooks would run before and
    after, with `hooks=True`."""
    file = tmp_path_factory.mktemp("values") / "values.yaml"

    @functools.cache
    def output(values: str) -> list[dict[str, Any]]:
        file.write_text(values)
        made = helm(
            "template", "holdfast", str(CHART), "--namespace", "holdfast-system", "-f", str(file)
        )
        assert made.returncode == 0, made.stderr
        return [item for item in yaml.safe_load_all(made.stdout) if item]

    def rendered(*, hooks: bool = False, **values: Any) -> list[dict[str, Any]]:
        every = copy.deepcopy(output(yaml.safe_dump(values)))
        return [item for item in every if _is_hook(item) is hooks]

    return rendered


def _is_hook(item: dict[str, Any]) -> bool:
    return "helm.sh/hook" in item["metadata"].get("annotations", {})
