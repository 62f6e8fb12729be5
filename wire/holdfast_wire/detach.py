"""Finds the detach keys in what the user types. Pure: bytes in, bytes to pass on out.

The keys are held back until the sequence is complete or broken; the first key pressed twice sends
it once, and one that stays alone for HOLD_SECONDS is sent. So nothing the user types is out of
reach, ctrl-\\ (SIGQUIT) included. docs/decisions/0003-detach-key.md has the reasons.

A program in the session may switch the terminal to a newer keyboard protocol, in which ctrl-\\ is
no longer one byte but `ESC [ 92 ; 5 u` or `ESC [ 27 ; 5 ; 92 ~`. All three are known here, or the
user of an editor would be locked in. Pasted text is passed by: a file may hold any byte.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from holdfast_wire.keys import Key

HOLD_SECONDS: Final = 1.0

# kitty: ESC [ code[:alternates] [; modifiers[:event] [; text]] u
_KITTY: Final = rb"\x1b\[(\d{1,8})(?::[\d:]*)?(?:;(\d{0,4})(?::(\d))?)?(?:;[\d:]*)?u"
# xterm's modifyOtherKeys: ESC [ 27 ; modifiers ; code ~
_XTERM: Final = rb"\x1b\[27;(\d{1,4});(\d{1,8})~"
_SEQUENCE: Final = re.compile(_KITTY + b"|" + _XTERM)
_PASTE_BEGIN: Final = b"\x1b[200~"
_PASTE_END: Final = b"\x1b[201~"
_PASTE_END_BEGINNINGS: Final = tuple(_PASTE_END[:size] for size in range(3, len(_PASTE_END)))
_CTRL: Final = 4
_LOCKS: Final = 64 | 128  # caps lock and num lock count as modifiers, but nobody means them
_RELEASE: Final = b"3"
_MODIFIER_KEYS: Final = range(57441, 57455)


class Typed(NamedTuple):
    """What is to be sent, and whether the user asked to leave (then what follows is dropped)."""

    data: bytes
    detach: bool


class _Press(NamedTuple):
    """One key in the input. `key` is None for what has no part in this: a release, ctrl itself."""

    key: Key | None
    end: int


class DetachScanner:
    def __init__(self, keys: tuple[Key, ...]) -> None:
        self._keys = keys
        self._held = b""
        self._matched = 0
        self.held_since = 0.0
        self._pasting = False
        self._first = self._pattern(keys[0]) if keys else None

    @property
    def holding(self) -> bool:
        return self._matched > 0

    @staticmethod
    def _pattern(key: Key) -> re.Pattern[bytes]:
        """Where the first key may begin; the exact check comes after."""
        code = str(key.code).encode()
        return re.compile(
            re.escape(key.legacy)
            + rb"|\x1b\[" + code + rb"[:;u]"
            + rb"|\x1b\[27;\d+;" + code + rb"~"
            + rb"|\x1b\[200~"
        )  # fmt: skip

    def feed(self, data: bytes, now: float) -> Typed:
        if self._first is None:
            return Typed(data, False)
        out: list[bytes] = []
        position = 0
        while position < len(data):
            if self._pasting:
                position = self._pass_paste(data, position, out)
            elif self._matched:
                position = self._next_key(data, position, out, now)
                if self._matched == len(self._keys):
                    self._matched, self._held = 0, b""
                    return Typed(b"".join(out), True)
            else:
                position = self._search(data, position, out, now)
                if self._matched == len(self._keys):  # a sequence of one key
                    self._matched, self._held = 0, b""
                    return Typed(b"".join(out), True)
        return Typed(b"".join(out), False)

    def expire(self, now: float) -> bytes:
        """A first key that waited too long for its second is an ordinary key."""
        if not self._matched or now - self.held_since < HOLD_SECONDS:
            return b""
        return self._let_go()

    def _let_go(self) -> bytes:
        held, self._held, self._matched = self._held, b"", 0
        return held

    def _search(self, data: bytes, start: int, out: list[bytes], now: float) -> int:
        assert self._first is not None  # noqa: S101 - feed() checked
        found = self._first.search(data, start)
        if found is None:
            out.append(data[start:])
            return len(data)
        out.append(data[start : found.start()])
        if found.group() == _PASTE_BEGIN:
            self._pasting = True
            return found.start()
        press = _press(data, found.start())
        piece = data[found.start() : press.end]
        if press.key == self._keys[0]:
            self._held, self._matched, self.held_since = piece, 1, now
        else:
            out.append(piece)
        return press.end

    def _next_key(self, data: bytes, start: int, out: list[bytes], now: float) -> int:
        press = _press(data, start)
        piece = data[start : press.end]
        if press.key is None:
            self._held += piece
        elif press.key == self._keys[self._matched]:
            self._held += piece
            self._matched += 1
            self.held_since = now
        elif press.key == self._keys[0]:
            out.append(self._let_go())
        else:
            out.append(self._let_go())
            return start  # it may begin something of its own, such as a paste
        return press.end

    def _pass_paste(self, data: bytes, start: int, out: list[bytes]) -> int:
        end = data.find(_PASTE_END, start)
        if end < 0:
            out.append(data[start:])
            # A read may cut the end mark in two: a beginning of it counts as the whole.
            self._pasting = not data.endswith(_PASTE_END_BEGINNINGS)
            return len(data)
        end += len(_PASTE_END)
        out.append(data[start:end])
        self._pasting = False
        return end


def _press(data: bytes, start: int) -> _Press:
    """The key that begins at `start`."""
    found = _SEQUENCE.match(data, start)
    if found is None:
        byte = data[start]
        if byte < 0x20:
            return _Press(Key(ord(chr(byte | 0x40).lower()), True), start + 1)
        return _Press(Key(byte, False), start + 1)
    code, modifiers, event, xterm_modifiers, xterm_code = found.groups()
    number = int(code or xterm_code)
    pressed = ((int(modifiers or xterm_modifiers or 1)) - 1) & ~_LOCKS
    if event == _RELEASE or number in _MODIFIER_KEYS:
        return _Press(None, found.end())
    if pressed & ~_CTRL:
        return _Press(Key(0, False), found.end())  # alt, shift, super: some other key
    return _Press(Key(number, bool(pressed & _CTRL)), found.end())
