"""How one server (an API server, or a gateway itself) is reached: where, in which TLS, as whom.

Invariant: credentials go out only over TLS that was checked as the kubeconfig wants it, or to
loopback.
"""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import unquote, urlsplit

from holdfast.credentials import Certificate, Credentials, Token, User, pem
from holdfast.kubeconfig import Chosen, Unknown
from holdfast_wire.errors import BadRequest, HoldfastError, Unauthenticated, Unavailable

CONNECT_SECONDS: Final = 10.0
_LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")
_PROXY_ANSWER_BYTES: Final = 1 << 14


class Address(NamedTuple):
    host: str
    port: int
    tls: bool
    prefix: str
    """Before every path."""

    @property
    def header(self) -> str:
        """As the Host header has it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.tls else 80) else f"{host}:{self.port}"


def address_of(url: str) -> Address:
    try:
        parts = urlsplit(url if "://" in url else f"https://{url}")
        port = parts.port
    except ValueError as error:
        raise BadRequest(f"{url[:80]!r} is no address of a server") from error
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query:
        raise BadRequest(f"{url[:80]!r} is no address of a server", "such as https://HOST:PORT")
    if parts.username or parts.password:
        raise BadRequest("a password does not belong in a URL", "use a token, in a file")
    tls = parts.scheme == "https"
    return Address(parts.hostname, port or (443 if tls else 80), tls, parts.path.rstrip("/"))


class Access:
    """One server and one user. Not for two threads at once."""

    def __init__(
        self,
        address: Address,
        credentials: Credentials,
        connect: Callable[[], socket.socket],
        tls: Callable[[Certificate | None], ssl.SSLContext] | None = None,
        server_name: str = "",
    ) -> None:
        """`connect`: a socket that reaches the address, before any TLS."""
        self.address = address
        self._credentials = credentials
        self._connect = connect
        self._make_tls = tls
        self._tls: ssl.SSLContext | None = None
        self._server_name = server_name or address.host

    def dial(self) -> socket.socket:
        connected = self._connect()
        if not self.address.tls:
            return connected
        try:
            connected.settimeout(CONNECT_SECONDS)
            if self._tls is None:
                assert self._make_tls is not None  # noqa: S101 - an address with TLS has one
                self._tls = self._make_tls(self._credentials.certificate())
            return self._tls.wrap_socket(connected, server_hostname=self._server_name)
        except ssl.SSLCertVerificationError as error:
            connected.close()
            raise Unauthenticated(
                f"{self.address.host} does not show the certificate it should: "
                f"{error.verify_message}",
                "is it the server you mean, and its CA the one you have?",
            ) from error
        except OSError as error:
            connected.close()
            raise _unreachable(self.address, error) from error
        except HoldfastError:
            connected.close()
            raise

    def headers(self) -> list[tuple[str, str]]:
        return self._credentials.headers()

    def renew(self) -> bool:
        """After a 401."""
        self._tls = None
        return self._credentials.renew()


def _unreachable(address: Address, error: OSError) -> Unavailable:
    why = error.strerror or str(error) or type(error).__name__
    return Unavailable(
        f"{address.host}:{address.port} cannot be reached: {why}",
        "is it the one you mean? see: kubectl config current-context",
    )


def of_cluster(chosen: Chosen) -> Access:
    cluster = chosen.cluster
    address = address_of(str(cluster["server"]))
    user = User(chosen.user, cluster)
    proxy = str(cluster.get("proxy-url") or "") or proxy_for(address, os.environ)
    if not address.tls and address.host not in _LOOPBACK:
        raise Unknown("a server without TLS")  # kubectl knows what it wants to send there
    return Access(
        address,
        user,
        _connector(address, proxy),
        lambda certificate: _cluster_tls(cluster, certificate),
        str(cluster.get("tls-server-name") or ""),
    )


def of_gateway(url: str, token: Credentials, authority: str = "") -> Access:
    """`authority`: a file of the CA that signed the gateway's certificate; else the system's."""
    address = address_of(url)
    if not address.tls and address.host not in _LOOPBACK:
        raise BadRequest(
            f"a token is not sent to {address.host} in the clear", "use https://, or a loopback URL"
        )
    entry = {"certificate-authority": authority} if authority else {}
    proxy = proxy_for(address, os.environ)
    return Access(address, token, _connector(address, proxy), lambda _: _cluster_tls(entry, None))


def of_socket(path: Path) -> Access:
    """Where a `kubectl proxy` listens, which logs in for us."""

    def connect() -> socket.socket:
        connected = socket.socket(socket.AF_UNIX)
        try:
            connected.settimeout(CONNECT_SECONDS)
            connected.connect(str(path))
        except OSError as error:
            connected.close()
            raise Unavailable(f"kubectl proxy does not answer: {error}") from error
        return connected

    return Access(Address("localhost", 80, False, ""), Token(), connect)


# -- TLS


def _cluster_tls(entry: Mapping[str, Any], certificate: Certificate | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if entry.get("insecure-skip-tls-verify"):
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    elif authority := pem(entry, "certificate-authority"):
        try:
            context.load_verify_locations(cadata=authority.decode("ascii"))
        except (ssl.SSLError, UnicodeError) as error:
            raise BadRequest(f"the CA of the server cannot be used: {error}") from error
    else:
        context.load_default_certs()
    if certificate is not None:
        _load(context, certificate)
    return context


def _load(context: ssl.SSLContext, certificate: Certificate) -> None:
    """The ssl module takes files only; this one is in memory, and gone at once."""
    descriptor = os.memfd_create("certificate")
    try:
        os.write(descriptor, certificate.chain + b"\n" + certificate.key)
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    except (ssl.SSLError, OSError) as error:
        raise BadRequest(f"the client certificate cannot be used: {error}") from error
    finally:
        os.close(descriptor)


# -- connecting, through a proxy if there is one


def _connector(address: Address, proxy: str) -> Callable[[], socket.socket]:
    if proxy and urlsplit(proxy).scheme != "http":
        raise Unknown(f"the proxy {urlsplit(proxy).scheme}://")

    def connect() -> socket.socket:
        if proxy:
            return _tunnelled(address, proxy)
        return _connected(address.host, address.port, address)

    return connect


def _connected(host: str, port: int, wanted: Address) -> socket.socket:
    try:
        made = socket.create_connection((host, port), timeout=CONNECT_SECONDS)
    except OSError as error:
        raise _unreachable(wanted, error) from error
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made


def _tunnelled(address: Address, proxy: str) -> socket.socket:
    parts = urlsplit(proxy)
    made = _connected(parts.hostname or "", parts.port or 80, address)
    where = f"{address.host}:{address.port}"
    lines = [f"CONNECT {where} HTTP/1.1", f"Host: {where}"]
    if parts.username:
        from base64 import b64encode

        who = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        lines.append(f"Proxy-Authorization: Basic {b64encode(who.encode()).decode()}")
    try:
        made.sendall("\r\n".join([*lines, "", ""]).encode())
        answer = b""
        while not answer.endswith(b"\r\n\r\n") and len(answer) < _PROXY_ANSWER_BYTES:
            byte = made.recv(1)  # what follows the head is TLS, and not ours to take
            if not byte:
                break
            answer += byte
    except OSError as error:
        made.close()
        raise _unreachable(address, error) from error
    status = answer.split(b" ")[1:2]
    if status != [b"200"]:
        made.close()
        raise Unavailable(f"the proxy {parts.hostname} does not connect to {address.host}")
    return made


def proxy_for(address: Address, environment: Mapping[str, str]) -> str:
    """As Go's programs have it: not to loopback, and not to what NO_PROXY lists."""
    names = ("HTTPS_PROXY", "https_proxy") if address.tls else ("HTTP_PROXY", "http_proxy")
    proxy = next((environment[name] for name in names if environment.get(name)), "")
    if not proxy or address.host in _LOOPBACK:
        return ""
    listed = environment.get("NO_PROXY") or environment.get("no_proxy") or ""
    if any(_excepted(address, one.strip()) for one in listed.split(",") if one.strip()):
        return ""
    return proxy if "://" in proxy else f"http://{proxy}"


def _excepted(address: Address, pattern: str) -> bool:
    if pattern == "*":
        return True
    if "/" in pattern:
        from ipaddress import ip_address, ip_network

        try:
            return ip_address(address.host) in ip_network(pattern, strict=False)
        except ValueError:
            return False
    name, colon, port = pattern.rpartition(":")
    if colon and port.isdigit() and ":" not in name:
        if int(port) != address.port:
            return False
        pattern = name
    pattern = pattern.removeprefix("*").lower()
    if pattern.startswith("."):
        return address.host.endswith(pattern)
    return address.host == pattern or address.host.endswith(f".{pattern}")
