"""Who may write, and whose window the session has. Pure.

Invariants
- At most one actor holds the turn. Nobody holds it only while no writer of any actor is here.
- The lead is one of the holder's own writing clients, or nobody. The session has the lead's size.
- A viewer never writes and never resizes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from holdfast_wire.errors import BadRequest, Forbidden, NoTurn
from holdfast_wire.ids import Actor, ClientId


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

    @property
    def participants(self) -> list[Participant]:
        return list(self._here.values())

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

    def release(self, actor: Actor) -> None:
        """To the next writer of another actor's, if there is one; to nobody, if no writer is here
        at all. Only its holder gives it away."""
        if self.holder != actor:
            raise NoTurn(f"{self.holder or 'nobody'} holds the turn", "there is nothing to give")
        writers = self._writers()
        heirs = [p for p in writers if p.actor != actor]
        if heirs:
            self.holder, self.lead = heirs[0].actor, heirs[0].client
        elif not writers:
            self.holder = self.lead = None

    def take(self, actor: Actor, client: ClientId | None) -> None:
        if client is not None and self._here[client].mode is Mode.VIEW:
            raise Forbidden("this client is a viewer", "attach for writing to take the turn")
        self.holder = actor
        mine = [p.client for p in self._writers() if p.actor == actor]
        self.lead = client or (mine[0] if mine else None)
