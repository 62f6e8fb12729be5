"""The SDK without asyncio: the same, and every call waits.

    with holdfast.sync.connect("build") as session:
        print(session.exec("make test").exit_code)

Each session has an event loop of its own, which runs while a call waits. Not for two threads at
once, and not inside a running event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from holdfast import jobs, sdk
from holdfast.results import (
    Executed,
    Graph,
    JobState,
    Record,
    Screen,
    Sent,
    SessionInfo,
    State,
)
from holdfast_wire.frames import Gap, Output

T = TypeVar("T")


def connect(name: str, **where: Any) -> Session:
    """As `holdfast.connect`."""
    return Session(sdk.connect(name, **where))


def sessions(**where: Any) -> list[SessionInfo]:
    """As `holdfast.sessions`."""
    return asyncio.run(sdk.sessions(**where))


class Session:
    def __init__(self, session: sdk.Session) -> None:
        self._session = session
        self._runner = asyncio.Runner()

    def __enter__(self) -> Self:
        try:
            self._run(self._session.__aenter__())
        except BaseException:
            self._runner.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self._run(self._session.close())
        self._runner.close()

    def _run(self, wanted: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(wanted)

    def _each(self, items: AsyncIterator[T]) -> Iterator[T]:
        async def following() -> T:
            return await anext(items)

        while True:
            try:
                yield self._run(following())
            except StopAsyncIteration:
                return

    @property
    def name(self) -> str:
        return self._session.name

    def request(self, kind: str, **fields: Any) -> dict[str, Any]:
        return self._run(self._session.request(kind, **fields))

    def info(self) -> SessionInfo:
        return self._run(self._session.info())

    def screen(self, *, scrollback: bool = False, colours: bool = False) -> Screen:
        return self._run(self._session.screen(scrollback=scrollback, colours=colours))

    def state(self) -> State:
        return self._run(self._session.state())

    def graph(self) -> Graph:
        return self._run(self._session.graph())

    def journal(self, *, after: int | None = None, limit: int | None = None) -> list[Record]:
        return self._run(self._session.journal(after=after, limit=limit))

    def wait(self, *wanted: str, timeout: float | None = None) -> State:
        return self._run(self._session.wait(*wanted, timeout=timeout))

    def stream(self, from_seq: int | None = None) -> Iterator[sdk.Item]:
        return self._each(self._session.stream(from_seq))

    def send(
        self, text: str | bytes = "", *, enter: bool = False, keys: str = "", key: str | None = None
    ) -> Sent:
        return self._run(self._session.send(text, enter=enter, keys=keys, key=key))

    def exec(self, command: str, *, timeout: float = 60.0, key: str | None = None) -> Executed:
        return self._run(self._session.exec(command, timeout=timeout, key=key))

    def job(
        self,
        command: str | Sequence[str],
        *,
        key: str | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Job:
        return Job(self, self._run(self._session.job(command, key=key, cwd=cwd, env=env)))

    def jobs(self) -> list[Job]:
        return [Job(self, one) for one in self._run(self._session.jobs())]

    def take(self) -> str:
        return self._run(self._session.take())

    def ask(self) -> str:
        return self._run(self._session.ask())

    def release(self, to: str | None = None) -> str:
        return self._run(self._session.release(to))

    def interrupt(self) -> None:
        self._run(self._session.interrupt())

    def end(self, *, grace: float = 5.0) -> None:
        self._run(self._session.end(grace=grace))


class Job:
    def __init__(self, session: Session, job: jobs.Job) -> None:
        self._session, self._job = session, job

    @property
    def id(self) -> str:
        return self._job.id

    @property
    def state(self) -> JobState:
        return self._job.state

    def refresh(self) -> JobState:
        return self._session._run(self._job.refresh())

    def output(self, after: int = 0) -> Iterator[Output | Gap]:
        return self._session._each(self._job.output(after))

    def wait(self) -> JobState:
        return self._session._run(self._job.wait())

    def signal(self, name: str = "INT") -> JobState:
        return self._session._run(self._job.signal(name))
