"""How much of the stores the checkpoints of one namespace may take. Pure.

Counted are keeps that are complete and those that are under way. A session that has as many as it
keeps gives its oldest back when the new one is complete, so that one takes no further place.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final

from holdfast_operator.model import Observed
from holdfast_operator.orders import CheckpointSeen, Kind, keeps
from holdfast_operator.usage import Limits, Usage

# Between two looks whether there is room again: others' checkpoints go, and nothing tells us.
AGAIN_SECONDS: Final = 30.0


def usage(items: Iterable[Mapping[str, Any]], limits: Limits, wall: datetime) -> Usage:
    found = [CheckpointSeen.of(item) for item in items]
    taken = [one for one in found if one.kind is Kind.KEEP and _takes(one, wall)]
    return Usage(len(taken), sum(one.size or 0 for one in taken), limits)


def _takes(order: CheckpointSeen, wall: datetime) -> bool:
    return order.phase == "Complete" or order.under_way(wall)


def refusal(seen: Observed) -> str:
    """Why no further checkpoint of this session is ordered now; "": it may be."""
    used = seen.usage
    if used is None:
        return ""  # nothing was to be ordered when it was looked at
    limits = used.limits
    stored = [order for order in keeps(seen.orders or ()) if order.phase == "Complete"]
    given_back = stored[max(0, seen.session.keep_count - 1) :]
    if limits.count and used.count - len(given_back) + 1 > limits.count:
        return _words(seen, f"{used.count} of {limits.count} stored checkpoints", "perNamespace")
    # As large as the last one; of one that was never stored nothing is known.
    expected = max(1, (stored[0].size or 0) if stored else 0)
    freed = sum(order.size or 0 for order in given_back)
    if limits.size and used.size - freed + expected > limits.size:
        told = f"{used.size >> 20} of {limits.size >> 20} MiB of stored checkpoints"
        return _words(seen, told, "bytesPerNamespace")
    return ""


def _words(seen: Observed, told: str, value: str) -> str:
    return (
        f"the namespace {seen.session.key.namespace} has {told}. Delete Checkpoints or Sessions"
        " that are not needed, lower spec.checkpoints.keep, or have checkpoints."
        f"{value} raised in the chart's values"
    )
