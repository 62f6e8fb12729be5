"""How the sidecar knows hold: by random bits that it made itself, and gave to hold alone.

hold shares its user with the session, so no file that hold can read is a secret from it. But hold
runs before anything else does in its container. A FIFO lies in a volume that only the sidecar can
write (`/run/holdfast`); hold opens it first of all, and ends, with all of its container, if it does
not get what is written there. A pipe gives that to one reader.

Invariant: the nonce is written once, into a FIFO that has no name any more.
"""

from __future__ import annotations

import asyncio
import errno
import os
import secrets
from pathlib import Path
from typing import Final

FIFO: Final = "nonce"  # in /run/holdfast; made by `hold --nonce-fifo` before hold starts
_BYTES: Final = 16
_LOOK_SECONDS: Final = 0.02


class Nonce:
    def __init__(self, state: Path, run: Path) -> None:
        self._fifo = run / FIFO
        self._given = state / "hold.given"
        self.text = _kept(state / "hold")

    async def hand_over(self) -> None:
        """Returns when hold has it, also from a sidecar before this one."""
        while not self.give():  # noqa: ASYNC110 - a FIFO has no event for its first reader
            await asyncio.sleep(_LOOK_SECONDS)

    def give(self) -> bool:
        """False: nobody waits for it yet."""
        if self._given.exists():
            self._fifo.unlink(missing_ok=True)  # made again as this container was
            return True
        try:
            fifo = os.open(self._fifo, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            if error.errno in (errno.ENXIO, errno.ENOENT):
                return False
            raise
        try:
            self._given.touch()
            self._fifo.unlink()
            os.write(fifo, f"{self.text}\n".encode())
        finally:
            os.close(fifo)
        return True


def _kept(path: Path) -> str:
    if not path.exists():
        new = path.with_suffix(".new")  # a kill must not leave half of it
        new.write_text(secrets.token_hex(_BYTES))
        new.rename(path)
    return path.read_text()
