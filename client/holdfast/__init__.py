"""Terminal sessions that nobody owns, from Python and from the command line.

    import holdfast

    with holdfast.connect_local("build") as session:
        print(session.request("screen", format="text", scrollback=False)["text"])

Importing this loads next to nothing: each name is fetched when it is first used, so that the
command line starts quickly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.connection import Connection
    from holdfast.local import connect_local, run_session
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
        TooLarge,
        Unauthenticated,
        Unavailable,
        Unsupported,
    )

__version__ = "0.1.0"

__all__ = [
    "AlreadyExists",
    "BadName",
    "BadRequest",
    "Busy",
    "CommandFailed",
    "Connection",
    "Ended",
    "Forbidden",
    "HoldfastError",
    "Internal",
    "NoTurn",
    "NotFound",
    "Permanent",
    "Refused",
    "Retry",
    "StillRunning",
    "TooLarge",
    "Unauthenticated",
    "Unavailable",
    "Unsupported",
    "__version__",
    "connect_local",
    "run_session",
]

_HOMES = {
    "Connection": "holdfast.connection",
    "connect_local": "holdfast.local",
    "run_session": "holdfast.local",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES.get(name, "holdfast_wire.errors")), name)


def __dir__() -> list[str]:
    return list(__all__)
