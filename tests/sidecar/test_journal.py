"""The journal: a chain of every record, bounded, readable after any kill, and silent about keys."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from holdfast_sidecar import journal as journal_module
from holdfast_sidecar import journal_upgrade
from holdfast_sidecar.journal import Journal, Policy, files
from holdfast_sidecar.session import Session
from holdfast_sidecar.spec import Spec
from holdfast_wire import journal_chain
from holdfast_wire.errors import BadRequest
from holdfast_wire.ids import Actor, session_name
from holdfast_wire.journal_chain import Break, Verified, verify

SMALL = Policy(2 * journal_chain.RECORD_BYTES, 3)
BIG = "x" * journal_chain.TEXT_BYTES
PAGE = 1 << 19


def orders(journal: Journal) -> list[int]:
    return [record["order"] for record in journal.records() if "order" in record]


def verified(folder: Path) -> Verified:
    found = verify(path.read_bytes().splitlines() for path in files(folder))
    assert isinstance(found, Verified), found
    return found


def test_records_come_back_in_order_with_time_kind_and_place(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.add("join", actor="ana", mode="write")
    journal.add("input", order=1, actor="ana", bytes=3)
    first, second = journal.records()
    assert first == {
        "time": first["time"], "kind": "join", "actor": "ana", "mode": "write",
        "number": 1, "previous": "0" * 64,
    }  # fmt: skip
    assert (second["kind"], second["number"]) == ("input", 2)
    assert second["time"] >= first["time"] > 1_700_000_000
    assert verified(tmp_path) == Verified(1, journal.head)
    journal.close()


@pytest.mark.parametrize("text", ["a\nb\r\nc", "\u2028\x85\x0b\x0c\x1c", "\0\x1b[2J", "\udcff"])
def test_line_breaks_and_controls_in_a_field_do_not_break_the_line(
    tmp_path: Path, text: str
) -> None:
    journal = Journal(tmp_path)
    journal.add("exec", command=text)
    journal.add("exec", command="next")
    assert [record["command"] for record in journal.records()] == [text, "next"]
    assert (tmp_path / "journal").read_bytes().isascii()
    journal.close()


def test_it_goes_on_where_an_earlier_sidecar_stopped(tmp_path: Path) -> None:
    for order in range(3):
        journal = Journal(tmp_path)
        journal.add("input", order=order)
        journal.close()
    assert orders(Journal(tmp_path)) == [0, 1, 2]
    assert verified(tmp_path).head.count == 3


# -- attack 36: erased and made unreadable by large commands --------------------------------------


def test_large_commands_neither_erase_it_nor_make_it_unreadable(tmp_path: Path) -> None:
    """Attack 36: 33 commands of 256 KiB pushed everything else out."""
    journal = Journal(tmp_path)
    journal.add("join", actor="mallory")
    for number in range(200):
        journal.add("exec", actor="mallory", command=f"{number:06} ".ljust(256 << 10, "x"))
    records = list(journal.records())
    assert records[0]["kind"] == "join"
    assert len(records) == 201
    cut = records[7]
    assert (cut["command"][:6], cut["command_bytes"]) == ("000006", 256 << 10)
    assert len(cut["command_sha256"]) == 64
    assert verified(tmp_path).first == 1
    journal.close()


def test_a_page_is_bounded_and_says_where_the_next_begins(tmp_path: Path) -> None:
    """Attack 36: five large commands made an answer that no frame has room for."""
    journal, found, asked = Journal(tmp_path), [], 0
    for order in range(300):
        journal.add("exec", order=order, command=BIG)
    after: int | None = 0
    while after is not None:
        page = journal.page(after, 1000, PAGE)
        assert len(json.dumps(page.records)) < PAGE * 1.1
        assert page.head == journal.head
        found += page.records
        after, asked = page.next, asked + 1
    assert [record["order"] for record in found] == list(range(300))
    assert asked > 2
    assert len(journal.page(0, 7, PAGE).records) == 7
    assert [r["number"] for r in journal.newest(3, PAGE).records] == [298, 299, 300]
    newest = journal.newest(5000, PAGE).records
    assert newest[-1]["number"] == 300
    assert len(json.dumps(newest)) < PAGE * 1.1
    assert [r["number"] for r in journal.newest(9, 1).records] == [300], "one always"
    assert journal.page(300, 10, PAGE) == ([], None, journal.head)
    journal.close()


# -- rotation -------------------------------------------------------------------------------------


def test_what_is_dropped_is_said_and_the_rest_is_verified(tmp_path: Path) -> None:
    journal = Journal(tmp_path, SMALL)
    for order in range(300):
        journal.add("exec", order=order, command=BIG)
        assert len(files(tmp_path)) <= SMALL.files
        assert all(path.stat().st_size <= SMALL.file_bytes for path in files(tmp_path))
    found = verified(tmp_path)
    records = list(journal.records())
    assert found.first > 100
    assert found.head == journal.head
    (*_, pruned) = [record for record in records if record["kind"] == "pruned"]
    assert pruned["last"] == found.first - 1
    assert pruned["head"] == records[0]["previous"]
    assert [record["number"] for record in records] == list(
        range(found.first, found.head.count + 1)
    )
    journal.close()


def test_a_file_taken_away_by_hand_is_seen(tmp_path: Path) -> None:
    journal = Journal(tmp_path, Policy(SMALL.file_bytes, 10))
    for order in range(100):
        journal.add("exec", order=order, command=BIG)
    journal.close()
    files(tmp_path)[0].unlink()
    found = verify(path.read_bytes().splitlines() for path in files(tmp_path))
    assert isinstance(found, Break)
    assert "no record says that they were dropped" in found.reason


def test_the_bound_holds_across_restarts_and_when_it_is_made_smaller(tmp_path: Path) -> None:
    for order in range(120):
        journal = Journal(tmp_path, Policy(SMALL.file_bytes, 5))
        journal.add("exec", order=order, command=BIG)
        journal.close()
    assert len(files(tmp_path)) > 2
    Journal(tmp_path, Policy(SMALL.file_bytes, 2)).close()
    assert len(files(tmp_path)) == 2
    assert verified(tmp_path).first > 1


@pytest.mark.parametrize("wrong", [(100, 4), (1 << 20, 1), (1 << 40, 4), (1 << 20, 0)])
def test_a_policy_that_cannot_hold_a_record_is_refused(wrong: tuple[int, int]) -> None:
    with pytest.raises(BadRequest, match="a journal has"):
        Policy(*wrong)


def test_what_comes_while_it_is_sealed_follows_and_what_is_too_much_is_counted(
    tmp_path: Path,
) -> None:
    journal = Journal(tmp_path)
    journal.add("join")
    before = (tmp_path / "journal").read_bytes()
    journal.seal()
    for number in range(1200):
        journal.add("join", client=number)
    assert (tmp_path / "journal").read_bytes() == before
    journal.unseal()
    records = list(journal.records())
    assert (len(records), records[-1]["kind"]) == (1002, "left_out")
    assert records[-1]["records"] == 200
    assert verified(tmp_path).head.count == 1002
    journal.close()


# -- killed ---------------------------------------------------------------------------------------


class EveryLine:
    """Copies the folder before each line of these modules that runs: what a kill there leaves."""

    def __init__(self, folder: Path, copies: Path) -> None:
        self.folder, self.copies = folder, copies
        self.left: list[Path] = []
        self._seen: dict[str, tuple[int, int]] = {}

    def _trace(self, frame: FrameType, event: str, _arg: Any) -> Any:
        if frame.f_code.co_filename not in (journal_module.__file__, journal_upgrade.__file__):
            return None
        if event in ("line", "return"):
            seen = {
                path.name: (path.stat().st_ino, path.stat().st_size)
                for path in self.folder.iterdir()
            }
            if seen != self._seen:  # else a kill leaves what the one before left
                self._seen = seen
                self.left.append(self.copies / str(len(self.left)))
                shutil.copytree(self.folder, self.left[-1])
        return self._trace

    def run(self, act: Callable[[], object]) -> list[Path]:
        before = sys.gettrace()
        sys.settrace(self._trace)
        try:
            act()
        finally:
            sys.settrace(before)
        return self.left


def test_killed_at_any_line_nothing_is_lost_and_the_chain_holds(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    journal, told = Journal(folder, SMALL), []

    def fill() -> None:
        for order in range(110):
            journal.add("exec", order=order, command=BIG)
            told.append(order)

    left = EveryLine(folder, tmp_path).run(fill)
    assert len(left) > 115, "also between the steps of rotations"
    for copy in left:
        again = Journal(copy, SMALL)
        kept = orders(again)
        assert kept == list(range(kept[0], kept[-1] + 1)) if kept else True
        again.add("input", order=1000)
        assert orders(again)[-1] == 1000
        assert len(files(copy)) <= SMALL.files
        assert verified(copy).head == again.head
        again.close()
    journal.close()


def test_cut_anywhere_the_records_before_are_read_and_it_goes_on(tmp_path: Path) -> None:
    journal, path = Journal(tmp_path), tmp_path / "journal"
    for order in range(3):
        journal.add("input", order=order, actor="ana")
    journal.close()
    blob = path.read_bytes()
    for length in range(len(blob) + 1):
        path.write_bytes(blob[:length])
        again = Journal(tmp_path)
        whole = blob[:length].count(b"\n")
        again.add("input", order=9)
        assert orders(again) == [*range(whole), 9]
        assert verified(tmp_path).head.count == whole + 1
        again.close()


@pytest.mark.parametrize("junk", [b"\0" * 100, b"[1]\n3\nnull\n", b"\xff\xfe\n", b"{\n" * 9])
def test_a_damaged_disk_keeps_nobody_from_the_rest_and_is_told(tmp_path: Path, junk: bytes) -> None:
    journal = Journal(tmp_path)
    journal.add("input", order=1)
    journal.close()
    with (tmp_path / "journal").open("ab") as file:
        file.write(junk + b"\n")
    journal = Journal(tmp_path)
    journal.add("input", order=2)
    assert orders(journal) == [1, 2]
    found = verify([(tmp_path / "journal").read_bytes().splitlines()])
    assert isinstance(found, Break)
    assert (found.line, found.reason) == (2, "this is not a record")
    journal.close()


# -- from an older version ------------------------------------------------------------------------


def write_plain(folder: Path) -> list[dict[str, Any]]:
    """As the version before the chain wrote it, whose last line was cut short by a kill."""
    old: list[dict[str, Any]] = [
        {"time": 1e9 + order, "kind": "input", "order": order, "actor": "ana", "key": "ÿ"}
        for order in range(1, 9)
    ]
    old[3] = {"time": 1e9, "kind": "exec", "actor": "ana", "command": "y" * (256 << 10)}
    lines = [json.dumps(record, separators=(",", ":")) + "\n" for record in old]
    (folder / "journal.1").write_text("".join(lines[:5]))
    (folder / "journal").write_text("".join(lines[5:]) + '{"time":3,"ki')
    return old


def test_an_older_versions_journal_is_carried_into_the_chain_once(tmp_path: Path) -> None:
    old = write_plain(tmp_path)
    Journal(tmp_path).close()
    journal = Journal(tmp_path)
    journal.add("input", order=99)
    upgraded, *records = journal.records()
    assert upgraded["kind"] == "upgraded"
    assert [file["name"] for file in upgraded["files"]] == ["journal.1", "journal"]
    assert [r.get("order") for r in records] == [*(r.get("order") for r in old), 99]
    assert [r["time"] for r in records[:-1]] == [r["time"] for r in old]
    assert records[3]["command_bytes"] == 256 << 10
    assert verified(tmp_path) == Verified(1, journal.head)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["journal"]
    journal.close()


@pytest.mark.parametrize("left", ["journal", "journal.1"])
def test_one_file_of_an_older_version_is_enough(tmp_path: Path, left: str) -> None:
    write_plain(tmp_path)
    (tmp_path / ("journal" if left == "journal.1" else "journal.1")).unlink()
    journal = Journal(tmp_path)
    assert len(list(journal.records())) == (4 if left == "journal" else 6)
    verified(tmp_path)
    journal.close()


def test_killed_at_any_line_of_the_upgrade_it_is_done_again(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    old = write_plain(folder)
    left = EveryLine(folder, tmp_path).run(lambda: Journal(folder).close())
    assert len(left) >= 4
    for copy in left:
        journal = Journal(copy)
        assert [r.get("order") for r in journal.records()] == [
            None,
            *(r.get("order") for r in old),
        ]
        verified(copy)
        journal.close()


# -- what it says ---------------------------------------------------------------------------------


def test_it_is_private_and_no_link_is_followed(tmp_path: Path) -> None:
    Journal(tmp_path).close()
    assert (tmp_path / "journal").stat().st_mode & 0o777 == 0o600
    (tmp_path / "journal").rename(tmp_path / "elsewhere")
    (tmp_path / "journal").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic links"):
        Journal(tmp_path)


def test_a_record_costs_a_keystroke_little(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    begin = time.perf_counter()
    for order in range(5000):
        journal.add("input", order=order, actor="ana", client="c" * 16, bytes=1, position=order)
    each = (time.perf_counter() - begin) / 5000
    assert each < 0.0005, f"{each * 1e6:.0f} µs"
    journal.close()


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


def test_a_full_disk_leaves_whole_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal, write = Journal(tmp_path), os.write
    journal.add("input", order=1)
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:10]))
    with pytest.raises(OSError, match="the disk is full"):
        journal.add("input", order=2)
    monkeypatch.undo()
    journal.add("input", order=3)
    assert orders(journal) == [1, 3]
    verified(tmp_path)
    journal.close()
