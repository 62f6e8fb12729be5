from __future__ import annotations

from collections.abc import Iterator

import pytest

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
