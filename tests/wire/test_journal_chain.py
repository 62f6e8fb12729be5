"""The journal's chain: any records hold, and any change to one of them shows where."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from holdfast_wire import journal_chain
from holdfast_wire.journal_chain import Break, Head, Verified, bounded, link, verify

TEXTS = st.text(st.characters(), max_size=30)
RECORDS = st.lists(
    st.dictionaries(TEXTS, TEXTS | st.integers() | st.none() | st.booleans(), max_size=4),
    min_size=1,
    max_size=12,
)


def chain(records: list[dict[str, Any]], head: Head = Head()) -> tuple[list[bytes], Head]:  # noqa: B008
    lines = []
    for record in records:
        line, head = link(head, record)
        lines.append(line)
    return lines, head


@given(RECORDS, st.integers(0, 12))
def test_what_was_linked_is_verified_in_any_number_of_files(
    records: list[dict[str, Any]], cut: int
) -> None:
    lines, head = chain(records)
    assert verify([lines[:cut], [line + b"\n" for line in lines[cut:]]]) == Verified(1, head)


@given(RECORDS, st.data())
def test_every_changed_byte_shows_at_its_record_or_the_next(
    records: list[dict[str, Any]], data: st.DataObject
) -> None:
    lines, head = chain(records)
    which = data.draw(st.integers(0, len(lines) - 1))
    at = data.draw(st.integers(0, len(lines[which]) - 1))
    other = data.draw(st.integers(0, 255).filter(lambda byte: byte != lines[which][at]))
    changed = lines[which][:at] + bytes([other]) + lines[which][at + 1 :]
    found = verify([[*lines[:which], changed, *lines[which + 1 :]]])
    if which == len(lines) - 1 and isinstance(found, Verified):
        assert found.head != head, "of the last record only its head shows it"
    else:
        assert isinstance(found, Break)
        assert found.line in (which + 1, which + 2)


@given(RECORDS, st.data())
def test_a_record_left_out_moved_or_put_in_shows(
    records: list[dict[str, Any]], data: st.DataObject
) -> None:
    lines, _head = chain([{}, *records, {}])
    which = data.draw(st.integers(1, len(lines) - 2))
    assert isinstance(verify([lines[:which] + lines[which + 1 :]]), Break)
    assert isinstance(verify([[*lines[:which], lines[which], *lines[which:]]]), Break)
    swapped = [*lines]
    swapped[which], swapped[which + 1] = lines[which + 1], lines[which]
    assert isinstance(verify([swapped]), Break)
    assert isinstance(verify([lines[which:]]), Break), "the beginning, and nobody says so"


@given(RECORDS, RECORDS)
def test_what_was_dropped_must_have_been_said(
    dropped: list[dict[str, Any]], kept: list[dict[str, Any]]
) -> None:
    _lines, before = chain(dropped)
    said = {"kind": "pruned", "last": before.count, "head": before.digest}
    lines, head = chain([*kept, said, {}], before)
    assert verify([lines]) == Verified(before.count + 1, head)
    for wrong in ({**said, "last": before.count - 1}, {**said, "head": "f" * 64}, {}):
        assert isinstance(verify([chain([*kept, wrong, {}], before)[0]]), Break)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=9000),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=20,
)


@given(st.dictionaries(st.text(max_size=20), JSON, max_size=30))
def test_any_record_is_bounded(record: dict[str, Any]) -> None:
    found = bounded({"time": 1.0, "kind": "k", **record})
    assert len(journal_chain.canonical(found)) <= journal_chain.RECORD_BYTES
    line, _head = link(Head(), found)
    assert b"\n" not in line
    assert json.loads(line).items() >= {"number": 1}.items()


def test_a_long_text_leaves_its_size_and_digest() -> None:
    found = bounded({"command": "é" * 5000})
    assert found["command"] == "é" * 2048
    assert found["command_bytes"] == 10000
    assert found["command_sha256"] == (
        __import__("hashlib").sha256(("é" * 5000).encode()).hexdigest()
    )


def test_nothing_is_a_chain_of_no_records() -> None:
    assert verify([]) == Verified(1, Head())
    assert verify([[], []]) == Verified(1, Head())
