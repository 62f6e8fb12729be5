"""One look at one Session and a step for it: observe, decide, perform, say.

Where the answer to a step shows all that it changed, the next one follows without another look;
else the key comes back, until the step is to wait. Only the leader does any of this.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from holdfast_kube.client import EVENTS, SESSIONS, Api, Conflict, Invalid
from holdfast_kube.order_keys import Unopened
from holdfast_operator import events, log, metrics, status, template
from holdfast_operator.decide import decide
from holdfast_operator.events import Said, Saying
from holdfast_operator.keyring import UnknownKey
from holdfast_operator.model import Observed, Problem, Session
from holdfast_operator.moves import AbandonMove
from holdfast_operator.names import Key
from holdfast_operator.observe import Look
from holdfast_operator.perform import Perform
from holdfast_operator.steps import (
    Bar,
    CreatePod,
    DeleteLease,
    DeleteSession,
    End,
    Fence,
    Grant,
    RaiseEpoch,
    SetEnded,
    Step,
    TakeOver,
    Wait,
)
from holdfast_operator.text import plain
from holdfast_operator.times import length
from holdfast_wire.errors import AlreadyExists, Forbidden, HoldfastError, Retry

_ON_LEASE: Final = (Grant, Bar, TakeOver, Fence)
# Finalizer, Lease, status, pod: what a new session needs. More on one picture would be too old.
IN_A_ROW: Final = 4


class Reconcile:
    def __init__(
        self,
        api: Api,
        look: Look,
        perform: Perform,
        leads: Callable[[], bool],
        clock: Callable[[], float],
        instance: str,
    ) -> None:
        self._api, self._look, self._perform = api, look, perform
        self._leads, self._clock, self._instance = leads, clock, instance
        self._recent = events.Recent()

    async def __call__(self, key: Key) -> float | None:
        """When to look again, in seconds; None: when something changes."""
        if not self._leads():
            return None
        with metrics.RECONCILE_SECONDS.time():
            return await self._once(key)

    async def _once(self, key: Key) -> float | None:
        seen = await self._look(key)
        if seen is None:
            metrics.phases.forget(key)
            return None
        for _step in range(IN_A_ROW):
            step = decide(seen)
            metrics.phases.note(key, status.phase_of(seen, step))
            if not self._leads():
                return None
            if isinstance(step, Wait):
                later, _ = await self._write_status(seen, step)
                waits = [at - seen.now for at in (later, step.until) if at is not None]
                return max(0.0, min(waits)) if waits else None
            known = await self._act(seen, step)
            if known is None:
                break
            seen = known
        return 0.0

    async def _act(self, seen: Observed, step: Step) -> Observed | None:
        """What is known now; None: look again."""
        if isinstance(step, End | RaiseEpoch):
            _, session = await self._write_status(seen, step)
            if isinstance(step, RaiseEpoch) and session is not None:
                return replace(seen, session=session)
            return None
        return await self._perform_step(seen, step)

    async def _perform_step(self, seen: Observed, step: Step) -> Observed | None:
        session, memory = seen.session, self._look.memory(seen.session)
        self._describe(seen, step)
        await self._announce(seen, step)
        if isinstance(step, AbandonMove):
            # Said before the target goes, and with it the way to what its agent said.
            memory.move_failed(seen.now, step.why, seen.epoch)
            await self._write_status(replace(seen, move_problem=step.why), step)
        try:
            known = await self._perform(seen, step, memory)
        except Conflict:
            if isinstance(step, _ON_LEASE):
                self._look.conflicted(session.key, session)
            raise
        except (Forbidden, Invalid, AlreadyExists, UnknownKey) as error:
            if not session.deleting:
                of_spec = isinstance(step, CreatePod) and isinstance(error, Invalid)
                of_key = isinstance(error, UnknownKey | Unopened)
                reason = "KeyUnknown" if of_key else "PodRefused"
                memory.problem = Problem(plain(str(error)), of_spec, reason)
                await self._write_status(await self._again(seen), Wait())
            raise
        memory.problem = None
        if isinstance(step, TakeOver):
            metrics.TAKEOVERS.labels(step.cause.value).inc()
        return known

    async def _again(self, seen: Observed) -> Observed:
        return await self._look(seen.session.key) or seen

    def _describe(self, seen: Observed, step: Step) -> None:
        key = seen.session.key
        log.info(
            "step",
            step=repr(step),
            session=key.name,
            namespace=key.namespace,
            epoch=seen.epoch,
        )

    async def _announce(self, seen: Observed, step: Step) -> None:
        """What no status will be there to tell."""
        if isinstance(step, DeleteSession):
            message = f"deleted {seen.session.ttl:g} s after its end, as ttlSecondsAfterEnded says"
            await self._say(seen, Saying(Said.DELETED_AFTER_END, message))
        if isinstance(step, SetEnded):
            message = f"nobody was there for {length(seen.session.idle_seconds)}: it is ended, as"
            await self._say(seen, Saying(Said.IDLE, f"{message} spec.idle.then says"))
        if isinstance(step, DeleteLease) and any(pod.owned for pod in seen.pods):
            message = (
                "its pod is not gone in time; its Lease is deleted, so that whatever still runs"
                " stops itself"
            )
            await self._say(seen, Saying(Said.DELETION_OVERDUE, message, warning=True))

    async def _write_status(
        self, seen: Observed, step: Step
    ) -> tuple[float | None, Session | None]:
        """Writes it if it is worth it. Returns when else it will be, and the Session as written."""
        session = seen.session
        if session.deleting and not session.finalizers:
            return None, None
        memory = self._look.memory(session)
        wanted = status.status_of(seen, step)
        patch = status.difference(session.status, wanted)
        at = status.due(patch, memory.status_written_at, seen.now)
        if at is None or at > seen.now:
            return at, None
        # Said first: killed in between, it is said twice, which is better than never.
        reserved = template.reserved_keys(session.spec)
        for saying in events.between(session.status, wanted, reserved):
            await self._say(seen, saying)
        body = {"metadata": {"resourceVersion": session.version}, "status": patch}
        item = await self._api.patch(
            SESSIONS, session.key.namespace, session.name, body, sub="status"
        )
        memory.status_written_at = self._clock()
        return None, Session.of(item)

    async def _say(self, seen: Observed, saying: Saying) -> None:
        session = seen.session
        if not self._recent.first(session.uid, saying, seen.now):
            return
        metrics.SAID.labels(saying.reason.value).inc()
        if saying.reason is Said.CONNECTIONS_CUT and seen.lease is not None:
            metrics.CONNECTIONS_CUT.inc(len(seen.lease.cut))
        body = events.manifest(session, saying, seen.wall, self._instance)
        for _attempt in range(2):
            try:
                await self._api.create(EVENTS, session.key.namespace, body)
            except AlreadyExists:
                return
            except HoldfastError as error:
                # Telling is not worth failing for: the status has it too.
                log.warning("an event was not written", **_where(session), error=error.message)
                if not isinstance(error, Retry):
                    return
            else:
                return


def _where(session: Session) -> dict[str, str]:
    return {"session": session.name, "namespace": session.key.namespace}
