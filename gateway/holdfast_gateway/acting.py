"""Routes that change something. With a `key`, what is sent twice takes effect once."""

from __future__ import annotations

from typing import Any, Final

from aiohttp import web

from holdfast_gateway import fields, schemas
from holdfast_gateway.backend import REQUEST_SECONDS
from holdfast_gateway.fields import Field, Kind
from holdfast_gateway.guard import while_allowed
from holdfast_gateway.routes import API, JSON, Call, Route, answer
from holdfast_wire.rights import Right

# An hour is longer than anybody waits on one HTTP request; it also keeps the sum finite.
MAX_EXEC_SECONDS: Final = 3600.0
# The sidecar keeps the command's own time limit; we only outwait it.
_EXEC_MARGIN_SECONDS: Final = 5.0


async def _input(call: Call) -> web.Response:
    return answer(await call.ask("send", call.given))


async def _exec(call: Call) -> web.Response:
    seconds = call.given["timeout"] + _EXEC_MARGIN_SECONDS

    async def work() -> dict[str, Any]:
        return await call.ask("exec", call.given, seconds=seconds)

    return answer(
        await while_allowed(call.serving.sessions, call.name, call.caller, Right.RUN, work)
    )


async def _end(call: Call) -> web.Response:
    seconds = REQUEST_SECONDS + float(call.given.get("grace", 0.0))
    return answer(await call.ask("end", call.given, seconds=seconds))


async def _wake(call: Call) -> web.Response:
    return answer(await call.serving.sessions.wake(call.name, call.caller))


async def _rescan(call: Call) -> web.Response:
    call.serving.poke()
    return answer({})


_INPUT = (
    Field("text", Kind.TEXT, "What to type; `\\r` is the Enter key.", either="input"),
    fields.base64_text("base64", "The same, as bytes in base64.", either="input"),
    fields.key("this input"),
)
_EXEC = (
    Field(
        "command",
        Kind.TEXT,
        "For the shell that is live in the session.",
        required=True,
        pattern=r"\S",
    ),
    Field(
        "timeout",
        Kind.NUMBER,
        "Seconds to wait for its end; it goes on after that.",
        default=60.0,
        low=0.1,
        high=MAX_EXEC_SECONDS,
    ),
    fields.key("this command"),
)
_END = (
    Field(
        "grace", Kind.NUMBER, "Seconds until what is left is killed; 5 if not said.",
        low=0.0, high=3600.0,
    ),
)  # fmt: skip

ROUTES = (
    Route(
        "POST",
        "input",
        "sendInput",
        "send",
        "Type into the terminal.",
        _input,
        {JSON: schemas.ref("Taken")},
        body=_INPUT,
    ),
    Route(
        "POST",
        "exec",
        "runCommand",
        "exec",
        "Run a command in the live shell, at its prompt, and wait for its end.",
        _exec,
        {JSON: schemas.ref("Run")},
        body=_EXEC,
    ),
    Route("POST", "end", "endSession", "end", "End it.", _end, {JSON: schemas.NOTHING}, body=_END),
    Route(
        "POST",
        "wake",
        "wakeSession",
        "wake",
        "Let it go on if it is suspended; in a cluster.",
        _wake,
        {JSON: schemas.ref("Session")},
        body=(),
    ),
    Route(
        "POST",
        f"{API}/rescan",
        "rescan",
        "",
        "Look for new sessions now; where sessions announce themselves it does nothing.",
        _rescan,
        {JSON: schemas.NOTHING},
        body=(),
    ),
)
