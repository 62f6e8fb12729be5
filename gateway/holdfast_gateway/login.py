"""How a person comes in by the page: the ways there are, and what makes each of them believable.
Pure: settings and header values in, a `Caller` or an error out.

Invariants
- A header that names a user counts only from a trusted proxy: a peer whose verified certificate
  has one of its names, or, if none are set, whose own address is in one of its networks. From
  anybody else such a header is refused, not overlooked: somebody tries, or the proxy is set up
  wrongly.
- No proxy makes anybody one of Kubernetes' own users or groups (`system:…`).
- An ID token is for us only if it says so: its issuer and its audience are those of `Oidc`.
"""

from __future__ import annotations

import base64
import binascii
import ipaddress
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from holdfast_gateway.auth import Caller, Modality
from holdfast_gateway.front import Headers
from holdfast_wire.errors import BadRequest, Forbidden, Unauthenticated
from holdfast_wire.ids import actor_of

AUDIENCE: Final = "holdfast"  # of the tokens that people and programs come with
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
# Of everybody who is somebody. The API server adds it to whom it authenticates itself.
_AUTHENTICATED: Final = "system:authenticated"
_RESERVED: Final = "system:"
_MAX_NAME: Final = 256
_LOOPBACK: Final = re.compile(r"127\.0\.0\.1|localhost|\[::1\]")


@dataclass(frozen=True, slots=True)
class Token:
    """A Kubernetes token, pasted."""

    audience: str = AUDIENCE

    def to_json(self) -> dict[str, str]:
        return {"kind": "token", "audience": self.audience}


@dataclass(frozen=True, slots=True)
class Link:
    """Of one machine: the address that holdfast prints has the token in it."""

    def to_json(self) -> dict[str, str]:
        return {"kind": "link"}


@dataclass(frozen=True, slots=True)
class Oidc:
    """The page asks the issuer for an ID token, and the API server believes that issuer too."""

    issuer: str
    client_id: str
    scopes: str = "openid"

    def __post_init__(self) -> None:
        parts = urlsplit(self.issuer)
        local = parts.scheme == "http" and _LOOPBACK.fullmatch(parts.netloc.rpartition(":")[0])
        clean = not (parts.query or parts.fragment or "@" in parts.netloc)
        # It becomes part of a header of every answer.
        plain = re.fullmatch(r"[A-Za-z0-9.:\[\]-]+", parts.netloc)
        if not (plain and clean and (parts.scheme == "https" or local)):
            raise BadRequest(
                f"{self.issuer[:200]!r} is not an issuer",
                "it is an https address without a query, such as https://login.example/realm",
            )
        if not self.client_id:
            raise BadRequest("OIDC needs a client's id", "register one for the page, public")

    @property
    def origin(self) -> str:
        parts = urlsplit(self.issuer)
        return f"{parts.scheme}://{parts.netloc}"

    def to_json(self) -> dict[str, str]:
        return {
            "kind": "oidc",
            "issuer": self.issuer,
            "client_id": self.client_id,
            "scopes": self.scopes,
        }

    def meant(self, token: str) -> bool:
        """Whether a token says that it is one of this issuer's for this client. The API server
        does not look for our audience in such tokens, so it is asked without one, and only if
        this holds: its answer proves the signature, and with it what was read here."""
        try:
            raw = token.split(".")[1]
            claims = json.loads(base64.urlsafe_b64decode(raw + "=" * (-len(raw) % 4)))
        except (IndexError, binascii.Error, ValueError, RecursionError):
            return False
        if not isinstance(claims, dict) or claims.get("iss") != self.issuer:
            return False
        audience = claims.get("aud")
        return self.client_id in (audience if isinstance(audience, list) else [audience])


@dataclass(frozen=True, slots=True)
class Peer:
    """The other end of the connection itself; nothing that a header says."""

    address: str
    certificate: Mapping[str, Any] | None = None
    """Verified by TLS against the proxy's CA, as the ssl module gives it."""


@dataclass(frozen=True, slots=True)
class TrustedProxy:
    """An auth proxy in front of the gateway. It has authenticated the user and says in headers
    who he is; it must remove such headers from what it is sent."""

    networks: tuple[Network, ...] = ()
    names: frozenset[str] = frozenset()
    """Of its certificate. If there are any, no address is trusted without one."""
    user_header: str = "X-Forwarded-User"
    groups_header: str = "X-Forwarded-Groups"
    prefix: str = ""
    """Before each user and group, so that they are nobody else's."""

    def __post_init__(self) -> None:
        if not self.networks and not self.names:
            raise BadRequest(
                "a proxy that anybody can be is not trusted",
                "name its networks, or the names in its certificate",
            )
        if any(network.prefixlen == 0 for network in self.networks):
            raise BadRequest("every address is not a proxy's network", "name its own")

    def to_json(self) -> dict[str, str]:
        return {"kind": "proxy"}

    def caller(self, peer: Peer, headers: Headers, modality: Modality) -> Caller | None:
        """Who asks by the proxy's word; None if no such word was said."""
        users = headers.getall(self.user_header, [])
        groups = headers.getall(self.groups_header, [])
        if not users and not groups:
            return None
        if not self._trusts(peer):
            raise Forbidden(
                f"the header {self.user_header} is believed of a trusted proxy only",
                "sign in with a token, or let the gateway know the proxy",
            )
        if len(users) != 1 or len(groups) > 1:
            # It added its own to what it was sent: nobody knows which one to believe.
            raise Unauthenticated(
                f"the proxy sent {self.user_header} {len(users)} times",
                "let it replace the header, not add to it",
            )
        member = [name for value in groups for name in value.split(",") if name.strip()]
        return Caller(
            actor_of(self._own(users[0])),
            modality,
            groups=(*(self._own(name) for name in member), _AUTHENTICATED),
        )

    def _trusts(self, peer: Peer) -> bool:
        if self.names:
            return bool(self.names & _names(peer.certificate))
        try:
            address = ipaddress.ip_address(peer.address.partition("%")[0])
        except ValueError:
            return False
        mapped = getattr(address, "ipv4_mapped", None)
        return any((mapped or address) in network for network in self.networks)

    def _own(self, text: str) -> str:
        name = self.prefix + text.strip()
        printable = text.strip() and name.isprintable() and len(name) <= _MAX_NAME
        if not printable or name.lower().startswith(_RESERVED):
            raise Forbidden(
                "the proxy named a user or group that it may not name",
                f"names that begin with {_RESERVED!r} are Kubernetes' own",
            )
        return name


Way = Token | Link | Oidc | TrustedProxy


@dataclass(frozen=True, slots=True)
class Login:
    """What `GET /api/v1/login` answers, and what the page may connect to for it."""

    ways: tuple[Way, ...] = (Link(),)

    def to_json(self) -> dict[str, list[dict[str, str]]]:
        return {"ways": [way.to_json() for way in self.ways]}

    @property
    def origins(self) -> tuple[str, ...]:
        return tuple(way.origin for way in self.ways if isinstance(way, Oidc))


def networks(text: str) -> tuple[Network, ...]:
    """Of a setting: `10.0.0.0/8, fd00::/8`."""
    try:
        return tuple(ipaddress.ip_network(one.strip()) for one in text.split(",") if one.strip())
    except ValueError as error:
        raise BadRequest(f"{text[:100]!r} are not networks: {error}", "as 10.0.0.0/8") from None


def _names(certificate: Mapping[str, Any] | None) -> set[str]:
    """The common name and the DNS names."""
    found = certificate or {}
    subject = [pair for part in found.get("subject", ()) for pair in part]
    return {
        str(value)
        for key, value in [*subject, *found.get("subjectAltName", ())]
        if key in ("commonName", "DNS")
    }
