"""Which of several operators acts: the holder of the Lease `holdfast.dev-operator`, by the same
rules as a session's.

Invariant: `leads` is false from the deadline on, which runs from the send time of the last
acknowledged renewal. This spares work and noise; it is not what keeps incarnations apart: two
operators that both believed they lead would still be kept apart by each session's Lease.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

from holdfast_kube.client import LEASES, Api, Conflict
from holdfast_operator import log, names
from holdfast_operator.model import LeaseSeen
from holdfast_wire.errors import AlreadyExists, HoldfastError
from holdfast_wire.lease import Epoch, Holder, Observer, Record, Timing

# A Session's name has no dot, so none can want this Lease for itself.
NAME: Final = "holdfast.dev-operator"
SECONDS: Final = 15  # another operator takes over this long after the last renewal


class Leader:
    def __init__(
        self,
        api: Api,
        namespace: str,
        identity: str,
        clock: Callable[[], float],
        chosen: Callable[[bool], None],
    ) -> None:
        self._api, self._namespace, self._identity = api, namespace, identity
        self._clock, self._chosen = clock, chosen
        self._timing = Timing.of(SECONDS)
        self._observer = Observer(self._timing)
        self._holder: Holder | None = None
        self._told = False

    @property
    def leads(self) -> bool:
        return self._holder is not None and not self._holder.expired(self._clock())

    async def run(self) -> None:
        """Until cancelled; then the Lease is given back, so that the next need not wait."""
        try:
            while True:
                try:
                    async with asyncio.timeout(self._timing.request_timeout):
                        await self.attempt()
                except TimeoutError:
                    log.warning("the leader Lease could not be renewed in time")
                except HoldfastError as error:
                    log.warning("the leader Lease could not be renewed", error=error.message)
                self._tell()
                await asyncio.sleep(self._timing.renew_every)
        finally:
            await self._give_back()

    def _tell(self) -> None:
        if self.leads != self._told:
            self._told = self.leads
            log.info("leading" if self._told else "not leading")
            self._chosen(self._told)

    async def attempt(self) -> None:
        """One look at the Lease and, if it is ours or may be, one write."""
        item = await self._api.get(LEASES, self._namespace, NAME)
        seen = None if item is None else LeaseSeen.of(item, "")
        now = self._clock()
        record = None if seen is None else seen.record
        if seen is not None and self._holder and seen.record.holder == self._identity:
            await self._write(self._holder, copy.deepcopy(dict(seen.body)), seen.record)
            return
        self._holder = None
        # A missing Lease is taken at once: so it is when the chart is new, and a leader whose Lease
        # somebody deleted finds out with its next renewal.
        if record is not None and not self._observer.may_take(record, now):
            return
        epoch = Epoch(record.epoch + 1 if record else 1)
        holder = Holder(self._timing, self._identity, epoch)
        body = copy.deepcopy(dict(seen.body)) if seen else self._blank()
        await self._write(holder, body, record)

    async def _write(self, holder: Holder, body: dict[str, Any], record: Record | None) -> None:
        notes = dict(body["metadata"].get("annotations") or {})
        notes.pop(names.RELEASED, None)
        notes[names.EPOCH] = str(holder.epoch)
        body["metadata"]["annotations"] = notes
        at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")  # for people; never read
        body["spec"] = {**(body.get("spec") or {}), "holderIdentity": self._identity}
        body["spec"] |= {"leaseDurationSeconds": SECONDS, "renewTime": at}
        renewal = holder.send(self._clock())
        try:
            if record is None:
                await self._api.create(LEASES, self._namespace, body)
            else:
                await self._api.replace(LEASES, self._namespace, NAME, body)
        except (Conflict, AlreadyExists):
            self._observer.restart(self._clock())
            self._holder = None
            return
        holder.acknowledge(renewal)
        self._holder = holder

    def _blank(self) -> dict[str, Any]:
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": NAME, "namespace": self._namespace},
            "spec": {},
        }

    async def _give_back(self) -> None:
        holder, self._holder = self._holder, None
        if holder is None:
            return
        try:
            async with asyncio.timeout(self._timing.request_timeout):
                item = await self._api.get(LEASES, self._namespace, NAME)
                if item is None or LeaseSeen.of(item, "").record.holder != self._identity:
                    return
                body = copy.deepcopy(dict(item))
                body["metadata"]["annotations"][names.RELEASED] = str(holder.epoch)
                body["spec"]["holderIdentity"] = ""
                await self._api.replace(LEASES, self._namespace, NAME, body)
        except (HoldfastError, TimeoutError):
            log.info("the leader Lease was not given back; it runs out by itself")
