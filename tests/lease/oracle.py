"""Judges a run in true time, which no actor can see.

An incarnation *runs* from the moment its processes may execute until the last of them is stopped,
and what it did is *in effect* for `in_flight` longer. No two incarnations may be in effect at
once, no epoch may be run by two incarnations, and none may run once a later one has.

One case cannot be kept by any lease, and is judged otherwise. While a whole node is paused nothing
on it runs, and nothing on it can freeze anything either. When it goes on after its deadline, hold
is overdue and freezes first of all; but until the last process is stopped, up to `freeze_takes`,
some of them execute beside the next incarnation. Such an incarnation is called *woken* here. Its
overlap is not counted as a violation. What it sends must be refused instead: whatever accepts an
incarnation's bytes (the gateway, the checkpoint store) keeps the highest epoch it has seen and
drops what is below. The oracle has one such gate and counts bytes accepted from a woken
incarnation after a later epoch's first: that must be none. The excuse is narrow: only the older of
two incarnations has it, only if its deadline had passed when its node went on, and only until it
is frozen once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

ALMOST: Final = 1e-6  # rounding, not time: at the exact bound runs touch


@dataclass(slots=True, eq=False)
class Life:
    """What the oracle knows of one incarnation."""

    epoch: int
    identity: str
    running: bool = False
    in_effect_until: float = -1.0
    woken: bool = False
    handed_over: bool = False  # it stopped to go on elsewhere: what it did is that one's own past


@dataclass(slots=True)
class Gate:
    """What accepts an incarnation's bytes."""

    checks: bool = True
    highest: int = 0

    def accepts(self, epoch: int) -> bool:
        if self.checks and epoch < self.highest:
            return False
        self.highest = max(self.highest, epoch)
        return True


@dataclass(slots=True)
class Oracle:
    in_flight: float
    gate: Gate = field(default_factory=Gate)
    violation: str = ""
    closest: float = 1e9  # seconds between one incarnation's last effect and the next one's start
    refused: int = 0  # times that a woken incarnation's bytes met the gate after a later one's
    freezes: int = 0
    lives: list[Life] = field(default_factory=list)

    def runs(self, life: Life, now: float, woken: bool = False) -> None:
        if life not in self.lives:
            self.lives.append(life)
        life.running, life.woken, life.handed_over = True, woken, False
        self.gate.accepts(life.epoch)
        for other in self.lives:
            if other is not life:
                self._compare(life, other, now)

    def _compare(self, life: Life, other: Life, now: float) -> None:
        older, newer = (life, other) if life.epoch < other.epoch else (other, life)
        if older.epoch == newer.epoch:
            self._say(f"epoch {life.epoch} is run by {other.identity} and by {life.identity}")
        elif other.running or (not other.handed_over and other.in_effect_until > now + ALMOST):
            if not older.woken:
                late = "runs" if other.running else "is in effect"
                self._say(f"epoch {life.epoch} runs while epoch {other.epoch} {late}")
        elif older is life and not life.woken:
            self._say(f"epoch {life.epoch} runs again after epoch {other.epoch}")
        elif newer is life and not older.woken:
            self.closest = min(self.closest, now - other.in_effect_until)
        if older.running and older.woken:
            if self.gate.accepts(older.epoch):
                self._say(f"bytes of epoch {older.epoch} accepted after those of {newer.epoch}")
            self.refused += 1

    def stops(self, life: Life, now: float) -> None:
        life.running, life.in_effect_until = False, now + self.in_flight

    def _say(self, violation: str) -> None:
        self.violation = self.violation or violation
