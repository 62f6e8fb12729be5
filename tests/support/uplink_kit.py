"""Two ends of an uplink over real TLS on loopback, with a sidecar's server played by a function."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import ipaddress
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from holdfast_gateway.uplinks import Incarnation, Uplinks
from holdfast_sidecar.uplink import Gateways
from holdfast_sidecar.uplink import Uplinks as Dialling

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclass(frozen=True)
class Authority:
    """Makes certificates."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @property
    def pem(self) -> str:
        return self.certificate.public_bytes(serialization.Encoding.PEM).decode()

    def sign(self, folder: Path, name: str, *hosts: str) -> tuple[Path, Path]:
        """The paths of a certificate and its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        made = _certificate(name, key.public_key(), self.certificate.subject, self.key, hosts)
        folder.mkdir(parents=True, exist_ok=True)
        paths = folder / "tls.crt", folder / "tls.key"
        paths[0].write_bytes(made.public_bytes(serialization.Encoding.PEM))
        paths[1].write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return paths


def authority(name: str = "test") -> Authority:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    return Authority(key, _certificate(name, key.public_key(), subject, key, None))


def _certificate(
    name: str,
    public: ec.EllipticCurvePublicKey,
    issuer: x509.Name,
    by: ec.EllipticCurvePrivateKey,
    hosts: tuple[str, ...] | None,
) -> x509.Certificate:
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.BasicConstraints(ca=hosts is None, path_length=None), critical=True)
    )
    if hosts:
        names = [
            x509.IPAddress(ipaddress.ip_address(host)) if host[0].isdigit() else x509.DNSName(host)
            for host in hosts
        ]
        made = made.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return made.sign(by, hashes.SHA256())


async def until(condition: Callable[[], object], patience: float = 10.0) -> None:
    async with asyncio.timeout(patience):
        while not condition():  # noqa: ASYNC110 - it is about what is seen from outside
            await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def gateway(
    ca: Authority,
    folder: Path,
    verify: Callable[[dict[str, Any]], Awaitable[Incarnation]],
    port: int = 0,
) -> AsyncIterator[tuple[Uplinks, int]]:
    """One that sidecars dial, and its port; a port of its choice if none is given."""
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(*ca.sign(folder, "gateway", "localhost"))
    made = Uplinks(verify)
    async with made.listening(tls, port, "127.0.0.1") as taken:
        yield made, taken


@contextlib.asynccontextmanager
async def dialling(
    ca: Authority,
    port: int,
    folder: Path,
    epoch: int,
    serve: Serve,
    token: str = "token",  # noqa: S107
) -> AsyncIterator[list[str]]:
    """A sidecar that does; yields its log."""
    path = folder / f"token-{epoch}"
    path.write_text(token)
    tasks: set[asyncio.Task[None]] = set()

    def adopt(sock: socket.socket) -> None:
        async def run() -> None:
            reader, writer = await asyncio.open_connection(sock=sock)
            with contextlib.suppress(OSError):
                await serve(reader, writer)
            writer.close()

        tasks.add(asyncio.create_task(run()))

    log: list[str] = []
    about = {"version": 1, "namespace": "ns", "session": "it", "epoch": epoch}
    run = Dialling(Gateways("localhost", port, ca.pem, path), about, adopt, log.append).run()
    task = asyncio.create_task(run)
    try:
        yield log
    finally:
        task.cancel()
        await asyncio.wait([task])
        for one in tasks:
            one.cancel()
        if tasks:
            await asyncio.wait(tasks)
