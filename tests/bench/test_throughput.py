"""Which runs are made, and the names under which others find what came of them."""

from __future__ import annotations

import pytest
from bench import payloads
from bench.measure_throughput import Cell, Run, cells, figures_of
from bench.targets import Dtach, Holdfast, Raw, Tmux


def test_figures_have_the_names_that_others_read() -> None:
    runs = {
        Cell(Raw, 1, "plain", 2): [Run(1.0, 0, 100), Run(1.0, 0, 100)],
        Cell(Holdfast, 1, "plain", 2): [Run(1.25, 0, 110), Run(1.25, 0, 110)],
        Cell(Holdfast, 8, "plain", 1): [Run(2.0, 3, 50)],
        Cell(Tmux, 8, "plain", 1): [Run(4.0, 0, 20)],
        Cell(Dtach, 8, "plain", 1): [Run(4.0, 0, 20)],
    }
    assert figures_of("plain", 50_000_000, runs) == {
        "raw_throughput_plain_mb_per_second": 50,
        "throughput_ratio_1_viewer_plain": 0.8,
        "throughput_ratio_1_viewer_plain_worst": 0.8,
        "received_ratio_1_viewer_plain": 1.1,
        "throughput_ratio_8_viewers_plain": 0.5,
        "throughput_ratio_8_viewers_plain_worst": 0.5,
        "received_ratio_8_viewers_plain": 0.5,
        "tmux_throughput_ratio_8_viewers_plain": 0.25,
        "tmux_throughput_ratio_8_viewers_plain_worst": 0.25,
        "dtach_throughput_ratio_8_viewers_plain": 0.25,
        "dtach_throughput_ratio_8_viewers_plain_worst": 0.25,
        "dtach_received_ratio_8_viewers_plain": 0.2,
    }


@pytest.mark.parametrize("kind", payloads.KINDS)
def test_every_payload_is_measured_bare_and_with_one_and_many_viewers(kind: str) -> None:
    wanted = {(cell.target, cell.viewers) for cell in cells(kind)}
    assert {(Raw, 1), (Holdfast, 1), (Holdfast, 8), (Tmux, 1), (Dtach, 1)} <= wanted
