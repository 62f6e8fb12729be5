"""The stream of a session: frames over a WebSocket (relay.py), or events (events.py)."""

from __future__ import annotations

import asyncio
from typing import Final

from aiohttp import web

from holdfast_gateway import auth, events, log
from holdfast_gateway.relay import MAX_CLIENT_MESSAGE, bid_farewell, relay
from holdfast_gateway.routes import Call, Route, Streams
from holdfast_wire.errors import BadRequest, Unsupported

# Finds peers that vanished behind a tunnel without a word.
_HEARTBEAT_SECONDS: Final = 30.0
# Who sends more than he may is told so; who sends more than the largest frame is cut off.
_CUT_OFF_BYTES: Final = 4 * MAX_CLIENT_MESSAGE


def upgrade_asked(request: web.Request) -> bool:
    return request.headers.get("Upgrade", "").lower() == "websocket"


async def _stream(call: Call) -> web.StreamResponse:
    if upgrade_asked(call.request):
        return await _socket(call)
    if events.wants_events(call.request):
        return await events.follow(call)
    raise BadRequest(
        "this route is a stream", f"ask for a WebSocket, or send 'Accept: {events.MEDIA}'"
    )


def _check_version(request: web.Request) -> None:
    """One that names no version speaks the one that there is, and each frame says which."""
    named = [one for one in auth.subprotocols(request.headers) if one.startswith(auth.FAMILY)]
    if named and auth.SUBPROTOCOL not in named:
        raise Unsupported(
            f"this gateway speaks {auth.SUBPROTOCOL}, not {', '.join(named)[:80]}",
            "upgrade the gateway, or use a client of its version",
        )


async def _socket(call: Call) -> web.StreamResponse:
    _check_version(call.request)
    socket = web.WebSocketResponse(
        protocols=(auth.SUBPROTOCOL,),
        heartbeat=_HEARTBEAT_SECONDS,
        max_msg_size=_CUT_OFF_BYTES,
        compress=False,
    )
    if not socket.can_prepare(call.request):
        raise BadRequest("this is not how a WebSocket is asked for", "see RFC 6455")
    # Before the upgrade, so that a session that has ended or is away is a plain error.
    async with call.serving.sessions.connect(call.name, call.caller) as link:
        await socket.prepare(call.request)
        sockets = call.serving.streams.sockets
        sockets.add(socket)
        log.info("client_attached", session=call.name, **call.caller.to_json())
        try:
            await relay(socket, link, call.caller)
        finally:
            sockets.discard(socket)
            log.info("client_left", session=call.name, code=socket.close_code)
    return socket


async def close_all(streams: Streams) -> None:
    """Whoever is attached is told to come back: by a close, or by the end of the answer."""
    streams.closing = True
    every = [bid_farewell(socket, 1001, b"gateway stops") for socket in set(streams.sockets)]
    await asyncio.gather(*every)


ROUTES = (
    Route(
        "GET",
        "stream",
        "stream",
        "stream",
        "The session live: a snapshot, then its output at exact positions, and its news.",
        _stream,
        {events.MEDIA: {"type": "string"}},
        upgrades=True,
    ),
)
