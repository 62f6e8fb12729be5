"""Where the sessions are that a command works on: on this machine, in a cluster, or behind a
gateway that is named."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from holdfast.render import to_stderr
from holdfast_wire.errors import BadRequest, Ended, NotFound, Unavailable

if TYPE_CHECKING:
    from holdfast.arguments import Given, Target
    from holdfast.connection import Connection


class Place(Protocol):
    def pick(self, words: list[str]) -> str:
        """The session meant: the first word, or the only one that lives."""

    def connect(self, name: str) -> Connection: ...

    def look(self, name: str) -> dict[str, Any]:
        """The state now, also of a session that has ended or that is away for a moment."""

    def last_screen(self, name: str) -> dict[str, Any] | None:
        """What is left of an ended session's screen, where nobody keeps the whole of it."""

    def advise(self, command: str, name: str = "") -> str:
        """What to type for that."""

    def names(self) -> list[str]:
        """Of the sessions that live."""


def place_of(given: Given) -> Place:
    return Machine() if given.target is None else reached(given.target)


def reached(target: Target) -> Place:
    if target.gateway:
        from holdfast.gateway_commands import Gateway

        return Gateway(target)
    from holdfast.cluster import Cluster

    return Cluster(target)


class Machine:
    """Sessions on this machine. Modules are loaded when needed: help and completion need none."""

    def pick(self, words: list[str]) -> str:
        return words[0] if words else the_only(self.names(), self.advise("run"))

    def names(self) -> list[str]:
        from holdfast.folders import living
        from holdfast.paths import state_dir

        return [folder.name for folder in living(state_dir())]

    def connect(self, name: str) -> Connection:
        from holdfast.local import connect_local

        return connect_local(name, to_stderr, "cli")

    def look(self, name: str) -> dict[str, Any]:
        """A sidecar that dies while we wait is brought back, not complained of."""
        from holdfast.folders import Suspended, exit_status, find
        from holdfast.local import connect_local
        from holdfast.paths import state_dir

        for attempt in range(3):
            try:
                with connect_local(name, modality="cli") as session:
                    found = session.request("state")
                    return found if isinstance(found, dict) else {}
            except Suspended:
                sentence = "stored, until somebody wakes it"
                return {"activity": "suspended", "process": None, "sentence": sentence}
            except Ended:
                how = exit_status(find(state_dir(), name))
                return {"activity": "ended", "process": None, "sentence": "", "exit": how}
            except Unavailable:
                if attempt == 2:
                    raise
        return {}

    def last_screen(self, name: str) -> dict[str, Any] | None:
        return None

    def advise(self, command: str, name: str = "") -> str:
        return f"holdfast {command} {name}".rstrip()


def the_only(names: list[str], start: str) -> str:
    if len(names) == 1:
        return names[0]
    if not names:
        raise NotFound("there is no session", f"start one with: {start}")
    shown = ", ".join(names[:8]) + (", …" if len(names) > 8 else "")
    raise BadRequest("which session?", f"there are several; name one of: {shown}")
