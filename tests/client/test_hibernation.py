"""Sessions of this machine that sleep, as the commands see them. Here they lie on a shelf that a
test made; e2e/test_embedded.py has real ones."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from client_kit import Home
from holdfast import hibernation
from holdfast.folders import Life, Suspended, life
from holdfast.paths import SessionFolder, session_names, shelves
from holdfast_wire.errors import Internal, Unsupported, from_json


@pytest.fixture
def store(home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    home.env["HOLDFAST_STORE"] = str(tmp_path)
    monkeypatch.setenv("HOLDFAST_STORE", str(tmp_path))
    monkeypatch.setenv("HOLDFAST_DIR", str(home.state))
    yield tmp_path
    del home.env["HOLDFAST_STORE"]


@pytest.fixture
def asleep(home: Home, store: Path) -> SessionFolder:
    folder = home.folder("deep")
    folder.shelf.mkdir(parents=True)
    described = {"name": "deep", "id": "1", "command": ["vi"], "columns": 80, "rows": 24}
    (folder.shelf / "session.json").write_text(json.dumps(described))
    for leftover in ("deep.new", "deep.old", "other.new"):
        (folder.shelf.parent / leftover).mkdir()
    return folder


def test_it_is_listed(home: Home, asleep: SessionFolder) -> None:
    (found,) = home.json("ls")["sessions"]
    assert (found["name"], found["phase"], found["command"]) == ("deep", "suspended", ["vi"])
    assert found["state"]["activity"] == "suspended"
    assert "suspended" in home.ok("ls")
    assert "suspended" in home.ok("describe", "deep")
    assert life(asleep) is Life.SUSPENDED
    assert session_names(home.state) == ["deep"]


def test_of_another_state_folder_it_is_not(home: Home, asleep: SessionFolder) -> None:
    assert shelves(home.state) != shelves(home.state / "x")
    assert session_names(home.state / "x") == []


@pytest.mark.parametrize("words", [("send", "deep", "x"), ("screen", "deep"), ("graph", "deep")])
def test_nobody_answers(home: Home, asleep: SessionFolder, words: tuple[str, ...]) -> None:
    done = home.run(*words)
    assert done.returncode == 69
    assert "session deep is suspended" in done.stderr
    assert "holdfast attach deep" in done.stderr
    assert asleep.shelf.is_dir()


def test_its_name_is_taken(home: Home, asleep: SessionFolder) -> None:
    done = home.run("run", "-d", "--name", "deep", "--", "true")
    assert done.returncode == 73
    assert "session deep is suspended" in done.stderr


def test_suspended_twice(home: Home, asleep: SessionFolder) -> None:
    assert "deep is suspended already" in home.ok("suspend", "deep")


def test_ended_asleep(home: Home, asleep: SessionFolder) -> None:
    assert "deep ended" in home.ok("end", "deep")
    assert not asleep.shelf.exists()
    assert home.json("ls")["sessions"] == []


def test_what_is_being_woken_is_not_ended(home: Home, asleep: SessionFolder) -> None:
    with (asleep.shelf.parent / "deep.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert home.run("end", "deep").returncode == 75
    assert asleep.shelf.is_dir()


def test_without_root_it_runs_on(asleep: SessionFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    for act in (hibernation.require_root, hibernation.woken):
        with pytest.raises(Unsupported, match="CRIU needs root") as refused:
            act(asleep)
        assert "session deep is as it was" in refused.value.advice
        assert "sudo holdfast run" in refused.value.advice


def test_no_session_no_suspension(home: Home, store: Path) -> None:
    for command in ("suspend", "wake"):
        assert home.run(command, "nobody").returncode == 66
    home.ok("run", "-d", "--name", "short", "--", "true")
    home.run("wait", "short", "--for", "ended", "--timeout", "20")
    for command in ("suspend", "wake"):
        assert "has ended" in home.run(command, "short").stderr


def test_a_failure_says_what_became_of_the_session(asleep: SessionFolder) -> None:
    why = {"code": "dump_failed", "message": "a device is open", "advice": "close it"}
    error = hibernation._explained(asleep, "suspend", from_json(why))
    assert isinstance(error, Internal)
    assert str(error.message) == "session deep cannot be suspended: a device is open; it runs on"
    assert error.advice == "close it"
    error = hibernation._explained(asleep, "wake", from_json(why))
    assert "cannot wake" in error.message
    assert "sleeps on" in error.message


def test_who_was_attached_is_told(asleep: SessionFolder) -> None:
    from holdfast.local import LocalLink

    with pytest.raises(Suspended, match="session deep is suspended"):
        LocalLink(asleep).open()
