"""MCP at `/mcp`: Streamable HTTP by the official SDK, over the tools of mcp_tools.py
and mcp_jobs.py.

Each request stands for itself: it is authenticated as any other of the gateway's is, and there are
no MCP sessions. So any replica answers any request, there is no session id that another caller
could use, and nothing is kept between requests (docs/decisions/0028).

The SDK costs a second and 35 MiB to import, so that is done in a thread at the first request; a
gateway that nobody asks for MCP does not pay for it.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from aiohttp import web

from holdfast_gateway import __version__, asgi, fields, log, mcp_jobs, mcp_tools, schemas
from holdfast_gateway.auth import Caller, Modality
from holdfast_gateway.backend import Backend
from holdfast_gateway.door import Door
from holdfast_gateway.mcp_tools import INSTRUCTIONS, Tool
from holdfast_gateway.waiting import Session
from holdfast_wire.errors import BadRequest, HoldfastError, Internal, Unavailable, Unsupported
from holdfast_wire.ids import Actor

if TYPE_CHECKING:
    from mcp.server import ServerRequestContext
    from mcp.server.lowlevel import Server
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
    from mcp.types import (
        CallToolRequestParams,
        CallToolResult,
        ListToolsResult,
        PaginatedRequestParams,
    )

PATH: Final = "/mcp"
TOOLS: Final[tuple[Tool, ...]] = (*mcp_tools.TOOLS, *mcp_jobs.TOOLS)
# Of requests at once; a call that waits takes one. More are told to try again.
MOST: Final = 256
MOST_OF_ONE: Final = 32
_CALLER: Final = "holdfast_caller"


class Mcp:
    def __init__(self, door: Door, sessions: Backend) -> None:
        self._door, self._sessions = door, sessions
        self._manager: asyncio.Task[StreamableHTTPSessionManager] | None = None
        self._serving: asyncio.Task[None] | None = None
        self._busy: Counter[Actor] = Counter()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        caller = replace(await self._door.caller(request), modality=Modality.MCP)
        who = caller.actor
        if self._busy[who] >= MOST_OF_ONE or self._busy.total() >= MOST:
            raise Unavailable("too many requests at once", "try again when some have ended")
        self._busy[who] += 1
        try:
            manager = await self._started()
            return await asgi.respond(manager.handle_request, request, {_CALLER: caller})
        finally:
            self._busy[who] -= 1
            if not self._busy[who]:
                del self._busy[who]

    async def close(self, _: web.Application) -> None:
        if self._serving is not None:
            self._serving.cancel()
            await asyncio.wait({self._serving})

    # -- the SDK

    async def _started(self) -> StreamableHTTPSessionManager:
        if self._manager is None or (self._manager.done() and self._manager.exception()):
            self._manager = asyncio.create_task(self._start())
        return await asyncio.shield(self._manager)

    async def _start(self) -> StreamableHTTPSessionManager:
        try:
            manager = await asyncio.to_thread(self._made)
        except ImportError:
            raise Unsupported(
                "this gateway has no MCP", "install it with 'holdfast[gateway]', which has it"
            ) from None
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def serve() -> None:
            """Its task group is entered and left in one task, for as long as the gateway lives."""
            async with manager.run():
                ready.set_result(None)
                await asyncio.Event().wait()

        self._serving = asyncio.create_task(serve())
        await ready
        return manager

    def _made(self) -> StreamableHTTPSessionManager:
        from mcp.server.lowlevel import Server
        from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

        logging.getLogger("mcp").setLevel(logging.WARNING)  # else a line for each request
        server: Server[Any] = Server(
            "holdfast",
            version=__version__,
            title="holdfast: live terminal sessions",
            instructions=INSTRUCTIONS,
            on_list_tools=self._list,
            on_call_tool=self._call,
        )
        return StreamableHTTPSessionManager(server, stateless=True)

    async def _list(
        self, _: ServerRequestContext[Any, Any], __: PaginatedRequestParams | None
    ) -> ListToolsResult:
        from mcp.types import ListToolsResult

        return ListToolsResult(tools=[_described(tool) for tool in TOOLS])

    async def _call(
        self, context: ServerRequestContext[Any, Any], params: CallToolRequestParams
    ) -> CallToolResult:
        if context.request is None:
            raise RuntimeError("a request without its caller")
        caller: Caller = context.request.scope["state"][_CALLER]
        try:
            return _told(await self._acted(caller, params.name, params.arguments))
        except HoldfastError as error:
            return _failed(error)
        except Exception as error:
            log.fault("tool_failed", error, tool=params.name)
            return _failed(Internal("the gateway failed", "its log has the reason"))

    async def _acted(
        self, caller: Caller, name: str, arguments: dict[str, Any] | None
    ) -> dict[str, Any]:
        tool = _BY_NAME.get(name)
        if tool is None:
            known = ", ".join(_BY_NAME)
            raise BadRequest(f"there is no tool {name[:40]!r}", f"there are: {known}")
        given = tool.checked(arguments)
        log.debug("tool", name=name, session=given.get("session"), **caller.to_json())
        return await tool.act(Session(self._sessions, caller, given.get("session", "")), given)


_BY_NAME: Final = {tool.name: tool for tool in TOOLS}


def _described(tool: Tool) -> Any:
    from mcp.types import Tool as Described
    from mcp.types import ToolAnnotations

    return Described(
        name=tool.name,
        title=tool.title,
        description=tool.says,
        input_schema=fields.schema_of(tool.takes),
        output_schema=schemas.inlined(tool.gives),
        annotations=ToolAnnotations(
            title=tool.title,
            read_only_hint=tool.reads_only,
            destructive_hint=tool.destructive,
            idempotent_hint=tool.idempotent or tool.reads_only,
            open_world_hint=True,
        ),
    )


def _told(body: dict[str, Any]) -> CallToolResult:
    """Structured, and for clients that only show text the same as JSON."""
    from mcp.types import CallToolResult, TextContent

    text = TextContent(type="text", text=json.dumps(body, ensure_ascii=False))
    return CallToolResult(content=[text], structured_content=body)


def _failed(error: HoldfastError) -> CallToolResult:
    from mcp.types import CallToolResult, TextContent

    text = TextContent(type="text", text=f"{error.code}: {error}")
    body = {"error": error.to_json()}
    return CallToolResult(content=[text], structured_content=body, is_error=True)
