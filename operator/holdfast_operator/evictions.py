"""Whether a pod may be evicted now. Pure.

Holding an eviction up is only worth it for what can be moved away meanwhile. For everything else
the answer is yes, and the PodDisruptionBudget over the holder's pod decides as it would without us.
First row that fits:

    the pod        is not this Session's, ended, or is being deleted    yes
    the Session    is over, is to be ended, or is being deleted         yes
    the Lease      is not this Session's, or was released               yes
    the pod is     of an older epoch: it has moved away                 yes
                   up, and the session is about to arrive in it         not yet
                   of an epoch that nobody has                          yes
                   one whose command does not run                       yes
    onDrain        is End                                               yes, and that ends it
    its node       has no agent                                         yes
    onDrain        is Wait                                              yes
                   is Live or Hibernate                                 not yet, and it is to leave

A session that ends with it has no budget, and is marked, so that it is known what ended it. A
cordoned node is left anyway, and else needs no mark: uncordoning it calls that off.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from holdfast_operator import names
from holdfast_operator.model import TERMINAL, LeaseSeen, NodeSeen, PodSeen, Session

_LEAVES: Final = {"Live": "is being moved to another node", "Hibernate": "is being stored"}


@dataclass(frozen=True, slots=True)
class Verdict:
    why: str = ""  # not yet, and why; "": yes
    mark: int | None = None  # the epoch that is to be marked: it leaves its node, or ends

    @property
    def allowed(self) -> bool:
        return not self.why


YES: Final = Verdict()


def judge(
    pod: PodSeen, session: Session, lease: LeaseSeen | None, node: NodeSeen | None
) -> Verdict:
    if not pod.owned or pod.name != names.pod_name(session.name, pod.epoch):
        return YES
    if pod.finished or pod.deleting:
        return YES
    if session.deleting or session.ended or session.phase in TERMINAL:
        return YES
    if lease is None or not lease.owned or lease.record.released:
        return YES
    if pod.epoch == lease.epoch + 1 and pod.restores and pod.up:
        return Verdict(_said(session, "is arriving in this pod"))
    if pod.epoch != lease.epoch or lease.record.holder == "" or not lease.started:
        return YES
    if session.on_drain == "End":
        return Verdict(mark=lease.epoch)
    doing = _LEAVES.get(session.on_drain)
    if doing is None or node is None or not node.agent:
        return YES
    return Verdict(_said(session, doing), None if node.cordoned else lease.epoch)


def _said(session: Session, doing: str) -> str:
    """kubectl drain shows it, and asks again by itself."""
    return (
        f"session {session.name} {doing}: try again in some seconds. Its conditions say how it"
        f" goes: kubectl describe session {session.name} --namespace {session.key.namespace}"
    )
