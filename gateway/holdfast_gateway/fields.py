"""What a request may carry, said once: it is checked by this, and described by it to whoever asks
(openapi.py, mcp_tools.py). Pure.

Invariant: what passes `of_query`, `of_body` or `of_object` has only known names, each value of its
kind and within its limits, and every required one; whatever is sent, nothing is raised but
`BadRequest`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from holdfast_wire.errors import BadRequest
from holdfast_wire.frames import MAX_KEY

Given = dict[str, Any]
Schema = dict[str, Any]

_NUMBER: Final = re.compile(r"-?[0-9]{1,17}(\.[0-9]{1,17})?")


class Kind(StrEnum):
    """As JSON Schema calls them."""

    TEXT = "string"
    COUNT = "integer"
    NUMBER = "number"
    FLAG = "boolean"
    TEXTS = "array"
    TABLE = "object"


@dataclass(frozen=True, slots=True)
class Field:
    name: str
    kind: Kind
    says: str
    required: bool = False
    default: Any = None
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    longest: int | None = None
    pattern: str | None = None
    """Somewhere in a text."""
    either: str = ""
    """Of those with the same word here exactly one is given."""

    def schema(self) -> Schema:
        told = {
            "type": self.kind.value,
            "description": self.says,
            "default": self.default,
            "minimum": self.low,
            "maximum": self.high,
            "enum": list(self.choices) or None,
            "maxLength": self.longest,
            "pattern": self.pattern,
        }
        if self.kind is Kind.TEXTS:
            told |= {"items": {"type": "string"}, "minItems": 1}
        if self.kind is Kind.TABLE:
            told |= {"additionalProperties": {"type": "string"}}
        return {key: value for key, value in told.items() if value is not None}

    def checked(self, value: object) -> Any:
        match self.kind:
            case Kind.TEXT:
                return self._text(value)
            case Kind.FLAG:
                if not isinstance(value, bool):
                    raise self._wrong("true or false")
                return value
            case Kind.COUNT:
                whole = isinstance(value, float) and value.is_integer()
                return self._number(int(value) if whole else value, int)  # type: ignore[call-overload]
            case Kind.NUMBER:
                return self._number(value, (int, float))
            case Kind.TEXTS:
                if not isinstance(value, list) or not value:
                    raise self._wrong("a list of texts")
                return [self._text(one) for one in value]
            case Kind.TABLE:
                if not isinstance(value, dict):
                    raise self._wrong("an object of texts")
                return {str(name): self._text(one) for name, one in value.items()}

    def _text(self, value: object) -> str:
        if not isinstance(value, str) or any("\ud800" <= c <= "\udfff" for c in value):
            raise self._wrong("a text")
        if self.choices and value not in self.choices:
            raise self._wrong(f"one of {', '.join(self.choices)}")
        if self.longest is not None and len(value) > self.longest:
            raise self._wrong(f"at most {self.longest} characters long")
        if self.pattern is not None and not _matches(self.pattern, value):
            raise self._wrong(f"a text that matches {self.pattern}")
        return value

    def _number(self, value: object, kinds: type | tuple[type, ...]) -> Any:
        if isinstance(value, bool) or not isinstance(value, kinds):
            raise self._wrong("a whole number" if kinds is int else "a number")
        low = float("-inf") if self.low is None else self.low
        high = float("inf") if self.high is None else self.high
        if not low <= value <= high:  # type: ignore[operator]
            raise self._wrong(f"from {low:g} to {high:g}")
        return value

    def from_text(self, text: str) -> Any:
        """As it stands in a query."""
        match self.kind:
            case Kind.TEXT:
                return self.checked(text)
            case Kind.FLAG:
                return self.checked({"true": True, "false": False}.get(text))
            case Kind.TEXTS | Kind.TABLE:
                raise self._wrong("in a body")
            case Kind.COUNT | Kind.NUMBER:
                if not _NUMBER.fullmatch(text):
                    raise self._wrong("a number")
                return self.checked(float(text) if "." in text else int(text))

    def _wrong(self, wanted: str) -> BadRequest:
        return BadRequest(f"{self.name!r} must be {wanted}")


def _matches(pattern: str, text: str) -> bool:
    """As JSON Schema has it, where `$` is the end and not also what is before a last line break."""
    exact = pattern[:-1] + r"\Z" if pattern.endswith("$") else pattern
    return re.search(exact, text) is not None


def key(what: str) -> Field:
    """Printable ASCII, so that its length in characters is that in bytes."""
    says = f"Your own name for {what}: sent twice, it takes effect once."
    return Field("key", Kind.TEXT, says, longest=MAX_KEY, pattern=r"^[ -~]*$")


def base64_text(name: str, says: str, either: str = "") -> Field:
    four, rest = "[A-Za-z0-9+/]{4}", "[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}="
    return Field(name, Kind.TEXT, says, pattern=f"^(?:{four})*(?:{rest})?$", either=either)


def schema_of(fields: Iterable[Field]) -> Schema:
    """Of an object with these."""
    every = tuple(fields)
    told: Schema = {
        "type": "object",
        "properties": {field.name: field.schema() for field in every},
        "additionalProperties": False,
    }
    if required := [field.name for field in every if field.required]:
        told["required"] = required
    if groups := _groups(every):
        told["allOf"] = [{"oneOf": [{"required": [name]} for name in names]} for names in groups]
    return told


def _groups(fields: Iterable[Field]) -> list[list[str]]:
    found: dict[str, list[str]] = {}
    for field in fields:
        if field.either:
            found.setdefault(field.either, []).append(field.name)
    return list(found.values())


def of_query(pairs: Iterable[tuple[str, str]], fields: tuple[Field, ...]) -> Given:
    known = {field.name: field for field in fields}
    given: Given = {}
    for name, text in pairs:
        if name in given:
            raise BadRequest(f"{name!r} is there twice")
        given[name] = _known(known, name).from_text(text)
    return _completed(given, fields)


def of_body(raw: bytes, fields: tuple[Field, ...]) -> Given:
    """Of a JSON object. An empty body is an empty object."""
    try:
        body = json.loads(raw) if raw else {}
    except (ValueError, RecursionError):
        raise BadRequest("the body is not JSON") from None
    if not isinstance(body, dict):
        raise BadRequest("the body is not a JSON object")
    return of_object(body, fields)


def of_object(body: Mapping[str, Any], fields: tuple[Field, ...]) -> Given:
    known = {field.name: field for field in fields}
    given = {name: _known(known, name).checked(value) for name, value in body.items()}
    return _completed(given, fields)


def _known(known: Mapping[str, Field], name: str) -> Field:
    if name not in known:
        there = f"there are: {', '.join(known)}" if known else "there are none"
        raise BadRequest(f"{name[:40]!r} is not known here", there)
    return known[name]


def _completed(given: Given, fields: tuple[Field, ...]) -> Given:
    for field in fields:
        if field.name not in given and field.required:
            raise BadRequest(f"there is no {field.name!r}", field.says)
    for names in _groups(fields):
        if sum(name in given for name in names) != 1:
            quoted = " or ".join(repr(name) for name in names)
            raise BadRequest(f"either {quoted} is needed", "send exactly one of them")
    defaults = {field.name: field.default for field in fields if field.default is not None}
    return {**defaults, **given}
