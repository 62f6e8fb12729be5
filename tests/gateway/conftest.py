from __future__ import annotations

from collections.abc import Iterator

import pytest

import gateway_kit
from gateway_kit import Place


@pytest.fixture
def place() -> Iterator[Place]:
    """A state folder of its own, for tests that stop and kill things."""
    with gateway_kit.place() as here:
        yield here


@pytest.fixture(scope="module")
def served() -> Iterator[Place]:
    """One gateway and one session that a module's tests share."""
    with gateway_kit.place() as here:
        here.session("build")
        here.start()
        here.sidecar("build")
        yield here
