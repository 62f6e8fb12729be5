"""What an idle session costs in memory, by the kernel's word."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from bench.filled import Filled
from bench.processes import Pen
from bench.report import Figures, Table

IDLE_SECONDS: Final = 5.0


def memory_mib(pid: int) -> dict[str, float]:
    """`Pss`, `Rss`, `Pss_Anon` and the like of one process."""
    found = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        name, amount, *_ = line.split()
        found[name.rstrip(":")] = int(amount) / 1024
    return found


def private_mib(memory: dict[str, float]) -> float:
    return memory["Private_Clean"] + memory["Private_Dirty"]


def measure(table: Table) -> Figures:
    table.title(f"memory: MiB, idle for {IDLE_SECONDS:g} s with 10,000 lines")
    figures: Figures = {}
    with Pen() as pen:
        filled = Filled(pen)
        table.doing("resting")
        time.sleep(IDLE_SECONDS)
        for name, pid in (("sidecar_idle", filled.holdfast.pid), ("tmux_server", filled.tmux.pid)):
            memory = memory_mib(pid)
            figures[f"{name}_pss_mib"] = memory["Pss"]
            figures[f"{name}_private_mib"] = private_mib(memory)
            table.row(name.replace("_", " "))
            table.cell(f"proportional {memory['Pss']:.1f}")
            table.cell(f"private {private_mib(memory):.1f}")
    return figures
