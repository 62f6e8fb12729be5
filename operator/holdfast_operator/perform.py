"""Acts on one step. The only place that writes, but for the status and events.

Each step is one transition: a compare-and-swap, a create or a delete that can be done again. When
the process dies in the middle or an answer is lost, the next look shows what came of it.

While a session begins, the API server's answers show all that a step changed: the picture with that
in it is returned, and the next step is decided on it without another look.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Final

from holdfast_kube.client import (
    ACCOUNTS,
    BINDINGS,
    BUDGETS,
    CHECKPOINTS,
    LEASES,
    PODS,
    ROLES,
    SESSIONS,
    Api,
    Conflict,
    Object,
    Resource,
)
from holdfast_operator import log, names, objects, pods, restores
from holdfast_operator.keeps import CreateKeep, DeleteCheckpoints
from holdfast_operator.memory import Memory
from holdfast_operator.model import (
    Cause,
    LeaseSeen,
    Observed,
    Recovery,
    Session,
    owned_by,
)
from holdfast_operator.moves import AbandonMove, CancelMove, CreateCheckpoint, CreateTarget
from holdfast_operator.names import access_name
from holdfast_operator.notes import Fresh, Restore
from holdfast_operator.order_making import OrderMaking
from holdfast_operator.restores import CreateBring
from holdfast_operator.settings import Settings
from holdfast_operator.steps import (
    AddFinalizer,
    Bar,
    CreatePod,
    DeleteBudget,
    DeleteLease,
    DeletePods,
    DeleteSession,
    EnsureAccess,
    Fence,
    Grant,
    RemoveFinalizer,
    SetBudget,
    SetEnded,
    Step,
    TakeOver,
)
from holdfast_operator.times import at_minute
from holdfast_wire.errors import AlreadyExists, Internal, NotFound
from holdfast_wire.lease import NOBODY

_BINDING_TRIES: Final = 20
_BINDING_SECONDS: Final = 0.02


class Perform:
    def __init__(
        self, api: Api, settings: Settings, clock: Callable[[], float], orders: OrderMaking
    ) -> None:
        self._api, self._settings, self._clock = api, settings, clock
        self._orders = orders

    async def __call__(self, seen: Observed, step: Step, memory: Memory) -> Observed | None:
        """What is known now; None: look again."""
        session = seen.session
        match step:
            case AddFinalizer():
                wanted = (*session.finalizers, names.FINALIZER)
                item = await self._finalizers(session, wanted)
                # A session that has begun is looked at anew: its picture is of other objects too.
                return None if seen.begun else replace(seen, session=Session.of(item))
            case RemoveFinalizer():
                rest = tuple(one for one in session.finalizers if one != names.FINALIZER)
                await self._finalizers(session, rest)
            case EnsureAccess():
                await self._access(session)
                memory.access_seen_at = None
            case Grant(epoch, restore):
                made = objects.lease(session, epoch, told=restore)
                return await self._grant(seen, epoch, made, memory)
            case Bar(epoch):
                made = objects.lease(session, epoch, NOBODY)
                await self._lease(session, epoch, made, memory)
            case _:
                await self._later(seen, step, memory)
        return None

    async def _later(self, seen: Observed, step: Step, memory: Memory) -> None:
        """The steps of a session that has its Lease."""
        session = seen.session
        match step:
            case TakeOver(epoch, cause, restore):
                await self._swap(seen, epoch, restore or freshness(seen, epoch, cause), memory)
            case Fence(epoch):
                await self._swap(seen, epoch, None, memory)
            case CreatePod():
                memory.began(self._clock())
                # The binding is for the sidecar, which starts in a moment. Killed before it is
                # made, the next look finds it missing.
                made = self._pod(seen, step)
                await _all(self._own(PODS, session, made, strict=True), self._binding(session))
            case SetBudget(epoch):
                await self._budget(session, epoch)
                memory.budget = epoch
            case DeletePods(found):
                for name, uid in found:
                    await self._api.delete(PODS, session.key.namespace, name, uid)
            case DeleteBudget():
                await self._remove(BUDGETS, session, access_name(session.name))
                memory.budget = None
            case DeleteLease():
                await self._remove(LEASES, session, session.name)
            case SetEnded():
                body = {"metadata": {"resourceVersion": session.version}, "spec": {"ended": True}}
                await self._api.patch(SESSIONS, session.key.namespace, session.name, body)
            case DeleteSession():
                key = session.key
                await self._api.delete(
                    SESSIONS, key.namespace, key.name, session.uid, session.version
                )
            case CreateKeep() | CreateBring() | DeleteCheckpoints():
                memory.orders_stale = True
                await self._order(seen, step)
            case _:
                memory.orders_stale = True
                await self._move(seen, step)

    def _pod(self, seen: Observed, step: CreatePod) -> Object:
        session, lease = seen.session, seen.lease
        if step.restore is not None:
            told = lease.restore if lease else None
            return pods.restoring(
                session, step.epoch, step.restore, told, self._settings, seen.unfit
            )
        fresh = lease.fresh if lease else None
        return pods.build(session, step.epoch, fresh, self._settings, agents=seen.agents)

    async def _order(
        self, seen: Observed, step: CreateKeep | CreateBring | DeleteCheckpoints
    ) -> None:
        session = seen.session
        match step:
            case CreateKeep():
                stored = step.origin or seen
                if stored.pod is None:
                    raise Internal("a session without a pod was about to be stored")
                order = objects.keep(stored.session, step, stored.pod, stored.keepers, session)
                order = self._orders.keep(order, stored.pod.node)
                await self._own(CHECKPOINTS, stored.session, order, strict=True)
            case CreateBring():
                order = objects.bring(session, step)
                order = self._orders.bring(order, step.checkpoint, step.pod.node)
                await self._own(CHECKPOINTS, session, order, strict=True)
            case DeleteCheckpoints(found):
                for name, uid in found:
                    await self._api.delete(CHECKPOINTS, session.key.namespace, name, uid)

    async def _move(self, seen: Observed, step: Step) -> None:
        session, source = seen.session, seen.pod
        namespace = session.key.namespace
        match step:
            case CreateTarget(epoch, reason) if source is not None:
                made = pods.target(session, epoch, source, reason.node, self._settings, seen.unfit)
                await self._own(PODS, session, made, strict=True)
            case CreateCheckpoint() if source is not None:
                if session.post_copy and not step.post_copy:
                    log.info(
                        "moved with all of its memory: it cannot follow between these nodes",
                        session=session.name,
                        namespace=namespace,
                        source=source.node,
                        target=step.target.node,
                    )
                order = objects.checkpoint(session, step, source)
                order = self._orders.move(order, source.node, step.target.node)
                await self._own(CHECKPOINTS, session, order, strict=True)
            case AbandonMove(target) | CancelMove(target):
                await self._api.delete(PODS, namespace, target.name, target.uid)
            case _:
                raise Internal(f"{type(step).__name__} is not performed here")

    async def _finalizers(self, session: Session, wanted: tuple[str, ...]) -> Object:
        body = {"metadata": {"resourceVersion": session.version, "finalizers": list(wanted)}}
        return await self._api.patch(SESSIONS, session.key.namespace, session.name, body)

    async def _grant(
        self, seen: Observed, epoch: int, lease: Object, memory: Memory
    ) -> Observed | None:
        """The Lease and the access to it at once: neither is of use before its pod, which waits
        for both."""
        session = seen.session
        made, _ = await _all(
            self._lease(session, epoch, lease, memory),
            _nothing() if seen.access else self._account_and_role(session),
        )
        if not isinstance(made, LeaseSeen):
            return None
        # It was made a moment ago, so nobody may take it.
        return replace(
            seen, lease=made, access=True, high_water=epoch, may_take=False, take_at=None
        )

    async def _lease(
        self, session: Session, epoch: int, wanted: Object, memory: Memory
    ) -> LeaseSeen | None:
        """None if there was one already: what its epoch is, the next look shows."""
        item = await self._own(LEASES, session, wanted)
        if item is None:
            return None
        memory.high_water = max(memory.high_water, epoch)
        return LeaseSeen.of(item, session.uid)

    async def _access(self, session: Session) -> None:
        await self._account_and_role(session)
        await self._binding(session)

    async def _account_and_role(self, session: Session) -> None:
        works: list[Awaitable[object]] = [self._role(session)]
        if session.service_account is None:
            works.append(self._own(ACCOUNTS, session, objects.account(session)))
        await _all(*works)

    async def _role(self, session: Session) -> None:
        wanted = objects.role(session)
        if await self._own(ROLES, session, wanted) is not None:
            return
        namespace, name = session.key.namespace, wanted["metadata"]["name"]
        found = await self._api.get(ROLES, namespace, name)
        if found is not None and found.get("rules") != wanted["rules"]:
            wanted["metadata"]["resourceVersion"] = found["metadata"]["resourceVersion"]
            await self._api.replace(ROLES, namespace, name, wanted)

    async def _binding(self, session: Session) -> None:
        for _ in range(_BINDING_TRIES):
            try:
                await self._own(BINDINGS, session, objects.binding(session))
            except NotFound:
                # The API server checks a binding against the Roles it has seen, and sees a new
                # one some milliseconds after it was made.
                await asyncio.sleep(_BINDING_SECONDS)
            else:
                return
        raise Conflict("the API server has not yet seen the session's Role")

    async def _own(
        self, kind: Resource, session: Session, body: Object, strict: bool = False
    ) -> Object | None:
        """Create it; one of this Session's that is there already will do, and None is returned."""
        name, namespace = body["metadata"]["name"], session.key.namespace
        try:
            return await self._api.create(kind, namespace, body, strict)
        except AlreadyExists:
            found = await self._api.get(kind, namespace, name)
            if found is None or not owned_by(found, session.uid):
                await self._in_the_way(kind, session, found)
        return None

    async def _in_the_way(self, kind: Resource, session: Session, found: Object | None) -> None:
        """What a deleted Session of this name left, and the garbage collector has not yet taken, is
        removed. A Lease or a pod is not: somebody may still live by it."""
        if found is None:
            raise Conflict(f"something of {kind.plural} has just gone")
        meta = found["metadata"]
        if kind not in (LEASES, PODS) and left_by_former(found, session):
            await self._api.delete(kind, session.key.namespace, meta["name"], meta["uid"])
            raise Conflict(f'"{meta["name"]}" of {kind.plural} was left by a deleted session')
        raise AlreadyExists(
            f'"{meta["name"]}" of {kind.plural} is there and is not this session\'s',
            "delete it, or give the session another name",
        )

    async def _swap(
        self, seen: Observed, epoch: int, told: Fresh | Restore | None, memory: Memory
    ) -> None:
        lease, session = seen.lease, seen.session
        if lease is None or not seen.may_take:
            raise Internal("a Lease that may not be taken was about to be")
        body = objects.swapped(lease, session, epoch, told)
        await self._api.replace(LEASES, session.key.namespace, session.name, body)
        memory.high_water = max(memory.high_water, epoch)

    async def _budget(self, session: Session, epoch: int) -> None:
        wanted = objects.budget(session, epoch)
        namespace, name = session.key.namespace, access_name(session.name)
        found = await self._api.get(BUDGETS, namespace, name)
        if found is None:
            await self._own(BUDGETS, session, wanted)
            return
        if not owned_by(found, session.uid):
            await self._in_the_way(BUDGETS, session, found)
        version = found["metadata"]["resourceVersion"]
        wanted["metadata"]["resourceVersion"] = version
        await self._api.replace(BUDGETS, namespace, name, wanted)

    async def _remove(self, kind: Resource, session: Session, name: str) -> None:
        found = await self._api.get(kind, session.key.namespace, name)
        if found is not None and owned_by(found, session.uid):
            uid = found["metadata"]["uid"]
            await self._api.delete(kind, session.key.namespace, name, uid)


async def _all(*works: Awaitable[Any]) -> list[Any]:
    """At the same time; all are over when this is. The first error, as it was raised."""
    done = await asyncio.gather(*works, return_exceptions=True)
    for result in done:
        if isinstance(result, BaseException):
            raise result
    return done


async def _nothing() -> None:
    pass


def freshness(seen: Observed, epoch: int, cause: Cause) -> Fresh:
    loss = restores.Loss.of(seen, cause)
    return Fresh(
        loss.cause.value,
        f"Incarnation {loss.epoch} of this session was lost ({at_minute(seen.wall)}):"
        f" {loss.cause.sentence}.{_missing(seen)} Incarnation {epoch} began anew; what the former"
        " had in memory is gone.",
        loss.node,
    )


def _missing(seen: Observed) -> str:
    """Why it does not go on from a checkpoint, if it should."""
    if seen.session.recovery is not Recovery.RESTORE_LAST:
        return ""
    why = restores.problem(seen)
    if why:
        return f" None of its checkpoints could be restored, the last one because: {why}."
    return " There was no checkpoint to restore."


def left_by_former(item: Object, session: Session) -> bool:
    """Whether it belonged to another Session of the same name, which must be gone by now."""
    owners = item["metadata"].get("ownerReferences") or ()
    return any(
        owner.get("kind") == "Session"
        and str(owner.get("apiVersion", "")).startswith(names.PREFIX)
        and owner.get("name") == session.name
        and owner.get("uid") != session.uid
        for owner in owners
    )
