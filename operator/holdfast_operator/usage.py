"""What of the stores a namespace has, and may have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Limits:
    """For each namespace; 0: no limit."""

    count: int = 0
    size: int = 0

    @property
    def any(self) -> bool:
        return self.count > 0 or self.size > 0


NO_LIMITS: Final = Limits()


@dataclass(frozen=True, slots=True)
class Usage:
    count: int
    size: int
    limits: Limits


UNLIMITED: Final = Usage(0, 0, NO_LIMITS)
