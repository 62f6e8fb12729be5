"""Inputs in one order, each at most once. Pure.

Every input gets a number that grows through the session's life. One that carries a key the same
actor used before is answered with the first one's number and not written again; the last
`REMEMBERED` keys are kept, across a sidecar's death too: each has a record before
it is typed, and what has a record will be typed (`outbox.py`).
"""

from __future__ import annotations

import re
from collections import OrderedDict
from typing import Final

from holdfast_wire.ids import Actor

REMEMBERED: Final = 4096

# What terminals answer by themselves: device attributes, cursor and mode reports, colours, window
# sizes, version strings. Not mouse reports: those a person made.
_REPLIES: Final = re.compile(
    rb"(?:\x1b\[[?>=][0-9;]*c"
    rb"|\x1b\[\??[0-9;]+R"
    rb"|\x1b\[\??[0-9;]*n"
    rb"|\x1b\[\??[0-9;]+\$y"
    rb"|\x1b\[[0-9;]+t"
    rb"|\x1b\[\?[0-9]+u"
    rb"|\x1b\][0-9]+;[^\x07\x1b]*(?:\x07|\x1b\\)"
    rb"|\x1bP[^\x1b]*\x1b\\)+"
)

_FOCUS: Final = re.compile(rb"(?:\x1b\[[IO])+")


def without_replies(data: bytes) -> bytes:
    """What whoever sits at the terminal said, without what it said itself before or after. Within,
    it is something that he pasted."""
    start, end = 0, len(data)
    for run in _REPLIES.finditer(data):  # one pass, whatever it is
        if run.start() == 0:
            start = run.end()
        elif run.end() == len(data):
            end = run.start()
    return data[start:end]


def _as_it_was(name: str) -> str:
    """As earlier versions cut names. Only to find what they remembered."""
    return "".join(c for c in name if c.isprintable())[:64]


def is_focus_report(data: bytes) -> bool:
    """Whether it only says that a window was looked at, or no more."""
    return _FOCUS.fullmatch(data) is not None


class Inputs:
    def __init__(self) -> None:
        self.last = 0
        self._keys: OrderedDict[tuple[Actor, bytes], int] = OrderedDict()
        # Of actors whose names an earlier version cut, and whose UIDs it did not know.
        self._named: OrderedDict[tuple[str, bytes], int] = OrderedDict()

    def restore(self, order: int, actor: Actor, key: bytes) -> None:
        """An input that an earlier sidecar of this session wrote."""
        self.last = max(self.last, order)
        if key:
            self._remember(actor, key, order)

    def restore_named(self, order: int, name: str, key: bytes) -> None:
        """The same, of a sidecar of an earlier version."""
        self.last = max(self.last, order)
        if key:
            self._named[name, key] = order
            while len(self._named) > REMEMBERED:
                self._named.popitem(last=False)

    def forget_keys(self) -> None:
        """What was typed so far was typed into another session too, whose keys those are."""
        self._keys.clear()
        self._named.clear()

    def seen(self, actor: Actor, key: bytes) -> int | None:
        """The number under which this key was already taken."""
        if not key:
            return None
        found = self._keys.get((actor, key))
        return self._named.get((_as_it_was(actor.name), key)) if found is None else found

    def take(self, actor: Actor, key: bytes) -> int:
        self.last += 1
        if key:
            self._remember(actor, key, self.last)
        return self.last

    def _remember(self, actor: Actor, key: bytes, order: int) -> None:
        self._keys[actor, key] = order
        self._keys.move_to_end((actor, key))
        while len(self._keys) > REMEMBERED:
            self._keys.popitem(last=False)
