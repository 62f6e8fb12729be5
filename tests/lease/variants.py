"""The shipped rules at three durations, with live moves and with suspensions, and rules with one
thing broken each.

The checker is worth something only if it refutes every broken one by the same search that finds
nothing against the shipped ones.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from holdfast_wire.lease import SHORTEST, Timing

from .model import tight
from .world import Rules


@dataclass(frozen=True, slots=True)
class Variant:
    name: str
    rules: Rules
    holds: bool
    says: str
    share: float = 1.0  # of the runs there are


USUAL: Final = Rules(Timing.of(20))
MOVES: Final = replace(USUAL, moves=True)
SUSPENDS: Final = replace(MOVES, suspends=True)

SHIPPED: Final = (
    Variant("usual", USUAL, True, "the shipped rules, 20 s"),
    Variant("shortest", Rules(Timing.of(SHORTEST)), True, f"the shipped rules, {SHORTEST} s"),
    Variant("tight", Rules(tight()), True, "the duration exactly at the inequality's bound"),
    Variant("moves", MOVES, True, "the shipped rules, 20 s, and live moves", 0.25),
    Variant("suspends", SUSPENDS, True, "the shipped rules, 20 s, and suspensions", 0.25),
)

BROKEN: Final = (
    Variant("short", Rules(tight(0.95)), False, "the duration 5 % under the bound"),
    Variant(
        "from-reply", replace(USUAL, from_send=False), False, "deadline counted from the answer"
    ),
    Variant(
        "no-swap", replace(USUAL, compare_and_swap=False), False, "takeover compares no version"
    ),
    Variant("no-switch", replace(USUAL, switch=False), False, "no dead-man's switch in hold"),
    Variant(
        "wait-for-none",
        replace(USUAL, missing_is_nobodys=False),
        False,
        "a missing Lease is made vacant after a wait",
    ),
    Variant("no-settle", replace(USUAL, settle=False), False, "released as soon as frozen"),
    Variant("no-gate", replace(USUAL, gate=False), False, "nobody checks a woken node's epoch"),
    Variant(
        "take-no-swap", replace(MOVES, offer_swaps=False), False, "an offer taken without compare"
    ),
    Variant(
        "thaw-early", replace(MOVES, thaw_waits=False), False, "thawed with its offer in doubt"
    ),
    Variant(
        "status-behind",
        replace(MOVES, status_first=False),
        False,
        "moved again though the status lacks the epoch",
    ),
    Variant(
        "resume-early",
        replace(SUSPENDS, thaw_waits=False),
        False,
        "thawed with its release in doubt",
    ),
)

ALL: Final = {variant.name: variant for variant in (*SHIPPED, *BROKEN)}
