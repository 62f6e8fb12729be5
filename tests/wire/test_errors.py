"""The error tree: complete, documented, and the same on both ends of a wire."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast_wire import errors
from holdfast_wire.errors import BY_CODE, Disposition, HoldfastError, from_json

BRANCHES = {errors.Retry, errors.Permanent, errors.Refused}
EXIT_CODES = {1, 64, 66, 69, 70, 73, 75, 77, 127}  # sysexits.h, and the shell's "not found"


def below(root: type[HoldfastError]) -> set[type[HoldfastError]]:
    return {root}.union(*(below(child) for child in root.__subclasses__()))


# Other packages derive errors of their own; this is about the tree that goes over the wire.
ALL = {error for error in below(HoldfastError) if error.__module__ == HoldfastError.__module__}
ERRORS = sorted(ALL - BRANCHES - {HoldfastError}, key=lambda error: error.__name__)


def named(error: type[HoldfastError]) -> str:
    return error.__name__


def test_every_error_has_a_code_of_its_own() -> None:
    for error in ERRORS:
        assert "code" in error.__dict__, f"{error.__name__} borrows its parent's code"
    assert len({error.code for error in ERRORS}) == len(ERRORS)
    assert {error.code: error for error in ERRORS} == BY_CODE


@pytest.mark.parametrize("error", ERRORS, ids=named)
def test_code_status_and_exit_code_are_sensible(error: type[HoldfastError]) -> None:
    assert re.fullmatch(r"[a-z]+(_[a-z]+)*", error.code)
    assert error.code == re.sub(r"(?<!^)(?=[A-Z])", "_", error.__name__).lower()
    assert 400 <= error.http_status <= 599
    assert error.exit_code in EXIT_CODES


@pytest.mark.parametrize("error", ERRORS, ids=named)
def test_the_disposition_is_that_of_the_branch(error: type[HoldfastError]) -> None:
    branches = [branch for branch in BRANCHES if issubclass(error, branch)]
    assert len(branches) == 1
    assert error.disposition.value == branches[0].__name__.lower()


def test_every_disposition_has_a_branch() -> None:
    assert {branch.disposition for branch in BRANCHES} == set(Disposition)


@given(error=st.sampled_from(ERRORS), message=st.text(max_size=30), advice=st.text(max_size=30))
def test_an_error_comes_back_as_it_was_sent(
    error: type[HoldfastError], message: str, advice: str
) -> None:
    sent = error(message, advice)
    got = from_json(sent.to_json())
    assert type(got) is error
    assert (got.message, got.advice, got.to_json()) == (message, advice, sent.to_json())


@pytest.mark.parametrize("disposition", Disposition)
def test_an_unknown_code_keeps_its_disposition(disposition: Disposition) -> None:
    body = {"code": "from_the_future", "disposition": disposition.value, "message": "m"}
    got = from_json(body)
    assert (got.disposition, got.message) == (disposition, "m")


@pytest.mark.parametrize(
    "body",
    [
        *(None, 3, "text", [], {}, {"code": None}, {"code": [], "disposition": {}}),
        {"code": "x" * 10_000, "disposition": 7, "message": None, "advice": ["a"]},
    ],
)
def test_nonsense_is_an_internal_error_and_never_retried(body: object) -> None:
    assert type(from_json(body)) is errors.Internal


def test_a_person_reads_message_and_advice() -> None:
    assert str(errors.NotFound("no session 'a'")) == "no session 'a'"
    assert str(errors.NotFound("no session 'a'", "see list")) == "no session 'a' (see list)"


def test_the_docstring_shows_every_class_and_no_other() -> None:
    shown = re.findall(r"^ +(?:[│ ]*[├└]── )?([A-Z]\w+)", errors.__doc__ or "", re.MULTILINE)
    assert sorted(shown) == sorted(error.__name__ for error in ALL)


def test_the_docstring_puts_every_error_under_its_branch() -> None:
    branch = ""
    for line in (errors.__doc__ or "").splitlines():
        found = re.match(r"    ([│ ]*)[├└]── (\w+)", line)
        if found is None:
            continue
        if not found[1]:
            branch = found[2]
        else:
            assert issubclass(getattr(errors, found[2]), getattr(errors, branch))
