"""OpenAPI 3.1 document of the API, generated from the operations that it serves."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import msgspec

from relay.admin.operation import Operation
from relay.admin.problem import Problem

_COMMON_PROBLEMS = {
    401: "The bearer token is missing or wrong.",
    429: "Too many wrong tokens; retry later.",
    500: "The relay failed because of a bug; its log has the traceback.",
    503: "The store cannot be read or written now.",
}
_INPUT_PROBLEMS = {400: "A parameter or the body is invalid; the detail names it."}
_TEMPLATE = "#/components/schemas/{name}"


def document(
    operations: Sequence[Operation], streams: Mapping[str, dict[str, Any]], *, version: str
) -> dict[str, Any]:
    """Build the document; every schema comes from the type that is encoded.

    `streams` describes, by path, the operations that do not return a single JSON value.
    """
    types = [Problem, *_types(operations)]
    references, components = msgspec.json.schema_components(types, ref_template=_TEMPLATE)
    schemas = dict(zip(map(_key, types), references, strict=True))
    paths: dict[str, Any] = {}
    for operation in operations:
        description = _operation(operation, schemas, components)
        path = re.sub(r"{(\w+):\w+}", r"{\1}", operation.path)
        paths.setdefault(path, {})[operation.method.lower()] = description
    content = {"application/problem+json": {"schema": schemas[_key(Problem)]}}
    for path, description in streams.items():
        paths[path] = {"get": {**description, "responses": _responses(_COMMON_PROBLEMS, content)}}
        paths[path]["get"]["responses"]["200"] = description["responses"]["200"]
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
    kinds = [
        kind
        for operation in operations
        for kind in (operation.parameters, operation.body, operation.response)
        if kind is not None
    ]
    return list({_key(kind): kind for kind in kinds}.values())


def _key(kind: Any) -> str:
    return repr(kind)


def _operation(
    operation: Operation, schemas: dict[str, Any], components: dict[str, Any]
) -> dict[str, Any]:
    description: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "parameters": _parameters(operation, schemas, components),
        "responses": {
            "200": {
                "description": operation.summary,
                "content": {"application/json": {"schema": schemas[_key(operation.response)]}},
            },
            **_problems(operation, schemas),
        },
    }
    if operation.body is not None:
        schema = schemas[_key(operation.body)]
        # `operation` refuses unknown names.
        components[_name(schema)]["additionalProperties"] = False
        body = {"application/json": {"schema": schema}}
        description["requestBody"] = {"required": True, "content": body}
    return description


def _parameters(
    operation: Operation, schemas: dict[str, Any], components: dict[str, Any]
) -> list[dict[str, Any]]:
    kind = operation.parameters
    schema = components[_name(schemas[_key(kind)])]
    properties, required = schema.get("properties", {}), schema.get("required", ())
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
    problems = _INPUT_PROBLEMS if operation.body is not None or fields(operation.parameters) else {}
    if operation.body is not None:
        problems = problems | {413: "The body is too large."}
    content = {"application/problem+json": {"schema": schemas[_key(Problem)]}}
    return _responses({**_COMMON_PROBLEMS, **problems, **operation.problems}, content)


def _responses(texts: Mapping[int, str], content: dict[str, Any]) -> dict[str, Any]:
    return {
        str(status): {"description": text, "content": content}
        for status, text in sorted(texts.items())
    }


_DESCRIPTION = (
    "Admin API of a running relay, as its commands use it. Times are milliseconds since the epoch. "
    "Lists are newest first; pass a page's `next` as `before` to get the following page."
)
