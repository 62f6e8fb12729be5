"""The outbox: what is to be typed, whose it is, and how far it has been.

A file in memory that hold made and keeps. Inputs are put at its end and typed with `sendfile`,
which moves the file's offset by exactly what the terminal took, in the same system call. Offset and
bytes belong to hold, so a sidecar killed at any moment, also inside that call, leaves behind just
what has been typed and what has not; its successor goes on from there.

    0       the origin: the position of the first byte of data
    8       where it was sealed: every byte before this position counts, with a record or without
    4096    the records of the last inputs, each in a slot; stored before the data they are about
    266240  data

Positions count all bytes ever put in, from the session's first. Invariant: what lies between offset
and end belongs to inputs that have a record, or to nobody (a terminal's own answers). A file
without data has been typed to its end, whatever the offset: that is how it is emptied in steps
without a moment in which a kill would do harm.

A session that is moved takes its outbox along in a file of the same form, emptied of what has been
typed; `load` puts it into another hold's.
"""

from __future__ import annotations

import base64
import os
import struct
from typing import Final, NamedTuple

from holdfast_wire.errors import Internal
from holdfast_wire.ids import Actor, ClientId

_WORD: Final = struct.Struct("<Q")
_SEALED_AT: Final = 8
_SLOTS_AT: Final = 4096
_SLOT: Final = 4096  # a key and names at their longest take half
SLOTS: Final = 64
_DATA: Final = _SLOTS_AT + SLOTS * _SLOT
# Emptied when it has grown to this and all of it is typed.
_LARGE: Final = 1 << 20


class Record(NamedTuple):
    """Whose an input is."""

    order: int
    position: int
    """After its last byte."""
    size: int
    time: float
    actor: Actor
    client: ClientId | None
    modality: str
    key: bytes
    whole: bool = True
    """False: written by an earlier version, which cut the name and knew no UID."""


def records(descriptor: int) -> list[Record]:
    """Those of the last inputs, in no order. An empty slot, or one cut short, is left out."""
    table = os.pread(descriptor, SLOTS * _SLOT, _SLOTS_AT)
    slots = (table[start : start + _SLOT] for start in range(0, len(table), _SLOT))
    return [_parsed(slot.split(b"\n", 1)[0]) for slot in slots if b"\n" in slot]


def _parsed(line: bytes) -> Record:
    order, position, size, when, actor, client, modality, key, *uid = line.decode().split("\t")
    # Of before there were UIDs: without one, and its name is as it was cut.
    who = Actor(_text(actor), _text(uid[0])) if uid else Actor(actor)
    return Record(
        int(order), int(position), int(size), float(when), who,
        ClientId(client) if client else None, modality, bytes.fromhex(key), bool(uid),
    )  # fmt: skip


def _text(encoded: str) -> str:
    return base64.b64decode(encoded, validate=True).decode()


def _word(descriptor: int, at: int) -> int:
    stored = os.pread(descriptor, _WORD.size, at)
    return int(_WORD.unpack(stored)[0]) if len(stored) == _WORD.size else 0


def load(descriptor: int, saved: bytes) -> None:
    """What `Outbox.saved` gave, into a hold's own file, from which nothing was typed yet. It may be
    done again after a kill, as long as that is so."""
    if len(saved) < _DATA:
        raise Internal("the saved outbox is cut short")
    origin, sealed = (_WORD.unpack_from(saved, at)[0] for at in (0, _SEALED_AT))
    if sealed - origin != len(saved) - _DATA:
        raise Internal("the saved outbox is damaged")
    os.ftruncate(descriptor, 0)
    done = 0
    while done < len(saved):
        done += os.pwrite(descriptor, saved[done:], done)
    os.lseek(descriptor, _DATA, os.SEEK_SET)


class Outbox:
    def __init__(self, descriptor: int, recorded: int) -> None:
        """`recorded` is the position after the last input that has a record."""
        self._file = descriptor
        self._origin, sealed = _word(descriptor, 0), _word(descriptor, _SEALED_AT)
        recorded = max(recorded, sealed)
        offset = os.lseek(descriptor, 0, os.SEEK_CUR)
        size = os.fstat(descriptor).st_size
        if size <= _DATA or offset > size:
            self.typed = self.end = max(self._origin, recorded)
            self._empty()
            return
        self.typed = self._origin + offset - _DATA
        # Bytes without a record are nobody's: their sender was not told either.
        self.end = max(self.typed, min(recorded, self._origin + size - _DATA))
        os.ftruncate(descriptor, _DATA + self.end - self._origin)

    def _empty(self) -> None:
        """Only called when everything is typed; each step leaves a file that says so."""
        os.ftruncate(self._file, _DATA)
        os.lseek(self._file, _DATA, os.SEEK_SET)
        self._origin = self.end
        os.pwrite(self._file, _WORD.pack(self._origin), 0)

    @property
    def waiting(self) -> int:
        return self.end - self.typed

    def put(self, data: bytes) -> None:
        """Adds bytes; they are typed with the next `push`."""
        if not self.waiting and self.end - self._origin > _LARGE:
            self._empty()
        os.pwrite(self._file, data, _DATA + self.end - self._origin)
        self.end += len(data)

    def record(self, record: Record) -> None:
        """Says whose the last bytes put in are. One write with the line break last: whole or not at
        all. Names have no tabs and line breaks in them; the key may, and is in hex."""
        order, position, size, when, actor, client, modality, key, _ = record
        name, uid = (base64.b64encode(one.encode()).decode() for one in (actor.name, actor.uid))
        whose = f"{name}\t{client or ''}\t{modality}\t{key.hex()}\t{uid}"
        line = f"{order}\t{position}\t{size}\t{when}\t{whose}\n"
        os.pwrite(self._file, line.encode(), _SLOTS_AT + order % SLOTS * _SLOT)

    def push(self, terminal: int) -> None:
        """Types as much as the terminal takes now."""
        try:
            while self.waiting and (count := os.sendfile(terminal, self._file, None, self.waiting)):
                self.typed += count
        except BlockingIOError:
            return
        except OSError:  # nobody has the terminal open: there is no one to read it
            self.typed = self.end
            self._empty()

    def seal(self) -> None:
        """All that is in it counts, also what has no record: a kill from here on loses nothing."""
        os.pwrite(self._file, _WORD.pack(self.end), _SEALED_AT)

    def saved(self) -> bytes:
        """The whole of it, without what has been typed."""
        head = bytearray(_SLOTS_AT)
        _WORD.pack_into(head, 0, self.typed)
        _WORD.pack_into(head, _SEALED_AT, self.end)
        table = os.pread(self._file, SLOTS * _SLOT, _SLOTS_AT).ljust(SLOTS * _SLOT, b"\0")
        data = os.pread(self._file, self.waiting, _DATA + self.typed - self._origin)
        return bytes(head) + table + data

    def close(self) -> None:
        os.close(self._file)
