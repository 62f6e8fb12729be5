"""Stored sessions that must not be brought back as they lie, and places where none can go: each is
refused with its reason where people look, and nothing is lost by it.
"""

from __future__ import annotations

import base64
from typing import Final

import pytest

from e2e.cluster import build, faults
from e2e.cluster.places import SHARED
from e2e.lab import KubectlError, Lab, Session, until
from e2e.movers import ask, await_agents, check, checkpoint, longest_gap, walking
from e2e.test_store import KEPT_WITHIN, OFTEN, REPL, await_kept

KEPT: Final = "/var/lib/holdfast-node/kept"
FULL: Final = "of the 1 MiB for checkpoints"
REFUSED_WITHIN: Final = 60.0
# The next try comes when the operator's pause between two of them is over.
MENDED_WITHIN: Final = 90.0
# What is done to a stored session, in its folder; what is then said of it. $copies/first is how an
# earlier incarnation of it was stored.
DAMAGE: Final = {
    "corrupt": (
        "printf holdfast | dd of=$largest bs=1 seek=100000 conv=notrunc status=none",
        "was altered or cut short",
    ),
    "truncated": ("truncate -s -1 $largest", "was altered or cut short"),
    "incomplete": ("rm $largest", "lacks its part"),
    "unsigned": ("sed -i 's/default/DEFAULT/' manifest", "signed with another data key"),
    "older": ("rm -r parts manifest; cp -a $copies/first/. .", "another checkpoint"),
}


class Stored:
    """A suspended session's checkpoint, as it lies on a node's disk."""

    def __init__(self, session: Session) -> None:
        self.name = session.status["suspended"]["checkpoint"]
        order = session.lab.get("checkpoint", self.name)
        uid = session.body["metadata"]["uid"]
        self._node = order["status"]["location"].removeprefix("peer://")
        self._copies = SHARED / f"copies-{uid}"  # which every node has
        self._folder = f"{KEPT}/{uid}/{self.name}"

    def do(self, script: str) -> str:
        largest = "largest=$(find parts -type f | xargs ls -S | head -1)"
        begin = f"cd {self._folder}; copies={self._copies}; mkdir -p $copies; {largest}"
        return faults.in_node(self._node, "sh", "-ec", f"{begin}; {script}")

    def manifest(self) -> bytes:
        return base64.b64decode(self.do("base64 manifest"))

    def seen(self) -> str:
        return self.do("find . -type f | sort | xargs sha256sum")


def suspended(session: Session) -> Stored:
    session.lab.holdfast("suspend", session.name, timeout=150)
    session.await_phase("Suspended", 120)
    return Stored(session)


def wake(session: Session) -> None:
    patch = '{"spec":{"suspended":false}}'
    session.lab.kubectl("patch", "session", session.name, "--type=merge", "-p", patch)


def refused(session: Session, reason: str) -> None:
    """It could not be brought back: that is said where people look."""

    def said() -> str:
        found = session.condition("Restored")
        return str(found["message"]) if found.get("reason") == "RestoreFailed" else ""

    message = until(said, f"{session.name} is refused", REFUSED_WITHIN)
    assert reason in message, f"{session.name}: {message}"
    until(lambda: any(reason in event for event in session.events()), "an event says so")


@pytest.mark.long
@pytest.mark.attacks(18, 20)
@pytest.mark.timeout(400)
def test_what_was_tampered_with_is_not_brought_back(lab: Lab) -> None:
    """All at once, for each takes its time. Put right, they go on where they were."""
    sessions = {name: lab.begin(name, *REPL, node=lab.away()) for name in DAMAGE}
    for session in sessions.values():
        session.await_ready()
        session.await_text("ready>")
        session.type("kept = 6 * 7")
    older = sessions["older"]
    suspended(older).do("cp -a . $copies/first")  # whole and signed, and out of date
    wake(older)
    older.await_epoch(2)
    stored = {name: suspended(session) for name, session in sessions.items()}
    for name, (script, _) in DAMAGE.items():
        stored[name].do(f"cp -a . $copies/whole; {script}")
    before = {name: place.seen() for name, place in stored.items()}
    for session in sessions.values():
        wake(session)
    for name, (_, reason) in DAMAGE.items():
        refused(sessions[name], reason)
        assert stored[name].seen() == before[name], "what is stored was touched"
        stored[name].do("rm -r parts manifest; cp -a $copies/whole/. .")
    for session in sessions.values():
        session.await_phase("Running", MENDED_WITHIN)
        session.type("print('still', kept)")
        session.await_text("still 42")
    fork = lab.begin("misfit", *REPL, image=build.BUSYBOX,
                     spec={"forkFrom": {"checkpoint": stored["older"].name}})  # fmt: skip
    refused(fork, "the session ran in the image")


@pytest.mark.attacks(19)
@pytest.mark.timeout(240)
def test_a_stolen_disk_says_nothing(lab: Lab) -> None:
    """The session's memory and files are looked for on the node that keeps its checkpoint."""
    session = lab.session("secretive", *REPL)
    session.await_text("ready>")
    # Joined only in memory and in the file, so that the input itself is no copy of it.
    session.type("word = 'quin' + 'quireme'; open('/tmp/note', 'w').write(word * 999)")
    session.type("print('not' + 'ed')")
    session.await_text("noted")
    stored = suspended(session)
    assert stored.do("grep -rlF quinquireme /var/lib/holdfast-node || true") == ""
    assert int(stored.do("find . -type f -size +64k | wc -l")), "no memory is stored here"
    assert stored.do("find /var/lib/holdfast-node -type f -perm /077") == ""
    assert stored.do("find /var/lib/holdfast-node -type f ! -user 0") == ""
    wake(session)
    session.await_epoch(2)
    session.type("print('still', word[:4])")
    session.await_text("still quin")


@pytest.mark.long
@pytest.mark.timeout(240)
def test_a_node_that_is_not_there(lab: Lab) -> None:
    session = walking(lab, "astray", 0.01)
    with pytest.raises(KubectlError, match="there is no node 'nowhere'"):
        lab.holdfast("move", "astray", "--to", "nowhere")
    ask(session, "nowhere")  # by hand, where nobody refuses it
    until(lambda: session.condition("Movable").get("reason") == "NoTarget", "it says so")
    assert "no node takes it" in session.condition("Movable")["message"]
    assert not checkpoint(session), "an agent was told"
    assert longest_gap(check(session, 1)) < 2, "it was frozen"


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_store_that_is_full(lab: Lab) -> None:
    """The session is not held up by it, and is stored once there is room."""
    lab.install("upgrade", "--set=nodeAgent.store.sizeLimit=1Mi")
    try:
        await_agents(lab)
        session = walking(lab, "crowded", 0.01, spec=OFTEN)

        def said() -> bool:
            found = session.condition("Checkpointed")
            return found.get("reason") == "CheckpointFailed" and FULL in found["message"]

        until(said, "it says so", KEPT_WITHIN)
        assert any(FULL in event for event in session.events())
        session.writes_on()
    finally:
        lab.install("upgrade")
        await_agents(lab)
    await_kept(session)
    assert longest_gap(check(session, 1)) < 5
