"""Terminal sessions that nobody owns, from Python and from the command line.

    import holdfast

    async with holdfast.connect("build") as session:
        print((await session.screen()).text)

    with holdfast.sync.connect("build") as session:
        print(session.screen().text)

Importing this loads next to nothing: each name is fetched when it is first used, so that the
command line starts quickly. docs/sdk.md has the rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast import sync
    from holdfast.jobs import Job
    from holdfast.local import run_session
    from holdfast.results import (
        Executed,
        Exit,
        Graph,
        JobState,
        News,
        Port,
        Process,
        Record,
        Screen,
        Sent,
        SessionInfo,
        State,
    )
    from holdfast.sdk import Session, TimedOut, connect, sessions
    from holdfast_wire.errors import (
        AlreadyExists,
        BadName,
        BadRequest,
        Busy,
        CommandFailed,
        Ended,
        Forbidden,
        HoldfastError,
        Internal,
        NotFound,
        NoTurn,
        Permanent,
        Refused,
        Retry,
        StillRunning,
        Suspended,
        TooLarge,
        Unauthenticated,
        Unavailable,
        Unsupported,
    )
    from holdfast_wire.frames import Gap, Output, Resize, Snapshot

__version__ = "0.1.0"

__all__ = [
    "AlreadyExists",
    "BadName",
    "BadRequest",
    "Busy",
    "CommandFailed",
    "Ended",
    "Executed",
    "Exit",
    "Forbidden",
    "Gap",
    "Graph",
    "HoldfastError",
    "Internal",
    "Job",
    "JobState",
    "News",
    "NoTurn",
    "NotFound",
    "Output",
    "Permanent",
    "Port",
    "Process",
    "Record",
    "Refused",
    "Resize",
    "Retry",
    "Screen",
    "Sent",
    "Session",
    "SessionInfo",
    "Snapshot",
    "State",
    "StillRunning",
    "Suspended",
    "TimedOut",
    "TooLarge",
    "Unauthenticated",
    "Unavailable",
    "Unsupported",
    "__version__",
    "connect",
    "run_session",
    "sessions",
    "sync",
]

_HOMES = {
    "holdfast.sdk": ("Session", "TimedOut", "connect", "sessions"),
    "holdfast.jobs": ("Job",),
    "holdfast.local": ("run_session",),
    "holdfast.results": (
        "Executed", "Exit", "Graph", "JobState", "News", "Port", "Process", "Record", "Screen",
        "Sent", "SessionInfo", "State",
    ),
    "holdfast_wire.frames": ("Gap", "Output", "Resize", "Snapshot"),
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
    from importlib import import_module

    if name == "sync":
        return import_module("holdfast.sync")
    home = next((home for home, names in _HOMES.items() if name in names), "holdfast_wire.errors")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return list(__all__)
