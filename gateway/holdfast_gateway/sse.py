"""A session's frames as server-sent events. Pure: frames in, bytes out.

    event       id              data (JSON)
    attached                    what the sidecar says of the session and of this client
    snapshot    SEQ@SESSION_ID  seq, columns, rows, first, last, text or base64: reset the terminal
                                at the first part; the id comes with the last
    output      SEQ@SESSION_ID  seq of its first byte, text or base64
    gap                         start, end: these bytes do not come; a snapshot follows
    resize                      seq, columns, rows
    problem                     an error; nothing comes after it
    state, clients, title, ended, moving, …    the session's news, by their kind

An id is where the stream goes on: the position after the last byte of its event, in the stream that
the session's id names. A position alone could be one in the stream of another session of the same
name.

Invariant: the bytes of `output` events, joined, are the session's from where the stream began. Text
is exactly those bytes in UTF-8; what is none comes in base64. Between calls at most three bytes are
held back, of a character that is not whole, and the id does not count them.
"""

from __future__ import annotations

import base64
import codecs
import json
import re
from collections.abc import Iterator
from typing import Any, Final

from holdfast_wire.errors import BadRequest, HoldfastError
from holdfast_wire.frames import Attach, Control, Error, Frame, Gap, Output, Part, Resize, Snapshot

KEEP_ALIVE: Final = b": keep-alive\n\n"
_ID: Final = re.compile(r"([0-9]{1,19})@([A-Za-z0-9.-]{1,128})")
_KIND: Final = re.compile(r"[a-z_]{1,40}")
_OWN: Final = frozenset({"attached", "snapshot", "output", "gap", "resize", "problem"})


def resume_of(last: str | None) -> dict[str, Any] | None:
    """Of an attach, from a client's `Last-Event-ID`."""
    if not last:
        return None
    found = _ID.fullmatch(last)
    if found is None:
        raise BadRequest(
            "the Last-Event-ID is none of this stream",
            "send the 'id' of the last event as it came, or no such header",
        )
    return {"session_id": found[2], "seq": int(found[1])}


def event(kind: str, body: dict[str, Any], mark: str = "") -> bytes:
    told = f"id: {mark}\n" if mark else ""
    return f"{told}event: {kind}\ndata: {json.dumps(body, ensure_ascii=False)}\n\n".encode(
        errors="replace"
    )


def problem(error: HoldfastError) -> bytes:
    return event("problem", {"error": error.to_json()})


class Events:
    def __init__(self) -> None:
        self._id = ""
        self._seq: int | None = None
        """After the last byte that was told of."""
        self._held = b""
        self._ends_at: int | None = None

    @property
    def finished(self) -> bool:
        """Everything the session has printed, and ever will, was told."""
        return self._ends_at is not None and self._seq is not None and self._seq >= self._ends_at

    def resume(self) -> dict[str, Any] | None:
        """Where to go on with another sidecar. What was held back comes again."""
        self._held = b""
        return None if self._seq is None else {"session_id": self._id, "seq": self._seq}

    def feed(self, frame: Frame) -> Iterator[bytes]:
        match frame:
            case Output(seq, data):
                yield from self._output(seq, data)
                return
            case Attach(body):
                yield event("attached", body)
                yield from self._attached(body)
                return
            case Error():
                raise frame.exception()
        yield from self._flush()
        match frame:
            case Snapshot():
                yield self._snapshot(frame)
            case Gap(start, end):
                yield event("gap", {"start": start, "end": end})
            case Resize(seq, columns, rows):
                yield event("resize", {"seq": seq, "columns": columns, "rows": rows})
            case Control(body):
                yield from self._news(body)

    def _attached(self, body: dict[str, Any]) -> Iterator[bytes]:
        self._id, self._held = str(body.get("session_id")), b""
        self._seq = int(body["seq"]) if body.get("resumed") else None
        match body:  # who comes after the end hears of it too
            case {"exit": dict(how), "head": int(head)}:
                yield from self._news({"kind": "ended", "exit": how, "seq": head})

    def _output(self, seq: int, data: bytes) -> Iterator[bytes]:
        seq, data = seq - len(self._held), self._held + data
        body, self._held = said(data)
        told = len(data) - len(self._held)
        if told:
            self._seq = seq + told
            yield event("output", {"seq": seq, **body}, self._mark())

    def _flush(self) -> Iterator[bytes]:
        """What is half a character stays one, if something else comes first."""
        if self._held and self._seq is not None:
            held, self._held, seq = self._held, b"", self._seq
            self._seq += len(held)
            yield event("output", {"seq": seq, **_encoded(held)}, self._mark())

    def _snapshot(self, frame: Snapshot) -> bytes:
        last = bool(frame.part & Part.LAST)
        body, rest = said(frame.data)
        if rest:  # its parts are cut anywhere, and each is told of by itself
            body = _encoded(frame.data)
        if last:
            self._seq = frame.seq
        where = {"seq": frame.seq, "columns": frame.columns, "rows": frame.rows}
        first = bool(frame.part & Part.FIRST)
        told = {**where, "first": first, "last": last, **body}
        return event("snapshot", told, self._mark() if last else "")

    def _news(self, body: dict[str, Any]) -> Iterator[bytes]:
        kind = str(body.get("kind"))
        if kind == "ended" and isinstance(body.get("seq"), int):
            self._ends_at = body["seq"]
        if _KIND.fullmatch(kind) and kind not in _OWN:
            yield event(kind, body)

    def _mark(self) -> str:
        return f"{self._seq}@{self._id}"


def said(data: bytes) -> tuple[dict[str, str], bytes]:
    """As text, and the rest that is not a whole character yet; or all of it in base64."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        return {"text": decoder.decode(data)}, decoder.getstate()[0]
    except UnicodeDecodeError:
        return _encoded(data), b""


def _encoded(data: bytes) -> dict[str, str]:
    return {"base64": base64.b64encode(data).decode()}
