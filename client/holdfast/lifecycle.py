"""The commands that start, visit, list and end sessions."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from holdfast import folders
from holdfast.arguments import Given
from holdfast.commands import detach_keys, no_more, structured, write
from holdfast.paths import SessionFolder, session_names, state_dir
from holdfast.places import Machine
from holdfast.render import (
    STATE_COLOURS,
    Cell,
    Style,
    command_line,
    duration,
    fields,
    table,
    to_stderr,
)
from holdfast_wire.errors import BadRequest, Ended, HoldfastError, Unavailable, Unsupported
from holdfast_wire.exits import describe_exit
from holdfast_wire.ids import MAX_COLUMNS, MAX_NAME, MAX_ROWS, session_name, shown

if TYPE_CHECKING:
    from holdfast.connection import Connection
    from holdfast_wire.keys import Key

# What a Session object gets as well, when nobody's window says otherwise.
_DEFAULT_SIZE: Final = (120, 40)
_LIST_SECONDS: Final = 1.5
LISTED: Final = ("NAME", "STATE", "PID", "SIZE", "CLIENTS", "IDLE", "AGE", "COMMAND")
_END_SLACK_SECONDS: Final = 5.0


def run(given: Given) -> int:
    from holdfast.local import ensure, run_session

    options = given.options
    command = given.after or [os.environ.get("SHELL") or "bash"]
    keys = detach_keys(options.detach_keys)
    state = state_dir()
    name = options.name if options.name is not None else free_name(state, command)
    attached = os.isatty(0) and os.isatty(1) and not options.detach and not options.output
    if options.if_absent and name in session_names(state) and _lives(state, name):
        _awake(folders.find(state, name))
        folder = ensure(name, to_stderr)
        return _attach(folder, keys, view=False) if attached else _started(folder, options.output)
    try:
        folder = run_session(
            name,
            command,
            Path(options.cwd or ".").expanduser().absolute(),
            options.size or window(),
            options.scrollback,
            os.environ,
            to_stderr,
        )
    except Ended:
        return _ended_at_once(state, name)
    if attached:
        return _attach(folder, keys, view=False)
    return _started(folder, options.output)


def _ended_at_once(state: Path, name: str) -> int:
    """A short command may be over before its sidecar was up. That is no failure of ours."""
    folder = folders.find(state, name)
    status = folders.exit_status(folder)
    if status is None:
        raise folders.ended_error(folder)
    words, code = describe_exit(status)
    write(f"[session {name} ended: {words}]\n")
    return code


def _started(folder: SessionFolder, output: str | None) -> int:
    from holdfast.supervisor import Supervisor

    address = Supervisor(state_dir()).ensure()
    url = address.url(folder.name)
    with Machine().connect(folder.name) as session:
        info = session.request("info")
    described = {"name": folder.name, "session_id": info.get("session_id")}
    if structured(output, {**described, "pid": info.get("pid"), "url": url}):
        return 0
    write(f"{folder.name}\n{url}\n")
    if sys.stderr.isatty():
        to_stderr(f"attach with: holdfast attach {folder.name}")
    return 0


def window() -> tuple[int, int]:
    for descriptor in (1, 0, 2):
        try:
            columns, rows = os.get_terminal_size(descriptor)
        except OSError:
            continue
        if columns >= 2 and rows >= 1:
            return min(columns, MAX_COLUMNS), min(rows, MAX_ROWS)
    return _DEFAULT_SIZE


def free_name(state: Path, command: Sequence[str]) -> str:
    """The command's name, made one for a session; with a number if a session has it."""
    base = re.sub(r"[^a-z0-9]+", "-", Path(command[0]).name.lower()).strip("-")
    base = base[: MAX_NAME - 6].strip("-") or "session"
    taken = set(session_names(state))
    number, name = 1, base
    while name in taken and _lives(state, name):
        number += 1
        name = f"{base}-{number}"
    return name


def _lives(state: Path, name: str) -> bool:
    """Also if it sleeps."""
    found = folders.life(SessionFolder(state, session_name(name)))
    return found in (folders.Life.LIVE, folders.Life.SUSPENDED)


def _awake(folder: SessionFolder) -> None:
    from holdfast.hibernation import settle, woken

    settle(folder)
    if folders.asleep(folder):
        woken(folder)


def attach(given: Given) -> int:
    no_more(given.words[1:], given.after)
    keys = detach_keys(given.options.detach_keys)
    name = Machine().pick(given.words)
    folder = folders.find(state_dir(), name)
    from holdfast.local import ensure
    from holdfast.terminal import require_terminal

    require_terminal(folder.name)
    if os.environ.get("HOLDFAST_SESSION_ID") == folders.description(folder).get("id", ""):
        raise BadRequest(
            f"you are inside session {name}; attached to itself, it would show itself for ever",
            "open another terminal, or another session",
        )
    _awake(folder)
    ensure(name, to_stderr)
    return _attach(folder, keys, view=given.options.view)


def _attach(folder: SessionFolder, keys: tuple[Key, ...], *, view: bool) -> int:
    from holdfast.attach import attach as attach_terminal
    from holdfast.attach import nonce
    from holdfast.local import LocalLink
    from holdfast.terminal import require_terminal
    from holdfast_wire.attach_core import Settings

    require_terminal(folder.name)
    again = Machine().advise("attach", folder.name)
    return attach_terminal(LocalLink(folder), Settings(folder.name, view, keys, nonce(), again))


def url(given: Given) -> int:
    from holdfast.supervisor import Supervisor

    no_more(given.words[1:], given.after)
    state = state_dir()
    name = folders.find(state, given.words[0]).name if given.words else ""
    address = Supervisor(state).ensure()
    if not structured(given.options.output, {"url": address.url(name), "port": address.port}):
        write(address.url(name) + "\n")
    return 0


def ls(given: Given) -> int:
    no_more(given.words, given.after)
    state = state_dir()
    folders = [SessionFolder(state, name) for name in session_names(state)]
    if given.options.output == "name":
        write("".join(f"{folder.name}\n" for folder in folders))
        return 0
    found = entries()
    if structured(given.options.output, {"sessions": found}):
        return 0
    if found:
        rows = [row(entry) for entry in found]
        write(table(LISTED, rows, Style.of(sys.stdout)))
    else:
        to_stderr("there are no sessions; start one with: holdfast run")
    return 0


def entries() -> list[dict[str, Any]]:
    """The sessions of this machine, with what each says of itself."""
    state = state_dir()
    folders = [SessionFolder(state, name) for name in session_names(state)]
    answers = _ask_all(folders)
    return [_entry(folder, info) for folder, info in zip(folders, answers, strict=True)]


def _ask_all(folders: list[SessionFolder]) -> list[dict[str, Any] | None]:
    """`info` of each, None where nobody answers. All are asked before the first is waited for, so
    that a sidecar that hangs costs its time once and not for each session."""
    from holdfast.connection import Connection

    asked: list[tuple[Connection, int] | None] = []
    for folder in folders:
        try:
            session = Connection.open(folder.sidecar_socket, timeout=0.2)
            asked.append((session, session.ask("info")))
        except HoldfastError:
            asked.append(None)
    deadline = time.monotonic() + _LIST_SECONDS
    answers: list[dict[str, Any] | None] = []
    for question in asked:
        if question is None:
            answers.append(None)
            continue
        session, number = question
        with session:
            try:
                answers.append(session.answer(number, max(0.01, deadline - time.monotonic())))
            except HoldfastError:
                answers.append(None)
    return answers


def _entry(folder: SessionFolder, info: dict[str, Any] | None) -> dict[str, Any]:
    life = folders.life(folder)
    if info is not None:
        return {"name": folder.name, "phase": life.value, **info}
    described = folders.description(folder)
    activity = {
        folders.Life.LIVE: "starting",  # hold lives; its sidecar is not up, or hangs
        folders.Life.ENDED: "ended",
        folders.Life.SUSPENDED: "suspended",
    }.get(life, "lost")
    return {
        "name": folder.name,
        "phase": life.value,
        "session_id": described.get("id"),
        "command": described.get("command", []),
        "created": described.get("created"),
        "columns": described.get("columns"),
        "rows": described.get("rows"),
        "clients": [],
        "state": {"activity": activity, "exit": folders.exit_status(folder)},
    }


def row(entry: dict[str, Any]) -> list[Cell]:
    """Under LISTED."""
    state = entry.get("state") or {}
    activity = str(state.get("activity", "?"))
    ended = activity in ("ended", "lost")
    shown = activity
    if isinstance(state.get("exit"), dict):
        shown = f"ended ({describe_exit(state['exit'])[1]})"
    created = entry.get("created")
    age = duration(time.time() - created) if isinstance(created, int | float) else "-"
    idle = entry.get("idle_seconds")
    pid = entry.get("pid")
    return [
        Cell(str(entry["name"]), None if ended else "bold"),
        Cell(shown, STATE_COLOURS.get(activity)),
        Cell("-" if ended or pid is None else str(pid)),
        Cell(f"{entry.get('columns')}x{entry.get('rows')}"),
        Cell(str(len(entry.get("clients") or []))),
        Cell(duration(idle) if isinstance(idle, int | float) and not ended else "-"),
        Cell(age),
        Cell(command_line(entry.get("command", []))),
    ]


def describe(given: Given) -> int:
    """What `ls -o json` has of it, in lines; a Session object has more to say."""
    no_more(given.words[1:], given.after)
    folder = folders.find(state_dir(), Machine().pick(given.words))
    entry = _entry(folder, _ask_all([folder])[0])
    if structured(given.options.output, entry):
        return 0
    state = entry.get("state") or {}
    said = describe_exit(state["exit"])[0] if state.get("exit") else state.get("sentence")
    clients = [one for one in entry.get("clients") or [] if isinstance(one, dict)]
    facts = {
        "Name": folder.name,
        "State": f"{state.get('activity')}{f': {said}' if said else ''}",
        "Command": command_line(entry.get("command", [])),
        "Process": entry.get("pid"),
        "Size": f"{entry.get('columns')}x{entry.get('rows')}",
        "Turn": shown(entry, "holder"),
        "Clients": ", ".join(f"{shown(c)} ({c.get('modality')})" for c in clients),
        "Folder": folder.path,
    }
    write(fields(facts, Style.of(sys.stdout)))
    return 0


def move(given: Given) -> int:
    raise Unsupported(
        "a session on this machine has nowhere to go",
        "sessions of a cluster can move: kubectl holdfast move NAME",
    )


def end(given: Given) -> int:
    options = given.options
    state = state_dir()
    if options.all:
        no_more(given.words, given.after)
        names: list[str] = [folder.name for folder in folders.living(state)]
        if not names:
            to_stderr("there is no session to end")
    else:
        no_more(given.words[1:], given.after)
        names = [Machine().pick(given.words)]
    failure: HoldfastError | None = None
    for name in names:
        try:
            _end(folders.find(state, name), options.grace)
        except HoldfastError as error:
            if failure is not None:
                to_stderr(str(failure))
            failure = error  # the others are ended all the same
    if failure is not None:
        raise failure
    return 0


def _end(folder: SessionFolder, grace: float) -> None:
    if folders.asleep(folder):
        from holdfast.hibernation import forget

        forget(folder)
        write(f"{folder.name} ended: it was suspended, and is not stored any more\n")
        return
    if folders.life(folder) is not folders.Life.LIVE:
        raise folders.ended_error(folder)
    with Machine().connect(folder.name) as session:
        session.request("end", grace=grace)
    deadline = time.monotonic() + grace + _END_SLACK_SECONDS
    while folders.life(folder) is folders.Life.LIVE:
        if time.monotonic() > deadline:
            raise Unavailable(
                f"session {folder.name} has not ended yet",
                f"look at it: holdfast graph {folder.name}; or: holdfast end --grace 0",
            )
        time.sleep(0.02)
    status = folders.exit_status(folder)
    words = describe_exit(status)[0] if status else "gone"
    write(f"{folder.name} ended: {words}\n")
