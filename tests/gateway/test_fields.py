"""Fields and keys: what is let through, and that nothing else happens with what is not."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast_gateway import fields, keys
from holdfast_gateway.fields import Field, Kind
from holdfast_wire.errors import BadRequest

FIELDS = (
    Field("text", Kind.TEXT, "", longest=5, either="one"),
    fields.base64_text("base64", "", either="one"),
    Field("count", Kind.COUNT, "", low=1, high=9, default=3),
    Field("number", Kind.NUMBER, "", low=0.5, high=2),
    Field("flag", Kind.FLAG, "", default=False),
    Field("way", Kind.TEXT, "", choices=("up", "down")),
    Field("key", Kind.TEXT, "", required=True, pattern=r"^[ -~]*$"),
)
json_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=4,
)


@settings(max_examples=50)
@given(st.dictionaries(st.sampled_from([f.name for f in FIELDS]) | st.text(), json_values))
def test_whatever_is_sent_is_a_bad_request_or_within_bounds(body: dict[str, Any]) -> None:
    with contextlib.suppress(BadRequest):
        passed = fields.of_body(json.dumps(body).encode(), FIELDS)
        assert set(passed) <= {field.name for field in FIELDS}
        assert ("text" in passed) != ("base64" in passed)
        assert 1 <= passed["count"] <= 9
        assert isinstance(passed["key"], str)


@settings(max_examples=50)
@given(st.lists(st.tuples(st.sampled_from([f.name for f in FIELDS]), st.text(max_size=9))))
def test_and_so_is_a_query(pairs: list[tuple[str, str]]) -> None:
    with contextlib.suppress(BadRequest):
        fields.of_query(pairs, FIELDS)


def test_what_is_given_and_what_is_not() -> None:
    passed = fields.of_body(b'{"text": "hi", "count": 2.0, "key": "k"}', FIELDS)
    assert passed == {"text": "hi", "count": 2, "key": "k", "flag": False}
    asked = [("base64", "aGk="), ("number", "1.5"), ("flag", "true"), ("key", "k")]
    passed = fields.of_query(asked, FIELDS)
    assert passed == {"base64": "aGk=", "number": 1.5, "flag": True, "key": "k", "count": 3}


@pytest.mark.parametrize(
    "body",
    [
        '{"text": "hi"}',
        '{"text": "hi", "base64": "aGk=", "key": "k"}',
        '{"text": "too long", "key": "k"}',
        '{"text": "\\ud800", "key": "k"}',
        '{"base64": "aGk", "key": "k"}',
        '{"text": "", "key": "\\n"}',
        '{"text": "", "key": "k", "count": true}',
        '{"text": "", "key": "k", "number": NaN}',
        '{"text": "", "key": "k", "way": "left"}',
        '{"text": "", "key": "k", "flag": 1}',
        '{"text": "", "key": "k", "more": 1}',
    ],
)
def test_what_is_refused(body: str) -> None:
    with pytest.raises(BadRequest):
        fields.of_body(body.encode(), FIELDS)


@pytest.mark.parametrize(
    ("names", "sent"),
    [
        ("Enter", "\r"),
        ("up Up PAGEUP", "\x1b[A\x1b[A\x1b[5~"),
        ("C-c ^d Ctrl-Z C-[", "\x03\x04\x1a\x1b"),
        ("M-x F5 F12", "\x1bx\x1b[15~\x1b[24~"),
        ("", ""),
    ],
)
def test_keys_by_their_names(names: str, sent: str) -> None:
    assert keys.typed(names) == sent


@pytest.mark.parametrize("names", ["Entr", "C-1", "hello", "Up " * 101])
def test_what_is_no_key(names: str) -> None:
    with pytest.raises(BadRequest):
        keys.typed(names)
