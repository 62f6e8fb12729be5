"""Who may connect to an agent, and who is taken for one. Real TLS over loopback."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from holdfast_node import transfer
from holdfast_node.pair import Fault, Unfit
from holdfast_node.transfer import Receiver
from holdfast_wire.errors import HoldfastError, Unauthenticated

from .conftest import Contexts
from .test_transfer import FACTS, KEYS, at, server


@pytest.mark.parametrize("name", ["stranger", "gateway", "two"])
async def test_only_agents_may_send(tls: Contexts, tmp_path: Path, name: str) -> None:
    called: list[Receiver] = []

    async def handler(receiver: Receiver) -> None:
        called.append(receiver)

    serving = transfer.serve("127.0.0.1", 0, server(tls), handler)
    async with serving as port:
        client = tls(ssl.Purpose.SERVER_AUTH, name)
        with pytest.raises(HoldfastError):
            # In TLS 1.3 the client learns of its refusal with the first answer.
            async with transfer.connect(at(port), client, None, "c") as sender:
                await sender.finish(FACTS)
    assert not called


@pytest.mark.parametrize("name", ["stranger", "gateway", "two"])
async def test_only_to_agents_is_sent(tls: Contexts, name: str) -> None:
    async def handler(receiver: Receiver) -> None:
        raise AssertionError

    serving = transfer.serve("127.0.0.1", 0, server(tls, name), handler)
    async with serving as port:
        with pytest.raises(Unauthenticated, match=r"no agent|not a node agent's"):
            async with transfer.connect(at(port), tls(ssl.Purpose.SERVER_AUTH), None, "c"):
                pass


async def test_another_node_is_not_taken_for_the_target(tls: Contexts) -> None:
    """Attack 34: node n1 answers at n2's address; nothing of the session is sent to it."""

    async def handler(receiver: Receiver) -> None:
        raise AssertionError

    async with transfer.serve("127.0.0.1", 0, server(tls, "n1"), handler) as port:
        with pytest.raises(Unauthenticated, match="the agent of n1 answers in the place of n2's"):
            async with transfer.connect(at(port, "n2"), tls(ssl.Purpose.SERVER_AUTH), KEYS, "c"):
                pass


async def test_who_came_is_known_by_its_certificate(tls: Contexts) -> None:
    came: list[str] = []

    async def handler(receiver: Receiver) -> None:
        came.append(receiver.peer)
        raise Unfit(Fault.FOREIGN, "seen")

    async with transfer.serve("127.0.0.1", 0, server(tls), handler) as port:
        client = tls(ssl.Purpose.SERVER_AUTH, "n7")
        with pytest.raises(HoldfastError, match="seen"):
            async with transfer.connect(at(port), client, None, "c") as sender:
                await sender.outcome()
    assert came == ["n7"]


async def test_each_connection_is_made_with_the_certificate_of_the_moment(tls: Contexts) -> None:
    """It is renewed, and nothing is started anew for it."""
    shown = ["a", "b"]

    async def handler(receiver: Receiver) -> None:
        raise Unfit(Fault.FOREIGN, "seen")

    def context() -> ssl.SSLContext:
        return tls(ssl.Purpose.CLIENT_AUTH, shown.pop(0))

    async with transfer.serve("127.0.0.1", 0, context, handler) as port:
        for node in ("a", "b"):
            with pytest.raises(HoldfastError, match="seen"):
                async with transfer.connect(
                    at(port, node), tls(ssl.Purpose.SERVER_AUTH), None, "c"
                ) as sender:
                    await sender.outcome()


async def test_a_peer_without_a_certificate_is_refused(tls: Contexts) -> None:
    async def handler(receiver: Receiver) -> None:
        raise AssertionError

    serving = transfer.serve("127.0.0.1", 0, server(tls), handler)
    async with serving as port:
        client = tls(ssl.Purpose.SERVER_AUTH, None)
        with pytest.raises(HoldfastError):
            async with transfer.connect(at(port), client, None, "c") as sender:
                await sender.finish(FACTS)
