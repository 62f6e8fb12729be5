"""Attacks that use up what others need too: the journal, the doors, the stores."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
import time
from collections.abc import Iterator
from typing import Final

import pytest

from e2e.balancer import replicas
from e2e.guests import Guests
from e2e.lab import KubectlError, Lab, until
from e2e.movers import check, walking
from holdfast_wire import journal_chain
from holdfast_wire.journal_chain import Verified

AGENT_ADDRESS: Final = "holdfast.dev/agent-address"
LARGE: Final = ": " + "x" * (250 << 10)
HTTPS: Final = 8443
# What a gateway gives a stranger, and a moment.
STRANGE_SECONDS: Final = 20.0 + 10.0


@pytest.mark.attacks(36)
@pytest.mark.timeout(240)
async def test_the_journal_is_neither_erased_nor_reached(lab: Lab, guests: Guests) -> None:
    session = guests.reached(lab.session("scribe", "bash", "--norc"))
    async with guests.sdk("wanda", session.name) as own:
        await own.wait("prompt", timeout=60)
        await own.exec("echo before")
        for _ in range(34):
            await own.wait("prompt", timeout=60)
            assert (await own.exec(LARGE, timeout=60)).exit_code == 0
        records = [dict(one.raw) for one in await own.journal(after=0)]
        await own.wait("prompt", timeout=60)
        tried = await own.exec("ln -sf /tmp/x /run/holdfast/exec/a; touch /run/holdfast/exec/b")
    assert tried.exit_code != 0
    assert tried.output.count("Read-only file system") == 2, tried.output
    lines = [journal_chain.canonical(record) for record in records]
    found = journal_chain.verify([lines])
    assert isinstance(found, Verified), found
    assert found.first == 1, "records were lost"
    commands = [record for record in records if record["kind"] == "exec"]
    assert commands[0]["command"] == "echo before"
    assert [one["command_bytes"] for one in commands[1:]] == [len(LARGE)] * 34


def agents(lab: Lab) -> Iterator[tuple[str, int]]:
    for node in lab.get("nodes")["items"]:
        host, _, port = node["metadata"]["annotations"].get(AGENT_ADDRESS, "").rpartition(":")
        if host:
            yield host.strip("[]"), int(port)


def ended(sock: socket.socket, patience: float) -> bool:
    sock.settimeout(patience)
    try:
        while sock.recv(4096):
            pass
    except TimeoutError:
        return False
    except OSError:
        return True
    return True


@pytest.mark.attacks(41)
@pytest.mark.timeout(240)
async def test_strangers_at_the_doors_keep_nobody_out(lab: Lab, guests: Guests) -> None:
    session = guests.reached(walking(lab, "visited", 0.01))
    before = session.node
    where = [*agents(lab)]
    assert len(where) > 1
    gateways = [(str(pod["status"]["podIP"]), HTTPS) for pod in replicas(lab)]
    any_name = ssl.create_default_context()
    any_name.check_hostname, any_name.verify_mode = False, ssl.CERT_NONE
    with contextlib.ExitStack() as stack:
        idle = [
            stack.enter_context(socket.create_connection(one, timeout=10))
            for one in (*where, *gateways)
            for _ in range(64)
        ]
        half = []
        for one in gateways:
            for _ in range(16):
                plain = socket.create_connection(one, timeout=10)
                half.append(stack.enter_context(any_name.wrap_socket(plain)))
                half[-1].sendall(b"GET /api/v1/sessions HTTP/1.1\r\nHost: it\r\nX-Slow: ")
        begun = time.monotonic()
        await asyncio.to_thread(lab.holdfast, "move", session.name, timeout=60)
        assert session.node != before
        async with guests.sdk("wanda", session.name) as own:
            assert (await own.state()).activity
        until_then = begun + STRANGE_SECONDS
        for sock in (*idle, *half):
            left = max(0.5, until_then - time.monotonic())
            assert await asyncio.to_thread(ended, sock, left), "a stranger stays"
    check(session, 2)


@pytest.mark.attacks(42)
@pytest.mark.timeout(300)
def test_a_namespace_has_a_quota_of_checkpoints(lab: Lab) -> None:
    lab.install("upgrade", "--set=checkpoints.perNamespace=1")
    try:
        first, second = lab.session("first", "sleep", "inf"), lab.session("second", "sleep", "inf")
        lab.holdfast("suspend", first.name, timeout=120)
        with pytest.raises(KubectlError, match="has 1 of 1 stored checkpoints"):
            lab.holdfast("suspend", second.name, timeout=120)
        assert any("checkpoints.perNamespace" in event for event in second.events())
        asked = json.dumps({"spec": {"suspended": True}})
        lab.kubectl("patch", "session", second.name, "--type=merge", "-p", asked)
        until(lambda: second.condition("Checkpointed")["reason"] == "QuotaExceeded", "it says so")
        assert second.status["phase"] == "Running"
        first.delete()
        second.await_phase("Suspended", 120)
    finally:
        lab.install("upgrade")
