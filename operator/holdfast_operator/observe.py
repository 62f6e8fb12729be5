"""Fresh reads of everything about one Session. Never from a cache: a decision on an old picture is
how two of something come to be."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime

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
from holdfast_operator import moves, template
from holdfast_operator.memory import Memory
from holdfast_operator.model import (
    CheckpointSeen,
    LeaseSeen,
    Observed,
    PodSeen,
    Session,
    number,
    owned_by,
)
from holdfast_operator.names import EPOCH, SESSION_LABEL, Key, access_name, checkpoint_name
from holdfast_operator.nodes import Nodes
from holdfast_operator.sightings import Sightings
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
    ) -> None:
        self._api, self._sightings, self._nodes = api, sightings, nodes
        self._clock, self._wall = clock, wall
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

    async def __call__(self, key: Key) -> Observed | None:
        """None if the Session is gone."""
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
        )
        seen = await self._with_move(seen)
        if seen.move_problem and seen.node is not None and moves.reason(seen) is None:
            memory.stays()
            seen = replace(seen, move_problem="", move_retry_at=0.0)
        return seen

    async def _with_move(self, seen: Observed) -> Observed:
        """And what a move hangs on: the node, by what the watch showed last, for a move begun or
        left for that is only late; and the order to the agent."""
        pod, target = seen.pod, seen.target
        if pod is not None:
            unfit = self._nodes.unfit(pod.node)
            seen = replace(seen, node=self._nodes.get(pod.node), unfit=unfit)
        if target is None or seen.lease is None:
            return seen
        session = seen.session
        name = checkpoint_name(session.name, seen.epoch, target.uid)
        found = await self._api.get(CHECKPOINTS, session.key.namespace, name)
        if found is None or not owned_by(found, session.uid):
            return seen
        return replace(seen, checkpoint=CheckpointSeen.of(found))

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


async def _unread() -> None:
    return None


def budget_epoch(item: Object) -> int:
    """The epoch whose pod the budget covers; 0 if it is not as we make it."""
    spec = item.get("spec") or {}
    labels = (spec.get("selector") or {}).get("matchLabels") or {}
    return (number(labels.get(EPOCH)) or 0) if spec.get("minAvailable") == 1 else 0
