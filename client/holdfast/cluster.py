"""Sessions in a cluster: find one, reach its sidecar, say why it cannot be reached.

It is reached through the API server's aggregation layer and a gateway, where Kubernetes itself says
who we are. A cluster without a gateway is reached by `kubectl exec` into the session's pod; a
session outlives its pods, so its pod is looked up anew for every connection.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from holdfast.answers import NotServed
from holdfast.arguments import Target
from holdfast.facts import Facts, Phase, facts
from holdfast.places import the_only
from holdfast.render import suggestion, to_stderr
from holdfast_wire.errors import (
    Ended,
    Forbidden,
    HoldfastError,
    NotFound,
    Suspended,
    Unavailable,
    Unsupported,
)
from holdfast_wire.ids import Actor, session_name
from holdfast_wire.plain import plain

if TYPE_CHECKING:
    from holdfast.api import Api
    from holdfast.attach import Link
    from holdfast.connection import Connection
    from holdfast.kube import Kubectl
    from holdfast.relay import Pod, Relay
    from holdfast.remote import Remote


_SERVICE: Final = "/api/v1/namespaces/{}/services/{}"


class Page(NamedTuple):
    host: str
    """By which a browser finds it; empty if there is none."""
    service: str
    """namespace/name"""


def _outside(service: dict[str, Any]) -> str:
    """The address that a load balancer gave it."""
    status = service.get("status") or {}
    given = (status.get("loadBalancer") or {}).get("ingress") or [{}]
    return plain(given[0].get("hostname") or given[0].get("ip") or "")


class Cluster:
    """Sessions in one namespace of a cluster; the other `Place` a command can work on."""

    def __init__(
        self, target: Target, client: str = "kubectl", say: Callable[[str], None] = to_stderr
    ) -> None:
        """`client`: how we come, for the session's journal. `say`: to whoever waits."""
        from holdfast.reach import reach

        self.target = target
        self._client, self._say = client, say
        self._actor: Actor | None = None
        self._answered = False
        self._watching: Connection | None = None
        self._remote: Remote | None = None
        self._by_exec = False
        self.api: Api
        reached = reach(target)
        if reached is None:
            from holdfast.kube import Kubectl, KubectlApi

            self.api = KubectlApi(Kubectl(target))
            return
        from holdfast.api import HttpApi
        from holdfast.remote import AGGREGATED, Remote

        self._remote = Remote(reached.access, AGGREGATED, client, self._waits_for)
        self.api = HttpApi(self._remote.http(), reached.namespace)

    @property
    def _gateway(self) -> Remote | None:
        return None if self._by_exec else self._remote

    def _namespace(self) -> str:
        return self.api.namespace or "default"

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
        found = [facts(item) for item in self.api.sessions(everywhere)]
        return sorted(found, key=lambda one: (one.namespace, one.name))

    def find(self, name: str, api: Api | None = None) -> Facts:
        """`NotFound` names those there are. With an API of its own: beside the main thread."""
        session_name(name)
        try:
            found = facts((api or self.api).session(name))
            self._answered = True
            return found
        except NotFound:
            if api is not None:
                raise NotFound(f"session {name} is not there any more: it was deleted") from None
            others = [one.name for one in self.sessions()]
            hint = suggestion(name, others, self.advise("run NAME --image IMAGE"))
            raise NotFound(f"there is no session {name!r}", hint) from None

    def pick(self, words: list[str]) -> str:
        """The session meant: the first word, or the only one that lives."""
        if words:
            return words[0]
        return the_only(self.names(), self.advise("run NAME --image IMAGE"))

    def names(self) -> list[str]:
        return [one.name for one in self.sessions() if not one.over]

    def actor(self) -> Actor:
        """Who we are to the cluster, for the session's journal; asked once."""
        if self._actor is None:
            self._actor = self.api.whoami() or Actor(_local_user())
        return self._actor

    def page(self) -> Page:
        """Where browsers find the gateway."""
        from holdfast.remote import AGGREGATED

        if self._remote is None:
            raise Unsupported("where the page is, is asked without kubectl", "use a kubeconfig")
        http = self._remote.http(keep=False)
        try:
            told = http.ask("GET", AGGREGATED).get("page") or {}
        except NotServed:
            raise Unsupported(
                "this cluster has no gateway, and so no page", f"use: {self.advise('attach')}"
            ) from None
        hosts, service = told.get("hosts") or (), str(told.get("service") or "")
        if hosts:
            return Page(plain(hosts[0]), service)
        if not service:
            raise Unsupported("the gateway does not say where its page is", "upgrade the chart")
        with contextlib.suppress(HoldfastError):  # not everybody may look at Services
            return Page(_outside(http.ask("GET", _SERVICE.format(*service.split("/", 1)))), service)
        return Page("", service)

    # -- the sidecar

    def connect(self, name: str) -> Connection:
        from holdfast.connection import CarriedConnection

        session_name(name)
        if (gateway := self._gateway) is not None:
            try:
                made = gateway.connect(name, self._namespace(), self._say)
                self._answered = True
                return made
            except HoldfastError as error:
                self._no_gateway(error, name)
        from holdfast.kube import Kubectl
        from holdfast.relay import Relay

        pod = self.pod(self.find(name))
        # Asked while the relay comes up; and only now, when whoever had to log in has done so.
        relay = Relay(Kubectl(self.target), lambda _: pod)
        return CarriedConnection(relay, self._client, self.actor())

    def link(self, name: str, *, wake: bool = False) -> tuple[Link, Actor | None]:
        """For an attachment; and the name to claim there, None where the cluster itself says who
        we are. One that its idle policy suspended goes on; one that a person did, if `wake`."""
        from holdfast.remote import TunnelLink

        session_name(name)
        if (gateway := self._gateway) is not None:
            link = TunnelLink(gateway, name, self._namespace(), lambda: self._exit_of(name))
            try:
                link.prepare(self._say, wake=wake)
                return link, None
            except HoldfastError as error:
                self._no_gateway(error, name)
        found = self.find(name)
        if found.over:
            raise ended_error(found, self)
        if found.phase in (Phase.SUSPENDED, Phase.RESTORING):
            from holdfast.stored_commands import woken

            if found.suspends and not wake:
                raise Suspended(
                    f"session {found.name} is suspended: somebody suspended it",
                    f"wake it with: {self.advise('wake', found.name)}; or attach with --wake",
                )
            woken(self, found)
        return ClusterLink(self, name), self.actor()

    def wake(self, name: str) -> bool:
        """By a gateway and the right to wake; False if there is no gateway."""
        if self._gateway is None:
            return False
        try:
            self._gateway.wake(name, self._namespace())
        except NotServed:
            return False
        return True

    def _no_gateway(self, error: HoldfastError, name: str) -> None:
        """Returns if `kubectl exec` is the way to go on; else raises, with more than a gateway
        tells."""
        if isinstance(error, NotServed):
            self._by_exec = True
            self._say(
                f"{error.message}: going through 'kubectl exec', where others only have your word"
                " for who you are"
            )
            return
        if isinstance(error, NotFound):
            with contextlib.suppress(Forbidden):
                self.find(name)
        if isinstance(error, Ended):
            with contextlib.suppress(Forbidden, NotFound):
                raise ended_error(self.find(name), self)
        raise error

    def _exit_of(self, name: str) -> dict[str, Any] | None:
        try:
            return self.find(name, self.api.aside()).exit
        except HoldfastError:
            return None

    def _waits_for(self, name: str) -> str:
        """Why a gateway does not let us in yet; asked in a thread of its own."""
        try:
            found = self.find(name, self.api.aside())
        except HoldfastError:
            return ""
        if found.phase == Phase.RUNNING:
            return "it runs, and has not come to this gateway yet"
        ready = found.condition("Ready")
        said = found.move or (ready.message if ready is not None and ready.bad else "")
        return f"it is {found.phase}: {said}" if said else f"it is {found.phase}"

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
        self.api.close()


class ClusterLink:
    """The connections of one attachment, one after the other, each to the pod of the moment."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self._cluster = cluster
        self._name = name
        self._relay: Relay | None = None
        self._exit: dict[str, Any] | None = None

    def open(self) -> socket.socket:
        from holdfast.kube import Kubectl
        from holdfast.relay import Relay

        self.close()
        self._relay = Relay(Kubectl(self._cluster.target), self._find)
        return self._relay.socket

    def _find(self, kubectl: Kubectl) -> Pod:
        """With the relay's own kubectl, where there is no other way: it ends with the relay."""
        from holdfast.kube import KubectlApi

        api = self._cluster.api
        own = KubectlApi(kubectl, aside=True) if isinstance(api, KubectlApi) else api.aside()
        found = self._cluster.find(self._name, own)
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
