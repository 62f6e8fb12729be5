"""Real sessions: one hold build for all tests, one state folder for each module."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from client_kit import Home, Screen, build_hold

from .fake_cluster import FakeCluster


@pytest.fixture(scope="session")
def hold(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_hold(tmp_path_factory.mktemp("hold"))


@pytest.fixture(scope="module")
def home(hold: Path) -> Iterator[Home]:
    made = Home(hold)
    yield made
    made.close()


@pytest.fixture
def cluster(home: Home, tmp_path: Path) -> FakeCluster:
    return FakeCluster(tmp_path, home)


@pytest.fixture
def screen(home: Home) -> Iterator[Callable[..., Screen]]:
    opened: list[Screen] = []

    def open_screen(*arguments: str, size: tuple[int, int] = (90, 25), **env: str) -> Screen:
        opened.append(Screen(home.command(*arguments), home.env | env, size))
        return opened[-1]

    yield open_screen
    for one in opened:
        one.close()
