"""The API server asks here before a pod is evicted.

Any operator answers, not only the leader, and from fresh reads: all that is done here is to mark
the Session, and whoever leads finds the mark. What fails here is no answer, and the API server goes
on without one (failurePolicy: Ignore): then the PodDisruptionBudget alone decides.

Who may ask: an API server that was not told to shows no certificate, but it knows the path, which
who may read the cluster's webhooks knows too. With an authority for it (`webhook.clientCA`) whoever
has no certificate by that is not let in. A forged question makes a session move, once a minute
at most for long.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from aiohttp import web

from holdfast_kube.client import LEASES, NODES, PODS, SESSIONS, Api
from holdfast_operator import log, metrics, names
from holdfast_operator.evictions import YES, Verdict, judge
from holdfast_operator.model import LeaseSeen, NodeSeen, Object, PodSeen, Session
from holdfast_wire.doors import Refusals
from holdfast_wire.errors import BadRequest, HoldfastError

PORT: Final = 8443
ANSWER_SECONDS: Final = 4.0  # the chart gives 5
KEYS_EVERY_SECONDS: Final = 60.0
# Of each session, by each operator: who forges evictions must not keep it on the move. So many at
# once, and then so many a second.
MARKS: Final = (3, 1 / 60)
VERSION: Final = "admission.k8s.io/v1"


@dataclass(frozen=True, slots=True)
class Eviction:
    """What is asked."""

    uid: str
    namespace: str
    pod: str  # "": of something else, which is none of ours
    dry_run: bool

    @classmethod
    def of(cls, review: object) -> Eviction:
        request = review.get("request") if isinstance(review, dict) else None
        if not isinstance(request, dict) or not isinstance(request.get("uid"), str):
            raise BadRequest("not an AdmissionReview", f"send one of {VERSION} with a request")
        resource = request.get("resource")
        plural = resource.get("resource") if isinstance(resource, dict) else None
        asked = (plural, request.get("subResource"), request.get("operation"))
        wanted = asked == ("pods", "eviction", "CREATE")
        namespace, name = request.get("namespace"), request.get("name")
        known = isinstance(namespace, str) and isinstance(name, str)
        return cls(
            uid=request["uid"],
            namespace=str(namespace),
            pod=str(name) if wanted and known else "",
            dry_run=_dry(request),
        )


def _json(body: bytes) -> object:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _dry(request: Object) -> bool:
    """kubectl drain --dry-run=server says it in the Eviction alone; the request's own field is of
    the query."""
    eviction = request.get("object")
    options = eviction.get("deleteOptions") if isinstance(eviction, dict) else None
    inner = options.get("dryRun") if isinstance(options, dict) else None
    return bool(request.get("dryRun")) or bool(inner)


class Keys:
    """The certificate, its key, and the path's secret, in a folder that kubelet keeps current."""

    def __init__(self, folder: str, client_ca: str = "") -> None:
        """`client_ca`: PEM; only clients with a certificate by it are let in."""
        self._folder = Path(folder)
        self.tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        if client_ca:
            self.tls.verify_mode = ssl.CERT_REQUIRED
            try:
                self.tls.load_verify_locations(cadata=client_ca)
            except (ssl.SSLError, ValueError) as error:
                raise BadRequest(
                    "HOLDFAST_WEBHOOK_CLIENT_CA is no certificate", "set it to one, as PEM"
                ) from error
        self.secret, self._loaded = "", b""
        try:
            self.load()
        except OSError as error:  # also ssl.SSLError
            raise BadRequest(
                f"HOLDFAST_WEBHOOK_KEYS is {folder}, which cannot be used: {error}",
                "it needs tls.crt, tls.key and path, as the chart's Secret has them",
            ) from error
        if not self.secret:
            raise BadRequest(f"{folder}/path is empty", "put a long random word in it")

    def load(self) -> bool:
        """True if they are others than before. Connections made from now on use them."""
        certificate = self._folder / "tls.crt"
        found = certificate.read_bytes()
        if found == self._loaded:
            return False
        secret = (self._folder / "path").read_text().strip()
        self.tls.load_cert_chain(certificate, self._folder / "tls.key")
        self.secret, self._loaded = secret, found
        return True

    async def follow(self) -> None:
        """Somebody may replace them while we run."""
        while True:
            await asyncio.sleep(KEYS_EVERY_SECONDS)
            try:
                if self.load():
                    log.info("the webhook has another certificate")
            except OSError as error:  # perhaps just being replaced: the next look shows
                log.warning("the webhook's certificate cannot be read", error=str(error))


class Webhook:
    def __init__(
        self,
        api: Api,
        keys: Keys,
        client_names: tuple[str, ...] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`client_names`: of the client's certificate; none: any."""
        self._api, self._keys = api, keys
        self._client_names = frozenset(client_names)
        self._marks = Refusals(*MARKS, now=clock)

    def application(self) -> web.Application:
        made = web.Application()
        made.add_routes([web.post("/evictions/{secret}", self._evictions)])
        return made

    async def _evictions(self, request: web.Request) -> web.Response:
        if self._client_names and not self._client_names & set(_names(request)):
            log.warning("a client of another name asked about an eviction", names=_names(request))
            raise web.HTTPForbidden
        given = request.match_info["secret"]
        if not hmac.compare_digest(given.encode(), self._keys.secret.encode()):
            raise web.HTTPNotFound
        try:
            eviction = Eviction.of(_json(await request.read()))
        except BadRequest as error:
            return web.Response(status=400, text=f"{error}\n")
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                verdict = await self._answer(eviction)
        except (HoldfastError, TimeoutError) as error:
            metrics.EVICTIONS.labels("none").inc()
            log.warning("an eviction was left to the budget", error=str(error) or "too slow")
            return web.Response(status=500, text="the API server did not answer: ask again\n")
        metrics.EVICTIONS.labels("allowed" if verdict.allowed else "held").inc()
        return web.json_response(_review(eviction, verdict))

    async def _answer(self, eviction: Eviction) -> Verdict:
        found = (
            await self._api.get(PODS, eviction.namespace, eviction.pod) if eviction.pod else None
        )
        labels = (found["metadata"].get("labels") or {}) if found is not None else {}
        name = labels.get(names.SESSION_LABEL)
        if found is None or not name:
            return YES
        # The Lease after the pod: a pod that was not up then has no session by now. The node too is
        # read: a drain evicts sooner than a watch tells of its cordon.
        where = (found.get("spec") or {}).get("nodeName")
        item, lease, node = await asyncio.gather(
            self._api.get(SESSIONS, eviction.namespace, name),
            self._api.get(LEASES, eviction.namespace, name),
            self._api.get(NODES, "", where) if where else _nothing(),
        )
        if item is None:
            return YES
        session = Session.of(item)
        verdict = judge(
            PodSeen.of(found, session.uid),
            session,
            None if lease is None else LeaseSeen.of(lease, session.uid),
            None if node is None else NodeSeen.of(node),
        )
        if verdict.mark is not None and not eviction.dry_run:
            await self._mark(session, verdict.mark)
        return verdict

    async def _mark(self, session: Session, epoch: int) -> None:
        """A mark that could not be made changes no answer: who wants the pod gone asks again."""
        if session.evicted == epoch:
            return
        if not self._marks.take(session.uid):
            log.warning("evicted too often to be marked", session=session.name)
            return
        body = {"metadata": {"uid": session.uid, "annotations": {names.EVICTED: str(epoch)}}}
        where = {"session": session.name, "namespace": session.key.namespace}
        try:
            await self._api.patch(SESSIONS, session.key.namespace, session.name, body)
        except HoldfastError as error:
            self._marks.give_back(session.uid)
            log.warning("an eviction was not marked", **where, error=error.message)
        else:
            log.info("an eviction is marked", **where, epoch=epoch)


def _names(request: web.Request) -> list[str]:
    """Of the client's certificate."""
    shown = None if request.transport is None else request.transport.get_extra_info("peercert")
    subject = [pair for part in (shown or {}).get("subject", ()) for pair in part]
    others = (shown or {}).get("subjectAltName", ())
    return [value for kind, value in (*subject, *others) if kind in ("commonName", "DNS")]


async def _nothing() -> None:
    return None


def _review(eviction: Eviction, verdict: Verdict) -> dict[str, Any]:
    """429 is what kubectl drain tries again after. Without a Retry-After, as a budget's own: client
    libraries would wait and ask again by themselves, and nobody would read the message."""
    response: dict[str, Any] = {"uid": eviction.uid, "allowed": verdict.allowed}
    if not verdict.allowed:
        response["status"] = {
            "code": 429,
            "reason": "TooManyRequests",
            "message": verdict.why,
        }
    return {"apiVersion": VERSION, "kind": "AdmissionReview", "response": response}
