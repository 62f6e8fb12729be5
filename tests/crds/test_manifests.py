"""The examples are right, and each wrong manifest is wrong in the way it says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from crd_kit import ROOT, WRONG, crds, documents, problems, rules, schema_of

SCHEMAS = {kind: schema_of(crd) for kind, crd in crds().items()}
MESSAGES = {kind: [rule["message"] for rule in rules(s)] for kind, s in SCHEMAS.items()}
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))
WRONGS = sorted(WRONG.glob("*.yaml"))
CHANGES = sorted((WRONG / "changes").glob("*.yaml"))

# What every API server refuses of every kind, with its own words.
OF_NAMES = ("a lowercase RFC 1123 subdomain must consist of", "must be no more than 253 characters")


def stem(path: Path) -> str:
    return path.stem


def expectation(path: Path) -> tuple[str, str]:
    """Where the refusal is to be seen, and a part of its text."""
    found = re.match(r"# (expect:|condition: Accepted) (\S.*)\n", path.read_text())
    assert found, f"{path} must begin with '# expect: …' or '# condition: Accepted …'"
    return found[1], found[2]


def sessions(path: Path) -> list[dict[str, Any]]:
    return [item for item in documents(path) if item["kind"] in SCHEMAS]


@pytest.mark.parametrize("path", EXAMPLES, ids=stem)
def test_example(path: Path) -> None:
    found = sessions(path)
    assert found
    for item in found:
        assert item["apiVersion"] == "holdfast.dev/v1alpha1"
        assert list(problems(SCHEMAS[item["kind"]], item)) == []


@pytest.mark.parametrize("path", EXAMPLES, ids=stem)
def test_examples_pass_the_restricted_profile(path: Path) -> None:
    for item in sessions(path):
        pod = item["spec"]["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in pod["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
            }
            assert {"requests", "limits"} <= set(container["resources"])


def test_there_is_enough_that_is_wrong() -> None:
    assert len(WRONGS) >= 20


@pytest.mark.parametrize("path", WRONGS, ids=stem)
def test_wrong(path: Path) -> None:
    where, text = expectation(path)
    (item,) = documents(path)
    by_rule = any(text in message for message in MESSAGES[item["kind"]])
    by_schema = list(problems(SCHEMAS[item["kind"]], item))
    if where == "expect:":
        assert by_rule or by_schema or text in OF_NAMES
    else:
        # The operator's to find: the schema must let it through.
        assert not by_rule
        assert not by_schema


@pytest.mark.parametrize("path", CHANGES, ids=stem)
def test_change(path: Path) -> None:
    where, text = expectation(path)
    first, second = documents(path)
    assert where == "expect:"
    assert first["metadata"] == second["metadata"]
    assert any(text in message for message in MESSAGES[first["kind"]])
    for item in (first, second):
        assert list(problems(SCHEMAS[item["kind"]], item)) == []


def test_every_rule_has_something_that_it_refuses() -> None:
    texts = [expectation(path)[1] for path in (*WRONGS, *CHANGES)]
    for messages in MESSAGES.values():
        for message in messages:
            assert any(text in message for text in texts), message


# The validator above is ours: it must be able to refuse.
@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"commands": ["ls"]}, ".spec.commands: unknown field"),
        ({"command": "ls"}, ".spec.command: must be of type array"),
        ({"command": []}, ".spec.command: too small"),
        ({"ended": 1}, ".spec.ended: must be of type boolean"),
        ({"lease": {"durationSeconds": True}}, ".spec.lease.durationSeconds: must be of type int"),
        ({"lease": {"durationSeconds": 601}}, ".spec.lease.durationSeconds: too large"),
        ({"move": {"onDrain": "live"}}, ".spec.move.onDrain: must be one of"),
        ({"template": {}}, ".spec.template.spec: required"),
    ],
)
def test_the_validator_refuses(change: dict[str, Any], problem: str) -> None:
    (item,) = documents(ROOT / "examples" / "session.yaml")
    item["spec"] |= change
    (found,) = problems(SCHEMAS["Session"], item)
    assert found.startswith(problem)
