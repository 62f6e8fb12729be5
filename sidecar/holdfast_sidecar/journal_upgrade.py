"""A journal from before it was a chain: two files of plain JSON lines, `journal.1` and `journal`. A
session that was stored or moved by an older sidecar brings them along.

Carried into the chain once. Its first record says of which files the others are. The new file takes
the place of the old one in one step, so a kill leaves the old ones or the chain.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from holdfast_wire import journal_chain
from holdfast_wire.journal_chain import Head, Record


def carry(folder: Path) -> None:
    current, older = folder / "journal", folder / "journal.1"
    first = _first_line(current)
    chained = journal_chain.read(first) is not None
    if not older.exists() and (chained or not first):
        return
    if not chained:
        new = folder / "journal.new"
        plain = [path for path in (older, current) if path.exists()]
        new.unlink(missing_ok=True)
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
            _write(plain, out)
        new.rename(current)
    older.unlink(missing_ok=True)


def _write(plain: list[Path], out: BinaryIO) -> None:
    head = Head()
    for record in (_upgraded(plain), *_records(plain)):
        line, head = journal_chain.link(head, journal_chain.bounded(record))
        out.write(line + b"\n")


def _upgraded(plain: list[Path]) -> Record:
    files = [{"name": path.name, **_digest(path)} for path in plain]
    return {"time": round(time.time(), 3), "kind": "upgraded", "files": files}


def _digest(path: Path) -> Record:
    data = path.read_bytes()
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def _records(plain: list[Path]) -> Iterator[Record]:
    for path in plain:
        with path.open("rb") as file:
            for line in file:
                if isinstance(record := _parsed(line), dict):
                    yield record


def _first_line(path: Path) -> bytes:
    if not path.exists():
        return b""
    with path.open("rb") as file:
        return next((line for line in file if isinstance(_parsed(line), dict)), b"")


def _parsed(line: bytes) -> object:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None  # cut short by a kill
