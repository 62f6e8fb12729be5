"""Names that the operator, the sidecar and people share. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

GROUP: Final = "holdfast.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
PREFIX: Final = f"{GROUP}/"  # of labels and annotations: ours alone
FINALIZER: Final = f"{PREFIX}cleanup"

SESSION_LABEL: Final = f"{PREFIX}session"
EPOCH: Final = f"{PREFIX}epoch"  # label of pods, annotation of Leases
ACCEPT_EPOCH: Final = f"{PREFIX}accept-epoch"  # a person's word on a quarantined Session
MOVE: Final = f"{PREFIX}move"  # on a Session: EPOCH or EPOCH/NODE, away from that incarnation
EVICTED: Final = f"{PREFIX}evicted"  # on a Session: EPOCH, whose pod was to be evicted
WAKE: Final = f"{PREFIX}wake"  # on a Session: EPOCH, the incarnation that is to be seen again
# On a pod: the Session's incarnation EPOCH is to go on in it, or what stored/CHECKPOINT stored. On
# a Lease: what its incarnation goes on from.
RESTORE: Final = f"{PREFIX}restore"
UNFIT: Final = f"{PREFIX}unfit-nodes"  # of a pod: which it was to be kept off, when it was made
STORED: Final = "stored/"
FORK: Final = f"{PREFIX}fork"  # of a Checkpoint: label for whom it is, annotation its UID
NODE: Final = f"{PREFIX}node"  # label of a Checkpoint: where the agent that takes it runs
AGENT: Final = f"{PREFIX}agent"  # label of a Node: "ready" where sessions can leave and arrive
AGENT_MEMORY: Final = f"{PREFIX}agent-memory"  # on a Node: "PostCopy" where memory can follow
AGENT_CPU: Final = f"{PREFIX}agent-cpu"  # on a Node: what its processor can, by its agent's word

# On the Lease. The operator writes EPOCH, FRESH and RESTORE, the sidecar the others.
FRESH: Final = f"{PREFIX}fresh"
STARTED: Final = f"{PREFIX}started"
ACTIVITY: Final = f"{PREFIX}activity"
CLIENTS: Final = f"{PREFIX}clients"
TURN: Final = f"{PREFIX}turn"
ACTIVE: Final = f"{PREFIX}active"
START_ERROR: Final = f"{PREFIX}start-error"
EXIT: Final = f"{PREFIX}exit"
RELEASED: Final = f"{PREFIX}released"
OFFER: Final = f"{PREFIX}offer"  # the UID of the pod that may take the Lease over, alive
CUT: Final = f"{PREFIX}cut"  # connections to the outside that did not come along: JSON
BLOCKERS: Final = f"{PREFIX}blockers"  # what in the session would keep it from moving: JSON
INCOMPLETE: Final = f"{PREFIX}incomplete"  # processes that a freeze could not stop
MOVED: Final = f"{PREFIX}moved"  # the epoch that this one goes on from
SUSPENDED: Final = f"{PREFIX}suspended"  # the checkpoint that a released session is stored in
# What changes as people work; the rest are turning points.
PASTIME: Final = frozenset({ACTIVITY, CLIENTS, TURN, ACTIVE})

SESSION_CONTAINER: Final = "session"
SIDECAR_CONTAINER: Final = "holdfast"


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """One Session."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def pod_name(session: str, epoch: int) -> str:
    return f"{session}-{epoch}"


def checkpoint_name(session: str, epoch: int, target_uid: str) -> str:
    """One for each pod that a session was to move to."""
    return f"{session}-{epoch}-{target_uid[:8]}"


def keep_name(session: str, epoch: int, number: int) -> str:
    return f"{session}-{epoch}-k{number}"


def bring_name(session: str, epoch: int, target_uid: str) -> str:
    """One for each pod that a checkpoint was to be brought into."""
    return f"{session}-{epoch}-from-{target_uid[:8]}"


def access_name(session: str) -> str:
    """Of the ServiceAccount, Role, RoleBinding and PodDisruptionBudget."""
    return f"holdfast-{session}"
