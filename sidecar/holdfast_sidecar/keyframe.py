"""A keyframe: the whole terminal at one seq, in a file beside the ring. With the ring's bytes from
that seq on it gives back the exact screen after the sidecar was killed.

Written to a new file and renamed, so that there is always a whole one or none.
"""

from __future__ import annotations

import os
import struct
from binascii import crc32
from pathlib import Path
from typing import Final, NamedTuple

_HEADER: Final = struct.Struct("<8sQIQ")  # magic, seq, checksum, length
_MAGIC: Final = b"HFKEYF1\n"


class Keyframe(NamedTuple):
    seq: int
    state: bytes


def save(path: Path, keyframe: Keyframe) -> None:
    new = path.with_suffix(".new")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb", buffering=0) as file:
        state = keyframe.state
        file.write(_HEADER.pack(_MAGIC, keyframe.seq, crc32(state), len(state)))
        file.write(state)
    new.rename(path)


def load(path: Path) -> Keyframe | None:
    """The keyframe, or None if there is none or it is damaged: then the ring must do."""
    try:
        blob = path.read_bytes()
    except FileNotFoundError:
        return None
    if len(blob) < _HEADER.size:
        return None
    magic, seq, checksum, length = _HEADER.unpack_from(blob)
    state = blob[_HEADER.size :]
    if magic != _MAGIC or len(state) != length or crc32(state) != checksum:
        return None
    return Keyframe(seq, state)
