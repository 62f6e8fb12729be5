"""Bytes on their way between two agents, packed (zstd) where the way is what takes the time.

Packing costs both agents more than the TLS that it spares (docs/decisions/0034), so nothing is
packed on a fast link, and nothing is done for it there but to look at the clock. The way is slow if
bytes are taken more slowly than SLOW, and not because the other agent takes them slowly, which the
kernel knows. Then a piece is packed if lately what that spared on the way was more than what it
took: else only one in SELDOM is tried. All of it is measured, as a busy processor makes both take
longer.

Invariant: what a frame claims to hold is at most CHUNK, and is looked at before it is unpacked. Who
sends packs only if who receives has said that it unpacks; the tags are those of the bytes unpacked.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any, Final

from holdfast_wire.errors import BadRequest

from .link import CHUNK, Frame

UNPACKS: Final = "unpacks"  # in the body of READY: the names of what the receiver can unpack
ZSTD: Final = "zstd"
SLOW: Final = 200e6  # bytes in a second; a core packs 700 MB of a heap in that time
SELDOM: Final = 16
_LEAST_SECONDS: Final = 0.1  # of sending, before it is judged
_MOST_SECONDS: Final = 1.0  # what was before counts half
_AGAIN: Final = 512 << 20  # bytes that nothing held up, and it is seen anew whether the way is slow
_LEVEL: Final = 1
_LEAST: Final = 4096  # bytes that are worth the trouble


class Judge:
    """Whether to pack. Pure."""

    def __init__(self) -> None:
        self.slow = False
        self._bytes, self._seconds = 0.0, 0.0  # as they went, lately, when nothing was packed
        self._free = 0  # bytes that went since something was held up
        self._gain = 0.0  # seconds for each byte, lately; above 0 all is packed
        self._tries = 0

    def wants(self) -> bool:
        """The next piece packed."""
        if not self.slow:
            return False
        self._tries += 1
        return self._gain > 0 or self._tries % SELDOM == 1

    def packed(self, size: int, less: int, seconds: float) -> None:
        """A piece of that size became so much less, in that time. A moment in which the processor
        was another's counts no more than a piece that took as long as it would have plain."""
        plain = self._seconds / self._bytes
        gain = (less * plain - seconds) / size
        self._gain += (max(gain, -plain) - self._gain) / 4

    def sent(self, count: int, seconds: float) -> bool:
        """So many bytes were taken in that time. True: it looks as if the way were slow; `begin`
        if it is that, and not the other end."""
        if self._gain > 0:  # what is packed says nothing of how slow the way is for what is not
            self._free = self._free + count if seconds * SLOW < count else 0
            if self._free > _AGAIN:
                self.forget()
            return False
        if self._seconds > _MOST_SECONDS:
            self._bytes, self._seconds = self._bytes / 2, self._seconds / 2
        self._bytes += count
        self._seconds += seconds
        if self._seconds < _LEAST_SECONDS or self._bytes >= self._seconds * SLOW:
            self.slow = False
            return False
        return not self.slow

    def begin(self) -> None:
        self.slow, self._free, self._gain, self._tries = True, 0, 0.0, 0

    def forget(self) -> None:
        self.slow, self._bytes, self._seconds, self._gain = False, 0.0, 0.0, 0.0


class Packer:
    """Sends pieces of at most CHUNK by `send`, in frames of DATA or PACKED. `elsewhere`: it is the
    other end, and not the way, that was waited for."""

    def __init__(
        self,
        send: Callable[[Frame, bytes | memoryview, int], None],
        elsewhere: Callable[[], bool],
    ) -> None:
        self._send, self._elsewhere = send, elsewhere
        self._judge = Judge()
        self._compressor: Any = None
        self._suspected = False  # the way, of being slow
        self.allowed = False  # the receiver can unpack
        self.saved = 0  # bytes that did not have to go

    def send(self, view: memoryview, part: int = 0) -> None:
        if not self.allowed or len(view) < _LEAST:
            self._send(Frame.DATA, view, part)
            return
        if self._suspected:  # only now: what was taken last may be on its way for a moment
            self._suspected = False
            if self._elsewhere():
                self._judge.forget()
            else:
                self._judge.begin()
        packed = self._tried(view) if self._judge.wants() else None
        began = time.monotonic()
        if packed is None:
            self._send(Frame.DATA, view, part)
        else:
            self._send(Frame.PACKED, packed, part)
            self.saved += len(view) - len(packed)
        body = view if packed is None else packed
        self._suspected = self._judge.sent(len(body), time.monotonic() - began)

    def _tried(self, view: memoryview) -> bytes | None:
        if self._compressor is None:  # not among what packing takes
            self._compressor = _zstd().ZstdCompressor(level=_LEVEL)
        began = time.monotonic()
        made = self._packed(view)
        less = 0 if made is None else len(view) - len(made)
        self._judge.packed(len(view), less, time.monotonic() - began)
        return made

    def _packed(self, view: memoryview) -> bytes | None:
        """None: it does not become less by an eighth."""
        made: bytes = self._compressor.compress(view, self._compressor.FLUSH_FRAME)
        return made if len(made) <= len(view) - len(view) // 8 else None


def unpacked(body: bytes | memoryview) -> memoryview:
    """What a frame of PACKED holds: as much as it claims, and at most CHUNK."""
    zstd = _zstd()
    most = {zstd.DecompressionParameter.window_log_max: CHUNK.bit_length() - 1}
    try:
        size = zstd.get_frame_info(body).decompressed_size
        if size is None or not 0 < size <= CHUNK:
            raise BadRequest("the other agent packed more than fits into a frame")
        one = zstd.ZstdDecompressor(options=most)
        made = one.decompress(body, size)
    except zstd.ZstdError as error:
        raise BadRequest("the other agent sent what cannot be unpacked") from error
    if len(made) != size or not one.eof or one.unused_data:
        raise BadRequest("the other agent packed something else than it says")
    return memoryview(made)


def _zstd() -> Any:
    """Loaded when it is first needed: to most agents it would be idle memory."""
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
    return zstd


def offer() -> dict[str, list[str]]:
    """What a receiver says of itself."""
    return {UNPACKS: [ZSTD]}


def accepted(said: dict[str, Any]) -> bool:
    """By a receiver that said so; one of an older version says nothing."""
    names = said.get(UNPACKS)
    return isinstance(names, list) and ZSTD in names
