"""Session objects of a cluster, and what belongs to them: over HTTP from here, or through kubectl.

Most kubeconfigs are read here, because starting kubectl costs more than all the rest; what only
kubectl can do goes through a `kubectl proxy` of our own, and where there is no kubeconfig at all
through the program itself (kube.py).
"""

from __future__ import annotations

from typing import Any, Final, Protocol
from urllib.parse import quote, urlencode

from holdfast.answers import NotServed
from holdfast.http1 import JSON, Http
from holdfast_wire.errors import HoldfastError, Unsupported
from holdfast_wire.ids import Actor, actor_of

INSTALL: Final = (
    "install it with: helm install holdfast charts/holdfast --namespace holdfast-system"
    " --create-namespace"
)
_GROUP: Final = "/apis/holdfast.dev/v1alpha1"
_MERGE: Final = "application/merge-patch+json"

Object = dict[str, Any]


def not_installed() -> Unsupported:
    return Unsupported("holdfast is not installed in this cluster", INSTALL)


class Api(Protocol):
    """Of the namespace meant, if nothing else is said."""

    @property
    def namespace(self) -> str | None: ...

    def session(self, name: str) -> Object: ...

    def sessions(self, everywhere: bool) -> list[Object]: ...

    def create(self, body: Object) -> Object: ...

    def patch(self, name: str, patch: Object) -> None:
        """A merge patch of a Session."""

    def annotate(self, name: str, key: str, value: str | None) -> None:
        """None removes it."""

    def events(self, name: str, namespace: str) -> list[Object]: ...

    def node(self, name: str) -> Object: ...

    def whoami(self) -> Actor | None:
        """Who we are to the cluster; None if it does not tell."""

    def aside(self) -> Api:
        """The same for another thread, where nobody can be asked anything."""

    def close(self) -> None:
        """No connection is kept."""


class HttpApi:
    def __init__(self, http: Http, namespace: str) -> None:
        self._http = http
        self.namespace = namespace

    def aside(self) -> Api:
        return HttpApi(Http(self._http.access, self._http.client, keep=False), self.namespace)

    def close(self) -> None:
        self._http.close()

    def _path(self, name: str = "") -> str:
        path = f"{_GROUP}/namespaces/{quote(self.namespace, safe='')}/sessions"
        return f"{path}/{quote(name, safe='')}" if name else path

    def _ask(self, method: str, path: str, body: Any = None, kind: str = JSON) -> Object:
        try:
            return self._http.ask(method, path, body, kind)
        except NotServed:
            raise not_installed() from None

    def session(self, name: str) -> Object:
        return self._ask("GET", self._path(name))

    def sessions(self, everywhere: bool) -> list[Object]:
        return _items(self._ask("GET", f"{_GROUP}/sessions" if everywhere else self._path()))

    def create(self, body: Object) -> Object:
        return self._ask("POST", self._path(), body)

    def patch(self, name: str, patch: Object) -> None:
        self._ask("PATCH", self._path(name), patch, _MERGE)

    def annotate(self, name: str, key: str, value: str | None) -> None:
        self.patch(name, {"metadata": {"annotations": {key: value}}})

    def events(self, name: str, namespace: str) -> list[Object]:
        about = f"involvedObject.name={name},involvedObject.kind=Session"
        query = urlencode({"fieldSelector": about})
        where = f"/api/v1/namespaces/{quote(namespace, safe='')}/events"
        return _items(self._http.ask("GET", f"{where}?{query}"))

    def node(self, name: str) -> Object:
        return self._http.ask("GET", f"/api/v1/nodes/{quote(name, safe='')}")

    def whoami(self) -> Actor | None:
        group = "authentication.k8s.io/v1"
        review = {"apiVersion": group, "kind": "SelfSubjectReview"}
        try:
            found = self._http.ask("POST", f"/apis/{group}/selfsubjectreviews", review)
            return actor_of_user(found["status"]["userInfo"])
        except (HoldfastError, KeyError, TypeError):
            return None  # an API server older than 1.28


def actor_of_user(user: Any) -> Actor:
    return actor_of(user["username"], user.get("uid") or "")


def _items(body: Object) -> list[Object]:
    return [item for item in body.get("items") or () if isinstance(item, dict)]
