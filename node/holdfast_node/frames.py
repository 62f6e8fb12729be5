"""Bytes in both directions over one link, for a thread that must not wait for either alone, in
frames as on any link (link.py):

    DATA|PACKED|KNOWN...  END  (each side its own)      TICK, if there is nothing to say
    AHEAD DATA|PACKED...  (before all that; these bytes are put aside)

`tagger`: what comes must be whole, and the other side's END says the tag that it must have.
"""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any, Final

from cryptography.hazmat.primitives.poly1305 import Poly1305

from holdfast_wire.errors import BadRequest, from_json

from .ahead import Kept
from .link import CHUNK, SILENCE, TICK, Frame, Link, LinkLost, as_json, frame_head
from .packing import unpacked
from .pair import Fault, Part, Unfit

_HEAD: Final = len(frame_head(Frame.TICK))
_NOTHING: Final = memoryview(b"")


def last_word(size: int, tagger: Poly1305 | None) -> dict[str, Any]:
    """Of one who has sent all that is tagged."""
    return {} if tagger is None else asdict(Part(size, tagger.finalize().hex()))


class Frames:
    def __init__(
        self, link: Link, tagger: Poly1305 | None = None, kept: Kept | None = None
    ) -> None:
        """`kept`: for memory that comes ahead, if that is allowed."""
        self._link, self._tagger = link, tagger
        self._kept = Kept(0) if kept is None else kept
        link.unblock()
        room = memoryview(bytearray(_HEAD + CHUNK))
        self._room, self._out = room, room[:0]  # the frame that is being sent
        self._small = memoryview(bytearray(CHUNK))  # for what are no bytes of DATA
        self._head = bytearray()
        self._kind, self._rest = Frame.TICK, 0  # of the frame that is coming
        self._body = bytearray()
        self._unpacked = _NOTHING  # what of a packed frame was not taken yet
        self._size = 0  # of all that came
        self._said = self._heard = time.monotonic()
        self._aside = False  # something came ahead
        self.ended = False  # the other side has

    def fileno(self) -> int:
        return self._link.fileno()

    def interrupt(self) -> None:
        self._link.interrupt()

    # -- out

    @property
    def sending(self) -> bool:
        return bool(self._out)

    @property
    def room(self) -> memoryview:
        """Where the bytes of the next frame are put, when none is being sent."""
        return self._room[_HEAD:]

    def frame(self, kind: Frame, length: int = 0) -> None:
        self._room[:_HEAD] = frame_head(kind, length)
        self._out = self._room[: _HEAD + length]

    def flush(self) -> bool:
        """Whether something went."""
        if not self._out:
            return False
        count = self._link.try_send(self._out)
        self._out = self._out[count:]
        if count:
            self._said = time.monotonic()
        return count > 0

    def tick(self) -> bool:
        """Now and then. LinkLost: nothing has been heard for too long. True: something came ahead,
        and there may be more at once."""
        self._aside = False
        self.read(_NOTHING)
        now = time.monotonic()
        if not self._out and now - self._said > TICK:
            self.frame(Frame.TICK)
        self.flush()
        if now - self._heard > SILENCE:
            raise LinkLost(f"nothing from the other agent for {SILENCE:.0f} s")
        return self._aside

    def deaf(self) -> None:
        """It is not listened to just now, so its silence says nothing."""
        self._heard = time.monotonic()

    # -- in

    def read(self, view: memoryview) -> int:
        """How many bytes came; 0: none now or, if it has ended, ever."""
        while not self.ended:
            if self._kept.due and self._put_aside():
                return 0  # there may be other things to do than to take what comes ahead
            if self._unpacked:
                return self._give(view)
            if self._kind is Frame.DATA and self._rest:
                return self._data(view)
            if not self._other():
                return 0
        return 0

    def _give(self, view: memoryview) -> int:
        if not view:
            return 0
        count = self._move(view)
        self._took(view[:count])
        return count

    def _move(self, view: memoryview) -> int:
        count = min(len(view), len(self._unpacked))
        view[:count] = self._unpacked[:count]
        self._unpacked = self._unpacked[count:]
        return count

    def _put_aside(self) -> bool:
        """What came of what is due ahead. False: none, and a frame is to be read first."""
        due, count = self._kept.due, 0
        if self._unpacked:
            count = self._move(due)
        elif self._kind is Frame.DATA and self._rest:
            count = self._read(due)
        else:
            return False
        self._aside = count > 0
        self._kept.came(count)
        return True

    def _took(self, view: memoryview) -> None:
        self._size += len(view)
        if self._tagger is not None:
            self._tagger.update(view)

    def _data(self, view: memoryview) -> int:
        count = self._read(view)
        if count:
            self._took(view[:count])
        return count

    def _read(self, view: memoryview) -> int:
        """A record at a time, but all that there is."""
        wanted, count = min(self._rest, len(view)), 0
        while count < wanted and (more := self._link.try_read(view[count:wanted])):
            count += more
        if count:
            self._heard = time.monotonic()
            self._rest -= count
        return count

    def _other(self) -> bool:
        """A head, or the body of a frame that has no bytes for us, or some of it."""
        wanted = min(self._rest, CHUNK) if self._rest else _HEAD - len(self._head)
        count = self._link.try_read(self._small[:wanted])
        if not count:
            return False
        self._heard = time.monotonic()
        if self._rest:
            self._body += self._small[:count]
            self._rest -= count
        else:
            self._head += self._small[:count]
            if len(self._head) < _HEAD:
                return True
            self._kind, _, self._rest = self._link.parsed(bytes(self._head))
            self._head.clear()
        if self._rest == 0 and self._kind is not Frame.DATA:
            self._whole(bytes(self._body))
            self._body.clear()
        return True

    def _whole(self, body: bytes) -> None:
        if self._kind is Frame.FAILED:
            raise from_json(as_json(body))
        if self._kind is Frame.END:
            if (as_json(body) if body else {}) != last_word(self._size, self._tagger):
                raise Unfit(Fault.CORRUPT, "the session's memory was altered on the way")
            self.ended = True
        elif self._kind is Frame.PACKED:
            self._unpacked = unpacked(body)
        elif self._kind is Frame.AHEAD:
            self._kept.expect(body)
        elif self._kind is Frame.KNOWN:
            self._unpacked = self._kept.take(body)
        elif self._kind is not Frame.TICK:
            raise BadRequest(f"the other agent sent {self._kind.name} out of turn")

    # -- as a stream that a pager asks by (asking.py)

    def send(self, data: bytes | bytearray) -> int:
        self.flush()
        if self._out:
            raise BlockingIOError
        count = min(len(data), CHUNK)
        self.room[:count] = memoryview(data)[:count]
        self.frame(Frame.DATA, count)
        self.flush()
        return count

    def recv_into(self, view: memoryview) -> int:
        self._aside = True
        count = 0
        while self._aside and not count:  # of what came ahead there may be a rest
            self._aside = False
            count = self.read(view)
        if not count and not self.ended:
            raise BlockingIOError
        return count

    def patient(self) -> None:
        self._link.block(SILENCE)

    def finish(self, last: bytes) -> None:
        """Returns when the other side has ended too, and what came was right: Unfit, if not."""
        self._finish_frame()
        self.send(last)
        self._finish_frame()
        self.frame(Frame.END)
        self._finish_frame()
        self.read(_NOTHING)
        if not self.ended:
            raise BadRequest("the other agent sent more than was asked for")

    def _finish_frame(self) -> None:
        while self._out:
            self.flush()
