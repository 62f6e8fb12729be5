"""How long a keystroke takes to come back: one byte to a program in raw mode that echoes it.

All targets run at once and are asked in turn, in random order with random pauses, so that whatever
else the machine does meets all of them alike.
"""

from __future__ import annotations

import contextlib
import random
import time
from typing import Final

from bench.ends import Closed, End
from bench.figures import median, percentile
from bench.processes import Failed, Pen
from bench.report import Figures, Table
from bench.targets import CLI, Dtach, Holdfast, HoldfastCli, Raw, Target, Tmux

SAMPLES: Final = 600
PAUSE_SECONDS: Final = (0.001, 0.008)
_SETTLE_SECONDS: Final = 1.0
_PATIENCE_SECONDS: Final = 5.0
# None of them ends or is part of an escape sequence that a client may send around the echo.
_KEYS: Final = b"wyzWYZ"
_PROGRAM: Final = ["sh", "-c", "stty raw -echo; exec cat"]


def sample(end: End, key: bytes) -> float:
    """Milliseconds until the key is back."""
    while end.wait(0):
        end.receive()
    wrapped = end.typed(key)
    began = time.perf_counter_ns()
    end.send(wrapped)
    while key not in end.receive():
        if time.perf_counter_ns() - began > _PATIENCE_SECONDS * 1e9:
            raise Failed("a keystroke never came back")
    return (time.perf_counter_ns() - began) / 1e6


def measure(table: Table, samples: int = SAMPLES) -> Figures:
    table.title(f"echo: milliseconds, {samples} keystrokes each")
    rng = random.Random(1)
    targets: list[type[Target]] = [Raw, Holdfast, Tmux, Dtach]
    if CLI.exists():
        targets.append(HoldfastCli)
    with contextlib.ExitStack() as pens:
        ends = _start(pens, targets)
        table.doing("typing")
        times: dict[str, list[float]] = {name: [] for name in ends}
        for _ in range(samples):
            for name in rng.sample(list(ends), k=len(ends)):
                time.sleep(rng.uniform(*PAUSE_SECONDS))
                times[name].append(sample(ends[name], bytes([rng.choice(_KEYS)])))
    return _figures(times, table)


def _start(pens: contextlib.ExitStack, targets: list[type[Target]]) -> dict[str, End]:
    ends: dict[str, End] = {}
    for kind in targets:
        target = kind(pens.enter_context(Pen()))
        target.start(_PROGRAM)
        ends[target.name] = target.end()
    time.sleep(_SETTLE_SECONDS)
    for name, end in ends.items():
        try:
            sample(end, b"w")
        except Closed as error:
            raise Failed(f"{name}: {error}") from error
    return ends


def _figures(times: dict[str, list[float]], table: Table) -> Figures:
    figures: Figures = {}
    for name, values in times.items():
        prefix = "" if name == Holdfast.name else f"{name}_"
        figures[f"{prefix}echo_p50_ms"] = median(values)
        figures[f"{prefix}echo_p99_ms"] = percentile(values, 99)
        table.row(name)
        table.cell(f"p50 {median(values):.3f}")
        table.cell(f"p99 {percentile(values, 99):.3f}")
    return figures
