"""A keyframe: the whole terminal at one seq, in a file beside the ring. With the ring's bytes from
that seq on it gives back the exact screen after the sidecar was killed.

Written to a new file and renamed, so that there is always a whole one or none.
"""

from __future__ import annotations

import os
import struct
from binascii import crc32
from enum import IntEnum
from pathlib import Path
from typing import Final, NamedTuple

_HEADER: Final = struct.Struct("<8sIQ")  # magic, checksum of the rest, its length
_FACTS: Final = struct.Struct("<QBHH")  # seq, form, columns, rows
_MAGIC: Final = b"HFKEYF1\n"


class Form(IntEnum):
    ENCODED = 1
    """As the emulator encodes itself."""
    WRITTEN = 2
    """As bytes to be written to a new terminal, where it cannot encode itself."""


class Keyframe(NamedTuple):
    seq: int
    form: Form
    columns: int
    rows: int
    state: bytes


def save(path: Path, keyframe: Keyframe) -> None:
    new = path.with_suffix(".new")
    body = _FACTS.pack(*keyframe[:4]) + keyframe.state
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(_HEADER.pack(_MAGIC, crc32(body), len(body)))
        file.write(body)
    new.rename(path)


def load(path: Path) -> Keyframe | None:
    """The keyframe, or None if there is none or it is damaged: then the ring must do."""
    try:
        blob = path.read_bytes()
    except FileNotFoundError:
        return None
    if len(blob) < _HEADER.size + _FACTS.size:
        return None
    magic, checksum, length = _HEADER.unpack_from(blob)
    body = blob[_HEADER.size :]
    if magic != _MAGIC or len(body) != length or crc32(body) != checksum:
        return None
    seq, form, columns, rows = _FACTS.unpack_from(body)
    if form not in tuple(Form):
        return None
    return Keyframe(seq, Form(form), columns, rows, body[_FACTS.size :])
