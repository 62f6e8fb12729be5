"""A sidecar refuses an order for another session or epoch (attack 30)."""

from __future__ import annotations

import pytest

from holdfast_sidecar.agent import AgentError, check_meant

OWN = {"session": "u", "namespace": "team", "epoch": 3}


def test_its_own_orders_pass() -> None:
    check_meant({"do": "seal", **OWN}, "u", "team", 3)
    check_meant({"do": "commit", **OWN}, "u", "team", 3)


@pytest.mark.parametrize(
    "other",
    [{"session": "v"}, {"namespace": "x"}, {"epoch": 2}, {"epoch": "3"}, {"epoch": None},
     {"epoch": True}, {"session": None}],
)  # fmt: skip
def test_other_orders_are_foreign(other: dict[str, object]) -> None:
    """Attack 30"""
    with pytest.raises(AgentError) as refused:
        check_meant({"do": "seal", **OWN, **other}, "u", "team", 3)
    assert refused.value.code == "foreign"
