"""`python -m bench.crowd`: many viewers of one session, in one process that costs next to nothing.

They attach like any client, over TLS and a WebSocket, up to the end of the snapshot. From then on
what comes is taken from the kernel as soon as it is there, and thrown away without being decrypted:
in life each viewer has a machine of his own for that, and here there is one for all.

One line of JSON on standard input says where to; `ready` on standard output says that all are
attached; when standard input closes they leave, and the bytes that came to each are the last line.
"""

from __future__ import annotations

import base64
import json
import os
import select
import socket
import ssl
import struct
import sys
from dataclasses import asdict, dataclass
from typing import Final

from holdfast_wire.frames import Attach, Decoder, Part, Snapshot, encode

_PATIENCE: Final = 60.0
_RECEIVE: Final = 1 << 20


@dataclass(frozen=True)
class Where:
    address: str
    port: int
    name: str
    authority: str  # PEM
    path: str
    token: str
    viewers: int

    def to_line(self) -> str:
        return json.dumps(asdict(self)) + "\n"


def _attach(where: Where, tls: ssl.SSLContext) -> socket.socket:
    """A connection that has had its snapshot."""
    plain = socket.create_connection((where.address, where.port), _PATIENCE)
    secure = tls.wrap_socket(plain, server_hostname=where.name)
    key = base64.b64encode(os.urandom(16)).decode()
    request = (
        f"GET {where.path} HTTP/1.1\r\nHost: {where.name}\r\nUpgrade: websocket\r\n"
        f"Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n"
        f"Sec-WebSocket-Protocol: holdfast.v1\r\nAuthorization: Bearer {where.token}\r\n\r\n"
    )
    secure.sendall(request.encode())
    file = secure.makefile("rb")
    status = file.readline()
    if b" 101 " not in status:
        raise ConnectionError(f"not a WebSocket: {status.decode(errors='replace')}")
    while file.readline() != b"\r\n":
        pass
    secure.sendall(_message(encode(Attach({"columns": 80, "rows": 24, "mode": "view"}))))
    decoder = Decoder()
    while True:
        opcode, length = file.read(2)
        length &= 0x7F
        if length > 125:
            size = {126: "!H", 127: "!Q"}[length]
            (length,) = struct.unpack(size, file.read(struct.calcsize(size)))
        payload = file.read(length)
        if opcode & 0x0F != 2:
            raise ConnectionError(f"the stream ended: {payload[:200]!r}")
        for frame in decoder.feed(payload):
            if isinstance(frame, Snapshot) and frame.part & Part.LAST:
                return secure


def _message(payload: bytes) -> bytes:
    """A short binary one, masked with zeros, which leave it as it is."""
    return struct.pack("!BBH", 0x82, 0x80 | 126, len(payload)) + bytes(4) + payload


def main() -> None:
    where = Where(**json.loads(sys.stdin.readline()))
    tls = ssl.create_default_context(cadata=where.authority)
    tls.verify_flags &= ~ssl.VERIFY_X509_STRICT
    viewers = [_attach(where, tls) for _ in range(where.viewers)]
    print("ready", flush=True)
    came = {viewer.fileno(): 0 for viewer in viewers}
    waiting = select.epoll()
    for descriptor in came:
        waiting.register(descriptor, select.EPOLLIN)
    waiting.register(sys.stdin, select.EPOLLIN)
    # A viewer's bytes, without TLS: `MSG_TRUNC` has the kernel drop them instead of copying.
    raw = {fd: socket.socket(fileno=os.dup(fd)) for fd in came}
    unused = bytearray(_RECEIVE)
    while True:
        for descriptor, _ in waiting.poll():
            if descriptor == sys.stdin.fileno():
                print(json.dumps(list(came.values())), flush=True)
                return
            count = raw[descriptor].recv_into(unused, 0, socket.MSG_TRUNC)
            if not count:
                raise ConnectionError("a viewer was cut off")
            came[descriptor] += count


if __name__ == "__main__":
    main()
