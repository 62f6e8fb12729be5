"""What kubelet executes, and what it hears."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from holdfast_sidecar import probe

HOLD = os.environ.get("HOLD_BIN", "build/hold")


async def hold(*arguments: str) -> tuple[int | None, str]:
    started = await asyncio.create_subprocess_exec(HOLD, *arguments, stderr=asyncio.subprocess.PIPE)
    _, said = await started.communicate()
    return started.returncode, said.decode()


async def test_alive_is_not_ready(tmp_path: Path) -> None:
    serving = False
    path = tmp_path / probe.SOCKET
    server = await probe.serve(path, lambda: serving)
    assert await hold("--probe", str(path)) == (0, "")
    assert await hold("--probe-ready", str(path)) == (1, "hold: not ready\n")
    serving = True
    assert await hold("--probe", str(path)) == (0, "")
    assert await hold("--probe-ready", str(path)) == (0, "")
    server.close()
    await server.wait_closed()


async def test_the_next_sidecar_takes_the_place_of_one_that_was_killed(tmp_path: Path) -> None:
    path = tmp_path / probe.SOCKET
    killed = await probe.serve(path, lambda: False)
    server = await probe.serve(path, lambda: True)
    assert await hold("--probe-ready", str(path)) == (0, "")
    for one in (killed, server):
        one.close()


@pytest.mark.parametrize("option", ["--probe", "--probe-ready"])
async def test_nobody_is_not_alive(tmp_path: Path, option: str) -> None:
    status, said = await hold(option, str(tmp_path / "none"))
    assert status == 1
    assert "nobody answers" in said


async def test_one_who_says_nothing_is_not_alive(tmp_path: Path) -> None:
    path = tmp_path / probe.SOCKET
    server = await asyncio.start_unix_server(lambda _reader, writer: writer.close(), path)
    status, said = await hold("--probe", str(path))
    assert status == 1
    assert "no answer" in said
    server.close()
