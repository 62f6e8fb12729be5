"""From an older release to this one: what runs goes on, what is stored wakes with its memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pytest

from e2e.cluster import build
from e2e.cluster.places import SHARED
from e2e.cluster.running import running
from e2e.lab import OPERATOR_NAMESPACE, Lab, Session, until
from e2e.movers import await_agents, check, gone, longest_gap, move, shared, walking

# The last commit whose chart made keys in templates, without admission policies and signed orders.
FORMER: Final = "d500196"
_FORMER_IMAGE: Final = f"{build.HOLDFAST.rpartition(':')[0]}:{FORMER}"
# It does by itself what the older gateway would have to be asked for in older words.
MEMORY: Final = """
kept, heap = 6 * 7, bytearray(b"x" * 20_000_000)
open("/tmp/note", "w").write("on paper")
open("/shared/{name}", "w").write("done")
"""
RECALLED: Final = "print('still', kept, len(heap), open('/tmp/note').read())"
WOKEN_WITHIN: Final = 60.0


def _remembering(lab: Lab, name: str) -> Session:
    (SHARED / name).unlink(missing_ok=True)
    command = ("python3", "-q", "-i", "-c", MEMORY.format(name=name))
    session = lab.session(name, *command, **shared())
    until((SHARED / name).exists, f"{name} has something to remember")
    return session


def _recalls(session: Session) -> None:
    session.type(RECALLED)
    session.await_text("still 42 20000000 on paper", WOKEN_WITHIN)


def _remove(lab: Lab) -> None:
    """Keys too, as nobody does who has sessions."""
    lab.helm("uninstall", "holdfast", "--namespace", OPERATOR_NAMESPACE, "--wait")
    lab.kubectl("delete", "namespace", OPERATOR_NAMESPACE, "--timeout=90s")
    lab.kubectl("delete", "crd", "sessions.holdfast.dev", "checkpoints.holdfast.dev")


@pytest.fixture
def former(lab: Lab) -> Iterator[Lab]:
    """With the older release in place of this one, for the time of the test."""
    running().load(build.former_image(FORMER, _FORMER_IMAGE))
    _remove(lab)
    lab.install(
        "install", "--set", f"image.tag={FORMER}",
        chart=build.former(FORMER) / "charts" / "holdfast",
    )  # fmt: skip
    await_agents(lab)
    yield lab
    lab.kubectl("delete", "sessions", "--all", "--timeout=90s")
    _remove(lab)
    lab.install()
    await_agents(lab)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_an_upgrade_of_live_and_stored_sessions(former: Lab) -> None:
    lab = former
    live = walking(lab, "live")
    typed, stored = _remembering(lab, "typed"), _remembering(lab, "stored")
    pod = stored.pod
    lab.kubectl("patch", "session", "stored", "--type=merge", "-p", '{"spec":{"suspended":true}}')
    stored.await_phase("Suspended")
    gone(lab, pod)
    before = lab.get("pod", live.pod)["metadata"]["uid"]

    former_image = f"sidecar.formerImage={_FORMER_IMAGE}"
    lab.install("upgrade", "--reset-values", "--set", former_image)
    await_agents(lab)

    # What runs goes on where it is, and its old sidecar lets people in by the new gateway.
    live.writes_on()
    assert lab.get("pod", live.pod)["metadata"]["uid"] == before
    _recalls(typed)
    assert (live.epoch, typed.epoch) == (1, 1)
    live.await_ready()
    marks = check(live, 1)
    lab.report["upgrade_longest_gap_seconds"] = round(longest_gap(marks), 3)
    assert longest_gap(marks) < 5

    # What was stored is opened with the key it was sealed with, and goes on with its own hold.
    lab.holdfast("wake", "stored", timeout=120)
    stored.await_epoch(2, WOKEN_WITHIN)
    _recalls(stored)

    # Each leaves its node, with the old sidecar or the old hold: from release to release, and on.
    for session in (live, typed, stored):
        move(session)
    move(live)
    live.writes_on()
    check(live, 3)
    for session in (typed, stored):
        session.type("print('as', 'ever', kept)")
        session.await_text("as ever 42")

    # And what went on so is stored and woken by this release alone.
    lab.install("upgrade", "--reset-values")
    lab.holdfast("suspend", "typed", timeout=120)
    typed.await_phase("Suspended")
    lab.holdfast("wake", "typed", timeout=120)
    typed.await_epoch(3, WOKEN_WITHIN)
    typed.type("print('woken', 'too', kept)")
    typed.await_text("woken too 42")
