"""The turn: its invariants under any sequence of events, and the stories that matter."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from holdfast_sidecar.turn import Mode, Participant, Turn
from holdfast_wire.errors import BadRequest, Busy, Forbidden, NoTurn
from holdfast_wire.ids import Actor, ClientId

ANA, BEN, BOT = Actor("ana"), Actor("ben"), Actor("bot")


def here(
    turn: Turn, client: str, actor: Actor, mode: Mode = Mode.WRITE, size: tuple[int, int] = (80, 24)
) -> ClientId:
    name = ClientId(client)
    turn.join(Participant(name, actor, "cli", mode, *size, 0.0))
    return name


def writes(turn: Turn, actor: Actor, client: ClientId) -> None:
    turn.check_write(actor, client)
    turn.typed(client)


class TurnMachine(RuleBasedStateMachine):
    """Anybody comes, goes, types, takes and resizes in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.turn = Turn()
        self.count = 0

    def some(self, data: st.DataObject) -> Participant:
        return data.draw(st.sampled_from(self.turn.participants))

    @rule(
        actor=st.sampled_from([ANA, BEN, BOT]),
        mode=st.sampled_from(Mode),
        columns=st.integers(2, 300),
    )
    def join(self, actor: Actor, mode: Mode, columns: int) -> None:
        self.count += 1
        before = self.turn.lead, self.turn.holder
        here(self.turn, f"c{self.count}", actor, mode, (columns, 24))
        if before[0] is not None or mode is Mode.VIEW:
            assert (self.turn.lead, self.turn.holder) == before, "coming changes nobody's turn"

    @rule(actor=st.sampled_from([ANA, BEN, BOT]))
    def release(self, actor: Actor) -> None:
        before = self.turn.holder
        if before != actor:
            with pytest.raises(NoTurn):
                self.turn.release(actor)
            assert self.turn.holder == before
            return
        self.turn.release(actor)
        others = [p for p in self.turn.participants if p.mode is Mode.WRITE and p.actor != actor]
        if others:
            assert self.turn.holder != actor, "it goes to somebody else"

    @precondition(lambda self: self.turn.participants)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        who, before = self.some(data), self.turn.lead
        self.turn.leave(who.client)
        assert who not in self.turn.participants
        if before not in (who.client, None):
            assert self.turn.lead == before, "another's going does not change the lead"

    @precondition(lambda self: self.turn.participants)
    @rule(data=st.data())
    def write(self, data: st.DataObject) -> None:
        who, holder = self.some(data), self.turn.holder
        try:
            writes(self.turn, who.actor, who.client)
        except Forbidden:
            assert who.mode is Mode.VIEW
        except NoTurn:
            assert holder not in (None, who.actor)
        else:
            assert (self.turn.lead, self.turn.holder) == (who.client, who.actor)
            assert who.mode is Mode.WRITE
            assert holder in (None, who.actor)

    @precondition(lambda self: self.turn.participants)
    @rule(data=st.data())
    def take(self, data: st.DataObject) -> None:
        who = self.some(data)
        before = self.turn.lead, self.turn.holder
        if who.mode is Mode.VIEW:
            with pytest.raises(Forbidden):
                self.turn.take(who.actor, who.client)
            assert (self.turn.lead, self.turn.holder) == before
        else:
            self.turn.take(who.actor, who.client)
            assert (self.turn.lead, self.turn.holder) == (who.client, who.actor)

    @rule(actor=st.sampled_from([ANA, BEN, BOT]))
    def take_from_outside(self, actor: Actor) -> None:
        self.turn.take(actor, None)
        assert self.turn.holder == actor
        self.turn.check_write(actor, None)

    @rule(actor=st.sampled_from([ANA, BEN, BOT]))
    def ask(self, actor: Actor) -> None:
        before = self.turn.holder, self.turn.lead
        own = [p.client for p in self.turn.participants if (p.actor, p.mode) == (actor, "write")]
        self.turn.ask(actor, own[0] if own else None)
        if before[0] is None:
            assert self.turn.holder == actor
        else:
            assert (self.turn.holder, self.turn.lead) == before, "to ask is not to take"
            assert (actor in self.turn.asking) == (actor != before[0])

    @rule()
    def lapse(self) -> None:
        holder = self.turn.holder
        self.turn.lapse()
        writers = [p.actor for p in self.turn.participants if p.mode is Mode.WRITE]
        if holder in writers:
            assert self.turn.holder == holder
        else:
            assert self.turn.holder == (writers[0] if writers else None)

    @precondition(lambda self: self.turn.participants)
    @rule(data=st.data(), columns=st.integers(2, 300))
    def window(self, data: st.DataObject, columns: int) -> None:
        who, before = self.some(data), self.turn.size()
        self.turn.window(who.client, columns, 50)
        if who.client == self.turn.lead:
            assert self.turn.size() == (columns, 50)
        else:
            assert self.turn.size() == before

    @invariant()
    def somebody_holds_it_while_a_writer_is_here(self) -> None:
        if any(p.mode is Mode.WRITE for p in self.turn.participants):
            assert self.turn.holder is not None

    @invariant()
    def who_has_it_does_not_ask_for_it(self) -> None:
        assert self.turn.holder not in self.turn.asking

    @invariant()
    def the_lead_is_a_writer_of_the_holder(self) -> None:
        mine = [
            p.client
            for p in self.turn.participants
            if p.mode is Mode.WRITE and p.actor == self.turn.holder
        ]
        if mine:
            assert self.turn.lead in mine, "a holder that is here leads"
        else:
            assert self.turn.lead is None
            assert self.turn.size() is None


TestTurn = TurnMachine.TestCase
TestTurn.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_the_first_writer_has_the_turn_and_the_size() -> None:
    turn = Turn()
    here(turn, "v", BEN, Mode.VIEW, (200, 60))
    assert (turn.holder, turn.lead, turn.size()) == (None, None, None)
    lead = here(turn, "a", ANA, size=(100, 30))
    assert (turn.holder, turn.lead, turn.size()) == (ANA, lead, (100, 30))


def test_a_viewer_never_writes_never_takes_and_never_resizes() -> None:
    turn = Turn()
    here(turn, "a", ANA, size=(100, 30))
    viewer = here(turn, "v", ANA, Mode.VIEW, (40, 10))
    with pytest.raises(Forbidden):
        turn.check_write(ANA, viewer)
    with pytest.raises(Forbidden):
        turn.take(ANA, viewer)
    turn.window(viewer, 20, 5)
    assert turn.size() == (100, 30)
    turn.leave(ClientId("a"))
    assert (turn.holder, turn.lead, turn.size()) == (None, None, None)


def test_a_viewer_may_not_write_even_when_nobody_holds_the_turn() -> None:
    turn = Turn()
    viewer = here(turn, "v", ANA, Mode.VIEW)
    with pytest.raises(Forbidden):
        turn.check_write(ANA, viewer)


def test_the_lead_is_where_the_holder_typed_last() -> None:
    turn = Turn()
    desk = here(turn, "desk", ANA, size=(200, 60))
    phone = here(turn, "phone", ANA, size=(40, 20))
    assert turn.lead == desk
    writes(turn, ANA, phone)
    assert (turn.lead, turn.size()) == (phone, (40, 20))
    writes(turn, ANA, desk)
    assert (turn.lead, turn.size()) == (desk, (200, 60))


def test_another_actor_does_not_write_until_it_takes_the_turn() -> None:
    turn = Turn()
    a, b = here(turn, "a", ANA, size=(100, 30)), here(turn, "b", BEN, size=(90, 20))
    with pytest.raises(NoTurn, match="ana"):
        turn.check_write(BEN, b)
    with pytest.raises(NoTurn):
        turn.check_write(BEN, None)
    turn.take(BEN, b)
    assert (turn.holder, turn.lead, turn.size()) == (BEN, b, (90, 20))
    turn.check_write(BEN, b)
    with pytest.raises(NoTurn):
        turn.check_write(ANA, a)


def test_when_the_lead_leaves_the_holders_last_typed_client_leads() -> None:
    turn = Turn()
    one, two, three = (here(turn, name, ANA) for name in ("one", "two", "three"))
    other = here(turn, "other", BEN)
    for client in (two, one, three):
        writes(turn, ANA, client)
    turn.leave(three)
    assert (turn.holder, turn.lead) == (ANA, one)
    turn.leave(one)
    assert (turn.holder, turn.lead) == (ANA, two)
    turn.leave(two)
    assert (turn.holder, turn.lead) == (BEN, other), "then it passes on"
    turn.leave(other)
    assert (turn.holder, turn.lead) == (None, None)


def test_leaving_twice_or_unknown_does_nothing() -> None:
    turn = Turn()
    a = here(turn, "a", ANA)
    turn.leave(ClientId("nobody"))
    assert turn.lead == a
    turn.leave(a)
    turn.leave(a)
    assert turn.participants == []


def test_a_program_that_is_not_attached_takes_the_turn_and_leaves_the_size_alone() -> None:
    turn = Turn()
    a = here(turn, "a", ANA)
    turn.take(BOT, None)
    assert (turn.holder, turn.lead, turn.size()) == (BOT, None, None)
    with pytest.raises(NoTurn):
        turn.check_write(ANA, a)
    bot = here(turn, "bot", BOT, size=(120, 50))
    assert (turn.lead, turn.size()) == (bot, (120, 50))


def test_a_turn_that_is_asked_for_is_given() -> None:
    turn = Turn()
    a, b = here(turn, "a", ANA), here(turn, "b", BEN)
    viewer = here(turn, "v", BEN, Mode.VIEW)
    with pytest.raises(Forbidden):
        turn.ask(BEN, viewer)
    turn.ask(BOT, None)
    turn.ask(BEN, b)
    turn.ask(BOT, None)
    turn.ask(ANA, a)
    assert turn.asking == [BEN, BOT]
    with pytest.raises(BadRequest):
        turn.release(ANA, Actor("cy"))
    turn.release(ANA, BOT)
    assert (turn.holder, turn.lead, turn.asking) == (BOT, None, [BEN])
    turn.leave(b)
    assert turn.asking == []
    b = here(turn, "b", BEN)
    turn.ask(BEN, b)
    turn.release(BOT)
    assert (turn.holder, turn.lead, turn.asking) == (BEN, b, []), "to who asked, not to the next"
    for number in range(16):
        turn.ask(Actor(f"x{number}"), None)
    with pytest.raises(Busy):
        turn.ask(BOT, None)


def test_a_turn_that_is_kept_for_somebody_lapses_unless_he_comes() -> None:
    for comes in (True, False):
        turn = Turn()
        turn.take(ANA, None)
        ben = here(turn, "b", BEN, size=(90, 20))
        assert (turn.holder, turn.size()) == (ANA, None)
        ana = here(turn, "a", ANA) if comes else None
        turn.lapse()
        assert (turn.holder, turn.lead) == ((ANA, ana) if comes else (BEN, ben))


@pytest.mark.parametrize("text", ["WRITE", "", "read", None, 3, ["write"]])
def test_an_unknown_mode_is_refused(text: object) -> None:
    with pytest.raises(BadRequest):
        Mode.parse(text)
    assert Mode.parse("view") is Mode.VIEW


def test_of_a_crowd_those_who_matter_are_named() -> None:
    turn = Turn()
    for n in range(10):
        here(turn, f"c{n}", ANA, Mode.VIEW)
    lead = here(turn, "c10", BEN)
    writer = here(turn, "c11", BOT)
    everyone = turn.who()
    assert [one["client"] for one in everyone["clients"]] == [f"c{n}" for n in range(12)]
    assert "more" not in everyone
    assert "more" not in turn.who(most=12)
    told = turn.who(ClientId("c7"), 4)
    assert {one["client"] for one in told["clients"]} == {lead, writer, "c7", "c0"}
    assert (told["more"], told["holder"], told["lead"]) == (8, BEN.name, lead)
