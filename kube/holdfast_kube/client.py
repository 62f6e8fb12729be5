"""The one module that talks to the API server (kopf's own watches and the sidecar aside).

Every request has a deadline. Every failure is one of the errors below, so that callers decide by
type; an answer that did not come is `Unavailable`, and the write may have landed: read again.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import aiohttp

from holdfast_kube.credentials import Credentials, Token
from holdfast_wire.errors import (
    AlreadyExists,
    Forbidden,
    HoldfastError,
    Internal,
    NotFound,
    Permanent,
    Retry,
    Unauthenticated,
    Unavailable,
)

REQUEST_SECONDS: Final = 10.0
MAX_RETRY_AFTER: Final = 60.0  # a server's wish beyond this is a mistake
MAX_LINE: Final = 4 << 20  # of a watch: an object can be 1.5 MiB in etcd, more as JSON
PAGE: Final = 500

Object = Mapping[str, Any]


class Conflict(Retry):
    """Somebody wrote since we read: read again and decide anew."""

    code = "conflict"
    http_status = 409


class Gone(Retry):
    """A watch's resourceVersion is too old: list again."""

    code = "gone"
    http_status = 410


class Invalid(Permanent):
    """The API server refuses the object itself."""

    code = "invalid"
    http_status = 422


class Overloaded(Unavailable):
    """Come back in `retry_after` seconds."""

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


@dataclass(frozen=True, slots=True)
class Resource:
    """A kind of object, by where the API has it."""

    base: str
    plural: str

    def path(self, namespace: str | None, name: str | None = None, sub: str | None = None) -> str:
        parts = [self.base]
        if namespace:
            parts += ["namespaces", namespace]
        parts.append(self.plural)
        parts += [part for part in (name, sub) if part]
        return "/".join(parts)


SESSIONS: Final = Resource("/apis/holdfast.dev/v1alpha1", "sessions")
LEASES: Final = Resource("/apis/coordination.k8s.io/v1", "leases")
PODS: Final = Resource("/api/v1", "pods")
ACCOUNTS: Final = Resource("/api/v1", "serviceaccounts")
ROLES: Final = Resource("/apis/rbac.authorization.k8s.io/v1", "roles")
BINDINGS: Final = Resource("/apis/rbac.authorization.k8s.io/v1", "rolebindings")
BUDGETS: Final = Resource("/apis/policy/v1", "poddisruptionbudgets")
CHECKPOINTS: Final = Resource("/apis/holdfast.dev/v1alpha1", "checkpoints")
NODES: Final = Resource("/api/v1", "nodes")
EVENTS: Final = Resource("/apis/events.k8s.io/v1", "events")
CERTIFICATE_REQUESTS: Final = Resource("/apis/certificates.k8s.io/v1", "certificatesigningrequests")


class Api(Protocol):
    """What the rest of the operator needs of a cluster."""

    async def get(self, kind: Resource, namespace: str, name: str) -> Object | None:
        """None if there is no such object."""

    async def list_all(
        self, kind: Resource, namespace: str | None, labels: str = "", metadata_only: bool = False
    ) -> tuple[Sequence[Object], str]:
        """All objects, and the list's resourceVersion."""

    async def create(
        self, kind: Resource, namespace: str, body: Object, strict: bool = False
    ) -> Object:
        """`strict`: a field that the API does not know is refused, not dropped."""

    async def replace(self, kind: Resource, namespace: str, name: str, body: Object) -> Object:
        """A compare-and-swap: `body` carries the resourceVersion it was made from."""

    async def patch(
        self, kind: Resource, namespace: str, name: str, body: Object, sub: str | None = None
    ) -> Object:
        """A merge patch; with metadata.resourceVersion in it a compare-and-swap."""

    async def delete(
        self, kind: Resource, namespace: str, name: str, uid: str, version: str | None = None
    ) -> None:
        """With the object's own grace; an object that is gone, or another one by that name, is
        left alone."""


_METADATA: Final = "application/json;as={kind};g=meta.k8s.io;v=v1,application/json"


class Kube:
    """An `Api` over HTTP."""

    def __init__(
        self,
        credentials: Credentials,
        counted: Callable[[str, str], None] = lambda *_: None,
        agent: str = "holdfast-operator",
    ) -> None:
        self._server = credentials.server
        self._token = Token(credentials)
        self._tls = credentials.tls()
        self._counted, self._agent = counted, agent
        self._http: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Kube:
        # A few more connections than workers: the watches hold theirs for minutes.
        connector = aiohttp.TCPConnector(ssl=self._tls, limit=32, keepalive_timeout=60)
        self._http = aiohttp.ClientSession(connector=connector, headers={"User-Agent": self._agent})
        return self

    async def __aexit__(self, *_exc: object) -> None:
        if self._http:
            await self._http.close()

    async def get(self, kind: Resource, namespace: str, name: str) -> Object | None:
        try:
            return await self._json("get", "GET", kind.path(namespace, name))
        except NotFound:
            return None

    async def list_all(
        self, kind: Resource, namespace: str | None, labels: str = "", metadata_only: bool = False
    ) -> tuple[list[Object], str]:
        accept = _METADATA.format(kind="PartialObjectMetadataList") if metadata_only else None
        params = {"limit": str(PAGE)} | ({"labelSelector": labels} if labels else {})
        items: list[Object] = []
        while True:
            page = await self._json(
                "list", "GET", kind.path(namespace), params=params, accept=accept
            )
            items += page.get("items") or []
            meta = page.get("metadata") or {}
            if not meta.get("continue"):
                return items, str(meta.get("resourceVersion", ""))
            params = {**params, "continue": meta["continue"]}

    async def create(
        self, kind: Resource, namespace: str, body: Object, strict: bool = False
    ) -> Object:
        params = {"fieldValidation": "Strict"} if strict else None
        return await self._json("create", "POST", kind.path(namespace), params=params, body=body)

    async def replace(self, kind: Resource, namespace: str, name: str, body: Object) -> Object:
        return await self._json("update", "PUT", kind.path(namespace, name), body=body)

    async def update(self, kind: Resource, name: str, sub: str, body: Object) -> Object:
        """A subresource of something that belongs to no namespace; a compare-and-swap."""
        return await self._json("update", "PUT", kind.path("", name, sub), body=body)

    async def patch(
        self, kind: Resource, namespace: str, name: str, body: Object, sub: str | None = None
    ) -> Object:
        path = kind.path(namespace, name, sub)
        return await self._json(
            "patch", "PATCH", path, body=body, content="application/merge-patch+json"
        )

    async def set_condition(self, kind: Resource, name: str, condition: Object) -> None:
        """Of something that belongs to no namespace and is not of our own kinds, beside the
        conditions that others set."""
        await self._json(
            "patch", "PATCH", kind.path("", name, "status"),
            body={"status": {"conditions": [condition]}},
            content="application/strategic-merge-patch+json",
        )  # fmt: skip

    async def delete(
        self, kind: Resource, namespace: str, name: str, uid: str, version: str | None = None
    ) -> None:
        only: dict[str, str] = {"uid": uid} | ({"resourceVersion": version} if version else {})
        body = {"propagationPolicy": "Background", "preconditions": only}
        try:
            await self._json("delete", "DELETE", kind.path(namespace, name), body=body)
        except NotFound:
            return
        except Conflict:
            if version:
                raise
            # Another object has this name now: the one we meant is gone.

    async def resources(self, base: str) -> frozenset[str]:
        """Plural names that the API serves under `base`; none if it does not know it."""
        try:
            found = await self._json("discover", "GET", base)
        except NotFound:
            return frozenset()
        return frozenset(one["name"] for one in found.get("resources") or ())

    async def watch(
        self,
        kind: Resource,
        namespace: str | None,
        labels: str,
        version: str,
        *,
        seconds: int,
        silence: float,
        metadata_only: bool = True,
    ) -> AsyncIterator[Object]:
        """Events from `version` on, until the server ends it after `seconds`. `Unavailable`
        after `silence` seconds without even a bookmark."""
        params = {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "labelSelector": labels,
            "resourceVersion": version,
            "timeoutSeconds": str(seconds),
        }
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=REQUEST_SECONDS, sock_read=silence)
        accept = _METADATA.format(kind="PartialObjectMetadata") if metadata_only else None
        headers = self._headers(accept)
        url = self._server + kind.path(namespace)
        try:
            async with self._session.get(
                url, params=params, headers=headers, timeout=timeout
            ) as answer:
                self._counted("watch", str(answer.status))
                if answer.status != 200:
                    raise failure(answer.status, await _body(answer), answer.headers)
                async for line in lines(answer.content.iter_any()):
                    yield event(line)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Unavailable(f"the watch broke: {type(error).__name__}") from error

    @property
    def _session(self) -> aiohttp.ClientSession:
        if self._http is None:
            raise Internal("the client is used before it is opened")
        return self._http

    def _headers(self, accept: str | None) -> dict[str, str]:
        headers = {"Accept": accept or "application/json"}
        token = self._token.get(time.monotonic())
        if token:
            headers["Authorization"] = f"Bearer {token}"
        return headers

    async def _json(
        self,
        verb: str,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Object | None = None,
        content: str = "application/json",
        accept: str | None = None,
    ) -> Object:
        headers = self._headers(accept)
        data = None
        if body is not None:
            data = json.dumps(body).encode()
            headers["Content-Type"] = content
        try:
            async with (
                asyncio.timeout(REQUEST_SECONDS),
                self._session.request(
                    method, self._server + path, params=params, data=data, headers=headers
                ) as answer,
            ):
                found = await _body(answer)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            self._counted(verb, "none")
            raise Unavailable(f"{verb} {path}: no answer ({type(error).__name__})") from error
        self._counted(verb, str(answer.status))
        if answer.status >= 300:
            raise failure(answer.status, found, answer.headers)
        return found


async def _body(answer: aiohttp.ClientResponse) -> Object:
    text = await answer.text()
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {"message": text[:200]}


def failure(status: int, body: Object, headers: Mapping[str, str]) -> HoldfastError:
    """The error for an answer that is not a success."""
    message = str(body.get("message") or f"HTTP {status}")
    wait = _retry_after(headers.get("Retry-After"), body)
    if status == 429 or status >= 500:
        return Overloaded(message, wait) if wait is not None else Unavailable(message)
    if status == 409:
        exists = body.get("reason") == "AlreadyExists"
        return AlreadyExists(message) if exists else Conflict(message)
    by_status: dict[int, type[HoldfastError]] = {
        401: Unauthenticated,
        403: Forbidden,
        404: NotFound,
        410: Gone,
        422: Invalid,
    }
    return by_status.get(status, Invalid if status == 400 else Internal)(message)


def _retry_after(header: str | None, body: Object) -> float | None:
    details = body.get("details")
    seconds: object = header
    if header is None and isinstance(details, dict):
        seconds = details.get("retryAfterSeconds")
    text = str(seconds)
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        return None
    return min(float(text), MAX_RETRY_AFTER)


async def lines(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Whole lines of a stream; bounded, because one that never ends would be kept."""
    rest = b""
    async for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            if line.strip():
                yield line
        if len(rest) > MAX_LINE:
            raise Unavailable("a line of the watch has no end")


def event(line: bytes) -> Object:
    """One event of a watch; an ERROR is raised as the error it carries."""
    try:
        found = json.loads(line)
    except ValueError:
        raise Unavailable("the watch sent something that is not JSON") from None
    if not isinstance(found, dict) or not isinstance(found.get("object"), dict):
        raise Unavailable("the watch sent something that is not an event")
    if found.get("type") == "ERROR":
        status = found["object"]
        code = status.get("code")
        raise failure(code if isinstance(code, int) else 500, status, {})
    return found
