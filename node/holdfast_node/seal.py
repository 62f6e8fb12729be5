"""Files at rest: AES-256-GCM in pieces. Each file has a key of its own, made of the order's data
key, the file's random salt and what it is; each piece its number and whether it is the last. So a
piece cannot be altered, moved, left out or put into another file, and a file cannot be cut short.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from io import BufferedIOBase, RawIOBase
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


class Sealing:
    """Seals what comes, into `write`. `what` names the file: its checkpoint and part. Of what is in
    the clear one piece is kept, in memory."""

    def __init__(self, write: Callable[[bytes], object], keys: Keys, what: str) -> None:
        salt = os.urandom(_SALT)
        self._write, self._cipher = write, _cipher(keys, salt, what)
        self._piece = memoryview(bytearray(_PIECE))
        self._fill = self._number = 0
        write(_MAGIC + salt)

    def update(self, view: memoryview) -> None:
        while view:
            if self._fill == _PIECE:
                self._seal(last=False)
            count = min(_PIECE - self._fill, len(view))
            self._piece[self._fill : self._fill + count] = view[:count]
            self._fill += count
            view = view[count:]

    def finish(self) -> None:
        self._seal(last=True)

    def _seal(self, *, last: bool) -> None:
        nonce = _NONCE.pack(self._number, last)
        self._write(self._cipher.encrypt(nonce, self._piece[: self._fill], None))
        self._number, self._fill = self._number + 1, 0


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
                Fault.CORRUPT, f"{what} was altered or cut short, or sealed with another key"
            ) from None
        if not following:
            return
        piece, number = following, number + 1


class Unsealed(RawIOBase):
    """A sealed file as who reads it in order needs it."""

    def __init__(self, source: BinaryIO | BufferedIOBase, keys: Keys, what: str) -> None:
        self._source, self._pieces = source, unseal(source, keys, what)
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, target: memoryview) -> int:  # type: ignore[override]
        while not self._rest:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._rest = memoryview(piece)
        count = min(len(target), len(self._rest))
        target[:count], self._rest = self._rest[:count], self._rest[count:]
        return count

    def close(self) -> None:
        self._source.close()
        super().close()
