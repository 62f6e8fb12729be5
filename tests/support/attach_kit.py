"""An attachment without a terminal and without a clock."""

from __future__ import annotations

from typing import Any

from holdfast_wire.attach_core import (
    Action,
    AttachCore,
    Connect,
    Leave,
    Phase,
    Send,
    Settings,
    Show,
)
from holdfast_wire.frames import (
    Attach,
    Frame,
    Part,
    Snapshot,
)
from holdfast_wire.keys import parse_detach_keys

KEYS = parse_detach_keys("ctrl-\\,d")
BOTH = Part.FIRST | Part.LAST


def core(view: bool = False) -> AttachCore:
    return AttachCore(Settings("build", view, KEYS, "nonce", "holdfast attach build"), (80, 24))


def answer(seq: int = 0, *, resumed: bool = False, **more: Any) -> Attach:
    state = {"activity": "running", "exit": None}
    body = {"session_id": "id1", "seq": seq, "resumed": resumed, "columns": 80, "rows": 24}
    return Attach({**body, "client": "c1", "state": state, **more})


def live(view: bool = False) -> AttachCore:
    """Attached, with the snapshot at seq 100."""
    machine = core(view)
    machine.start(0.0)
    machine.connected()
    machine.received(answer(), 0.0)
    machine.received(Snapshot(100, 80, 24, BOTH, b"screen"), 0.0)
    assert machine.phase is Phase.LIVE
    return machine


def shown(actions: list[Action]) -> bytes:
    return b"".join(action.data for action in actions if isinstance(action, Show))


def sent(actions: list[Action]) -> list[Frame]:
    return [action.frame for action in actions if isinstance(action, Send)]


def left(actions: list[Action]) -> Leave:
    (leave,) = [action for action in actions if isinstance(action, Leave)]
    return leave


def resume_of(machine: AttachCore) -> Any:
    (frame,) = sent(machine.connected())
    assert isinstance(frame, Attach)
    return frame.body.get("resume")


def ticks_until(machine: AttachCore, end: float) -> list[Action]:
    """Every wake-up the machine asks for; each one must move it on."""
    actions: list[Action] = []
    for _ in range(100):
        moment = machine.wakeup()
        if moment is None or moment > end:
            return actions
        actions += machine.tick(moment)
        if any(isinstance(action, Connect) for action in actions[-1:]):
            actions += machine.lost(moment)
    raise AssertionError("it never sleeps")
