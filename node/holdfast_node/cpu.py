"""What this node's processor can do that a program may have come to rely on.

`told` is how an agent says it of its node, in one line, and `heard` what another makes of that: the
architecture, a digest, and each feature.
"""

from __future__ import annotations

import hashlib
import platform
from pathlib import Path
from typing import Final

# About the machine it runs on and not about what programs can use; they differ between nodes of
# the same kind.
_IRRELEVANT: Final = frozenset({"hypervisor", "constant_tsc", "nonstop_tsc", "tsc_known_freq"})


def features(text: str | None = None) -> tuple[str, ...]:
    """Sorted. `text`: of /proc/cpuinfo."""
    for line in (text or Path("/proc/cpuinfo").read_text()).splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("flags", "Features"):  # x86, Arm
            return tuple(sorted(set(value.split()) - _IRRELEVANT))
    return ()


def digest(features: tuple[str, ...]) -> str:
    """One word for all of them."""
    return hashlib.sha256(" ".join(features).encode()).hexdigest()[:16]


def told(features: tuple[str, ...], architecture: str = "") -> str:
    return " ".join((architecture or platform.machine(), digest(features), *features))


def heard(text: str) -> tuple[str, tuple[str, ...]] | None:
    """Architecture and features; None if nothing is said, or not by these rules."""
    architecture, _, rest = text.partition(" ")
    named, *features = rest.split(" ")
    found = tuple(features)
    return (architecture, found) if architecture and digest(found) == named else None
