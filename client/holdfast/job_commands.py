"""The commands about jobs: commands that run in a session, beside its terminal."""

from __future__ import annotations

import sys
from base64 import b64decode
from typing import TYPE_CHECKING, Any, Final

from holdfast.arguments import Given
from holdfast.commands import no_more, structured, write
from holdfast.places import place_of
from holdfast.render import Cell, Style, table, to_stderr
from holdfast_wire.errors import BadRequest
from holdfast_wire.exits import describe_exit
from holdfast_wire.ids import shown
from holdfast_wire.plain import plain

if TYPE_CHECKING:
    from holdfast.connection import Connection

# The session waits so long for more output before it says that there is none.
WAIT_SECONDS: Final = 20.0
_SLACK_SECONDS: Final = 15.0


def job(given: Given) -> int:
    options = given.options
    place = place_of(given)
    if given.after:
        no_more(given.words[1:])
        with place.connect(place.pick(given.words)) as session:
            return _started(given, session)
    if len(given.words) < 2:
        raise BadRequest(
            "which job, or which command?",
            f"for example: {place.advise('job', given.words[0] if given.words else 'NAME')}"
            " -- make test",
        )
    no_more(given.words[2:])
    name, identity = given.words
    with place.connect(name) as session:
        if options.signal:
            found = session.request("job_signal", job=identity, signal=options.signal)["job"]
        else:
            found = session.request("job_get", job=identity)["job"]
        if structured(options.output, found):
            return 0
        if options.signal:
            write(f"{_line(found)}\n")
            return 0
        return follow(session, identity, to_the_end=options.follow)


def _started(given: Given, session: Connection) -> int:
    options = given.options
    argv = given.after or []
    body = {"command": argv[0]} if len(argv) == 1 else {"argv": argv}
    answer = session.request(
        "job_start", **body, key=options.key, cwd=options.cwd, env=dict(options.env) or None
    )
    found = answer["job"]
    if answer.get("duplicate"):
        to_stderr("this key was used before; the command is not run again")
    if structured(options.output, found):
        return 0
    if options.detach:
        write(f"{plain(found['id'])}\n")
        return 0
    return follow(session, str(found["id"]), to_the_end=True)


def follow(session: Connection, identity: str, *, to_the_end: bool) -> int:
    """Its output, as bytes; the exit code is the job's, if it is over."""
    after = 0
    sys.stdout.flush()
    while True:
        wait = WAIT_SECONDS if to_the_end else 0.0
        part = session.request(
            "job_output", job=identity, after=after, wait=wait, within=wait + _SLACK_SECONDS
        )
        if part.get("lost"):
            to_stderr(f"{part['lost']} bytes of its output are not kept any more")
        data = b64decode(part["base64"])
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        after = int(part["end"])
        if part.get("complete"):
            return _code(part["job"])
        if not to_the_end and not data:
            to_stderr(f"it goes on: {_line(part['job'])}; follow it with --follow")
            return 0


def _code(found: dict[str, Any]) -> int:
    if found.get("error"):
        to_stderr(plain(found["error"]))
    return describe_exit(found.get("exit") or {})[1]


def _line(found: dict[str, Any]) -> str:
    return f"{plain(found.get('id'))} {plain(found.get('state'))}"


def jobs(given: Given) -> int:
    no_more(given.words[1:], given.after)
    place = place_of(given)
    with place.connect(place.pick(given.words)) as session:
        result = session.request("job_list")
    if structured(given.options.output, result):
        return 0
    found = [one for one in result.get("jobs") or () if isinstance(one, dict)]
    if not found:
        to_stderr("there are no jobs; start one with: " + place.advise("job NAME -- COMMAND"))
        return 0
    rows = [
        [
            Cell(str(one.get("id"))),
            Cell(str(one.get("state"))),
            Cell(str(describe_exit(one["exit"])[1]) if one.get("exit") else "-"),
            Cell(shown(one) or "-"),
            Cell(str(one.get("title") or "")),
        ]
        for one in found
    ]
    write(table(("ID", "STATE", "EXIT", "ACTOR", "COMMAND"), rows, Style.of(sys.stdout)))
    return 0
