from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from api_kit import Pod
from gateway_kit import remove
from judge import Judge
from sidecar_kit import Live


@pytest.fixture
def live_bash() -> Iterator[Live]:
    with Live("bash", "--norc") as live:
        yield live


@pytest.fixture(scope="session")
def judge() -> Iterator[Judge]:
    made = Judge()
    yield made
    made.close()


@pytest.fixture
def pods() -> Iterator[Callable[[Pod | None], Pod]]:
    made: list[Pod] = []

    def make(before: Pod | None = None) -> Pod:
        made.append(Pod(Path(tempfile.mkdtemp(prefix="hf-")), 20, before))
        made[-1].for_agents = os.geteuid() != 0
        return made[-1]

    yield make
    for pod in reversed(made):
        pod.close()
        remove(pod.folder)


@pytest.fixture
def source(pods: Callable[[Pod | None], Pod]) -> Pod:
    return pods(None)


@pytest.fixture
def target(pods: Callable[[Pod | None], Pod], source: Pod) -> Pod:
    return pods(source)
