"""Sessions behind a gateway, whether one comes to it through the API server's aggregation layer or
by its own address: the same paths below, the same frames."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import quote

from holdfast.access import Access
from holdfast.answers import NotServed
from holdfast.connection import CarriedConnection, Connection
from holdfast.http1 import Http
from holdfast.tunnel import Tunnel
from holdfast_wire import rights
from holdfast_wire.errors import Ended, HoldfastError, Suspended, Unavailable
from holdfast_wire.ids import session_name
from holdfast_wire.rights import Right, path_of

GROUP: Final = f"/apis/{rights.GROUP}"
AGGREGATED: Final = f"{GROUP}/v1alpha1"
OWN: Final = "/api/v1"
# Before anybody wonders whether something is wrong.
_QUIET_SECONDS: Final = 1.5
# For a session that runs to come to a gateway that has just begun, or to its next node.
_PATIENCE_SECONDS: Final = 30.0
_AGAIN_SECONDS: Final = 0.5  # a gateway that waits for it itself has waited longer than this

Say = Callable[[str], None]
Waits = Callable[[str], str]
"""What a session's gateway waits for, by its name; empty if it is not known."""


class NotYet(Unavailable):
    """A gateway says that the session is not to be reached at the moment; or let us in and closed
    at once, as when a session has just been woken and its sidecar dials again."""


class Remote:
    def __init__(self, access: Access, base: str, client: str, waits: Waits | None = None) -> None:
        """`base`: AGGREGATED or OWN. `client`: how we come, for the session's journal."""
        self.access, self._base, self._client = access, base, client
        self._waits = waits

    def http(self, keep: bool = True) -> Http:
        return Http(self.access, self._client, keep)

    def path(self, name: str, namespace: str, right: Right, below: str = "") -> str:
        """Of what is `below` the session, and needs that right."""
        where = f"/namespaces/{session_name(namespace)}" if namespace else ""
        own = quote(session_name(name), safe="")
        if self._base == AGGREGATED:
            below = path_of(right, below)
        return f"{self._base}{where}/sessions/{own}" + (f"/{below}" if below else "")

    def wake(self, name: str, namespace: str) -> None:
        """By the right to wake, and none on the object."""
        path = self.path(name, namespace, Right.WAKE, "wake")
        self.http(keep=False).ask("POST", path, {})

    def tunnel(self, name: str, namespace: str) -> Tunnel:
        """On its way; not waited for."""
        waits = self._waits
        told = None if waits is None else (lambda: waits(name))
        return Tunnel(
            self.access, self.path(name, namespace, Right.OBSERVE, "stream"), self._client, told
        )

    def opened(
        self, name: str, namespace: str, say: Say, meanwhile: Callable[[], None] | None = None
    ) -> Tunnel:
        """Let in, or raises why not. `say` hears what is being waited for; `meanwhile` is done
        while the network is."""
        tunnel = self.tunnel(name, namespace)
        try:
            if meanwhile is not None:
                meanwhile()
            told = ""
            while not tunnel.opened.wait(0.1 if told or tunnel.sentence else _QUIET_SECONDS):
                if tunnel.sentence != told:
                    told = tunnel.sentence
                    say(f"waiting for {name}: {told} …")
            if tunnel.failed():
                raise self._explained(tunnel)
        except BaseException:
            tunnel.close()
            raise
        return tunnel

    def _explained(self, tunnel: Tunnel) -> HoldfastError:
        error = tunnel.why()
        if error is None:
            return Unavailable("the gateway does not answer", "try again")
        if tunnel.foreign_refusal() and self._base == AGGREGATED and not self.installed():
            # RBAC is asked first, and nobody has rights on what is not there.
            return NotServed("the cluster has no gateway of holdfast")
        if isinstance(error, Unavailable) and (tunnel.refused is not None or tunnel.let_in):
            return NotYet(error.message, error.advice)
        return error

    def installed(self) -> bool:
        """Whether the API server knows of the gateway; that everybody may ask."""
        return self.http(keep=False).request("GET", GROUP).status != 404

    def connect(self, name: str, namespace: str, say: Say) -> Connection:
        said: set[str] = set()

        def say_once(sentence: str) -> None:
            if sentence not in said:
                said.add(sentence)
                say(sentence)

        give_up = time.monotonic() + _PATIENCE_SECONDS
        while True:
            try:
                return CarriedConnection(self.opened(name, namespace, say_once), self._client)
            except NotYet:
                if time.monotonic() > give_up:
                    raise
                time.sleep(_AGAIN_SECONDS)


def _load_the_rest() -> None:
    """What an attachment needs once it is let in, loaded while others work."""
    import holdfast.attach  # noqa: F401


class TunnelLink:
    """The connections of one attachment, one after the other, each to whichever gateway answers."""

    def __init__(
        self,
        remote: Remote,
        name: str,
        namespace: str,
        exit_of: Callable[[], dict[str, Any] | None] | None = None,
    ) -> None:
        """`exit_of` asks how a session ended, once it is known that it has."""
        self._remote, self._name, self._namespace = remote, name, namespace
        self._exit_of = exit_of
        self._tunnel: Tunnel | None = None
        self._fresh = False
        self._exit: dict[str, Any] | None = None

    def prepare(self, say: Say, *, wake: bool = False) -> None:
        """The first one, before the terminal is ours: whoever has to log in can, and what is wrong
        is said where it can be read. One that takes long to come is waited for further on, where
        its user can leave. `wake`: also if a person suspended it."""
        try:
            self._first(say)
        except Suspended:
            if not wake:
                raise
            say(f"waking {self._name} …")
            self._remote.wake(self._name, self._namespace)
            self._first(say)

    def _first(self, say: Say) -> None:
        try:
            self._tunnel = self._remote.opened(self._name, self._namespace, say, _load_the_rest)
            self._fresh = True
        except NotYet as error:
            say(f"{error.message}; waiting …")

    def open(self) -> socket.socket:
        if self._fresh and self._tunnel is not None:
            self._fresh = False
            return self._tunnel.socket
        self.close()
        self._tunnel = self._remote.tunnel(self._name, self._namespace)
        return self._tunnel.socket

    def why(self) -> HoldfastError | None:
        error = self._tunnel.why() if self._tunnel is not None else None
        if isinstance(error, NotServed):
            return Unavailable("no gateway answers at the moment")  # one did before
        if isinstance(error, Ended) and self._exit_of is not None:
            self._exit = self._exit_of()
        return error

    def exit_status(self) -> dict[str, Any] | None:
        return self._exit

    def finish(self) -> None:
        if self._tunnel is not None:
            self._tunnel.finish()

    def close(self) -> None:
        if self._tunnel is not None:
            self._tunnel.close()
            self._tunnel = None
