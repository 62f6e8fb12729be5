"""How a session ended, in words and as a code. Pure."""

from __future__ import annotations

from typing import Any

from holdfast_wire.errors import Ended


def describe_exit(exit_status: dict[str, Any]) -> tuple[str, int]:
    """In words, and as the code a shell would give."""
    code, number = exit_status.get("code"), exit_status.get("signal")
    if isinstance(number, int) and number > 0:
        return f"killed by {signal_name(number)}", 128 + number
    if isinstance(code, int):
        return f"exit code {code}", code
    return "its exit code is not known", Ended.exit_code


def signal_name(number: int) -> str:
    import signal

    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
