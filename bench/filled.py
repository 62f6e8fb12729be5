"""A session that has printed more than its scrollback holds, and rests: one comes back to it."""

from __future__ import annotations

import time
import uuid
from typing import Final

from bench.payloads import lines
from bench.processes import Failed, Pen, until
from bench.targets import SCROLLBACK, Holdfast, Tmux

_MORE_LINES: Final = 1000


class Filled:
    """One in holdfast and one in tmux, alike; `last` is the line at the bottom of both."""

    def __init__(self, pen: Pen) -> None:
        self.pen = pen
        self.last = f"LAST-{uuid.uuid4().hex}".encode()
        text = pen.folder / "lines"
        text.write_bytes(lines(SCROLLBACK + _MORE_LINES) + self.last)
        done = pen.folder / "done"
        script = 'cat -- "$1"; echo >> "$2"; read -r never'
        command = ["sh", "-c", script, "filled", str(text), str(done)]
        self.holdfast, self.tmux = Holdfast(pen), Tmux(pen)
        self.holdfast.start(command)
        self.tmux.start(command)
        until(lambda: done.exists() and len(done.read_bytes()) == 2, "the sessions to print")
        self._check()

    def _check(self) -> None:
        """Once, that the whole scrollback is there."""
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            end, shown = self.holdfast.attach(), b""
            while not end.snapshots:
                shown += end.receive()
            end.close()
            if self.last in shown and shown.count(b"\n") >= SCROLLBACK:
                return
            time.sleep(0.1)
        raise Failed("the sidecar's snapshot has not got what the session printed")
