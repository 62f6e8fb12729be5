"""What a pod's sidecar is told."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast_sidecar.settings import Settings, created
from holdfast_sidecar.uplink import Gateways
from holdfast_wire.errors import BadRequest

GOOD = {
    "HOLDFAST_SESSION": "it", "HOLDFAST_NAMESPACE": "ns", "HOLDFAST_SESSION_UID": "u",
    "HOLDFAST_EPOCH": "3", "HOLDFAST_LEASE_SECONDS": "20", "HOLDFAST_COLUMNS": "80",
    "HOLDFAST_ROWS": "24", "HOLDFAST_SCROLLBACK": "10", "HOLDFAST_COMMAND": '["a"]',
    "HOLDFAST_POD_UID": "p",
}  # fmt: skip


def test_the_environment_is_checked(tmp_path: Path) -> None:
    good = {**GOOD, "HOLDFAST_STATE": str(tmp_path)}
    read = Settings.read(good)
    assert (read.session.id, read.session.command, read.gateways) == ("u.3", ("a",), None)
    for name in set(good) - {"HOLDFAST_STATE"}:
        with pytest.raises(BadRequest, match=name):
            Settings.read({k: v for k, v in good.items() if k != name})
    for wrong in [{"HOLDFAST_EPOCH": "x"}, {"HOLDFAST_COMMAND": "{"}, {"HOLDFAST_COMMAND": "3"}]:
        with pytest.raises(BadRequest):
            Settings.read(good | wrong)
    with pytest.raises(BadRequest, match="too short"):
        Settings.read(good | {"HOLDFAST_LEASE_SECONDS": "5"})


def test_where_the_gateways_are(tmp_path: Path) -> None:
    env = {**GOOD, "HOLDFAST_STATE": str(tmp_path), "HOLDFAST_GATEWAY": "gateway.ns.svc:7070"}
    with pytest.raises(BadRequest, match="HOLDFAST_GATEWAY_CA"):
        Settings.read(env)
    read = Settings.read({**env, "HOLDFAST_GATEWAY_CA": "PEM", "HOLDFAST_CREDENTIALS": "/c"})
    assert read.gateways == Gateways("gateway.ns.svc", 7070, "PEM", Path("/c/gateway-token"))
    assert read.about() == {"version": 1, "namespace": "ns", "session": "it", "epoch": 3}


def test_what_a_pod_waits_for(tmp_path: Path) -> None:
    asked = {"": (False, False), "3": (True, False), "stored": (True, True)}
    for restore, waits in asked.items():
        env = {**GOOD, "HOLDFAST_STATE": str(tmp_path), "HOLDFAST_RESTORE": restore}
        read = Settings.read(env)
        assert (read.restore, read.stored) == waits


def test_when_it_was_created_does_not_change(tmp_path: Path) -> None:
    assert created(tmp_path) > 0
    os.utime(tmp_path / "created", (1000, 1000))
    assert created(tmp_path) == 1000
