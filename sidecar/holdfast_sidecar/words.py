"""What a pod's sidecar says for people: how a session ended, what its screen showed then, the
line before its first, and the one where it goes on from a checkpoint."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any, Final

from holdfast_sidecar import snapshot
from holdfast_sidecar.session import Exit, Session
from holdfast_sidecar.stored import Stored, Why

# What of the screen stays readable in the Session's status.
_LAST_LINES: Final = 20
_LAST_BYTES: Final = 4096
CAUSES: Final = {"term": "terminated", "killed": "killed"}


async def last_lines(session: Session) -> list[str]:
    return await session.emulator.call(
        lambda terminal, _seq: plain_lines(snapshot.text(terminal, scrollback=True)),
        session.ring.head,
    )


def exit_note(how: Exit, lines: list[str]) -> str:
    body: dict[str, Any] = {
        **how.to_json(),
        "cause": CAUSES.get(how.by or "", "exited"),
        "at": datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        "lines": lines,
    }
    return json.dumps(body, ensure_ascii=False)


def plain_lines(text: str) -> list[str]:
    lines: list[str] = []
    size = 0
    for line in reversed(text.rstrip().split("\n")[-_LAST_LINES:]):
        clean = "".join(c for c in line if c.isprintable()).rstrip()
        if not lines:  # rather the beginning of one long line than nothing
            clean = clean.encode()[: _LAST_BYTES - 1].decode(errors="ignore")
        size += len(clean.encode()) + 1
        if size > _LAST_BYTES:
            break
        lines.append(clean)
    return lines[::-1]


def gone_on(stored: Stored, now: float) -> bytes:
    """For the terminal, where something is other than it was; nothing where all is as it was."""
    when = f"{datetime.fromtimestamp(stored.taken, UTC):%Y-%m-%d %H:%M:%S} UTC"
    said = {
        Why.RECOVER: (
            f"Restored from the checkpoint of {when}: what happened in the"
            f" {max(0, round(now - stored.taken))} s since is gone, and connections are cut."
        ),
        Why.FORK: f"This is a fork of {stored.origin}, taken {when}; connections are cut.",
        Why.WAKE: "",
    }[stored.why]
    return b"\r\n" + banner(said) if said else b""


def banner(notice: str) -> bytes:
    clean = "".join(c for c in notice if c.isprintable())[:1000]
    return f"\x1b[0;7m holdfast \x1b[0;1m {clean}\x1b[0m\r\n".encode()
