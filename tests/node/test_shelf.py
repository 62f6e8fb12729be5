"""What sleeps lies whole on its shelf, or not at all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast_node import cpu
from holdfast_node.shelf import IMAGES, STATE, Shelf
from holdfast_wire.errors import Internal, Unsupported


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    made = Shelf(tmp_path / "store" / "build")
    made.prepare()
    return made


@pytest.fixture
def full(shelf: Shelf) -> Shelf:
    to = shelf.begin()
    (to / IMAGES / "pages-1.img").write_bytes(b"memory")
    (to / IMAGES / "dump.log").write_text("of no importance")
    (to / STATE / "ring").write_bytes(b"what was shown")
    (to / "session.json").write_text("{}")
    assert shelf.finish() == len(b"memory" + b"what was shown" + b"{}")
    return shelf


def test_it_sleeps_from_one_moment_to_the_next(full: Shelf) -> None:
    assert full.full()
    assert not full.new.exists()
    assert full.path.parent.stat().st_mode & 0o77 == 0
    assert full.path.stat().st_mode & 0o77 == 0
    full.check()
    full.leave()
    assert not full.full()
    full.sweep()
    assert list(full.path.parent.iterdir()) == []


def test_what_was_not_finished_is_not_there(shelf: Shelf) -> None:
    (shelf.begin() / "session.json").write_text("{}")
    assert not shelf.full()
    assert list(shelf.begin().rglob("*.json")) == []  # nor does the next one begin with it


def test_a_log_may_change(full: Shelf) -> None:
    (full.path / IMAGES / "dump.log").write_text("otherwise")
    (full.path / IMAGES / "restore.log").write_text("new")
    full.check()


@pytest.mark.parametrize("part", ["images/pages-1.img", "state/ring", "session.json"])
def test_not_as_it_was(full: Shelf, part: str) -> None:
    path = full.path / part
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + b"?")
    with pytest.raises(Internal, match=f"damaged: {part} is not as it was"):
        full.check()
    path.unlink()
    with pytest.raises(Internal, match=f"damaged: {part} is not there"):
        full.check()
    path.write_bytes(whole)
    full.check()


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"parts": 1}', '{"parts": {"a": [1]}}'])
def test_a_manifest_that_is_none(full: Shelf, text: str) -> None:
    (full.path / "manifest.json").write_text(text)
    with pytest.raises(Internal, match="manifest cannot be read") as refused:
        full.check()
    assert "holdfast end" in refused.value.advice


def test_another_version_or_processor(full: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = full.path / "manifest.json"
    told = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**told, "version": 2}))
    with pytest.raises(Unsupported, match="another version"):
        full.check()
    manifest.write_text(json.dumps(told))
    monkeypatch.setattr(cpu, "features", lambda: ())
    if told["features"]:
        with pytest.raises(Unsupported, match="this processor lacks"):
            full.check()
