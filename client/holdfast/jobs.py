"""A job of a session, for programs: what is known of it, its output, its end."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Final, Self

from holdfast.results import JobState, Raw
from holdfast_wire.frames import Gap, Output

if TYPE_CHECKING:
    from holdfast.sdk import Session

# The session waits so long for more output before it says that there is none.
_WAIT_SECONDS: Final = 20.0
_SLACK_SECONDS: Final = 10.0


class Job:
    """Made by `Session.job`. `state` is as it was last told."""

    def __init__(self, session: Session, state: JobState) -> None:
        self._session = session
        self.state = state

    @classmethod
    def of(cls, session: Session, raw: Raw) -> Self:
        return cls(session, JobState.of(raw))

    @property
    def id(self) -> str:
        return self.state.id

    async def refresh(self) -> JobState:
        return self._told(await self._session.request("job_get", job=self.id))

    def _told(self, answer: dict[str, Any]) -> JobState:
        self.state = JobState.of(answer["job"])
        return self.state

    async def output(self, after: int = 0) -> AsyncIterator[Output | Gap]:
        """Its output to its end, as it comes; `seq` counts its own bytes. What is not kept any more
        is a `Gap`."""
        while True:
            part = await self._session.request(
                "job_output", within=_WAIT_SECONDS + _SLACK_SECONDS,
                job=self.id, after=after, wait=_WAIT_SECONDS,
            )  # fmt: skip
            start = int(part["start"])
            if part.get("lost"):
                yield Gap(after, start)
            self._told(part)
            if data := b64decode(part["base64"]):
                yield Output(start, data)
            after = int(part["end"])
            if part.get("complete"):
                return

    async def wait(self) -> JobState:
        """Until it has ended; its output is not kept here."""
        async for _ in self.output():
            pass
        return self.state

    async def signal(self, name: str = "INT") -> JobState:
        return self._told(await self._session.request("job_signal", job=self.id, signal=name))
