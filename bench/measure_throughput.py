"""How fast a program can print while viewers look on, as a share of a bare PTY's speed.

The clock runs from the line that lets the program go until every viewer has seen what it prints
last: a viewer that was sent less than everything is done when its screen is right.
"""

from __future__ import annotations

import time
import uuid
from pathlib import Path
from typing import Final, NamedTuple

from bench import payloads
from bench.figures import median, ratios
from bench.processes import Pen
from bench.report import Figures, Table
from bench.targets import CLI, Dtach, Holdfast, HoldfastCli, Raw, Target, Tmux

MANY: Final = 8
# Until start-up work (imports, first paints) is over.
SETTLE_SECONDS: Final = 0.3


class Cell(NamedTuple):
    """One thing to measure."""

    target: type[Target]
    viewers: int
    kind: str
    rounds: int = 1


class Run(NamedTuple):
    seconds: float
    gaps: int
    received: int
    """Bytes that came to the viewer that got fewest."""


def source(payload: Path, marker: str) -> list[str]:
    """Waits for a line, prints the payload, then the marker alone on a cleared primary screen.

    The marker is printed again and again, because dtach leaves out bytes of a viewer that is slow
    and never says so: without a second chance that viewer would be waited for in vain.
    """
    script = (
        'stty -echo; printf ready; read -r go; cat -- "$1"; while :; do'
        " printf '\\033[0m\\033[?1049l\\033[2J\\033[H%s' \"$2\"; sleep 0.05; done"
    )
    return ["sh", "-c", script, "source", str(payload), marker]


def run(cell: Cell, payload: Path) -> Run:
    marker = f"END-{uuid.uuid4().hex}"
    with Pen() as pen:
        target = cell.target(pen)
        target.start(source(payload, marker))
        viewers = [target.viewer(marker) for _ in range(cell.viewers)]
        for viewer in viewers:
            viewer.attached()
        time.sleep(SETTLE_SECONDS)
        began = time.monotonic_ns()
        target.type(b"go\n")
        seen = [viewer.seen() for viewer in viewers]
        last = max(each["seen_ns"] for each in seen)
        return Run(
            (last - began) / 1e9,
            sum(each["gaps"] for each in seen),
            min(each["bytes"] for each in seen),
        )


def cells(kind: str) -> list[Cell]:
    """What every ratio stands on is measured most often. Peers get one round where they are slow:
    a hundred megabytes of mixed scripts take tmux half a minute."""
    whole = kind == "plain"
    found = [Cell(Raw, 1, kind, 5), Cell(Holdfast, 1, kind, 5)]
    found += [Cell(peer, 1, kind, 3 if whole else 1) for peer in (Tmux, Dtach)]
    found.append(Cell(Holdfast, MANY, kind, 3))
    if whole:
        found += [Cell(peer, MANY, kind, 3) for peer in (Tmux, Dtach)]
    if whole and CLI.exists():
        found.append(Cell(HoldfastCli, 1, kind, 3))
    return found


def _label(viewers: int) -> str:
    return "1_viewer" if viewers == 1 else f"{viewers}_viewers"


def measure(size: int, table: Table) -> Figures:
    figures: Figures = {}
    table.title(f"throughput: {size // 1_000_000} MB, MB/s (share of raw)")
    for kind in payloads.KINDS:
        table.doing(f"making {kind}")
        payload = payloads.payload(kind, size)
        length = len(payload.read_bytes())  # and it is in the page cache now
        runs = _rounds(cells(kind), payload, table)
        figures |= figures_of(kind, length, runs)
        _show(kind, length, runs, table)
    return figures


def _rounds(wanted: list[Cell], payload: Path, table: Table) -> dict[Cell, list[Run]]:
    """Every round measures all, each begins with another: noise and warmth hit all alike."""
    runs: dict[Cell, list[Run]] = {cell: [] for cell in wanted}
    for number in range(max(cell.rounds for cell in wanted)):
        for cell in wanted[number:] + wanted[:number]:
            if number >= cell.rounds:
                continue
            table.doing(f"{cell.kind}: round {number + 1}, {cell.target.name}, {cell.viewers}")
            runs[cell].append(run(cell, payload))
    return runs


def figures_of(kind: str, length: int, runs: dict[Cell, list[Run]]) -> Figures:
    bare = next(results for cell, results in runs.items() if cell.target is Raw)
    raw, printed = [each.seconds for each in bare], bare[0].received
    figures: Figures = {f"raw_throughput_{kind}_mb_per_second": length / median(raw) / 1e6}
    for cell, results in runs.items():
        if cell.target is Raw:
            continue
        middle, worst = ratios(raw, [each.seconds for each in results])
        prefix = "" if cell.target is Holdfast else f"{cell.target.name}_"
        name = f"{prefix}throughput_ratio_{_label(cell.viewers)}_{kind}"
        figures |= {name: middle, f"{name}_worst": worst}
        if cell.target in (Holdfast, Dtach):  # the others draw anew instead of passing on
            share = min(each.received for each in results) / printed
            figures[f"{prefix}received_ratio_{_label(cell.viewers)}_{kind}"] = share
    return figures


def _show(kind: str, length: int, runs: dict[Cell, list[Run]], table: Table) -> None:
    raw = median([each.seconds for cell in runs if cell.target is Raw for each in runs[cell]])
    for viewers in (1, MANY):
        table.row(f"{kind}, {_label(viewers).replace('_', ' ')}")
        for cell in (cell for cell in runs if cell.viewers == viewers):
            middle = median([each.seconds for each in runs[cell]])
            table.cell(f"{cell.target.name} {length / middle / 1e6:.0f} ({raw / middle:.2f})")
