"""A checkpoint is asked for: whoever dialled says what it wants, and then the two change places.

    asker    HELLO (for: fetch)                              PROGRESS...  RECEIVED  COMMITTED
    holder                      HELLO  BEGIN DATA... END ... MANIFEST      | FAILED

One connection, and the one that needs it keeps it alive: a holder that dialled back would have to
be asked by another connection first, and to find out what became of it by a third.
"""

from __future__ import annotations

import asyncio
import secrets
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from .link import Frame
from .pair import SALT, Keys, Manifest
from .receiving import Receiver
from .store import free
from .transfer import dialled, greeting, sending

Pieces = Callable[[str, Callable[[memoryview], None]], None]
"""Gives a part's bytes to a function."""


@asynccontextmanager
async def fetching(
    address: tuple[str, int],
    context: ssl.SSLContext,
    keys: Keys,
    checkpoint: str,
    about: dict[str, str],
) -> AsyncIterator[Receiver]:
    loop = asyncio.get_running_loop()
    hello = greeting(checkpoint, secrets.token_bytes(SALT), about)
    async with dialled(address, context, f"fetch-{checkpoint}") as (link, worker):
        receiver = Receiver(link, keys, worker, address[0])
        await loop.run_in_executor(worker, link.send_json, Frame.HELLO, hello)
        await receiver.run(receiver.greet)
        yield receiver


async def fetch(receiver: Receiver, into: Path) -> Manifest:
    """All of it, found right; not more than the disk has room for."""
    await receiver.ready()
    manifest = await receiver.receive(into, limit=free(into.parent))
    await receiver.committed()
    return manifest


async def give(receiver: Receiver, manifest: Manifest, pieces: Pieces) -> None:
    """The holder's side, on the link on which it was asked. Returns when the other has it."""
    hello = greeting(manifest.facts.checkpoint, manifest.salt, {})
    async with sending(receiver.link, receiver.worker, receiver.keys, hello) as sender:
        for part in manifest.parts:
            await sender.send_from(part, partial(pieces, part))
        await sender.finish(manifest.facts)
        await sender.outcome()
    receiver.said = True
