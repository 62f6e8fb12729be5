"""Serving one session: hold behind, clients in front, until it ends or we are told to go.

`__main__.py` does this on one machine, `pod.py` in a Kubernetes pod.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from holdfast_sidecar.hold import EventKind, HoldError, HoldEvent, HoldLink, Unstopped
from holdfast_sidecar.job_requests import JobRequests
from holdfast_sidecar.jobs import Jobs
from holdfast_sidecar.notices import Notices
from holdfast_sidecar.requests import Requests
from holdfast_sidecar.server import Server
from holdfast_sidecar.session import Exit, Session
from holdfast_sidecar.spec import Spec

# An ended session's screen can be read for a while; then its sidecar goes.
_ENDED_SECONDS: Final = 600.0
# Looked at this often while somebody is attached, and a little after anything was printed.
_LOOK_SECONDS: Final = 0.5
_LOOK_IDLE_SECONDS: Final = 2.0
# After this long without output the ring's pages are given back.
_REST_SECONDS: Final = 2.0


def log(message: str) -> None:
    print(f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} {message}", file=sys.stderr, flush=True)


LastWords = Callable[[Exit], Awaitable[None]]


class Sidecar:
    def __init__(self, folder: Path, asked: Spec) -> None:
        self._folder = folder
        self._stop = asyncio.Event()
        self._over: asyncio.Future[Exit] = asyncio.get_running_loop().create_future()
        self._look = asyncio.Event()
        self._frozen = False
        self.unstopped = Unstopped()
        """What still runs of a session that is frozen."""
        self._notices: Notices | None = None
        self.leaving = asyncio.Event()
        """hold was told to go, and gives the session time to be moved."""
        self.serving = asyncio.Event()
        """Clients are taken."""
        self.away = asyncio.Event()
        """The session is another's."""
        self.session = Session(asked, folder)
        self.requests: Requests | None = None
        self._server: Server | None = None

    asleep: Callable[[], bool] = staticmethod(lambda: False)
    """Whether the session was stored, and its processes were ended for that alone."""

    def stop_on_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)

    def stop(self) -> None:
        self._stop.set()

    async def run(self, hold: HoldLink, last: LastWords | None = None) -> None:
        """`last` is awaited when the command has ended, before hold may go."""
        session = self.session
        status = await hold.status()
        self._frozen = status.frozen
        self.unstopped = Unstopped(status.incomplete, status.unstopped)
        if status.lingering:  # told to a sidecar before this one
            self.leaving.set()
        session.on_fatal = lambda _error: self._stop.set()
        session.start(await hold.master(), await hold.outbox())
        self.requests = requests = Requests(session, hold, status.command_pid)
        requests.frozen, requests.unstopped = self._frozen, self.unstopped
        await requests.state()
        self._notices = notices = Notices(session, hold)
        jobs = await Jobs.open(session, hold, notices.add)
        requests.add(JobRequests(session, jobs).kinds())
        server = Server(session, requests, self._folder / "sidecar.sock", self._look.set)
        self._server = server
        self.serving.set()
        if status.exited:
            self._ended(Exit(status.code, status.signal, status.by))
        log(f"serving {session.spec.name} from seq {session.ring.head}")
        try:
            async with asyncio.TaskGroup() as tasks:
                works = (
                    self._watch(session, server, requests),
                    self._finish(session, server, hold, jobs, last),
                    jobs.watch(),
                    notices.run(),
                )
                running = [tasks.create_task(work) for work in works]
                await self._stop.wait()
                for task in running:
                    task.cancel()
        finally:
            server.close()
            hold.close()
            jobs.close()
            session.close()

    def frozen(self) -> bool:
        return self._frozen

    def unpark(self) -> None:
        """The session stays here, with what was typed meanwhile."""
        self.session.unpark()
        if self._server is not None:
            self._server.stayed()

    def turn_away(self) -> None:
        """The session is another's: who is attached looks it up again, and finds it there."""
        self.session.superseded = True
        self.away.set()
        if self._server is not None:
            self._server.close()

    def adopt(self, sock: socket.socket) -> None:
        """A client's connection that was not made at our socket."""
        if self._server is None:
            sock.close()
        else:
            self._server.adopt(sock)

    # -- what hold says ---------------------------------------------------------------------------

    def event(self, event: HoldEvent) -> None:
        if event.kind is EventKind.EXITED:
            self._ended(Exit(event.code, event.signal, event.by))
            return
        if event.kind is EventKind.LEAVING:
            log(f"hold was told to go, and does in {event.milliseconds} ms at the latest")
            self.leaving.set()
            return
        if event.kind is EventKind.INCOMPLETE:
            self._incomplete(event.unstopped or Unstopped())
        else:
            self._frozen = event.kind is EventKind.FROZEN
            if not self._frozen:
                self.unstopped = Unstopped()
        if self.requests is not None:
            self.requests.frozen, self.requests.unstopped = self._frozen, self.unstopped

    def _incomplete(self, left: Unstopped) -> None:
        news = bool(left) and not self.unstopped
        self.unstopped = left
        log(f"the freeze is incomplete: {left}" if left else "the freeze is complete")
        if news and self._notices is not None:
            self._notices.add("a freeze left processes running: ", str(left))

    def lost(self) -> None:
        """hold itself is gone, and with it, by its own design, every process. One that was told to
        go was killed for not having gone in time."""
        by = "term" if self.leaving.is_set() else "killed"
        self._ended(Exit(None, signal.SIGKILL, by))

    def _ended(self, how: Exit) -> None:
        if not self._over.done():
            self._over.set_result(how)

    async def _finish(
        self,
        session: Session,
        server: Server,
        hold: HoldLink,
        jobs: Jobs,
        last: LastWords | None,
    ) -> None:
        how = await self._over
        if self.asleep():
            log("the session sleeps")
            self.turn_away()
            self._stop.set()
            return
        jobs.ended()
        session.ended(how)
        if session.goes_on_elsewhere:
            server.close()  # whoever is attached looks the session up again, and finds it there
        self._save(how)
        if last is not None:
            await last(how)
        with contextlib.suppress(HoldError):
            await hold.collected()
        log(f"the command ended: {how.to_json()}")
        await asyncio.sleep(_ENDED_SECONDS)
        self._stop.set()

    def _save(self, how: Exit) -> None:
        try:
            saved = self._folder / "exit.new"
            saved.write_text(json.dumps({**how.to_json(), "ended": round(time.time(), 3)}))
            saved.rename(self._folder / "exit.json")
        except OSError as error:  # a full disk must not keep the rest from being done
            log(f"how the command ended cannot be saved: {error}")

    async def unserved(self, last: LastWords) -> None:
        """hold went before anybody could be served; how it ended is told all the same."""
        how = await self._over
        self._save(how)
        await last(how)
        log(f"the command ended before it was served: {how.to_json()}")

    # -- what attached clients like to know -------------------------------------------------------

    async def _watch(self, session: Session, server: Server, requests: Requests) -> None:
        """Looks when something was printed, when somebody came, and now and then."""
        told: object = None
        looked_at, rested_at, waited = -1, -1, 0.0
        while True:
            came = self._look.is_set()
            self._look.clear()
            head = session.ring.head
            if head != rested_at and time.time() - session.last_active > _REST_SECONDS:
                rested_at = head
                session.ring.rest()
            if server.connections and (came or looked_at != head or waited >= _LOOK_IDLE_SECONDS):
                looked_at, waited = head, 0.0
                with contextlib.suppress(HoldError):
                    state = await requests.state()
                    if state != told:
                        told = state
                        session.tell({"kind": "state", **state})
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_SECONDS):
                    await self._look.wait()
            waited += _LOOK_SECONDS
