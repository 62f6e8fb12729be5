"""Files at rest: AES-256-GCM in pieces. Each file has a key of its own, made of the agents' secret,
the file's random salt and what it is; each piece its number and whether it is the last. So a piece
cannot be altered, moved, left out or put into another file, and a file cannot be cut short."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from io import BufferedIOBase
from typing import BinaryIO, Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from .pair import Fault, Keys, Unfit

_MAGIC: Final = b"holdfast-sealed1"
_SALT: Final = 32
_PIECE: Final = 1 << 20
_OVERHEAD: Final = 16  # the tag of a piece
_NONCE: Final = struct.Struct(">xxxQ?")


def sealed_size(size: int) -> int:
    """Of a file of `size` bytes once it is sealed."""
    pieces = max(1, -(-size // _PIECE))
    return len(_MAGIC) + _SALT + size + pieces * _OVERHEAD


def _cipher(keys: Keys, salt: bytes, what: str) -> AESGCM:
    return AESGCM(keys.derive(b"rest\0" + what.encode(), salt))


def seal(source: BinaryIO, keys: Keys, what: str) -> Iterator[bytes]:
    """What to write. `what` names the file: its checkpoint and part."""
    salt = os.urandom(_SALT)
    cipher = _cipher(keys, salt, what)
    yield _MAGIC + salt
    piece, number = source.read(_PIECE), 0
    while True:
        following = source.read(_PIECE) if len(piece) == _PIECE else b""
        last = not following
        yield cipher.encrypt(_NONCE.pack(number, last), piece, None)
        if last:
            return
        piece, number = following, number + 1


def unseal(source: BinaryIO | BufferedIOBase, keys: Keys, what: str) -> Iterator[bytes]:
    """The pieces. Each is right when it comes; that none is lacking is known at the end only.
    Raises Unfit."""
    head = source.read(len(_MAGIC) + _SALT)
    if len(head) != len(_MAGIC) + _SALT or not head.startswith(_MAGIC):
        raise Unfit(Fault.CORRUPT, f"{what} is not a sealed file of a checkpoint")
    cipher = _cipher(keys, head[len(_MAGIC) :], what)
    piece, number = source.read(_PIECE + _OVERHEAD), 0
    while True:
        whole = len(piece) == _PIECE + _OVERHEAD
        following = source.read(_PIECE + _OVERHEAD) if whole else b""
        try:
            yield cipher.decrypt(_NONCE.pack(number, not following), piece, None)
        except (InvalidTag, ValueError):
            raise Unfit(
                Fault.CORRUPT, f"{what} was altered or cut short, or sealed with another secret"
            ) from None
        if not following:
            return
        piece, number = following, number + 1
