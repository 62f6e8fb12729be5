"""STATE is ours alone, or not used."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.paths import MAX_SOCKET_PATH, SessionFolder, own_folder, session_names, state_path
from holdfast_wire.errors import BadRequest, Forbidden, Internal
from holdfast_wire.ids import session_name


def test_where(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOLDFAST_DIR", str(tmp_path))
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/7")
    assert state_path() == tmp_path
    monkeypatch.delenv("HOLDFAST_DIR")
    assert state_path() == Path("/run/user/7/holdfast")
    monkeypatch.setenv("XDG_RUNTIME_DIR", "")
    assert state_path() == Path(f"/tmp/holdfast-{os.geteuid()}")  # noqa: S108
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOLDFAST_DIR", "here")
    assert state_path() == tmp_path / "here"


def test_made_private(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        made = own_folder(tmp_path / "a" / "state")
    finally:
        os.umask(before)
    assert made.stat().st_mode & 0o777 == 0o700
    assert own_folder(made) == made


@pytest.mark.parametrize("mode", [0o755, 0o750, 0o701, 0o770, 0o777])
def test_open_to_others_is_refused(tmp_path: Path, mode: int) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state").chmod(mode)
    with pytest.raises(Forbidden, match="can be entered by others") as caught:
        own_folder(tmp_path / "state")
    assert "chmod 700" in caught.value.advice


def test_somebody_elses_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "state").mkdir(mode=0o700)
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    with pytest.raises(Forbidden, match=f"belongs to user {os.getuid()}"):
        own_folder(tmp_path / "state")


def test_not_a_folder(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("")
    with pytest.raises(Forbidden, match="is not a folder"):
        own_folder(tmp_path / "state")
    with pytest.raises(Internal, match="cannot be made"):
        own_folder(Path("/proc/nowhere/state"))


def test_a_socket_path_must_fit(tmp_path: Path) -> None:
    room = MAX_SOCKET_PATH - len("/sessions/x/sidecar.sock")
    SessionFolder(Path("/" + "a" * (room - 1)), session_name("x")).check_length()
    with pytest.raises(BadRequest, match="108 bytes long") as caught:
        SessionFolder(Path("/" + "a" * room), session_name("x")).check_length()
    assert "HOLDFAST_DIR" in caught.value.advice


def test_names_of_folders(tmp_path: Path) -> None:
    assert session_names(tmp_path) == []
    for name in ("b", "a", ".trash", "UPPER", "x" * 64):
        (tmp_path / "sessions" / name).mkdir(parents=True)
    assert session_names(tmp_path) == ["a", "b"]
