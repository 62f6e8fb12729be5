"""`session.json`: read, or refused with a sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast_sidecar import spec
from holdfast_sidecar.spec import MAX_SCROLLBACK, Spec
from holdfast_wire.errors import BadName, BadRequest

GOOD: dict[str, Any] = {
    "name": "build",
    "id": "0123abcd",
    "command": ["bash", "-l"],
    "cwd": "/",
    "columns": 120,
    "rows": 40,
    "scrollback": 10_000,
    "created": 1_700_000_000.5,
}


def put(path: Path, body: object) -> Path:
    path.write_text(json.dumps(body))
    return path


def test_what_run_wrote(tmp_path: Path) -> None:
    loaded = spec.load(put(tmp_path / "session.json", GOOD))
    name = loaded.name
    assert loaded == Spec(name, "0123abcd", ("bash", "-l"), 120, 40, 10_000, 1_700_000_000.5)
    assert name == "build"


@pytest.mark.parametrize(
    ("asked", "kept"), [(0, 0), (-5, 0), (10**9, MAX_SCROLLBACK), (MAX_SCROLLBACK, MAX_SCROLLBACK)]
)
def test_scrollback_is_bounded(tmp_path: Path, asked: int, kept: int) -> None:
    path = put(tmp_path / "session.json", {**GOOD, "scrollback": asked})
    assert spec.load(path).scrollback == kept


@pytest.mark.parametrize("field", [name for name in GOOD if name != "cwd"])
def test_every_field_is_needed(tmp_path: Path, field: str) -> None:
    body = {name: value for name, value in GOOD.items() if name != field}
    with pytest.raises(BadRequest):
        spec.load(put(tmp_path / "session.json", body))


@pytest.mark.parametrize(
    "change",
    [
        *({"columns": 0}, {"columns": 1}, {"rows": 0}, {"rows": -1}, {"columns": 100_000}),
        *({"columns": "wide"}, {"rows": None}, {"columns": []}, {"scrollback": "many"}),
        *({"command": None}, {"command": 7}, {"created": "then"}, {"created": None}),
    ],
    ids=str,
)
def test_a_field_that_cannot_be_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    with pytest.raises(BadRequest):
        spec.load(put(tmp_path / "session.json", {**GOOD, **change}))


@pytest.mark.parametrize("name", ["", "..", "a/b", "A", "x" * 64, "a\n"])
def test_a_name_that_is_not_one(tmp_path: Path, name: str) -> None:
    with pytest.raises(BadName):
        spec.load(put(tmp_path / "session.json", {**GOOD, "name": name}))


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"3", b'"x"', b"null", b"\xff\xfe\x00", b"{}"])
def test_a_file_that_is_not_one(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "session.json"
    path.write_bytes(text)
    with pytest.raises(BadRequest):
        spec.load(path)


def test_no_file_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(BadRequest) as caught:
        spec.load(tmp_path / "session.json")
    assert "holdfast run" in caught.value.advice


@given(
    st.fixed_dictionaries(
        {
            name: st.just(value) | st.none() | st.booleans() | st.text(max_size=5)
            | st.integers(-(10**6), 10**6) | st.lists(st.text(max_size=3), max_size=2)
            for name, value in GOOD.items()
        }
    )
)  # fmt: skip
def test_anything_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, body: dict[str, Any]
) -> None:
    path = put(tmp_path_factory.getbasetemp() / "any-session.json", body)
    try:
        loaded = spec.load(path)
    except BadRequest:
        return
    assert 2 <= loaded.columns <= 1000
    assert 0 <= loaded.scrollback <= MAX_SCROLLBACK
