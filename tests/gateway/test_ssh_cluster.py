"""SSH where RBAC decides: by whom the API server is asked about, and what a stranger learns."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncssh
import pytest

from cluster_kit import FakeApi, session, sessions_of
from holdfast_gateway import ssh_channel
from holdfast_gateway.ssh import Server
from holdfast_gateway.ssh_keys import Keys
from holdfast_wire.rights import Right
from ssh_kit import HOST, public
from uplink_kit import until

KEY = asyncssh.generate_private_key("ssh-ed25519")


@pytest.fixture
def api() -> FakeApi:
    made = FakeApi()
    made.sessions = [session("ns", "it"), session("ns", "done", "Ended")]
    made.sessions[1]["status"]["exit"] = {"code": 5, "signal": None}
    return made


@pytest.fixture
async def port(api: FakeApi, tmp_path: Path) -> AsyncIterator[int]:
    (tmp_path / "keys").write_text(f'user="ana",groups="dev" {public(KEY)}\n')
    async with (
        sessions_of(api) as (backend, _uplinks, _reviews),
        Server(backend, Keys([tmp_path])).listening(HOST, 0, KEY) as port,
    ):
        yield port


async def run(port: int, user: str, *command: str, **more: Any) -> Any:
    async with asyncssh.connect(
        HOST, port, username=user, client_keys=[KEY], known_hosts=None, config=None, agent_path=None
    ) as connection:
        return await connection.run(*command, **more)


async def test_rbac_is_asked_about_the_keys_user_and_groups(api: FakeApi, port: int) -> None:
    refused = await run(port, "it.ns", "true")
    assert refused.exit_status == 77
    (asked,) = [spec for kind, spec in api.asked if kind == "subjectaccessreviews"]
    assert (asked["user"], asked["groups"]) == ("ana", ["dev", "system:authenticated"])
    assert (asked["resourceAttributes"]["namespace"], asked["resourceAttributes"]["name"]) == (
        "ns",
        "it",
    )


@pytest.mark.parametrize("asked", [{"command": "true"}, {"subsystem": "info"}, {"term_type": "x"}])
async def test_absent_and_forbidden_sound_the_same(port: int, asked: dict[str, str]) -> None:
    """Attack 9, by every way in that SSH has."""
    said = set()
    for name in ("it", "nothing"):
        done = await run(port, f"{name}.ns", **asked)
        assert done.exit_status == 77
        said.add((done.stdout + done.stderr).replace(name, "NAME"))
    assert len(said) == 1


async def test_one_that_has_ended_gives_its_status(api: FakeApi, port: int) -> None:
    api.allow("ana", Right.OBSERVE)
    done = await run(port, "done.ns", term_type="xterm")
    assert done.exit_status == 5
    assert "[session ns/done ended: exit code 5]" in done.stdout


async def test_who_waits_for_a_session_that_is_woken_is_told(
    api: FakeApi, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ssh_channel, "_QUIET_SECONDS", 0.01)
    api.allow("ana", Right.OBSERVE, Right.WAKE)
    api.events.put_nowait({"type": "MODIFIED", "object": session("ns", "it", "Suspended")})
    await until(api.events.empty)
    async with asyncssh.connect(
        HOST, port, username="it.ns", client_keys=[KEY], known_hosts=None, config=None,
        agent_path=None,
    ) as connection:  # fmt: skip
        process = await connection.create_process(term_type="xterm")
        assert await process.stdout.readline() == "[waiting for it.ns]\r\n"
        assert [(namespace, name) for namespace, name, _ in api.patched] == [("ns", "it")]
