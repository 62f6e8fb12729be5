"""The reference page has every field of a Session, and none that does not exist."""

from __future__ import annotations

import json
import re
from typing import Any

import yaml

from crd_kit import ROOT, Schema, crds, fields, problems, schema_of

PAGE = (ROOT / "docs" / "session.md").read_text()
SCHEMA = schema_of(crds()["Session"])
FIELDS = {
    path: schema
    for path, schema in fields(SCHEMA)
    if path.startswith(("spec.", "status."))
}  # fmt: skip
ROWS = {
    cells[0].strip("`"): cells[1:]
    for line in re.findall(r"^\| (`(?:spec|status)\..*) \|$", PAGE, flags=re.MULTILINE)
    for cells in [[cell.strip() for cell in line.split("|")]]
}


def shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def default(schema: Schema) -> str:
    """A group has no default of its own: its fields do."""
    value = schema.get("default", {})
    return "" if value == {} else f"`{shown(value)}`"


def test_every_field_has_its_row() -> None:
    assert ROWS.keys() == FIELDS.keys()


def test_defaults_and_meanings_are_the_schemas() -> None:
    for path, schema in FIELDS.items():
        cells = ROWS[path]
        assert cells[-1] == schema["description"], path
        if path.startswith("spec."):
            assert cells[0] in (default(schema), "required"), path


def test_bounds_are_the_schemas() -> None:
    for path, schema in FIELDS.items():
        allowed = ROWS[path][-2]
        for key in ("minimum", "maximum", "minItems", "maxItems"):
            if key in schema:
                assert re.search(rf"(?<!\d){schema[key]}(?!\d)", allowed), f"{path} {key}"
        for value in schema.get("enum", ()):
            assert f"`{value}`" in allowed, f"{path} {value}"


def test_the_smallest_one_is_right() -> None:
    (text,) = re.findall(r"```yaml\n(.*?)```", PAGE, flags=re.DOTALL)
    assert list(problems(SCHEMA, yaml.safe_load(text))) == []
