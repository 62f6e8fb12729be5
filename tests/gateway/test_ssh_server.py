"""What the SSH server lets through and what not, by asyncssh's own client in the same process."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import asyncssh
import pytest

from holdfast_gateway.auth import Caller
from holdfast_gateway.backend import CONNECT_SECONDS, REQUEST_SECONDS, Link
from holdfast_gateway.sessions import Sessions
from holdfast_gateway.ssh import Failures, Limits, Server
from holdfast_gateway.ssh_keys import Keys
from holdfast_wire.errors import Forbidden
from holdfast_wire.rights import Right, right_of_request
from sidecar_kit import Live
from ssh_kit import HOST, public

HOST_KEY = asyncssh.generate_private_key("ssh-ed25519")
KNOWN: tuple[list[Any], list[Any], list[Any]] = ([HOST_KEY.convert_to_public()], [], [])
ANA = asyncssh.generate_private_key("ssh-ed25519")
EVE = asyncssh.generate_private_key("ssh-ed25519")
DETACH = b"\x1cd"


class Observed(Sessions):
    """As where RBAC lets `cy` observe and not write, until `cut` takes even that away."""

    def __init__(self, live: Live) -> None:
        super().__init__(live.place.state, lambda: None)
        self.cuts: list[asyncio.Future[None]] = []

    @contextlib.asynccontextmanager
    async def connect(
        self,
        name: str,
        caller: Caller,
        patience: float = CONNECT_SECONDS,
        right: Right = Right.OBSERVE,
    ) -> AsyncIterator[Link]:
        async def allow(act: Right) -> None:
            if act is Right.TYPE:
                raise Forbidden("cy may not create sessions/type of team/it")

        async with super().connect(name, caller, patience) as link:
            self.cuts.append(link.cut)
            yield Link(link.reader, link.writer, allow, link.cut)

    async def request(
        self,
        name: str,
        body: dict[str, Any],
        caller: Caller,
        *,
        seconds: float = REQUEST_SECONDS,
        patience: float = CONNECT_SECONDS,
    ) -> dict[str, Any]:
        if (right := right_of_request(body["kind"])) is not Right.OBSERVE:
            raise Forbidden(f"cy may not create sessions/{right} of team/it")
        return await super().request(name, body, caller, seconds=seconds, patience=patience)


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    with Live("bash", "--norc") as session:
        yield session


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    (tmp_path / "keys").write_text(f'user="ana" {public(ANA)}\n')
    return Keys([tmp_path / "keys"])


@contextlib.asynccontextmanager
async def serving(server: Server) -> AsyncIterator[int]:
    async with server.listening(HOST, 0, HOST_KEY) as port:
        yield port


def sessions(live: Live) -> Sessions:
    return Sessions(live.place.state, lambda: None)


def connecting(port: int, user: str = "it", **more: Any) -> Any:
    options = {"client_keys": [ANA], "known_hosts": KNOWN, **more}
    return asyncssh.connect(
        HOST, port, username=user, config=None, agent_path=None, preferred_auth="publickey",
        **options,
    )  # fmt: skip


async def until(process: Any, text: bytes) -> bytes:
    seen = b""
    async with asyncio.timeout(40):
        while text not in seen:
            data = await process.stdout.read(1 << 16)
            assert data, seen
            seen += data
    return seen


async def attached(connection: Any) -> Any:
    return await connection.create_process(
        term_type="xterm", term_size=(90, 25), encoding=None, stderr=asyncssh.STDOUT
    )


async def told(connection: Any, what: str) -> Any:
    return json.loads((await connection.run(subsystem=what)).stdout)


# -- who only observes


async def test_an_observer_is_told_and_cannot_type_or_resize(live: Live, keys: Keys) -> None:
    before = live.client()
    size = before.ask("info")["columns"], before.ask("info")["rows"]
    async with serving(Server(Observed(live), keys)) as port, connecting(port) as connection:
        process = await attached(connection)
        seen = await until(process, b"\x1b[1;")
        assert b"[read-only: ana may observe it, not type into it]" in seen
        process.stdin.write(b"touch never\r")
        process.change_terminal_size(120, 40)
        async with asyncio.timeout(40):
            while (info := await told(connection, "info"))["clients"][0]["columns"] != 120:
                pass
        assert [one["mode"] for one in info["clients"]] == ["view"]
        assert (info["columns"], info["rows"]) == size
        refused = await connection.run("true")
        assert refused.exit_status == 77
        assert "may not create sessions/run" in refused.stderr
        process.stdin.write(DETACH)
        await process.wait()
        assert process.exit_status == 0
    assert "never" not in before.ask("screen", format="text")["text"]
    before.close()


async def test_who_may_no_longer_is_cut_and_told(live: Live, keys: Keys) -> None:
    backend = Observed(live)
    async with serving(Server(backend, keys)) as port, connecting(port) as connection:
        process = await attached(connection)
        await until(process, b"\x1b[1;")
        backend.cuts[-1].set_exception(Forbidden("ana may not get sessions/observe of team/it"))
        seen = await until(process, b"sessions/observe")
        assert b"holdfast: ana may not get" in seen
        await process.wait()
        assert process.exit_status == 77


# -- names


@pytest.mark.parametrize(
    "user",
    [
        "it;touch never", "$(touch never)", "`touch never`", "../it", "-oProxyCommand=never", "it.",
        ".it", "it.a.b", "IT", "it/team", "i t", "it'--", "x" * 64, "it\\never",
    ],
)  # fmt: skip
async def test_odd_names_name_no_session(live: Live, keys: Keys, user: str) -> None:
    async with (
        serving(Server(sessions(live), keys)) as port,
        connecting(port, user) as connection,
    ):
        done = await connection.run("true")
        assert (done.exit_status, done.stdout) == (64, "")
        assert "names no session" in done.stderr


# -- what is not offered


async def test_no_way_leads_past_a_session(live: Live, keys: Keys) -> None:
    async with serving(Server(sessions(live), keys)) as port, connecting(port) as connection:
        for refused in (
            connection.open_connection(HOST, port),
            connection.open_unix_connection("/run/holdfast/sidecar.sock"),
            connection.start_sftp_client(),
        ):
            with pytest.raises(asyncssh.ChannelOpenError):
                await refused
        for listening in (
            connection.forward_remote_port("", 0, HOST, 1),
            connection.forward_remote_path("/never/sock", "/never/other"),
        ):
            with pytest.raises(asyncssh.ChannelListenError):
                await listening


async def test_no_environment_is_taken(live: Live, keys: Keys) -> None:
    server = Server(sessions(live), keys)
    async with serving(server) as port, connecting(port) as connection:
        process = await connection.create_process(
            term_type="xterm", env={"LD_PRELOAD": "x"}, encoding=None
        )
        await until(process, b"\x1b[1;")
        (here,) = server.connections
        (channel,) = here._channels
        assert channel._chan is not None
        assert not channel._chan.get_environment()
        process.stdin.write(DETACH)
        await process.wait()


async def test_no_password_is_asked_for(live: Live, keys: Keys) -> None:
    async with serving(Server(sessions(live), keys)) as port:
        with pytest.raises(asyncssh.PermissionDenied):
            await asyncssh.connect(
                HOST, port, username="it", password="x", client_keys=None, config=None,
                agent_path=None, known_hosts=KNOWN,
            )  # fmt: skip
        assert await asyncssh.get_server_auth_methods(HOST, port, username="it", config=None) == [
            "publickey"
        ]


# -- limits


async def test_whoever_offers_many_keys_is_sent_away(live: Live, keys: Keys) -> None:
    server = Server(sessions(live), keys, Limits(looks=2, failures=2))
    async with serving(server) as port:
        more = [asyncssh.generate_private_key("ssh-ed25519") for _ in range(3)]
        with pytest.raises(asyncssh.DisconnectError, match="too many keys"):
            await connecting(port, client_keys=[*more, ANA])
        with pytest.raises(asyncssh.PermissionDenied):
            await connecting(port, client_keys=[EVE])
        # The second failure of this address: now nobody is heard from there for a while.
        with pytest.raises((asyncssh.DisconnectError, OSError)):
            await connecting(port)


async def test_connections_and_channels_are_counted(live: Live, keys: Keys) -> None:
    server = Server(sessions(live), keys, Limits(connections=1, channels=1))
    async with serving(server) as port:
        async with connecting(port) as connection:
            with pytest.raises((asyncssh.DisconnectError, OSError)):
                await connecting(port)
            process = await attached(connection)
            await until(process, b"\x1b[1;")
            with pytest.raises(asyncssh.ChannelOpenError):
                await connection.run("true")
            process.stdin.write(DETACH)
            await process.wait()
            assert (await connection.run(subsystem="state")).exit_status == 0
        while server.connections:  # noqa: ASYNC110 - the client hears of it a moment earlier
            await asyncio.sleep(0)
        async with connecting(port) as connection:
            assert (await connection.run(subsystem="state")).exit_status == 0


async def test_idle_connections_do_not_keep_anybody_out(live: Live, keys: Keys) -> None:
    """Attack 41: as many as may wait for their login, and somebody who comes after them."""
    limits = Limits(waiting=6, waiting_of_one=4, login_seconds=3.0)
    async with serving(Server(sessions(live), keys, limits)) as port:
        idle = [await asyncio.open_connection(HOST, port) for _ in range(20)]
        async with connecting(port) as connection:
            assert (await connection.run(subsystem="state")).exit_status == 0
            for reader, writer in idle:
                with contextlib.suppress(ConnectionError):
                    async with asyncio.timeout(10):
                        await reader.read()
                writer.close()
            assert (await connection.run(subsystem="state")).exit_status == 0, "a known one stays"


def test_failures_are_forgotten_after_a_while() -> None:
    now = 0.0
    failures = Failures(2, 60.0, lambda: now)
    failures.add("a")
    now = 30.0
    failures.add("a")
    assert failures.too_many("a")
    assert not failures.too_many("b")
    now = 61.0
    assert not failures.too_many("a")
    failures.add("a")
    assert failures.too_many("a")
