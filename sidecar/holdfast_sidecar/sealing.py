"""The one moment at which a session's files are all of it: into them, and out of them again."""

from __future__ import annotations

import os
from pathlib import Path

from holdfast_sidecar import outbox, sealed
from holdfast_sidecar.hold import HoldLink
from holdfast_sidecar.sealed import Sealed
from holdfast_sidecar.session import Session
from holdfast_wire.errors import BadRequest
from holdfast_wire.journal_chain import Head


async def close(session: Session, folder: Path, epoch: int) -> None:
    """Everything into the folder, `sealed.json` last."""
    await session.seal()
    (folder / sealed.OUTBOX).write_bytes(session.pty.outbox.saved())
    turn = session.turn
    state = Sealed(
        session_id=session.spec.id,
        epoch=epoch,
        seq=session.ring.head,
        order=session.inputs.last,
        created=session.spec.created,
        active=session.last_active,
        holder=turn.holder.name if turn.holder else None,
        holder_uid=turn.holder.uid if turn.holder else "",
        holder_attached=turn.lead is not None,
        fork=session.spec.fork,
        journal_count=session.journal.head.count,
        journal_head=session.journal.head.digest,
    )
    sealed.save(folder, state)


def check(session: Session, told: Sealed) -> None:
    found = (session.ring.head, session.emulator.seq, session.inputs.last)
    if found != (told.seq, told.seq, told.order):
        raise BadRequest(f"the files are not whole: {found}, and {told} was sealed")
    head = session.journal.head
    if told.journal_head is not None and head != Head(told.journal_count or 0, told.journal_head):
        raise BadRequest(f"the journal is not whole: it ends with record {head.count}")


async def load_outbox(hold: HoldLink, folder: Path) -> None:
    """Into a hold that has typed nothing yet."""
    saved = (folder / sealed.OUTBOX).read_bytes()
    descriptor = await hold.outbox()
    try:
        outbox.load(descriptor, saved)
    finally:
        os.close(descriptor)
