"""Netlink by hand: the kernel's own answers about this machine's loopback, and the bytes sent."""

from __future__ import annotations

import os
import socket
import struct

import pytest

from holdfast_node import connections
from holdfast_node.connections import Connection, parse_connection


@pytest.mark.parametrize(
    ("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")]
)
def test_the_kernel_s_list_has_a_connection_and_its_owner(family: int, host: str) -> None:
    if family == socket.AF_INET6 and not socket.has_dualstack_ipv6():
        pytest.skip("no IPv6 here")
    with (
        socket.create_server((host, 0), family=socket.AddressFamily(family)) as server,
        socket.create_connection(server.getsockname()[:2]) as client,
    ):
        found = connections._connections(family)
        mine = connections.sockets_of([os.getpid()])
        port = client.getsockname()[1]
        [one] = [c for c in found if c.local.endswith(f":{port}")]
        assert one.remote.endswith(f":{server.getsockname()[1]}")
        assert one.inode == os.fstat(client.fileno()).st_ino
        assert one.inode in mine
        assert one.inside


@pytest.mark.parametrize(
    ("local", "remote", "inside"),
    [
        ("127.0.0.1:1", "127.9.9.9:2", True),
        ("[::1]:1", "[::1]:2", True),
        ("[::ffff:127.0.0.1]:1", "[::ffff:127.0.0.1]:2", True),
        ("10.0.0.1:1", "10.0.0.1:2", False),
        ("127.0.0.1:1", "10.0.0.1:2", False),
        ("[fd00::1]:1", "[::1]:2", False),
        ("[::ffff:10.0.0.1]:1", "[::ffff:10.0.0.2]:2", False),
    ],
)
def test_only_loopback_to_loopback_is_inside(local: str, remote: str, inside: bool) -> None:
    assert Connection(local, remote, 1, 2, b"").inside is inside


def test_a_listed_connection_is_parsed() -> None:
    identity = struct.pack(
        "!HH16s16sI8s", 80, 5000, socket.inet_aton("10.1.2.3") + bytes(12),
        socket.inet_aton("10.4.5.6") + bytes(12), 0, b"cookie12",
    )  # fmt: skip
    body = struct.pack("=BBBB", socket.AF_INET, 1, 0, 0) + identity
    body += struct.pack("=5I", 0, 0, 0, 1000, 4711)
    one = parse_connection(body)
    assert (one.local, one.remote, one.inode) == ("10.1.2.3:80", "10.4.5.6:5000", 4711)
    assert one.identity == identity
    assert connections.diag_query(one.family, 2, one.identity).endswith(identity)


def test_messages_are_framed_and_unframed() -> None:
    packet = b"".join(
        sent.ljust((len(sent) + 3) & ~3, b"\0")
        for sent in (connections.message(20, 1, b"abcde"), connections.message(3, 2, b""))
    )
    assert list(connections.split(packet)) == [(20, b"abcde"), (3, b"")]


@pytest.mark.parametrize(
    ("address", "body"),
    [
        ("10.1.2.3", "0220000001000000080001000a010203080002000a010203"),
        ("fd00::1", "0a8000000100000014000100fd" + "00" * 14 + "01"
         "14000200fd" + "00" * 14 + "01"),
    ],
)  # fmt: skip
def test_an_address_is_changed_whole_and_on_the_loopback_device(address: str, body: str) -> None:
    assert connections.address_change(address).hex() == body


def test_what_fails_in_another_network_is_raised_here() -> None:
    with pytest.raises(FileNotFoundError):
        connections.in_network(2**22 + 1, lambda: None)


def test_on_the_machine_s_network_both_ends_must_be_the_session_s() -> None:
    def one(local: str, remote: str) -> Connection:
        return Connection(local, remote, 1, 2, b"")

    pair = [one("127.0.0.1:1", "127.0.0.1:2"), one("[::ffff:127.0.0.1]:2", "[::ffff:127.0.0.1]:1")]
    other, far = one("127.0.0.1:1", "127.0.0.1:3"), one("10.0.0.1:4", "10.0.0.2:5")
    assert connections.without_other_end([*pair, other, far]) == sorted([other, far])
