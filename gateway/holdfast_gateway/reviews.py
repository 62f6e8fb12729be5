"""What the API server says of a token, and of what somebody may do. It decides both; nothing here
does.

Answers are kept for a moment, so that many clients of one person cost one question. A token that
was refused is remembered for longer, and each address may try so many of them (`REFUSALS`). Nobody
makes the API server look at a wrong token at every request. Invariant: an
answer that let somebody do something is never older than `FRESH_SECONDS`; with no answer from the
API server nobody is let in anew, and what runs is let go on for `GRACE_SECONDS`.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, Final, TypeVar

from holdfast_gateway.auth import Caller, Modality
from holdfast_gateway.login import AUDIENCE, Oidc
from holdfast_kube.client import Api, Object, Resource
from holdfast_wire.doors import Refusals
from holdfast_wire.errors import Forbidden, Unauthenticated, Unavailable
from holdfast_wire.ids import actor_of
from holdfast_wire.rights import GROUP, RESOURCE, Right, missing

TOKENS: Final = Resource("/apis/authentication.k8s.io/v1", "tokenreviews")
ACCESS: Final = Resource("/apis/authorization.k8s.io/v1", "subjectaccessreviews")
FRESH_SECONDS: Final = 2.0
GRACE_SECONDS: Final = 60.0
# A token that was refused is not asked about again for so long. One that becomes valid meanwhile,
# which only one of an issuer's that was not reached can, has to wait.
REFUSED_SECONDS: Final = 10.0
# Tokens of one address that turn out not to be valid: at once, and then a second. Behind a balancer
# many people are one address, and what is valid is not counted.
REFUSALS: Final = (100, 2.0)
# A token that was valid so lately is asked about whatever else comes from its address.
_KNOWN_SECONDS: Final = 600.0
_MOST: Final = 10_000
_MAX_TOKEN: Final = 16 << 10

T = TypeVar("T")


class Recent:
    """Answers by question. Who asks what is being asked already waits for that answer."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._known: dict[Hashable, tuple[float, asyncio.Future[Any]]] = {}

    async def get(self, question: Hashable, ask: Callable[[], Awaitable[T]]) -> T:
        at, found = self._known.get(question, (0.0, None))
        if found is None or (found.done() and self._now() - at > FRESH_SECONDS) or _failed(found):
            self._known.pop(question, None)
            while len(self._known) >= _MOST:  # the oldest goes: at worst it is asked again
                del self._known[next(iter(self._known))]
            found = asyncio.ensure_future(ask())
            self._known[question] = self._now(), found
        answer: T = await asyncio.shield(found)
        return answer


class Lately:
    """What was so a while ago: the oldest goes where there are too many."""

    def __init__(self, seconds: float, now: Callable[[], float] = time.monotonic) -> None:
        self._seconds, self._now = seconds, now
        self._until: dict[Hashable, float] = {}

    def add(self, question: Hashable) -> None:
        self._until.pop(question, None)
        while len(self._until) >= _MOST:
            del self._until[next(iter(self._until))]
        self._until[question] = self._now() + self._seconds

    def __contains__(self, question: Hashable) -> bool:
        return self._until.get(question, 0.0) > self._now()


def _failed(found: asyncio.Future[Any]) -> bool:
    return found.done() and (found.cancelled() or found.exception() is not None)


class Reviews:
    def __init__(self, api: Api, oidc: Oidc | None = None) -> None:
        """`oidc`: whose ID tokens people may come with."""
        self._api, self._oidc = api, oidc
        self._tokens, self._access = Recent(), Recent()
        self._refused, self._valid = Lately(REFUSED_SECONDS), Lately(_KNOWN_SECONDS)
        self._refusals = Refusals(*REFUSALS)

    async def user(self, token: str, audience: str = AUDIENCE, peer: str = "") -> Object:
        """The `user` of a valid token for this audience: username, uid, groups, extra. `peer`: the
        address that it comes from; "" if somebody was let in with it before."""
        if not token or len(token) > _MAX_TOKEN:
            raise _unauthenticated(audience)
        # The API server knows no audience of ours in an ID token; that it is for us was looked at.
        of_issuer = audience == AUDIENCE and self._oidc is not None and self._oidc.meant(token)
        # Not the token itself: what is kept in memory can be dumped.
        question = (hashlib.sha256(token.encode()).digest(), audience)
        if question in self._refused:
            raise _unauthenticated(audience)
        counted = peer if question not in self._valid else ""
        if counted and not self._refusals.take(counted):
            raise Unavailable("too many tokens from this address were not valid", "try again later")

        async def ask() -> Object | None:
            spec = {"token": token, **({} if of_issuer else {"audiences": [audience]})}
            status = (await self._api.create(TOKENS, "", {"spec": spec})).get("status") or {}
            meant = of_issuer or audience in (status.get("audiences") or ())
            return (status.get("user") or {}) if status.get("authenticated") and meant else None

        try:
            found = await self._tokens.get(question, ask)
        except BaseException:
            if counted:
                self._refusals.give_back(counted)
            raise
        if not found or not found.get("username"):
            self._refused.add(question)
            raise _unauthenticated(audience)
        if counted:
            self._refusals.give_back(counted)
        self._valid.add(question)
        return found

    async def caller(self, token: str, modality: Modality, peer: str = "") -> Caller:
        user = await self.user(token, peer=peer)

        async def still() -> None:
            await self.user(token)

        return caller_of(user, modality, still)

    async def allow(self, caller: Caller, right: Right, namespace: str, name: str) -> None:
        """Forbidden, in words that do not depend on whether there is such a session."""
        if not await self.allowed(caller, right, namespace, name):
            raise Forbidden(*missing(str(caller.actor), right, namespace, name))

    async def allowed(self, caller: Caller, right: Right, namespace: str, name: str) -> bool:
        async def ask() -> bool:
            body = {"spec": question(caller, right, namespace, name)}
            status = (await self._api.create(ACCESS, "", body)).get("status") or {}
            return bool(status.get("allowed")) and not status.get("denied")

        who = (caller.actor, caller.groups, caller.extra)
        return await self._access.get((who, right, namespace, name), ask)


def caller_of(
    user: Object, modality: Modality, still: Callable[[], Awaitable[None]] | None = None
) -> Caller:
    extra = user.get("extra") or {}
    return Caller(
        actor_of(str(user["username"]), str(user.get("uid") or "")),
        modality,
        groups=tuple(user.get("groups") or ()),
        extra=tuple(sorted((key, tuple(values)) for key, values in extra.items())),
        still=still,
    )


def question(caller: Caller, right: Right, namespace: str, name: str) -> dict[str, Any]:
    """As the API server itself asks of the same request through the aggregation layer."""
    asked = {
        "group": GROUP,
        "version": "v1alpha1",
        "resource": RESOURCE,
        "subresource": right.value,
        "namespace": namespace,
        "verb": right.verb,
    }
    if name:
        asked["name"] = name
    return {
        "user": caller.actor.name,
        "uid": caller.actor.uid,
        "groups": list(caller.groups),
        "extra": {key: list(values) for key, values in caller.extra},
        "resourceAttributes": asked,
    }


def _unauthenticated(audience: str) -> Unauthenticated:
    return Unauthenticated(
        "no token, or one that is not valid here",
        f"get one with 'kubectl create token ACCOUNT --audience {audience}' and send it in the"
        " header 'Authorization: Bearer TOKEN'",
    )
