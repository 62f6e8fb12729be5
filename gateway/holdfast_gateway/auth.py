"""Who may come in, on one machine; and what a request must look like anywhere. Pure: header values
in, a `Caller` or an error out.

The embedded gateway listens on loopback, where every program of every user, and every web page in
the user's own browser, can connect. So four things are asked of a request, in this order:

1. `Host` is a loopback name: a foreign name made to resolve to 127.0.0.1 gets nothing.
2. No token in the query, where it would end up in logs, histories and referrers.
3. An `Origin`, if there is one, is our own. A browser's WebSocket must have one, since it is the
   only thing that tells our page from another site's: browsers do not apply CORS to WebSockets.
4. The token is right, compared in constant time.

Invariant: no request without the right token passes `authenticate`, whatever else it carries.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from holdfast_wire.errors import BadRequest, Forbidden, Unauthenticated
from holdfast_wire.ids import Actor

SUBPROTOCOL: Final = "holdfast.v1"
FAMILY: Final = "holdfast.v"  # of any version
CLIENT_HEADER: Final = "X-Holdfast-Client"
_BEARER_SUBPROTOCOL: Final = "bearer."
_LOOPBACK_HOST: Final = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:\d{1,5})?", re.IGNORECASE)
_TOKEN_QUERIES: Final = frozenset({"token", "access_token", "bearer", "auth", "authorization"})


class Modality(StrEnum):
    BROWSER = "browser"
    HTTP = "http"
    KUBECTL = "kubectl"
    MCP = "mcp"
    SDK = "sdk"
    SSH = "ssh"


@dataclass(frozen=True, slots=True)
class Caller:
    """An authenticated actor and the way it came; in a cluster with what RBAC knows him by."""

    actor: Actor
    modality: Modality
    groups: tuple[str, ...] = ()
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()
    still: Callable[[], Awaitable[None]] | None = field(default=None, compare=False, repr=False)
    """Asks again whether he is who he was; for what goes on for long."""

    def to_json(self) -> dict[str, str]:
        return {**self.actor.to_json(), "modality": self.modality.value}


def check_host(host: str | None) -> str:
    if host is None or not _LOOPBACK_HOST.fullmatch(host):
        raise Forbidden(
            "this gateway answers only to a loopback name",
            "use http://127.0.0.1 with the gateway's port",
        )
    return host.lower()


def check_query(query: Iterable[tuple[str, str]], token: str = "") -> None:
    """`token`: the one there is, where there is only one."""
    for key, value in query:
        if key.lower() in _TOKEN_QUERIES or (token and _same(value, token)):
            raise BadRequest(
                "a token does not belong in a URL",
                "send it in the header 'Authorization: Bearer TOKEN'",
            )


def check_origin(origin: str | None, host: str, scheme: str = "http") -> None:
    if origin is not None and origin.lower() != f"{scheme}://{host}":
        raise Forbidden(
            "the request comes from another site's page", "open the gateway's own page instead"
        )


def authenticate(headers: Mapping[str, str], actor: Actor, token: str) -> Caller:
    """For plain HTTP: the token is in the Authorization header, or the caller is nobody."""
    given = bearer(headers)
    if given is None or not _same(given, token):
        raise _unauthenticated()
    return Caller(actor, modality_of(headers, Modality.HTTP))


def authenticate_stream(headers: Mapping[str, str], actor: Actor, token: str) -> Caller:
    """For the WebSocket: a program sends the header as elsewhere. A page cannot set headers, so it
    offers the token as a subprotocol, and then it is a browser and must say where it is from."""
    if bearer(headers) is not None:
        return authenticate(headers, actor, token)
    given = offered(headers)
    if given is None or not _same(given, token):
        raise _unauthenticated()
    check_browser(headers)
    return Caller(actor, Modality.BROWSER)


def check_browser(headers: Mapping[str, str]) -> None:
    """Of a WebSocket whose token was offered as a subprotocol."""
    if "Origin" not in headers:
        raise Forbidden(
            "a browser's WebSocket must have an Origin",
            "programs send the token in the header 'Authorization: Bearer TOKEN'",
        )


def modality_of(headers: Mapping[str, str], usual: Modality) -> Modality:
    """A program may say that it is the SDK; nothing hangs on it but the word in the journal."""
    return Modality.SDK if headers.get(CLIENT_HEADER, "").lower() == Modality.SDK else usual


def bearer(headers: Mapping[str, str]) -> str | None:
    """The token of the Authorization header; None if there is no such header."""
    value = headers.get("Authorization")
    if value is None:
        return None
    scheme, _, given = value.partition(" ")
    return given.strip() if scheme.lower() == "bearer" else ""


def offered(headers: Mapping[str, str]) -> str | None:
    """The token among the subprotocols that a WebSocket offers."""
    names = subprotocols(headers)
    if not any(name.startswith(FAMILY) for name in names):
        return None
    tokens = [name for name in names if name.startswith(_BEARER_SUBPROTOCOL)]
    return tokens[0].removeprefix(_BEARER_SUBPROTOCOL) if len(tokens) == 1 else None


def subprotocols(headers: Mapping[str, str]) -> list[str]:
    return [name.strip() for name in headers.get("Sec-WebSocket-Protocol", "").split(",")]


def _same(given: str, token: str) -> bool:
    return hmac.compare_digest(given.encode(errors="replace"), token.encode())


def _unauthenticated() -> Unauthenticated:
    return Unauthenticated(
        "no token, or a wrong one",
        "'holdfast url' prints the page's address with its token; programs send the header"
        " 'Authorization: Bearer TOKEN'",
    )
