"""Routes that look and change nothing."""

from __future__ import annotations

from aiohttp import web

from holdfast_gateway import schemas
from holdfast_gateway.fields import Field, Kind
from holdfast_gateway.routes import API, JSON, Call, Route, answer
from holdfast_wire.errors import Ended


async def _list(call: Call) -> web.Response:
    return answer({"sessions": await call.serving.sessions.list(call.caller)})


async def _info(call: Call) -> web.Response:
    return answer(await call.serving.sessions.describe(call.name, call.caller))


async def _screen(call: Call) -> web.Response:
    wanted = call.given["format"]
    form = "ansi" if wanted == "ansi" else "text"
    told = await call.ask("screen", {"format": form, "scrollback": call.given["scrollback"]})
    if wanted == "json":
        return answer(told)
    return web.Response(text=str(told.get("text", "")), content_type="text/plain")


async def _state(call: Call) -> web.Response:
    try:
        return answer(await call.ask("state"))
    except Ended:
        return answer((await call.serving.sessions.describe(call.name, call.caller))["state"])


async def _graph(call: Call) -> web.Response:
    return answer(await call.ask("graph"))


async def _journal(call: Call) -> web.Response:
    return answer(await call.ask("journal", call.given))


_SCREEN = (
    Field(
        "format",
        Kind.TEXT,
        "`text` and `ansi` (with colours) are plain text; `json` has the text, cursor and seq.",
        default="text",
        choices=("text", "ansi", "json"),
    ),
    Field("scrollback", Kind.FLAG, "With what has scrolled away.", default=False),
)
_JOURNAL = (
    Field(
        "after",
        Kind.COUNT,
        "Records after this `number`, the oldest first; without it, the last.",
        low=0,
        high=2**53,
    ),
    Field("limit", Kind.COUNT, "At most so many.", default=1000, low=1, high=5000),
)

ROUTES = (
    Route(
        "GET",
        f"{API}/sessions",
        "listSessions",
        "list",
        "Sessions that you may observe.",
        _list,
        {JSON: schemas.SESSIONS},
    ),
    Route("GET", "", "getSession", "info", "One session.", _info, {JSON: schemas.ref("Session")}),
    Route(
        "GET",
        "screen",
        "getScreen",
        "screen",
        "What is on the screen.",
        _screen,
        {"text/plain": {"type": "string"}, JSON: schemas.ref("Screen")},
        query=_SCREEN,
    ),
    Route(
        "GET",
        "state",
        "getState",
        "state",
        "What the session is doing, from what the kernel knows.",
        _state,
        {JSON: schemas.ref("State")},
    ),
    Route(
        "GET",
        "graph",
        "getGraph",
        "graph",
        "Its processes and listening ports, since when, and whether one waits for an answer.",
        _graph,
        {JSON: schemas.ref("Graph")},
    ),
    Route(
        "GET",
        "journal",
        "getJournal",
        "journal",
        "Who did what, in order.",
        _journal,
        {JSON: schemas.JOURNAL},
        query=_JOURNAL,
    ),
)
