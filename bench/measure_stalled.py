"""What a viewer that stops reading costs the program and those who do read."""

from __future__ import annotations

import time
import uuid
from pathlib import Path
from typing import Final, NamedTuple

from bench import payloads
from bench.figures import median
from bench.measure_memory import memory_mib
from bench.measure_throughput import SETTLE_SECONDS, source
from bench.processes import Pen
from bench.report import Figures, Table
from bench.targets import Holdfast

# The difference looked for is small, and so are 2 cores: more rounds than elsewhere.
ROUNDS: Final = 5


class Run(NamedTuple):
    seconds: float
    grown_mib: float


def run(payload: Path, stalled: bool) -> Run:
    marker = f"END-{uuid.uuid4().hex}"
    with Pen() as pen:
        target = Holdfast(pen)
        target.start(source(payload, marker))
        viewer = target.viewer(marker)
        viewer.attached()
        if stalled:
            target.end()  # attached, and not read from again
        time.sleep(SETTLE_SECONDS)
        before = memory_mib(target.pid)["Pss_Anon"]
        began = time.monotonic_ns()
        target.type(b"go\n")
        seen = viewer.seen()["seen_ns"]
        # Not Pss: the ring, a file of fixed size, would be most of it.
        return Run((seen - began) / 1e9, memory_mib(target.pid)["Pss_Anon"] - before)


def measure(size: int, table: Table) -> Figures:
    payload = payloads.payload("plain", size)
    payload.read_bytes()
    table.title(f"a stalled viewer beside a reading one: {ROUNDS} rounds")
    with_it: list[Run] = []
    without: list[Run] = []
    for number in range(ROUNDS):
        table.doing(f"round {number + 1}")
        for stalled in (False, True) if number % 2 else (True, False):
            (with_it if stalled else without).append(run(payload, stalled))
    slowdown = median([r.seconds for r in with_it]) / median([r.seconds for r in without])
    growth = median([r.grown_mib for r in with_it]) - median([r.grown_mib for r in without])
    table.row("holdfast")
    table.cell(f"slowdown {slowdown:.3f}")
    table.cell(f"growth {growth:.1f} MiB")
    return {
        "stalled_viewer_slowdown_ratio": slowdown,
        "stalled_viewer_sidecar_growth_mib": growth,
    }
