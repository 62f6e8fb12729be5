"""What an API server or a gateway answered, when that is no success, as an error of ours. Pure.

A gateway says its own error in `error`, beside what Kubernetes' clients read; the API server in
front of it knows only the latter; and what is in front of that, neither.
"""

from __future__ import annotations

import json
from typing import Any, Final

from holdfast_wire.errors import (
    AlreadyExists,
    BadRequest,
    Busy,
    Forbidden,
    HoldfastError,
    Internal,
    NotFound,
    TooLarge,
    Unauthenticated,
    Unavailable,
    Unsupported,
    from_json,
)

_BY_STATUS: Final[dict[int, type[HoldfastError]]] = {
    400: BadRequest,
    401: Unauthenticated,
    403: Forbidden,
    404: NotFound,
    409: Busy,
    413: TooLarge,
    422: BadRequest,
}
_ADVICE: Final = {
    401: "log in again; then: kubectl auth whoami",
    403: "ask for the right, or choose another --namespace",
}


_BY_POLICY: Final = " denied request: "


class NotServed(Unsupported):
    """There is no gateway behind the API server."""


def error_of(status: int, body: bytes) -> HoldfastError:
    said = _object(body)
    ours = said.get("error")
    if isinstance(ours, dict) and "code" in ours:
        return from_json(ours)
    message = said.get("message") if said.get("kind") == "Status" else None
    if message is None and status in (404, 503):
        # Not even the API server's own words: nobody has been asked.
        return NotServed("the cluster has no gateway of holdfast, or it is away")
    if said.get("reason") == "AlreadyExists":
        return AlreadyExists(str(message))
    kind = _BY_STATUS.get(status, Unavailable if status == 429 or status >= 500 else Internal)
    if message is not None and _BY_POLICY in str(message):
        # What the policy itself says; around it are only names of objects.
        return Forbidden(str(message).partition(_BY_POLICY)[2])
    return kind(str(message or f"the answer was HTTP {status}"), _ADVICE.get(status, ""))


def is_ours(body: bytes) -> bool:
    """Whether a gateway said it, and not what stands before it."""
    return isinstance(_object(body).get("error"), dict)


def _object(body: bytes) -> dict[str, Any]:
    try:
        said = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}
