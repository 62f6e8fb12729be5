"""Sessions in a cluster: find one, reach its sidecar, say why it cannot be reached.

A session outlives its pods, so its pod is looked up anew for every connection.
"""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING, Any

from holdfast.arguments import Target
from holdfast.facts import Facts, Phase, facts
from holdfast.kube import SESSIONS, Kubectl
from holdfast.places import the_only
from holdfast.render import suggestion
from holdfast_wire.errors import Ended, HoldfastError, NotFound, Unavailable
from holdfast_wire.ids import session_name

if TYPE_CHECKING:
    from holdfast.connection import Connection
    from holdfast.relay import Pod, Relay


class Cluster:
    """Sessions in one namespace of a cluster; the other `Place` a command can work on."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.kubectl = Kubectl(target)
        self._actor = ""
        self._answered = False
        self._watching: Connection | None = None

    def advise(self, command: str, name: str = "") -> str:
        """What to type for that, from where the user is."""
        words = [self.target.prog, command, name]
        for option, value in (
            ("-n", self.target.namespace),
            ("--context", self.target.context),
            ("--kubeconfig", self.target.kubeconfig),
        ):
            words += [option, value] if value else []
        return " ".join(word for word in words if word)

    # -- what the API says

    def sessions(self, everywhere: bool = False) -> list[Facts]:
        where = ["--all-namespaces"] if everywhere else []
        items = self.kubectl.json("get", SESSIONS, *where).get("items")
        found = [facts(item) for item in items or [] if isinstance(item, dict)]
        return sorted(found, key=lambda one: (one.namespace, one.name))

    def find(self, name: str, kubectl: Kubectl | None = None) -> Facts:
        """`NotFound` names those there are. With a kubectl of its own: beside the main thread."""
        session_name(name)
        asked = kubectl or self.kubectl
        try:
            found = facts(asked.json("get", SESSIONS, name, aside=kubectl is not None))
            self._answered = True
            return found
        except NotFound:
            if kubectl is not None:
                raise NotFound(f"session {name} is not there any more: it was deleted") from None
            others = [one.name for one in self.sessions()]
            hint = suggestion(name, others, self.advise("run NAME --image IMAGE"))
            raise NotFound(f"there is no session {name!r}", hint) from None

    def pick(self, words: list[str]) -> str:
        """The session meant: the first word, or the only one that lives."""
        if words:
            return words[0]
        living = [one.name for one in self.sessions() if not one.over]
        return the_only(living, self.advise("run NAME --image IMAGE"))

    def actor(self) -> str:
        """Who we are to the cluster, for the session's journal; asked once."""
        if not self._actor:
            self._actor = self._whoami() or _local_user()
        return self._actor

    def _whoami(self) -> str:
        try:
            user = self.kubectl.json("auth", "whoami")["status"]["userInfo"]["username"]
        except (HoldfastError, KeyError, TypeError):
            return ""  # kubectl older than 1.28, or an API server that does not tell
        return user if isinstance(user, str) else ""

    # -- the sidecar

    def connect(self, name: str) -> Connection:
        from holdfast.relay import Relay, RelayConnection

        pod = self.pod(self.find(name))
        # Asked while the relay comes up; and only now, when whoever had to log in has done so.
        return RelayConnection(Relay(self.kubectl, lambda _: pod), self.actor())

    def pod(self, found: Facts) -> Pod:
        """Where its sidecar is, or an error that says why it is nowhere."""
        from holdfast.relay import Pod

        if found.over:
            raise ended_error(found, self)
        if not found.reachable:
            raise Unavailable(not_reachable(found), f"see: {self.advise('describe', found.name)}")
        return Pod(found.namespace, found.pod)

    def look(self, name: str) -> dict[str, Any]:
        """Its state, for `wait`: over one connection for as long as that holds. A session that has
        no pod yet, or is between two, has a state too."""
        try:
            if self._watching is None:
                self._watching = self.connect(name)
            state = self._watching.request("state")
            return state if isinstance(state, dict) else {}
        except Ended:
            how = self.find(name).exit or {}
            return {"activity": "ended", "process": None, "sentence": "", "exit": how}
        except Unavailable as error:
            self.close()
            if not self._answered:
                raise  # not a session between two pods, but no cluster
            return {"activity": "unreachable", "process": None, "sentence": error.message}

    def last_screen(self, name: str) -> dict[str, Any] | None:
        """What the API has kept of an ended session's screen."""
        found = self.find(name)
        if not found.over:
            return None
        text = "\n".join(found.last_lines)
        return {"text": text, "ended": True, "exit": found.exit, "epoch": found.epoch}

    def close(self) -> None:
        if self._watching is not None:
            self._watching.close()
            self._watching = None


class ClusterLink:
    """The connections of one attachment, one after the other, each to the pod of the moment."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self._cluster = cluster
        self._name = name
        self._relay: Relay | None = None
        self._exit: dict[str, Any] | None = None

    def open(self) -> socket.socket:
        from holdfast.relay import Relay

        self.close()
        self._relay = Relay(self._cluster.kubectl, self._find)
        return self._relay.socket

    def _find(self, kubectl: Kubectl) -> Pod:
        found = self._cluster.find(self._name, kubectl)
        self._exit = found.exit if found.over else None
        return self._cluster.pod(found)

    def why(self) -> HoldfastError | None:
        return self._relay.why() if self._relay is not None else None

    def exit_status(self) -> dict[str, Any] | None:
        return self._exit

    def finish(self) -> None:
        if self._relay is not None:
            self._relay.finish()

    def close(self) -> None:
        if self._relay is not None:
            self._relay.close()
            self._relay = None


def ended_error(found: Facts, cluster: Cluster) -> Ended:
    how = "could not go on" if found.phase == Phase.FAILED else "has ended"
    return Ended(
        f"session {found.name} {how}: {found.ending()}",
        f"see: {cluster.advise('describe', found.name)}",
    )


def not_reachable(found: Facts) -> str:
    trouble = found.trouble()
    said = f"session {found.name} is {found.phase}" + ("" if found.pod else " and has no pod")
    return f"{said}: {trouble}" if trouble else said


def _local_user() -> str:
    import pwd

    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())
