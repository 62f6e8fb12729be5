"""Who may write, and whose window the session has. Pure.

Invariants
- At most one actor holds the turn. Nobody holds it only while no writer of any actor is here.
- The lead is one of the holder's own writing clients, or nobody. The session has the lead's size.
- A viewer never writes and never resizes.
- Who asks for the turn does not have it, and may write. To ask changes nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

from holdfast_wire.errors import BadRequest, Busy, Forbidden, NoTurn
from holdfast_wire.ids import Actor, ClientId, display

# Who asks without being attached cannot be seen to leave.
_MOST_ASKING: Final = 16


class Mode(StrEnum):
    WRITE = "write"
    VIEW = "view"

    @classmethod
    def parse(cls, text: object) -> Mode:
        try:
            return cls(str(text))
        except ValueError:
            raise BadRequest(f"{text!r} is not a mode", "use 'write' or 'view'") from None


@dataclass(frozen=True, slots=True)
class Participant:
    client: ClientId
    actor: Actor
    modality: str
    mode: Mode
    columns: int
    rows: int
    since: float


class Turn:
    def __init__(self) -> None:
        self.holder: Actor | None = None
        self.lead: ClientId | None = None
        self._here: dict[ClientId, Participant] = {}
        self._typed: dict[ClientId, int] = {}
        self._clock = 0
        self._asking: dict[Actor, ClientId | None] = {}

    def who(self, me: ClientId | None = None, most: int | None = None) -> dict[str, Any]:
        """As clients are told it. Of more than `most` those who matter to who asks, and how many
        more there are."""
        here = self.participants
        if most is not None and len(here) > most:
            here.sort(key=lambda p: (p.client not in (self.lead, me), p.mode is Mode.VIEW))
        told = [
            {
                "client": p.client,
                **p.actor.shown(),
                "modality": p.modality,
                "mode": p.mode.value,
                "lead": p.client == self.lead,
                "columns": p.columns,
                "rows": p.rows,
                "since": p.since,
            }
            for p in here[:most]
        ]
        more = len(here) - len(told)
        others = {"more": more} if more else {}
        return {"clients": told, **others, **self.facts()}

    def facts(self) -> dict[str, Any]:
        """Whose it is, and who would like to have it."""
        holder = self.holder
        return {
            "holder": holder.name if holder else None,
            "holder_uid": holder.uid if holder else "",
            "holder_shown": str(holder) if holder else "",
            "lead": self.lead,
            "asking": [actor.shown() for actor in self.asking],
        }

    def named(self, name: str, uid: str | None) -> Actor:
        """Who is meant, of those who ask or write; without a UID the only one of that name."""
        here = dict.fromkeys([*self.asking, *(p.actor for p in self._writers())])
        found = [one for one in here if one.name == name and uid in (None, one.uid)]
        if len(found) > 1:
            raise BadRequest(f"there are {len(found)} called {display(name)}", "say 'to_uid' too")
        return found[0] if found else Actor(name, uid or "")

    @property
    def participants(self) -> list[Participant]:
        return list(self._here.values())

    @property
    def asking(self) -> list[Actor]:
        """Who would like to have it, the first to ask first. Who left does not any more."""
        asked = self._asking.items()
        return [a for a, by in asked if a != self.holder and (by is None or by in self._here)]

    def size(self) -> tuple[int, int] | None:
        """The lead's window; None if there is no lead, and the session stays as it is."""
        if self.lead is None:
            return None
        lead = self._here[self.lead]
        return lead.columns, lead.rows

    def join(self, participant: Participant) -> None:
        self._here[participant.client] = participant
        if participant.mode is Mode.WRITE and self.holder in (None, participant.actor):
            self.holder = participant.actor
            self.lead = self.lead or participant.client

    def leave(self, client: ClientId) -> None:
        """The turn stays with its holder while one of its writers is here, and else passes on."""
        gone = self._here.pop(client, None)
        self._typed.pop(client, None)
        if gone is None or gone.mode is Mode.VIEW or gone.actor != self.holder:
            return
        writers = self._writers()
        mine = [p for p in writers if p.actor == self.holder]
        mine.sort(key=lambda p: self._typed.get(p.client, 0))
        heirs = mine[-1:] or writers[:1]
        self.holder = heirs[0].actor if heirs else None
        if client == self.lead or not mine:
            self.lead = heirs[0].client if heirs else None

    def lapse(self) -> None:
        """Passes the turn on if none of its holder's writers is here."""
        writers = self._writers()
        if not any(p.actor == self.holder for p in writers):
            self.holder = writers[0].actor if writers else None
            self.lead = writers[0].client if writers else None

    def _writers(self) -> list[Participant]:
        return [p for p in self._here.values() if p.mode is Mode.WRITE]

    def window(self, client: ClientId, columns: int, rows: int) -> None:
        self._here[client] = replace(self._here[client], columns=columns, rows=rows)

    def check_write(self, actor: Actor, client: ClientId | None) -> None:
        """Raises unless this actor, through this client if it is attached, may write now."""
        self.check_writer(client)
        if self.holder not in (None, actor):
            raise NoTurn(f"{self.holder} holds the turn", "ask for it, or take it")

    def check_writer(self, client: ClientId | None) -> None:
        """Raises for a client that only looks on, whoever holds the turn."""
        if client is not None and self._here[client].mode is Mode.VIEW:
            raise Forbidden("this client is a viewer", "attach for writing to type")

    def typed(self, client: ClientId) -> None:
        """The client wrote something a person or program meant: it leads from now on."""
        self._clock += 1
        self._typed[client] = self._clock
        self.holder, self.lead = self._here[client].actor, client

    def ask(self, actor: Actor, client: ClientId | None) -> None:
        """To be given it; where nobody has it, it is his at once."""
        self.check_writer(client)
        if self.holder is None:
            self.take(actor, client)
        elif self.holder != actor:
            self._asking = {a: self._asking[a] for a in self.asking if a != actor}
            if len(self._asking) >= _MOST_ASKING:
                raise Busy("too many ask for the turn already", "take it")
            self._asking[actor] = client

    def release(self, actor: Actor, to: Actor | None = None) -> None:
        """To somebody who asks for it or is here to write; or to who asked first; or to the next
        writer of another actor's; to nobody, if no writer is here at all. Only its holder gives it
        away."""
        if self.holder != actor:
            raise NoTurn(f"{self.holder or 'nobody'} holds the turn", "there is nothing to give")
        writers = self._writers()
        asking = self.asking
        if to is not None and to not in (actor, *asking, *(p.actor for p in writers)):
            raise BadRequest(f"{to} neither asks for the turn nor is here to write", "see who is")
        heirs = [p for p in writers if p.actor != actor]
        if to is not None or asking:
            self.take(to or asking[0], None)
        elif heirs:
            self.holder, self.lead = heirs[0].actor, heirs[0].client
        elif not writers:
            self.holder = self.lead = None

    def take(self, actor: Actor, client: ClientId | None) -> None:
        if client is not None and self._here[client].mode is Mode.VIEW:
            raise Forbidden("this client is a viewer", "attach for writing to take the turn")
        self.holder = actor
        self._asking.pop(actor, None)
        mine = [p.client for p in self._writers() if p.actor == actor]
        self.lead = client or (mine[0] if mine else None)
