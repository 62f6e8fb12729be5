"""What `kubectl get` answers, without starting kubectl: a test that waits looks several times a
second, and each kubectl is a tenth of a second of a core."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

import yaml

from e2e.cluster.places import KUBECONFIG
from holdfast_kube.credentials import from_kubeconfig

HOLDFAST: Final = "apis/holdfast.dev/v1alpha1"
NAMESPACED: Final = {
    "session": (HOLDFAST, "sessions"),
    "checkpoint": (HOLDFAST, "checkpoints"),
    "lease": ("apis/coordination.k8s.io/v1", "leases"),
    "pdb": ("apis/policy/v1", "poddisruptionbudgets"),
    "deployment": ("apis/apps/v1", "deployments"),
    "daemonset": ("apis/apps/v1", "daemonsets"),
    "event": ("api/v1", "events"),
    "pod": ("api/v1", "pods"),
    "role": ("apis/rbac.authorization.k8s.io/v1", "roles"),
    "rolebinding": ("apis/rbac.authorization.k8s.io/v1", "rolebindings"),
    "secret": ("api/v1", "secrets"),
    "service": ("api/v1", "services"),
    "serviceaccount": ("api/v1", "serviceaccounts"),
}
EVERYWHERE: Final = {"node": ("api/v1", "nodes"), "namespace": ("api/v1", "namespaces")}
_SECONDS: Final = 10.0


class Refused(Exception):
    def __init__(self, complaint: str, *, missing: bool = False) -> None:
        super().__init__(complaint)
        self.missing = missing


class Look:
    def __init__(self) -> None:
        self._connection: http.client.HTTPSConnection | None = None
        self._turn = threading.Lock()

    def get(self, *arguments: str) -> dict[str, Any]:
        """As `kubectl get … -o json`, of its arguments -n, -l, --all-namespaces and
        --field-selector."""
        with self._turn:
            bodies = [self._fetch(path) for path in paths(*arguments)]
        if len(bodies) == 1 and "items" not in bodies[0]:
            return bodies[0]
        return {"kind": "List", "items": [item for body in bodies for item in items(body)]}

    def _fetch(self, path: str) -> dict[str, Any]:
        kept = self._connection is not None
        try:
            status, body = self._ask(path)
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.close()
            if kept:  # it may have been closed long ago
                return self._fetch(path)
            raise Refused(f"the API server does not answer: {error!r}") from error
        if status != 200:
            raise Refused(str(body.get("message")), missing=status == 404)
        return body

    def _ask(self, path: str) -> tuple[int, dict[str, Any]]:
        if self._connection is None:
            self._connection = connection()
        self._connection.request("GET", path)
        answer = self._connection.getresponse()
        return answer.status, json.loads(answer.read())

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def connection() -> http.client.HTTPSConnection:
    """By the kubeconfig as it is now: each cluster has its own."""
    credentials = from_kubeconfig(yaml.safe_load(KUBECONFIG.read_text()), KUBECONFIG.parent)
    server = urlsplit(credentials.server)
    host, port = server.hostname or "", server.port or 443
    return http.client.HTTPSConnection(host, port, timeout=_SECONDS, context=credentials.tls())


def paths(*arguments: str) -> Iterator[str]:
    words: list[str] = []
    query: dict[str, str] = {}
    everywhere, namespace = False, "default"
    given = iter(arguments)
    for one in given:
        if one == "-n":
            namespace = next(given)
        elif one == "-l":
            query["labelSelector"] = next(given)
        elif one == "--field-selector":
            query["fieldSelector"] = next(given)
        elif one == "--all-namespaces":
            everywhere = True
        elif one.startswith("-"):
            raise ValueError(f"{one} is kubectl's; use Lab.kubectl")
        else:
            words.append(one)
    kinds, names = words[0].split(","), words[1:]
    for kind in kinds:
        path = _folder(kind, None if everywhere else namespace)
        if names:
            yield from (f"{path}/{name}" for name in names)
        else:
            yield f"{path}?{urlencode(query)}" if query else path


def _folder(kind: str, namespace: str | None) -> str:
    name = kind.removesuffix("s")
    if name in EVERYWHERE:
        group, plural = EVERYWHERE[name]
        return f"/{group}/{plural}"
    group, plural = NAMESPACED[name]
    within = "" if namespace is None else f"/namespaces/{namespace}"
    return f"/{group}{within}/{plural}"


def items(body: dict[str, Any]) -> list[dict[str, Any]]:
    """Each with its kind, which a list says once."""
    if "items" not in body:
        return [body]
    kind = {"apiVersion": body["apiVersion"], "kind": body["kind"].removesuffix("List")}
    return [{**kind, **item} for item in body["items"]]
