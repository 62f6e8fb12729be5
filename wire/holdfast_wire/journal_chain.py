"""The journal's format: records in a hash chain, one a line. Pure.

    line     canonical JSON of the record: sorted keys, no spaces, ASCII
    number   1 for the first record, then one more for each
    previous SHA-256 of the line before; 64 zeros for the first

Files are rotated, and the oldest are dropped by policy. Each file's first record names the head and
the count before it like any other record does, so files are verified one by one or together. A
record of kind `pruned` says up to which number records were dropped, and the head there.

A chain shows that a record was changed, inserted, moved or left out. That its end was cut off shows
only somebody who knew the head: keep `head` and `count` elsewhere for that.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

GENESIS: Final = "0" * 64
PRUNED: Final = "pruned"
# Longer texts are cut: a record must not push the others out. Most commands are shorter.
TEXT_BYTES: Final = 4096
# Of one record without its place in the chain. Texts are cut long before, if there are few.
RECORD_BYTES: Final = 64 << 10
# Made once: it stands in the way of every keystroke.
_ENCODE: Final = json.JSONEncoder(separators=(",", ":"), sort_keys=True).encode

Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Head:
    """Where the next record is linked."""

    count: int = 0
    digest: str = GENESIS


@dataclass(frozen=True, slots=True)
class Verified:
    first: int
    """Number of the oldest record that is there. 1: none was dropped."""
    head: Head


@dataclass(frozen=True, slots=True)
class Break:
    """The first place at which the chain does not hold."""

    file: int
    """Which of the files, from 0."""
    line: int
    """Which of its lines, from 1."""
    reason: str


def canonical(record: Mapping[str, Any]) -> bytes:
    return _ENCODE(record).encode()


def link(head: Head, record: Mapping[str, Any]) -> tuple[bytes, Head]:
    """The record's line, without its end, and the head after it."""
    line = canonical({**record, "number": head.count + 1, "previous": head.digest})
    return line, Head(head.count + 1, hashlib.sha256(line).hexdigest())


def after(line: bytes) -> Head | None:
    """The head after this line. None: it is no record."""
    record = read(line)
    if record is None:
        return None
    return Head(record["number"], hashlib.sha256(line.removesuffix(b"\n")).hexdigest())


def bounded(record: Mapping[str, Any]) -> Record:
    """Without the rest of what is too long: its size and SHA-256 are beside its beginning."""
    made: Record = {}
    for name, value in record.items():
        made |= _short(name, value, TEXT_BYTES)
    if len(canonical(made)) > RECORD_BYTES:
        whole = canonical(made)
        kept = {name: made[name] for name in ("time", "kind", "actor") if name in made}
        made = kept | {
            "record_bytes": len(whole),
            "record_sha256": hashlib.sha256(whole).hexdigest(),
        }
    return made


def _short(name: str, value: Any, most: int) -> Record:
    if isinstance(value, str):
        if len(value) <= most // 4:  # no character has more bytes
            return {name: value}
        data = value.encode("utf-8", "surrogatepass")
    elif isinstance(value, list | tuple | dict):
        data = _ENCODE(value).encode()
    else:
        return {name: value}
    if len(data) <= most:
        return {name: value}
    return {
        name: data[:most].decode("utf-8", "ignore"),
        f"{name}_bytes": len(data),
        f"{name}_sha256": hashlib.sha256(data).hexdigest(),
    }


def read(line: bytes) -> Record | None:
    """A record with its place in the chain. None: it is none."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict):
        return None
    number, previous = record.get("number"), record.get("previous")
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        return None
    return record if isinstance(previous, str) and len(previous) == len(GENESIS) else None


def verify(files: Iterable[Iterable[bytes]]) -> Verified | Break:
    """`files`: oldest first, each the lines of one, with or without their ends."""
    checker = _Checker()
    for index, lines in enumerate(files):
        for number, line in enumerate(lines, 1):
            if reason := checker.add(line.removesuffix(b"\n")):
                return Break(index, number, reason)
    if reason := checker.missing():
        return Break(0, 1, reason)
    return Verified(checker.first, checker.head)


class _Checker:
    def __init__(self) -> None:
        self.first = 1
        self.head = Head()
        self._before = Head()  # what the oldest record is linked to
        self._begun = False
        self._pruned = Head()

    def add(self, line: bytes) -> str:
        """Why this is not the next record; "" if it is."""
        record = read(line)
        if record is None:
            return "this is not a record"
        if canonical(record) != line:
            return "this record is not in the form in which it was written"
        if not self._begun:
            self._begun, self.first = True, record["number"]
            self._before = self.head = Head(record["number"] - 1, record["previous"])
            if self.first == 1 and record["previous"] != GENESIS:
                return "the first record is linked to another"
        if record["number"] != self.head.count + 1:
            return f"record {self.head.count + 1} is missing: this is {record['number']}"
        if record["previous"] != self.head.digest:
            return f"record {record['number']} is not linked to the one before"
        self.head = Head(record["number"], hashlib.sha256(line).hexdigest())
        return self._prunes(record) if record.get("kind") == PRUNED else ""

    def _prunes(self, record: Record) -> str:
        last, digest = record.get("last"), record.get("head")
        if not isinstance(last, int) or not isinstance(digest, str) or last >= record["number"]:
            return "this record does not say what was dropped"
        if last == self._before.count and digest != self._before.digest:
            return "what was dropped ended with another record"
        self._pruned = max(self._pruned, Head(last, digest), key=lambda head: head.count)
        return ""

    def missing(self) -> str:
        if self._pruned.count >= self.first - 1:
            return ""
        return f"records before {self.first} are missing, and no record says that they were dropped"
