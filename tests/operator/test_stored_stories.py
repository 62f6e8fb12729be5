"""Stories of sessions that are stored and brought back, each with the operator killed after every
write, every answer lost and every write not sent: it ends the same, and never do two run."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast_kube.client import CHECKPOINTS, LEASES, SESSIONS
from holdfast_operator import names
from operator_kit import KEY, Json, Mishap, World, session_object

from .test_interrupted import Story, comes_to_rest, ends_the_same, until

EVERY = {"everySeconds": 60, "keep": 2, "store": "Peer"}


def orders(world: World, kind: str = "") -> list[str]:
    found = [item["metadata"]["name"] for item in world.api.all(CHECKPOINTS)]
    return [name for name in found if kind in name]


def change(world: World, **spec: Any) -> None:
    world.session["spec"].update(spec)
    world.api.touch(world.session)


async def starts(world: World, **spec: Any) -> None:
    world.api.put(session_object(**spec))
    await world.run(20)
    assert world.status["phase"] == "Running"


async def runs(world: World, **spec: Any) -> None:
    """Not interrupted while it starts: that is a story of its own, and another of the same spec
    is interrupted from the first write on."""
    await starts(world, **spec)
    world.api.begun = len(world.api.writes)


def back(world: World) -> bool:
    """Another incarnation runs."""
    return bool(world.status["epoch"] > 1 and world.status["phase"] == "Running")


async def is_kept(world: World) -> None:
    """Two stay, and the third makes the first go."""
    await starts(world, checkpoints=EVERY)
    await until(world, lambda: len(orders(world)) == 1)
    await until(world, lambda: "build-1-k2" in orders(world), 120)
    await until(world, lambda: "build-1-k3" in orders(world), 120)
    await world.run(5)
    assert orders(world) == ["build-1-k2", "build-1-k3"]
    assert world.status["lastCheckpoint"]["name"] == "build-1-k3"
    assert world.condition("Checkpointed")["status"] == "True"
    change(world, checkpoints={**EVERY, "everySeconds": 0})
    await world.run(5)


async def recovers(world: World) -> None:
    await runs(world, checkpoints=EVERY)
    await until(world, lambda: world.status.get("lastCheckpoint"), 120)
    change(world, checkpoints={**EVERY, "everySeconds": 0})
    await world.run(10)
    world.current.dead = True
    await world.run(90)
    assert (world.status["phase"], world.status["epoch"]) == ("Running", 2)
    restored = world.condition("Restored")
    assert (restored["status"], restored["reason"]) == ("True", "HostLost")
    assert "build-1-k1" in restored["message"]
    assert world.condition("Fresh")["status"] == "False"
    assert "Restored" in world.api.said()
    assert "StartedFresh" not in world.api.said()


async def recovers_from_an_older_one(world: World) -> None:
    await runs(world, checkpoints=EVERY)
    await until(world, lambda: "build-1-k2" in orders(world), 240)
    await world.run(3)
    change(world, checkpoints={**EVERY, "everySeconds": 0})
    world.spoiled = {"build-1-k2"}
    world.current.dead = True
    await until(world, lambda: back(world), 400)
    await world.run(10)
    assert world.status["phase"] == "Running"
    assert "build-1-k1" in world.condition("Restored")["message"]
    assert "Incarnation 1 of this session was lost" in world.condition("Restored")["message"]
    assert "NotRestored" in world.api.said()


async def nothing_can_be_restored(world: World) -> None:
    await runs(world, checkpoints=EVERY)
    await until(world, lambda: world.status.get("lastCheckpoint"), 120)
    change(world, checkpoints={**EVERY, "everySeconds": 0})
    world.spoiled = {"build-1-k1"}
    world.current.dead = True
    await until(world, lambda: back(world), 400)
    await world.run(10)
    assert world.status["phase"] == "Running"
    fresh = world.condition("Fresh")
    assert (fresh["status"], fresh["reason"]) == ("True", "HostLost")
    assert "None of its checkpoints could be restored" in fresh["message"]
    assert "StartedFresh" in world.api.said()


async def sleeps(world: World) -> None:
    await runs(world)
    change(world, suspended=True)
    await until(world, lambda: world.status["phase"] == "Suspended")
    await world.run(30)
    assert world.status["suspended"]["checkpoint"] == "build-1-k1"
    assert world.status["suspended"]["why"] == "Suspend"
    assert world.api.pods() == []
    ready = world.condition("Ready")
    assert (ready["status"], ready["reason"]) == ("False", "Suspended")
    assert "nodeName" not in world.status


async def is_asleep(world: World) -> None:
    await sleeps(world)
    world.api.begun = len(world.api.writes)


async def sleeps_and_wakes(world: World) -> None:
    await is_asleep(world)
    change(world, suspended=False)
    await world.run(30)
    assert (world.status["phase"], world.status["epoch"]) == ("Running", 2)
    assert "suspended" not in world.status
    assert world.condition("Restored")["reason"] == "Woken"
    assert {"Suspended", "Woken"} <= set(world.api.said())
    assert not {"StartedFresh", "Lost", "Restored"} & set(world.api.said())


async def a_wake_fails_twice(world: World) -> None:
    await is_asleep(world)
    world.spoiled = {"build-1-k1"}
    change(world, suspended=False)
    await until(world, lambda: len(orders(world, "from")) == 3, 120)
    world.spoiled = set()
    await until(world, lambda: back(world), 200)
    await world.run(10)
    assert world.condition("Restored")["reason"] == "Woken"
    assert "NotRestored" in world.api.said()


async def its_lease_is_deleted_in_its_sleep(world: World) -> None:
    await is_asleep(world)
    world.api.vanish(LEASES, KEY.name)
    await world.run(60)
    assert world.status["phase"] == "Suspended"
    assert world.api.pods() == []
    change(world, suspended=False)
    await world.run(60)
    assert world.status["phase"] == "Running"
    assert world.condition("Restored")["reason"] == "Woken"


async def its_host_dies_in_a_wake(world: World) -> None:
    await is_asleep(world)
    world.agents = False
    change(world, suspended=False)
    await until(world, lambda: orders(world, "from"))
    (waiting,) = [one for one in world.incarnations.values() if not one.over]
    waiting.dead = waiting.over = True
    world.api.vanish_pod(waiting.pod)
    world.agents = True
    await world.run(120)
    assert world.status["phase"] == "Running"
    assert world.condition("Restored")["reason"] == "Woken"


async def is_ended_in_its_sleep(world: World) -> None:
    await is_asleep(world)
    change(world, ended=True)
    await world.run(30)
    assert world.status["phase"] == "Ended"
    assert world.condition("Ready")["message"] == "it was ended while it was suspended"
    assert world.api.pods() == []


async def is_deleted_in_its_sleep(world: World) -> None:
    await is_asleep(world)
    world.api.remove(("sessions", KEY.namespace, KEY.name))
    await world.run(30)
    assert world.api.one(SESSIONS) is None
    assert orders(world) == []


async def cannot_sleep(world: World) -> None:
    await runs(world)
    world.unable = "a device is open"
    change(world, suspended=True)
    await until(world, lambda: len(orders(world)) == 2, 120)
    assert world.status["phase"] == "Running"
    kept = world.condition("Checkpointed")
    assert (kept["status"], kept["reason"]) == ("False", "CheckpointFailed")
    assert "a device is open" in kept["message"]
    assert "NotStored" in world.api.said()
    world.unable = ""
    await world.run(120)
    assert world.status["phase"] == "Suspended"


async def is_idle(world: World) -> None:
    await runs(world, idle={"afterSeconds": 60, "then": "Hibernate"})
    active = world.wall().strftime("%Y-%m-%dT%H:%M:%SZ")
    notes = {names.CLIENTS: "0", names.ACTIVE: active}
    world.current.write(notes, holder=world.current.holder.identity)
    await until(world, lambda: world.status["phase"] == "Suspended", 150)
    assert world.status["suspended"]["why"] == "Idle"
    await world.run(60)
    world.session["metadata"]["annotations"] = {names.WAKE: "1"}
    world.api.touch(world.session)
    await until(world, lambda: world.status["phase"] == "Running")
    world.current.write({names.CLIENTS: "1"}, holder=world.current.holder.identity)
    await world.run(120)
    assert (world.status["phase"], world.status["epoch"]) == ("Running", 2)


async def is_idle_and_ends(world: World) -> None:
    await starts(world, idle={"afterSeconds": 60, "then": "End"})
    active = world.wall().strftime("%Y-%m-%dT%H:%M:%SZ")
    notes = {names.CLIENTS: "0", names.ACTIVE: active}
    world.current.write(notes, holder=world.current.holder.identity)
    await until(world, lambda: world.status["phase"] == "Ended", 150)
    await world.run(10)
    assert world.session["spec"]["ended"] is True
    assert "Idle" in world.api.said()


async def its_host_dies_while_it_is_stored(world: World) -> None:
    """Twice: what nobody came to the end of is nothing to go on from."""
    await runs(world, checkpoints=EVERY)
    await until(world, lambda: world.status.get("lastCheckpoint"), 120)
    world.agents = False
    await until(world, lambda: "build-1-k2" in orders(world), 120)
    change(world, checkpoints={**EVERY, "everySeconds": 0})
    world.current.dead = True
    await world.run(3)
    world.agents = True
    await until(world, lambda: back(world), 120)
    await world.run(10)
    assert "build-1-k1" in world.condition("Restored")["message"]


async def the_target_of_a_move_dies(world: World) -> None:
    """After it has arrived: it goes on from what was stored before the move."""
    await runs(world, checkpoints=EVERY)
    await until(world, lambda: world.status.get("lastCheckpoint"), 120)
    change(world, checkpoints={**EVERY, "everySeconds": 0})
    first = world.current
    world.cordon(True)
    await until(world, lambda: len(orders(world)) == 2)
    moves = [item for item in world.api.all(CHECKPOINTS) if "targetNode" in item["spec"]]
    first.offer(moves[0])
    await until(world, lambda: world.status["epoch"] == 2)
    world.cordon(False)
    await world.run(5)
    world.current.dead = True
    await until(world, lambda: world.status["epoch"] == 3, 90)
    await world.run(30)
    assert world.status["phase"] == "Running"
    told = world.condition("Restored")
    assert told["reason"] == "HostLost"
    assert "Incarnation 2 of this session was lost" in told["message"]
    assert "build-1-k1" in told["message"]


async def is_drained_while_it_is_stored(world: World) -> None:
    """One order at a time: the move waits."""
    await runs(world, checkpoints=EVERY)
    world.agents = False
    await until(world, lambda: orders(world), 120)
    change(world, checkpoints={**EVERY, "everySeconds": 0})
    world.cordon(True)
    await until(world, lambda: len(world.api.pods()) == 2)
    await world.run(20)
    assert orders(world) == ["build-1-k1"]
    world.agents = True
    await until(world, lambda: len(orders(world)) == 2)
    (move,) = [item for item in world.api.all(CHECKPOINTS) if "targetNode" in item["spec"]]
    next(iter(world.incarnations.values())).offer(move)
    await world.run(30)
    assert (world.status["phase"], world.status["epoch"]) == ("Running", 2)


async def hibernates_when_drained(world: World) -> None:
    await starts(world, move={"onDrain": "Hibernate"})
    world.cordon(True)
    await until(world, lambda: world.status.get("epoch") == 2, 60)
    await world.run(30)
    assert (world.status["phase"], world.status["nodeName"]) == ("Running", "node-2")


def checkpoint(world: World, name: str = "base-4-k7") -> Json:
    spec = {
        "sessionName": "base", "sessionUID": "uid-base", "epoch": 4, "trigger": "Manual",
        "sourceNode": "node-1", "sourcePodUID": "uid-pod", "store": "S3", "image": "a@sha256:00",
    }  # fmt: skip
    made = world.api.put({"kind": "Checkpoint", "metadata": {"name": name}, "spec": spec})
    world.finish(made)
    return made


async def is_forked_from_a_checkpoint(world: World) -> None:
    checkpoint(world)
    world.api.put(session_object(forkFrom={"checkpoint": "base-4-k7"}))
    await world.run(30)
    assert (world.status["phase"], world.status["epoch"]) == ("Running", 1)
    assert world.status["forkedFrom"]["session"] == "base"
    assert world.condition("Restored")["reason"] == "Forked"
    assert "Forked" in world.api.said()
    (bring,) = [item for item in world.api.all(CHECKPOINTS) if "from" in item["spec"]]
    assert bring["spec"]["epoch"] == 4
    assert bring["spec"]["sessionName"] == "build"
    assert bring["spec"]["from"]["sessionUID"] == "uid-base"


async def a_fork_waits_for_its_checkpoint(world: World) -> None:
    world.api.put(session_object(forkFrom={"checkpoint": "base-4-k7"}))
    await world.run(30)
    assert world.status["phase"] == "Pending"
    assert world.condition("Accepted")["reason"] == "NotForkable"
    assert world.api.one(LEASES) is None
    checkpoint(world)
    await world.run(30)
    assert world.status["phase"] == "Running"


async def is_forked_from_a_session(world: World) -> None:
    base(world)
    world.api.put(session_object(forkFrom={"session": "base"}))
    await until(world, lambda: orders(world, "base-4-k1"))
    await world.run(10)
    (order,) = world.api.all(CHECKPOINTS)
    assert order["spec"]["trigger"] == "Fork"
    assert order["metadata"]["ownerReferences"][0]["name"] == "base"
    world.finish(order)
    await world.run(30)
    assert world.status["phase"] == "Running"
    assert world.status["forkedFrom"]["checkpoint"] == "base-4-k1"
    assert orders(world, "base") == ["base-4-k1"]


def base(world: World) -> None:
    """Another session, which runs."""
    item = session_object()
    item["metadata"] = {"name": "base", "namespace": KEY.namespace}
    session = world.api.put(item)
    session["status"] = {"phase": "Running", "epoch": 4}
    owner = [{"kind": "Session", "name": "base", "uid": session["metadata"]["uid"]}]
    notes = {names.EPOCH: "4", names.STARTED: "4"}
    meta = {"name": "base", "annotations": notes, "ownerReferences": owner}
    lease = world.api.put({"kind": "Lease", "metadata": meta, "spec": {"holderIdentity": "p/0"}})
    labels = {names.SESSION_LABEL: "base", names.EPOCH: "4"}
    meta = {"name": "base-4", "labels": labels, "ownerReferences": owner}
    pod = world.api.put({"kind": "Pod", "metadata": meta, "spec": {"nodeName": "node-1"}})
    pod["status"] = {"containerStatuses": [{"name": "session", "imageID": "app@1"}]}
    world.renewed.append(lease)


STORIES: list[Story] = [
    is_kept,
    recovers,
    recovers_from_an_older_one,
    nothing_can_be_restored,
    sleeps,
    sleeps_and_wakes,
    a_wake_fails_twice,
    its_lease_is_deleted_in_its_sleep,
    its_host_dies_in_a_wake,
    is_ended_in_its_sleep,
    is_deleted_in_its_sleep,
    cannot_sleep,
    is_idle,
    is_idle_and_ends,
    its_host_dies_while_it_is_stored,
    the_target_of_a_move_dies,
    is_drained_while_it_is_stored,
    hibernates_when_drained,
    is_forked_from_a_checkpoint,
    a_fork_waits_for_its_checkpoint,
    is_forked_from_a_session,
]


@pytest.mark.parametrize("story", STORIES)
async def test_it_goes_as_told(story: Story) -> None:
    world = World()
    await story(world)
    assert not world.overlap


# The operator is killed at every write. Not sent and not heard of take turns: both end in a look.
WHERE = {Mishap.KILLED: (1, 1), Mishap.REPLY_LOST: (1, 2), Mishap.NOT_SENT: (2, 2)}


@pytest.mark.parametrize("mishap", list(Mishap))
@pytest.mark.parametrize("story", STORIES)
async def test_ends_the_same(story: Story, mishap: Mishap) -> None:
    first, step = WHERE[mishap]
    await ends_the_same(story, mishap, first, step)


@pytest.mark.parametrize("story", STORIES)
async def test_it_comes_to_rest(story: Story) -> None:
    await comes_to_rest(story)
