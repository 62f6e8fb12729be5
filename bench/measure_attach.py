"""How long from wanting to look at a session until its screen is there."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from bench.ends import Closed, FrameEnd, PtyEnd
from bench.figures import median, percentile
from bench.filled import Filled
from bench.processes import Failed, Pen, Seat
from bench.report import Figures, Table
from bench.targets import CLI, Programs, cli_clients

SAMPLES: Final = 100
CLI_SAMPLES: Final = 20
_IDLE_SECONDS: Final = 1.0
_PAUSE_SECONDS: Final = 0.03
_PATIENCE_SECONDS: Final = 10.0


def measure(table: Table) -> Figures:
    table.title(f"attach: milliseconds to a session with 10,000 lines, {SAMPLES} times")
    figures: Figures = {}
    with Pen() as pen:
        table.doing("printing the lines")
        filled = Filled(pen)
        time.sleep(_IDLE_SECONDS)
        direct: list[float] = []
        tmux: list[float] = []
        for _ in range(SAMPLES):
            direct.append(_timed(lambda: _socket(filled)))
            tmux.append(_timed(lambda: _program(filled, filled.tmux.clients)))
        figures |= _figures("", direct, table) | _figures("tmux_", tmux, table)
        if CLI.exists():
            figures |= _cli(filled, table)
        else:
            table.note("holdfast's command line is not installed: cli_attach_ms is left out")
    return figures


def _timed(attach: Callable[[], Callable[[], None]]) -> float:
    time.sleep(_PAUSE_SECONDS)
    began = time.perf_counter_ns()
    leave = attach()
    took = (time.perf_counter_ns() - began) / 1e6
    leave()
    return took


def _socket(filled: Filled) -> Callable[[], None]:
    end = FrameEnd(filled.holdfast.socket)
    if not end.whole_screen(filled.last):
        raise Failed("a snapshot came without the last line")
    return end.close


def _program(filled: Filled, clients: Programs) -> Callable[[], None]:
    seat = Seat(clients.command, clients.env)
    end, deadline = PtyEnd(seat.master), time.monotonic() + _PATIENCE_SECONDS
    shown = b""
    try:
        while filled.last not in shown:
            if time.monotonic() > deadline:
                raise Failed(f"{clients.command[0]} did not show the session: {shown[-200:]!r}")
            if end.wait(0.5):
                shown = shown[-len(filled.last) :] + end.receive()
    except BaseException:
        seat.leave()
        raise
    return seat.leave


def _figures(prefix: str, values: list[float], table: Table) -> Figures:
    table.row((prefix or "holdfast_").rstrip("_"))
    table.cell(f"median {median(values):.2f}")
    table.cell(f"p99 {percentile(values, 99):.2f}")
    return {
        f"{prefix}attach_ms": median(values),
        f"{prefix}attach_p99_ms": percentile(values, 99),
    }


def _cli(filled: Filled, table: Table) -> Figures:
    """`holdfast attach`, which starts Python before anything else."""
    clients = cli_clients(filled.pen, filled.holdfast)
    try:
        times = [_timed(lambda: _program(filled, clients)) for _ in range(CLI_SAMPLES)]
    except (Failed, Closed) as error:
        table.note(f"`holdfast attach` failed, cli_attach_ms is left out: {error}")
        return {}
    return _figures("cli_", times, table)
