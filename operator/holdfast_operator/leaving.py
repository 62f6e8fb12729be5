"""A pod that is deleted while there is time to move its session away: how much. Pure.

kubelet sends SIGTERM at once, and SIGKILL when the pod's grace is up: at its deletionTimestamp.
hold puts the SIGTERM off (`--linger`), and this is what becomes of the time:

    deleted ─ target up ─ order ─ moved                       at `order_until` the latest
                            └ given up: it stays              at `until` the latest
                               └ the command is told to end   5 s, as ever
                                  └ the Lease is given back   4 s

The times of the API server and of two nodes are compared: they may differ by `CLOCKS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from holdfast_operator import names

# What the command and the Lease need in the end: hold's --term-grace, the settling time, a write.
END: Final = timedelta(seconds=9)
CLOCKS: Final = timedelta(seconds=2)
# A move that is given up: CRIU leaves, the offer is withdrawn, the tree goes on.
GIVING_UP: Final = timedelta(seconds=3)
# From the order to the arrival, at least; with less it is not begun.
LEAST: Final = timedelta(seconds=3)
# A pod needs some seconds to come up. With less grace than this there is nothing to put off.
SHORTEST_GRACE: Final = 25


def until(goes_at: datetime) -> datetime:
    """When the command is told to end, if it is still there. `goes_at`: deletionTimestamp."""
    return goes_at - END - CLOCKS


def order_until(goes_at: datetime) -> datetime:
    """When a move has come to its end, one way or the other."""
    return until(goes_at) - GIVING_UP


def too_late_at(goes_at: datetime) -> datetime:
    return order_until(goes_at) - LEAST


def linger(template: Mapping[str, Any], grace: float) -> list[str]:
    """hold's options. Another container of the template gets its SIGTERM at once and goes, whatever
    hold does: a session that needs it would not be moved whole. An init container that goes on
    running is stopped after hold."""
    alone = len(template.get("containers") or ()) == 1
    if not alone or grace < SHORTEST_GRACE:
        return []
    return ["--linger", str(round((grace - END.total_seconds()) * 1000))]


def lingers(spec: Mapping[str, Any]) -> bool:
    """Whether this pod was made so; one of an older operator was not."""
    for container in spec.get("containers") or ():
        if container.get("name") == names.SESSION_CONTAINER:
            words = list(container.get("command") or ())
            return "--linger" in words[: words.index("--") if "--" in words else 0]
    return False
