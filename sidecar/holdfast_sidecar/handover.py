"""What one writer leaves unfinished does not touch the next one's bytes. Pure.

Programs read one stream of bytes, whoever typed them: half a character, half an escape sequence
or a paste without its end would take in what somebody else types after it. So before the first byte
of another actor's, what is unfinished is finished:

    half a character        filled up to a whole one, of some kind
    half an escape sequence ended, as one that means nothing
    an open paste           closed (bracketed paste: ESC [ 200 ~ … ESC [ 201 ~)

Escape alone is a key, and whole. What whole keys mean to a program (half a command line, Ctrl-X) is
the program's, and nothing is done about it. Nor between clients of one actor: a client that lost
its connection in mid-paste goes on with it as another.

A paste is taken from its beginning or not at all: if it was cut, or its beginning refused, then so
is the rest of it, up to its end or a second in which its client sends nothing. Lines of it would
be commands otherwise.
"""

from __future__ import annotations

import re
from typing import Final

from holdfast_wire.ids import Actor, ClientId

PASTE: Final = b"\x1b[200~"
PASTED: Final = b"\x1b[201~"
# No escape sequence that a terminal sends is longer; clipboards may be, and are not waited for.
_WINDOW: Final = 4096
_PAUSE_SECONDS: Final = 1.0

_CONTROL: Final = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*|O)")
_STRING: Final = re.compile(rb"\x1b(?:\][0-9]+(?:;[ -~]*)?|P[0-9;$+!>|=][ -~]*)\x1b?")
# Ends a sequence as one that no terminal sends and no program knows; in vim it is no command.
_MEANINGLESS: Final = b"\\"
_CHARACTER: Final = re.compile(rb"[\xc2-\xdf]|[\xe0-\xef][\x80-\xbf]?|[\xf0-\xf4][\x80-\xbf]{0,2}")
# What may follow these is less than what may follow others.
_SECOND: Final = {0xE0: 0xA0, 0xF0: 0x90}


class Stream:
    """Where bytes that came in pieces stop."""

    def __init__(self) -> None:
        self.pasting = False
        self.tail = b""

    def feed(self, data: bytes) -> None:
        joined = self.tail + data
        opened, closed = joined.rfind(PASTE), joined.rfind(PASTED)
        if opened != closed:  # else there is neither
            self.pasting = opened > closed
        self.tail = joined[-_WINDOW:]

    def end(self) -> bytes:
        """What finishes it."""
        if self.pasting:
            return _filled(self.tail) + PASTED
        return _filled(self.tail) or _ended(self.tail)


def _filled(tail: bytes) -> bytes:
    for length in (1, 2, 3):
        part = tail[-length:]
        if _CHARACTER.fullmatch(part):
            whole = 2 + (part[0] >= 0xE0) + (part[0] >= 0xF0)
            second = _SECOND.get(part[0], 0x80)
            return (bytes([second]) if length == 1 else b"").ljust(whole - length, b"\x80")
    return b""


def _ended(tail: bytes) -> bytes:
    part = tail[max(0, tail.rfind(b"\x1b")) :]
    if _CONTROL.fullmatch(part):
        return _MEANINGLESS
    if part == b"\x1b":  # a key; or within a string the first half of its end
        part = tail[max(0, tail[:-1].rfind(b"\x1b")) :]
    if _STRING.fullmatch(part):
        return b"\\" if part.endswith(b"\x1b") else b"\x1b\\"
    return b""


class _Client:
    def __init__(self) -> None:
        self.stream = Stream()
        self.cut = False
        self.last = 0.0


class Handover:
    def __init__(self) -> None:
        self._typed = Stream()
        self._by: tuple[Actor, ClientId | None] | None = None
        self._clients: dict[ClientId, _Client] = {}

    def left(self, client: ClientId) -> None:
        self._clients.pop(client, None)

    def taken(self, client: ClientId | None, data: bytes, now: float) -> bytes:
        """What of it is to be typed: all but the rest of a paste that was cut."""
        if client is None:
            return data
        known = self._clients.setdefault(client, _Client())
        known.cut = known.cut and now - known.last < _PAUSE_SECONDS
        was_pasting, before = known.stream.pasting, known.stream.tail[1 - len(PASTED) :]
        known.stream.feed(data)
        known.last = now
        # Its beginning was typed, if only what followed was refused.
        begun = self._typed.pasting and self._by is not None and self._by[1] == client
        if not known.cut:
            return PASTED + data if begun and not was_pasting else data
        joined = before + data
        end = joined.find(PASTED)
        if end < 0:
            return b""
        known.cut = False
        return (PASTED if begun else b"") + joined[end + len(PASTED) :]

    def refused(self, client: ClientId, data: bytes, now: float) -> None:
        """It was not this client's turn."""
        self.taken(client, data, now)
        known = self._clients[client]
        known.cut = known.stream.pasting

    def passed(self, actor: Actor) -> bytes:
        """What has to be typed before anything of this actor's."""
        if self._by is None or self._by[0] == actor:
            return b""
        end, client = self._typed.end(), self._by[1]
        if self._typed.pasting and client in self._clients:
            self._clients[client].cut = True
        self._typed.feed(end)
        return end

    def typed(self, actor: Actor, client: ClientId | None, data: bytes) -> None:
        if self._by is None or self._by[0] != actor:
            self._typed.tail = b""  # what was before is finished
        self._by = (actor, client)
        self._typed.feed(data)
