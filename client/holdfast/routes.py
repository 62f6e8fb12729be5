"""Where `holdfast.connect` and `holdfast.sessions` go: to this machine, a cluster or a gateway. The
same ways as the command line's; they block, and are to be called in a thread."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from holdfast.arguments import GATEWAY, Target

if TYPE_CHECKING:
    from holdfast.attach import Link
    from holdfast_wire.ids import Actor

CLIENT = "sdk"


class Route(Protocol):
    def link(self, name: str) -> tuple[Link, Actor | None]:
        """A link whose first `open` is prepared, and the name to claim there."""

    def sessions(self) -> list[dict[str, Any]]: ...

    def close(self) -> None: ...


class Where(NamedTuple):
    namespace: str | None = None
    context: str | None = None
    kubeconfig: str | None = None
    gateway: str | None = None
    token: str | None = None
    cluster: bool = False


def route_of(where: Where) -> Route:
    target = Target(CLIENT, where.namespace, where.context, where.kubeconfig, where.gateway)
    if where.context or where.kubeconfig or (where.cluster and not where.gateway):
        return _Cluster(target)
    gateway = where.gateway or os.environ.get(GATEWAY)
    if gateway:
        return _Gateway(target._replace(gateway=gateway), where.token)
    return _Cluster(target) if where.namespace else _Machine()


def _silent(_: str) -> None:
    """A library does not talk to the terminal."""


class _Machine:
    def link(self, name: str) -> tuple[Link, Actor | None]:
        from holdfast.local import LocalLink, ensure

        return LocalLink(ensure(name)), None

    def sessions(self) -> list[dict[str, Any]]:
        from holdfast.lifecycle import entries

        return entries()

    def close(self) -> None:
        """Nothing is kept."""


class _Cluster:
    def __init__(self, target: Target) -> None:
        from holdfast.cluster import Cluster

        self._cluster = Cluster(target, CLIENT, _silent)

    def link(self, name: str) -> tuple[Link, Actor | None]:
        return self._cluster.link(name)

    def sessions(self) -> list[dict[str, Any]]:
        return [one.to_json() for one in self._cluster.sessions()]

    def close(self) -> None:
        self._cluster.close()


class _Gateway:
    def __init__(self, target: Target, token: str | None) -> None:
        from holdfast.credentials import Token
        from holdfast.gateway_commands import Gateway

        self._gateway = Gateway(target, CLIENT, Token(token) if token else None)

    def link(self, name: str) -> tuple[Link, Actor | None]:
        link = self._gateway.link(name)
        link.prepare(_silent)
        return link, None

    def sessions(self) -> list[dict[str, Any]]:
        return self._gateway.sessions()

    def close(self) -> None:
        """Nothing is kept."""
