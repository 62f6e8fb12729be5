"""Jobs over HTTP: started with a key, followed by their output, ended by a signal. docs/jobs.md

Output is followed in three ways: plain text with where it goes on in the headers, JSON, and
server-sent events, whose ids are that position.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
from typing import Any, Final

from aiohttp import web

from holdfast_gateway import fields, job_schemas, schemas
from holdfast_gateway.backend import REQUEST_SECONDS
from holdfast_gateway.events import MEDIA, wants_events
from holdfast_gateway.fields import Field, Kind
from holdfast_gateway.guard import while_allowed
from holdfast_gateway.routes import JSON, Call, Route, answer
from holdfast_gateway.sse import KEEP_ALIVE, event, problem, said
from holdfast_wire.errors import BadRequest, HoldfastError, Retry
from holdfast_wire.rights import Right, path_of

MAX_WAIT_SECONDS: Final = 30
_LIMIT: Final = 512 << 10
# One look of a follower: every look asks anew whether he may, and whether he is still there.
_LOOK_SECONDS: Final = 2.0
_KEEP_ALIVE_SECONDS: Final = 15.0
# A session that moves is back well within this.
_AWAY_SECONDS: Final = 120.0
_STUCK_SECONDS: Final = 60.0
_PAUSE_SECONDS: Final = 0.2


async def _start(call: Call) -> web.Response:
    told = await call.ask("job_start", call.given)
    job = told["job"]
    response = answer({**job, "duplicate": told["duplicate"]}, 202)
    # Through the API server jobs are started and looked at below different rights.
    at = call.request.path.rstrip("/").removesuffix(f"/{path_of(Right.RUN, 'jobs')}")
    jobs = at if at.endswith("/jobs") else f"{at}/{path_of(Right.OBSERVE, 'jobs')}"
    response.headers["Location"] = f"{jobs}/{job['id']}"
    return response


async def _list(call: Call) -> web.Response:
    return answer(await call.ask("job_list"))


async def _get(call: Call) -> web.Response:
    return answer((await call.ask("job_get", {"job": _id(call)}))["job"])


async def _signal(call: Call) -> web.Response:
    told = await call.ask("job_signal", {"job": _id(call), "signal": call.given["signal"]})
    return answer(told["job"])


async def _output(call: Call) -> web.StreamResponse:
    if wants_events(call.request):
        return await _Following(call).run()
    given = {name: call.given[name] for name in ("after", "limit", "wait")}
    told, data = await _asked(call, given)
    if call.given["format"] == "json":
        return answer(_told(told, data))
    return web.Response(
        body=data,
        headers={
            "Content-Type": "text/plain; charset=utf-8",
            "Holdfast-Next": str(told["end"]),
            "Holdfast-Lost": str(told["lost"]),
            "Holdfast-Complete": "true" if told["complete"] else "false",
        },
    )


def _id(call: Call) -> str:
    return str(call.request.match_info["id"])


async def _asked(call: Call, given: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
    seconds = REQUEST_SECONDS + float(given["wait"])

    async def work() -> dict[str, Any]:
        return await call.ask("job_output", {"job": _id(call), **given}, seconds=seconds)

    if not given["wait"]:
        told = await work()
    else:  # who may not any more hears so at once
        told = await while_allowed(
            call.serving.sessions, call.name, call.caller, Right.OBSERVE, work
        )
    return told, base64.b64decode(told.pop("base64"))


def _told(told: dict[str, Any], data: bytes) -> dict[str, Any]:
    """As text. Half a character at the end comes with the next, unless there is none."""
    body, rest = said(data)
    if rest and told["complete"]:
        body = {"base64": base64.b64encode(data).decode()}
    elif rest:
        told = {**told, "end": told["end"] - len(rest)}
    return {**told, **body}


class _Following:
    """One answer that goes on until the job is over, or its reader is gone."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._after = _resumed(call)
        self._response = web.StreamResponse(
            headers={
                "Content-Type": MEDIA,
                "Cache-Control": "no-store",
                "X-Accel-Buffering": "no",
                "X-Content-Type-Options": "nosniff",
            }
        )

    async def run(self) -> web.StreamResponse:
        """An error before anything was sent is a plain one."""
        told, data = await self._ask(0)
        await self._response.prepare(self._call.request)
        try:
            while True:
                await self._tell(told, data)
                if told["complete"] or self._gone():
                    return self._response
                told, data = await self._next()
        except HoldfastError as error:
            with contextlib.suppress(OSError, TimeoutError):
                await self._write(problem(error))
        except (OSError, TimeoutError):
            pass  # the reader has gone, or takes nothing
        return self._response

    async def _ask(self, wait: float) -> tuple[dict[str, Any], bytes]:
        given = {"after": self._after, "limit": _LIMIT, "wait": wait}
        return await _asked(self._call, given)

    async def _next(self) -> tuple[dict[str, Any], bytes]:
        """When there is more. A session that is away for a while is waited for."""
        loop = asyncio.get_running_loop()
        told_at = answered = loop.time()
        while True:
            try:
                told, data = await self._ask(_LOOK_SECONDS)
                answered = loop.time()
            except Retry:
                if loop.time() - answered > _AWAY_SECONDS:
                    raise
                await asyncio.sleep(_PAUSE_SECONDS)
            else:
                if data or told["complete"] or self._gone():
                    return told, data
            if loop.time() - told_at >= _KEEP_ALIVE_SECONDS:
                told_at = loop.time()
                await self._write(KEEP_ALIVE)

    async def _tell(self, told: dict[str, Any], data: bytes) -> None:
        if data:
            body = _told(told, data)
            self._after = int(body["end"])
            shown = ("start", "end", "lost", "text", "base64")
            output = {name: value for name, value in body.items() if name in shown}
            await self._write(event("output", output, str(self._after)))
        if told["complete"]:
            await self._write(event("ended", told["job"], str(self._after)))

    async def _write(self, data: bytes) -> None:
        async with asyncio.timeout(_STUCK_SECONDS):
            await self._response.write(data)

    def _gone(self) -> bool:
        transport = self._call.request.transport
        closing = self._call.serving.streams.closing
        return closing or transport is None or transport.is_closing()


def _resumed(call: Call) -> int:
    last = call.request.headers.get("Last-Event-ID")
    if last is None:
        return int(call.given["after"])
    if not (last.isascii() and last.isdigit() and len(last) < 17):
        raise BadRequest(
            "the Last-Event-ID is none of this job",
            "send the 'id' of the last event as it came, or no such header",
        )
    return int(last)


_START = (
    Field("command", Kind.TEXT, "For `/bin/sh -c`.", pattern=r"\S", either="job"),
    Field("argv", Kind.TEXTS, "A program and its arguments, without a shell.", either="job"),
    Field("cwd", Kind.TEXT, "A directory; if not said, the shell's.", pattern="^/"),
    Field("env", Kind.TABLE, "Variables beside the shell's own."),
    fields.key("this job"),
)
_OUTPUT = (
    Field("after", Kind.COUNT, "From this byte on.", default=0, low=0, high=2**53),
    Field("limit", Kind.COUNT, "At most so many bytes.", default=_LIMIT, low=1, high=_LIMIT),
    Field(
        "wait", Kind.COUNT, "Seconds to wait for more, if there is none yet.",
        default=0, low=0, high=MAX_WAIT_SECONDS,
    ),
    Field(
        "format", Kind.TEXT, "`text` is the output as it is; `json` says where it goes on.",
        default="text", choices=("text", "json"),
    ),
)  # fmt: skip
_SIGNALS: Final = ("HUP", "INT", "QUIT", "KILL", "USR1", "USR2", "TERM", "STOP", "CONT", "WINCH")
_SIGNAL = (Field("signal", Kind.TEXT, "Its name.", required=True, choices=_SIGNALS),)

ROUTES = (
    Route(
        "POST",
        "jobs",
        "startJob",
        "job_start",
        "Run a command in the session, beside what is on its terminal.",
        _start,
        {JSON: job_schemas.STARTED},
        body=_START,
        status=202,
    ),
    Route(
        "GET",
        "jobs",
        "listJobs",
        "job_list",
        "Those that are kept.",
        _list,
        {JSON: job_schemas.JOBS},
    ),
    Route("GET", "jobs/{id}", "getJob", "job_get", "One job.", _get, {JSON: schemas.ref("Job")}),
    Route(
        "GET",
        "jobs/{id}/output",
        "getJobOutput",
        "job_output",
        "What it printed, and prints.",
        _output,
        {"text/plain": schemas.TEXT, JSON: schemas.ref("JobOutput"), MEDIA: schemas.TEXT},
        query=_OUTPUT,
    ),
    Route(
        "POST",
        "jobs/{id}/signal",
        "signalJob",
        "job_signal",
        "Send a signal to all of its processes.",
        _signal,
        {JSON: schemas.ref("Job")},
        body=_SIGNAL,
    ),
)
