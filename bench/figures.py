"""Numbers from numbers. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def percentile(values: Sequence[float], percent: float) -> float:
    """By linear interpolation between the two nearest ranks."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def ratios(raw_seconds: Sequence[float], seconds: Sequence[float]) -> tuple[float, float]:
    """Speed as a share of the raw drain's: the median run's and the slowest run's."""
    raw = median(raw_seconds)
    return raw / median(seconds), raw / max(seconds)
