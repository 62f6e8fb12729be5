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

# On the Lease. The operator writes EPOCH and FRESH, the sidecar the others.
FRESH: Final = f"{PREFIX}fresh"
STARTED: Final = f"{PREFIX}started"
ACTIVITY: Final = f"{PREFIX}activity"
CLIENTS: Final = f"{PREFIX}clients"
TURN: Final = f"{PREFIX}turn"
ACTIVE: Final = f"{PREFIX}active"
START_ERROR: Final = f"{PREFIX}start-error"
EXIT: Final = f"{PREFIX}exit"
RELEASED: Final = f"{PREFIX}released"
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


def access_name(session: str) -> str:
    """Of the ServiceAccount, Role, RoleBinding and PodDisruptionBudget."""
    return f"holdfast-{session}"
