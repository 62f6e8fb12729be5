"""The OpenAPI 3.1 document, from the same table that is served. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

from holdfast_gateway import __version__, job_schemas, schemas
from holdfast_gateway.fields import Field, schema_of
from holdfast_gateway.routes import API, JSON, Route

PATH: Final = f"{API}/openapi.json"
_ERROR: Final = {"$ref": "#/components/responses/Error"}
_NAMES: Final = {
    "name": "The session's name.",
    "namespace": "Its namespace.",
    "id": "The job's id.",
}
# As Kubernetes wants it of a name; the same for a namespace.
_LABEL: Final = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"


def document(routes: Iterable[Route], one: str, by_right: bool = False) -> dict[str, Any]:
    """`one`: the path of one session; `by_right`: as in `Route.at`."""
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        path = route.at(one, by_right)
        paths.setdefault(path, {})[route.method.lower()] = _operation(route, path)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "holdfast",
            "version": __version__,
            "description": "Live terminal sessions: look at them, type into them, follow them."
            " Every error is an `Error` and says what to do.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": {**schemas.COMPONENTS, **job_schemas.COMPONENTS},
            "responses": {
                "Error": {
                    "description": "What went wrong, and what to do.",
                    "content": {JSON: {"schema": schemas.ref("Error")}},
                }
            },
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(route: Route, path: str) -> dict[str, Any]:
    named = [_of_path(name) for name in re.findall(r"\{(\w+)\}", path)]
    asked = [*named, *(_of_query(field) for field in route.query)]
    content = {media: {"schema": schema} for media, schema in route.answers.items()}
    responses: dict[str, Any] = {
        str(route.status): {"description": "Done.", "content": content},
        "4XX": _ERROR,
        "503": _ERROR,
    }
    if route.upgrades:
        asked.append(_LAST_EVENT)
        responses["101"] = {"description": "A WebSocket of subprotocol `holdfast.v1`, if asked."}
    told: dict[str, Any] = {"operationId": route.name, "summary": route.says}
    if asked:
        told["parameters"] = asked
    if route.body:
        told["requestBody"] = {
            "required": any(field.required or field.either for field in route.body),
            "content": {JSON: {"schema": schema_of(route.body)}},
        }
    return {**told, "responses": responses}


_LAST_EVENT: Final = {
    "name": "Last-Event-ID",
    "in": "header",
    "required": False,
    "description": "The `id` of the last event that came: the stream goes on at the next byte.",
    "schema": {"type": "string", "pattern": r"^[0-9]{1,19}@[A-Za-z0-9.-]{1,128}$"},
}


def _of_path(name: str) -> dict[str, Any]:
    return {
        "name": name,
        "in": "path",
        "required": True,
        "description": _NAMES[name],
        "schema": {"type": "string", "pattern": _LABEL, "minLength": 1, "maxLength": 63},
    }


def _of_query(field: Field) -> dict[str, Any]:
    schema = field.schema()
    says = schema.pop("description")
    return {
        "name": field.name,
        "in": "query",
        "required": field.required,
        "description": says,
        "schema": schema,
    }
