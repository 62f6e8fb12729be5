"""What `decide` can answer and `perform` does: one step each. Those of a move, of storing and of
bringing back are where these are decided. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast_operator import keeps, moves, restores
from holdfast_operator.model import Cause, Phase
from holdfast_operator.notes import Exit, Restore
from holdfast_operator.orders import CheckpointSeen


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do until something changes, or `until` (monotonic)."""

    until: float | None = None
    blocked: tuple[str, str] | None = None  # reason and message, if a person should know


@dataclass(frozen=True, slots=True)
class AddFinalizer:
    pass


@dataclass(frozen=True, slots=True)
class EnsureAccess:
    pass


@dataclass(frozen=True, slots=True)
class Grant:
    """Create the first Lease, vacant, for this epoch; and the access to it, if it is missing."""

    epoch: int
    restore: Restore | None = None


@dataclass(frozen=True, slots=True)
class Bar:
    """Create a Lease that was deleted, held by nobody: what still runs is superseded by it, and
    there is a version again to wait on and to swap."""

    epoch: int


@dataclass(frozen=True, slots=True)
class RaiseEpoch:
    """Write the status, before the epoch's pod is made, or that of a session that is asleep: the
    mark outlives the Lease."""


@dataclass(frozen=True, slots=True)
class TakeOver:
    """Swap the Lease to this epoch, vacant."""

    epoch: int
    cause: Cause
    restore: Restore | None = None  # what it goes on from; None: it begins anew


@dataclass(frozen=True, slots=True)
class Fence:
    """Swap the Lease to an epoch that gets no pod: the session is over and stays so."""

    epoch: int


@dataclass(frozen=True, slots=True)
class CreatePod:
    epoch: int
    restore: CheckpointSeen | None = None


@dataclass(frozen=True, slots=True)
class SetBudget:
    epoch: int


@dataclass(frozen=True, slots=True)
class DeletePods:
    """By name and UID, with their grace period: never by force."""

    pods: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class DeleteBudget:
    pass


@dataclass(frozen=True, slots=True)
class DeleteLease:
    pass


@dataclass(frozen=True, slots=True)
class RemoveFinalizer:
    pass


@dataclass(frozen=True, slots=True)
class DeleteSession:
    pass


@dataclass(frozen=True, slots=True)
class SetEnded:
    """Write spec.ended, because the spec says so itself: nobody was there for long."""


@dataclass(frozen=True, slots=True)
class End:
    """Write the terminal phase. From then on there is no further incarnation."""

    phase: Phase
    reason: str
    message: str
    exit: Exit | None = None


Step = (
    Wait | AddFinalizer | EnsureAccess | Grant | Bar | TakeOver | Fence | RaiseEpoch | CreatePod
    | SetBudget
    | DeletePods | DeleteBudget | DeleteLease | RemoveFinalizer | DeleteSession | End | moves.Move
    | SetEnded | keeps.Keep | restores.CreateBring
)  # fmt: skip
