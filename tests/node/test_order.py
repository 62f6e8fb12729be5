"""The three orders, and what is said of them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from holdfast_node.order import Bring, Keep, Left, Move, Phase, Saved, Then, Where, read, status
from holdfast_wire.errors import BadRequest

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
ALL = {
    "sessionName": "build", "sessionUID": "u", "epoch": 3,
    "image": "i@sha256:0", "volumes": ["/data"], "deadlineSeconds": 30,
}  # fmt: skip
MOVE = {"trigger": "Drain", "sourceNode": "n", "sourcePodUID": "p", "targetNode": "m",
        "targetPodUID": "q"}  # fmt: skip
KEEP = {"trigger": "Periodic", "sourceNode": "n", "sourcePodUID": "p", "store": "Peer",
        "keepers": ["m", "n"]}  # fmt: skip
FROM = {"checkpoint": "build-2-k1", "sessionName": "other", "sessionUID": "v",
        "digest": "sha256:1", "location": "peer://m",
        "takenAt": "2026-01-02T03:04:05Z"}  # fmt: skip
BRING = {"trigger": "Fork", "targetNode": "n", "targetPodUID": "q", "from": FROM}
ORDERS = pytest.mark.parametrize("spec", [MOVE, KEEP, BRING], ids=["move", "keep", "bring"])


def item(spec: dict[str, Any], **changes: Any) -> dict[str, Any]:
    meta = {"namespace": "team", "name": "build-3-q", "uid": "c"}
    return {"metadata": meta, "spec": ALL | spec, **changes}


@ORDERS
def test_what_all_have(spec: dict[str, Any]) -> None:
    order = read(item(spec))
    assert (order.namespace, order.name, order.uid) == ("team", "build-3-q", "c")
    assert (order.session, order.session_uid, order.epoch) == ("build", "u", 3)
    assert (order.image, order.volumes, order.deadline) == ("i@sha256:0", ("/data",), 30.0)
    assert order.phase is Phase.PENDING
    assert not order.over
    assert read(item(spec, status={"phase": "Complete"})).over
    assert read(item(spec, status={"phase": "Failed"})).over
    assert not read(item(spec, status={"phase": "Dumping"})).over


def test_which_it_is() -> None:
    move, keep, bring = (read(item(spec)) for spec in (MOVE, KEEP, BRING))
    assert isinstance(move, Move)
    assert (move.source_pod, move.target_node, move.target_pod) == ("p", "m", "q")
    assert isinstance(keep, Keep)
    assert (keep.store, keep.keepers, keep.then) == (Where.PEER, ("m", "n"), Then.RUN_ON)
    assert keep.location == ""
    assert isinstance(bring, Bring)
    assert (bring.why, bring.of_session, bring.of_session_uid) == ("Fork", "other", "v")
    assert (bring.location, bring.taken) == ("peer://m", int(NOW.timestamp()))
    stop = read(item(KEEP | {"then": "Stop"}, status={"location": "peer://n"}))
    assert isinstance(stop, Keep)
    assert (stop.then, stop.location) == (Then.STOP, "peer://n")


def test_for_how_long_it_may_be_frozen() -> None:
    then = int(NOW.timestamp()) + 20
    move = read(item(MOVE | {"until": NOW.replace(second=25).isoformat()}))
    assert isinstance(move, Move)
    assert move.until == then
    assert [move.may_freeze(then - left) for left in (40, 30, 29, 3, -1)] == [30, 30, 29, 3, -1]
    for spec in (MOVE, KEEP, BRING):
        assert read(item(spec)).may_freeze(then) == 30


WRONG = [
    MOVE | {"until": "soon"}, MOVE | {"until": None}, MOVE | {"until": "2026-01-02T03:04:05"},
    MOVE | {"epoch": "x"}, MOVE | {"epoch": None}, MOVE | {"volumes": 3},
    MOVE | {"deadlineSeconds": "long"}, KEEP | {"store": "Attic"}, KEEP | {"then": "Dance"},
    KEEP | {"keepers": 3}, BRING | {"from": None}, BRING | {"from": {}},
    BRING | {"from": FROM | {"takenAt": "yesterday"}},
    BRING | {"from": FROM | {"takenAt": "2026-01-02T03:04:05"}}, {},
]  # fmt: skip


@pytest.mark.parametrize("spec", WRONG, ids=str)
def test_what_is_no_order(spec: dict[str, Any]) -> None:
    with pytest.raises(BadRequest):
        read(item(spec))


@ORDERS
def test_nothing_may_be_missing(spec: dict[str, Any]) -> None:
    for missing in spec.keys() - {"trigger", "keepers", "store", "from"}:
        with pytest.raises(BadRequest):
            read(item({key: value for key, value in spec.items() if key != missing}))
    for missing in FROM:
        without = {key: value for key, value in FROM.items() if key != missing}
        with pytest.raises(BadRequest):
            read(item(BRING | {"from": without}))


def test_what_is_said_of_a_move() -> None:
    order = read(item(MOVE))
    assert status(order, "n", Phase.DUMPING, "", None, NOW) == {
        "phase": "Dumping",
        "node": "n",
        "startedAt": "2026-01-02T03:04:05Z",
    }
    left = Left(1000, "sha256:" + "0" * 64, 0.51234)
    done = status(order, "n", Phase.COMPLETE, "", left, NOW)
    assert (done["sizeBytes"], done["freezeSeconds"]) == (1000, 0.512)
    assert "location" not in done
    assert (done["conditions"][0]["status"], done["conditions"][0]["reason"]) == ("True", "Arrived")
    failed = status(order, "n", Phase.FAILED, "a tracer", None, NOW)["conditions"][0]
    assert (failed["status"], failed["message"]) == ("False", "a tracer")


def test_what_is_said_of_what_was_stored() -> None:
    order = read(item(KEEP))
    saved = Saved(1000, "sha256:" + "0" * 64, 0.2, "peer://m", 77, NOW.timestamp() - 60)
    done = status(order, "n", Phase.COMPLETE, "", saved, NOW)
    assert (done["location"], done["seq"], done["sizeBytes"]) == ("peer://m", 77, 1000)
    assert done["startedAt"] == "2026-01-02T03:03:05Z"  # the freeze, not when it was stored
    assert done["completedAt"] == "2026-01-02T03:04:05Z"
    assert done["conditions"][0]["reason"] == "Stored"


def test_what_is_said_of_what_was_brought() -> None:
    done = status(read(item(BRING)), "n", Phase.COMPLETE, "", None, NOW)
    assert done["conditions"][0]["reason"] == "Restored"


def test_memory_that_follows_has_to_be_asked_for() -> None:
    for memory, follows in ({}, False), ({"memory": "Copy"}, False), ({"memory": "PostCopy"}, True):
        found = read(item(MOVE | memory))
        assert isinstance(found, Move)
        assert found.post_copy is follows
    lost = status(read(item(MOVE)), "n", Phase.FAILED, "m", None, NOW, "PagesLost")
    assert lost["conditions"][0]["reason"] == "PagesLost"
