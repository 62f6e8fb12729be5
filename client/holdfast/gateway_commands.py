"""Sessions behind a gateway that is reached by its own address: a `Place`, and the commands that
are said otherwise of it. What needs the cluster's API is not had here."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.access import of_gateway
from holdfast.arguments import GATEWAY, Given, Target
from holdfast.commands import detach_keys, no_more, structured, write
from holdfast.credentials import Token
from holdfast.places import the_only
from holdfast.remote import OWN, Remote, TunnelLink
from holdfast.render import Cell, Style, suggestion, table, to_stderr
from holdfast_wire.errors import (
    BadRequest,
    Ended,
    NotFound,
    Unauthenticated,
    Unavailable,
    Unsupported,
)
from holdfast_wire.ids import session_name
from holdfast_wire.plain import plain
from holdfast_wire.rights import Right

if TYPE_CHECKING:
    from holdfast.connection import Connection

TOKEN_FILE = "HOLDFAST_TOKEN_FILE"  # noqa: S105 - a variable's name
_AUTHORITY = "HOLDFAST_GATEWAY_CA"


def token(file: str | None) -> Token:
    """Never from the command line: others see that."""
    file = file or os.environ.get(TOKEN_FILE)
    if file:
        return Token(file=Path(file))
    given = os.environ.get("HOLDFAST_TOKEN", "")
    if not given:
        raise Unauthenticated(
            "there is no token for the gateway",
            "set HOLDFAST_TOKEN or --token-file; one of a service account is made by:"
            " kubectl create token ACCOUNT --audience=holdfast",
        )
    return Token(given)


class Gateway:
    """The third `Place` a command can work on."""

    def __init__(self, target: Target, client: str = "http", access: Token | None = None) -> None:
        if not target.gateway:
            raise BadRequest("which gateway?", f"give --gateway URL, or set {GATEWAY}")
        self.target = target
        authority = os.environ.get(_AUTHORITY, "")
        credentials = access or token(target.token_file)
        self._remote = Remote(of_gateway(target.gateway, credentials, authority), OWN, client)
        self._watching: Connection | None = None

    def advise(self, command: str, name: str = "") -> str:
        namespace = f"-n {self.target.namespace}" if self.target.namespace else ""
        words = [self.target.prog, command, name, namespace]
        if not os.environ.get(GATEWAY):
            words.append(f"--gateway {self.target.gateway}")
        return " ".join(word for word in words if word)

    def sessions(self) -> list[dict[str, Any]]:
        """Those that one may see; of the namespace meant, if one is."""
        http = self._remote.http(keep=False)
        listed = http.ask("GET", f"{OWN}/sessions").get("sessions") or []
        wanted = self.target.namespace
        found = [one for one in listed if isinstance(one, dict)]
        return [one for one in found if not wanted or one.get("namespace") == wanted]

    def pick(self, words: list[str]) -> str:
        if words:
            return words[0]
        return the_only(self.names(), "kubectl holdfast run NAME --image IMAGE")

    def names(self) -> list[str]:
        return [str(one.get("session")) for one in self.sessions() if not _over(one)]

    def namespace_of(self, name: str) -> str:
        """A gateway of one machine knows none, and that of a cluster wants one."""
        if self.target.namespace:
            return self.target.namespace
        session_name(name)
        found = [one for one in self.sessions() if one.get("session") == name]
        if not found:
            others = sorted(str(one.get("session")) for one in self.sessions())
            hint = suggestion(name, others, "kubectl holdfast run NAME --image IMAGE")
            raise NotFound(f"there is no session {name!r} that you may see", hint)
        if len(found) > 1:
            where = ", ".join(sorted(str(one.get("namespace")) for one in found))
            raise BadRequest(f"there are several sessions {name!r}", f"give -n, one of: {where}")
        return str(found[0].get("namespace") or "")

    def connect(self, name: str) -> Connection:
        return self._remote.connect(name, self.namespace_of(name), to_stderr)

    def link(self, name: str) -> TunnelLink:
        where = self.namespace_of(name)
        return TunnelLink(self._remote, name, where, lambda: self._exit_of(name, where))

    def _exit_of(self, name: str, namespace: str) -> dict[str, Any] | None:
        found = self._described(name, namespace).get("exit")
        return found if isinstance(found, dict) else None

    def _described(self, name: str, namespace: str) -> dict[str, Any]:
        return self._remote.http(keep=False).ask(
            "GET", self._remote.path(name, namespace, Right.OBSERVE)
        )

    def look(self, name: str) -> dict[str, Any]:
        try:
            if self._watching is None:
                self._watching = self.connect(name)
            state = self._watching.request("state")
        except Ended:
            state = self._described(name, self.namespace_of(name)).get("state")
        except Unavailable as error:
            if self._watching is None:
                raise  # not a session between two pods, but no gateway
            self._watching.close()
            self._watching = None
            state = {"activity": "unreachable", "process": None, "sentence": error.message}
        return state if isinstance(state, dict) else {}

    def last_screen(self, name: str) -> dict[str, Any] | None:
        return None


def _over(one: dict[str, Any]) -> bool:
    return (one.get("state") or {}).get("activity") in ("ended", "lost")


def _place(given: Given) -> Gateway:
    return Gateway(given.target or Target("holdfast"))


def attach(given: Given) -> int:
    from holdfast.attach import attach as attach_terminal
    from holdfast.attach import nonce
    from holdfast.terminal import require_terminal
    from holdfast_wire.attach_core import Settings

    no_more(given.words[1:], given.after)
    place = _place(given)
    keys = detach_keys(given.options.detach_keys)
    name = place.pick(given.words)
    require_terminal(name, place.target.prog)
    link = place.link(name)
    link.prepare(to_stderr, wake=given.options.wake)
    again = place.advise("attach", name)
    return attach_terminal(link, Settings(name, given.options.view, keys, nonce(), again, "http"))


def url(given: Given) -> int:
    no_more(given.words[1:], given.after)
    place = _place(given)
    name = place.pick(given.words)
    where = place.namespace_of(name)
    base = str(place.target.gateway).rstrip("/")
    found = f"{base}/#/{where}/{name}" if where else f"{base}/#/{name}"
    if not structured(given.options.output, {"url": found}):
        write(found + "\n")
    return 0


def ls(given: Given) -> int:
    from holdfast.lifecycle import LISTED, row

    no_more(given.words, given.after)
    place = _place(given)
    found = [{"name": one.get("session"), **one} for one in place.sessions()]
    several = any(one.get("namespace") for one in found) and not place.target.namespace
    if given.options.output == "name":
        lead = [f"{one['namespace']}/" if several else "" for one in found]
        write("".join(f"{a}{plain(one['name'])}\n" for a, one in zip(lead, found, strict=True)))
        return 0
    if structured(given.options.output, {"sessions": found}):
        return 0
    rows = [row(one) for one in found]
    header: tuple[str, ...] = LISTED
    if several:
        header = ("NAMESPACE", *LISTED)
        places = [Cell(str(one.get("namespace"))) for one in found]
        rows = [[where, *cells] for where, cells in zip(places, rows, strict=True)]
    write(table(header, rows, Style.of(sys.stdout)))
    return 0


def end(given: Given) -> int:
    if given.options.all:
        raise BadRequest("which session?", "one after the other, by name")
    no_more(given.words[1:], given.after)
    place = _place(given)
    name = place.pick(given.words)
    with place.connect(name) as session:
        session.request("end")
    write(f"{name} is ending\n")
    return 0


def not_here(command: str) -> Unsupported:
    return Unsupported(
        f"a gateway cannot {command} sessions: that is the cluster's",
        f"use: kubectl holdfast {command}; for this machine unset {GATEWAY}",
    )
