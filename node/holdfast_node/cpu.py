"""What this node's processor can do that a program may have come to rely on."""

from __future__ import annotations

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
