"""Sessions of a cluster: a `Backend` over the sidecars that have dialled in (uplinks.py).

Every act is asked about (reviews.py), before anything is said of the session, and while a stream
goes on again and again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, Final

from holdfast_gateway import log, metrics
from holdfast_gateway.auth import Caller
from holdfast_gateway.backend import CONNECT_SECONDS, REQUEST_SECONDS, Link
from holdfast_gateway.reviews import FRESH_SECONDS, GRACE_SECONDS, Reviews
from holdfast_gateway.sessions import REQUEST_ID, asked, repeatable, silent
from holdfast_gateway.suspended import (
    PREFIX,
    Suspension,
    Wakes,
    patch,
    refusal,
    suspension,
)
from holdfast_gateway.uplinks import Incarnation, Uplink, Uplinks
from holdfast_gateway.watched import Key, Watched
from holdfast_kube.client import LEASES, SESSIONS, Api, Object
from holdfast_wire.errors import (
    BadRequest,
    Ended,
    Forbidden,
    HoldfastError,
    NotFound,
    Refused,
    Retry,
    Unavailable,
    Unsupported,
)
from holdfast_wire.frames import Control, encode
from holdfast_wire.ids import session_name
from holdfast_wire.rights import LASTING, Right, right_of_request
from holdfast_wire.uplink import AUDIENCE, VERSION

_POD_NAME: Final = "authentication.kubernetes.io/pod-name"
_POD_UID: Final = "authentication.kubernetes.io/pod-uid"
_RETRY_SECONDS: Final = 0.05
_LIST_MOST: Final = (
    100  # sessions asked about one by one, where a namespace as a whole is not allowed
)
_ENDED: Final = frozenset({"Ended", "Failed"})
# What takes its time, and for how long that is waited out.
_COMING: Final = {
    "Moving": 60.0,
    "Restoring": 60.0,
    "Suspended": 60.0,
    "Pending": 20.0,
    "Starting": 20.0,
}


class Verifier:
    """Who it is that has dialled in: a pod, by its token, which holds the session's Lease."""

    def __init__(self, api: Api, reviews: Reviews) -> None:
        self._api, self._reviews = api, reviews

    async def __call__(self, said: dict[str, Any]) -> Incarnation:
        if said.get("version") != VERSION:
            raise Unsupported(f"this gateway speaks version {VERSION} of the uplink")
        try:
            namespace, name = session_name(said["namespace"]), session_name(said["session"])
            token, epoch = str(said["token"]), int(said["epoch"])
        except (KeyError, TypeError, ValueError):
            raise BadRequest("the hello does not say which session it is of") from None
        user = await self._reviews.user(token, AUDIENCE)
        extra = user.get("extra") or {}
        pod, pod_uid = (next(iter(extra.get(key) or ()), "") for key in (_POD_NAME, _POD_UID))
        account = str(user["username"]).split(":")
        if account[:3] != ["system", "serviceaccount", namespace] or not pod_uid:
            raise Forbidden("the token is not one of a pod in the session's namespace")
        lease = await self._api.get(LEASES, namespace, name)
        return _held(lease, namespace, name, epoch, pod, pod_uid)


def _held(
    lease: Object | None, namespace: str, name: str, epoch: int, pod: str, pod_uid: str
) -> Incarnation:
    """The incarnation, if the Lease says that it is that pod's."""
    if lease is None:
        raise Forbidden(f"there is no Lease of {namespace}/{name}")
    holder = str((lease.get("spec") or {}).get("holderIdentity") or "")
    notes = lease["metadata"].get("annotations") or {}
    owner = next((one["uid"] for one in lease["metadata"].get("ownerReferences") or ()), "")
    if holder.partition("/")[0] != pod_uid:
        raise Forbidden(f"the Lease of {namespace}/{name} is not held by pod {pod}")
    if str(notes.get(f"{PREFIX}epoch")) != str(epoch):
        raise Forbidden(f"the Lease of {namespace}/{name} is not of epoch {epoch}")
    return Incarnation(namespace, name, str(owner), epoch, pod, holder)


class ClusterSessions:
    def __init__(
        self, api: Api, reviews: Reviews, uplinks: Uplinks, watched: Watched, namespace: str
    ) -> None:
        """`namespace`: of a name without one."""
        self._api, self._reviews = api, reviews
        self._uplinks, self._watched = uplinks, watched
        self._namespace = namespace

    def key(self, name: str) -> Key:
        namespace, slash, own = name.partition("/")
        if not slash:
            namespace, own = self._namespace, name
        return session_name(namespace), session_name(own)

    # -- asking

    async def list(self, caller: Caller) -> list[dict[str, Any]]:
        await self._listed()
        seen = list(self._watched.every())
        whole = {
            namespace: await self._reviews.allowed(caller, Right.OBSERVE, namespace, "")
            for namespace in sorted({key[0] for key, _ in seen})
        }
        single = [key for key, _ in seen if not whole[key[0]]][:_LIST_MOST]
        mine = {
            key for key in single if await self._reviews.allowed(caller, Right.OBSERVE, *key)
        }  # fmt: skip
        shown = [key for key, _ in seen if whole[key[0]] or key in mine]
        return await asyncio.gather(*(self._told(key, caller) for key in shown))

    async def describe(self, name: str, caller: Caller) -> dict[str, Any]:
        key = self.key(name)
        await self._reviews.allow(caller, Right.OBSERVE, *key)
        await self._existing(key)
        return await self._told(key, caller)

    async def _told(self, key: Key, caller: Caller) -> dict[str, Any]:
        item = self._watched.get(key)
        known = _from_object(key, item) if item is not None else {}
        link = self._uplinks.get(key)
        if link is not None:
            with contextlib.suppress(HoldfastError, OSError, EOFError, TimeoutError):
                async with asyncio.timeout(2.0):
                    return {**known, **await self._once(link, {"kind": "info"}, caller)}
        if item is not None and (asleep := suspension(item)) is not None:
            may = await self._reviews.allowed(caller, Right.WAKE, *key)
            return {**known, "suspended": asleep.to_json(may)}
        return known

    async def request(
        self,
        name: str,
        body: dict[str, Any],
        caller: Caller,
        *,
        seconds: float = REQUEST_SECONDS,
        patience: float = CONNECT_SECONDS,
    ) -> dict[str, Any]:
        key = self.key(name)
        await self._reviews.allow(caller, right_of_request(body["kind"]), *key)
        loop = asyncio.get_running_loop()
        retry_until = loop.time() + patience
        try:
            async with asyncio.timeout(None) as limit:
                while True:
                    link = await self._reached(key, patience, caller)
                    limit.reschedule(loop.time() + patience + seconds)
                    try:
                        return await self._once(link, body, caller)
                    except (OSError, EOFError):
                        if loop.time() >= retry_until or not repeatable(body):
                            raise TimeoutError from None
                    await asyncio.sleep(_RETRY_SECONDS)
        except TimeoutError:
            raise silent(name) from None

    async def _once(self, uplink: Uplink, body: dict[str, Any], caller: Caller) -> dict[str, Any]:
        number, stream = uplink.open()
        try:
            request = encode(Control({**body, "id": REQUEST_ID, "as": caller.to_json()}))
            return await asked(Link(stream, stream, _asked_before, _never()), request)
        finally:
            uplink.shut(number)

    # -- attaching

    @contextlib.asynccontextmanager
    async def connect(
        self,
        name: str,
        caller: Caller,
        patience: float = CONNECT_SECONDS,
        right: Right = Right.OBSERVE,
    ) -> AsyncIterator[Link]:
        key = self.key(name)
        await self._reviews.allow(caller, right, *key)
        uplink = await self._reached(key, patience, caller)
        number, stream = uplink.open()
        allowed = {right}

        async def allow(right: Right) -> None:
            await self._reviews.allow(caller, right, *key)
            if right in LASTING:
                allowed.add(right)

        cut = _never()
        watch = asyncio.create_task(self._watch(caller, key, allowed, cut))
        try:
            yield Link(stream, stream, allow, cut)
        finally:
            watch.cancel()
            uplink.shut(number)
            await asyncio.wait([watch])
            cut.cancel()

    async def _watch(
        self, caller: Caller, key: Key, allowed: set[Right], cut: asyncio.Future[None]
    ) -> None:
        """Asks again and again; the API server's silence is waited out for a while."""
        loop = asyncio.get_running_loop()
        known = loop.time()
        while not cut.done():
            await asyncio.sleep(FRESH_SECONDS)
            try:
                if caller.still is not None:
                    await caller.still()
                for right in tuple(allowed):
                    await self._reviews.allow(caller, right, *key)
                known = loop.time()
            except Refused as error:
                metrics.CUT.inc()
                log.info("cut", session="/".join(key), **caller.actor.to_json(), why=error.message)
                cut.set_exception(error)
                cut.exception()  # heard, also if nobody waits
            except HoldfastError as error:
                if loop.time() - known > GRACE_SECONDS:
                    cut.set_exception(error)
                    cut.exception()

    async def _reached(self, key: Key, patience: float, caller: Caller) -> Uplink:
        """The session's sidecar. One that moves or starts is waited for."""
        found = self._uplinks.get(key)
        if found is not None:
            return found
        item = await self._existing(key)
        phase = str((item.get("status") or {}).get("phase") or "Pending")
        if phase in _ENDED:
            raise Ended(f"session {'/'.join(key)} has ended", "'kubectl holdfast logs' has its end")
        if (asleep := suspension(item)) is not None:
            await self._needed(key, item, asleep, caller)
        wait = max(patience, _COMING.get(phase, 0.0)) if patience else 0.0
        found = await self._uplinks.wait(key, wait)
        if found is None:
            raise Unavailable(
                f"session {'/'.join(key)} is {phase} and not reached at the moment",
                f"try again; 'kubectl describe session {key[1]} -n {key[0]}' says why if it stays"
                " so",
            )
        return found

    async def _listed(self) -> None:
        """A gateway that has just begun does not know yet what there is not."""
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await self._watched.ready.wait()
        except TimeoutError:
            raise Unavailable("this gateway has not seen the sessions yet", "try again") from None

    async def _existing(self, key: Key) -> Object:
        await self._listed()
        item = self._watched.get(key)
        if item is None:
            raise NotFound(f"there is no session {'/'.join(key)}", "'kubectl get sessions' has all")
        return item

    async def wake(self, name: str, caller: Caller) -> dict[str, Any]:
        key = self.key(name)
        await self._reviews.allow(caller, Right.WAKE, *key)
        item = await self._existing(key)
        if (item.get("status") or {}).get("phase") in _ENDED:
            raise Ended(f"session {'/'.join(key)} has ended", "'kubectl holdfast logs' has its end")
        wanted = bool((item.get("spec") or {}).get("suspended"))  # perhaps not done yet
        if wanted or suspension(item) is not None:
            await self._api.patch(SESSIONS, *key, patch(item))
            log.info("woken", session="/".join(key), **caller.to_json())
        return await self._told(key, caller)

    async def _needed(self, key: Key, item: Object, asleep: Suspension, caller: Caller) -> None:
        """Lets it go on if that needs nobody's word but the caller's right; else raises."""
        if asleep.wakes is Wakes.COMING:
            return
        may = await self._reviews.allowed(caller, Right.WAKE, *key)
        if asleep.wakes is Wakes.ASKED or not may:
            raise refusal(asleep, *key, str(caller.actor), may=may)
        with contextlib.suppress(Retry):  # the wait says how it went
            await self._api.patch(SESSIONS, *key, patch(item))


async def _asked_before(_: Right) -> None:
    """Whoever asks has asked."""


def _never() -> asyncio.Future[None]:
    return asyncio.get_running_loop().create_future()


def _from_object(key: Key, item: Object) -> dict[str, Any]:
    """What is known of a session without its sidecar."""
    status, spec = item.get("status") or {}, item.get("spec") or {}
    phase = str(status.get("phase") or "Pending")
    terminal = spec.get("terminal") or {}
    ended = status.get("exit")
    return {
        "session": key[1],
        "namespace": key[0],
        "session_id": item["metadata"].get("uid"),
        "phase": phase,
        "epoch": status.get("epoch"),
        "node": status.get("nodeName"),
        "command": spec.get("command"),
        "columns": terminal.get("columns"),
        "rows": terminal.get("rows"),
        "clients": [],
        "state": {
            "activity": "ended" if phase in _ENDED else phase.lower(),
            "process": None,
            "exit": ended,
            "sentence": f"is {phase}",
        },
        "exit": ended,
    }
