"""The order of a stream, kept through connections that break. Pure: frames in, items out.

Invariant: joined by their seq, `Output`s have no gap but those that a `Gap` names, and no byte
twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from holdfast.results import News
from holdfast_wire.errors import Ended, Internal
from holdfast_wire.frames import (
    Attach,
    Control,
    Error,
    Frame,
    Gap,
    Output,
    Part,
    Resize,
    Snapshot,
)
from holdfast_wire.ids import session_of

if TYPE_CHECKING:
    from holdfast.sdk import Item

# A viewer's window matters to nobody; but there must be one.
_SIZE: Final = (80, 24)
_LAST_SEQ_REQUEST: Final = 1


class Stream:
    def __init__(self, session_id: str, from_seq: int | None) -> None:
        self.over = False
        self._session_id = session_id
        self._seq = from_seq
        self._parts: list[Snapshot] = []
        self._exit: dict[str, Any] | None = None
        self._last_seq: int | None = None

    def attach(self, sender: dict[str, str]) -> Attach:
        """For a new connection: from where the last one broke."""
        columns, rows = _SIZE
        body: dict[str, Any] = {"mode": "view", "columns": columns, "rows": rows, **sender}
        self._parts.clear()
        if self._session_id and self._seq is not None:
            body["resume"] = {"session_id": self._session_id, "seq": self._seq}
        return Attach(body)

    def received(self, frame: Frame) -> tuple[list[Item], Frame | None]:
        """What that gives, and what is to be answered."""
        match frame:
            case Attach(body):
                return self._attached(body)
            case Output(seq, data):
                return self._output(seq, data), None
            case Snapshot():
                return self._snapshot(frame), None
            case Gap(_, end):
                self._seq = end
                return [frame], None
            case Resize():
                return [frame], None
            case Control(body):
                return self._news(body)
            case Error(0):
                raise frame.exception()
        return [], None

    def _attached(self, body: dict[str, Any]) -> tuple[list[Item], Frame | None]:
        found, known = str(body.get("session_id", "")), self._session_id
        if known and session_of(found) != session_of(known):
            raise Ended("the session has ended; its name is now another session's")
        self._session_id = found
        items: list[Item] = []
        if known and found != known:
            self._seq = None
            items.append(News("restarted", body))
        elif not body.get("resumed"):
            self._seq = None  # a snapshot follows, and before it a gap if something is missing
        state = body.get("state")
        if isinstance(state, dict) and state.get("activity") == "ended":
            return items, self._ending(state)
        return items, None

    def _output(self, seq: int, data: bytes) -> list[Item]:
        expected = seq if self._seq is None else self._seq
        if seq > expected:
            raise Internal(f"the stream went on at {seq} where {expected} was next")
        data = data[expected - seq :]
        self._seq = expected + len(data)
        items: list[Item] = [Output(expected, data)] if data else []
        return items + self._end_if_complete()

    def _snapshot(self, frame: Snapshot) -> list[Item]:
        if frame.part & Part.FIRST:
            self._parts.clear()
        self._parts.append(frame)
        if not frame.part & Part.LAST:
            return []
        data = b"".join(part.data for part in self._parts)
        self._parts.clear()
        self._seq = frame.seq
        whole = Snapshot(frame.seq, frame.columns, frame.rows, Part.FIRST | Part.LAST, data)
        return [whole, *self._end_if_complete()]

    def _news(self, body: dict[str, Any]) -> tuple[list[Item], Frame | None]:
        match body:
            case {"kind": "ended"} | {"kind": "state", "activity": "ended"}:
                return [], self._ending(body)
            case {"kind": "answer", "id": number, "result": dict(result)}:
                if number == _LAST_SEQ_REQUEST:
                    self._last_seq = int(result.get("seq", 0))
                return self._end_if_complete(), None
            case {"kind": str(kind)}:
                return [News(kind, body)], None
        return [], None

    def _ending(self, body: dict[str, Any]) -> Frame | None:
        """It is over, but news overtakes output: ask how much of it there is."""
        first = self._exit is None
        self._exit = body.get("exit") or self._exit or {}
        return Control({"kind": "info", "id": _LAST_SEQ_REQUEST}) if first else None

    def _end_if_complete(self) -> list[Item]:
        if self._last_seq is None or self._seq is None or self._seq < self._last_seq:
            return []
        self.over = True
        return [News("ended", {"kind": "ended", "exit": self._exit})]
