"""`python -m bench`: measures, and writes build/bench/report.json. See docs/benchmarks.md."""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NoReturn

from bench import (
    measure_attach,
    measure_curve,
    measure_echo,
    measure_gateway,
    measure_memory,
    measure_moves,
    measure_stalled,
    measure_throughput,
    peers,
    report,
)
from bench.ends import Closed
from bench.processes import Failed
from bench.report import Figures, Table
from bench.targets import ROOT
from holdfast_wire.errors import HoldfastError

MEGABYTE: Final = 1_000_000
# Quiet ones first: what follows a flood is measured on a machine that still tidies up after it.
PARTS: Final[dict[str, Callable[[int, Table], Figures]]] = {
    "echo": lambda _size, table: measure_echo.measure(table),
    "attach": lambda _size, table: measure_attach.measure(table),
    "memory": lambda _size, table: measure_memory.measure(table),
    "throughput": measure_throughput.measure,
    "stalled": measure_stalled.measure,
    "gateway": lambda _size, table: measure_gateway.measure(table),
    "moves": lambda _size, table: measure_moves.measure(table),
    "curve": lambda _size, table: measure_curve.measure(table),
}
USUAL: Final = [part for part in PARTS if part != "curve"]  # which is for a picture


def _parts(text: str) -> list[str]:
    chosen = text.split(",")
    if unknown := set(chosen) - set(PARTS):
        raise argparse.ArgumentTypeError(f"no {', '.join(unknown)}; there are: {', '.join(PARTS)}")
    return [part for part in PARTS if part in chosen]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument(
        "--only", type=_parts, default=USUAL, metavar="PART,…", help=", ".join(PARTS)
    )
    parser.add_argument("--quick", action="store_true", help="print 10 MB instead of 100")
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "bench" / "report.json")
    return parser.parse_args()


def _stop(_number: int, _frame: object) -> NoReturn:
    raise KeyboardInterrupt  # leaves every `with` block, which ends what was started


def _run(arguments: argparse.Namespace, table: Table) -> None:
    subprocess.run(["make", "-s", "-C", str(ROOT / "init")], check=True)
    peers.ensure(table)
    size = (10 if arguments.quick else 100) * MEGABYTE
    busy = report.busy_percent()
    table.note(f"{report.machine()}; {busy:.0f}% busy before the run")
    if busy > report.TOO_BUSY_PERCENT:
        table.note("other work on this machine will show in the figures")
    figures: Figures = {"machine_busy_before_percent": busy, "payload_mb": size / MEGABYTE}
    began = time.monotonic()
    for part in arguments.only:
        figures |= PARTS[part](size, table)
    figures["run_seconds"] = time.monotonic() - began
    report.write(arguments.output, report.build(figures, report.machine(), report.commit(ROOT)))
    table.title(f"{arguments.output} has {len(figures)} figures, {figures['run_seconds']:.0f} s")


def main() -> int:
    arguments = _arguments()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _stop)
    table = Table()
    try:
        _run(arguments, table)
    except (Failed, Closed, HoldfastError) as error:
        print(f"\nbench: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nbench: stopped; everything it started has been ended", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
