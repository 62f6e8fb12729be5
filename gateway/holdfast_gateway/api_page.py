"""The OpenAPI document as a page for people: no script, nothing fetched. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape
from typing import Any, Final

from holdfast_gateway.routes import API

PATH: Final = f"{API}/docs"
_STYLE: Final = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}"
    "code{font:14px ui-monospace,monospace}h2{margin-top:2.5rem;border-top:1px solid #8886}"
    "td{padding:.15rem 1rem .15rem 0;vertical-align:top}"
    "@media(prefers-color-scheme:dark){body{background:#16181d;color:#e6e6e6}a{color:#8ab4f8}}"
)


def page(document: Mapping[str, Any]) -> str:
    info = document["info"]
    parts = [f"<h1>{_text(info['title'])} {_text(info['version'])}</h1>"]
    parts.append(f"<p>{_text(info['description'])} <a href='openapi.json'>OpenAPI</a></p>")
    for path, methods in document["paths"].items():
        parts += [_operation(path, method, told) for method, told in methods.items()]
    for name, schema in document["components"]["schemas"].items():
        parts.append(f"<h2 id='{_text(name)}'>{_text(name)}</h2>")
        parts.append(_table(_properties(schema)))
    head = f"<meta charset=utf-8><title>holdfast: HTTP API</title><style>{_STYLE}</style>"
    return f"<!doctype html><html lang=en>{head}{''.join(parts)}</html>"


def _operation(path: str, method: str, told: Mapping[str, Any]) -> str:
    asked = [(one["name"], one["schema"], one["description"]) for one in told.get("parameters", ())]
    body = told.get("requestBody", {}).get("content", {}).values()
    for media in body:
        asked += _properties(media["schema"])
    answers = [
        (f"{status} {media}", content["schema"], "")
        for status, response in told["responses"].items()
        for media, content in response.get("content", {}).items()
    ]
    title = f"<h2><code>{method.upper()} {_text(path)}</code></h2>"
    return f"{title}<p>{_text(told['summary'])}</p>{_table(asked)}<p>Answers</p>{_table(answers)}"


def _properties(schema: Mapping[str, Any]) -> list[tuple[str, Any, str]]:
    found = schema.get("properties", {}).items()
    return [(name, one, one.get("description", "")) for name, one in found]


def _table(rows: Iterable[tuple[str, Any, str]]) -> str:
    lines = [
        f"<tr><td><code>{_text(name)}</code><td>{_kind(schema)}<td>{_text(says)}"
        for name, schema, says in rows
    ]
    return f"<table>{''.join(lines)}</table>"


def _kind(schema: Mapping[str, Any]) -> str:
    if "$ref" in schema:
        name = _text(schema["$ref"].rpartition("/")[2])
        return f"<a href='#{name}'>{name}</a>"
    if "anyOf" in schema:
        return " or ".join(_kind(one) for one in schema["anyOf"])
    if schema.get("type") == "array":
        return f"list of {_kind(schema.get('items', {}))}"
    if "enum" in schema:
        return _text(" | ".join(schema["enum"]))
    return _text(schema.get("type", ""))


def _text(value: object) -> str:
    return escape(str(value))
