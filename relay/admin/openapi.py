"""OpenAPI 3.1 document of the API, generated from the operations that it serves."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import fields

from relay.admin.operation import Operation
from relay.admin.problem import Problem

_COMMON_PROBLEMS = {
    401: "The bearer token is missing or wrong.",
    429: "Too many wrong tokens; retry later.",
    500: "The relay failed because of a bug; its log has the traceback.",
    503: "The store cannot be read or written now.",
}
_INPUT_PROBLEMS = {400: "A parameter or the body is invalid; the detail names it."}
_BODY_PROBLEMS = {413: "The body is too large."}
_TEMPLATE = "#/components/schemas/{name}"


def document(
    operations: Sequence[Operation], streams: Mapping[str, dict[str, Any]], *, version: str
) -> dict[str, Any]:
    """Build the document; every schema comes from the type that is encoded.

    `streams` describes, by path, the operations that do not return a single JSON value.
    """
    types = list(dict.fromkeys([Problem, *(kind for each in operations for kind in each.types)]))
    references, components = msgspec.json.schema_components(types, ref_template=_TEMPLATE)
    schemas = dict(zip(types, references, strict=True))
    paths: dict[str, Any] = {}
    for operation in operations:
        description = _operation(operation, schemas, components)
        path = re.sub(r"{(\w+):\w+}", r"{\1}", operation.path)
        paths.setdefault(path, {})[operation.method.lower()] = description
    for path, description in streams.items():
        responses = _problems(_COMMON_PROBLEMS, schemas) | description["responses"]
        paths[path] = {"get": {**description, "responses": responses}}
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


def _operation(
    operation: Operation, schemas: dict[type, Any], components: dict[str, Any]
) -> dict[str, Any]:
    of_parameters, *of_body, of_response = operation.types
    problems = dict(_COMMON_PROBLEMS)
    if of_body or fields(of_parameters):
        problems |= _INPUT_PROBLEMS
    if of_body:
        problems |= _BODY_PROBLEMS
    problems |= operation.problems
    answer = {"application/json": {"schema": schemas[of_response]}}
    description: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "parameters": _parameters(operation.path, components[_name(schemas[of_parameters])]),
        "responses": {
            "200": {"description": operation.summary, "content": answer},
            **_problems(problems, schemas),
        },
    }
    for kind in of_body:
        schema = schemas[kind]
        # `operation` refuses unknown names.
        components[_name(schema)]["additionalProperties"] = False
        body = {"application/json": {"schema": schema}}
        description["requestBody"] = {"required": True, "content": body}
    return description


def _parameters(path: str, schema: dict[str, Any]) -> list[dict[str, Any]]:
    in_path = set(re.findall(r"{(\w+)", path))
    return [
        {
            "name": name,
            "in": "path" if name in in_path else "query",
            "required": name in schema.get("required", ()),
            "schema": value,
        }
        for name, value in schema.get("properties", {}).items()
    ]


def _name(schema: dict[str, str]) -> str:
    return schema["$ref"].rpartition("/")[2]


def _problems(texts: Mapping[int, str], schemas: dict[type, Any]) -> dict[str, Any]:
    content = {"application/problem+json": {"schema": schemas[Problem]}}
    return {
        str(status): {"description": text, "content": content}
        for status, text in sorted(texts.items())
    }


_DESCRIPTION = (
    "Admin API of a running relay, as its commands use it. Times are milliseconds since the epoch. "
    "Lists are newest first; pass a page's `next` as `before` to get the following page."
)
