"""What would keep a session from moving is said long before anybody drains its node."""

from __future__ import annotations

import time
from typing import Any, Final

import pytest

from e2e.cluster.running import running
from e2e.lab import Lab, Session, until
from e2e.movers import await_agents, checkpoint, cordoned, move
from stuck_kit import USERFAULTFD_CALL

SAID_WITHIN: Final = 60.0
READY: Final = "rea''dy"  # as it is typed; the screen has it whole when it runs

FAULTING: Final = (
    f'python3 -c "import ctypes; ctypes.CDLL(None).syscall({USERFAULTFD_CALL}, 1); '
    f"print('{READY}'); input()\""
)
TRACER: Final = """
import ctypes, os, sys
child = os.fork()
if child == 0:
    os.execvp("sleep", ["sleep", "1000"])
if ctypes.CDLL(None).ptrace(0x4206, child, None, None) != 0:
    sys.exit("it cannot be traced")
input("tracing ")
os.kill(child, 9)
"""


def movable(session: Session, status: str, reason: str) -> dict[str, Any]:
    def so() -> dict[str, Any] | None:
        found = session.condition("Movable")
        return found if (found.get("status"), found.get("reason")) == (status, reason) else None

    found = until(so, f"{session.name} is movable: {status}, {reason}", SAID_WITHIN)
    assert found is not None
    return found


@pytest.mark.timeout(240)
@pytest.mark.long
def test_what_cannot_be_moved_is_named_and_forgotten(lab: Lab) -> None:
    await_agents(lab)
    session = lab.session("stuck", "bash", "--norc")
    movable(session, "True", "AgentReady")
    session.type(FAULTING)
    session.await_text("ready")
    began = time.monotonic()
    message = movable(session, "False", "Blocked")["message"]
    lab.report["movable_said_seconds"] = round(time.monotonic() - began, 1)
    assert "(python3) has a userfaultfd open" in message
    told = lab.kubectl("describe", "session", session.name)
    assert "(python3) has a userfaultfd open" in told
    assert "close it or end the program" in told
    assert checkpoint(session) == {}, "nobody tried to move it"
    session.type("go on")
    movable(session, "True", "AgentReady")
    assert {"NotMovable", "Movable"} <= {event.partition(":")[0] for event in session.events()}
    move(session)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_tracer_is_named_before_and_after_a_drain(lab: Lab) -> None:
    """While it is tried the attempt's own words stand; when the node is opened again, what is."""
    await_agents(lab)
    session = lab.session("traced-early", "python3", "-c", TRACER + "input('done ')")
    session.await_text("tracing")
    message = movable(session, "False", "Blocked")["message"]
    assert "(sleep) is being traced by python3 (process " in message
    assert "end the debugger or tracer" in message
    with cordoned(lab, session.node):
        message = movable(session, "False", "MoveFailed")["message"]
        assert "is being traced by python3" in message
    movable(session, "False", "Blocked")
    session.type("go on")
    session.await_text("done")
    movable(session, "True", "AgentReady")
    assert session.epoch == 1


def test_a_node_says_what_its_agent_found(lab: Lab) -> None:
    for name in running().nodes:
        conditions = lab.get("node", name)["status"]["conditions"]
        (found,) = [one for one in conditions if one["type"] == "HoldfastReady"]
        assert found["status"] == "True", found
        assert "CRIU 4." in found["message"]
        assert any(one["type"] == "Ready" for one in conditions), "kubelet's own are gone"
