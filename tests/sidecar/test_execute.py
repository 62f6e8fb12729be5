"""How the end of a command is found, when it comes at an unlucky moment."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from holdfast_sidecar import execute
from holdfast_sidecar.state import Activity, Observation


class Ring:
    oldest = 0

    def __init__(self) -> None:
        self.data = b""

    @property
    def head(self) -> int:
        return len(self.data)

    def slices(self, start: int, end: int) -> list[bytes]:
        return [self.data[start:end]]


async def test_a_mark_that_comes_while_we_look_counts() -> None:
    ring = Ring()
    looks = 0

    async def observe() -> Observation:
        """The shell prints the mark and its prompt just now."""
        nonlocal looks
        looks += 1
        ring.data = b"\x1b]7770;start;j\x07hello\x1b]7770;end;j;3\x07$ "
        return Observation(Activity.PROMPT, 1, "bash", "")

    async def silence() -> None:
        await asyncio.Event().wait()

    session: Any = SimpleNamespace(
        ring=ring, exit=None, parked=False, size=(80, 24), more_output=silence
    )
    result = await execute.Commands(session, observe)._follow("j", 0)
    assert looks == 1
    assert (result["exit_code"], result["output"]) == (3, "hello")
