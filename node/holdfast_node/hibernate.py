"""Suspends and wakes a session of this machine, without a cluster. `python -m` runs it, as root.

    suspend: park, freeze ─ seal ─ dump, state ── stored: the shelf is full ── all of it is ended
    wake:    checked ─ hold, waiting ─ restored, held ─ adopted ── the shelf is empty ── it runs
    settle:  after a kill: what the shelf says is brought about

Whether it sleeps only the shelf says (shelf.py). Whatever fails before that has changed, a session
that was to sleep runs on, and one that was to wake sleeps on. What it does it says in lines of
JSON: `doing`, and at the end `done` or `error`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from holdfast_wire.errors import Ended, HoldfastError, Internal, Unavailable, Unsupported

from . import connections, local_criu, safe_open, terminal
from .peers import Refused, ask_hold_at, keeper_of
from .resting import SUSPENDING, WAKING, Resting
from .shelf import IMAGES, QUEUED, STATE, Shelf
from .terminal import Taken

if TYPE_CHECKING:
    from .engine import Engine, Restored

SESSION: Final = "session.json"
_CUT: Final = "cut.json"  # connections to the outside, which are cut; the sidecar tells of them
_RESERVED: Final = "300"
_HOLD_SECONDS: Final = 30.0
# For another suspend or wake to end; a dump that hangs is killed after 120 s.
_PATIENCE_SECONDS: Final = 150.0
# The engine's reasons are about containers and moves.
_AS_IT_WAS: Final = "put it back as it was, and wake the session again"
_WORDS: Final = {
    "is another file in the new container": "is not the file that it was",
    "is not in the new container": "is not there any more",
    "the container's image must be the same, by digest": _AS_IT_WAS,
    "keep it in the session's own file system or in a volume that moves along": _AS_IT_WAS,
    "that the new pod does not have": "that is taken now, or not this machine's any more",
    "cannot be moved": "cannot be stored",
    "only small ones can be moved": "only small ones can be stored",
    "move the session then": "try again",
    "in the new container": "here",
    "the memory that the node sets aside for moving sessions": "the disk",
    "give the node agent more memory, or let the session use less": "make room, and try again",
}


def _say(**said: Any) -> None:
    print(json.dumps(said), flush=True)


def _engine(session: Resting, lock: int, hold_program: str) -> Engine:
    """Loaded only now: CRIU's package may not be there."""
    bundle = local_criu.bundle(session.shelf.criu, Path(hold_program))
    from .engine import Engine

    return Engine(bundle, also=(lock,), hold_socket=session.hold_socket)


async def suspend(session: Resting, hold_program: str) -> dict[str, Any]:
    with session.locked(seconds=0) as lock:
        if session.shelf.full():
            await session.end()
            return {"already": True}
        hold = session.hold()
        if hold is None:
            raise Ended(f"session {session.name} has ended")
        _check(session, hold)
        with session.marked(SUSPENDING):
            try:
                engine = _engine(session, lock, hold_program)
                await _take(session, hold, engine)
                size = await asyncio.to_thread(session.shelf.finish)
            except BaseException:
                await session.run_on()
                raise
            finally:
                session.shelf.sweep()
            _say(doing="ending its processes")
            await session.end()
        shutil.rmtree(session.folder, ignore_errors=True)
        return {"bytes": size}


def _check(session: Resting, hold: int) -> None:
    found = ask_hold_at(session.hold_socket, "status")
    again = "start it again, as root: 'holdfast run', and suspend that"
    if found.get("namespace") is not True:
        raise Unsupported(
            f"session {session.name} has no PID namespace of its own, so its processes could not"
            " have their numbers again",
            again,
        )
    if safe_open.status(hold, "dev/pts").st_dev == Path("/dev/pts").stat().st_dev:
        raise Unsupported(
            f"the terminal of session {session.name} is one of the machine's, whose number may be"
            " another's by then: it was started by an earlier holdfast",
            again,
        )
    if found.get("frozen"):
        raise Unavailable(f"session {session.name} is frozen", "let it go on with 'holdfast thaw'")


async def _take(session: Resting, hold: int, engine: Engine) -> None:
    to = session.shelf.begin()
    cage = session.cage(hold)
    async with engine.dumping(hold, to / IMAGES) as dumping:
        await session.ask("park")
        keeper = await asyncio.to_thread(keeper_of, hold, session.hold_socket)
        await asyncio.to_thread(cage.freeze_tree, keeper)
        _say(doing="storing its memory")
        outside = connections.external(hold, cage.members())
        (to / _CUT).write_text(json.dumps([(one.local, one.remote) for one in outside]))
        sealed = await session.ask("seal", seconds=30.0)
        await asyncio.to_thread(session.empty_terminal, hold, to)
        await dumping.dump()
    for name in sealed["files"]:
        shutil.copyfile(session.folder / name, to / STATE / name)
    shutil.copyfile(session.folder / SESSION, to / SESSION)


async def wake(session: Resting, hold_program: str) -> dict[str, Any]:
    with session.locked(seconds=_PATIENCE_SECONDS) as lock:
        if not session.shelf.full():
            await session.run_on()
            return {"already": True}
        _say(doing="checking what was stored")
        await asyncio.to_thread(session.shelf.check)
        await session.end()
        shutil.rmtree(session.folder, ignore_errors=True)
        session.folder.mkdir(parents=True, mode=0o700)
        with session.marked(WAKING):
            try:
                engine = _engine(session, lock, hold_program)
                await _bring(session, hold_program, engine)
            except BaseException:
                if session.shelf.full():
                    await session.end()
                    shutil.rmtree(session.folder, ignore_errors=True)
                raise
            finally:
                session.shelf.sweep()
        return {"cut": len(json.loads((session.folder / _CUT).read_text()))}


async def _bring(session: Resting, hold_program: str, engine: Engine) -> None:
    stored = session.shelf.path
    for path in (stored / SESSION, stored / _CUT, *(stored / STATE).iterdir()):
        shutil.copyfile(path, session.folder / path.name)
        (session.folder / path.name).chmod(0o600)
    hold = _start_hold(session, hold_program, json.loads((stored / SESSION).read_bytes()))
    session.cage(hold)
    taken = Taken.from_json(json.loads((stored / QUEUED).read_text()))

    async def held(restored: Restored) -> None:
        try:
            await asyncio.to_thread(_adopt, session, restored, taken)
        finally:
            os.close(restored.terminal.master)
        await asyncio.to_thread(session.shelf.leave)
        _say(doing="letting it run")

    async with engine.restoring(hold, stored / IMAGES) as restoring:
        _say(doing="restoring its processes")
        await restoring.restore(held)


def _adopt(session: Resting, restored: Restored, taken: Taken) -> None:
    found = restored.terminal
    if rest := terminal.put(found.master, taken):
        raise Unavailable(f"{len(rest)} bytes that were typed do not fit into the terminal")
    adopt = f"adopt {restored.keeper_inside} {restored.command_inside} {found.path}"
    ask_hold_at(session.hold_socket, adopt, found.master)


def _start_hold(session: Resting, program: str, asked: dict[str, Any]) -> int:
    done = subprocess.run(
        [program, "--daemon", "--wait", "--namespace", "yes", "--reserve", _RESERVED,
         "--socket", str(session.hold_socket), "--", *map(str, asked["command"])],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        timeout=_HOLD_SECONDS, check=False,
    )  # fmt: skip
    hold = session.hold()
    if done.returncode != 0 or hold is None:
        raise Internal(f"hold could not be started: {done.stderr.decode(errors='replace').strip()}")
    return hold


async def settle(session: Resting) -> dict[str, Any]:
    """Somebody was killed over it."""
    with session.locked(seconds=_PATIENCE_SECONDS):
        asleep = session.shelf.full()
        if asleep:
            await session.end()
            shutil.rmtree(session.folder, ignore_errors=True)
        elif session.hold() is not None:
            await session.run_on()
        for mark in (SUSPENDING, WAKING):
            (session.folder / mark).unlink(missing_ok=True)
        session.shelf.sweep()
        return {"asleep": asleep}


def _told(error: Exception) -> dict[str, Any]:
    if not isinstance(error, HoldfastError):
        error = Internal(f"{type(error).__name__}: {error}")
    body = error.to_json()
    if isinstance(error, Refused):
        body["code"] = "unavailable"
    for key in ("message", "advice"):
        for old, new in _WORDS.items():
            body[key] = str(body.get(key) or "").replace(old, new)
    return body


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="holdfast_node.hibernate", description=__doc__)
    parser.add_argument("act", choices=("suspend", "wake", "settle"))
    parser.add_argument("--folder", type=Path, required=True, help="the session's")
    parser.add_argument("--shelf", type=Path, required=True, help="where it is stored")
    parser.add_argument("--hold", default="hold", help="the program")
    given = parser.parse_args(argv)
    os.umask(0o077)
    session = Resting(given.folder, Shelf(given.shelf))
    try:
        match given.act:
            case "suspend":
                done = asyncio.run(suspend(session, given.hold))
            case "wake":
                done = asyncio.run(wake(session, given.hold))
            case _:
                done = asyncio.run(settle(session))
    except (HoldfastError, OSError) as error:
        _say(error=_told(error))
        return 1
    _say(done=done)
    return 0


if __name__ == "__main__":
    sys.exit(main())
