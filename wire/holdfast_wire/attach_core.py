"""One attachment, as a state machine without I/O: what happened goes in, what to do comes out.

    AWAY ──connected──► ASKING ──attach answered──► LIVE ──ended, detached, refused──► OVER
      ▲                    │                          │
      └────────lost────────┴───────────lost───────────┘

Invariants:
- every byte the session printed is shown once, or a gap was counted and a snapshot shown;
- every byte typed is applied once: an input stays in `_unacked` until the session acknowledges or
  refuses it, and goes out again, with the same number and key, on every new connection;
- what we draw of our own (the bottom line) is taken back before the next byte of the session.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Any, Final, NamedTuple

from holdfast_wire import sequences
from holdfast_wire.detach import HOLD_SECONDS, DetachScanner
from holdfast_wire.errors import Ended, HoldfastError, Retry, Unauthenticated
from holdfast_wire.exits import describe_exit
from holdfast_wire.frames import (
    Ack,
    Attach,
    Control,
    Error,
    Frame,
    Gap,
    Input,
    Output,
    Part,
    Resize,
    Snapshot,
)
from holdfast_wire.ids import Actor, session_of
from holdfast_wire.keys import Key, spell
from holdfast_wire.overlay import Asked, Overlay
from holdfast_wire.plain import plain

# Typed or pasted, and not yet acknowledged. Beyond it we stop reading the keyboard.
MAX_UNACKED: Final = 1 << 20
# A sidecar that restarts is back before most people notice; do not flicker for it.
QUIET_SECONDS: Final = 1.5
_BACKOFF: Final = (0.05, 2.0)
# What a session says it does when it takes no input; one that moves goes, and is found elsewhere.
_BUSY: Final = {"moving": "is moving to another node", "saving": "is being stored"}
# Above every number an input gets, and every number of the overlay's.
_LAST_SEQ_REQUEST: Final = 1 << 50
_CTRL_C: Final = Key(ord("c"), ctrl=True)


class Phase(Enum):
    AWAY = auto()
    ASKING = auto()
    LIVE = auto()
    OVER = auto()


_CUT_OFF: Final = (Phase.AWAY, Phase.ASKING)
_TRANSITIONS: Final = {
    Phase.AWAY: {Phase.ASKING, Phase.OVER},
    Phase.ASKING: {Phase.LIVE, Phase.AWAY, Phase.OVER},
    Phase.LIVE: {Phase.AWAY, Phase.OVER},
    Phase.OVER: set[Phase](),
}


class Settings(NamedTuple):
    name: str
    view: bool
    keys: tuple[Key, ...]
    nonce: str
    """Random, so that the idempotency keys of two clients never meet."""
    again: str
    """What to type to come back."""
    modality: str = "cli"
    actor: Actor | None = None
    """Who we are; None for whoever the kernel says."""


class Send(NamedTuple):
    frame: Frame


class Show(NamedTuple):
    data: bytes


class Connect(NamedTuple):
    """Try to reach the session, then tell `connected`, `lost` or `gone`; not said again before."""


class Disconnect(NamedTuple):
    """Close the connection; `lost` is not to be told."""


class Leave(NamedTuple):
    code: int
    message: str
    error: HoldfastError | None = None


Action = Send | Show | Connect | Disconnect | Leave


class AttachCore:
    def __init__(self, settings: Settings, size: tuple[int, int]) -> None:
        self.phase = Phase.AWAY
        self.gaps = 0
        self.bytes_missed = 0
        self.reconnects = 0
        self._settings = settings
        self._scanner = DetachScanner(settings.keys)
        # A viewer's ctrl-c reaches nobody, so it may as well mean what its user wants.
        self._ctrl_c = DetachScanner((_CTRL_C,))
        self._overlay = Overlay()
        self._client, self._asked = "", Asked()
        self._size = size
        self._session_size = size
        self._session_id = ""
        self._seq: int | None = None
        self._tail = b""
        self._number = 0
        self._unacked: dict[int, Input] = {}
        self._unacked_bytes = 0
        self._attempts = 0
        self._connecting = False
        self._retry_at = 0.0
        self._away_since = 0.0
        self._busy, self._busy_since = "", 0.0
        self._reason = ""
        self._exit: dict[str, Any] | None = None
        self._last_seq: int | None = None

    # -- what the I/O side asks

    @property
    def wants_input(self) -> bool:
        return self._unacked_bytes < MAX_UNACKED

    @property
    def unacked(self) -> int:
        return len(self._unacked)

    def wakeup(self) -> float | None:
        """When `tick` is next of use, on the clock of `now`."""
        times: list[float | None] = []
        if self.phase is Phase.LIVE:
            times += [self._overlay.wakeup()]
        if self.phase is Phase.AWAY and not self._connecting:
            times += [self._retry_at]
        if self._overlay.hidden:
            times += [self._notice_at()]
        if self._scanner.holding:
            times += [self._scanner.held_since + HOLD_SECONDS]
        return min((moment for moment in times if moment is not None), default=None)

    def _notice_at(self) -> float | None:
        """When it is time to say why nothing happens."""
        if self._busy:
            return self._busy_since + QUIET_SECONDS
        return self._away_since + QUIET_SECONDS if self.phase in _CUT_OFF else None

    # -- the connection

    def start(self, now: float) -> list[Action]:
        self._away_since, self._connecting = now, True
        return [Show(sequences.make_room(self._size[1])), Connect()]

    def connected(self) -> list[Action]:
        self._enter(Phase.ASKING)
        self._connecting = False
        columns, rows = self._size
        body: dict[str, Any] = {
            "mode": "view" if self._settings.view else "write",
            "columns": columns,
            "rows": rows,
            "modality": self._settings.modality,
        }
        if self._settings.actor is not None:
            body |= self._settings.actor.to_json()
        if self._session_id and self._seq is not None:
            body["resume"] = {"session_id": self._session_id, "seq": self._seq}
        return [Send(Attach(body))]

    def lost(self, now: float, reason: str = "") -> list[Action]:
        """The connection broke, or could not be made."""
        if self.phase is Phase.OVER:
            return []
        self._connecting = False
        if self.phase is not Phase.AWAY:
            if self.phase is Phase.LIVE:
                self._away_since, self._attempts = now, 0
            self._enter(Phase.AWAY)
        first, longest = _BACKOFF
        self._retry_at = now + min(first * 2**self._attempts, longest)
        self._attempts += 1
        return self._waits(reason) or _show(self._overlay.erase())

    def _waits(self, reason: str) -> list[Action]:
        """For what; said at once, if it has been said that we wait."""
        before, self._reason = self._reason, plain(reason)
        return self._say_away() if self._overlay.blind and before != self._reason else []

    def gone(self, error: HoldfastError, exit_status: dict[str, Any] | None) -> list[Action]:
        """There is no session to come back to."""
        if exit_status is not None:
            return self._ended(exit_status)
        return self._leave(error.exit_code, "", error)

    def continued(self, now: float) -> list[Action]:
        """Stopped and continued: others wrote on the terminal. Begin with a fresh picture."""
        self._seq = None
        if self.phase is Phase.AWAY:
            return []
        self._enter(Phase.AWAY)
        self._away_since = self._retry_at = now
        return [Disconnect()]

    # -- the user

    def typed(self, data: bytes, now: float) -> list[Action]:
        typed = self._scanner.feed(data, now)
        actions = self._input(typed.data, now)
        if typed.detach or (self._settings.view and self._ctrl_c.feed(data, now).detach):
            return actions + self.detached()
        return actions

    def detached(self) -> list[Action]:
        name = self._settings.name
        message = f"[detached from {name}; come back with: {self._settings.again}]"
        if self._unacked and self.phase in _CUT_OFF:
            message += f"\n[{self._unacked_bytes} typed bytes were not delivered]"
        return self._leave(0, message)

    def resized(self, columns: int, rows: int) -> list[Action]:
        if (columns, rows) == self._size:
            return []
        self._size = columns, rows
        self._overlay.forget()
        if self.phase is not Phase.LIVE:
            return []
        return [Send(Resize(0, columns, rows))]

    def _input(self, data: bytes, now: float) -> list[Action]:
        if not data or self._settings.view:
            return []
        actions = _show(self._overlay.erase())
        self._number += 1
        frame = Input(self._number, f"{self._settings.nonce}-{self._number}".encode(), data)
        self._unacked[frame.number] = frame
        self._unacked_bytes += len(data)
        if self.phase is Phase.LIVE:
            actions.append(Send(frame))
        return actions

    # -- the session

    def received(self, frame: Frame, now: float) -> list[Action]:
        match frame:
            case Output(seq, data):
                return self._output(seq, data, now)
            case Ack(number):
                self._settled(number)
                return []
            case Snapshot():
                return self._snapshot(frame, now)
            case Attach(body):
                return self._attached(body, now)
            case Gap(start, end):
                self.gaps += 1
                self.bytes_missed += end - start
                return []
            case Resize(_, columns, rows):
                self._session_size = columns, rows
                return _show(sequences.fit(rows, self._size[1]))
            case Control(body):
                return self._news(body, now)
            case Error(ref):
                return self._refused(ref, frame.exception(), now)
        return []

    def tick(self, now: float) -> list[Action]:
        actions = self._input(self._scanner.expire(now), now)
        notice_at = self._notice_at()
        if notice_at is not None and now >= notice_at and self._overlay.hidden:
            actions += self._say_away()
        if self.phase is Phase.AWAY and now >= self._retry_at and not self._connecting:
            self._connecting = True
            actions.append(Connect())
        elif self.phase is Phase.LIVE:
            actions += _show(self._overlay.expire(now))
            if request := self._overlay.request(now):
                actions.append(Send(Control(request)))
        return actions

    def _output(self, seq: int, data: bytes, now: float) -> list[Action]:
        if self._overlay.blind:
            # It would scroll our notice into the session's text. Take a fresh picture instead.
            return self.continued(now)
        expected = self._seq
        if expected is not None and seq < expected:
            data = data[expected - seq :]
            seq = expected
        self._seq = seq + len(data)
        self._tail = (self._tail + data[-sequences.TAIL :])[-sequences.TAIL :]
        actions: list[Action] = [Show(data)]
        if not self._overlay.hidden:
            actions = [*_show(self._overlay.erase()), *actions]
        if self._last_seq is not None:
            actions += self._leave_if_complete()
        return actions

    def _snapshot(self, frame: Snapshot, now: float) -> list[Action]:
        actions: list[Action] = []
        if frame.part & Part.FIRST:
            self._seq = None  # half a snapshot is nothing to resume from
            self._session_size = frame.columns, frame.rows
            self._overlay.forget()
            actions.append(Show(sequences.before_snapshot(frame.rows, self._size[1])))
        actions.append(Show(frame.data))
        if frame.part & Part.LAST:
            # It may end inside a sequence, if that is where the session stands.
            self._seq, self._tail = frame.seq, frame.data[-sequences.TAIL :]
            if self._last_seq is not None:
                actions += self._leave_if_complete()
        return actions

    def _attached(self, body: dict[str, Any], now: float) -> list[Action]:
        session_id = str(body.get("session_id", ""))
        if self._session_id and session_of(session_id) != session_of(self._session_id):
            # Somebody ended it and gave its name away while we were cut off: what was typed for
            # the one must not reach the other.
            name = self._settings.name
            return self._leave(
                Ended.exit_code, f"[session {name} has ended; its name is now another session's]"
            )
        again, anew = bool(self._session_id), session_id != self._session_id
        self._enter(Phase.LIVE)
        self._session_id, self._client = session_id, str(body.get("client", ""))
        self._session_size = _size(body, self._session_size)
        self._attempts, self._reason, self._busy = 0, "", ""
        undelivered = self._forget() if again and anew else 0
        state = body.get("state")
        if isinstance(state, dict) and state.get("activity") == "ended":
            self._exit = state.get("exit") or self._exit or {}
        if self._exit is not None:
            return self._ending(self._exit)
        actions: list[Action] = [Send(frame) for frame in self._unacked.values()]
        if again:
            self.reconnects += 1
            self._overlay.repair(now)
            if undelivered:
                text = f"{undelivered} typed bytes were not delivered: the session began anew"
                self._overlay.want(text, now)
        else:
            self._overlay.want(self._greeting(), now)
        return actions

    def _forget(self) -> int:
        """The host was lost and the session began anew. What was typed into the old incarnation is
        not for the new one; how many bytes that were."""
        forgotten = self._unacked_bytes
        self._seq = None
        self._unacked.clear()
        self._unacked_bytes = 0
        return forgotten

    def _greeting(self) -> str:
        name, keys = self._settings.name, spell(self._settings.keys)
        if self._settings.view:
            keys = f"{keys}, or ctrl-c" if keys else "ctrl-c"
        how = f"detach: {keys}" if keys else "no detach keys"
        greeting = f"{'viewing' if self._settings.view else 'attached to'} {name} · {how}"
        if self._session_size != self._size:
            greeting += " · the session is {}x{}, your window {}x{}".format(
                *self._session_size, *self._size
            )
        return greeting

    def _news(self, body: dict[str, Any], now: float) -> list[Action]:
        match body:
            # The end may fall between our attach and its answer; then only a state tells of it,
            # or the news comes first and the answer does not know of it yet.
            case {"kind": "ended"} | {"kind": "state", "activity": "ended"}:
                self._exit = body.get("exit") or {}
                return self._ending(self._exit) if self.phase is Phase.LIVE else []
            case {"kind": "moving" | "saving" as kind}:
                self._busy, self._busy_since = _BUSY[kind], now
            case {"kind": "progress", "sent": int(sent), "expected": int(expected)}:
                return self._comes_along(sent, expected)
            case {"kind": "clients"}:
                if said := self._asked.heard(body, self._client):
                    give = self._settings.again.replace(" attach ", " release ", 1)
                    hint = f" · give it with: {give}" if give != self._settings.again else ""
                    self._overlay.want(said + hint, now)
            case {"kind": "waiting", "sentence": str(sentence)}:
                return self._waits(sentence)
            case {"kind": "stayed"}:
                self._busy = ""
                self._overlay.repair(now)
            case {"kind": "answer", "result": result}:
                if not isinstance(result, dict):
                    return []
                if body.get("id") == _LAST_SEQ_REQUEST:
                    self._last_seq = int(result.get("seq", 0))
                    return self._leave_if_complete()
                in_step = result.get("seq") == self._seq and sequences.in_ground(self._tail)
                fits = self._size[1] >= self._session_size[1]
                return _show(self._overlay.answered(result, self._size, in_step and fits, now))
        return []

    def _comes_along(self, sent: int, expected: int) -> list[Action]:
        """How much of it; what is expected is a guess, so it is never all."""
        if not self._busy or expected <= 0:
            return []
        share = min(99, 100 * max(0, sent) // expected)
        before, self._busy = self._busy, f"{_BUSY['moving']}, {share} %"
        return self._say_away() if self._overlay.blind and before != self._busy else []

    def _refused(self, ref: int, error: HoldfastError, now: float) -> list[Action]:
        if ref in self._unacked:
            self._settled(ref)
            self._overlay.want(error.message, now)
            return [Show(b"\x07")] if sequences.in_ground(self._tail) else []
        if ref != 0:
            return []  # a picture for our bottom line was refused: then there is none
        if isinstance(error, Retry | Unauthenticated):
            # Also a token that has run out: the next connection has a new one, or is refused.
            return [Disconnect(), *self.lost(now)]
        return self._leave(error.exit_code, "", error)

    def _settled(self, number: int) -> None:
        frame = self._unacked.pop(number, None)
        if frame is not None:
            self._unacked_bytes -= len(frame.data)

    def _say_away(self) -> list[Action]:
        actions: list[Action] = []
        if not sequences.in_ground(self._tail):
            # Cut in the middle of a sequence: ours would end it, and its rest would be printed as
            # text after a resume. Take a fresh picture instead.
            self._seq, self._tail = None, b""
            actions.append(Show(sequences.GROUND))
        columns, rows = self._size
        name = self._settings.name
        waiting = f"connection to {name} lost, reconnecting…"
        if self._busy:
            waiting = f"{name} {self._busy}…"
        elif self._reason:
            waiting = f"reconnecting to {name}…"
        text = waiting if self._session_id else f"waiting for {name}…"
        if keys := spell(self._settings.keys):
            text += f" (detach: {keys})"
        if self._reason:
            text += f" {self._reason}"
        return [*actions, Show(self._overlay.cover(text, columns, rows))]

    # -- the end

    def _ending(self, exit_status: dict[str, Any]) -> list[Action]:
        """The command is over, but news overtakes output: ask how much of it there is."""
        self._exit = exit_status
        return [Send(Control({"kind": "info", "id": _LAST_SEQ_REQUEST}))]

    def _leave_if_complete(self) -> list[Action]:
        if self._last_seq is None or self._seq is None or self._seq < self._last_seq:
            return []
        return self._ended(self._exit or {})

    def _ended(self, exit_status: dict[str, Any]) -> list[Action]:
        words, code = describe_exit(exit_status)
        return self._leave(code, f"[session {self._settings.name} ended: {words}]")

    def _leave(self, code: int, message: str, error: HoldfastError | None = None) -> list[Action]:
        if self.phase is Phase.OVER:
            return []
        actions = _show(self._overlay.erase())
        self._enter(Phase.OVER)
        return [*actions, Leave(code, message, error)]

    def _enter(self, phase: Phase) -> None:
        if phase not in _TRANSITIONS[self.phase]:
            raise AssertionError(f"an attachment cannot go from {self.phase} to {phase}")
        self.phase = phase


def _show(data: bytes) -> list[Action]:
    return [Show(data)] if data else []


def _size(body: dict[str, Any], default: tuple[int, int]) -> tuple[int, int]:
    columns, rows = body.get("columns"), body.get("rows")
    if isinstance(columns, int) and isinstance(rows, int):
        return columns, rows
    return default
