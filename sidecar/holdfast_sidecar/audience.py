"""All who are attached: who is sent what, and when.

Up to `FEW` get every byte at once. Of a crowd only the first does: who leads, or else who has been
here longest. The others take turns, and all they get comes out of one allowance, so that a program
with a hundred viewers prints as fast as with one. While that lasts they get every byte, if a moment
later. Who falls behind is shown the screen as it stands, without its scrollback (a gap and a small
snapshot), and that again at each turn; the whole of it when there is enough to spare again.

Invariants
- What a crowd costs the session is bounded, however many they are.
- Joined by seq, nobody's stream lacks anything but what a gap names; a snapshot follows it.
- Who is here is told to everybody, the newest last; how soon depends on what that costs.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final

from holdfast_sidecar.fanout import Outlet
from holdfast_sidecar.ring import Ring
from holdfast_sidecar.turn import Turn
from holdfast_wire.frames import Control, Gap, Part, Snapshot, encode
from holdfast_wire.ids import ClientId

FEW: Final = 8
# Bytes a second to all of a crowd together: less than a flood sends to one.
RATE: Final = 16 << 20
# What a turn costs beside its bytes: the way to the client is woken for it, from end to end.
_TURN: Final = 16 << 10
# And what a picture does. Most are shown in a flood, when nobody has time for them.
_PICTURE: Final = 64 << 10
# At one turn. Who is further behind is shown a picture instead, if there is a newer one: in a flood
# what interprets it is behind, too.
_MUCH: Final = 256 << 10
# Between turns, when the allowance is used up. Those who have theirs together share a picture.
_TURN_SECONDS: Final = 0.1
# Who were shown less before share the whole; each takes about a megabyte.
_WHOLE_AT_ONCE: Final = 4
# Who is here is told to all who are, whenever one comes or goes: by name, so many of them,
MOST_TOLD: Final = 64
# and no more often than this many bytes a second allow, to all together.
_NEWS_RATE: Final = 4 << 20
# A snapshot's part: whole frames well under the limit.
_PART: Final = 512 << 10

Taken = tuple[int, bytes, tuple[int, int]]
Take = Callable[[int, bool], Awaitable[Taken]]
"""A snapshot not before a seq, with the scrollback or without: its seq, its bytes, its size."""


class Allowance:
    """So much a second, of which a quarter can be saved: enough for all to have what little was
    printed at once. What is begun is finished, and made up for by who comes next."""

    def __init__(self, rate: int, now: float) -> None:
        self._rate, self.most = rate, rate // 4
        self._left, self._at = float(self.most), now

    def left(self, now: float) -> float:
        self._left = min(self.most, self._left + (now - self._at) * self._rate)
        self._at = now
        return self._left

    def spend(self, count: int) -> None:
        self._left -= count


class Picture:
    """A snapshot in frames, made once for all who are shown it."""

    def __init__(self, seq: int, data: bytes, size: tuple[int, int]) -> None:
        self.seq, self._size = seq, size
        self._frames = []
        count = max(1, -(-len(data) // _PART))
        for index in range(count):
            part = (Part.FIRST if index == 0 else 0) | (Part.LAST if index == count - 1 else 0)
            piece = data[index * _PART : (index + 1) * _PART]
            self._frames.append(encode(Snapshot(seq, *size, Part(part), piece)))
        self.length = sum(map(len, self._frames))

    def show(self, outlet: Outlet, lost_from: int | None, *, scant: bool = False) -> None:
        """And then the stream from its seq; a gap first if bytes were lost on the way."""
        lost = lost_from is not None and self.seq > lost_from
        gap = [encode(Gap(lost_from or 0, self.seq))] if lost else []
        outlet.send_bytes(*gap, *self._frames)
        outlet.stream_from(self.seq, self._size, scant=scant)


class Audience:
    def __init__(self, ring: Ring, take: Take, turn: Turn) -> None:
        self._ring, self._take, self._turn = ring, take, turn
        self._loop = asyncio.get_running_loop()
        self._outlets: dict[ClientId, Outlet] = {}
        self._leads: ClientId | None = None
        self._ahead: list[Outlet] = []
        self._crowd: deque[Outlet] = deque()
        """Whose turn is next comes first."""
        self._over = False
        self._allowance = Allowance(RATE, self._loop.time())
        self._next_turns: asyncio.TimerHandle | None = None
        self._pressed = False
        """More is wanted than can be given: nobody has another turn before the next ones."""
        self._showing: asyncio.Task[None] | None = None
        self._words = Allowance(_NEWS_RATE, self._loop.time())
        self._uninformed: dict[ClientId, None] = {}
        self._next_words: asyncio.TimerHandle | None = None

    # -- who is here ------------------------------------------------------------------------------

    def add(self, client: ClientId, outlet: Outlet) -> None:
        self._outlets[client] = outlet
        self._arrange()

    def remove(self, client: ClientId) -> None:
        self._outlets.pop(client, None)
        self._arrange()

    def look_who_leads(self) -> None:
        if self._leads != self._turn.lead:
            self._arrange()

    def release(self) -> None:
        """No more will be printed, so nobody has to wait."""
        self._over = True
        self._arrange()

    def _arrange(self) -> None:
        """Says who takes turns. Who did and does not any more goes on at once."""
        every = list(self._outlets.values())
        self._leads = self._turn.lead
        first = None if self._leads is None else self._outlets.get(self._leads)
        if first is not None:
            every.remove(first)
            every.insert(0, first)
        few = self._over or len(every) <= FEW
        self._ahead = every if few else every[:1]
        crowd = [] if few else every[1:]
        staying, before = set(crowd), set(self._crowd)
        self._crowd = deque(outlet for outlet in self._crowd if outlet in staying)
        self._crowd += [outlet for outlet in crowd if outlet not in before]
        for outlet in crowd:
            outlet.hold_back()
        for outlet in self._ahead:
            outlet.let_go()

    # -- news -------------------------------------------------------------------------------------

    def tell(self, news: dict[str, Any]) -> None:
        frame = encode(Control(news))
        for outlet in list(self._outlets.values()):
            outlet.send_bytes(frame)

    def tell_clients(self) -> None:
        """Who has waited longest for the last news of this hears of it first."""
        self._uninformed |= dict.fromkeys(self._outlets)
        if self._next_words is None:
            self._inform()

    def _inform(self) -> None:
        self._next_words = None
        news = {"kind": "clients", **self._turn.who(most=MOST_TOLD)}
        frame, now = encode(Control(news)), self._loop.time()
        while self._uninformed:
            if self._words.left(now) <= 0:
                self._next_words = self._loop.call_later(_TURN_SECONDS, self._inform)
                return
            client = next(iter(self._uninformed))
            del self._uninformed[client]
            if (outlet := self._outlets.get(client)) is not None:
                outlet.send_bytes(frame)
                self._words.spend(len(frame))

    # -- output -----------------------------------------------------------------------------------

    def publish(self) -> None:
        """More was printed, or the size is another."""
        for outlet in self._ahead.copy():
            outlet.pump()
        if self._crowd and not self._pressed:
            self._turns()

    def _turns(self) -> None:
        """Of those who want something, as long as the allowance lasts."""
        if self._next_turns is not None:
            self._next_turns.cancel()
        now, left, pressed, more = self._loop.time(), 0.0, False, False
        behind, scant = list[Outlet](), list[Outlet]()
        for outlet in tuple(self._crowd):
            left = self._allowance.left(now)
            if left <= 0:
                pressed = True
                break
            self._crowd.rotate(-1)
            if outlet.place is None or outlet.queued:
                more = True  # it has not taken yet what it had last; the others do not mind
            elif outlet.far(_MUCH):
                pressed = True
                if self._showing is None and outlet.behind(0):
                    self._allowance.spend(_PICTURE)
                    behind.append(outlet)
            elif outlet.wants:
                self._allowance.spend(_TURN + outlet.give(_MUCH))
                pressed = pressed or outlet.wants
            elif outlet.scant:
                scant.append(outlet)
        if behind:
            self._show(behind, whole=False)
        elif scant and self._showing is None and left > self._allowance.most // 2:
            self._show(scant[:_WHOLE_AT_ONCE], whole=True)
        self._pressed = pressed
        if pressed or more or scant:
            self._next_turns = self._loop.call_later(_TURN_SECONDS, self._turns)

    def _show(self, outlets: list[Outlet], *, whole: bool) -> None:
        left_at = [outlet.leave() for outlet in outlets]

        async def show() -> None:
            picture = Picture(*await self._take(max(left_at), whole))
            for outlet, place in zip(outlets, left_at, strict=True):
                if whole:
                    self._allowance.spend(picture.length)
                picture.show(outlet, place, scant=not whole)
                if outlet in self._ahead:  # since a moment ago
                    outlet.let_go()

        def shown(task: asyncio.Task[None]) -> None:
            self._showing = None
            if not task.cancelled():
                task.result()

        self._showing = self._loop.create_task(show())
        self._showing.add_done_callback(shown)

    def close(self) -> None:
        for handle in (self._next_turns, self._next_words):
            if handle is not None:
                handle.cancel()
        if self._showing is not None:
            self._showing.cancel()
