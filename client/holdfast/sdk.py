"""Sessions for programs, with asyncio.

    async with holdfast.connect("build") as session:
        result = await session.exec("make test")

One connection carries the requests of a session, any number at once; each `stream` has one of its
own. A connection that breaks is made anew: a request that only asks, or that has a key, is put
again, so that it takes effect once; one that could do a thing twice raises `Unavailable`.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from base64 import b64encode
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Mapping,
    Sequence,
)
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from holdfast.results import (
    Executed,
    Graph,
    News,
    Record,
    Screen,
    Sent,
    SessionInfo,
    State,
)
from holdfast.routes import CLIENT, Route, Where, route_of
from holdfast_wire.errors import (
    BadRequest,
    Busy,
    Ended,
    HoldfastError,
    Retry,
    Unauthenticated,
    Unavailable,
)
from holdfast_wire.frames import (
    Control,
    Decoder,
    Error,
    Frame,
    Gap,
    Output,
    Resize,
    Snapshot,
    encode,
)

if TYPE_CHECKING:
    from holdfast.attach import Link
    from holdfast.jobs import Job
    from holdfast_wire.ids import Actor

T = TypeVar("T")
Item = Output | Gap | Snapshot | Resize | News
"""What a stream gives."""

ANSWER_SECONDS: Final = 10.0
# A move, a wake or a gateway's restart is over by then.
PATIENCE_SECONDS: Final = 60.0
_READ_BYTES: Final = 1 << 18
_SEND_BYTES: Final = 1 << 17
_BACKOFF: Final = (0.05, 2.0)
_POLL: Final = (0.05, 0.5)
_WAITING: Final = frozenset(("prompt", "reading", "password"))
_READING: Final = frozenset(
    ("info", "screen", "state", "graph", "journal", "ping", "job_list", "job_get", "job_output")
)


class TimedOut(Busy):
    """What was waited for has not come in the time given."""


def connect(
    name: str,
    *,
    namespace: str | None = None,
    context: str | None = None,
    kubeconfig: str | None = None,
    cluster: bool = False,
    gateway: str | None = None,
    token: str | None = None,
    patience: float = PATIENCE_SECONDS,
) -> Session:
    """A session on this machine; in a cluster, if a namespace, context, kubeconfig or `cluster` is
    given; behind a gateway, if its URL is. `token`: for a gateway; else as the command line finds
    it. `patience`: for how long it is tried to connect, and a request waits out a session that is
    away for a moment; then `Unavailable`."""
    where = Where(namespace, context, kubeconfig, gateway, token, cluster)
    return Session(name, where, patience)


async def sessions(
    *,
    namespace: str | None = None,
    context: str | None = None,
    kubeconfig: str | None = None,
    cluster: bool = False,
    gateway: str | None = None,
    token: str | None = None,
) -> list[SessionInfo]:
    """Those there are, as `connect` would find them."""
    where = Where(namespace, context, kubeconfig, gateway, token, cluster)
    found = await asyncio.to_thread(_listed, where)
    return [SessionInfo.of(one) for one in found]


def _listed(where: Where) -> list[dict[str, Any]]:
    route = route_of(where)
    try:
        return route.sessions()
    finally:
        route.close()


class Wire:
    """One connection, frame by frame."""

    def __init__(
        self,
        link: Link,
        actor: Actor | None,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._link, self._reader, self._writer = link, reader, writer
        self.sender = {"modality": CLIENT} | (actor.to_json() if actor else {})

    @classmethod
    async def open(cls, route: Route, name: str) -> Self:
        linking = asyncio.create_task(asyncio.to_thread(route.link, name))
        try:
            link, actor = await asyncio.shield(linking)
        except asyncio.CancelledError:
            linking.add_done_callback(_let_go)  # a thread cannot be stopped
            raise
        try:
            connected = await asyncio.to_thread(link.open)
            connected.setblocking(False)
            reader, writer = await asyncio.open_connection(sock=connected)
        except BaseException:
            link.close()
            raise
        return cls(link, actor, reader, writer)

    async def send(self, frame: Frame) -> None:
        try:
            self._writer.write(encode(frame))
            await self._writer.drain()
        except OSError as error:
            raise await self._why() from error

    async def frames(self) -> AsyncIterator[Frame]:
        """Until it ends; then raises why."""
        decoder = Decoder()
        with contextlib.suppress(ConnectionError):
            while data := await self._reader.read(_READ_BYTES):
                for frame in decoder.feed(data):
                    yield frame
        raise await self._why()

    async def _why(self) -> HoldfastError:
        found = await asyncio.to_thread(self._link.why)
        return found or Unavailable("the connection to the session broke", "try again")

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()
        await asyncio.to_thread(self._link.close)


def _let_go(linking: asyncio.Task[tuple[Link, Actor | None]]) -> None:
    if not linking.cancelled() and linking.exception() is None:
        linking.result()[0].close()


class Session:
    """Made by `connect`; open between `async with` and its end."""

    def __init__(self, name: str, where: Where, patience: float) -> None:
        self.name = name
        self._where, self._patience = where, patience
        self._route: Route | None = None
        self._wire: Wire | None = None
        self._reading: asyncio.Task[None] | None = None
        self._pending: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._opening = asyncio.Lock()
        self._last_id = 0

    async def __aenter__(self) -> Self:
        """As any request: one that is away for a moment is waited for."""
        try:
            await self._patiently(self._connected, again=True)
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """The session itself goes on."""
        reading, self._reading = self._reading, None
        if reading is not None:
            reading.cancel()
            await asyncio.wait([reading])
        if self._route is not None:
            self._route.close()

    # -- requests

    async def request(
        self, kind: str, *, within: float = ANSWER_SECONDS, **fields: Any
    ) -> dict[str, Any]:
        """Any request of docs/protocol.md; fields that are None are left out."""
        body = {name: value for name, value in fields.items() if value is not None}

        async def once() -> dict[str, Any]:
            wire = await self._connected()
            async with asyncio.timeout(within):
                return await self._asked(wire, {**body, "kind": kind})

        return await self._patiently(once, again=kind in _READING or "key" in body)

    async def _patiently(self, act: Callable[[], Awaitable[T]], *, again: bool) -> T:
        loop = asyncio.get_running_loop()
        give_up = loop.time() + self._patience
        pause, longest = _BACKOFF
        while True:
            try:
                return await act()
            except Unavailable:
                if not again or loop.time() + pause > give_up:
                    raise
            except TimeoutError:
                raise Unavailable("the session does not answer", "try again") from None
            await asyncio.sleep(pause)
            pause = min(pause * 2, longest)

    async def _asked(self, wire: Wire, body: dict[str, Any]) -> dict[str, Any]:
        self._last_id += 1
        number = self._last_id
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._pending[number] = answer
        try:
            await wire.send(Control({**body, "id": number, "as": wire.sender}))
            return await answer
        finally:
            self._pending.pop(number, None)

    async def route(self) -> Route:
        if self._route is None:
            self._route = await asyncio.to_thread(route_of, self._where)
        return self._route

    async def _connected(self) -> Wire:
        async with self._opening:
            if self._wire is None:
                self._wire = await Wire.open(await self.route(), self.name)
                self._reading = asyncio.create_task(self._read(self._wire))
            return self._wire

    async def _read(self, wire: Wire) -> None:
        """Hands answers to those who asked; ends with the connection."""
        why: HoldfastError = Unavailable("the connection was closed")
        try:
            async for frame in wire.frames():
                match frame:
                    case Control({"kind": "answer", "id": int(number)}):
                        self._settle(number, frame.body.get("result"))
                    case Error(0):
                        raise frame.exception()
                    case Error(number):
                        self._settle(number, frame.exception())
        except HoldfastError as error:
            why = error
        finally:
            self._wire = None
            for number in tuple(self._pending):
                self._settle(number, why)
            await wire.close()

    def _settle(self, number: int, outcome: object) -> None:
        waiting = self._pending.get(number)
        if waiting is None or waiting.done():
            return
        if isinstance(outcome, HoldfastError):
            waiting.set_exception(outcome)
        else:
            waiting.set_result(outcome if isinstance(outcome, dict) else {})

    # -- looking

    async def info(self) -> SessionInfo:
        return SessionInfo.of(await self.request("info"))

    async def screen(self, *, scrollback: bool = False, colours: bool = False) -> Screen:
        """`colours`: with the escape sequences that make them."""
        form = "ansi" if colours else "text"
        return Screen.of(await self.request("screen", format=form, scrollback=scrollback))

    async def state(self) -> State:
        return State.of(await self.request("state"))

    async def graph(self) -> Graph:
        return Graph.of(await self.request("graph"))

    async def journal(self, *, after: int | None = None, limit: int | None = None) -> list[Record]:
        """The last records, or those after the record of number `after`, page by page."""
        found = await self.request("journal", after=after, limit=limit)
        records = list(found.get("records") or ())
        while after is not None and (then := found.get("next")) is not None:
            left = None if limit is None else limit - len(records)
            if left is not None and left <= 0:
                break
            found = await self.request("journal", after=then, limit=left)
            records += found.get("records") or ()
        return [Record.of(one) for one in records if isinstance(one, dict)]

    async def wait(self, *wanted: str, timeout: float | None = None) -> State:  # noqa: ASYNC109
        """Until it is in one of these states, or in `input`: any in which it waits for somebody.
        `Ended` if it ends meanwhile, `TimedOut` after `timeout` seconds."""
        states = set(wanted or ("prompt",))
        if "input" in states:
            states |= _WAITING
        loop = asyncio.get_running_loop()
        give_up = None if timeout is None else loop.time() + timeout
        pause, longest = _POLL
        while True:
            found = await self.state()
            if found.activity in states:
                return found
            if found.activity == "ended":
                raise Ended(f"session {self.name} has ended while it was waited for")
            if give_up is not None and loop.time() >= give_up:
                raise TimedOut(
                    f"session {self.name} is not there after {timeout:g} s: {found.sentence}",
                    "wait longer, or look at its screen",
                )
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, longest)

    async def stream(self, from_seq: int | None = None) -> AsyncGenerator[Item, None]:
        """The session's output, to its end, through whatever breaks on the way. Without `from_seq`
        it begins with a `Snapshot` of the screen, but for `News`. What the session does not have
        any more is a `Gap`, with a `Snapshot` after it."""
        from holdfast.streams import Stream

        session_id = "" if from_seq is None else (await self.info()).session_id
        stream = Stream(session_id, from_seq)
        pause, longest = _BACKOFF
        while not stream.over:
            wire = None
            try:
                wire = await Wire.open(await self.route(), self.name)
                await wire.send(stream.attach(wire.sender))
                async for frame in wire.frames():
                    items, answer = stream.received(frame)
                    for item in items:
                        pause = _BACKOFF[0]
                        yield item
                    if answer is not None:
                        await wire.send(answer)
                    if stream.over:
                        return
            except (Retry, Unauthenticated) as error:
                if wire is None and not isinstance(error, Retry):
                    raise  # not a token that has run out, but one that is not believed
                await asyncio.sleep(pause)
                pause = min(pause * 2, longest)
            finally:
                if wire is not None:
                    await wire.close()

    # -- acting

    async def send(
        self, text: str | bytes = "", *, enter: bool = False, keys: str = "", key: str | None = None
    ) -> Sent:
        """Types the text; then Enter, if wanted; then `keys`, such as `"C-c Up"`. Typed once, also
        through a connection that breaks; with a `key` of your own, also if you ask twice."""
        from holdfast_wire.keys import encode_keys

        data = text if isinstance(text, bytes) else text.encode()
        data += (b"\r" if enter else b"") + (encode_keys(keys) if keys else b"")
        if not data:
            raise BadRequest("there is nothing to send", "give a text, or keys")
        if key is not None and len(data) > _SEND_BYTES:
            raise BadRequest(f"with a key at most {_SEND_BYTES} bytes are sent at once")
        made = key or secrets.token_hex(8)
        result: dict[str, Any] = {}
        for start in range(0, len(data), _SEND_BYTES):
            part = b64encode(data[start : start + _SEND_BYTES]).decode()
            named = made if start == 0 else f"{made}-{start}"
            result = await self.request("send", base64=part, key=named)
        return Sent.of(result)

    async def exec(
        self,
        command: str,
        *,
        timeout: float = 60.0,  # noqa: ASYNC109
        key: str | None = None,
    ) -> Executed:
        """Runs it in the session's shell, which must be at its prompt (else `Busy`), and waits for
        it. After `timeout` seconds `Busy`, and the command goes on."""
        named = key or secrets.token_hex(8)
        within = timeout + ANSWER_SECONDS
        return Executed.of(
            await self.request("exec", within=within, command=command, timeout=timeout, key=named)
        )

    async def job(
        self,
        command: str | Sequence[str],
        *,
        key: str | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Job:
        """Runs a command beside the terminal: a shell's line, or a program and its arguments. Run
        once, also if you ask twice with the same `key`."""
        from holdfast.jobs import Job

        body = {"command": command} if isinstance(command, str) else {"argv": list(command)}
        named = key or secrets.token_hex(8)
        answer = await self.request(
            "job_start", **body, key=named, cwd=cwd, env=dict(env) if env else None
        )
        return Job.of(self, answer["job"])

    async def jobs(self) -> list[Job]:
        from holdfast.jobs import Job

        found = (await self.request("job_list")).get("jobs") or ()
        return [Job.of(self, one) for one in found if isinstance(one, dict)]

    async def take(self) -> str:
        """Takes the turn, the right to type; says who has it."""
        return str((await self.request("take")).get("holder") or "")

    async def ask(self) -> str:
        """Asks whoever has the turn for it; says who that is. Where nobody has it, it is ours."""
        return str((await self.request("ask")).get("holder") or "")

    async def release(self, to: str | None = None) -> str:
        """Gives the turn to `to`, or to who asked first, or to the next who is here to write; says
        who has it then."""
        return str((await self.request("release", to=to)).get("holder") or "")

    async def interrupt(self) -> None:
        """SIGINT to what has the terminal, as ctrl-c would."""
        await self.request("signal", signal="INT")

    async def end(self, *, grace: float = 5.0) -> None:
        """Ends the session and everything in it; kills what is left after `grace` seconds."""
        await self.request("end", within=grace + ANSWER_SECONDS, grace=grace)
