"""The parts of the benchmark that decide something: what is printed, and what the numbers mean."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from bench import payloads, report
from bench.figures import median, percentile, ratios


@pytest.mark.parametrize("kind", payloads.KINDS)
def test_a_payload_is_the_same_every_time_and_of_its_size(kind: str) -> None:
    first = b"".join(payloads.generate(kind, 300_000))
    assert first == b"".join(payloads.generate(kind, 300_000))
    assert 200_000 < len(first) <= 300_000
    first.decode()


def test_payloads_are_what_they_are_called() -> None:
    made = {kind: b"".join(payloads.generate(kind, 300_000)) for kind in payloads.KINDS}
    assert b"\x1b" not in made["plain"]
    assert max(map(len, made["plain"].splitlines())) <= 100
    assert made["sgr"].count(b"\x1b[") > 1000
    assert len(made["unicode"].decode()) < 0.7 * len(made["unicode"])
    assert made["tui"].startswith(b"\x1b[?1049h")


def test_statistics() -> None:
    assert median([3.0, 1.0, 2.0]) == 2.0
    assert percentile([1.0, 2.0, 3.0, 4.0, 5.0], 50) == 3.0
    assert percentile([1.0, 2.0], 100) == 2.0
    assert percentile([7.0], 99) == 7.0
    # Raw took one second; we took two, and once four: half the speed, at worst a quarter.
    assert ratios([1.0, 1.0, 1.0], [2.0, 2.0, 4.0]) == (0.5, 0.25)


def test_the_report_is_flat_and_says_where_it_comes_from(tmp_path: Path) -> None:
    made = report.build({"b_ms": 1.23456, "a_ratio": 0.5}, "a machine", "abc1234")
    assert made == {"machine": "a machine", "commit": "abc1234", "a_ratio": 0.5, "b_ms": 1.235}
    path = tmp_path / "bench" / "report.json"
    report.write(path, made)
    assert json.loads(path.read_text()) == made
    assert report.machine().count(",") >= 3
