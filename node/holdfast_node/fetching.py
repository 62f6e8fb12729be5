"""A checkpoint is asked for: whoever dialled says what it wants, and then the two change places.
What comes is sealed, as it lies with the one that keeps it.

    asker    HELLO (for: fetch)                              PROGRESS...  RECEIVED  COMMITTED
    holder                      HELLO  BEGIN DATA... END ... MANIFEST      | FAILED

One connection, and the one that needs it keeps it alive: a holder that dialled back would have to
be asked by another connection first, and to find out what became of it by a third.
"""

from __future__ import annotations

import asyncio
import secrets
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from .link import Frame, Place
from .pair import SALT, Fault, Manifest, Unfit, unkeyed
from .receiving import Receiver
from .store import MANIFEST, PARTS, free
from .transfer import Sender, dialled, greeting, sending


@asynccontextmanager
async def fetching(
    to: Place, context: ssl.SSLContext, checkpoint: str, about: dict[str, str]
) -> AsyncIterator[Receiver]:
    loop = asyncio.get_running_loop()
    hello = greeting(checkpoint, secrets.token_bytes(SALT), about)
    async with dialled(to, context, f"fetch-{checkpoint}") as (link, worker):
        receiver = Receiver(link, worker)
        await loop.run_in_executor(worker, link.send_json, Frame.HELLO, hello)
        await receiver.run(receiver.greet)
        yield receiver


async def fetch(receiver: Receiver, into: Path) -> None:
    """All of it, as it was sent; not more than the disk has room for."""
    await receiver.ready()
    await receiver.receive(into, limit=free(into.parent))
    await receiver.committed()


async def give(receiver: Receiver, sealed: Path, manifest: Manifest) -> None:
    """The holder's side, on the link on which it was asked. Returns when the other has it."""
    salt = secrets.token_bytes(SALT)
    hello = greeting(manifest.facts.checkpoint, salt, {})
    async with sending(receiver.link, receiver.worker, unkeyed(salt), hello) as sender:
        await send_sealed(sender, sealed, manifest)
        await sender.outcome()
    receiver.said = True


async def send_sealed(sender: Sender, sealed: Path, manifest: Manifest) -> None:
    """A folder as a store has it, each file a part."""
    await sender.send_file(MANIFEST, sealed / MANIFEST)
    for part in manifest.parts:
        name = f"{PARTS}/{part}"
        try:
            await sender.send_file(name, sealed / name)
        except FileNotFoundError:
            raise Unfit(Fault.TRUNCATED, f"the checkpoint lacks its part {part}") from None
    await sender.finish(manifest.facts)
