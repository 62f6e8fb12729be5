"""Requests over a socket, against a sidecar that says only what it is told to."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from client_kit import FakeSidecar
from holdfast.connection import Connection
from holdfast_wire.errors import BadRequest, Busy, Unavailable


@contextlib.contextmanager
def talking(folder: Path, answers: dict[str, Any]) -> Iterator[tuple[FakeSidecar, Connection]]:
    fake = FakeSidecar(folder / "s", answers)
    try:
        with Connection.open(folder / "s", modality="cli") as connection:
            yield fake, connection
    finally:
        fake.close()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)  # pytest's folders are long, and socket paths must be short
    return Path()


def test_requests_and_answers(folder: Path) -> None:
    with talking(folder, {"ping": {}, "state": {"activity": "prompt"}}) as (fake, connection):
        assert connection.request("ping") == {}
        assert connection.request("state", key=None, limit=3) == {"activity": "prompt"}
    assert fake.asked == [
        {"kind": "ping", "id": 1, "as": {"modality": "cli"}},
        {"kind": "state", "id": 2, "limit": 3, "as": {"modality": "cli"}},
    ]


def test_errors_come_back_as_themselves(folder: Path) -> None:
    with talking(folder, {"exec": Busy("not at its prompt", "wait")}) as (_, connection):
        with pytest.raises(Busy, match="not at its prompt") as caught:
            connection.request("exec", command="x")
        assert caught.value.advice == "wait"


def test_silence(folder: Path) -> None:
    with talking(folder, {}) as (_, connection), pytest.raises(Unavailable, match="not answer"):
        connection.request("ping", within=0.05)


def test_nobody_there(folder: Path) -> None:
    with pytest.raises(Unavailable, match="nobody answers"):
        Connection.open(folder / "absent")


def test_garbage_and_hanging_up() -> None:
    ours, theirs = socket.socketpair()
    with Connection(ours) as connection:
        theirs.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        with pytest.raises(BadRequest, match="cannot be understood"):
            connection.request("ping")
    theirs.close()
    ours, theirs = socket.socketpair()
    theirs.close()
    with Connection(ours) as connection, pytest.raises(Unavailable):
        connection.request("ping")
