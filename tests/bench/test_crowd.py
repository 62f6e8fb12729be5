"""The benchmark's viewers: they attach like anybody, and take all that comes."""

from __future__ import annotations

import asyncio
import fcntl
import json
import ssl
import sys
import termios
from pathlib import Path

from aiohttp import WSMsgType, web
from bench.crowd import Where

from gateway_kit import ROOT
from holdfast_wire.frames import Attach, Control, Output, Part, Snapshot, decode, encode
from uplink_kit import authority, until

PATIENCE = 20.0


def _arrived(transport: asyncio.Transport) -> bool:
    """Nothing is on its way any more: neither here nor in the kernel."""
    unsent = fcntl.ioctl(transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, bytes(4))
    return not transport.get_write_buffer_size() and not int.from_bytes(unsent, sys.byteorder)


async def test_they_attach_and_take_what_comes(tmp_path: Path) -> None:
    ca = authority()
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(*ca.sign(tmp_path, "gateway", "localhost"))
    attached, flood = list[object](), asyncio.Event()
    transports: list[asyncio.Transport] = []

    async def stream(request: web.Request) -> web.WebSocketResponse:
        assert request.headers["Authorization"] == "Bearer secret"
        answer = web.WebSocketResponse(protocols=("holdfast.v1",))
        await answer.prepare(request)
        first = await answer.receive()
        assert first.type is WSMsgType.BINARY
        attached.append(decode(first.data))
        await answer.send_bytes(encode(Control({"kind": "clients", "clients": ["x" * 70_000]})))
        await answer.send_bytes(encode(Snapshot(0, 80, 24, Part.FIRST, b"half")))
        await answer.send_bytes(encode(Snapshot(0, 80, 24, Part.LAST, b"of it")))
        await flood.wait()
        await answer.send_bytes(encode(Output(0, b"x" * 500_000)))
        assert request.transport is not None
        transports.append(request.transport)
        await answer.receive()
        return answer

    app = web.Application()
    app.router.add_get("/stream", stream)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
    await site.start()
    port = runner.addresses[0][1]
    where = Where("127.0.0.1", port, "localhost", ca.pem, "/stream", "secret", 3)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bench.crowd"), cwd=ROOT,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        async with asyncio.timeout(PATIENCE):
            process.stdin.write(where.to_line().encode())
            assert await process.stdout.readline() == b"ready\n"
            assert attached == [Attach({"columns": 80, "rows": 24, "mode": "view"})] * 3
            flood.set()
            await until(lambda: len(transports) == 3 and all(map(_arrived, transports)))
            process.stdin.close()
            came = json.loads(await process.stdout.readline())
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
        await runner.cleanup()
    assert len(came) == 3
    assert all(500_000 < count < 600_000 for count in came)
