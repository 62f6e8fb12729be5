"""The pages know every metric, port, route, event and tool; they invent none."""

from __future__ import annotations

import re
from pathlib import Path

from holdfast_gateway import metrics, ssh_channel, ssh_keys
from holdfast_gateway.cluster_settings import Settings
from holdfast_gateway.http import ROUTES
from holdfast_gateway.mcp_server import MOST, MOST_OF_ONE, TOOLS
from holdfast_gateway.ssh import Limits
from holdfast_wire.errors import BY_CODE

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "gateway.md").read_text()
API = (DOCS / "api.md").read_text()
MCP = (DOCS / "mcp.md").read_text()


def test_metrics() -> None:
    told = set(re.findall(r"`(holdfast_gateway_\w+)`", PAGE))
    there = {family.name for family in metrics.REGISTRY.collect()}
    assert told == there


def test_ports() -> None:
    made = Settings(Path())
    ports = made.port, made.front_port, made.uplink_port, made.health_port, made.ssh_port
    for port in ports:
        assert re.search(rf"\b{port}\b", PAGE)


def test_routes() -> None:
    row = re.compile(r"^\| `(GET|POST)` \| (?:\*base\*)?(?:`([^?`]*)[^`]*`)? \|", re.MULTILINE)
    assert set(row.findall(API)) == {(one.method, one.at("")) for one in ROUTES}


def test_errors() -> None:
    rows = re.findall(r"^\| ([45]\d\d) \| (.*) \|$", API, re.MULTILINE)
    told = {code: int(status) for status, row in rows[::-1] for code in _words(row)}
    of_requests = {code: one.http_status for code, one in BY_CODE.items() if code in told}
    assert told == of_requests


def test_tools_and_their_bounds() -> None:
    row = re.compile(r"^\| `(\w+)` \| .* \| (?:yes )?\|$", re.MULTILINE)
    assert row.findall(MCP) == [tool.name for tool in TOOLS]
    assert f"{MOST_OF_ONE} requests at once for one caller and {MOST} in all" in MCP


def _words(row: str) -> list[str]:
    return re.findall(r"`([a-z_]+)`", row)


def test_ssh_page() -> None:
    page = (DOCS / "ssh.md").read_text()
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
