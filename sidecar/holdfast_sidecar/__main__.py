"""`python -m holdfast_sidecar --dir FOLDER`: serves the session in that folder until it ends."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import fcntl
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Final

from holdfast_sidecar import spec
from holdfast_sidecar.hold import EventKind, HoldError, HoldEvent, HoldLink
from holdfast_sidecar.requests import Requests
from holdfast_sidecar.server import Server
from holdfast_sidecar.session import Exit, Session
from holdfast_wire.errors import HoldfastError

# An ended session's screen can be read for a while; then its sidecar goes.
_ENDED_SECONDS: Final = 600.0
# Looked at this often while somebody is attached, and a little after anything was printed.
_LOOK_SECONDS: Final = 0.5
_LOOK_IDLE_SECONDS: Final = 2.0
# After this long without output the ring's pages are given back.
_REST_SECONDS: Final = 2.0


def _log(message: str) -> None:
    print(f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} {message}", file=sys.stderr, flush=True)


def _lock(folder: Path) -> int | None:
    """Held for life: there is one sidecar of a session, or none."""
    descriptor = os.open(folder / "sidecar.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


class Sidecar:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stop = asyncio.Event()
        self._over: asyncio.Future[Exit] = asyncio.get_running_loop().create_future()
        self._look = asyncio.Event()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        asked = spec.load(self._folder / "session.json")
        hold = await HoldLink.connect(
            str(self._folder / "hold.sock"), self._event, lambda: self._ended(None)
        )
        status = await hold.status()
        session = Session(asked, self._folder)
        session.on_fatal = lambda _error: self._stop.set()
        session.start(await hold.master(), await hold.outbox())
        self._requests = requests = Requests(session, hold, status.command_pid)
        requests.frozen = status.frozen
        await requests.state()
        server = Server(session, requests, self._folder / "sidecar.sock", self._look.set)
        if status.exited:
            self._ended(Exit(status.code, status.signal))
        _log(f"serving {asked.name} from seq {session.ring.head}")
        try:
            async with asyncio.TaskGroup() as tasks:
                watch = tasks.create_task(self._watch(session, server))
                finish = tasks.create_task(self._finish(session, hold))
                await self._stop.wait()
                watch.cancel()
                finish.cancel()
        finally:
            server.close()
            hold.close()
            session.close()

    # -- what hold says ---------------------------------------------------------------------------

    def _event(self, event: HoldEvent) -> None:
        if event.kind is EventKind.EXITED:
            self._ended(Exit(event.code, event.signal))
        else:
            self._requests.frozen = event.kind is EventKind.FROZEN

    def _ended(self, how: Exit | None) -> None:
        """`None`: hold itself is gone, and with it, by its own design, every process."""
        if not self._over.done():
            self._over.set_result(how or Exit(None, signal.SIGKILL))

    async def _finish(self, session: Session, hold: HoldLink) -> None:
        how = await self._over
        session.ended(how)
        saved = self._folder / "exit.new"
        saved.write_text(json.dumps({**how.to_json(), "ended": round(time.time(), 3)}))
        saved.rename(self._folder / "exit.json")
        with contextlib.suppress(HoldError):
            await hold.collected()
        _log(f"the command ended: {how.to_json()}")
        await asyncio.sleep(_ENDED_SECONDS)
        self._stop.set()

    # -- what attached clients like to know -------------------------------------------------------

    async def _watch(self, session: Session, server: Server) -> None:
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
                    state = await self._requests.state()
                    if state != told:
                        told = state
                        session.tell({"kind": "state", **state})
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_SECONDS):
                    await self._look.wait()
            waited += _LOOK_SECONDS


async def _serve(folder: Path) -> None:
    await Sidecar(folder).run()


def main() -> int:
    parser = argparse.ArgumentParser(prog="holdfast-sidecar", description=__doc__)
    parser.add_argument("--dir", type=Path, required=True, help="the session's folder")
    folder: Path = parser.parse_args().dir
    os.umask(0o077)
    lock = _lock(folder)
    if lock is None:
        _log("another sidecar serves this session; leaving it to that one")
        return 0
    try:
        asyncio.run(_serve(folder))
    except (HoldfastError, HoldError) as error:
        _log(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
