"""docs/gateway.md knows every metric and port; invents none."""

from __future__ import annotations

import re
from pathlib import Path

from holdfast_gateway import metrics, ssh_channel, ssh_keys
from holdfast_gateway.cluster_settings import Settings
from holdfast_gateway.ssh import Limits

PAGE = (Path(__file__).parents[2] / "docs" / "gateway.md").read_text()


def test_metrics() -> None:
    told = set(re.findall(r"`(holdfast_gateway_\w+)`", PAGE))
    there = {family.name for family in metrics.REGISTRY.collect()}
    assert told == there


def test_ports() -> None:
    made = Settings(Path())
    ports = made.port, made.front_port, made.uplink_port, made.health_port, made.ssh_port
    for port in ports:
        assert re.search(rf"\b{port}\b", PAGE)


def test_ssh_page() -> None:
    page = (Path(__file__).parents[2] / "docs" / "ssh.md").read_text()
    assert set(re.findall(r"^\| `([a-z-]+)` \|", page, re.MULTILINE)) == ssh_keys.OPTIONS
    (asked,) = re.findall(r"prints JSON: ([^.]*)\.", page)
    assert tuple(re.findall(r"`([a-z]+)`", asked)) == ssh_channel.OBSERVED
    limits = Limits()
    for told in (
        f"{limits.connections}, of which {limits.waiting} not yet authenticated",
        f"| channels on one | {limits.channels} |",
        f"| looks at keys | {limits.looks};",
        f"| {limits.login_seconds:g} s |",
        f"| {limits.failures} connections without a good key in {limits.failure_seconds:g} s",
        f"| {limits.keepalive_seconds:g} s, three times |",
    ):
        assert told in page
