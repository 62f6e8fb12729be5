"""The one error tree. Every error has a code for programs, a sentence for people, and says what
a caller may do: try again, give up, or ask for a right it does not have.

    HoldfastError
    ├── Retry       the same call may succeed later
    │   ├── Unavailable     sidecar or gateway is away for a moment
    │   └── Busy            the session is doing something else
    │       └── StillRunning    what was asked for was begun, and goes on
    ├── Permanent   the same call will never succeed
    │   ├── BadRequest      malformed frame, impossible size, unknown field
    │   │   └── BadName     a session name that is not one
    │   ├── NotFound        no such session
    │   ├── AlreadyExists   a session of that name lives
    │   ├── Ended           the session's command has exited
    │   ├── Suspended       it is stored, and this caller does not let it go on
    │   ├── CommandFailed   the command could not be started
    │   ├── TooLarge        over a stated limit
    │   ├── Unsupported     a version or feature this side does not speak
    │   └── Internal        a fault of holdfast itself
    └── Refused     not allowed
        ├── Unauthenticated no token, or a wrong one
        ├── Forbidden       the actor may not do this
        └── NoTurn          another actor holds the turn
"""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar


class Disposition(StrEnum):
    RETRY = "retry"
    PERMANENT = "permanent"
    REFUSED = "refused"


class HoldfastError(Exception):
    """Root of all errors. `message` says what happened, `advice` what to do about it."""

    code: ClassVar[str] = "internal"
    disposition: ClassVar[Disposition] = Disposition.PERMANENT
    http_status: ClassVar[int] = 500
    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, advice: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.advice = advice

    def __str__(self) -> str:
        return f"{self.message} ({self.advice})" if self.advice else self.message

    def to_json(self) -> dict[str, str]:
        return {
            "code": self.code,
            "disposition": self.disposition.value,
            "message": self.message,
            "advice": self.advice,
        }


class Retry(HoldfastError):
    disposition = Disposition.RETRY
    http_status = 503
    exit_code = 75  # EX_TEMPFAIL


class Permanent(HoldfastError):
    disposition = Disposition.PERMANENT
    http_status = 400


class Refused(HoldfastError):
    disposition = Disposition.REFUSED
    http_status = 403
    exit_code = 77  # EX_NOPERM


class Unavailable(Retry):
    code = "unavailable"


class Busy(Retry):
    code = "busy"
    http_status = 409


class StillRunning(Busy):
    code = "still_running"


class BadRequest(Permanent):
    code = "bad_request"
    exit_code = 64  # EX_USAGE


class BadName(BadRequest):
    code = "bad_name"


class NotFound(Permanent):
    code = "not_found"
    http_status = 404
    exit_code = 66  # EX_NOINPUT


class AlreadyExists(Permanent):
    code = "already_exists"
    http_status = 409
    exit_code = 73  # EX_CANTCREAT


class Ended(Permanent):
    code = "ended"
    http_status = 410
    exit_code = 69  # EX_UNAVAILABLE


class Suspended(Permanent):
    code = "suspended"
    http_status = 409
    exit_code = 75


class CommandFailed(Permanent):
    code = "command_failed"
    http_status = 422
    exit_code = 127


class TooLarge(Permanent):
    code = "too_large"
    http_status = 413
    exit_code = 64


class Unsupported(Permanent):
    code = "unsupported"
    http_status = 426


class Internal(Permanent):
    code = "internal"
    http_status = 500
    exit_code = 70  # EX_SOFTWARE


class Unauthenticated(Refused):
    code = "unauthenticated"
    http_status = 401


class Forbidden(Refused):
    code = "forbidden"


class NoTurn(Refused):
    code = "no_turn"
    http_status = 409


def _leaves(root: type[HoldfastError]) -> dict[str, type[HoldfastError]]:
    found: dict[str, type[HoldfastError]] = {}
    for child in root.__subclasses__():
        if "code" in child.__dict__:
            found[child.code] = child
        found |= _leaves(child)
    return found


BY_CODE: dict[str, type[HoldfastError]] = _leaves(HoldfastError)


def from_json(body: object) -> HoldfastError:
    """The error another process sent. Unknown codes keep their disposition, so that a newer
    server's errors are still retried, or not, as it meant."""
    if not isinstance(body, dict):
        return Internal("the other side sent an error that is not an object")
    message, advice = str(body.get("message", "")), str(body.get("advice", ""))
    known = BY_CODE.get(str(body.get("code")))
    if known is not None:
        return known(message, advice)
    fallback = {"retry": Unavailable, "refused": Forbidden}.get(
        str(body.get("disposition")), Internal
    )
    return fallback(message, advice)
