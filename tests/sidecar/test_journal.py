"""The journal: every record in order, bounded, readable after any kill, and silent about keys."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast_sidecar import journal as journal_module
from holdfast_sidecar.journal import Journal
from holdfast_sidecar.session import Session
from holdfast_sidecar.spec import Spec
from holdfast_wire.ids import Actor, session_name


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal"


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(journal_module, "MAX_BYTES", 4096)
    return 4096


def orders(journal: Journal) -> list[int]:
    return [record["order"] for record in journal.records()]


def test_records_come_back_in_order_with_time_and_kind(path: Path) -> None:
    journal = Journal(path)
    journal.add("join", actor="ana", mode="write")
    journal.add("input", order=1, actor="ana", bytes=3)
    first, second = journal.records()
    assert first == {"time": first["time"], "kind": "join", "actor": "ana", "mode": "write"}
    assert second["kind"] == "input"
    assert second["time"] >= first["time"] > 1_700_000_000
    journal.close()


@given(
    st.dictionaries(
        st.text(max_size=8).filter(lambda name: name not in ("kind", "time", "self")),
        st.text(max_size=20) | st.integers() | st.none(),
        max_size=4,
    )
)
def test_any_field_makes_one_line(
    tmp_path_factory: pytest.TempPathFactory, fields: dict[str, Any]
) -> None:
    path = tmp_path_factory.mktemp("journal") / "journal"
    journal = Journal(path)
    journal.add("exec", **fields)
    assert path.read_bytes().count(b"\n") == 1
    assert [{**r, "time": 0} for r in journal.records()] == [
        {"time": 0, "kind": "exec", **fields},
    ]
    journal.close()


@pytest.mark.parametrize("text", ["a\nb\r\nc", "\u2028\x85\x0b\x0c\x1c", "\0\x1b[2J", "\udcff"])
def test_line_breaks_and_controls_in_a_field_do_not_break_the_line(path: Path, text: str) -> None:
    journal = Journal(path)
    journal.add("exec", command=text)
    journal.add("exec", command="next")
    assert [record["command"] for record in journal.records()] == [text, "next"]
    assert path.read_bytes().isascii()
    journal.close()


def test_it_goes_on_where_an_earlier_sidecar_stopped(path: Path) -> None:
    for order in range(3):
        journal = Journal(path)
        journal.add("input", order=order)
        journal.close()
    assert orders(Journal(path)) == [0, 1, 2]


def test_two_files_of_the_bound_and_never_more(path: Path, small: int) -> None:
    journal, old = Journal(path), path.with_suffix(".1")
    for order in range(500):
        journal.add("input", order=order, actor="ana")
        assert path.stat().st_size <= small
    assert old.stat().st_size <= small
    assert sorted(file.name for file in path.parent.iterdir()) == ["journal", "journal.1"]
    kept = orders(journal)
    assert kept == list(range(kept[0], 500)), "the newest, without a hole"
    assert old.stat().st_size > small - 200, "rotated no sooner than it must"
    journal.close()


def test_the_bound_holds_across_restarts(path: Path, small: int) -> None:
    for order in range(200):
        journal = Journal(path)
        journal.add("input", order=order, actor="ana")
        journal.close()
        assert path.stat().st_size <= small
    kept = orders(Journal(path))
    assert kept == list(range(kept[0], 200))


def test_cut_anywhere_the_lines_before_are_read(path: Path) -> None:
    journal = Journal(path)
    for order in range(3):
        journal.add("input", order=order, actor="ana")
    journal.close()
    blob = path.read_bytes()
    for length in range(len(blob) + 1):
        path.write_bytes(blob[:length])
        again = Journal(path)
        whole = blob[:length].count(b"\n")
        assert orders(again)[:whole] == list(range(whole))
        again.close()


@pytest.mark.parametrize("junk", [b"\0" * 100, b"[1]\n3\nnull\n", b"\xff\xfe\n", b"{\n" * 9])
def test_lines_that_are_no_records_are_passed_over(path: Path, junk: bytes) -> None:
    path.write_bytes(b'{"order": 1}\n' + junk + b'\n{"order": 2}\n')
    journal = Journal(path)
    assert orders(journal) == [1, 2]
    journal.close()


def test_it_is_private(path: Path) -> None:
    Journal(path).close()
    assert path.stat().st_mode & 0o777 == 0o600


async def type_secrets(folder: Path) -> None:
    about = Spec(session_name("it"), "id", ("cat",), 80, 24, 100, 0.0)
    session, (master, slave) = Session(about, folder), os.openpty()
    session.start(master, os.memfd_create("outbox"))
    try:
        for key, secret in ((b"", b"hunter2\r"), (b"key-1", b"correct horse\r"), (b"", b"\x1b[0n")):
            session.write(Actor("ana"), None, "api", key, secret, lambda _order, _twice: None)
    finally:
        os.close(slave)
        session.close()


def test_it_says_how_much_was_typed_and_never_what(tmp_path: Path) -> None:
    asyncio.run(type_secrets(tmp_path))
    text = b"".join(file.read_bytes() for file in tmp_path.glob("journal*"))
    records = [json.loads(line) for line in text.splitlines()]
    assert [(r["order"], r["bytes"]) for r in records] == [(1, 8), (2, 14), (3, 4)]
    for word in (b"hunter2", b"horse", b"aHVudGVyMg", b"68756e746572"):
        assert word not in text


def test_a_record_is_one_line_of_json_that_others_can_read(path: Path) -> None:
    journal = Journal(path)
    journal.add("exec", actor="ana", command="echo 'ü' \"x\"")
    (line,) = path.read_text(encoding="ascii").splitlines()
    assert json.loads(line)["command"] == "echo 'ü' \"x\""
    journal.close()
