"""What the checkpoints of one namespace may take (attack 42)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from holdfast_kube.client import CHECKPOINTS
from holdfast_operator import keeps, quota, stored
from holdfast_operator.keeps import AwaitKeep, CreateKeep, DeleteCheckpoints
from holdfast_operator.orders import CheckpointSeen, Trigger
from holdfast_operator.settings import Settings
from holdfast_operator.usage import Limits, Usage
from holdfast_wire.errors import BadRequest
from operator_kit import KEY, World

from .test_decide import NOW
from .test_interrupted import until
from .test_keeps import SUSPENDED, order, running
from .test_stored_stories import EVERY, change, orders, starts

MIB = 1 << 20


def used(stored: int, held: int = 0, **limits: int) -> Usage:
    return Usage(stored, held, Limits(**limits))


ROWS: list[tuple[tuple[CheckpointSeen, ...], Usage | None, type | None]] = [
    ((), used(4, count=5), CreateKeep),
    ((), used(5, count=5), AwaitKeep),
    ((), used(900, 1 << 40), CreateKeep),
    # It has as many as it keeps, and gives one back.
    ((order(1, age=900), order(2, age=700)), used(5, count=5), CreateKeep),
    ((order(2, age=700),), used(5, count=5), AwaitKeep),
    ((order(2, age=700),), used(4, count=5), CreateKeep),
    # By size: as large as the last one.
    ((), used(1, 9 * MIB, size=10 * MIB), CreateKeep),
    ((), used(1, 10 * MIB, size=10 * MIB), AwaitKeep),
    ((order(2, age=700, size=3 * MIB),), used(1, 8 * MIB, size=10 * MIB), AwaitKeep),
    ((order(2, age=700, size=2 * MIB),), used(1, 8 * MIB, size=10 * MIB), CreateKeep),
    # Decided on a picture that does not show it.
    ((), None, AwaitKeep),
]


@pytest.mark.parametrize(("had", "usage", "step"), ROWS)
def test_a_keep_is_ordered_within_the_quota(
    had: tuple[CheckpointSeen, ...], usage: Usage | None, step: type
) -> None:
    assert isinstance(keeps.decide(running(*had, usage=usage)), step)


def test_its_own_oldest_go_first() -> None:
    had = (order(1, age=900, size=4 * MIB), order(2, age=800, size=4 * MIB), order(3, age=700))
    spec = {"checkpoints": {"everySeconds": 600, "keep": 5}}
    full = running(*had, usage=used(5, count=5), spec=spec)
    assert keeps.decide(full) == DeleteCheckpoints((("build-1-k1", "c1"),))
    assert keeps.decide(replace(full, usage=used(4, count=5))) == CreateKeep(4, Trigger.PERIODIC)
    alone = running(had[2], usage=used(5, count=5), spec=spec)
    assert keeps.decide(alone) == AwaitKeep(NOW + quota.AGAIN_SECONDS)


@pytest.mark.parametrize(("spec", "goal"), [({}, "be stored"), (SUSPENDED, "be suspended")])
def test_the_condition_says_the_numbers_and_what_to_do(spec: dict[str, Any], goal: str) -> None:
    seen = running(usage=used(5, count=5), spec=spec)
    found = stored.checkpointed(seen)
    assert (found.status, found.reason) == ("False", "QuotaExceeded")
    for words in (f"could not {goal}", "has 5 of 5 stored", "Delete Checkpoints", "perNamespace"):
        assert words in found.message
    by_size = stored.checkpointed(running(usage=used(5, 20 * MIB, size=10 * MIB)))
    assert "20 of 10 MiB" in by_size.message
    assert "bytesPerNamespace" in by_size.message


async def test_a_tenants_quota_holds_and_ends_when_there_is_room() -> None:
    """Attack 42: others of the namespace have all it may have; one goes, and there is room."""
    world = World(limits=Limits(count=3))
    await starts(world, checkpoints={**EVERY, "everySeconds": 0})
    for number in range(3):
        world.api.put(other(number))
    change(world, suspended=True)
    await world.run(100)
    assert world.status["phase"] == "Running"
    assert orders(world, "build-1") == []
    assert world.condition("Checkpointed")["reason"] == "QuotaExceeded"
    assert "NotStored" in world.api.said()
    world.api.remove((CHECKPOINTS.plural, KEY.namespace, "other-1-k0"))
    await until(world, lambda: world.status["phase"] == "Suspended", 120)


def other(number: int) -> dict[str, Any]:
    return {
        "apiVersion": "holdfast.dev/v1alpha1",
        "kind": "Checkpoint",
        "metadata": {
            "name": f"other-1-k{number}", "namespace": KEY.namespace,
            "labels": {"holdfast.dev/session": "other"},
        },
        "spec": {"store": "Peer", "sessionName": "other", "sessionUID": "o", "epoch": 1},
        "status": {"phase": "Complete", "sizeBytes": 1},
    }  # fmt: skip


def test_the_settings() -> None:
    env = {"HOLDFAST_IMAGE": "i"}
    assert Settings.from_env(env).limits == Limits()
    told = {
        "HOLDFAST_CHECKPOINTS_PER_NAMESPACE": "7",
        "HOLDFAST_CHECKPOINT_BYTES_PER_NAMESPACE": "2Gi",
    }
    assert Settings.from_env(env | told).limits == Limits(7, 2 << 30)
    for name, wrong in (*((name, "-1") for name in told), (list(told)[1], "2GB")):
        with pytest.raises(BadRequest, match=name):
            Settings.from_env(env | {name: wrong})
