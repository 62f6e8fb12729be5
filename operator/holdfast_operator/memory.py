"""What this process remembers of each Session between looks. Losing it is safe: every wait begins
anew, and what must not be forgotten is in the API. Pure but for being changed in place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from holdfast_operator.model import Problem
from holdfast_operator.orders import CheckpointSeen

# Waits before the 2nd, 3rd, … incarnation in a row that did not last.
BACKOFF: Final = (0.0, 10.0, 20.0, 40.0, 80.0, 160.0, 300.0)
# Waits after the 1st, 2nd, … move in a row that failed: the session runs on meanwhile.
MOVE_BACKOFF: Final = (2.0, 5.0, 10.0, 20.0, 40.0, 60.0)
LASTED_SECONDS: Final = 600.0
ACCESS_SECONDS: Final = 300.0  # how long objects that people rarely touch are believed to be there


@dataclass(slots=True)
class Memory:
    uid: str
    high_water: int = 0
    deleting_since: float | None = None
    status_written_at: float | None = None
    access_seen_at: float | None = None
    budget: int | None = None
    problem: Problem | None = None
    begun: int = 0  # incarnations in a row that did not last
    begun_at: float | None = None
    moves_failed: int = 0  # in a row, of the incarnation `moves_epoch`
    moves_epoch: int = 0
    move_retry_at: float = 0.0
    move_problem: str = ""
    orders: tuple[CheckpointSeen, ...] = ()
    orders_stale: bool = True  # the watch showed one of them since, or nobody has looked yet

    def move_failed(self, now: float, why: str, epoch: int) -> None:
        self.at_epoch(epoch)
        wait = MOVE_BACKOFF[min(self.moves_failed, len(MOVE_BACKOFF) - 1)]
        self.moves_failed += 1
        self.move_retry_at, self.move_problem = now + wait, why

    def at_epoch(self, epoch: int) -> None:
        """Another incarnation begins with nothing held against it."""
        if epoch != self.moves_epoch:
            self.moves_epoch = epoch
            self.stays()

    def stays(self) -> None:
        """It need not move any more: why it could not is of no interest, and may not be so."""
        self.moves_failed, self.move_retry_at, self.move_problem = 0, 0.0, ""

    def began(self, now: float) -> None:
        """A pod is about to be created."""
        if self.begun_at is not None and now - self.begun_at >= LASTED_SECONDS:
            self.begun = 0
        self.begun, self.begun_at = self.begun + 1, now

    def slept(self) -> None:
        """It was suspended, which is no failure."""
        self.begun = 0

    @property
    def retry_at(self) -> float:
        if self.begun_at is None or self.begun == 0:
            return 0.0
        return self.begun_at + BACKOFF[min(self.begun, len(BACKOFF)) - 1]

    def access_known(self, now: float) -> bool:
        return self.access_seen_at is not None and now - self.access_seen_at < ACCESS_SECONDS
