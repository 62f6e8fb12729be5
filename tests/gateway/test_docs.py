"""docs/gateway.md knows every metric and port; invents none."""

from __future__ import annotations

import re
from pathlib import Path

from holdfast_gateway import metrics
from holdfast_gateway.cluster_settings import Settings

PAGE = (Path(__file__).parents[2] / "docs" / "gateway.md").read_text()


def test_metrics() -> None:
    told = set(re.findall(r"`(holdfast_gateway_\w+)`", PAGE))
    there = {family.name for family in metrics.REGISTRY.collect()}
    assert told == there


def test_ports() -> None:
    made = Settings(Path())
    for port in (made.port, made.front_port, made.uplink_port, made.health_port):
        assert re.search(rf"\b{port}\b", PAGE)
