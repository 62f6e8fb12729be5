"""What a session answers, as typed values. Pure.

Each is read leniently: a newer session may say more, an older one less. `raw` is all it said.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

Raw = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Exit:
    """How a command ended: by a code, or by a signal."""

    code: int | None
    signal: int | None

    @classmethod
    def of(cls, raw: object) -> Self | None:
        if not isinstance(raw, dict):
            return None
        return cls(_number(raw, "code"), _number(raw, "signal"))


@dataclass(frozen=True, slots=True)
class State:
    """What the session is doing, from what the kernel knows."""

    activity: str
    """`running`, `prompt`, `reading`, `password`, `frozen` or `ended`."""
    sentence: str
    pid: int | None
    """Of the process it is about."""
    process: str
    exit: Exit | None
    raw: Raw = field(repr=False)

    @property
    def waiting(self) -> bool:
        """Whether it waits for somebody to type."""
        return self.activity in ("prompt", "reading", "password")

    @classmethod
    def of(cls, raw: Raw) -> Self:
        process = raw.get("process")
        named = process if isinstance(process, dict) else {}
        return cls(
            _text(raw, "activity"), _text(raw, "sentence"), _number(named, "pid"),
            _text(named, "name"), Exit.of(raw.get("exit")), raw,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Screen:
    """The text on the screen at `seq`, a position in the output."""

    seq: int
    columns: int
    rows: int
    text: str
    cursor: tuple[int, int]
    """Column and row, from 0."""
    title: str
    alternate: bool
    """Whether it is the alternate screen: an editor, a pager."""
    truncated: bool
    raw: Raw = field(repr=False)

    @property
    def lines(self) -> list[str]:
        return self.text.split("\n")

    @classmethod
    def of(cls, raw: Raw) -> Self:
        at = raw.get("cursor")
        cursor = at if isinstance(at, dict) else {}
        return cls(
            _number(raw, "seq") or 0, _number(raw, "columns") or 0, _number(raw, "rows") or 0,
            _text(raw, "text"), (_number(cursor, "column") or 0, _number(cursor, "row") or 0),
            _text(raw, "title"), raw.get("alternate") is True, raw.get("truncated") is True, raw,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Port:
    """A port that a process listens on."""

    port: int
    address: str
    protocol: str
    pid: int
    process: str
    since: float
    """When that process began, in seconds since 1970."""

    @classmethod
    def of(cls, raw: Raw) -> Self:
        since = raw.get("since")
        return cls(
            _number(raw, "port") or 0, _text(raw, "address"), _text(raw, "protocol"),
            _number(raw, "pid") or 0, _text(raw, "name"),
            float(since) if isinstance(since, int | float) else 0.0,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Process:
    pid: int
    parent: int
    name: str
    command: tuple[str, ...]
    state: str
    cwd: str
    foreground: bool
    """Whether it has the terminal."""
    raw: Raw = field(repr=False)

    @classmethod
    def of(cls, raw: Raw, foreground: object) -> Self:
        return cls(
            _number(raw, "pid") or 0, _number(raw, "ppid") or 0, _text(raw, "name"),
            tuple(str(word) for word in raw.get("command") or ()), _text(raw, "state"),
            _text(raw, "cwd"), foreground is not None and raw.get("pgid") == foreground, raw,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Graph:
    """The session's processes, where they listen and whether one waits for an answer, from the
    kernel and in one look."""

    processes: tuple[Process, ...]
    ports: tuple[Port, ...]
    state: State
    raw: Raw = field(repr=False)

    @classmethod
    def of(cls, raw: Raw) -> Self:
        front, state = raw.get("foreground_pgid"), raw.get("state")
        return cls(
            tuple(Process.of(one, front) for one in _objects(raw, "processes")),
            tuple(Port.of(one) for one in _objects(raw, "ports")),
            State.of(state if isinstance(state, dict) else {}),
            raw,
        )


@dataclass(frozen=True, slots=True)
class Record:
    """One line of the journal: who did what, when. What was typed is not in it."""

    time: float
    kind: str
    actor: str
    modality: str
    raw: Raw = field(repr=False)

    @classmethod
    def of(cls, raw: Raw) -> Self:
        when = raw.get("time")
        moment = float(when) if isinstance(when, int | float) else 0.0
        return cls(moment, _text(raw, "kind"), _text(raw, "actor"), _text(raw, "modality"), raw)


@dataclass(frozen=True, slots=True)
class Sent:
    order: int
    """Its place among all the session's inputs."""
    duplicate: bool
    """Typed before, under the same key, and not again."""

    @classmethod
    def of(cls, raw: Raw) -> Self:
        return cls(_number(raw, "order") or 0, raw.get("duplicate") is True)


@dataclass(frozen=True, slots=True)
class Executed:
    exit_code: int | None
    """None if it is not known: it was interrupted, or is no command of a shell."""
    output: str
    truncated: bool
    duplicate: bool
    raw: Raw = field(repr=False)

    @classmethod
    def of(cls, raw: Raw) -> Self:
        return cls(
            _number(raw, "exit_code"), _text(raw, "output"), raw.get("truncated") is True,
            raw.get("duplicate") is True, raw,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class JobState:
    """A command that runs, or ran, beside the terminal."""

    id: str
    state: str
    actor: str
    title: str
    pid: int | None
    exit: Exit | None
    error: str
    raw: Raw = field(repr=False)

    @classmethod
    def of(cls, raw: Raw) -> Self:
        return cls(
            _text(raw, "id"), _text(raw, "state"), _text(raw, "actor"), _text(raw, "title"),
            _number(raw, "pid"), Exit.of(raw.get("exit")), _text(raw, "error"), raw,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class SessionInfo:
    name: str
    namespace: str
    """Empty on this machine."""
    activity: str
    command: tuple[str, ...]
    holder: str
    """Who holds the turn: the right to type."""
    clients: int
    session_id: str
    raw: Raw = field(repr=False)

    @classmethod
    def of(cls, raw: Raw) -> Self:
        state, clients = raw.get("state"), raw.get("clients")
        activity = state.get("activity") if isinstance(state, dict) else raw.get("activity")
        return cls(
            _text(raw, "session") or _text(raw, "name"), _text(raw, "namespace"),
            str(activity or raw.get("phase") or ""),
            tuple(str(word) for word in raw.get("command") or ()),
            _text(raw, "holder") or _text(raw, "turn"),
            len(clients) if isinstance(clients, list) else clients or 0,
            _text(raw, "session_id"), raw,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class News:
    """Something that happened beside the output: `state`, `clients`, `title`, `moving`, `saving`,
    `stayed`, `waiting`, `ended`, or `restarted`: the host was lost, and the session began anew."""

    kind: str
    body: Raw


def _objects(raw: Raw, name: str) -> list[Raw]:
    found = raw.get(name)
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def _text(raw: Raw, name: str) -> str:
    value = raw.get(name)
    return value if isinstance(value, str) else ""


def _number(raw: Raw, name: str) -> int | None:
    value = raw.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
