"""What was typed and not yet read: out of a terminal's slave side, and into one again.

While its processes are frozen, input lies in two places. The line discipline has taken some: that
was echoed, edited, translated, and its control characters did their work, so it must be put back
untouched and unseen. Behind it, when that was full, lies some it has not seen: that must go in as
if it were typed now. In canonical mode a line is a line once it is ended; one that is half typed
stays so, and no reader gets it.

Invariant: `take` and `put` leave the terminal's settings as they found them.

The line discipline marks an end of file (^D) in its buffer as a NUL; a NUL typed in canonical mode
cannot be told from it, and is put back as an end of file.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import os
import select
import struct
import termios
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

_TCGETS2: Final = 0x802C542A  # x86_64, aarch64; unlike TCGETS it has every speed
_TCSETS2: Final = 0x402C542B
_TIOCGPTPEER: Final = 0x5441  # x86_64, aarch64
_LAYOUT: Final = struct.Struct("<4IB19s2I")
_BUFFER: Final = 4096  # the line discipline's; the kernel fixes it
_SETTLE_MS: Final = 20  # for the kernel's own hand-over from a writer's buffer into that one
_EOF_MARK: Final = 0
_VEOF, _VTIME, _VMIN, _VEOL, _VLNEXT, _VEOL2 = 4, 5, 6, 11, 15, 16


@dataclass(frozen=True)
class Taken:
    """`seen` is what the line discipline had taken, `complete` how much of it a reader may have
    (all, unless canonical); `unseen` is what it had not."""

    canonical: bool = False
    seen: bytes = b""
    complete: int = 0
    unseen: bytes = b""

    def __bool__(self) -> bool:
        return bool(self.seen or self.unseen)

    def to_json(self) -> dict[str, Any]:
        return {
            "canonical": self.canonical,
            "seen": base64.b64encode(self.seen).decode(),
            "complete": self.complete,
            "unseen": base64.b64encode(self.unseen).decode(),
        }

    @classmethod
    def from_json(cls, body: dict[str, Any]) -> Taken:
        seen, unseen = (base64.b64decode(body[key], validate=True) for key in ("seen", "unseen"))
        complete = int(body["complete"])
        if not 0 <= complete <= len(seen) < _BUFFER:
            raise ValueError("no terminal holds such input")
        return cls(bool(body["canonical"]), seen, complete, unseen)


@dataclass(frozen=True)
class _Settings:
    iflag: int
    oflag: int
    cflag: int
    lflag: int
    line: int
    characters: bytes
    ispeed: int
    ospeed: int

    @classmethod
    def of(cls, fd: int) -> _Settings:
        return cls(*_LAYOUT.unpack(fcntl.ioctl(fd, _TCGETS2, bytes(_LAYOUT.size))))

    def apply(self, fd: int) -> None:
        fields = (self.iflag, self.oflag, self.cflag, self.lflag, self.line, self.characters)
        fcntl.ioctl(fd, _TCSETS2, _LAYOUT.pack(*fields, self.ispeed, self.ospeed))

    @property
    def canonical(self) -> bool:
        return bool(self.lflag & termios.ICANON)

    def deaf(self, *, lflag: int = 0, characters: dict[int, int] | None = None) -> _Settings:
        """Nothing is echoed, translated or acted upon but what is asked for."""
        chosen = bytearray(len(self.characters))
        for index, value in ({_VMIN: 1} if characters is None else characters).items():
            chosen[index] = value
        return replace(self, iflag=0, lflag=lflag, characters=bytes(chosen))


def take(master: int) -> Taken:
    """Everything that is queued; the terminal has none of it any more. Its processes are frozen
    and nobody types."""
    with _slave(master) as fd:
        before = _Settings.of(fd)
        readable = _readable(fd)
        # One read empties the line discipline's buffer before the kernel fills it again, and what
        # it then fills it with passes through as it is.
        before.deaf().apply(fd)
        try:
            seen = _read(fd)
            unseen = b"".join(_rest(fd, settle=len(seen) >= _BUFFER - 1))
        finally:
            before.apply(fd)
    if not before.canonical:
        return Taken(False, seen, len(seen), unseen)
    return Taken(True, seen, _complete(seen, readable, _delimiters(before)), unseen)


def put(master: int, taken: Taken) -> bytes:
    """Puts it into a terminal that has none queued, whose processes are frozen. Returns the end
    of it that the terminal has no room for: whoever owns the master has to type that, first."""
    if taken.seen:
        with _slave(master) as fd:
            _put_seen(fd, taken)
    return _type(master, taken.unseen)


def _put_seen(fd: int, taken: Taken) -> None:
    before = _Settings.of(fd)
    if taken.canonical and before.canonical:
        end, quote = _unused(taken.seen)
        characters = {_VEOF: end, _VLNEXT: quote}
        for index in (_VEOL, _VEOL2):
            characters[index] = before.characters[index]
        middle = before.deaf(lflag=termios.ICANON | termios.IEXTEN, characters=characters)
        keys = _keys(taken, end, quote, _delimiters(before))
    else:
        middle, keys = before.deaf(lflag=before.lflag & termios.ICANON), iter(taken.seen)
    middle.apply(fd)
    try:
        # Not through the master: only this way is it there when the call returns.
        for key in keys:
            fcntl.ioctl(fd, termios.TIOCSTI, bytes([key]))
    finally:
        before.apply(fd)


def _keys(taken: Taken, end: int, quote: int, delimiters: frozenset[int]) -> Iterator[int]:
    """What to type for the buffer to look as it did."""
    for place, byte in enumerate(taken.seen):
        if place >= taken.complete and byte in delimiters:
            yield quote  # it was quoted when it was typed, or the line would be complete
        yield end if byte == _EOF_MARK and place < taken.complete else byte


def _unused(text: bytes) -> tuple[int, int]:
    """Two characters that do not occur. A full buffer could have them all but does not."""
    free = [byte for byte in range(1, 256) if byte not in text and byte not in b"\r\n"]
    return (free[0], free[1]) if len(free) > 1 else (4, 22)


def _complete(seen: bytes, readable: int, delimiters: frozenset[int]) -> int:
    """Where the half-typed line begins. The kernel says how many bytes of ended lines a reader
    would get, which leaves out the marks of an end of file."""
    marks = 0
    for place, byte in enumerate(seen, 1):
        marks += byte == _EOF_MARK
        if place - marks == readable and byte in delimiters:
            following = seen[place : place + 1]
            if following != bytes([_EOF_MARK]):
                return place
    return 0 if readable == 0 else min(readable + marks, len(seen))


def _delimiters(settings: _Settings) -> frozenset[int]:
    return frozenset(
        {ord("\n"), _EOF_MARK, settings.characters[_VEOL], settings.characters[_VEOL2]}
    )


def _rest(fd: int, settle: bool) -> Iterator[bytes]:
    waiting = select.poll()
    waiting.register(fd, select.POLLIN)
    while waiting.poll(_SETTLE_MS if settle else 0):
        part = _read(fd)
        if not part:
            return
        settle = True
        yield part


def _read(fd: int) -> bytes:
    try:
        return os.read(fd, _BUFFER)
    except BlockingIOError:
        return b""


def _readable(fd: int) -> int:
    # A look for input first has the kernel hand over what was only just typed.
    select.select([fd], [], [], 0)
    return int(struct.unpack("i", fcntl.ioctl(fd, termios.FIONREAD, bytes(4)))[0])


def _type(master: int, text: bytes) -> bytes:
    blocking = os.get_blocking(master)
    os.set_blocking(master, False)
    try:
        while text:
            with contextlib.suppress(BlockingIOError):
                written = os.write(master, text)
                text = text[written:]
                continue
            break
    finally:
        os.set_blocking(master, blocking)
    return text


@contextlib.contextmanager
def _slave(master: int) -> Iterator[int]:
    """The other side of that very master, by the kernel's word. A path could lead elsewhere."""
    fd = fcntl.ioctl(master, _TIOCGPTPEER, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)
