"""The session: where output, inputs and participants meet and get their one order.

Output   pty → ring → audience → every outlet; → emulator, at its own pace.
Input    connection → `write` → turn, idempotency → pty → journal → ack.
Size     turn's lead → `_fit` → ring mark, pty, emulator.

Parked   no input is taken and the size stays; output goes on. On its way to another pod, or
         to be stored and go on here.
Sealed   parked, and nothing moves at all: what the folder has is the session (`seal`).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from holdfast_sidecar import __version__, keyframe
from holdfast_sidecar.audience import Audience, Picture
from holdfast_sidecar.emulator import Emulator, recover
from holdfast_sidecar.exec_folder import ExecFolder
from holdfast_sidecar.fanout import Outlet
from holdfast_sidecar.handover import Handover
from holdfast_sidecar.inputs import Inputs, is_focus_report, without_replies
from holdfast_sidecar.journal import Journal
from holdfast_sidecar.outbox import SLOTS, Outbox, Record, records
from holdfast_sidecar.parking import Parking
from holdfast_sidecar.pty import BATCH, Pty
from holdfast_sidecar.ring import MAX_MARKS, Mark, Ring
from holdfast_sidecar.spec import Spec
from holdfast_sidecar.turn import Participant, Turn
from holdfast_wire.errors import Busy, Ended, Forbidden, Internal, NoTurn
from holdfast_wire.frames import Control
from holdfast_wire.ids import Actor, ClientId

# Under a flood, frames go out a thousand times a second and are large. What is less than this much,
# such as a keystroke's echo, goes out at once.
_COALESCE_SECONDS: Final = 0.001
_ECHO_BYTES: Final = 512
_KEYSTROKE_BYTES: Final = 16
# The emulator is woken a little later than the clients: their copy is what a person waits for.
_EMULATE_SECONDS: Final = 0.01
# The journal is for people; the outbox remembers meanwhile.
_JOURNAL_SECONDS: Final = 0.02
# How long the turn is kept for its holder, who has to find the session's new place first.
_RESERVED_SECONDS: Final = 10.0


class Exit:
    """How the command ended."""

    def __init__(self, code: int | None, signal: int | None, by: str | None = None) -> None:
        """`by`: "itself", "end" (a client asked), "term" (the pod goes) or "killed"."""
        self.code, self.signal, self.by = code, signal, by

    def to_json(self) -> dict[str, int | None]:
        return {"code": self.code, "signal": self.signal}


class Session:
    def __init__(self, spec: Spec, folder: Path) -> None:
        self.spec, self.folder = spec, folder
        # Where a command for the live shell is put. In a pod, where the session reads and only the
        # sidecar writes.
        self.exec_folder = ExecFolder(folder / "exec", readable_by_all=False)
        # In a cluster another incarnation follows one whose pod goes.
        self.outlives_its_pod = False
        self.superseded = False
        self.parking = Parking(self.tell)
        self.sealed = False
        self.ring = Ring(folder / "ring")
        self.turn = Turn()
        self.inputs = Inputs()
        self._handover = Handover()
        self.journal = Journal(folder, spec.journal)
        self.exit: Exit | None = None
        self.last_active, self._active_head = time.time(), self.ring.head
        marks = self.ring.marks_after(0)
        self.size = (marks[-1].columns, marks[-1].rows) if marks else (spec.columns, spec.rows)
        self._keyframe = folder / "keyframe"
        terminal, seq = recover(self.ring, self._keyframe, self.size, spec.scrollback)
        if not marks:  # a fork may have been asked to be of another size than what it is a fork of
            self.size = (terminal.columns, terminal.rows)
        self.title = terminal.title.decode("utf-8", "replace")
        version = f"holdfast {__version__}"
        self.emulator = Emulator(self.ring, terminal, seq, self._keyframe, version)
        self._audience = Audience(self.ring, self.emulator.snapshot, self.turn)
        self._watchers: set[asyncio.Future[None]] = set()
        self._published, self._published_head = 0.0, 0
        self._publish_soon: asyncio.TimerHandle | None = None
        self._emulate_soon: asyncio.TimerHandle | None = None
        self._unjournaled: deque[Record] = deque()
        self._tried: set[ClientId] = set()  # viewers who typed
        self._journal_soon: asyncio.TimerHandle | None = None
        self._reserved: asyncio.TimerHandle | None = None
        self._position = 0
        self.forked_at = 0.0
        for record in self.journal.records():
            self._remember(record)
        self._remembered = self.journal.head.count

    def _remember(self, record: dict[str, Any]) -> None:
        """An input with a record has been typed or lies in the outbox: it is not taken again."""
        if record.get("kind") == "input":
            key = str(record.get("key", "")).encode("latin-1", "replace")
            name, uid = str(record["actor"]), record.get("uid")
            if uid is None:  # by a sidecar that knew names alone, and cut them
                self.inputs.restore_named(int(record["order"]), name, key)
            else:
                self.inputs.restore(int(record["order"]), Actor(name, str(uid)), key)
            self._position = max(self._position, int(record["position"]))
        elif record.get("kind") == "forked":
            self.inputs.forget_keys()
            self.forked_at = float(record["time"])

    def start(self, master: int, outbox: int) -> None:
        self._loop = asyncio.get_running_loop()
        last = self.inputs.last
        for record in sorted(records(outbox)):
            if record.order > last:  # a kill came between its typing and its journaling
                self._journal_input(record)
        self.flush_journal()
        for fields in self.journal.records(self._remembered):
            self._remember(fields)
        self.exec_folder.clear()
        if self.sealed:
            self.journal.seal()
        typing = Outbox(outbox, self._position)
        self.pty = Pty(master, typing, self.ring, self._output, self.sealed)
        self.emulator.start(self._loop, self)
        self.pty.start_reading()
        self.pty.type()  # what an earlier sidecar put in the outbox and did not come to

    # -- output -----------------------------------------------------------------------------------

    def _output(self) -> None:
        if self.ring.would_lose(self.emulator.keyframe_seq, BATCH):
            self.pty.stop_reading()  # until the emulator has saved a keyframe
        if self._publish_soon is not None:
            return
        little = self.ring.head - self._published_head < _ECHO_BYTES
        wait = self._published + _COALESCE_SECONDS - self._loop.time()
        if little or wait <= 0:
            self._publish()
        else:
            self._publish_soon = self._loop.call_later(wait, self._publish)

    def _publish(self) -> None:
        self._publish_soon = None
        self._published = self._loop.time()
        self._published_head = self.ring.head
        self._audience.publish()
        if self._watchers:
            for watcher in self._watchers:
                if not watcher.done():
                    watcher.set_result(None)
            self._watchers.clear()
        if self._emulate_soon is None:
            self._emulate_soon = self._loop.call_later(_EMULATE_SECONDS, self._emulate)

    def _emulate(self) -> None:
        self._emulate_soon = None
        if self.ring.head != self._active_head:  # to be looked at, or stored, is not to be active
            self._active_head, self.last_active = self.ring.head, time.time()
        self.emulator.advance(self.ring.head)

    async def more_output(self) -> None:
        """Returns when more has been printed."""
        watcher = self._loop.create_future()
        self._watchers.add(watcher)
        try:
            await watcher
        finally:
            self._watchers.discard(watcher)

    # -- what the emulator says (Listener) --------------------------------------------------------

    def replied(self, data: bytes) -> None:
        if self.exit is None:
            with contextlib.suppress(Busy):  # a program that asks and does not listen
                self._type_for_nobody(data)

    def keyframe_saved(self) -> None:
        if self.exit is None and not self.ring.would_lose(self.emulator.keyframe_seq, BATCH):
            self.pty.start_reading()  # not if it is sealed

    def title_changed(self, title: str) -> None:
        self.title = title
        self.tell({"kind": "title", "title": title})

    def emulator_failed(self, error: BaseException) -> None:
        self._loop.call_exception_handler(
            {"message": "the emulator stopped; the sidecar must start again", "exception": error}
        )
        self.on_fatal(error)

    on_fatal: Callable[[BaseException], None] = staticmethod(lambda _error: None)

    # -- participants -----------------------------------------------------------------------------

    def join(self, participant: Participant) -> None:
        self.turn.join(participant)
        self.journal.add(
            "join", **participant.actor.to_json(), client=participant.client,
            modality=participant.modality, mode=participant.mode.value,
        )  # fmt: skip
        self._fit()

    def admit(self, client: ClientId, outlet: Outlet) -> None:
        """From here on the client hears the news; it has had its answer."""
        self._audience.add(client, outlet)
        self.tell_clients()
        if self.parking.news is not None:
            outlet.send(Control(self.parking.news))

    def leave(self, client: ClientId) -> None:
        self._audience.remove(client)
        self._tried.discard(client)
        self._handover.left(client)
        self.journal.add("leave", client=client)
        self.turn.leave(client)
        self._fit()
        self.tell_clients()

    def window(self, client: ClientId, columns: int, rows: int) -> None:
        self.turn.window(client, columns, rows)
        self._fit()

    def take(self, actor: Actor, client: ClientId | None, modality: str) -> None:
        self.turn.take(actor, client)
        self._passed("take", actor, client, modality)

    def ask_turn(self, actor: Actor, client: ClientId | None, modality: str) -> None:
        before = self.turn.asking
        self.turn.ask(actor, client)
        if self.turn.asking != before:
            self._passed("ask", actor, client, modality)

    def release(
        self, actor: Actor, client: ClientId | None, modality: str, to: Actor | None
    ) -> None:
        self.turn.release(actor, to)
        heir = self.turn.holder
        to_whom = {"to": heir.name, "to_uid": heir.uid} if heir else {"to": None}
        self._passed("release", actor, client, modality, **to_whom)

    def _passed(
        self, kind: str, actor: Actor, client: ClientId | None, modality: str, **more: Any
    ) -> None:
        by = actor.to_json()
        self.journal.add(kind, **by, client=client, modality=modality, **more)
        self._fit()
        self.tell_clients()

    def _fit(self) -> None:
        """The session gets the lead's size, at this seq and for everyone."""
        self._audience.look_who_leads()
        wanted = self.turn.size()
        if wanted is None or wanted == self.size or self.exit is not None or self.parked:
            return
        self.size = wanted
        self.ring.mark(*wanted)
        self.emulator.resize(Mark(self.ring.head, *wanted))
        if len(self.ring.marks_after(self.emulator.keyframe_seq)) > MAX_MARKS // 2:
            self.emulator.want_keyframe()  # before the table forgets a size that recovery needs
        self.pty.resize(*wanted)
        self._publish()

    def tell(self, news: dict[str, Any]) -> None:
        self._audience.tell(news)

    def tell_clients(self) -> None:
        self._audience.tell_clients()

    # -- input ------------------------------------------------------------------------------------

    def write(
        self,
        actor: Actor,
        client: ClientId | None,
        modality: str,
        key: bytes,
        data: bytes,
        done: Callable[[int, bool], None],
    ) -> None:
        """Writes to the terminal, or not if the key was seen; `done(order, duplicate)` follows."""
        if self.exit is not None:
            raise Ended(f"{self.spec.name} has ended", "its screen can still be read")
        self.parking.check()
        if client is not None and data and not (data := self._meant(client, data)):
            done(self.inputs.last, False)
            return
        self._check_write(actor, client, modality, data)
        seen = self.inputs.seen(actor, key)
        if seen is not None:
            done(seen, True)
            return
        self.pty.check_room(len(data))  # what is refused must not use up its key
        data = self._whole(actor, client, data)
        order = self.inputs.take(actor, key)
        if client is not None and client != self.turn.lead:
            self.turn.typed(client)
            self._fit()
            self.tell_clients()
        elif client is not None:
            self.turn.typed(client)

        outbox = self.pty.outbox
        position, now = outbox.end + len(data), round(time.time(), 3)
        # In this order: once it has a record, it will be typed, whoever is killed. The journal is
        # for people and can wait until it is.
        record = Record(order, position, len(data), now, actor, client, modality, key)
        outbox.put(data)
        outbox.record(record)
        self._handover.typed(actor, client, data)
        self.pty.type(lambda: done(order, False))
        self._journal_input(record)
        if len(data) <= _KEYSTROKE_BYTES:
            self.pty.catch_echo()

    def _check_write(
        self, actor: Actor, client: ClientId | None, modality: str, data: bytes
    ) -> None:
        """That a viewer tried to type is journaled, once for each: he may go on for ever."""
        try:
            self.turn.check_write(actor, client)
        except NoTurn:
            if client is not None:
                self._handover.refused(client, data, self._loop.time())
            raise
        except Forbidden:
            if client is not None and client not in self._tried:
                self._tried.add(client)
                by = actor.to_json()
                self.journal.add("refused", **by, client=client, modality=modality)
            raise

    def _whole(self, actor: Actor, client: ClientId | None, data: bytes) -> bytes:
        """Without the rest of a paste that was cut, and after what finishes another's."""
        kept = self._handover.taken(client, data, self._loop.time())
        if data and not kept:
            raise NoTurn("the turn passed in the middle of this paste", "paste it again")
        if end := self._handover.passed(actor):
            self._type_for_nobody(end)
        return kept

    def _journal_input(self, record: Record) -> None:
        self._unjournaled.append(record)
        if len(self._unjournaled) >= SLOTS // 2:  # before the outbox forgets one
            self.flush_journal()
        elif self._journal_soon is None:
            self._journal_soon = self._loop.call_later(_JOURNAL_SECONDS, self.flush_journal)

    def flush_journal(self) -> None:
        if self._journal_soon is not None:
            self._journal_soon.cancel()
            self._journal_soon = None
        while self._unjournaled:
            order, position, size, when, actor, client, modality, key, whole = self._unjournaled[0]
            by = actor.to_json() if whole else {"actor": actor.name}
            self.journal.add(
                "input", time=when, order=order, **by, client=client, modality=modality,
                bytes=size, position=position, key=key.decode("latin-1"),
            )  # fmt: skip
            self._unjournaled.popleft()  # not before: where the disk is full it is tried again

    def _type_for_nobody(self, data: bytes) -> None:
        self.pty.check_room(len(data))
        self.pty.outbox.put(data)
        self.pty.type()

    def _meant(self, client: ClientId, data: bytes) -> bytes:
        """What a terminal sent by itself is nobody's input. Questions are answered by our emulator,
        once, however many terminals are attached; focus is passed on if it is the lead's."""
        if is_focus_report(data):
            if client == self.turn.lead:
                self._type_for_nobody(data)
            return b""
        return without_replies(data)

    # -- snapshots --------------------------------------------------------------------------------

    async def send_snapshot(self, outlet: Outlet, lost_from: int | None) -> None:
        """A snapshot, then the stream from its seq; a gap first if bytes were lost on the way."""
        Picture(*await self.emulator.snapshot(lost_from or 0)).show(outlet, lost_from)

    # -- moving, and being stored -----------------------------------------------------------------

    @property
    def parked(self) -> bool:
        return self.parking.parked

    def park(self, *, saving: bool = False) -> None:
        """`saving`: to be stored, and not to be moved."""
        self.parking.park(saving=saving)

    async def seal(self) -> None:
        """Everything of the session is stopped. After this its files are the session as it stands,
        and do not change until `unpark`; `pty.outbox` has what is still to be typed."""
        if self.sealed:
            return
        self.sealed = True
        self.pty.seal()
        self._publish()
        head = self.ring.head
        self.emulator.advance(head)
        # Also what it answers to the program's questions is in the outbox then.
        await self.emulator.call(lambda _terminal, _seq: self.emulator.save(), head)
        saved = keyframe.load(self._keyframe)
        if saved is None or saved.seq != head:
            raise Internal("the screen could not be saved", "is the disk full?")
        self.flush_journal()
        self.journal.seal()
        self.pty.outbox.seal()

    def unseal(self) -> None:
        """It goes on where it stood still."""
        if self.sealed:
            self.sealed = False
            self.journal.unseal()
            self.pty.unseal()

    def unpark(self) -> None:
        """It stays here."""
        self.unseal()
        self.parking.open()
        self._fit()

    def say(self, data: bytes) -> None:
        """What the sidecar itself has to say in the terminal, before this session is served."""
        self.ring.append(data)
        self.emulator.advance(self.ring.head)

    def interject(self, data: bytes) -> None:
        """The same while it is served: between what was printed so far and what comes."""
        self.ring.append(data)
        self._output()

    def reserve_turn(self, holder: Actor, attached: bool) -> None:
        """The turn as it was elsewhere. Who was attached there has a moment to come back."""
        self.turn.take(holder, None)
        if attached:
            loop = asyncio.get_running_loop()
            self._reserved = loop.call_later(_RESERVED_SECONDS, self._pass_on)

    def _pass_on(self) -> None:
        before = self.turn.holder
        self.turn.lapse()
        if self.turn.holder != before:
            self._fit()
            self.tell_clients()

    # -- the end ----------------------------------------------------------------------------------

    def ended(self, how: Exit) -> None:
        if not self.sealed:
            self.pty.drain()
        self.flush_journal()
        self.exit = how
        self.parking.wake()
        self._audience.release()
        self._publish()
        self._emulate()
        self.journal.add("ended", **how.to_json())
        if not self.goes_on_elsewhere:
            self.tell({"kind": "ended", "exit": how.to_json(), "seq": self.ring.head})

    @property
    def goes_on_elsewhere(self) -> bool:
        """No end of the session for who is attached: the command was killed with its pod, or the
        session lives in another. Of one that is sealed only the Lease knows where it lives."""
        by = self.exit.by if self.exit is not None else None
        killed = by in ("term", "killed")
        return self.outlives_its_pod and (killed or self.superseded or self.sealed)

    def abandon(self) -> None:
        """Of one that was never started: nothing was done, and its files are as they were."""
        self.journal.close()
        self.ring.close()

    def close(self) -> None:
        self.pty.close()
        self.flush_journal()
        self.parking.close()
        self._audience.close()
        for handle in (self._publish_soon, self._emulate_soon, self._reserved):
            if handle is not None:
                handle.cancel()
        self.emulator.advance(self.ring.head)
        self.emulator.stop()
        self.journal.close()
        self.ring.close()
