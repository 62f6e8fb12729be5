"""The CRDs read as data, and what of an API server's validation needs no server: types, required
fields, bounds, enums, patterns and fields that do not exist. CEL rules are for the end-to-end
tests."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
WRONG = ROOT / "e2e" / "wrong"

Schema = Mapping[str, Any]
TYPES: Mapping[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
}


def documents(path: Path) -> list[dict[str, Any]]:
    return [item for item in yaml.safe_load_all(path.read_text()) if item]


def crds() -> dict[str, dict[str, Any]]:
    """Each CRD by its kind."""
    found = [item for path in sorted((ROOT / "crds").glob("*.yaml")) for item in documents(path)]
    return {item["spec"]["names"]["kind"]: item for item in found}


def schema_of(crd: Mapping[str, Any]) -> Schema:
    (version,) = crd["spec"]["versions"]
    schema: Schema = version["schema"]["openAPIV3Schema"]
    return schema


def fields(schema: Schema, path: str = "") -> Iterator[tuple[str, Schema]]:
    """Every field below, as `spec.template.spec.containers[].name`."""
    for name, child in schema.get("properties", {}).items():
        here = f"{path}.{name}" if path else name
        yield here, child
        yield from fields(child, here)
    if "items" in schema:
        yield from fields(schema["items"], f"{path}[]")


def rules(schema: Schema) -> Iterator[Mapping[str, str]]:
    """Every CEL rule of this schema and of those below."""
    yield from schema.get("x-kubernetes-validations", ())
    for child in (*schema.get("properties", {}).values(), schema.get("items")):
        if child:
            yield from rules(child)


def problems(schema: Schema, value: Any, path: str = "") -> Iterator[str]:
    """What an API server would refuse in this value, but for CEL."""
    kind = schema["type"]
    if value is None and schema.get("nullable"):
        return
    if not isinstance(value, TYPES[kind]) or (isinstance(value, bool) and kind != "boolean"):
        yield f"{path}: must be of type {kind}"
        return
    yield from _bounds(schema, value, path)
    if isinstance(value, dict):
        yield from _members(schema, value, path)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from problems(schema["items"], item, f"{path}[{index}]")


def _bounds(schema: Schema, value: Any, path: str) -> Iterator[str]:
    size = len(value) if isinstance(value, str | list | dict) else value
    low = ("minimum", "minLength", "minItems", "minProperties")
    high = ("maximum", "maxLength", "maxItems", "maxProperties")
    if any(size < schema[key] for key in low if key in schema):
        yield f"{path}: too small"
    if any(size > schema[key] for key in high if key in schema):
        yield f"{path}: too large"
    if "enum" in schema and value not in schema["enum"]:
        yield f"{path}: must be one of {schema['enum']}"
    if "pattern" in schema and not re.search(schema["pattern"], value):
        yield f"{path}: does not match {schema['pattern']}"
    keys = schema.get("x-kubernetes-list-map-keys", ())
    if keys and len({tuple(item.get(key) for key in keys) for item in value}) < len(value):
        yield f"{path}: duplicate {keys}"


def _members(schema: Schema, value: Mapping[str, Any], path: str) -> Iterator[str]:
    known = schema.get("properties", {})
    for name in schema.get("required", ()):
        if name not in value:
            yield f"{path}.{name}: required"
    for name, member in value.items():
        here = f"{path}.{name}"
        if here in (".metadata", ".apiVersion", ".kind"):
            continue
        if name in known:
            yield from problems(known[name], member, here)
        elif "additionalProperties" in schema:
            yield from problems(schema["additionalProperties"], member, here)
        elif not schema.get("x-kubernetes-preserve-unknown-fields"):
            yield f"{here}: unknown field"
