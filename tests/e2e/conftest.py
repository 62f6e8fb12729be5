"""The cluster's own code, without root and without a cluster.

`e2e` is run from the root of the repository and not installed. What it would write goes to a folder
of this run, never to where a real cluster of this machine has its things.
"""

from __future__ import annotations

import importlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
_FOLDER = Path(tempfile.mkdtemp(prefix="holdfast-e2e-unit-"))
_asked = {"HOLDFAST_STATE": str(_FOLDER / "state"), "HOLDFAST_CACHE": str(_FOLDER / "cache")}
_before = {name: os.environ.get(name) for name in _asked}
os.environ.update(_asked)
importlib.import_module("e2e.cluster.places")  # reads them once
for _name, _value in _before.items():
    if _value is None:
        del os.environ[_name]
    else:
        os.environ[_name] = _value


def pytest_unconfigure() -> None:
    shutil.rmtree(_FOLDER, ignore_errors=True)


@pytest.fixture(autouse=True)
def state() -> Iterator[Path]:
    """Where the cluster keeps its things; not there yet."""
    places = importlib.import_module("e2e.cluster.places")
    path: Path = places.STATE
    if path != _FOLDER / "state":
        pytest.fail("run these without the end-to-end tests: they would meet a real cluster")
    yield path
    shutil.rmtree(_FOLDER, ignore_errors=True)
