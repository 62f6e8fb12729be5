"""A session's TCP connections to the outside, which no move can take along: named, and cut.

The pod's network is its sidecar's too, so only sockets of the session's own processes are touched,
and those that no process holds yet. A connection between loopback addresses is wholly inside and
stays. The process that had one that was cut reads ECONNABORTED, at once or when it next asks.

A session without a pod is in the machine's own network: there a connection is inside only if both
of its ends are the session's, and what no process holds is not ours.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import ipaddress
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

_ROUTE, _SOCK_DIAG = 0, 4  # netlink's families
_BY_FAMILY, _DESTROY, _ERROR, _DONE = 20, 21, 2, 3
NEW_ADDRESS, DELETE_ADDRESS = 20, 21
_REQUEST, _ACK, _DUMP, _EXCLUSIVE_CREATE = 0x1, 0x4, 0x300, 0x600
_HEADER: Final = struct.Struct("=IHHII")
_QUERY: Final = struct.Struct("=BBBxI")
_ID: Final = struct.Struct("!HH16s16s")
_FOUND: Final = struct.Struct("=BBBB48s5I")  # inet_diag_msg
_NEW_NETWORK: Final = 0x40000000
_LISTEN, _TIME_WAIT, _CLOSE = 10, 6, 7
# Every state in which there is another end.
_CONNECTED: Final = sum(1 << s for s in range(1, 13) if s not in (_LISTEN, _TIME_WAIT, _CLOSE))
_LOOPBACK_DEVICE: Final = 1  # its index, in every network namespace

T = TypeVar("T")


@dataclass(frozen=True, order=True)
class Connection:
    local: str
    remote: str
    inode: int = field(compare=False)
    family: int = field(compare=False, repr=False)
    identity: bytes = field(compare=False, repr=False)  # as the kernel wants it back

    @property
    def inside(self) -> bool:
        """Between two loopback addresses."""
        ends = (text.rpartition(":")[0].strip("[]") for text in (self.local, self.remote))
        return all(_is_loopback(end) for end in ends)


def external(hold: int, pids: Iterable[int]) -> list[Connection]:
    """The connections to the outside that the given processes have in hold's network."""
    mine = sockets_of(pids)
    found = in_network(
        hold, lambda: [*_connections(socket.AF_INET), *_connections(socket.AF_INET6)]
    )
    if _network(hold) == _network(os.getpid()):
        return without_other_end([one for one in found if one.inode in mine])
    return sorted(one for one in found if one.inode in mine | {0} and not one.inside)


def without_other_end(found: list[Connection]) -> list[Connection]:
    ends = {(_plain(one.local), _plain(one.remote)) for one in found}
    return sorted(one for one in found if (_plain(one.remote), _plain(one.local)) not in ends)


def _plain(end: str) -> str:
    """One end may be an IPv6 socket, and have another name for an IPv4 address."""
    host, _, port = end.rpartition(":")
    address = ipaddress.ip_address(host.strip("[]"))
    return f"{getattr(address, 'ipv4_mapped', None) or address}:{port}"


def _network(pid: int) -> int:
    return Path(f"/proc/{pid}/ns/net").stat().st_ino


def cut(hold: int, pids: Iterable[int]) -> list[tuple[str, str]]:
    """Ends those, and says which they were: (local, remote), as address:port."""
    victims = external(hold, pids)
    in_network(hold, lambda: _destroy_all(victims))
    return [(one.local, one.remote) for one in victims]


def sockets_of(pids: Iterable[int]) -> frozenset[int]:
    """The inodes of their sockets."""
    found = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            for entry in os.scandir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    kind, _, rest = str(Path(entry.path).readlink()).partition(":[")
                    if kind == "socket":
                        found.add(int(rest.rstrip("]")))
    return frozenset(found)


@contextlib.contextmanager
def borrowed_address(hold: int, address: str) -> Iterator[None]:
    """The loopback device of hold's network has one more address meanwhile, if it was not there."""
    if in_network(hold, lambda: _is_here(address)):
        yield
        return
    in_network(hold, lambda: change_address(NEW_ADDRESS, address))
    try:
        yield
    finally:
        in_network(hold, lambda: change_address(DELETE_ADDRESS, address))


def _is_here(address: str) -> bool:
    family = socket.AF_INET if ipaddress.ip_address(address).version == 4 else socket.AF_INET6
    with socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


def in_network(pid: int, act: Callable[[], T]) -> T:
    """What `act` returns or raises, called in the network namespace of another process. A thread
    of its own enters it, and ends there."""
    result: list[T] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            space = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
            try:
                if ctypes.CDLL(None, use_errno=True).setns(space, _NEW_NETWORK) < 0:
                    raise OSError(ctypes.get_errno(), "cannot enter the network of a container")
            finally:
                os.close(space)
            result.append(act())
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, name="network")
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return result[0]


# -- netlink: no program of the image is needed, nor trusted ---------------------------------------


def message(kind: int, flags: int, body: bytes) -> bytes:
    return _HEADER.pack(_HEADER.size + len(body), kind, flags, 1, 0) + body


def diag_query(family: int, states: int, identity: bytes = bytes(48)) -> bytes:
    return _QUERY.pack(family, socket.IPPROTO_TCP, 0, states) + identity


def address_change(address: str) -> bytes:
    parsed = ipaddress.ip_address(address)
    family = socket.AF_INET if parsed.version == 4 else socket.AF_INET6
    body = struct.pack("=BBBBI", family, parsed.max_prefixlen, 0, 0, _LOOPBACK_DEVICE)
    for kind in (1, 2):  # the address, and the same as the local one
        body += struct.pack("=HH", 4 + len(parsed.packed), kind) + parsed.packed
    return body


def parse_connection(body: bytes) -> Connection:
    family, _, _, _, identity, *_, inode = _FOUND.unpack_from(body)
    local_port, remote_port, local, remote = _ID.unpack_from(identity)
    return Connection(
        _text(family, local, local_port),
        _text(family, remote, remote_port),
        inode,
        family,
        identity,
    )


def split(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The messages in one packet: (type, body)."""
    while len(data) >= _HEADER.size:
        length, kind, *_ = _HEADER.unpack_from(data)
        yield kind, data[_HEADER.size : length]
        data = data[(length + 3) & ~3 :]


def _text(family: int, packed: bytes, port: int) -> str:
    if family == socket.AF_INET:
        return f"{ipaddress.IPv4Address(packed[:4])}:{port}"
    return f"[{ipaddress.IPv6Address(packed)}]:{port}"


def _is_loopback(text: str) -> bool:
    address = ipaddress.ip_address(text)
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


def _connections(family: int) -> list[Connection]:
    bodies = _talk(
        _SOCK_DIAG, message(_BY_FAMILY, _REQUEST | _DUMP, diag_query(family, _CONNECTED))
    )
    return [parse_connection(body) for body in bodies]


def _destroy_all(victims: list[Connection]) -> None:
    for one in victims:
        query = diag_query(one.family, _CONNECTED, one.identity)
        with contextlib.suppress(FileNotFoundError):  # it ended by itself
            _talk(_SOCK_DIAG, message(_DESTROY, _REQUEST | _ACK, query))


def change_address(kind: int, address: str) -> None:
    create = _EXCLUSIVE_CREATE if kind == NEW_ADDRESS else 0
    try:
        _talk(_ROUTE, message(kind, _REQUEST | _ACK | create, address_change(address)))
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.EADDRNOTAVAIL):
            raise


def _talk(family: int, request: bytes) -> list[bytes]:
    """Sends one request; the bodies of what comes back, until the kernel says that is all."""
    found: list[bytes] = []
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, family) as sock:
        sock.settimeout(5)
        sock.send(request)
        while True:
            for kind, body in split(sock.recv(1 << 16)):
                if kind == _DONE:
                    return found
                if kind == _ERROR:
                    code = -struct.unpack_from("=i", body)[0]
                    if code:
                        raise OSError(code, os.strerror(code))
                    return found
                found.append(body)
