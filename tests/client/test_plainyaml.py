"""YAML as it is read here, against a library that knows all of it."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.plainyaml import Unreadable, read, write

TEXTS = st.one_of(
    st.text(max_size=8),
    st.sampled_from(
        ["yes", "null", "1e3", "12:30", "0x1F", "a: b", "# x", "- x", "2024-01-01", "10.0.0.1", "-",
         "a #b", "*a", "~", "007", "1_000", "True", "a:", "<<", "https://h:6443/p", "LS0tLS1="]
    ),
)  # fmt: skip
VALUES = st.recursive(
    st.one_of(TEXTS, st.integers(-(10**9), 10**9), st.booleans(), st.none()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXTS, inner, max_size=3)),
    max_leaves=12,
)


@settings(max_examples=150, deadline=None)
@given(VALUES)
def test_read_as_a_library_would_or_not_at_all(value: Any) -> None:
    for text in (yaml.safe_dump(value), yaml.safe_dump(value, indent=4, width=20), write(value)):
        try:
            found = read(text)
        except Unreadable:
            continue
        assert found == yaml.safe_load(text), text


@settings(max_examples=150, deadline=None)
@given(VALUES)
def test_what_is_written_is_yaml(value: Any) -> None:
    assert yaml.safe_load(write(value)) == value


KUBECTL = """\
apiVersion: v1
clusters:
- cluster:
    certificate-authority-data: LS0tLS1CRUdJTg==
    server: https://127.0.0.1:6443
  name: kind
contexts:
- context: {}
  name: "a b"
current-context: kind
preferences: {}
users:
  # a comment
  - name: u   # another
    user:
      exec:
        apiVersion: client.authentication.k8s.io/v1
        args: ["a", "b"]
        command: 'it''s'
        env:
          - name: A
            value: "1"
        provideClusterInfo: false
        installHint: null
"""


def test_as_kubectl_writes_it() -> None:
    assert read(KUBECTL) == yaml.safe_load(KUBECTL)


@pytest.mark.parametrize(
    "text",
    [
        "a: |\n  b\n", "a: >-\n  b\n", "a: &x b\n", "a: *x\n", "a: !!str b\n", "? a\n: b\n",
        "a: yes\n", "a: 1.5\n", "a: 0x1f\n", "a: 2024-01-01\n", "a: 12:30\n", "a:\n\tb: c\n",
        "a: {b: c}\n", "a: [b]\n", "a: b\n  c\n", "a: b\na: c\n", "a: 'b\n  c'\n", "yes: b\n",
        "a: 'b' c\n", 'a: "\\x41"\n', "---\na: b\n---\nc: d\n", "a: b: c\n", "{a: b}\n",
        "- a\nb: c\n", 'a: "\\ud834\\udd1e"\n',
        "a:\n  b: c\n d: e\n", "a: .inf\n", "<<: {}\n", "%YAML 1.2\n---\na: b\n", "{\n",
    ],
)  # fmt: skip
def test_what_may_mean_something_else_is_not_guessed(text: str) -> None:
    with pytest.raises(Unreadable):
        read(text)
