"""kubelet asks whether a pod's sidecar lives and serves: by `hold --probe`, executed beside it, for
nothing in the pod listens on a port. Whoever connects is told one word."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final

SOCKET: Final = "probe.sock"


async def serve(path: Path, ready: Callable[[], bool]) -> asyncio.Server:
    """`alive`, if the loop turns at all; `ready`, if the session is served."""

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"ready\n" if ready() else b"alive\n")
        writer.close()

    # It takes the place of one that a killed sidecar left.
    return await asyncio.start_unix_server(answer, path, backlog=16)
