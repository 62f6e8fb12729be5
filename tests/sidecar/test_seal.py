"""Sealing: what the folder has then is the session, to the last byte that was printed or typed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
import tty
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast_sidecar import outbox as outboxes
from holdfast_sidecar import session as session_module
from holdfast_sidecar.outbox import Outbox, Record
from holdfast_sidecar.session import Session
from holdfast_sidecar.spec import Spec
from holdfast_sidecar.turn import Mode, Participant
from holdfast_wire.errors import Busy, Internal, Unavailable
from holdfast_wire.ids import Actor, ClientId, session_name

ANA, BEN = Actor("ana"), Actor("ben")


class Desk:
    """A session on a terminal whose program is the test."""

    def __init__(self, folder: Path, outbox: int | None = None) -> None:
        about = Spec(session_name("it"), "id", ("cat",), 80, 24, 100, 0.0)
        self.session, (master, self.slave) = Session(about, folder), os.openpty()
        tty.setraw(self.slave)
        os.set_blocking(self.slave, False)
        self.session.start(master, os.memfd_create("outbox") if outbox is None else outbox)

    async def read(self) -> bytes:
        """All that the kernel has: its line discipline gets more as it is emptied."""
        found, quiet = b"", 0
        while quiet < 5:
            try:
                found += os.read(self.slave, 1 << 20)
                quiet = 0
            except BlockingIOError:
                quiet += 1
                await asyncio.sleep(0.005)
        return found

    def types(self, data: bytes, key: bytes = b"") -> list[tuple[int, bool]]:
        done: list[tuple[int, bool]] = []
        self.session.write(ANA, None, "api", key, data, lambda *how: done.append(how))
        return done

    def close(self) -> None:
        os.close(self.slave)
        self.session.close()


@contextlib.contextmanager
def desk(folder: Path, outbox: int | None = None) -> Iterator[Desk]:
    made = Desk(folder, outbox)
    try:
        yield made
    finally:
        made.close()


def printed(session: Session) -> bytes:
    return b"".join(session.ring.slices(session.ring.oldest, session.ring.head))


async def test_what_waits_in_the_terminal_is_read_and_no_more_until_it_goes_on(
    tmp_path: Path,
) -> None:
    with desk(tmp_path) as here:
        session = here.session
        session.pty.stop_reading()
        os.write(here.slave, b"x" * 3000)
        session.park()
        await session.seal()
        assert printed(session) == b"x" * 3000
        assert session.emulator.keyframe_seq == 3000
        assert not session.pty.hung_up
        os.write(here.slave, b"later")
        session.keyframe_saved()  # which starts reading, else
        await asyncio.sleep(0.05)
        assert session.ring.head == 3000
        session.unpark()
        await asyncio.sleep(0.05)
        assert printed(session)[3000:] == b"later"


async def test_to_be_stored_is_not_to_be_active(tmp_path: Path) -> None:
    with desk(tmp_path) as here:
        session, before = here.session, time.time()
        os.write(here.slave, b"printed")
        await emulated(session, 7)
        session.last_active = before - 1000
        session.park(saving=True)
        await session.seal()
        session.unpark()
        await emulated(session, 7)
        assert session.last_active == before - 1000
        os.write(here.slave, b", and more")
        await emulated(session, 17)
        assert session.last_active >= before


async def emulated(session: Session, head: int) -> None:
    for _ in range(1500):
        if session.ring.head >= head and session._emulate_soon is None:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"waited in vain for seq {head}")


async def test_a_terminal_that_nobody_has_open_is_sealed_too(tmp_path: Path) -> None:
    with desk(tmp_path) as here:
        os.write(here.slave, b"last words")
        name = os.ttyname(here.slave)
        os.close(here.slave)
        here.session.park()
        await here.session.seal()
        assert printed(here.session) == b"last words"
        here.session.unpark()
        here.slave = os.open(name, os.O_RDWR | os.O_NOCTTY)
        os.write(here.slave, b", and more")
        await asyncio.sleep(0.5)
        assert printed(here.session) == b"last words, and more"


async def test_what_goes_on_printing_is_not_sealed(tmp_path: Path) -> None:
    with desk(tmp_path) as here:
        session, fill = here.session, here.session.ring.fill

        def endless(descriptor: int) -> int:
            os.write(here.slave, b"y" * 2000)
            return fill(descriptor)

        session.ring.fill = endless  # type: ignore[method-assign]
        session.park()
        with pytest.raises(Busy, match="printing"):
            await session.seal()
        session.ring.fill = fill  # type: ignore[method-assign]
        session.unseal()
        assert session.parked
        before = session.ring.head
        os.write(here.slave, b"still read")
        await asyncio.sleep(0.05)
        assert session.ring.head >= before + 10


async def test_nothing_is_typed_while_it_is_sealed_and_all_of_it_after(tmp_path: Path) -> None:
    with desk(tmp_path) as here:
        session = here.session
        done = here.types(b"a" * 100_000, b"key")
        session.park()
        with pytest.raises(Unavailable):
            here.types(b"b")
        await session.seal()
        waiting = session.pty.outbox.waiting
        assert 0 < waiting < 100_000
        typed = await here.read()
        await asyncio.sleep(0.05)
        assert (await here.read(), session.pty.outbox.waiting) == (b"", waiting)
        assert (done, len(typed)) == ([], 100_000 - waiting)
        session.unpark()
        typed += await here.read()
        assert typed == b"a" * 100_000
        assert done == [(1, False)]


async def test_what_the_terminal_answered_goes_along_with_what_was_typed(tmp_path: Path) -> None:
    """A program asked its terminal something just before it was frozen."""
    elsewhere = os.memfd_create("outbox")
    with desk(tmp_path) as here:
        session = here.session
        here.types(b"a" * 100_000, b"key")
        session.pty.stop_reading()
        os.write(here.slave, b"\x1b[5n")
        session.park()
        await session.seal()
        typed = await here.read()
        assert len(typed) < 100_000
        saved = session.pty.outbox.saved()
    for _ in range(2):  # after a kill in the middle it is done again
        outboxes.load(elsewhere, saved)
    with desk(tmp_path, os.dup(elsewhere)) as there:
        typed += await there.read()
        assert typed == b"a" * 100_000 + b"\x1b[0n"
        assert there.types(b"", b"key") == [(1, True)]
    # And once more by the next sidecar there: nothing is left to type.
    with desk(tmp_path, elsewhere) as again:
        await asyncio.sleep(0.05)
        assert await again.read() == b""
        assert again.session.inputs.last == 1


async def test_the_title_and_the_screen_are_there_at_once(tmp_path: Path) -> None:
    with desk(tmp_path) as here:
        os.write(here.slave, b"\x1b]2;my title\x07hello")
        await asyncio.sleep(0.05)
        here.session.park()
        await here.session.seal()
    with desk(tmp_path) as there:
        assert there.session.title == "my title"
        assert there.session.emulator.seq == there.session.ring.head


async def test_a_turn_is_kept_for_a_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "_RESERVED_SECONDS", 0.1)
    for attached in (True, False):
        (tmp_path / str(attached)).mkdir()
        with desk(tmp_path / str(attached)) as there:
            session = there.session
            session.reserve_turn(ANA, attached)
            session.join(Participant(ClientId("c1"), BEN, "cli", Mode.WRITE, 70, 20, 0.0))
            assert (session.turn.holder, session.size) == (ANA, (80, 24))
            await asyncio.sleep(0.3)
            now = (BEN, (70, 20)) if attached else (ANA, (80, 24))
            assert (session.turn.holder, session.size) == now


@pytest.mark.parametrize("cut", [0, 100, 266_239, -1])
def test_a_saved_outbox_that_is_not_whole_is_refused(cut: int) -> None:
    here = Outbox(os.memfd_create("outbox"), 0)
    here.put(b"to be typed")
    here.record(Record(1, 11, 11, 0.0, ANA, None, "api", b"k"))
    saved = here.saved()
    here.close()
    descriptor = os.memfd_create("outbox")
    with pytest.raises(Internal):
        outboxes.load(descriptor, saved[:cut])
    assert os.fstat(descriptor).st_size == 0
    outboxes.load(descriptor, saved)
    there = Outbox(descriptor, 0)
    assert (there.waiting, there.end) == (11, 11)
    assert [record.key for record in outboxes.records(descriptor)] == [b"k"]
    there.close()
