"""The API's own description (OpenAPI 3.1), made of the operations that it serves."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import msgspec

from relay.admin.operation import Operation
from relay.admin.problem import Problem

_ALWAYS = {
    401: "The bearer token is missing or wrong.",
    429: "Too many wrong tokens.",
    500: "A fault of the relay's own.",
    503: "The store cannot be read or written now.",
}
_ASKED = {400: "A parameter or the body is not as described."}
_TEMPLATE = "#/components/schemas/{name}"


def document(
    operations: Sequence[Operation], streams: Mapping[str, dict[str, Any]], *, version: str
) -> dict[str, Any]:
    """Describe what is served; every schema is that of the type that is really encoded.

    `streams` are descriptions by path of what answers with more than one value.
    """
    types = [Problem, *_types(operations)]
    found, components = msgspec.json.schema_components(types, ref_template=_TEMPLATE)
    schemas = dict(zip(map(_key, types), found, strict=True))
    paths: dict[str, Any] = {}
    for operation in operations:
        described = _operation(operation, schemas, components)
        path = re.sub(r"{(\w+):\w+}", r"{\1}", operation.path)
        paths.setdefault(path, {})[operation.method.lower()] = described
    content = {"application/problem+json": {"schema": schemas[_key(Problem)]}}
    for path, described in streams.items():
        paths[path] = {"get": {**described, "responses": _told(_ALWAYS, content)}}
        paths[path]["get"]["responses"]["200"] = described["responses"]["200"]
    return {
        "openapi": "3.1.0",
        "info": {"title": "relay", "version": version, "description": _DESCRIPTION},
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _types(operations: Sequence[Operation]) -> list[Any]:
    every = [
        kind
        for each in operations
        for kind in (each.parameters, each.body, each.answer)
        if kind is not None
    ]
    return list({_key(kind): kind for kind in every}.values())


def _key(kind: Any) -> str:
    return repr(kind)


def _operation(
    operation: Operation, schemas: dict[str, Any], components: dict[str, Any]
) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "parameters": _parameters(operation, schemas, components),
        "responses": {
            "200": {
                "description": operation.summary,
                "content": {"application/json": {"schema": schemas[_key(operation.answer)]}},
            },
            **_problems(operation, schemas),
        },
    }
    if operation.body is not None:
        schema = schemas[_key(operation.body)]
        # As `operation` reads it: a name that is not known is an error.
        components[_name(schema)]["additionalProperties"] = False
        body = {"application/json": {"schema": schema}}
        described["requestBody"] = {"required": True, "content": body}
    return described


def _parameters(
    operation: Operation, schemas: dict[str, Any], components: dict[str, Any]
) -> list[dict[str, Any]]:
    kind = operation.parameters
    described = components[_name(schemas[_key(kind)])]
    properties, required = described.get("properties", {}), described.get("required", ())
    in_path = set(re.findall(r"{(\w+)", operation.path))
    return [
        {
            "name": each.name,
            "in": "path" if each.name in in_path else "query",
            "required": each.name in required,
            "schema": properties[each.name],
        }
        for each in fields(kind)
    ]


def _name(schema: dict[str, str]) -> str:
    return schema["$ref"].rpartition("/")[2]


def _problems(operation: Operation, schemas: dict[str, Any]) -> dict[str, Any]:
    asked = _ASKED if operation.body is not None or fields(operation.parameters) else {}
    if operation.body is not None:
        asked = asked | {413: "The body is too large."}
    content = {"application/problem+json": {"schema": schemas[_key(Problem)]}}
    return _told({**_ALWAYS, **asked, **operation.problems}, content)


def _told(texts: Mapping[int, str], content: dict[str, Any]) -> dict[str, Any]:
    return {
        str(status): {"description": text, "content": content}
        for status, text in sorted(texts.items())
    }


_DESCRIPTION = (
    "What the commands of relay ask of a running relay. Times are milliseconds since the epoch. "
    "Lists are newest first, and their `next` is the `before` of the page after."
)
