"""Requests that come through the API server's aggregation layer. It has authenticated the user and
asked RBAC, and says in headers who he is; that is believed of nobody else.

Invariant: a header that names a user counts only from a peer whose certificate is signed by the
requestheader CA and has an allowed name. Everybody else's are not even read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol
from urllib.parse import unquote

from holdfast_gateway.auth import Caller, Modality
from holdfast_kube.client import Api, Resource
from holdfast_wire.errors import Forbidden, Permanent, Unauthenticated, Unavailable
from holdfast_wire.ids import actor_of

CONFIGMAPS: Final = Resource("/api/v1", "configmaps")
_WHERE: Final = ("kube-system", "extension-apiserver-authentication")
_CERTIFICATE: Final = re.compile(r"-BEGIN CERTIFICATE-+([^-]+)-")


class Misconfigured(Permanent):
    """The cluster cannot tell the API server from others."""

    code = "misconfigured"


class Headers(Protocol):
    """Of a request, each name with all its values."""

    def getall(self, key: str, default: list[str]) -> list[str]: ...

    def items(self) -> Any: ...


@dataclass(frozen=True, slots=True)
class Front:
    """How the API server is known, and how it names users."""

    authority: str  # PEM
    names: frozenset[str]
    users: tuple[str, ...]
    groups: tuple[str, ...]
    extra: tuple[str, ...]
    uids: tuple[str, ...]

    def caller(self, peer: Mapping[str, Any] | None, headers: Headers) -> Caller:
        """`peer`: the verified certificate, as the ssl module gives it."""
        if _common_name(peer) not in self.names:
            raise Unauthenticated(
                "this path is for the API server alone",
                "use kubectl, or the gateway's own /api/v1 with a token",
            )
        user = _first(headers, self.users)
        if not user:
            raise Forbidden("the API server did not say for whom it asks")
        return Caller(
            actor_of(user, _first(headers, self.uids)),
            Modality.KUBECTL,
            groups=tuple(value for name in self.groups for value in headers.getall(name, [])),
            extra=self._extra(headers),
        )

    def _extra(self, headers: Headers) -> tuple[tuple[str, tuple[str, ...]], ...]:
        found: dict[str, list[str]] = {}
        for key, value in headers.items():
            for prefix in self.extra:
                if key.lower().startswith(prefix.lower()):
                    found.setdefault(unquote(key[len(prefix) :].lower()), []).append(value)
        return tuple(sorted((key, tuple(values)) for key, values in found.items()))


def _first(headers: Headers, names: tuple[str, ...]) -> str:
    for name in names:
        for value in headers.getall(name, []):
            return value
    return ""


def _common_name(peer: Mapping[str, Any] | None) -> str | None:
    for part in (peer or {}).get("subject", ()):
        for key, value in part:
            if key == "commonName":
                return str(value)
    return None


async def read(api: Api) -> Front:
    """As the API server itself publishes it."""
    found = await api.get(CONFIGMAPS, *_WHERE)
    if found is None:
        raise Unavailable("the API server has not published how it is known", "try again")
    return parsed(found.get("data") or {})


def parsed(data: Mapping[str, str]) -> Front:
    authority = data.get("requestheader-client-ca-file", "").strip()
    names = frozenset(_list(data, "requestheader-allowed-names"))
    users = _list(data, "requestheader-username-headers")
    if not authority or not users:
        raise Misconfigured(
            "the API server has no aggregation layer",
            "start it with --requestheader-client-ca-file, or install without gateway.aggregated",
        )
    # With one authority for both, whoever has a client certificate could name himself anybody.
    if _certificates(authority) & _certificates(data.get("client-ca-file", "")):
        raise Misconfigured(
            "the API server's clients and its aggregation layer have the same CA",
            "give --requestheader-client-ca-file a CA of its own",
        )
    if not names:
        raise Misconfigured(
            "the API server allows any name from its requestheader CA",
            "set --requestheader-allowed-names",
        )
    return Front(
        authority,
        names,
        users,
        _list(data, "requestheader-group-headers"),
        _list(data, "requestheader-extra-headers-prefix"),
        _list(data, "requestheader-uid-headers") or ("X-Remote-Uid",),
    )


def _certificates(bundle: str) -> set[str]:
    """Each without its line breaks: what was written by others may break them elsewhere."""
    return {"".join(one.split()) for one in _CERTIFICATE.findall(bundle)}


def _list(data: Mapping[str, str], key: str) -> tuple[str, ...]:
    try:
        found = json.loads(data.get(key) or "[]")
    except ValueError:
        found = []
    return tuple(str(one) for one in found) if isinstance(found, list) else ()
