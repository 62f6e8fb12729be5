"""Fresh reads of everything about one Session. Never from a cache: a decision on an old picture is
how two of something come to be.

But for the orders of a session that is in order: they are listed when the watch has shown one of
them since, and else believed to be as they were. What is ordered has a name that only one can have,
and what a lost or woken session goes on from is always read anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from enum import Enum

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
    Object,
)
from holdfast_operator import forks, keeps, moves, objects, quota, suspension, template
from holdfast_operator.memory import Memory
from holdfast_operator.model import (
    TERMINAL,
    LeaseSeen,
    Observed,
    PodSeen,
    Session,
    number,
    owned_by,
)
from holdfast_operator.names import EPOCH, SESSION_LABEL, Key, access_name, checkpoint_name
from holdfast_operator.nodes import Nodes
from holdfast_operator.orders import CheckpointSeen, named
from holdfast_operator.sightings import Sightings
from holdfast_operator.usage import NO_LIMITS, Limits
from holdfast_wire.lease import SHORTEST


class Look:
    """Takes a look at a Session; remembers what only time can show."""

    def __init__(
        self,
        api: Api,
        sightings: Sightings,
        clock: Callable[[], float],
        wall: Callable[[], datetime],
        nodes: Nodes,
        limits: Limits = NO_LIMITS,
    ) -> None:
        self._api, self._sightings, self._nodes = api, sightings, nodes
        self._clock, self._wall, self._limits = clock, wall, limits
        self._memories: dict[Key, Memory] = {}

    def memory(self, session: Session) -> Memory:
        found = self._memories.get(session.key)
        if found is None or found.uid != session.uid:
            if found is not None:
                # Another Session by the same name: nothing that was known holds for it.
                self._sightings.forget(session.key)
            found = self._memories[session.key] = Memory(session.uid)
        return found

    def forget(self, key: Key) -> None:
        self._memories.pop(key, None)
        self._sightings.forget(key)

    def stirred(self, key: Key) -> None:
        """The watch showed one of its orders."""
        found = self._memories.get(key)
        if found is not None:
            found.orders_stale = True

    async def __call__(self, key: Key) -> Observed | None:
        """None if the Session is gone."""
        seen = await self._look(key)
        if seen is None:
            return None
        return await self._with_usage(self._with_unfit(await self._with_origin(seen)))

    async def _look(self, key: Key) -> Observed | None:
        item = await self._api.get(SESSIONS, key.namespace, key.name)
        if item is None:
            self.forget(key)
            return None
        session = Session.of(item)
        memory = self.memory(session)
        new = memory.high_water == 0 and not session.status.get("epoch")
        labels = f"{SESSION_LABEL}={key.name}"
        (pods, _), access, budget, found = await asyncio.gather(
            self._api.list_all(PODS, key.namespace, labels=labels),
            self._access(session, memory),
            self._budget(session, memory),
            self._api.get(LEASES, key.namespace, key.name) if new else _unread(),
        )
        seen_pods = tuple(PodSeen.of(pod, session.uid) for pod in pods)
        # The Lease after the pods: it is what is decided on, and a pod that is there had one. Where
        # nothing has begun there is no pod, and no need to wait.
        if seen_pods or not new:
            found = await self._api.get(LEASES, key.namespace, key.name)
        lease = None if found is None else LeaseSeen.of(found, session.uid)
        now = self._clock()
        # A refused duration has no Lease to wait for; the shortest safe one stands in.
        observer = self._sightings.observer(key, max(session.lease_seconds, SHORTEST))
        may_take = observer.may_take(None if lease is None else lease.record, now)
        memory.high_water = max(
            memory.high_water,
            lease.epoch if lease and lease.owned else 0,
            int(session.status.get("epoch") or 0),
            *(pod.epoch for pod in seen_pods if pod.owned and not _waits(pod, lease)),
        )
        if lease is not None:
            memory.at_epoch(lease.epoch)
        if session.deleting and memory.deleting_since is None:
            memory.deleting_since = now
        seen = Observed(
            session=session,
            refusal=template.refusal(session.spec),
            lease=lease,
            pods=seen_pods,
            access=access,
            budget=budget,
            may_take=may_take,
            take_at=observer.expires_at(),
            high_water=memory.high_water,
            now=now,
            wall=self._wall(),
            deleting_since=memory.deleting_since,
            retry_at=memory.retry_at,
            problem=memory.problem,
            move_retry_at=memory.move_retry_at,
            move_problem=memory.move_problem,
            agents=self._nodes.agents,
        )
        seen = await self._with_orders(seen, memory)
        if seen.move_problem and seen.node is not None and moves.reason(seen) is None:
            memory.stays()
            seen = replace(seen, move_problem="", move_retry_at=0.0)
        return seen

    async def _with_orders(self, seen: Observed, memory: Memory) -> Observed:
        """And what a move or a checkpoint hangs on: the node, by what the watch showed last, for a
        move begun or left for that is only late; and the orders to the agents."""
        pod, session = seen.pod, seen.session
        if pod is not None:
            unfit = self._nodes.unfit(pod.node)
            seen = replace(seen, node=self._nodes.get(pod.node), unfit=unfit)
        elif session.on_drain == "End":  # whether it was drained still matters
            seen = replace(seen, node=self._nodes.get(str(session.status.get("nodeName"))))
        need = _need(seen)
        if need is Need.NOTHING:
            return seen
        if need is Need.FRESH or memory.orders_stale or any(not o.over for o in memory.orders):
            memory.orders = await self._listed(session, memory)
        if seen.lease is not None and seen.lease.suspended:
            memory.slept()
            seen = replace(seen, retry_at=memory.retry_at)
        target = seen.target
        name = checkpoint_name(session.name, seen.epoch, target.uid) if target is not None else ""
        return replace(
            seen,
            orders=memory.orders,
            checkpoint=named(memory.orders, name),
            target_node=None if target is None else self._nodes.get(target.node),
            keepers=self._nodes.keepers(session.uid, pod.node) if pod is not None else (),
        )

    async def _listed(self, session: Session, memory: Memory) -> tuple[CheckpointSeen, ...]:
        memory.orders_stale = False  # before it is asked for: what is shown meanwhile counts
        try:
            labels = f"{SESSION_LABEL}={session.name}"
            items, _ = await self._api.list_all(CHECKPOINTS, session.key.namespace, labels=labels)
        except BaseException:
            memory.orders_stale = True
            raise
        return tuple(CheckpointSeen.of(item) for item in items if owned_by(item, session.uid))

    async def _with_usage(self, seen: Observed) -> Observed:
        """And what the namespace has stored, if something is to be stored now."""
        if not self._limits.any:
            return seen
        fork = seen.session.fork_from is not None and seen.origin is not None
        step = forks.decide(seen) if fork else keeps.wanted(seen)
        if not isinstance(step, keeps.CreateKeep):
            return replace(seen, usage=None)
        items, _ = await self._api.list_all(CHECKPOINTS, seen.session.key.namespace)
        return replace(seen, usage=quota.usage(items, self._limits, seen.wall))

    def _with_unfit(self, seen: Observed) -> Observed:
        """And where what was stored cannot go on."""
        placed = seen.pod is not None and seen.pod.node
        told = seen.lease.restore if seen.lease is not None and not placed else None
        if told is None:
            return seen
        stored = named((*seen.origins, *(seen.orders or ())), told.checkpoint)
        return seen if stored is None else replace(seen, unfit=self._nodes.unfit(stored.node))

    async def _with_origin(self, seen: Observed) -> Observed:
        """And what a fork is to begin from, until it has."""
        session, asked = seen.session, seen.session.fork_from
        begun = seen.lease is not None and seen.lease.started
        if asked is None or begun or session.deleting or session.phase in TERMINAL:
            return seen
        namespace = session.key.namespace
        if asked.get("checkpoint"):
            item = await self._api.get(CHECKPOINTS, namespace, str(asked["checkpoint"]))
            return replace(seen, origins=() if item is None else (CheckpointSeen.of(item),))
        name = str(asked.get("session") or "")
        labels = f"{SESSION_LABEL}={name}"
        origin = await self._look(Key(namespace, name)) if name != session.name else None
        items, _ = await self._api.list_all(CHECKPOINTS, namespace, labels=labels)
        orders = tuple(CheckpointSeen.of(item) for item in items)
        if origin is not None:
            origin = replace(origin, orders=orders)
        return replace(seen, origin=origin, origins=orders)

    def conflicted(self, key: Key, session: Session) -> None:
        """A compare-and-swap lost: somebody wrote, and the wait begins anew."""
        seconds = max(session.lease_seconds, SHORTEST)
        self._sightings.observer(key, seconds).restart(self._clock())

    async def _access(self, session: Session, memory: Memory) -> bool:
        if memory.access_known(self._clock()):
            return True
        kinds = [ROLES, BINDINGS] if session.service_account else [ROLES, BINDINGS, ACCOUNTS]
        namespace, name = session.key.namespace, access_name(session.name)
        found = await asyncio.gather(*(self._api.get(kind, namespace, name) for kind in kinds))
        if not all(item is not None and owned_by(item, session.uid) for item in found):
            return False
        if found[0] is None or found[0].get("rules") != objects.role(session)["rules"]:
            return False  # an older operator's
        memory.access_seen_at = self._clock()
        return True

    async def _budget(self, session: Session, memory: Memory) -> int | None:
        if memory.budget is not None and memory.access_known(self._clock()):
            return memory.budget
        found = await self._api.get(BUDGETS, session.key.namespace, access_name(session.name))
        # One that a deleted Session of this name left goes soon, and protects nothing of ours.
        ours = found if found is not None and owned_by(found, session.uid) else None
        memory.budget = None if ours is None else budget_epoch(ours)
        return memory.budget


def _waits(pod: PodSeen, lease: LeaseSeen | None) -> bool:
    """It was made for a move and has not been granted its epoch."""
    return pod.restores and lease is not None and lease.owned and lease.epoch == pod.epoch - 1


class Need(Enum):
    NOTHING = "nothing"
    KNOWN = "known"  # as they were, unless the watch has shown one since
    FRESH = "fresh"


def _need(seen: Observed) -> Need:
    """Whether the orders of this session matter now."""
    lease, pod = seen.lease, seen.pod
    if seen.session.deleting or seen.session.phase in TERMINAL or lease is None:
        return Need.NOTHING
    sleep = suspension.asleep(seen)
    if seen.rolled_back or (sleep is not None and lease.vacant):
        return Need.FRESH if sleep is not None else Need.NOTHING
    if lease.record.released:
        return Need.FRESH if sleep is None or suspension.wakes(seen, sleep) else Need.KNOWN
    if lease.record.holder == "":
        gone = pod is not None and (pod.finished or pod.deleting)
        return Need.FRESH if gone or lease.restore is not None else Need.NOTHING
    if seen.may_take or seen.barred or seen.target is not None or pod is None or pod.finished:
        return Need.FRESH
    return Need.KNOWN if lease.started else Need.NOTHING


async def _unread() -> None:
    return None


def budget_epoch(item: Object) -> int:
    """The epoch whose pod the budget covers; 0 if it is not as we make it."""
    spec = item.get("spec") or {}
    labels = (spec.get("selector") or {}).get("matchLabels") or {}
    return (number(labels.get(EPOCH)) or 0) if spec.get("minAvailable") == 1 else 0
