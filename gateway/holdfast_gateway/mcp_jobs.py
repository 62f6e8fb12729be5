"""Tools for jobs: commands in the session beside what is on its terminal. As mcp_tools.py."""

from __future__ import annotations

import asyncio
import base64
from typing import Any, Final

from holdfast_gateway import fields, job_schemas
from holdfast_gateway.backend import REQUEST_SECONDS
from holdfast_gateway.fields import Field, Given, Kind
from holdfast_gateway.guard import while_allowed
from holdfast_gateway.mcp_tools import MOST_TEXT, SESSION, Tool, seconds
from holdfast_gateway.schemas import COUNT, FLAG, TEXT, every, thing
from holdfast_gateway.waiting import Session
from holdfast_wire.rights import Right

# One look: each asks anew whether the caller may.
_LOOK_SECONDS: Final = 2.0


async def _start(session: Session, given: Given) -> dict[str, Any]:
    return await session.ask("job_start", {k: v for k, v in given.items() if k != "session"})


async def _list(session: Session, _: Given) -> dict[str, Any]:
    return await session.ask("job_list")


async def _get(session: Session, given: Given) -> dict[str, Any]:
    async def work() -> dict[str, Any]:
        return await _followed(session, given)

    if not given["timeout"]:
        return await work()
    return await while_allowed(session.sessions, session.name, session.caller, Right.OBSERVE, work)


async def _followed(session: Session, given: Given) -> dict[str, Any]:
    """Its output until it is over, the time is, or there is as much as one answer holds."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + given["timeout"]
    after, output, lost = given["after"], b"", 0
    while True:
        wait = max(0.0, min(_LOOK_SECONDS, deadline - loop.time()))
        asked = {"job": given["job"], "after": after, "wait": wait}
        asked["limit"] = MOST_TEXT - len(output)
        told = await session.ask("job_output", asked, REQUEST_SECONDS + wait)
        output += base64.b64decode(told["base64"])
        after, lost = told["end"], lost + told["lost"]
        if told["complete"] or len(output) >= MOST_TEXT or loop.time() >= deadline:
            break
    text = output.decode(errors="replace")
    kept = {"job": told["job"], "output": text, "next": after, "lost": lost}
    return {**kept, "complete": told["complete"]}


async def _signal(session: Session, given: Given) -> dict[str, Any]:
    return await session.ask("job_signal", {"job": given["job"], "signal": given["signal"]})


_JOB: Final = Field("job", Kind.TEXT, "Its id.", required=True, longest=64)

TOOLS: Final = (
    Tool(
        "start_job",
        ("job_start",),
        "Start a job",
        "Runs a command in the session, with its directory and environment, beside what is on the"
        " terminal: whoever types there is not disturbed, and sees one line with your name. For"
        " what takes long. Its input is empty; for what must ask or change the shell, use run.",
        _start,
        (
            SESSION,
            Field("command", Kind.TEXT, "For `/bin/sh -c`.", required=True, pattern=r"\S"),
            Field("cwd", Kind.TEXT, "A directory; if not said, the shell's.", pattern="^/"),
            fields.key("this job"),
        ),
        thing({"job": job_schemas.JOB, "duplicate": FLAG}),
        destructive=True,
    ),
    Tool(
        "get_job",
        ("job_output",),
        "Follow a job",
        "A job's state, exit status and output; waits up to `timeout` for its end.",
        _get,
        (
            SESSION,
            _JOB,
            Field(
                "after", Kind.COUNT, "Output from this byte on: the last answer's `next`.",
                default=0, low=0, high=2**53,
            ),
            seconds("timeout", "Seconds to wait for its end.", 30.0),
        ),
        thing(
            {
                "job": job_schemas.JOB,
                "output": TEXT,
                "next": {**COUNT, "description": "Where it goes on."},
                "lost": {**COUNT, "description": "Bytes that are not kept any more."},
                "complete": {**FLAG, "description": "There is no more, and will not be."},
            }
        ),
        reads_only=True,
    ),
    Tool(
        "list_jobs",
        ("job_list",),
        "List jobs",
        "The session's jobs that are kept.",
        _list,
        (SESSION,),
        thing({"jobs": every(job_schemas.JOB)}),
        reads_only=True,
    ),
    Tool(
        "signal_job",
        ("job_signal",),
        "Signal a job",
        "Sends a signal to all of a job's processes.",
        _signal,
        (
            SESSION,
            _JOB,
            Field(
                "signal", Kind.TEXT, "Its name.", default="TERM",
                choices=("INT", "TERM", "HUP", "QUIT", "KILL", "USR1", "USR2"),
            ),
        ),
        thing({"job": job_schemas.JOB}),
        destructive=True,
    ),
)  # fmt: skip
