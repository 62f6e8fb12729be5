"""The SDK on real sessions of this machine, through the embedded gateway, and through an API
server's aggregation layer; and every example of its page."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import re
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from client_kit import Home
from front_kit import Front
from holdfast import sdk
from holdfast.connection import Connection, open_socket
from holdfast.supervisor import Supervisor
from holdfast_wire.ids import Actor

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "sdk.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)


@pytest.fixture(scope="module")
def build(home: Home) -> Iterator[str]:
    home.start("build")
    yield "build"
    home.run("end", "build", "--grace", "0")


@pytest.fixture(autouse=True)
def here(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in home.env.items():
        monkeypatch.setenv(name, value)


def test_every_example_is_run(build: str) -> None:
    assert len(EXAMPLES) >= 7
    with asyncio.Runner() as runner:
        for text in EXAMPLES:
            names: dict[str, Any] = {"holdfast": holdfast}
            flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
            made = eval(compile(text, "docs/sdk.md", "exec", flags), names)  # noqa: S307 - our own
            if inspect.iscoroutine(made):
                runner.run(made)


async def test_requests_go_on_when_the_sidecar_is_killed(build: str, home: Home) -> None:
    async with holdfast.connect(build) as session:
        assert (await session.info()).name == build
        home.kill_sidecar(build)
        assert (await session.exec("echo again")).output.split() == ["again"]
        state, screen, graph, journal = await asyncio.gather(
            session.state(), session.screen(), session.graph(), session.journal()
        )
        assert state.activity == "prompt"
        assert screen.columns == 120
        assert graph.processes
        assert {record.modality for record in journal} >= {"sdk"}


async def test_a_stream_goes_on_when_the_sidecar_is_killed(build: str, home: Home) -> None:
    async with holdfast.connect(build) as session:
        start = int((await session.info()).raw["seq"])
        await session.send("for i in $(seq 40); do echo s-$i; sleep 0.02; done", enter=True)
        seen, expected, killed = b"", start, False
        async with contextlib.aclosing(session.stream(start)) as items:
            async for item in items:
                if isinstance(item, holdfast.Output):
                    assert item.seq == expected
                    expected += len(item.data)
                    seen += item.data
                if b"s-5\r" in seen and not killed:
                    killed = bool(home.kill_sidecar(build))
                if b"s-40\r" in seen:
                    break
    assert re.findall(rb"s-(\d+)\r", seen) == [b"%d" % n for n in range(1, 41)]


async def test_the_end_of_a_stream(home: Home) -> None:
    home.start("short", "sh", "-c", "read x; echo bye-$x; exit 3")
    async with holdfast.connect("short") as session:
        stream = session.stream()
        assert isinstance(await _next(stream), holdfast.Snapshot)
        await session.send("now", enter=True)
        items = [item async for item in stream]
        last = items[-1]
        assert isinstance(last, holdfast.News)
        assert (last.kind, last.body["exit"]["code"]) == ("ended", 3)
        text = b"".join(item.data for item in items if isinstance(item, holdfast.Output))
        assert b"bye-now" in text


async def test_the_turn(build: str, home: Home) -> None:
    path = home.folder(build).sidecar_socket
    async with holdfast.connect(build) as session:
        me = await session.take()
        with Connection(open_socket(path), "test", Actor("bob")) as other:
            other.request("take")
            with pytest.raises(holdfast.NoTurn, match="bob holds the turn"):
                await session.send("x")
            with pytest.raises(holdfast.NoTurn, match="nothing to give"):
                await session.release()
            assert await session.ask() == "bob"
            assert other.request("release", to=me)["holder"] == me
            other.request("take")
            given = other.request("release")
            assert (given["holder"], given["lead"], given["asking"]) == (None, None, [])
        assert await session.take() == me


async def test_waiting_has_an_end(build: str) -> None:
    async with holdfast.connect(build) as session:
        with pytest.raises(holdfast.TimedOut, match="is not there after 0 s"):
            await session.wait("password", timeout=0)


async def test_through_a_gateway(build: str, home: Home) -> None:
    gateway = await asyncio.to_thread(Supervisor(home.state).ensure)
    url, _, fragment = gateway.url(build).partition("#")
    token = re.findall(r"token=([^&]+)", fragment)[0]
    async with holdfast.connect(build, gateway=url, token=token) as session:
        await session.take()
        assert (await session.exec("echo via-$((6*7))")).output.split() == ["via-42"]
        snapshot = await _next(session.stream())
        assert isinstance(snapshot, holdfast.Snapshot)
        assert b"via-42" in snapshot.data
        await session.send("wc -c", enter=True)
        await session.wait("reading")
        await session.send(("x" * 79 + "\n") * 2500, keys="C-d")  # more than fits a frame
        await session.wait("prompt")
        assert "200000" in (await session.screen()).text
    listed = await holdfast.sessions(gateway=url, token=token)
    assert build in [one.name for one in listed]
    with pytest.raises(holdfast.Unauthenticated):
        await holdfast.sessions(gateway=url, token="wrong")
    with pytest.raises(holdfast.BadRequest, match="in the clear"):
        await holdfast.sessions(gateway="http://example.org", token=token)


async def test_the_first_connection_is_waited_for_too(build: str, home: Home) -> None:
    gateway = await asyncio.to_thread(Supervisor(home.state).ensure)
    token = re.findall(r"token=([^&]+)", gateway.url(build))[0]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", gateway.port)
        await asyncio.gather(_pipe(reader, back), _pipe(there, writer))

    def session(patience: float) -> holdfast.Session:
        url = f"http://127.0.0.1:{port}"
        return holdfast.connect(build, gateway=url, token=token, patience=patience)

    with pytest.raises(holdfast.Unavailable, match="cannot be reached"):
        await session(0.1).__aenter__()
    opening = asyncio.create_task(session(30).__aenter__())
    await asyncio.sleep(0.1)
    assert not opening.done()
    async with await asyncio.start_server(carry, "127.0.0.1", port):
        opened = await opening
        assert (await opened.state()).activity == "prompt"
        await opened.close()


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
    writer.close()


async def _next(stream: AsyncIterator[sdk.Item]) -> sdk.Item:
    """What comes of the output; news may overtake it."""
    async for item in stream:
        if not isinstance(item, holdfast.News):
            return item
    raise AssertionError("nothing came")


async def test_through_a_cluster(build: str, home: Home, tmp_path: Path) -> None:
    with Connection(open_socket(home.folder(build).sidecar_socket), "test", Actor("ana")) as other:
        other.request("take")
    front = await asyncio.to_thread(Front, tmp_path, home.state)
    try:
        front.session(build, phase="Running", epoch=1)
        config = str(front.kubeconfig())
        assert [one.name for one in await holdfast.sessions(kubeconfig=config)] == [build]
        async with holdfast.connect(build, kubeconfig=config) as session:
            for go in (front.stop_gateway, front.kill_gateway):
                await session.state()
                go()
                assert (await session.exec("echo once")).exit_code == 0
            stream = session.stream()
            assert isinstance(await _next(stream), holdfast.Snapshot)
            front.revoke()
            with pytest.raises(holdfast.Forbidden, match="any more"):
                async for _ in stream:
                    pass
    finally:
        await asyncio.to_thread(front.close)


def test_both_faces_are_the_same() -> None:
    """The one without asyncio has every method, with the same parameters."""

    def shape(of: type) -> dict[str, list[str]]:
        members: list[tuple[str, Callable[..., Any]]] = inspect.getmembers(of, inspect.isfunction)
        return {
            name: list(inspect.signature(member).parameters)
            for name, member in members
            if not name.startswith("_") and name != "route"
        }

    ours, theirs = shape(sdk.Session), shape(holdfast.sync.Session)
    ours["request"] = theirs["request"]  # its words are passed on as they are
    assert ours == theirs
    assert shape(holdfast.Job) == shape(holdfast.sync.Job)
