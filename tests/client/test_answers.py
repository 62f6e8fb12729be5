"""What an API server answered, as an error of ours."""

from __future__ import annotations

import json

import pytest

from holdfast.answers import error_of
from holdfast_wire.errors import BadRequest, Forbidden


def status(message: str, reason: str) -> bytes:
    return json.dumps({"kind": "Status", "message": message, "reason": reason}).encode()


@pytest.mark.parametrize(("code", "reason"), [(403, "Forbidden"), (422, "Invalid")])
def test_what_a_policy_says_is_said_alone(code: int, reason: str) -> None:
    """Attack 38: who may not fork a session is told so, and not the policy's names."""
    said = "ana may not create sessions/fork of team/build"
    by = "ValidatingAdmissionPolicy 'holdfast-forks' with binding 'holdfast-forks'"
    told = f'sessions.holdfast.dev "copy" is forbidden: {by} denied request: {said}'
    error = error_of(code, status(told, reason))
    assert isinstance(error, Forbidden)
    assert (error.message, error.advice) == (said, "")


def test_others_keep_their_words() -> None:
    error = error_of(403, status("ana cannot create sessions", "Forbidden"))
    assert (type(error), error.message) == (Forbidden, "ana cannot create sessions")
    assert isinstance(error_of(422, status("spec.image is required", "Invalid")), BadRequest)
