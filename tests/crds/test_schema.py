"""The CRDs are complete, bounded, and say what to do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from crd_kit import Schema, crds, fields, problems, rules, schema_of

KINDS = crds()
FIELDS = [
    pytest.param(path, schema, id=f"{kind}:{path}")
    for kind, crd in KINDS.items()
    for path, schema in fields(schema_of(crd))
]
RULES = [rule for crd in KINDS.values() for rule in rules(schema_of(crd))]


def columns(kind: str) -> list[tuple[str, str, int]]:
    (version,) = KINDS[kind]["spec"]["versions"]
    return [
        (column["name"], column["jsonPath"], column.get("priority", 0))
        for column in version["additionalPrinterColumns"]
    ]


def test_names() -> None:
    assert set(KINDS) == {"Session", "Checkpoint"}
    for kind, short in (("Session", "hf"), ("Checkpoint", "hfc")):
        spec = KINDS[kind]["spec"]
        assert spec["scope"] == "Namespaced"
        assert spec["names"]["shortNames"] == [short]
        assert spec["names"]["categories"] == ["holdfast"]
        (version,) = spec["versions"]
        assert (version["name"], version["subresources"]) == ("v1alpha1", {"status": {}})


def test_columns_of_sessions() -> None:
    assert columns("Session") == [
        ("Phase", ".status.phase", 0),
        ("Node", ".status.nodeName", 0),
        ("Epoch", ".status.epoch", 0),
        ("Turn", ".status.turn", 0),
        ("Clients", ".status.clients", 0),
        ("Idle", ".status.lastActiveTime", 0),
        ("Age", ".metadata.creationTimestamp", 0),
        ("Move", ".status.move.progress", 0),
        ("Pod", ".status.podName", 1),
        ("Activity", ".status.activity", 1),
        ("Stored", ".status.lastCheckpoint.takenAt", 1),
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_columns_show_fields_that_exist(kind: str) -> None:
    known = {f".{path}" for path, _ in fields(schema_of(KINDS[kind]))}
    for _name, path, _priority in columns(kind):
        assert path in known or path == ".metadata.creationTimestamp"


@pytest.mark.parametrize(("path", "schema"), FIELDS)
def test_every_field_is_described(path: str, schema: Schema) -> None:
    if path == "metadata":
        return  # the API server refuses a description there
    text = schema.get("description", "")
    assert text.endswith("."), path
    assert "items" not in schema or schema["items"].get("description", "").endswith(".")


@pytest.mark.parametrize(("path", "schema"), FIELDS)
def test_what_people_write_is_bounded(path: str, schema: Schema) -> None:
    """The API server weighs CEL rules by these bounds; and a session's status stays small."""
    if not path.startswith("spec."):
        return
    kind = schema["type"]
    if kind == "array":
        assert "maxItems" in schema
    elif kind == "string":
        assert "maxLength" in schema or "enum" in schema
    elif kind in ("integer", "number"):
        assert "minimum" in schema
        assert "maximum" in schema or path == "spec.epoch"


@pytest.mark.parametrize(("path", "schema"), FIELDS)
def test_defaults_are_valid(path: str, schema: Schema) -> None:
    if "default" in schema:
        assert list(problems(schema, schema["default"])) == []


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["rule"][:60])
def test_a_refusal_says_what_to_change(rule: dict[str, str]) -> None:
    advice = (
        "choose", "create", "give", "leave", "mount", "must be", "remove", "resize", "set", "use",
        "write",
    )  # fmt: skip
    assert any(word in rule["message"] for word in advice), rule["message"]
    assert "\n" not in rule["message"]


def test_the_defaults_of_a_session() -> None:
    spec = schema_of(KINDS["Session"])["properties"]["spec"]

    def filled(schema: Schema) -> Iterator[tuple[str, Any]]:
        for name, child in schema["properties"].items():
            if child.get("default") == {}:
                yield name, dict(filled(child))
            elif "default" in child:
                yield name, child["default"]

    assert dict(filled(spec)) == {
        "terminal": {"columns": 120, "rows": 40, "scrollbackLines": 10000},
        "lease": {"durationSeconds": 20},
        "move": {"onDrain": "Live", "memory": "Copy", "syscallFilter": True, "deadlineSeconds": 60},
        "recovery": {"onHostLoss": "RestoreLast"},
        "checkpoints": {
            "everySeconds": 600,
            "keep": 3,
            "maxAgeSeconds": 604800,
            "store": "Peer",
        },
        "idle": {"afterSeconds": 86400, "then": "Hibernate"},
        "suspended": False,
        "ended": False,
        "ttlSecondsAfterEnded": 86400,
    }


@pytest.mark.parametrize("kind", KINDS)
def test_conditions_are_standard(kind: str) -> None:
    conditions = schema_of(KINDS[kind])["properties"]["status"]["properties"]["conditions"]
    assert conditions["x-kubernetes-list-type"] == "map"
    assert conditions["x-kubernetes-list-map-keys"] == ["type"]
    assert set(conditions["items"]["properties"]) == {
        "type", "status", "observedGeneration", "lastTransitionTime", "reason", "message",
    }  # fmt: skip


def test_both_kinds_have_the_same_conditions() -> None:
    first, second = (schema_of(crd)["properties"]["status"]["properties"] for crd in KINDS.values())
    assert first["conditions"]["items"] == second["conditions"]["items"]


@pytest.mark.parametrize("name", ["command", "template", "terminal", "lease"])
def test_what_made_the_pod_cannot_be_changed(name: str) -> None:
    field = schema_of(KINDS["Session"])["properties"]["spec"]["properties"][name]
    assert "self == oldSelf" in [rule["rule"] for rule in field["x-kubernetes-validations"]]
