"""Two pods in the engine's bench, as an agent finds them: containers with hold, and sidecars that
are stand-ins and answer as docs/checkpoints.md says."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from e2e import engine_kit as kit
from holdfast_node import containers, layer
from holdfast_node.containers import Pod
from holdfast_node.peers import keeper_of
from holdfast_node.tree import Place
from holdfast_wire.errors import NotFound

POD_A: Final = "0f6b1c34-5e2d-4b6f-9a8e-1234567890aa"
POD_B: Final = "0f6b1c34-5e2d-4b6f-9a8e-1234567890bb"
_OWN: Final = ("session", "namespace", "epoch")  # whom it is meant for
_ROOTED: Final = "import os, sys; os.chroot(sys.argv[1]); print(flush=True); sys.stdin.read()"


class Sidecar:
    """A process with a root of its own, and the socket in it, which this process answers."""

    def __init__(self, root: Path) -> None:
        self.state = root / "var/lib/holdfast"
        self.state.mkdir(parents=True)
        self.serving = False
        self.asked: list[dict[str, Any]] = []
        self.refusals: dict[str, list[str]] = {}
        self.seen: dict[str, Callable[[], None]] = {}  # what to do when asked
        self._process = subprocess.Popen(
            [sys.executable, "-c", _ROOTED, str(root)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._process.stdout is not None
        self._process.stdout.readline()
        self.pid = self._process.pid

    async def listen(self) -> asyncio.Server:
        short = f"/proc/{self.pid}/root/var/lib/holdfast/agent.sock"
        return await asyncio.start_unix_server(self._talk, short)

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        body = json.loads(await reader.readline())
        self.asked.append({key: body[key] for key in body if key not in _OWN})
        answer = self._answer(body["do"])
        writer.write(json.dumps(answer).encode() + b"\n")
        await writer.drain()
        writer.close()

    def _answer(self, do: str) -> dict[str, Any]:
        self.seen.get(do, lambda: None)()
        if refusals := self.refusals.get(do):
            return {"ok": False, "code": refusals.pop(0), "message": "as the test wants it"}
        return {"ok": True, "seq": 7, "files": ["ring"], "serving": self.serving}

    @property
    def words(self) -> list[str]:
        return [body["do"] for body in self.asked]

    def close(self) -> None:
        with self._process:  # closes its input, which ends it
            pass


class Pods:
    """Those that were put there. Both sidecars run from the beginning."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._found: dict[str, Pod] = {}
        self._sidecars = {uid: Sidecar(folder / uid) for uid in (POD_A, POD_B)}
        self.here, self.there = self._sidecars[POD_A], self._sidecars[POD_B]
        monkeypatch.setattr(containers, "find", self.find)
        monkeypatch.setattr(layer, "places_of", _home)
        (self.here.state / "ring").write_bytes(b"what was shown")

    def find(self, uid: str) -> Pod:
        if uid not in self._found:
            raise NotFound(f"no session runs in pod {uid} on this node")
        return self._found[uid]

    def put(self, uid: str, container: kit.Container) -> None:
        self._found[uid] = Pod(uid, container.hold, self._sidecars[uid].pid)

    def remove(self, uid: str) -> None:
        del self._found[uid]

    @contextlib.asynccontextmanager
    async def served(self) -> AsyncIterator[None]:
        servers = [await sidecar.listen() for sidecar in self._sidecars.values()]
        try:
            yield
        finally:
            for server in servers:
                server.close()
            for sidecar in self._sidecars.values():
                sidecar.close()


def _home(pid: int, _volumes: object) -> dict[str, Place]:
    """The bench's overlays are not the host's to see: a folder goes along instead."""
    return {"layer": layer.volume_of(pid, "/home/user")}


@contextlib.contextmanager
def typist(container: kit.Container) -> Iterator[kit.Typist]:
    found = containers.terminal_of(keeper_of(container.hold))
    made = kit.Typist(found.master)
    try:
        yield made
    finally:
        made.close()
