from __future__ import annotations

import itertools
import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from holdfast_kube.client import ACCOUNTS, BUDGETS, LEASES, PODS, SESSIONS, Invalid
from holdfast_operator import events, names, objects
from holdfast_operator.conditions import Condition, Reason, Type, merged
from holdfast_operator.events import Recent, Said, Saying
from holdfast_operator.memory import Memory
from holdfast_operator.model import LeaseSeen, PodSeen, Session
from holdfast_operator.notes import Exit
from holdfast_operator.status import difference, due
from holdfast_operator.text import plain
from holdfast_wire.errors import Forbidden
from operator_kit import KEY, World, session_object


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]52;c;aGk=\x07copied", "copied"),
        ("\x1b]0;title\x1b\\after", "after"),
        ("\x9b31mred", "red"),
        ("a\x00b\x7fc\x08", "abc"),
        ("rtl\u202etxt\u2066", "rtltxt"),
        ("two\nlines\t x", "two lines x"),
        ("\x1b", ""),
        ("x" * 20, "xxxxxxxxx…"),
    ],
)
def test_nothing_acts_in_a_terminal(given: str, shown: str) -> None:
    assert plain(given, 10) == shown if len(shown) <= 10 else plain(given) == shown


def test_an_exit_is_bounded_and_plain() -> None:
    lines = ["\x1b[1m" + "x" * 300 for _ in range(40)]
    left = Exit.of(json.dumps({"code": 1, "signal": None, "cause": "exited", "lines": lines}))
    assert 0 < len(left.lines) <= 20
    assert sum(len(line) + 1 for line in left.lines) <= 4096
    assert left.lines[0] == "x" * 300
    assert Exit.of("{not json").cause == "exited"
    assert Exit.of('["list"]').code is None
    assert Exit.of('{"code": "7", "lines": 3}') == Exit(None, None, "exited", "", ())


def pod(status: dict[str, Any]) -> PodSeen:
    return PodSeen.of({"metadata": {"name": "p", "uid": "u"}, "status": status}, "s")


def waiting(reason: str) -> dict[str, Any]:
    state = {"waiting": {"reason": reason, "message": "no\x1b[1m such"}}
    return {"phase": "Pending", "containerStatuses": [{"name": "session", "state": state}]}


def test_what_keeps_a_pod_from_running() -> None:
    assert pod({"phase": "Pending"}).trouble is None
    assert pod(waiting("ContainerCreating")).trouble is None
    found = pod(waiting("ErrImagePull")).trouble
    assert found == ("ImagePull", "container session: ErrImagePull: no such")
    assert (pod(waiting("CreateContainerConfigError")).trouble or ("",))[0] == "ContainerStuck"
    unscheduled = {"type": "PodScheduled", "status": "False", "message": "0/3 nodes"}
    assert pod({"conditions": [unscheduled]}).trouble == ("Unschedulable", "0/3 nodes")
    failed = pod({"phase": "Failed", "reason": "Evicted", "message": "disk"})
    assert failed.trouble == ("PodFailed", "Evicted disk")
    assert failed.finished


def test_odd_annotations_are_no_numbers() -> None:
    item = {
        "metadata": {"resourceVersion": "1", "annotations": {names.EPOCH: "²", names.STARTED: "x"}}
    }
    seen = LeaseSeen.of(item, "u")
    assert seen.epoch == 0
    assert not seen.started
    assert not seen.record.released


def test_a_transition_time_moves_with_the_status_alone() -> None:
    first, later = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)
    one = Condition(Type.READY, "False", Reason.STARTING, "a")
    before = merged([one], [], 1, first)
    same = merged([replace(one, reason=Reason.LOST, message="b")], before, 1, later)
    assert same[0]["lastTransitionTime"] == "2026-01-01T00:00:00Z"
    turned = merged([replace(one, status="True")], same, 2, later)
    assert turned[0]["lastTransitionTime"] == "2026-01-02T00:00:00Z"
    assert turned[0]["observedGeneration"] == 2


def test_the_patch_removes_what_is_no_more() -> None:
    before = {"phase": "Running", "turn": "ann", "exit": {"code": 1}}
    after = {"phase": "Running", "exit": {"signal": 9}}
    assert difference(before, after) == {"turn": None, "exit": {"code": None, "signal": 9}}
    assert difference(after, after) == {}


def test_when_a_patch_is_worth_it() -> None:
    assert due({}, None, 5) is None
    assert due({"phase": "Lost"}, 4, 5) == 5
    assert due({"clients": 2}, None, 5) == 5
    assert due({"clients": 2, "turn": "x"}, 4, 5) == 34
    assert due({"clients": 2, "phase": "Lost"}, 4, 5) == 5
    assert due({"move": {"sentBytes": 1}, "clients": 2}, 4, 5) == 6, "how far a move has come"
    assert due({"move": None, "phase": "Running"}, 4, 5) == 5


async def running() -> World:
    world = World()
    world.api.put(session_object())
    await world.run(20)
    assert world.status["phase"] == "Running"
    return world


def note(world: World, **notes: str) -> None:
    found = {names.PREFIX + key: value for key, value in notes.items()}
    world.current.write(found, holder=world.current.holder.identity)


async def test_ready_by_the_lease_and_not_by_the_pod() -> None:
    world = await running()
    ready = world.condition("Ready")
    assert (ready["status"], ready["reason"]) == ("True", "Running")
    assert world.condition("Movable")["reason"] == "AgentReady"
    assert world.condition("Fenced") | {"lastTransitionTime": ""} == {
        "type": "Fenced",
        "status": "False",
        "reason": "Held",
        "message": "the holder renews the Lease",
        "observedGeneration": 1,
        "lastTransitionTime": "",
    }
    assert world.api.said() == ["Started"]


async def test_work_is_written_every_half_minute_at_most() -> None:
    world = await running()
    await world.run(60)
    before = len(world.api.writes)
    for second in range(60):
        at = world.wall().strftime("%Y-%m-%dT%H:%M:%SZ")
        note(world, activity="running", clients=str(second), turn="ann\x1b[2J", active=at)
        await world.run(1)
    assert 1 <= len(world.api.writes) - before <= 3
    await world.run(40)
    assert world.status["turn"] == "ann"
    assert world.status["clients"] == 59


async def test_a_freeze_that_left_something_running_is_said() -> None:
    """attack 33: what a freeze could not stop is said where people look."""
    world = await running()
    note(world, incomplete="12, 34\x1b[2J")
    await world.run(2)
    ready = world.condition("Ready")
    assert (ready["status"], ready["reason"]) == ("False", "FreezeIncomplete")
    assert "could not be stopped: 12, 34" in ready["message"]
    assert "\x1b" not in ready["message"]
    note(world, incomplete="")
    await world.run(2)
    assert world.condition("Ready")["reason"] == "Running"


async def test_what_blocks_a_move_is_written_at_once_and_taken_back() -> None:
    world = await running()
    stuck = {"pid": 41, "command": "qemu", "what": "has /dev/kvm open", "advice": "quit it"}
    note(world, blockers=json.dumps([stuck]))
    await world.run(2)
    movable = world.condition("Movable")
    assert (movable["status"], movable["reason"]) == ("False", "Blocked")
    assert "process 41 (qemu) has /dev/kvm open; quit it" in movable["message"]
    await world.run(60)
    assert world.api.said() == ["Started", "NotMovable"]
    note(world, blockers="[]")
    await world.run(2)
    assert world.condition("Movable")["status"] == "True"
    assert world.api.said() == ["Started", "NotMovable", "Movable"]


async def test_a_freeze_is_written_at_once() -> None:
    world = await running()
    note(world, activity="frozen")
    await world.run(1)
    assert world.status["phase"] == "Frozen"
    note(world, activity="prompt")
    await world.run(1)
    assert world.status["phase"] == "Running"
    assert world.api.said() == ["Started", "Frozen", "Thawed"]


async def test_an_image_that_cannot_be_pulled_is_not_a_lost_host() -> None:
    world = World(start_pods=False)
    world.api.put(session_object())
    await world.run(5)
    made = world.api.one(PODS, "build-1")
    assert made is not None
    made["status"] = waiting("ImagePullBackOff")
    await world.run(120)
    assert world.status["phase"] == "Starting"
    assert world.condition("Ready")["reason"] == "ImagePull"
    assert world.status["epoch"] == 1
    assert world.api.said() == ["NotStarting"]


async def test_a_refused_pod_is_said() -> None:
    world = World()
    world.api.refuse["pods"] = Forbidden("exceeded quota: 0 pods")
    world.api.put(session_object())
    await world.run(30)
    ready = world.condition("Ready")
    assert (ready["reason"], ready["message"]) == ("PodRefused", "exceeded quota: 0 pods")
    assert world.condition("Accepted")["status"] == "True"  # there may be room tomorrow
    assert world.api.said() == ["NotStarting"]
    world.api.refuse.clear()
    await world.run(30)
    assert world.status["phase"] == "Running"


async def test_a_pod_that_is_not_valid_is_the_specs_fault() -> None:
    world = World()
    world.api.refuse["pods"] = Invalid('Pod "build-1" is invalid: volumeMounts[0].name: Not found')
    world.api.put(session_object())
    await world.run(600)
    for kind in ("Accepted", "Ready"):
        told = world.condition(kind)
        assert (told["status"], told["reason"]) == ("False", "PodRefused")
        assert "volumeMounts[0].name: Not found" in told["message"]
    assert world.api.said() == ["Refused"]
    assert 4 <= world.api.writes.count("create pods") <= 10  # ever more slowly
    # As after a change of the cluster, not of the spec: that is for good.
    world.api.refuse.clear()
    await world.run(310)
    assert world.status["phase"] == "Running"
    assert world.condition("Accepted")["status"] == "True"


async def test_pods_that_fail_at_once_are_tried_ever_more_slowly() -> None:
    world = World()
    world.api.put(session_object())
    await world.run(5)
    begun = []
    for _ in range(900):
        pods = [pod for pod in world.api.pods() if pod["status"]["phase"] == "Running"]
        for pod in pods:
            begun.append(world.now)
            pod["status"]["phase"] = "Failed"
            world.incarnations[pod["metadata"]["uid"]].dead = True
        await world.run(1)
    gaps = [later - earlier for earlier, later in itertools.pairwise(begun)]
    assert 5 <= len(begun) <= 12
    assert gaps == sorted(gaps)
    assert not world.overlap


async def test_a_rollback_is_quarantined_until_somebody_accepts() -> None:
    world = await running()
    world.current.dead = True
    await world.run(60)
    assert world.status["epoch"] == 2
    lease = world.api.one(LEASES)
    assert lease is not None
    lease["metadata"]["annotations"] = {names.EPOCH: "1"}
    lease["spec"]["holderIdentity"] = "old/1"
    world.api.touch(lease)
    await world.run(5)
    before = list(world.api.writes)
    await world.run(300)
    assert world.api.writes == before
    told = world.condition("Quarantined")
    assert told["status"] == "True"
    assert f"kubectl annotate -n team session build {names.ACCEPT_EPOCH}=2" in told["message"]
    world.session["metadata"]["annotations"] = {names.ACCEPT_EPOCH: "2"}
    world.api.touch(world.session)
    await world.run(60)
    assert world.status["epoch"] == 3
    assert world.condition("Quarantined")["status"] == "False"
    assert not world.overlap


async def test_a_deleted_session_that_was_never_accepted_goes() -> None:
    world = World()
    world.api.put(session_object(command=[]))
    await world.run(5)
    assert world.condition("Accepted")["reason"] == "NoCommand"
    assert world.api.said() == ["Refused"]
    assert world.api.pods() == []
    world.api.remove(("sessions", KEY.namespace, KEY.name))
    await world.run(5)
    assert not [key for key in world.api.items if key[0] != "events"]


async def test_a_new_operator_notices_at_once_that_a_quiet_lease_goes() -> None:
    world = World(start_pods=False)
    world.api.put(session_object())
    await world.run(5)
    world.restart()
    await world.run(5)
    world.api.vanish(LEASES, KEY.name)
    await world.run(1)
    assert world.status["phase"] == "Lost"
    assert world.condition("Fenced")["status"] == "Unknown"


async def test_a_session_made_again_under_the_same_name_begins_at_one() -> None:
    world = await running()
    world.current.dead = True
    await world.run(60)
    assert world.status["epoch"] == 2
    world.api.remove(("sessions", KEY.namespace, KEY.name))
    await world.run(100)
    assert world.api.one(LEASES) is None
    world.api.put(session_object())
    await world.run(30)
    # The dead host's pod still has the label: its holder might look at a Lease of this name.
    assert world.condition("Accepted")["reason"] == "NameTaken"
    world.api.vanish(PODS, "build-1")
    await world.run(60)
    assert (world.status["epoch"], world.status["phase"]) == (1, "Running")
    assert not world.overlap


async def test_what_a_former_session_left_is_cleared_away_and_nothing_else() -> None:
    world = World()
    first = Session.of(world.api.put(session_object()))
    world.api.vanish(SESSIONS, KEY.name)
    strange = objects.budget(replace(first, uid="x"), 1)
    strange["metadata"]["ownerReferences"][0]["kind"] = "Other"
    for kind, made in ((ACCOUNTS, objects.account(first)), (BUDGETS, strange)):
        await world.api.create(kind, KEY.namespace, made)
    second = world.api.put(session_object())
    world.api.collect_garbage = lambda: None  # type: ignore[method-assign]
    await world.run(30)
    account = world.api.one(ACCOUNTS, "holdfast-build")
    assert account is not None
    assert account["metadata"]["ownerReferences"][0]["uid"] == second["metadata"]["uid"]
    budget = world.api.one(BUDGETS, "holdfast-build")
    assert budget is not None
    assert budget["metadata"]["ownerReferences"][0]["kind"] == "Other"
    assert world.api.one(PODS, "build-1") is not None


@pytest.mark.parametrize("seconds", [5, 15, 25, 200])
async def test_an_api_server_that_was_away_costs_no_session(seconds: int) -> None:
    world = await running()
    world.api.down = True
    await world.run(seconds)
    world.api.down = False
    # The operator is back first: it must give the holder time to renew.
    world.current.renewed_at = world.now
    await world.run(60)
    assert world.status["epoch"] == 1
    assert world.current.runs
    assert world.status["phase"] == "Running"


def test_the_same_words_are_not_said_again_soon() -> None:
    recent, saying = Recent(), Saying(Said.LOST, "x")
    assert recent.first("u", saying, 0)
    assert not recent.first("u", saying, 599)
    assert recent.first("v", saying, 1)
    assert recent.first("u", saying, 600)


def test_stripped_keys_are_said_once() -> None:
    status = {"conditions": [{"type": "Accepted", "status": "True", "reason": "Valid"}]}
    said = events.between({}, status, ("holdfast.dev/x",))
    assert [one.reason for one in said] == [Said.RESERVED_KEYS_STRIPPED]
    assert events.between(status, status, ("holdfast.dev/x",)) == []


def test_memory_backs_off_and_forgives() -> None:
    memory = Memory("u")
    assert memory.retry_at == 0
    waits = []
    now = 1000.0
    for _ in range(9):
        memory.began(now)
        waits.append(memory.retry_at - now)
        now = max(now, memory.retry_at) + 1
    assert waits == [0, 10, 20, 40, 80, 160, 300, 300, 300]
    memory.began(now + 600)
    assert memory.retry_at == now + 600


async def test_the_lost_node_is_avoided_also_when_the_pod_is_gone() -> None:
    world = await running()
    node = world.status["nodeName"]
    world.current.cut_off = True
    world.api.vanish(PODS, "build-1")
    await world.run(5)
    assert (world.status["phase"], world.status["nodeName"]) == ("Lost", node)
    await world.run(60)
    pod = next(pod for pod in world.api.pods() if pod["metadata"]["name"] == "build-2")
    rules = pod["spec"]["affinity"]["nodeAffinity"]
    assert node in str(rules["preferredDuringSchedulingIgnoredDuringExecution"])
