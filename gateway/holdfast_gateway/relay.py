"""Frames between a browser's WebSocket and a sidecar's Unix socket.

Towards the session every frame is decoded and checked, and what it says of its sender is replaced
by what we know. Towards the client bytes pass unread: only frame boundaries are kept, because a
WebSocket message must hold whole frames.

Nothing is queued here. A client that reads slowly makes `send_bytes` wait, so that this task stops
reading from the sidecar, which bounds what it keeps for us and sends a gap and a snapshot later.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from aiohttp import WSCloseCode, WSMsgType, web

from holdfast_gateway import log
from holdfast_gateway.auth import Caller
from holdfast_gateway.backend import READ_AHEAD, Link
from holdfast_wire.errors import BadRequest, HoldfastError, Internal, TooLarge
from holdfast_wire.frames import (
    HEADER,
    Attach,
    Control,
    Decoder,
    Error,
    Frame,
    FrameCutter,
    Input,
    Resize,
    encode,
    whole_frames,
)
from holdfast_wire.rights import right_of_frame

# A paste goes in parts; nothing a client has to say needs more than this at once.
MAX_CLIENT_PAYLOAD: Final = 1 << 18
MAX_CLIENT_MESSAGE: Final = MAX_CLIENT_PAYLOAD + HEADER.size
# A client that reads has the last frame and answers the close at once.
_FAREWELL_SECONDS: Final = 1.0


def vouched(frame: Frame, caller: Caller) -> Frame:
    """What goes on to the session: the client's words, with the sender we authenticated."""
    match frame:
        case Attach(body):
            return Attach({**body, **caller.to_json()})
        case Control(body):
            return Control({**body, "as": caller.to_json()})
        case Input() | Resize():
            return frame
        case _:
            raise BadRequest(f"a client does not send {type(frame).__name__.lower()} frames")


def checked(message: bytes, caller: Caller) -> list[Frame]:
    """The frames of one WebSocket message, vouched for. All of them, or an error."""
    frames = [vouched(frame, caller) for frame in Decoder(MAX_CLIENT_PAYLOAD).feed(message)]
    if whole_frames(message) != len(message):
        raise BadRequest("a message must hold whole frames")
    return frames


async def relay(socket: web.WebSocketResponse, link: Link, caller: Caller) -> None:
    """Until either side goes. Whichever does, the other is told why."""
    up = asyncio.create_task(_to_session(socket, link, caller))
    down = asyncio.create_task(_to_client(socket, link))
    cut = asyncio.create_task(_until_cut(link))
    try:
        await asyncio.wait({up, down, cut}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        outcome = await _stop(cut, up, down)
        await _close(socket, outcome)


async def _to_session(socket: web.WebSocketResponse, link: Link, caller: Caller) -> None:
    async for message in socket:
        if message.type is WSMsgType.BINARY:
            for frame in checked(message.data, caller):
                if (right := right_of_frame(frame)) is not None:
                    await link.allow(right)
                link.writer.write(encode(frame))
            await link.writer.drain()
        elif message.type is WSMsgType.TEXT:
            raise BadRequest("frames are binary", "send binary WebSocket messages")
        elif message.type is WSMsgType.ERROR:
            return


async def _to_client(socket: web.WebSocketResponse, link: Link) -> None:
    cutter = FrameCutter()
    while chunk := await link.reader.read(READ_AHEAD):
        if whole := cutter.feed(chunk):
            await socket.send_bytes(whole)


async def _until_cut(link: Link) -> None:
    await asyncio.shield(link.cut)


async def _stop(*tasks: asyncio.Task[None]) -> HoldfastError | None:
    """End all; the error a client should hear of, if there is one."""
    for task in tasks:
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    for result in results:
        if isinstance(result, HoldfastError):
            return result
        # A peer that went away is how every connection ends; anything else is a fault of ours.
        if isinstance(result, Exception) and not isinstance(result, OSError):
            log.fault("relay_failed", result)
            return Internal("the gateway failed", "its log has the reason")
    return None


async def bid_farewell(
    socket: web.WebSocketResponse, code: int, message: bytes, last: bytes = b""
) -> None:
    """Close, with a last frame if there is one; a client that does not read is cut off."""
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(_FAREWELL_SECONDS):
            if last and not socket.closed:
                await socket.send_bytes(last)
            await socket.close(code=code, message=message)


async def _close(socket: web.WebSocketResponse, error: HoldfastError | None) -> None:
    if error is None:
        # The sidecar went, or the client did. "Restart" tells a client to come back.
        await bid_farewell(socket, WSCloseCode.SERVICE_RESTART, b"")
    else:
        code = (
            WSCloseCode.MESSAGE_TOO_BIG
            if isinstance(error, TooLarge)
            else WSCloseCode.INTERNAL_ERROR
            if isinstance(error, Internal)
            else WSCloseCode.POLICY_VIOLATION
        )
        await bid_farewell(socket, code, error.code.encode(), encode(Error.of(error)))
