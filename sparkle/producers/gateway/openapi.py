"""The gateway's OpenAPI document, from its table of paths and its forms. Knows no endpoint's inside."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pydantic.json_schema import models_json_schema

from sparkle.producers.gateway.paths import Path

Document = dict[str, Any]

_JSON = "application/json"
_EVENTS = "text/event-stream"
_FAULTS = ("400", "401", "403", "404", "408", "409", "413", "429", "500", "503", "504")

_ERROR: Document = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": "string"},
            },
        }
    },
}


def document(paths: Iterable[Path], *, version: str) -> Document:
    """OpenAPI 3.1."""
    table = list(paths)
    bodies = list({path.body: None for path in table if path.body is not None})
    _, schemas = models_json_schema(
        [(body, "validation") for body in bodies], ref_template="#/components/schemas/{model}"
    )
    operations: dict[str, Document] = {}
    for path in table:
        operations.setdefault(path.path, {})[path.method.lower()] = _operation(path)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Sparkle", "version": version},
        "paths": operations,
        "components": {
            "schemas": {**schemas.get("$defs", {}), "Error": _ERROR},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"key": []}],
    }


def _operation(path: Path) -> Document:
    content = {_EVENTS: {"schema": {"type": "string"}}} if path.stream else {}
    fault = {"description": "What is wrong", "content": {_JSON: {"schema": _ref("Error")}}}
    operation: Document = {
        "summary": path.summary,
        "responses": {
            "200": {"description": "Done", "content": {_answer_type(path): {"schema": {}}, **content}},
            **dict.fromkeys(_FAULTS, fault),
        },
    }
    parameters = [("path", "id")] if "{id}" in path.path else []
    parameters += [("query", name) for name in path.query]
    if parameters:
        operation["parameters"] = [_parameter(place, name) for place, name in parameters]
    if path.body is not None:
        operation["requestBody"] = _body({_JSON: {"schema": _ref(path.body.__name__)}})
    if path.upload:
        operation["requestBody"] = _body({"multipart/form-data": {"schema": _upload()}})
    return operation


def _parameter(place: str, name: str) -> Document:
    return {"name": name, "in": place, "required": place == "path", "schema": {"type": "string"}}


def _answer_type(path: Path) -> str:
    return "application/octet-stream" if path.path.endswith("/content") else _JSON


def _body(content: Document) -> Document:
    return {"required": True, "content": content}


def _ref(name: str) -> Document:
    return {"$ref": f"#/components/schemas/{name}"}


def _upload() -> Document:
    return {
        "type": "object",
        "required": ["file", "purpose"],
        "properties": {
            "file": {"type": "string", "format": "binary"},
            "purpose": {"const": "batch"},
        },
    }
